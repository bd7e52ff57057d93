"""Rows as records: packing and unpacking are exact for every dtype and size."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.replay.row_layout import SMALL_BYTES, layout_of, pack

ROW = {
    "f32": np.zeros((2, 3), np.float32),
    "i32": np.zeros((), np.int32),
    "u8": np.zeros(5, np.uint8),
    "i8": np.zeros((), np.int8),
    "flag": np.zeros((), np.bool_),
    "flags": [np.zeros((), np.bool_)] * 33,
    "mask": np.zeros(3, np.bool_),
    "half": np.zeros(2, jnp.bfloat16),
    "picture": np.zeros((8, 8, 3), np.uint8),
    "nothing": np.zeros((0, 4), np.float32),
}


def drawn(shape: tuple[int, ...]) -> Any:
    """Return random bits as rows [*shape], with NaNs, infinities and negative numbers."""
    rng = np.random.default_rng(0)

    def fill(x: np.ndarray) -> np.ndarray:
        size = (*shape, *x.shape)
        if x.dtype == bool:
            return rng.integers(2, size=size).astype(bool)
        return np.frombuffer(rng.bytes(math.prod(size) * x.dtype.itemsize), x.dtype).reshape(size)

    return jax.tree.map(fill, ROW)


def bits(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x).tobytes(), tree)


@pytest.mark.parametrize("shape", [(), (4,), (3, 2)])
def test_rows_come_out_as_they_went_in(shape: tuple[int, ...]) -> None:
    rows = drawn(shape)
    records = pack(layout_of(ROW), rows)
    back = jax.jit(lambda records: records.unpack())(records)
    assert bits(back) == bits(rows)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), back) == jax.tree.map(lambda x: (x.shape, x.dtype), rows)


def test_small_leaves_share_one_array_and_large_ones_do_not() -> None:
    records = pack(layout_of(ROW), drawn((7,)))
    assert records.words.shape == (7, 6 + 1 + 5 + 1 + 3 + 2)  # 34 flags need two words
    assert [x.shape for x in records.large] == [(7, 2), (7, 8, 8, 3)]  # a half-precision number does not fill a word
    assert max(x.nbytes // 7 for x in records.large) > SMALL_BYTES


@pytest.mark.slow
def test_rows_are_drawn_by_index_and_under_vmap() -> None:
    rows = drawn((6, 2))
    records = pack(layout_of(ROW), rows)
    index = jnp.array([4, 0, 4])
    assert bits(records[index, 1].unpack()) == bits(jax.tree.map(lambda x: x[np.asarray(index), 1], rows))
    each = jax.vmap(lambda records: records[2].unpack(), in_axes=1)(records)
    assert bits(each) == bits(jax.tree.map(lambda x: x[2], rows))
