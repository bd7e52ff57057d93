"""Samples of Discrete actions that have a gradient, for policies that climb the gradient of a critic."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.distributions import MASKED, Categorical
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import NonNegative, Positive
from jaxrl.types import Array, Key


@option("gumbel_softmax")
class GumbelSoftmax(Option):
    """For Discrete actions: take straight-through samples of the Gumbel-softmax distribution as the policy's actions (Jang et al.
    2017), through which the policy gets the gradient of the critic."""

    temperature: Positive = 1.0
    """Temperature of the softmax, whose gradient that of the sample is taken to be."""
    logit_penalty: NonNegative = 1e-3
    """Weight of the mean squared logit in the policy's loss (code of Lowe et al. 2017)."""

    def sample(self, output: Categorical, key: Key) -> Array:
        """Draw actions, one-hot, f32[N, n]."""
        noisy = output.logits - output.logits.max(-1, keepdims=True) + jax.random.gumbel(key, output.logits.shape)
        soft = jax.nn.softmax(noisy / self.temperature)
        hard = jax.nn.one_hot(jnp.argmax(noisy, -1), noisy.shape[-1])
        return hard + (soft - jax.lax.stop_gradient(soft))

    def penalty(self, output: Categorical) -> Array:
        """Return the mean squared logit of allowed actions, f32[N], times its weight."""
        allowed = output.logits > 0.5 * MASKED
        return self.logit_penalty * jnp.square(jnp.where(allowed, output.logits, 0.0)).sum(-1) / allowed.sum(-1)
