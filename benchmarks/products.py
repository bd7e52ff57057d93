"""Time of a function's matrix products alone: a lower bound for programs that consist of small products."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.matmuls import least_seconds
from jaxrl.runtime.trainers.fused import CPU_OPTIONS
from jaxrl.xla.private_jax import known_options, needed_part

TRIPS = 500
"""Iterations of a product's loop. Many, so that the cost of calling the program is negligible."""
SECONDS = 0.2
"""Seconds for which a product is timed."""


class Product(NamedTuple):
    """A matrix product of f32 arrays."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    dimensions: Any
    """Dimension numbers, as in ``lax.dot_general``."""

    @property
    def swapped(self) -> Product:
        """The product with its factors swapped: the same numbers, in another order."""
        (left, right), (left_batch, right_batch) = self.dimensions
        return Product(self.right, self.left, ((right, left), (right_batch, left_batch)))

    @property
    def flops(self) -> int:
        """2·m·k·n for [m, k] · [k, n]."""
        (_, contracted), (_, batch) = self.dimensions
        new = [size for axis, size in enumerate(self.right) if axis not in (*contracted, *batch)]
        return 2 * math.prod(self.left) * math.prod(new)


class Convolution(NamedTuple):
    """A convolution."""

    out: tuple[int, ...]
    """Shape of its result."""
    kernel: tuple[int, ...]
    """Shape of its kernel, with the axis of output features first."""

    @property
    def flops(self) -> int:
        """2·(elements of the result)·(elements of the kernel for one of them)."""
        return 2 * math.prod(self.out) * math.prod(self.kernel[1:])


def _product(equation: Any) -> Product:
    left, right = (x.aval.shape for x in equation.invars)
    return Product(left, right, equation.params["dimension_numbers"])


def _convolution(equation: Any) -> Convolution:
    kernel, axes = equation.invars[1].aval.shape, equation.params["dimension_numbers"].rhs_spec
    return Convolution(equation.outvars[0].aval.shape, tuple(kernel[axis] for axis in axes))


PRODUCTS: dict[str, Callable[[Any], Any]] = {"dot_general": _product}
ALL_WORK = PRODUCTS | {"conv_general_dilated": _convolution}


def products_of(function: Callable[..., Any], *args: Any) -> Counter[Product]:
    """Count the matrix products of one call, without convolutions."""
    return _counted(PRODUCTS, function, *args)


def _counted(kinds: Mapping[str, Callable[[Any], Any]], function: Callable[..., Any], *args: Any) -> Counter[Any]:
    """Count operations of some kinds (primitive -> description of its equation) in one call.

    Operations that no output needs do not count. A ``while_loop``, whose length is unknown, counts as one trip, and a ``cond`` as
    its most costly branch.
    """
    return _counted_in(kinds, needed_part(jax.make_jaxpr(function)(*args).jaxpr))


def _counted_in(kinds: Mapping[str, Callable[[Any], Any]], jaxpr: Any) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, [_counted_in(kinds, x) for x in _jaxprs(equation.params)]
        if name in kinds:
            found[kinds[name](equation)] += 1
        elif name == "cond":
            costs = [_flops(branch) for branch in inner]
            found += inner[costs.index(max(costs))]
        else:
            trips = equation.params.get("length", 1) if name == "scan" else 1
            for x in inner:
                found += Counter({operation: trips * number for operation, number in x.items()})
    return found


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs in an equation's parameters: bodies of loops, branches and calls."""
    for value in params.values():
        for x in value if isinstance(value, tuple | list) else (value,):
            if hasattr(jaxpr := getattr(x, "jaxpr", x), "eqns"):
                yield jaxpr


def flops_of(function: Callable[..., Any], *args: Any) -> int:
    """Count the floating-point operations of a function's matrix products."""
    return _flops(products_of(function, *args))


def all_flops_of(function: Callable[..., Any], *args: Any) -> int:
    """Count the floating-point operations of a function's matrix products and convolutions."""
    return _flops(_counted(ALL_WORK, function, *args))


def _flops(operations: Mapping[Any, int]) -> int:
    return sum(number * operation.flops for operation, number in operations.items())


def seconds_of(function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> float:
    """Measure the seconds of a function's matrix products on one CPU device, each alone in a loop, with factors in the cache."""
    return sum(number * product_seconds(product, seconds) for product, number in products_of(function, *args).items())


def product_seconds(product: Product, seconds: float) -> float:
    """Measure the seconds of one product, in the faster order of its factors: compilers swap them to save a transpose."""
    return min(_loop_seconds(order, seconds) for order in (product, product.swapped))


def _loop_seconds(product: Product, seconds: float) -> float:
    """Measure the seconds per trip, including the copy of one number that makes the next trip depend on this one."""
    rng = np.random.default_rng(0)
    factors = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in product[:2]]

    def trip(_: int, factors: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        left, right = factors
        result = jax.lax.dot_general(left, right, product.dimensions)
        some = 1e-30 * jax.lax.slice(result, [0] * result.ndim, [1] * result.ndim)
        return left, jax.lax.dynamic_update_slice(right, some.reshape([1] * right.ndim), [0] * right.ndim)

    loop: Any = jax.jit(lambda *factors: jax.lax.fori_loop(0, TRIPS, trip, factors)[1])
    compiled = loop.lower(*factors).compile(known_options(CPU_OPTIONS))
    return least_seconds(lambda: compiled(*factors), seconds) / TRIPS
