"""Rollouts in random parts, and how well the values in them foretell."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from jaxrl.optimize import pmean, valid_mean
from jaxrl.threefry import unrolled
from jaxrl.types import Array, Key


def minibatches(key: Key, size: int, num_epochs: int, num_minibatches: int) -> Array:
    """i32[num_epochs, num_minibatches, size / num_minibatches]: which items each gradient step takes; each once per epoch.

    Raises:
      ValueError: ``num_minibatches`` does not divide ``size``.
    """
    if size % num_minibatches:  # a builder knows no devices; this is one's share
        raise ValueError(f"num_minibatches={num_minibatches} must divide the {size} items on each device")
    order = jax.vmap(lambda key: shuffled_rows(key, size))(jax.random.split(unrolled(key), num_epochs))
    return order.reshape(num_epochs, num_minibatches, size // num_minibatches)


def shuffled_rows(key: Key, size: int) -> Array:
    """i32[size]: a random order of ``range(size)``.

    Random high bits over the row number, sorted as one array: several times as fast on a CPU as sorting keys with their values.
    Rows whose random bits are equal keep their order.
    """
    index_bits = max(size - 1, 1).bit_length()
    if index_bits > 16:  # too few random bits would remain
        return jax.random.permutation(key, size)
    bits = jax.random.bits(key, (size,), jnp.uint32)
    mask = jnp.uint32(2**index_bits - 1)
    return (jnp.sort((bits & ~mask) | jnp.arange(size, dtype=jnp.uint32)) & mask).astype(jnp.int32)


def standardized(x: Array, valid: Array, axis_name: str | None = None) -> Array:
    """``x`` with mean 0 and deviation 1 over the valid rows of all devices."""
    chex.assert_equal_shape([x, valid])
    mean = valid_mean(valid, axis_name)
    centred = x - pmean(mean(x), axis_name)
    return centred * jax.lax.rsqrt(pmean(mean(centred**2), axis_name) + 1e-8)


def explained_variance(target: Array, error: Array, valid: Array, axis_name: str | None = None) -> Array:
    """1 − Var(error) / Var(target) over valid rows, error = target − value; 1 is a perfect value, ≤ 0 a useless one."""
    chex.assert_equal_shape([target, error, valid])
    mean = valid_mean(valid, axis_name)

    def variance(x: Array) -> Array:
        return pmean(mean((x - pmean(mean(x), axis_name)) ** 2), axis_name)

    return 1 - variance(error) / (variance(target) + 1e-8)
