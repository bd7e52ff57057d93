"""Parameters of small networks as one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.flatten_util import ravel_pytree

from jaxrl.types import PyTree

MOST_PACKED = 2**16
"""Largest number of parameters to pack for a single step. Two critics of 256 units have twice as many. Copying their gradients
together would cost more than separate kernels for each leaf: an update takes 1.05 times as long."""


class Packing(NamedTuple):
    """Functions that pack parameters for an optimizer, and unpack them."""

    pack: Callable[[PyTree], PyTree]
    unpack: Callable[[PyTree], PyTree]


UNPACKED = Packing(lambda tree: tree, lambda tree: tree)


def packing(params: PyTree, *, at_most: int | None = None) -> Packing:
    """Pack parameters into one flat vector, for an optimizer that treats all elements alike.

    A small network spends more time on launching a kernel per leaf and operation than on computing, so one vector makes its
    updates faster. It also needs one collective instead of one per leaf.

    Args:
      at_most: largest number of parameters to pack. With more, the tree is left as it is.
    """
    if at_most is not None and sum(x.size for x in jax.tree.leaves(params)) > at_most:
        return UNPACKED
    return Packing(lambda tree: ravel_pytree(tree)[0], ravel_pytree(params)[1])
