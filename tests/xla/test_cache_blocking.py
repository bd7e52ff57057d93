"""Cache blocking: what is counted, and where work is split."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.xla.cache_blocking import CACHED_BYTES, LEAST_ROWS, bytes_of_products, is_a_part, parts_in_cache

WIDTH = 64
EACH = 4 * (8 + WIDTH)  # bytes per row of the product's result and of its gathered input


def layer(params: Any, x: Any) -> Any:
    return jax.jit(lambda x: jnp.tanh(x @ params))(jnp.concatenate([x, x], -1))


def shapes(rows: int, width: int = WIDTH) -> Any:
    return jax.ShapeDtypeStruct((8, width), jnp.float32), jax.ShapeDtypeStruct((rows, 4), jnp.float32)


def parts(rows: int, width: int = WIDTH) -> int:
    return parts_in_cache(layer, *shapes(rows, width), rows=rows)


FOUR = 4 * (CACHED_BYTES // EACH + 1)
"""A few more rows than four caches hold."""


def test_rows_are_cut_to_what_a_cache_holds() -> None:
    assert bytes_of_products(layer, *shapes(100)) == 100 * EACH
    assert [parts(FOUR), parts(2 * FOUR), parts(3 * FOUR)] == [4, 8, 8]
    assert parts(FOUR - 8) == 1  # two parts do not pay
    assert parts(FOUR + 2) == 1  # not divisible by four
    assert parts(LEAST_ROWS - 1, 100_000) == 1


def test_what_is_work_enough_by_itself() -> None:
    enough = CACHED_BYTES // 8 // EACH + 1
    parts = [is_a_part(layer, *shapes(rows, width), rows=rows) for rows, width in ((enough, 64), (enough - 1, 64), (63, 100_000))]
    assert parts == [True, False, False]
