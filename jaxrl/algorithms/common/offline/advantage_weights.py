"""Values and weights of algorithms that clone actions by their advantage, as options."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import Count, NonNegative, Positive, Unit
from jaxrl.types import Array


@option("expectile")
class Expectile(Option):
    """Learn V(s) as an expectile of Q(s, a) over the actions of the data (Kostrikov et al. 2022), which asks for no other
    action."""

    level: Unit = hyperparameter("expectile", 0.7)
    """τ: 0.5 is the mean over these actions, and values near 1 approach the best of them."""


@option("sampled")
class Sampled(Option):
    """Compute V(s) as the mean of Q(s, a) over actions drawn from the policy (Nair et al. 2020; Wang et al. 2020)."""

    number: Count = 4
    """Actions for each state."""


@option("exponential")
class Exponential(Option):
    """Weight an action by min(exp(β·A), limit)."""

    beta: NonNegative = hyperparameter("beta", 3.0)
    """β, the inverse temperature: 0 is behaviour cloning, and larger values follow the best actions."""
    limit: Positive = hyperparameter("weight_limit", 100.0)
    """Largest weight."""

    def weights(self, advantage: Array, hp: Any) -> Array:
        """Return the weights of actions with these advantages, f32[N]."""
        return jnp.minimum(jnp.exp(jnp.minimum(hp.beta * advantage, 80.0)), hp.weight_limit)


@option("binary")
class Binary(Option):
    """Weight actions with a positive advantage by 1, and others by 0 (Wang et al. 2020, "binary")."""

    def weights(self, advantage: Array, hp: Any) -> Array:
        """Return the weights of actions with these advantages, f32[N]."""
        return (advantage > 0).astype(jnp.float32)


def expectile_loss(error: Array, level: Array | float) -> Array:
    """|τ − 1(u < 0)|·u² for errors u, whose minimum is the expectile of level τ (Kostrikov et al. 2022, eq. 3)."""
    return jnp.where(error < 0, 1 - level, level) * jax.lax.square(error)
