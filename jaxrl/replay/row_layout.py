"""Rows as records: the small leaves of a row packed into one array of words, and its flags into bits.

A drawn row can be anywhere in memory. Reading it as a record takes one or two cache lines and one gather. As a tree of arrays it
takes one of each per leaf. Once the buffer is larger than the cache, those misses are a large part of an update's time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Array, PyTree

SMALL_BYTES = 64
"""Largest size of a leaf, per row, in the record. A larger leaf fills cache lines anyway, and is a separate array."""


@dataclass(frozen=True)
class RecordLayout:
    """Layout of the leaves of one row in a record."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]

    def in_record(self, i: int) -> bool:
        """Return whether a leaf is in the record."""
        shape, dtype = self.shapes[i], self.dtypes[i]
        fits_a_word = dtype.itemsize == 4 or (dtype.itemsize < 4 and dtype.kind in "biu")
        return fits_a_word and math.prod(shape) * dtype.itemsize <= SMALL_BYTES

    @property
    def flags(self) -> dict[int, int]:
        """Mapping of the leaves that are single booleans: index of the leaf -> its bit."""
        types = zip(self.shapes, self.dtypes, strict=True)
        single = [i for i, (shape, dtype) in enumerate(types) if (shape, dtype.kind) == ((), "b")]
        return {leaf: bit for bit, leaf in enumerate(single)}


@partial(jax.tree_util.register_dataclass, data_fields=["words", "large"], meta_fields=["layout"])
@dataclass(frozen=True)
class Records:
    """Packed rows, with any leading axes."""

    words: Array
    """u32[..., W]: the small leaves, one word per element, then the flags, 32 per word."""
    large: list[Array]
    """The other leaves, [..., leaf's shape]."""
    layout: RecordLayout

    def __getitem__(self, index: Any) -> Records:
        return jax.tree.map(lambda x: x[index], self)

    def unpack(self) -> PyTree:
        """Return the rows as a tree; the inverse of ``pack``."""
        leaves, offset, large = [], 0, iter(self.large)
        layout, flags = self.layout, self.layout.flags
        first_flags = self.words.shape[-1] - _words_of(flags)
        for i, (shape, dtype) in enumerate(zip(layout.shapes, layout.dtypes, strict=True)):
            if i in flags:
                leaves.append((self.words[..., first_flags + flags[i] // 32] >> flags[i] % 32) % 2 == 1)
            elif layout.in_record(i):
                words = self.words[..., offset : offset + math.prod(shape)]
                words = jax.lax.bitcast_convert_type(words, dtype) if dtype.itemsize == 4 else words.astype(dtype)
                leaves.append(words.reshape(self.words.shape[:-1] + shape))
                offset += math.prod(shape)
            else:
                leaves.append(next(large))
        return jax.tree.unflatten(layout.structure, leaves)


def layout_of(row: PyTree) -> RecordLayout:
    """Return the layout for rows like this one, unbatched."""
    leaves, structure = jax.tree.flatten(row)
    return RecordLayout(structure, tuple(x.shape for x in leaves), tuple(np.dtype(x.dtype) for x in leaves))


def check_rows(layout: RecordLayout, rows: PyTree, leading: tuple[int, ...]) -> None:
    """Raise ValueError unless rows have the structure, shapes and types of the layout, with ``leading`` axes.

    Without this check, other types would be truncated silently.
    """
    leaves, structure = jax.tree.flatten_with_path(rows)
    if structure != layout.structure:
        raise ValueError(f"this replay stores rows of {layout.structure}, not of {structure}: give init such an example")
    for (path, x), shape, dtype in zip(leaves, layout.shapes, layout.dtypes, strict=True):
        stored, received = (jax.ShapeDtypeStruct(*each) for each in (((*leading, *shape), dtype), (jnp.shape(x), x.dtype)))
        if stored != received:
            raise ValueError(
                f"rows{jax.tree_util.keystr(path)} is {show_shapes(received)}, but this replay takes {show_shapes(stored)}: cast "
                "it, or give init an example of that type and shape"
            )


def pack(layout: RecordLayout, rows: PyTree) -> Records:
    """Pack rows [..., leaf's shape] into records."""
    words, large, leading, flags = [], [], (), layout.flags
    bits: list[Any] = [jnp.uint32(0)] * _words_of(flags)
    for i, (x, shape) in enumerate(zip(jax.tree.leaves(rows), layout.shapes, strict=True)):
        leading = x.shape[: x.ndim - len(shape)]
        if i in flags:
            bits[flags[i] // 32] |= x.astype(jnp.uint32) << flags[i] % 32
        elif layout.in_record(i):
            x = x.reshape((*leading, math.prod(shape)))
            words.append(jax.lax.bitcast_convert_type(x, jnp.uint32) if x.dtype.itemsize == 4 else x.astype(jnp.uint32))
        else:
            large.append(x)
    words += [word[..., None] for word in bits]
    joined = jnp.concatenate(words, -1) if words else jnp.zeros((*leading, 0), jnp.uint32)
    return Records(joined, large, layout)


def _words_of(flags: dict[int, int]) -> int:
    return -(-len(flags) // 32)
