"""How much work at once a CPU's cache holds.

What a network makes of thousands of rows leaves the cache before the next layer, or the gradient, reads it. In parts that stay
there an iteration of PPO takes 0.84 times as long with two layers of 64 units, 512 environments and minibatches of 16,384 rows,
and 0.75 times with a convolution over minibatches of 2,048 boards (two cores of an AMD EPYC).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxrl.xla.private_jax import Jaxpr, NotInThisJax, jaxprs_in_params

CACHED_BYTES = 1 << 21
"""Of what the products of a part give. Those two cores have second-level caches of 2 MiB together; parts of half this size, or of
twice, are slower by less than what the cut brings."""
PRODUCTS = ("dot_general", "concatenate", "conv_general_dilated")
LEAST_ROWS = 256
"""Fewer are not looked at: tracing takes longer than what a cut could save."""


def parts_in_cache(function: Callable[..., Any], *args: Any, rows: int) -> int:
    """Into how many parts a CPU should cut the rows of ``function(*args)``: a power of two that divides them, or 1."""
    if rows < LEAST_ROWS:
        return 1
    parts = 1 << (bytes_of_products(function, *args) // CACHED_BYTES).bit_length() >> 1
    while parts > 1 and rows % parts:
        parts //= 2
    return parts if parts >= 4 else 1  # two halves are not faster than the whole


def is_a_part(function: Callable[..., Any], *args: Any, rows: int) -> bool:
    """Whether the rows of ``function(*args)`` are work enough for a CPU by themselves, rather than at once with more."""
    return rows >= LEAST_ROWS // 4 and bytes_of_products(function, *args) >= CACHED_BYTES // 8


def bytes_of_products(function: Callable[..., Any], *args: Any) -> int:
    """What the matrix products and convolutions of a function give, and what is put together for them."""

    def count(jaxpr: Jaxpr) -> int:
        made: list[Any] = [x.aval for eqn in jaxpr.eqns if eqn.primitive.name in PRODUCTS for x in eqn.outvars]
        inner = [[count(x) for x in jaxprs_in_params(eqn.params)] for eqn in jaxpr.eqns]
        one_of = [eqn.primitive.name == "cond" for eqn in jaxpr.eqns]  # as a choice by platform is
        inside = [max(counts) if chosen else sum(counts) for counts, chosen in zip(inner, one_of, strict=True)]
        return sum(x.size * x.dtype.itemsize for x in made) + sum(inside)

    try:
        return count(jax.make_jaxpr(function)(*args).jaxpr)
    except NotInThisJax:  # then nothing is cut
        return 0
