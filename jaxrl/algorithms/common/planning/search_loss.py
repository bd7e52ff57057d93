"""AlphaZero's loss of positions with what searches found, and the symmetries of positions (Silver et al. 2018)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.optimize.gradients import valid_means
from jaxrl.rollout.inputs import without_history, zero_invalid
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import Array, Key, PyTree, Symmetries


class SearchedRow(NamedTuple):
    """A position with what a search and the game made of it."""

    obs: PyTree
    policy: Array
    """f32[n]: the improved policy."""
    value: Array
    """f32: the λ-return, from the view of the player to move."""
    valid: Array


def alphazero_loss(setup: ReplaySetup[Any], vf_coef: Array, params: PyTree, batch: SearchedRow) -> tuple[Array, dict[str, Array]]:
    """Mean over valid rows of −Σₐ π(a)·log p(a) + vf_coef·(z − v)² (Silver et al. 2018, equation 1; its weight decay belongs to
    the optimiser), where π is the policy that the search improved and z the return."""
    batch = zero_invalid(batch, batch.valid)
    inputs = without_history(batch.obs, batch.valid)
    output = setup.model.apply(params, (), inputs)[1]
    log_prob = jax.nn.log_softmax(output.policy.logits)
    cross_entropy = -jnp.where(batch.policy > 0, batch.policy * log_prob, 0.0).sum(-1)
    value_loss = (batch.value - output.value) ** 2
    entropy = -jnp.where(batch.policy > 0, batch.policy * jnp.log(jnp.where(batch.policy > 0, batch.policy, 1.0)), 0.0).sum(-1)
    logged = {"losses/policy_loss": cross_entropy, "losses/value_loss": value_loss, "losses/search_entropy": entropy}
    return valid_means(cross_entropy + vf_coef * value_loss, logged, batch.valid, setup.axis_name)


def reflected(symmetries: Symmetries, row: SearchedRow, key: Key) -> SearchedRow:
    """Return a row, unbatched, under a random symmetry of its board."""
    squares, actions = (jnp.asarray(x) for x in symmetries)
    which = jax.random.randint(key, (), 0, len(squares))
    board = row.obs[OBSERVATION]
    boards = board.reshape(squares.shape[1], -1)[squares[which]].reshape(board.shape)
    obs = {**row.obs, OBSERVATION: boards, MASK_KEY: row.obs[MASK_KEY][actions[which]]}
    return row._replace(obs=obs, policy=row.policy[actions[which]])
