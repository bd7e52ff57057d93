"""Critics that output a distribution of the return: quantiles (TQC, Kuznetsov et al. 2020), or probabilities of fixed returns
(D4PG, Barth-Maron et al. 2018)."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from jaxrl.algorithms.common.q_heads import Real, check_bounds, midpoints, projected, tilted_huber
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.optimize.gradients import valid_mean
from jaxrl.replay.transitions import Transitions, bootstrapped
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count, CountOrZero, Range
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


@option("atoms")
class Atoms(Option):
    """Critics that output the distribution of an action's return, as probabilities of fixed returns (D4PG, Barth-Maron et al.
    2018), for Box actions. Targets use the distribution of the critic whose mean is least."""

    size: Count = 1
    """Number of critics."""
    num_atoms: Annotated[int, Range(2, integral=True)] = 51
    """Number of returns, evenly spaced, that have a probability."""
    v_min: Real = -150.0
    """The smallest of these returns, a sum of discounted rewards."""
    v_max: Real = 150.0
    """The largest of these returns."""

    subset = 0
    """Targets use all critics."""

    def check(self) -> None:
        check_bounds(self.v_min, self.v_max, "atoms are the returns between them")

    @property
    def num_outputs(self) -> int:
        return self.num_atoms

    @property
    def support(self) -> np.ndarray:
        """The returns, f32[num_atoms]."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)

    def values(self, outputs: Array) -> Array:
        """Return each critic's mean return, f32[num_critics, N]."""
        return (jax.nn.softmax(outputs) * self.support).sum(-1)

    def target(self, batch: Transitions, outputs: Array, chosen: Array, penalty: Array | float = 0.0) -> Array:
        """Return the projection of r + γ·(1 − terminated)·(Z − penalty) onto the atoms, f32[N, num_atoms] (Bellemare et al. 2017,
        algorithm 1).

        Args:
          outputs: of the target critics at the next observation, f32[num_critics, N, num_atoms].
          chosen: has no effect.
          penalty: f32[N], or 0.
        """
        least = jnp.argmin(self.values(outputs), 0)
        probabilities = jax.nn.softmax(jnp.take_along_axis(outputs, least[None, :, None], 0)[0])
        # After a termination all mass is at the reward, even if the outputs for the last observation are not finite.
        probabilities = jnp.where(batch.discount[:, None] == 0, 1.0 / self.num_atoms, probabilities)
        beyond = jnp.broadcast_to(self.support - jnp.asarray(penalty)[..., None], probabilities.shape)
        return jax.lax.stop_gradient(projected(probabilities, bootstrapped(batch, beyond), self.support))

    def loss(self, outputs: Array, target: Array, batch: Transitions, axis_name: str | None) -> tuple[Array, dict[str, Array]]:
        """Sum over critics of the cross-entropy −Σᵢ mᵢ·log pᵢ(s, a), as a mean over valid draws (Barth-Maron et al. 2018,
        appendix A). Priorities are the mean divergences KL(m ‖ p)."""
        mean = valid_mean(batch.valid, axis_name)
        entropy = -(target * jax.nn.log_softmax(outputs)).sum(-1)
        loss = mean(batch.weight * entropy).sum()
        divergence = jnp.maximum(entropy + xlogy(target, target).sum(-1), 0.0).mean(0)
        logged = {"losses/td_loss": loss, "losses/q_values": mean(self.values(outputs).mean(0))}
        return loss, logged | {PRIORITIES: jnp.where(batch.valid, divergence, 0.0)}
