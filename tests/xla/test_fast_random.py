"""Draws without loops equal JAX's draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.xla.fast_random import fold_in, integers_below, plain, unrolled

DRAWS: dict[str, Callable[[Any], Any]] = {
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 5)),
    "fold_in of each": lambda key: jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(-1, 4))),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (4, 3))),
    "bits": lambda key: jax.random.bits(key, (7,)),
    "bytes": lambda key: jax.random.bits(key, (7, 2), jnp.uint8),
    "uniform": jax.random.uniform,
    "normal": lambda key: jax.random.normal(key, (5,)),
    "randint": lambda key: jax.random.randint(key, (5, 2), 0, jnp.int32(13)),
    "categorical": lambda key: jax.random.categorical(key, jnp.zeros((3, 4))),
    "permutation": lambda key: jax.random.permutation(key, 9),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_draws(name: str) -> None:
    draw = jax.jit(DRAWS[name])
    for key in (jax.random.key(7), jax.random.fold_in(jax.random.key(2**31), 9)):
        np.testing.assert_array_equal(draw(unrolled(key)), draw(key), strict=True)


def test_fold_in_is_jaxs() -> None:
    for key in (jax.random.key(7), jax.random.fold_in(jax.random.key(2**31), 9)):
        for data in (0, 5, 2**31 - 1):
            made = jax.jit(fold_in)(key, jnp.int32(data))
            assert made.dtype == key.dtype
            np.testing.assert_array_equal(jax.random.key_data(made), jax.random.key_data(jax.random.fold_in(key, data)))


def test_keys_become_plain_again_and_other_kinds_stay() -> None:
    keys = jax.random.split(jax.random.key(3), (2, 3))
    again = plain(unrolled(keys))
    assert (again.dtype, again.shape) == (keys.dtype, keys.shape) and plain(keys) is keys
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(keys))
    other = jax.random.key(0, impl="rbg")
    assert unrolled(other) is other and plain(other) is other


def test_where_counters_are_laid_out_as_of_old_keys_stay() -> None:
    key = jax.random.key(0)
    before = jax.config.values["jax_threefry_partitionable"]
    jax.config.update("jax_threefry_partitionable", False)
    try:
        assert unrolled(key) is key
    finally:
        jax.config.update("jax_threefry_partitionable", before)
    assert unrolled(key) is not key


def test_a_draw_has_no_loop() -> None:
    def text(key: Any) -> str:
        return jax.jit(lambda key: jax.random.bits(key, (64,))).lower(key).compile().as_text()

    key = jax.random.key(0)
    assert " while(" in text(key) and " while(" not in text(unrolled(key))


@pytest.mark.parametrize("bound", [1, 2, 7, 2**16 - 1, 2**16, 2**16 + 1, 10**6, 2**31 - 1])
def test_integers_below_are_the_upper_half_of_the_product(bound):
    bits = np.asarray(jax.random.bits(jax.random.key(3), (500,), np.uint32)).astype(np.uint64)
    drawn = integers_below(unrolled(jax.random.key(3)), (500,), jnp.int32(bound))
    assert drawn.dtype == np.int32
    np.testing.assert_array_equal(drawn, (bits * np.uint64(bound)) >> np.uint64(32))
