"""Running statistics of observations and rewards, part of the learner's state.

Rollouts stay raw. An algorithm normalises with the statistics of its ``Policy`` when it acts and when it learns from the rollout,
and then updates them from the valid rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.rollout.autoreset import expand_mask
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, PyTree, Rollout, StepInput

EPSILON = 1e-8
T = TypeVar("T")


class RunningMoments(NamedTuple):
    """Mean and variance of a stream, per element of its leaves. Two parts are merged as in Chan et al. 1979."""

    count: Array  # type: ignore[assignment]  # a field may hide tuple.count
    """Number of rows so far, f32[]. Starts at a small positive number to avoid division by zero."""
    mean: PyTree
    variance: PyTree


def init_moments(example: PyTree) -> RunningMoments:
    """Return initial moments, mean 0 and variance 1, for rows like ``example`` (one unbatched row; arrays or shapes)."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), example)
    return RunningMoments(jnp.full((), 1e-4, jnp.float32), zeros, jax.tree.map(jnp.ones_like, zeros))


def update_moments(moments: RunningMoments, rows: PyTree, where: Array, axis_name: str | None = None) -> RunningMoments:
    """Update with ``rows`` (leaves [*where.shape, ...]) where the mask is true; over all devices of a named axis."""

    def total(x: Array) -> Array:
        return x if axis_name is None else jax.lax.psum(x, axis_name)

    lead = tuple(range(where.ndim))
    count = total(where.sum(dtype=jnp.float32))
    merged = moments.count + count

    def update_leaf(mean: Array, variance: Array, x: Array) -> tuple[Array, Array]:
        chex.assert_shape(x, (*where.shape, *mean.shape))
        keep, x = expand_mask(where, x), x.astype(jnp.float32)
        batch_mean = total(jnp.where(keep, x, 0.0).sum(lead)) / jnp.maximum(count, 1.0)
        batch_square = total(jnp.where(keep, (x - batch_mean) ** 2, 0.0).sum(lead))
        return _merged(moments.count, mean, variance, count, batch_mean, batch_square)

    rows = without_none(moments.mean, rows)
    means, structure = jax.tree.flatten(moments.mean)
    variances, leaves = (structure.flatten_up_to(tree) for tree in (moments.variance, rows))
    pairs = [update_leaf(mean, variance, x) for mean, variance, x in zip(means, variances, leaves, strict=True)]
    return _unzipped(lambda mean, variance: RunningMoments(merged, mean, variance), structure, pairs)


class EpisodeMoments(NamedTuple):
    """Moments of the rows of each of B episodes so far, updated row by row (Welford 1962).

    Those of an episode do not depend on which others are in the batch.
    """

    mean: PyTree
    """[B, ...]"""
    square: PyTree
    """[B, ...]: sums of the squared deviations from the mean."""
    count: Array  # type: ignore[assignment]  # a field may hide tuple.count
    """i32[B]: number of rows"""

    def plus(self, rows: PyTree, where: Array) -> EpisodeMoments:
        """Add a row to each episode, leaves [B, ...], where the mask, bool[B], is true."""
        count = self.count + where

        def add(mean: Array, square: Array, x: Array) -> tuple[Array, Array]:
            keep, delta = expand_mask(where, x), x.astype(jnp.float32) - mean
            after = mean + delta / expand_mask(jnp.maximum(count, 1).astype(jnp.float32), x)
            return jnp.where(keep, after, mean), jnp.where(keep, square + delta * (x - after), square)

        leaves, structure = jax.tree.flatten(self.mean)
        others = [structure.flatten_up_to(tree) for tree in (self.square, without_none(self.mean, rows))]
        pairs = [add(*each) for each in zip(leaves, *others, strict=True)]
        return _unzipped(lambda mean, square: EpisodeMoments(mean, square, count), structure, pairs)


def no_rows(moments: RunningMoments, batch_size: int) -> EpisodeMoments:
    """Return the moments of ``batch_size`` episodes before their first rows."""
    zeros = jax.tree.map(lambda mean: jnp.zeros((batch_size, *mean.shape)), moments.mean)
    return EpisodeMoments(zeros, zeros, jnp.zeros(batch_size, jnp.int32))


def add_episodes(moments: RunningMoments, episodes: EpisodeMoments) -> RunningMoments:
    """Update moments with those of episodes. An episode whose moments are not finite is left out."""
    finite, of_each = jnp.ones(episodes.count.shape, bool), (episodes.mean, episodes.square)
    for leaf in jax.tree.leaves(of_each):
        finite &= jnp.isfinite(leaf).reshape(len(leaf), -1).all(1)
    of_each = jax.tree.map(lambda x: jnp.where(expand_mask(finite, x), x, 0.0), of_each)
    weight = jnp.where(finite, episodes.count, 0).astype(jnp.float32)
    number = weight.sum()
    merged = moments.count + number

    def update_leaf(mean: Array, variance: Array, own: Array, square: Array) -> tuple[Array, Array]:
        rows = expand_mask(weight, own)
        batch_mean = (rows * own).sum(0) / jnp.maximum(number, 1.0)
        batch_square = (square + rows * (own - batch_mean) ** 2).sum(0)
        return _merged(moments.count, mean, variance, number, batch_mean, batch_square)

    means, structure = jax.tree.flatten(moments.mean)
    others = [structure.flatten_up_to(tree) for tree in (moments.variance, *of_each)]
    pairs = [update_leaf(*leaves) for leaves in zip(means, *others, strict=True)]
    return _unzipped(lambda mean, variance: RunningMoments(merged, mean, variance), structure, pairs)


def _merged(
    count: Array, mean: Array, variance: Array, number: Array, batch_mean: Array, batch_square: Array
) -> tuple[Array, Array]:
    """Return ``(mean, variance)`` after ``number`` further rows with this mean and sum of squared deviations from it."""
    merged, delta = count + number, batch_mean - mean
    square = variance * count + batch_square + delta**2 * count * number / merged
    return mean + delta * number / merged, square / merged


def _unzipped(make: Callable[[PyTree, PyTree], T], structure: Any, pairs: Sequence[tuple[Array, Array]]) -> T:
    return make(structure.unflatten([a for a, _ in pairs]), structure.unflatten([b for _, b in pairs]))


def without_none(mean: PyTree, rows: PyTree) -> PyTree:
    """Return ``rows`` with None in place of the leaves that have no moments."""
    return jax.tree.map(lambda mean, x: None if mean is None else x, mean, rows, is_leaf=_is_none)


def _is_none(x: object) -> bool:
    return x is None


def normalize(moments: RunningMoments, x: PyTree, clip: float = 10.0) -> PyTree:
    """Return (x − mean) / std per element, clipped to ±``clip``; the statistics broadcast over leading axes.

    A leaf of ``x`` is unchanged if the moments have None in its place.
    """

    def normalize_leaf(mean: Array | None, variance: Array, x: Array) -> Array:
        if mean is None:
            return x
        chex.assert_shape(x, (..., *mean.shape))
        return jnp.clip((x.astype(jnp.float32) - mean) * jax.lax.rsqrt(variance + EPSILON), -clip, clip)

    return jax.tree.map(normalize_leaf, moments.mean, moments.variance, x, is_leaf=_is_none)


class Statistics(NamedTuple):
    """Statistics for normalisation; () for those switched off."""

    observations: RunningMoments | tuple[()]
    rewards: RewardStatistics | tuple[()]
    values: RunningMoments | tuple[()] = ()
    """Moments of the targets of the value."""


class RewardStatistics(NamedTuple):
    """Statistics to divide rewards by the standard deviation of the discounted return, which is tracked per environment."""

    returns: Array
    """Running discounted return of each environment, f32[num_envs]."""
    moments: RunningMoments

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"returns": 0}


def real_valued(space: spaces.Space, obs: PyTree) -> PyTree:
    """Return the parts of an observation to normalise, with None in place of the others: discrete values and masks stay raw."""
    if isinstance(space, spaces.Dict):
        return {name: None if name == MASK_KEY else real_valued(part, obs[name]) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(real_valued(part, obs[i]) for i, part in enumerate(space))
    return obs if isinstance(space, spaces.Box) else None


def init_statistics(observation_space: spaces.Space | None, num_envs: int | None, *, values: bool = False) -> Statistics:
    """Return initial statistics for observations of a space and rewards of ``num_envs`` environments; None disables either.

    Args:
      values: also for the targets of a value.
    """
    observations: Any = ()
    if observation_space is not None:
        observations = init_moments(real_valued(observation_space, zeros(observation_space)))
    rewards: Any = ()
    if num_envs is not None:
        rewards = RewardStatistics(jnp.zeros(num_envs, jnp.float32), init_moments(jnp.zeros(())))
    return Statistics(observations, rewards, init_moments(jnp.zeros(())) if values else ())


def values_in_units(statistics: Statistics, output: Array) -> Array:
    """Return the values that a critic's outputs stand for, given the moments of its targets; without these, the outputs."""
    if not statistics.values:
        return output
    return statistics.values.mean + jnp.sqrt(statistics.values.variance + EPSILON) * output


def normalized_values(moments: RunningMoments | tuple[()], batch: Any, axis_name: str | None) -> tuple[Any, Any]:
    """Return the moments after the targets of a batch, and the batch with ``target`` and ``value`` normalised by these; without
    moments, both as they are. ``valid`` masks the rows that count."""
    if not moments:
        return moments, batch
    moments = update_moments(moments, batch.target, batch.valid, axis_name)
    scaled = lambda x: (x - moments.mean) * jax.lax.rsqrt(moments.variance + EPSILON)  # noqa: E731
    return moments, batch._replace(target=scaled(batch.target), value=scaled(batch.value))


def scale_rewards(statistics: Statistics, reward: Array) -> Array:
    """Divide rewards by the standard deviation of the discounted return, or return them raw if that is switched off."""
    if not statistics.rewards:
        return reward
    return reward * jax.lax.rsqrt(statistics.rewards.moments.variance + EPSILON)


def normalize_inputs(statistics: Statistics | tuple[()], inputs: StepInput) -> StepInput:
    """Normalise the observations of a model's inputs, or return them raw if there are no statistics."""
    if not (statistics and statistics.observations):
        return inputs
    return inputs._replace(obs=normalize(statistics.observations, inputs.obs))


def update_statistics(statistics: Statistics, rollout: Rollout, gamma: Array | float, axis_name: str | None) -> Statistics:
    """Update the statistics with the valid rows of a rollout."""
    observations, rewards, values = statistics
    if observations:
        obs = jax.tree.map(lambda x: x[:-1], rollout.inputs.obs)
        observations = update_moments(observations, obs, rollout.valid, axis_name)
    if rewards:
        discount = jnp.where(starts_anew(rollout), 0.0, jnp.where(rollout.valid, gamma, 1.0))
        rewards = update_reward_statistics(rewards, rollout.reward, discount, rollout.valid, rollout.env_id, axis_name)
    return Statistics(observations, rewards, values)


def starts_anew(rollout: Rollout) -> Array:
    """Return bool[T, B], true for rows at which a sum over the rows of an episode begins: its first row, and the reset row before
    it. Other invalid rows, such as padding, continue the sum."""
    first, next_first = rollout.inputs.is_first[:-1], rollout.inputs.is_first[1:]
    return first | (~rollout.valid & next_first)


def update_reward_statistics(
    statistics: RewardStatistics, reward: Array, discount: Array, valid: Array, env_id: Array, axis_name: str | None
) -> RewardStatistics:
    """Update the statistics of a reward f32[T, B] with its valid rows.

    Args:
      discount: f32[T, B], factor on the sum up to the previous row; 0 starts a new sum.
      env_id: i32[B], global over devices.
    """
    # A device holds a contiguous share of the environments, so the global id modulo that share is the local row.
    slot = env_id % statistics.returns.shape[0]

    def forward(g: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, discount = row
        g = reward + discount * jnp.where(discount == 0, 0.0, g)  # 0 * inf is NaN
        return g, g

    last, returns = jax.lax.scan(forward, statistics.returns[slot], (reward, discount))
    moments = update_moments(statistics.moments, returns, valid, axis_name)
    return RewardStatistics(statistics.returns.at[slot].set(last), moments)
