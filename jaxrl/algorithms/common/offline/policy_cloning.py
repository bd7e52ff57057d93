"""Options of deterministic policies that learn from data: terms that keep the policy near the actions of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.optimize.gradients import pmean
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import NonNegative, Positive
from jaxrl.types import Array


@option("td3_bc")
class Cloning(Option):
    """Keep the policy near the actions of the data (TD3+BC: Fujimoto & Gu 2021)."""

    alpha: Positive = hyperparameter("cloning_alpha", 2.5)
    """α, the weight of the values relative to the distance from the data's actions; near 0 it is behaviour cloning."""

    def loss(
        self, hp: Any, value: Array, difference: Array, mean: Callable[[Array], Array], axis_name: str | None
    ) -> tuple[Array, Array]:
        """Return E[(π(s) − a)²] − λ·E[Q(s, π(s))] and its first term, where λ = α / E[|Q(s, π(s))|] is a constant, and the square
        a mean over the components of the action (Fujimoto & Gu 2021, eq. 5).

        Args:
          value: Q(s, π(s)), f32[N].
          difference: π(s) − a, f32[N, d].
          mean: mean over valid rows; the mean of what devices of ``axis_name`` find is that over all of their rows.
        """
        distance = mean(jax.lax.square(difference).mean(-1))
        return distance - hp.cloning_alpha * _normalised(value, mean, axis_name), distance


@option("rebrac")
class ReBRAC(Option):
    """Keep the policy near the actions of the data, and lower the values of other actions in targets (Tarasov et al. 2023)."""

    actor_weight: NonNegative = hyperparameter("rebrac_actor_weight", 0.01)
    """β₁, the weight of the distance from the data's actions in the policy's loss."""
    critic_weight: NonNegative = hyperparameter("rebrac_critic_weight", 0.01)
    """β₂, the weight of the distance from the data's next actions in the critics' targets."""

    def loss(
        self, hp: Any, value: Array, difference: Array, mean: Callable[[Array], Array], axis_name: str | None
    ) -> tuple[Array, Array]:
        """Return β₁·E[‖π(s) − a‖²] − E[Q(s, π(s))] / E[|Q(s, π(s))|] and the distance in it (Tarasov et al. 2023, eq. 4).
        Arguments are those of ``Cloning.loss``."""
        distance = mean(jax.lax.square(difference).sum(-1))
        return hp.rebrac_actor_weight * distance - _normalised(value, mean, axis_name), distance


def _normalised(value: Array, mean: Callable[[Array], Array], axis_name: str | None) -> Array:
    """Return the mean of values over their mean size, which is a constant, so that the scale of rewards has no influence."""
    return mean(value) / jax.lax.stop_gradient(jnp.maximum(pmean(mean(jnp.abs(value)), axis_name), 1e-6))
