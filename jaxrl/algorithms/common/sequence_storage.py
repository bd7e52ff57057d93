"""Storing the sequences that networks with memory learn from: rows of rollouts, with the carry before the first."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.builder.attempt import attempt, show
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.replay import ReplayFn
from jaxrl.replay.sequence import CarriedRows
from jaxrl.replay.transitions import example_row, replay_rows
from jaxrl.rollout.agents import as_lanes
from jaxrl.spaces.trees import same_shapes
from jaxrl.types import Rollout


def example_sequence(setup: ReplaySetup[Any]) -> CarriedRows:
    """Return an example of a stored row, with its carry."""
    carry = jax.tree.map(lambda x: x[0], setup.model.initial_carry(1))
    return CarriedRows(example_row(setup.observation_space, setup.action_space), carry)


def store_sequences(setup: ReplaySetup[Any], learner: Any, rollout: Rollout) -> Any:
    """Add the rollout's rows to the replay, unnormalised, with the carry before the first."""
    rows = CarriedRows(replay_rows(rollout), jax.tree.map(lambda x: x[None], rollout.carry))
    return learner._replace(replay=setup.replay.add(learner.replay, rows, rollout.env_id))


def check_sequences(replay: ReplayFn, setup: ReplaySetup[Any], num_agents: int = 0) -> None:
    """Raise TypeError unless the replay returns a rollout's rows with the carry before them. Only shapes are computed.

    Args:
      num_agents: number of agents whose sequences are drawn together; 0: each alone.
    """
    num_envs = setup.config.num_envs

    def stored() -> None:
        row, carry = stored_row = example_sequence(setup)
        many = lambda tree, length: jax.tree.map(lambda x: jnp.broadcast_to(x, (length, num_envs, *x.shape)), tree)  # noqa: E731
        rows = CarriedRows(many(row, setup.config.rollout_length), many(carry, 1))
        state = setup.replay.add(setup.replay.init(stored_row), rows, jnp.arange(num_envs, dtype=jnp.int32))
        each, found = max(1, num_agents), setup.replay.draw(state, jax.random.key(0), 1).extras
        if not same_shapes(as_lanes(found, num_agents), setup.model.initial_carry(each)):
            raise TypeError("its draws have no carry")

    given = f"num_agents={num_agents}" if num_agents else ""
    must = f"must store sequences that begin with each rollout, as jaxrl.replay.sequence.sequence_replay({given}) does"
    attempt(f"replay={show(replay)}, which {must},", stored)
