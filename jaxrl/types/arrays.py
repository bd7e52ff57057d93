"""Arrays, random keys and trees of arrays, as annotations name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from jax import Array
else:
    Array = Any  # a process that only steps host environments need not import jax

PyTree: TypeAlias = Any
Key: TypeAlias = Array
"""A typed threefry key, as made by ``jax.random.key``."""
