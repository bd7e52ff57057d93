"""Running statistics for observations and rewards, held in the learner's state.

Rollouts stay raw. A rule normalises with the statistics of its ``Policy`` when it acts and when it learns from that rollout, and
refreshes them from the valid rows afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.rollout.autoreset import expand_mask
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, PyTree, Rollout, StepInput

EPSILON = 1e-8


class RunningMoments(NamedTuple):
    """Mean and variance of a stream, per element of its leaves (Chan et al. 1979 for the merge of two parts)."""

    count: Array  # type: ignore[assignment]  # a field may hide tuple.count
    """f32[]: rows so far; starts at a small positive number so that nothing divides by zero."""
    mean: PyTree
    variance: PyTree


def init_moments(example: PyTree) -> RunningMoments:
    """Moments for rows like ``example`` (one unbatched row; arrays or shapes): mean 0, variance 1 until rows arrive."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), example)
    return RunningMoments(jnp.full((), 1e-4, jnp.float32), zeros, jax.tree.map(jnp.ones_like, zeros))


def update_moments(moments: RunningMoments, rows: PyTree, where: Array, axis_name: str | None = None) -> RunningMoments:
    """Take in ``rows`` (leaves [*where.shape, ...]) where the mask is true; over all devices when an axis is named."""

    def total(x: Array) -> Array:
        return x if axis_name is None else jax.lax.psum(x, axis_name)

    lead = tuple(range(where.ndim))
    count = total(where.sum(dtype=jnp.float32))
    merged = moments.count + count

    def one(mean: Array, variance: Array, x: Array) -> tuple[Array, Array]:
        chex.assert_shape(x, (*where.shape, *mean.shape))
        keep, x = expand_mask(where, x), x.astype(jnp.float32)
        batch_mean = total(jnp.where(keep, x, 0.0).sum(lead)) / jnp.maximum(count, 1.0)
        batch_square = total(jnp.where(keep, (x - batch_mean) ** 2, 0.0).sum(lead))
        delta = batch_mean - mean
        square = variance * moments.count + batch_square + delta**2 * moments.count * count / merged
        return mean + delta * count / merged, square / merged

    rows = jax.tree.map(lambda mean, x: None if mean is None else x, moments.mean, rows, is_leaf=_is_none)
    means, structure = jax.tree.flatten(moments.mean)
    variances, leaves = (structure.flatten_up_to(tree) for tree in (moments.variance, rows))
    pairs = [one(mean, variance, x) for mean, variance, x in zip(means, variances, leaves, strict=True)]
    return RunningMoments(merged, structure.unflatten([m for m, _ in pairs]), structure.unflatten([v for _, v in pairs]))


def _is_none(x: object) -> bool:
    return x is None


def normalize(moments: RunningMoments, x: PyTree, clip: float = 10.0) -> PyTree:
    """(x − mean) / std per element, clipped to ±``clip``; the statistics broadcast over leading axes.

    Where the moments hold None in place of a leaf, that leaf of ``x`` stays as it is.
    """

    def one(mean: Array | None, variance: Array, x: Array) -> Array:
        if mean is None:
            return x
        chex.assert_shape(x, (..., *mean.shape))
        return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + EPSILON), -clip, clip)

    return jax.tree.map(one, moments.mean, moments.variance, x, is_leaf=_is_none)


# ------------------------------------------------------------------------------------------------------- in a learner's state


class Statistics(NamedTuple):
    """What normalisation needs; () where it is switched off."""

    observations: RunningMoments | tuple[()]
    rewards: RewardStatistics | tuple[()]


class RewardStatistics(NamedTuple):
    """Rewards are divided by the standard deviation of the discounted return, kept per environment."""

    returns: Array
    """f32[num_envs]: the running discounted return of each environment."""
    moments: RunningMoments

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"returns": 0}


def real_valued(space: spaces.Space, obs: PyTree) -> PyTree:
    """The parts of an observation that normalisation is for, None in place of the others: choices and masks stay as they are."""
    if isinstance(space, spaces.Dict):
        return {name: None if name == MASK_KEY else real_valued(part, obs[name]) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(real_valued(part, obs[i]) for i, part in enumerate(space))
    return obs if isinstance(space, spaces.Box) else None


def init_statistics(observation_space: spaces.Space | None, num_envs: int | None) -> Statistics:
    """Statistics for observations of a space, and for the rewards of so many environments; None switches either off."""
    observations: Any = ()
    if observation_space is not None:
        observations = init_moments(real_valued(observation_space, zeros(observation_space)))
    rewards: Any = ()
    if num_envs is not None:
        rewards = RewardStatistics(jnp.zeros(num_envs, jnp.float32), init_moments(jnp.zeros(())))
    return Statistics(observations, rewards)


def scale_rewards(statistics: Statistics, reward: Array) -> Array:
    """Rewards over the standard deviation of the discounted return; raw where that is switched off."""
    if not statistics.rewards:
        return reward
    return reward * jax.lax.rsqrt(statistics.rewards.moments.variance + EPSILON)


def normalize_inputs(statistics: Statistics | tuple[()], inputs: StepInput) -> StepInput:
    """Inputs as a model sees them; raw where there are no statistics."""
    if not (statistics and statistics.observations):
        return inputs
    return inputs._replace(obs=normalize(statistics.observations, inputs.obs))


def update_statistics(statistics: Statistics, rollout: Rollout, gamma: Array | float, axis_name: str | None) -> Statistics:
    """Take the valid rows of a rollout into the statistics."""
    observations, rewards = statistics
    if observations:
        obs = jax.tree.map(lambda x: x[:-1], rollout.inputs.obs)
        observations = update_moments(observations, obs, rollout.valid, axis_name)
    if rewards:
        # A row that is spent on a reset is followed by the first of an episode; over padding the sum goes on.
        first, next_first = rollout.inputs.is_first[:-1], rollout.inputs.is_first[1:]
        ends = first | (~rollout.valid & next_first)
        discount = jnp.where(ends, 0.0, jnp.where(rollout.valid, gamma, 1.0))
        rewards = update_reward_statistics(rewards, rollout.reward, discount, rollout.valid, rollout.env_id, axis_name)
    return Statistics(observations, rewards)


def update_reward_statistics(
    statistics: RewardStatistics, reward: Array, discount: Array, valid: Array, env_id: Array, axis_name: str | None
) -> RewardStatistics:
    """Take the valid rows of a reward f32[T, B] into its statistics.

    Args:
      discount: f32[T, B], what the sum up to the row before counts in that row's: 0 begins a new sum.
      env_id: i32[B], global over devices.
    """
    # A device holds a contiguous share of the environments, so the global id modulo that share is the local row.
    slot = env_id % statistics.returns.shape[0]

    def forward(g: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, discount = row
        g = reward + discount * jnp.where(discount == 0, 0.0, g)  # 0 times what is not finite would be no 0
        return g, g

    last, returns = jax.lax.scan(forward, statistics.returns[slot], (reward, discount))
    moments = update_moments(statistics.moments, returns, valid, axis_name)
    return RewardStatistics(statistics.returns.at[slot].set(last), moments)
