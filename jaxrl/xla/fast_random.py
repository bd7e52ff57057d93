"""Functions of ``jax.random`` that draw the same numbers without a loop.

On a CPU, JAX computes Threefry's twenty rounds in a loop. XLA launches a loop kernel by kernel unless it is tiny, so each draw
takes 80 kernels. The rest of a row of CartPole takes 36, the rest of a DQN update 79. These functions draw the same bits in one
kernel. They take and return JAX's own keys. The keys of ``_unrolled`` stay inside this module.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jaxrl.types import Array, Key
from jaxrl.xla.platforms import on_cpu
from jaxrl.xla.private_jax import define_prng, setting

P = ParamSpec("P")
R = TypeVar("R")

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA


def threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Compute Threefry-2x32 with 20 rounds (Salmon et al. 2011): two words, u32[...] each.

    Args:
      key: u32[2].
      high, low: words of a counter, u32[...].
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x, y = high + keys[0], low + keys[1]
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation)))
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y


def _words(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    count = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return threefry(key, jnp.zeros_like(count), count)


# The functions of the generator. They are traced and lowered once per shape, because of jit; otherwise it would take a third of
# the time to trace a program. Other platforms have no loop, and use JAX's functions.


def _seed(seed: Array) -> Array:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


@functools.partial(jax.jit, static_argnums=1)
def _split(key: Array, shape: tuple[int, ...]) -> Array:
    def default(key: Array) -> Array:
        return jax.random.key_data(jax.random.split(_key(key), shape))

    return on_cpu(key, cpu=lambda key: jnp.stack(_words(key, shape), -1), default=default)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    def cpu(key: Array) -> Array:
        x, y = _words(key, shape)
        if bit_width == 64:
            return (x.astype(jnp.uint64) << jnp.uint64(32)) | y.astype(jnp.uint64)
        return (x ^ y).astype(f"uint{bit_width}")

    return on_cpu(key, cpu=cpu, default=lambda key: jax.random.bits(_key(key), shape, jnp.dtype(f"uint{bit_width}")))


@jax.jit
def _fold_in(key: Array, data: Array) -> Array:
    def cpu(key: Array, low: Array) -> Array:
        return jnp.stack(threefry(key, jnp.zeros_like(low), low), -1)

    def default(key: Array, low: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(_key(key), low))

    return on_cpu(key, jnp.asarray(data).astype(jnp.uint32), cpu=cpu, default=default)


def _key(words: Array) -> Key:
    return jax.random.wrap_key_data(words, impl="threefry2x32")


UNROLLED = define_prng("jaxrl", (2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in)


def _unrolled(keys: Key) -> Key:
    """Convert keys so that ``jax.random`` draws the same numbers in fewer kernels.

    Keys of other types than JAX's default are unchanged. So are all keys if ``jax_threefry_partitionable`` is off, which changes
    the layout of the counters, or if this version of JAX does not support custom generators.
    """
    possible = UNROLLED is not None and setting("jax_threefry_partitionable")
    return _as(keys, "threefry2x32", UNROLLED) if possible else keys


def _plain(keys: Key) -> Key:
    """Invert ``_unrolled``."""
    return _as(keys, "jaxrl", "threefry2x32")


def _as(keys: Key, kind: str, impl: Any) -> Key:
    if str(jax.random.key_impl(keys)) != kind:
        return keys
    return jax.random.wrap_key_data(jax.random.key_data(keys), impl=impl)


def _in_one_kernel(draw: Callable[Concatenate[Key, P], R]) -> Callable[Concatenate[Key, P], R]:
    """Return a function of ``jax.random`` that draws with keys of ``_unrolled``. If it returns keys, they are of JAX's kind."""

    @functools.wraps(draw)
    def drawn(key: Key, *args: P.args, **keywords: P.kwargs) -> R:
        result: Any = draw(_unrolled(key), *args, **keywords)
        if jnp.issubdtype(result.dtype, jax.dtypes.prng_key):
            result = _plain(result)
        return result

    return drawn


bits = _in_one_kernel(jax.random.bits)
categorical = _in_one_kernel(jax.random.categorical)
fold_in = _in_one_kernel(jax.random.fold_in)
normal = _in_one_kernel(jax.random.normal)
permutation = _in_one_kernel(jax.random.permutation)
randint = _in_one_kernel(jax.random.randint)
split = _in_one_kernel(jax.random.split)
uniform = _in_one_kernel(jax.random.uniform)


def integers_below(key: Key, shape: tuple[int, ...], bound: Array) -> Array:
    """Draw integers from 0 to ``bound`` − 1, i32[*shape]: the upper half of 32 random bits times ``bound`` (Lemire 2019).

    ``randint`` uses twice the bits and three divisions for each integer, which is half of the cost of a draw from replay. Here
    some integers are more likely than others, by ``bound`` / 2**32 of their probability: 0.02 % for a ``bound`` of a million.
    """
    drawn, bound = bits(key, shape, jnp.uint32), jnp.asarray(bound).astype(jnp.uint32)
    (high, low), (bound_high, bound_low) = ((x >> 16, x & 0xFFFF) for x in (drawn, bound))
    middle = high * bound_low + (low * bound_low >> 16)
    upper = high * bound_high + (middle >> 16) + (low * bound_high + (middle & 0xFFFF) >> 16)
    return upper.astype(jnp.int32)
