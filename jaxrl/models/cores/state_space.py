"""S5 (Smith et al. 2023) as the core of a network: layers of linear recurrences."""

from __future__ import annotations

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.models.initialisers import Dense, compute_type, dense
from jaxrl.models.torso import Network
from jaxrl.types import Array, Key, PyTree
from jaxrl.xla.platforms import on_cpu

STEP_RANGE = (1e-3, 0.1)
"""Range of the initial step sizes Δ (Smith et al. 2023). States decay within 2 / Δ rows: 20 to 2,000."""


def zero_states(network: Network, batch_size: int) -> Array:
    """Return the carry before an episode: real and imaginary parts of the states, f32[B, layers, state_size, 2]."""
    return jnp.zeros((batch_size, network.s5_layers, network.state_size, 2), jnp.float32)


class StateSpaceCore(nn.Module):
    """Layers of S5, and a normalisation of the last one's features."""

    network: Network

    @nn.compact
    def __call__(self, carry: PyTree, x: Array, is_first: Array) -> tuple[PyTree, Array]:
        """Compute features f32[T, B, d] of rows f32[T, B, d] that follow those of the carry; return (carry, features)."""
        last = []
        for i in range(self.network.s5_layers):
            x, state = StateSpaceLayer(self.network, name=f"layer_{i}")(x, carry[:, i], is_first)
            last.append(state)
        features = nn.LayerNorm(dtype=compute_type(self.network.dtype), name="norm")(x)
        return jnp.stack(last, axis=1), features.astype(jnp.float32)


class StateSpaceLayer(nn.Module):
    """Linear recurrence after a normalisation, and a gated activation, added to its input (Smith et al. 2023).

    The recurrence of the P = ``state_size`` complex numbers x is x_t = Λ̄·x_{t−1} + B̄·u_t, with the output y_t = 2·Re(C·x_t) +
    D·u_t; those of the paper's 2·P numbers that are conjugates of others are left out. Λ̄ = exp(Λ·Δ) and B̄ =
    Λ⁻¹·(Λ̄ − 1)·B discretise a continuous system with a zero-order hold. Λ = −exp(a) + i·b is diagonal and decays for
    all a. ``hippo`` gives its initial value. The recurrence is in f32.
    """

    network: Network

    @nn.compact
    def __call__(self, x: Array, state: Array, is_first: Array) -> tuple[Array, Array]:
        """Transform rows f32[T, B, d], given the state before them, f32[B, P, 2]; return (rows, the last state)."""
        network, features, size = self.network, x.shape[-1], self.network.state_size
        decay = self.param("log_decay", lambda key: jnp.log(-jnp.asarray(hippo(size)[0].real, jnp.float32)))
        frequency = self.param("frequency", lambda key: jnp.asarray(hippo(size)[0].imag, jnp.float32))
        step = jnp.exp(self.param("log_step", _log_step, (size,)))
        eigenvalue = jax.lax.complex(-jnp.exp(decay), frequency)

        def product(features: int, init: Any, name: str, x: Array) -> Array:
            layer = Dense(features, use_bias=False, dtype=compute_type(network.dtype), kernel_init=init, name=name)
            return layer(x).astype(jnp.float32)

        u = nn.LayerNorm(dtype=compute_type(network.dtype), name="norm")(x)
        new = jax.lax.complex(*jnp.split(product(2 * size, _input_kernel, "input", u), 2, axis=-1))
        factor = jnp.exp(eigenvalue * step)
        states = linear_recurrence(
            factor, (factor - 1) / eigenvalue * new, jax.lax.complex(state[..., 0], state[..., 1]), is_first
        )
        parts = jnp.concatenate([states.real, states.imag], axis=-1)
        y = product(features, _output_kernel, "output", parts) + self.param("skip", nn.initializers.normal(1.0), (features,)) * u
        y = jax.nn.gelu(y)
        y = y * jax.nn.sigmoid(dense(features, 1.0, "gate", dtype=network.dtype)(y).astype(jnp.float32))
        return x + y, jnp.stack([states[-1].real, states[-1].imag], axis=-1)


def linear_recurrence(factor: Array, new: Array, state: Array, is_first: Array) -> Array:
    """Compute x_t = factor·x_{t−1} + new_t for all rows, with x_{t−1} = 0 where an episode starts.

    What precedes a start has no influence on values or gradients, even NaN. Accelerators compute rows in parallel; on a CPU the
    additional work of that takes longer, so rows are computed in turn.

    Args:
      factor: c64[P].
      new: c64[T, B, P].
      state: c64[B, P], that before the first row.
      is_first: bool[T, B].
    """
    return on_cpu(factor, new, state, is_first[..., None], cpu=recurrence_by_rows, default=recurrence_by_scan)


def recurrence_by_rows(factor: Array, new: Array, state: Array, starts: Array) -> Array:
    def step(state: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        state = factor * jnp.where(row[1], 0, state) + row[0]
        return state, state

    return jax.lax.scan(step, state, (new, starts))[1]


def recurrence_by_scan(factor: Array, new: Array, state: Array, starts: Array) -> Array:
    """Compute the rows by an associative scan with the operator of Lu et al. 2023, whose starts reset it."""

    def join(earlier: Any, later: Any) -> Any:
        (factor, total, start), (factors, totals, starts) = earlier, later
        return factor * factors, factors * jnp.where(starts, 0, total) + totals, start | starts

    new = new.at[0].add(factor * jnp.where(starts[0], 0, state))
    powers = jnp.broadcast_to(factor, (len(new), 1, factor.size))  # the same for all environments
    return jax.lax.associative_scan(join, (powers, new, starts))[1]


# ------------------------------------------------------------------------------------------------------------- initial values


@functools.cache
def hippo(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues c128[P] with positive imaginary parts of the normal part of the HiPPO-LegS matrix of 2·P numbers,
    and their eigenvectors c128[2·P, P] (Smith et al. 2023; Gu et al. 2022). All real parts are −1/2.

    NumPy computes them when a network is built: LAPACK under ``vmap`` deadlocks on few CPU cores.
    """
    roots = np.sqrt(np.arange(2 * size) + 0.5)
    lower = np.tril(np.outer(roots, roots), -1)
    values, vectors = np.linalg.eigh(1j * (lower - lower.T))  # of a skew-symmetric matrix times i, so they are real
    vectors = vectors[:, size:] / np.exp(1j * np.angle(vectors[0, size:]))  # phases are arbitrary, so they differ by LAPACK
    return -0.5 + 1j * values[size:], vectors


def _input_kernel(key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Draw B = V⁻¹·B₀ for the eigenvectors V and a real B₀: f32[d, 2·P], real parts beside imaginary ones."""
    vectors = hippo(shape[1] // 2)[1]
    drawn = jax.random.normal(key, shape) / math.sqrt(shape[0])
    return (drawn @ jnp.asarray(np.concatenate([vectors.real, -vectors.imag], axis=1))).astype(dtype)


def _output_kernel(key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Draw C = C₀·V for a real C₀: f32[2·P, d], the factors of real and of imaginary parts in 2·Re(C·x)."""
    vectors = hippo(shape[0] // 2)[1]
    drawn = jax.random.normal(key, shape) / math.sqrt(shape[0])
    return (jnp.asarray(2 * np.concatenate([vectors.real.T, -vectors.imag.T])) @ drawn).astype(dtype)


def _log_step(key: Key, shape: tuple[int, ...]) -> Array:
    low, high = (math.log(limit) for limit in STEP_RANGE)
    return jax.random.uniform(key, shape, minval=low, maxval=high)
