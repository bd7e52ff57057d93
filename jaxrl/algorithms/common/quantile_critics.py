"""Critics that output quantiles of the return (TQC, Kuznetsov et al. 2020)."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.algorithms.common.q_heads import midpoints, tilted_huber
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.optimize.gradients import valid_mean
from jaxrl.replay.transitions import Transitions
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count, CountOrZero
from jaxrl.types import Array


@option("quantiles")
class Quantiles(Option):
    """Critics that output quantiles of the return, for Box actions. Targets drop the largest of all critics together (TQC,
    Kuznetsov et al. 2020)."""

    size: Count = 2
    """Number of critics."""
    num_quantiles: Count = 25
    """Quantiles of each critic."""
    dropped: CountOrZero = 2
    """Quantiles per critic left out of targets: the largest size · dropped of all critics together."""

    subset = 0
    """Targets use all critics."""

    @property
    def num_outputs(self) -> int:
        return self.num_quantiles

    def check(self) -> None:
        if self.dropped >= self.num_quantiles:
            raise ValueError(f"dropped={self.dropped} must be below num_quantiles={self.num_quantiles}")

    def pessimistic(self, outputs: Array, chosen: Array) -> Array:
        return truncated(outputs, self.dropped)

    def values(self, outputs: Array) -> Array:
        return outputs.mean(-1)

    def loss(self, outputs: Array, target: Array, batch: Transitions, axis_name: str | None) -> tuple[Array, dict[str, Array]]:
        return quantile_loss(outputs, target, batch, axis_name)


def truncated(values: Array, dropped: int) -> Array:
    """Pool the quantiles of all critics [num_critics, N, K] and drop the largest num_critics · ``dropped``, to reduce
    overestimation (Kuznetsov et al. 2020, eq. 10).

    Returns:
      f32[N, num_critics · (K − dropped)], in ascending order.
    """
    pooled = jnp.sort(jnp.moveaxis(values, 0, 1).reshape(values.shape[1], -1), axis=-1)
    return pooled[:, : values.shape[0] * (values.shape[2] - dropped)]


def quantile_loss(values: Array, target: Array, batch: Transitions, axis_name: str | None) -> tuple[Array, dict[str, Array]]:
    """Sum over critics of the mean of w·|τ − 1(y < θ)|·H(y − θ) over quantiles θ, at fractions τ, and targets y, as a mean over
    valid draws. H is the Huber loss with a threshold of 1 (Kuznetsov et al. 2020, eq. 11; Dabney et al. 2018, eq. 10). Priorities
    are the mean |y − θ| of all pairs.

    Args:
      values: f32[num_critics, N, K].
      target: f32[N, M].
    """
    tilted, size = tilted_huber(values, target, midpoints(values.shape[-1]))  # [num_critics, N, K, M]
    mean = valid_mean(batch.valid, axis_name)
    loss = mean(batch.weight * tilted.mean((-2, -1))).sum()
    logged = {"losses/td_loss": loss, "losses/q_values": mean(values.mean((0, -1)))}
    return loss, logged | {PRIORITIES: jnp.where(batch.valid, size.mean((0, -2, -1)), 0.0)}
