"""Batch renormalisation (Ioffe 2017): a layer with statistics that learn."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.settings.loadable import component
from jaxrl.types import Array

COLLECTION = "batch_stats"
"""Flax's name for the collection of the statistics."""


@component("value", home="jaxrl.models")
class BatchRenorm(nn.Module):
    """Normalise each feature: γ·x̂ + β, where x̂ = (x − μ) / σ with running moments in acting.

    In learning, x̂ = (x − μ_B) / σ_B · r + d with the moments of the batch, and constants r = σ_B / σ and d = (μ_B − μ) / σ,
    clipped to [1 / r_max, r_max] and ± d_max (Ioffe 2017, algorithm 1). They correct for the difference between the batch and the
    running moments, which the batch then moves.
    """

    momentum: float = 0.99
    """Share of the running moments that a batch leaves unchanged."""
    eps: float = 1e-3
    """Added to variances."""
    r_max: float = 3.0
    d_max: float = 5.0
    warmup_steps: int = 100_000
    """Number of batches at the start for which r is 1 and d is 0, as in batch normalisation."""

    @nn.compact
    def __call__(self, x: Array, valid: Array | None = None, axis_name: str | None = None) -> Array:
        """Normalise x, f32[..., features].

        Args:
          valid: bool[N] in learning, with x [N, features]: the rows that count; outputs of the others have no meaning. None in
            acting.
          axis_name: device axis over which the batch is divided.
        """
        size, dtype, x = x.shape[-1:], x.dtype, x.astype(jnp.float32)
        scale, bias = self.param("scale", nn.initializers.ones, size), self.param("bias", nn.initializers.zeros, size)
        mean = self.variable(COLLECTION, "mean", jnp.zeros, size)
        variance = self.variable(COLLECTION, "variance", jnp.ones, size)
        steps = self.variable(COLLECTION, "steps", lambda: jnp.zeros((), jnp.int32))
        std = jnp.sqrt(variance.value + self.eps)
        if valid is None:
            return ((x - mean.value) * (scale / std) + bias).astype(dtype)
        x = jnp.where(valid[:, None], x, 0.0)
        count, batch_mean, batch_variance = moments(x, valid, axis_name)
        batch_std = jnp.sqrt(batch_variance + self.eps)
        is_warm = steps.value >= self.warmup_steps
        r = jnp.where(is_warm, jnp.clip(batch_std / std, 1.0 / self.r_max, self.r_max), 1.0)
        d = jnp.where(is_warm, jnp.clip((batch_mean - mean.value) / std, -self.d_max, self.d_max), 0.0)
        step = jnp.where(count > 0, 1.0 - self.momentum, 0.0)
        mean.value += step * (batch_mean - mean.value)
        variance.value += step * (batch_variance - variance.value)
        steps.value = jnp.minimum(steps.value + (count > 0), self.warmup_steps)
        r, d = jax.lax.stop_gradient((r, d))
        factor = r / batch_std * scale
        return (x * factor + (d * scale + bias - batch_mean * factor)).astype(dtype)


def moments(x: Array, valid: Array, axis_name: str | None) -> tuple[Array, Array, Array]:
    """Return the number of valid rows of all devices, and the mean and variance of their features, 0 if there are none.

    Args:
      x: f32[N, features], 0 in rows that are not valid.
      valid: bool[N].
    """

    def total(part: Array) -> Array:
        return part if axis_name is None else jax.lax.psum(part, axis_name)

    sums = total(jnp.append(x.sum(0), valid.sum()))  # one collective
    count = jax.lax.stop_gradient(sums[-1])
    mean = sums[:-1] / jnp.maximum(count, 1.0)
    # The variance has no first derivative by way of the mean, because deviations from it add up to 0.
    squares = jnp.where(valid[:, None], (x - jax.lax.stop_gradient(mean)) ** 2, 0.0)
    return count, mean, total(squares.sum(0)) / jnp.maximum(count, 1.0)
