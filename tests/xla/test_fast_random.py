"""Draws without loops equal JAX's draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.xla import fast_random
from jaxrl.xla.fast_random import _plain, _unrolled, integers_below

KEYS = (7, 0), (2**31, 9)
DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "fold_in": lambda random, key: random.fold_in(key, 5),
    "fold_in of a traced number": lambda random, key: jax.jit(random.fold_in)(key, jnp.int32(2**31 - 1)),
    "fold_in of each": lambda random, key: jax.vmap(random.fold_in, (None, 0))(key, jnp.arange(-1, 4)),
    "split": lambda random, key: random.split(key, (4, 3)),
    "split of each": lambda random, key: jax.vmap(random.split)(random.split(key, 3)),
    "bits": lambda random, key: random.bits(key, (7,)),
    "bytes": lambda random, key: random.bits(key, (7, 2), jnp.uint8),
    "uniform": lambda random, key: random.uniform(key),
    "normal": lambda random, key: random.normal(key, (5,)),
    "normal of each": lambda random, key: jax.vmap(lambda key: random.normal(key, (5,)))(random.split(key, 3)),
    "randint": lambda random, key: random.randint(key, (5, 2), 0, jnp.int32(13)),
    "categorical": lambda random, key: random.categorical(key, jnp.zeros((3, 4))),
    "permutation": lambda random, key: random.permutation(key, 9),
}


def numbers(x: Any) -> Any:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_draws_and_keys_of_the_same_kind(name: str) -> None:
    for seed, stream in KEYS:
        key = jax.random.fold_in(jax.random.key(seed), stream)
        ours, jaxs = (jax.jit(DRAWS[name], static_argnums=0)(random, key) for random in (fast_random, jax.random))
        assert ours.dtype == jaxs.dtype
        np.testing.assert_array_equal(numbers(ours), numbers(jaxs), strict=True)


def test_keys_become_plain_again_and_other_kinds_stay() -> None:
    keys = jax.random.split(jax.random.key(3), (2, 3))
    again = _plain(_unrolled(keys))
    assert (again.dtype, again.shape) == (keys.dtype, keys.shape) and _plain(keys) is keys
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(keys))
    other = jax.random.key(0, impl="rbg")
    assert _unrolled(other) is other and _plain(other) is other


def test_where_counters_are_laid_out_as_of_old_keys_stay() -> None:
    key = jax.random.key(0)
    before = jax.config.values["jax_threefry_partitionable"]
    jax.config.update("jax_threefry_partitionable", False)
    try:
        assert _unrolled(key) is key
    finally:
        jax.config.update("jax_threefry_partitionable", before)
    assert _unrolled(key) is not key


def test_a_draw_has_no_loop() -> None:
    def text(random: Any) -> str:
        return jax.jit(lambda key: random.bits(key, (64,))).lower(jax.random.key(0)).compile().as_text()

    assert " while(" in text(jax.random) and " while(" not in text(fast_random)


@pytest.mark.parametrize("bound", [1, 2, 7, 2**16 - 1, 2**16, 2**16 + 1, 10**6, 2**31 - 1])
def test_integers_below_are_the_upper_half_of_the_product(bound):
    bits = np.asarray(jax.random.bits(jax.random.key(3), (500,), np.uint32)).astype(np.uint64)
    drawn = integers_below(jax.random.key(3), (500,), jnp.int32(bound))
    assert drawn.dtype == np.int32
    np.testing.assert_array_equal(drawn, (bits * np.uint64(bound)) >> np.uint64(32))
