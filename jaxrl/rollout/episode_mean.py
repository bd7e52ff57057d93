"""Running mean over episodes of what their rows add up to, such as returns or costs, without a look at whole episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.metrics import masked_mean
from jaxrl.rollout.running_statistics import starts_anew
from jaxrl.types import Array, Mean, Rollout


class EpisodeMean(NamedTuple):
    """Sums of episodes, tracked per lane of a rollout: per environment, or per agent."""

    running: Array
    """f32[num_envs]: sum of the current episode so far."""
    total: Array
    """f32[]: sum over the episodes that the estimate is the mean of, on all devices."""
    count: Array  # type: ignore[assignment]  # a field may hide tuple.count
    """f32[]: their number; 0 before the first has ended."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"running": 0}

    @property
    def mean(self) -> Array:
        """Estimate of the sum of an episode, f32[]; 0 before the first has ended."""
        return self.total / jnp.maximum(self.count, 1.0)


def no_episodes(num_envs: int) -> EpisodeMean:
    """Return the mean of no episodes."""
    return EpisodeMean(jnp.zeros(num_envs, jnp.float32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))


def add_rollout(
    episodes: EpisodeMean,
    rollout: Rollout,
    values: Array,
    smoothing: Array | float,
    axis_name: str | None,
    counted: Array | bool = True,
) -> tuple[EpisodeMean, Mean]:
    """Add the valid rows of a rollout; return the new mean, and that of the episodes that ended in the rollout alone.

    The estimate is the mean over these episodes and earlier ones, which weigh less by the factor ``smoothing``, f32[], for each
    rollout in which any ended. Without an end it stays.

    Args:
      values: f32[T, B]: what each row adds, 0 on rows that are not valid.
      counted: bool[T, B]: whether an episode that ends with the row counts.
    """
    slot = rollout.env_id % episodes.running.shape[0]  # a device holds a contiguous share of the environments

    def forward(running: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        value, anew = row
        running = jnp.where(anew, 0.0, running) + value
        return running, running

    last, running = jax.lax.scan(forward, episodes.running[slot], (values, starts_anew(rollout)))
    ended = masked_mean(running, counted & rollout.valid & (rollout.terminated | rollout.truncated))
    total, count = ended.sum, ended.count.astype(jnp.float32)
    if axis_name is not None:
        total, count = jax.lax.psum((total, count), axis_name)
    kept = jnp.where(count > 0, smoothing, 1.0)
    running = episodes.running.at[slot].set(last)
    return EpisodeMean(running, kept * episodes.total + total, kept * episodes.count + count), ended
