"""Critic heads: a value, or quantiles of the return (TQC, Kuznetsov et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from jaxrl.algorithms.common.critic_ensemble import min_over_subset, td_loss
from jaxrl.algorithms.common.off_policy import OffPolicyConfig
from jaxrl.algorithms.common.q_heads import midpoints, tilted_huber
from jaxrl.algorithms.common.q_learning import PRIORITIES
from jaxrl.optimize.gradients import valid_mean
from jaxrl.replay.transitions import Transitions
from jaxrl.settings.validation import CountOrZero, refuse_unused
from jaxrl.types import Array


class CriticHead(NamedTuple):
    """Functions of all critics' outputs, [num_critics, N, ...]."""

    pessimistic: Callable[[Array, Array], Array]
    """(outputs, chosen critics) -> values for targets, f32[N, ...], or quantiles f32[N, M]."""
    values: Callable[[Array], Array]
    """outputs -> each critic's value, f32[num_critics, N, ...]."""
    loss: Callable[[Array, Array, Transitions, str | None], tuple[Array, dict[str, Array]]]
    """(outputs, target, batch, axis_name) -> (loss, scalars to log with ``PRIORITIES``)."""


@dataclass(frozen=True)
class QuantileConfig(OffPolicyConfig):
    """Structural settings of an algorithm whose critics may output quantiles."""

    num_quantiles: CountOrZero = 0
    """Quantiles of the return that each critic outputs instead of a value, for Box actions; 0: a value."""
    dropped_quantiles: CountOrZero = 2
    """Quantiles per critic left out of targets: the largest num_critics · dropped_quantiles of all critics together."""

    @property
    def critic_outputs(self) -> int | None:
        return self.num_quantiles or None

    @property
    def head(self) -> CriticHead:
        if not self.num_quantiles:
            return CriticHead(min_over_subset, lambda values: values, td_loss)
        drop = lambda values, chosen: truncated(values, self.dropped_quantiles)  # noqa: E731
        return CriticHead(drop, lambda values: values.mean(-1), quantile_loss)

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        if not self.num_quantiles:
            refuse_unused(self, QuantileConfig, ("dropped_quantiles",), "without num_quantiles")
            return
        refuse_unused(self, QuantileConfig, ("num_target_critics",), "with num_quantiles, whose targets use all critics")
        if self.dropped_quantiles >= self.num_quantiles:
            raise ValueError(f"dropped_quantiles={self.dropped_quantiles} must be below num_quantiles={self.num_quantiles}")


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
