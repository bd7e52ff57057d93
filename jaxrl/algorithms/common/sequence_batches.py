"""Sequences for networks with memory: storing rollouts with the carry before the first row, and batches for policies and critics,
with the fields of ``Transitions`` that their losses read."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.builder.attempt import attempt, show
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.replay import Draw, ReplayFn
from jaxrl.replay.sequence import CarriedRows, sequence_priorities, sequences
from jaxrl.replay.transitions import Transitions, bootstrapped, example_row, replay_rows
from jaxrl.returns import bootstrap_mask, discounts, n_step_returns
from jaxrl.rollout.agents import as_lanes
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.outputs import Window
from jaxrl.spaces.trees import same_shapes
from jaxrl.types import Array, PyTree, Rollout


class ReturnRows(NamedTuple):
    """Rows of sequences for n-step returns, f32[L, N]: arguments of ``n_step_returns``."""

    reward: Array
    discount: Array
    trace: Array
    valid: Array


class SequenceBatch(NamedTuple):
    """The training rows of sequences, one after the other: S rows of N sequences, [S · N]."""

    inputs: Window
    next_inputs: Window
    """Reaches all L = S + n − 1 rows of the returns."""
    action: Array
    weight: Array
    valid: Array
    returns: ReturnRows


def sequence_batch(setup: ReplaySetup[Any], learner: Any, replay: PyTree, draw: Draw, gamma: Array) -> SequenceBatch:
    """Return the drawn sequences, [N], with actions in the environment's units."""
    config = setup.config
    drawn = setup.weighted(sequences(setup.replay, replay, draw, config.rows_behind), learner)
    first, last = config.burn_in, config.burn_in + config.sequence_length
    rows = zero_invalid(drawn.inputs, bootstrap_mask(drawn))
    learnt: Any = drawn._replace(carry=(), weight=())
    learnt = jax.tree.map(lambda x: x[first:], learnt)
    flat = lambda x: x[: config.sequence_length].reshape(-1, *x.shape[2:])  # noqa: E731
    return SequenceBatch(
        Window(jax.tree.map(lambda x: x[:last], rows), drawn.carry, first),
        Window(rows, drawn.carry, first + 1),
        zero_invalid(flat(learnt.action), flat(learnt.valid)),
        jnp.tile(drawn.weight, config.sequence_length),
        flat(learnt.valid),
        ReturnRows(learnt.reward, *discounts(learnt, gamma), learnt.valid),
    )


def targets_of(batch: Transitions | SequenceBatch, value: Array) -> Array:
    """Return the targets of a batch's rows, with gradients stopped: their returns, and the value beyond these.

    Args:
      value: V of the rows of ``next_inputs``, f32[N], or f32[N, M] for M values per row.
    """
    if isinstance(batch, Transitions):
        return bootstrapped(batch, value)
    rows, (number, size) = batch.returns, batch.returns.valid.shape
    learnt = len(batch.valid) // size

    def returns(value: Array) -> Array:
        values = value.reshape(number, size)
        return n_step_returns(rows.reward, rows.discount, rows.trace, values, rows.valid, number + 1 - learnt)[:learnt].ravel()

    return jax.lax.stop_gradient(returns(value) if value.ndim == 1 else jax.vmap(returns, -1, -1)(value))


def priorities_of(batch: Transitions | SequenceBatch, priorities: Array) -> Array:
    """Return the priority of each draw, given those of a batch's rows: with sequences a mixture of their largest and mean
    (Kapturowski et al. 2019, section 2.3)."""
    if isinstance(batch, Transitions):
        return priorities
    size = batch.returns.valid.shape[1]
    return sequence_priorities(priorities.reshape(-1, size), batch.valid.reshape(-1, size))


# --------------------------------------------------------------------------------------------------------------------- storing


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
