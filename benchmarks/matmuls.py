"""Matrix products: how much arithmetic of them a function asks for, and how much of it the machine can do in a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

SIZES = (256, 512, 1024, 2048)
SECONDS_PER_SIZE = 0.5


def matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """Floating-point operations of a function's matrix products: 2·m·k·n for [m, k] · [k, n], in all trips of its scans.

    What no output needs does not count. A ``while_loop``, whose length is not known, counts as one trip, a ``cond`` as its most
    costly branch; convolutions do not count.
    """
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    needed, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return _flops(needed)


def _flops(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, [_flops(x) for x in _jaxprs(equation.params)]
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            total += 2 * math.prod(out) * math.prod(left[axis] for axis in contracted)
        elif name == "cond":
            total += max(inner)
        else:
            total += equation.params.get("length", 1) * sum(inner) if name == "scan" else sum(inner)
    return total


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for x in value if isinstance(value, tuple | list) else (value,):
            if hasattr(jaxpr := getattr(x, "jaxpr", x), "eqns"):
                yield jaxpr


def matmul_rate(sizes: tuple[int, ...] = SIZES, seconds: float = SECONDS_PER_SIZE) -> float:
    """Floating-point operations per second of products of square f32 matrices: the best over sizes, with one product at a time on
    one device, which may use all cores, and with one on every device at once."""
    mesh = jax.make_mesh((len(jax.devices()),), ("d",))
    rng = np.random.default_rng(0)
    multiply = jax.jit(jnp.matmul)
    best = 0.0
    for size in sizes:
        for sharding, batch in ((None, 1), (NamedSharding(mesh, P("d")), mesh.size)):
            matrix = jax.device_put(rng.normal(size=(batch, size, size)).astype(np.float32), sharding)
            matrix = matrix if batch > 1 else matrix[0]
            multiply(matrix, matrix).block_until_ready()
            best = max(best, 2 * batch * size**3 / least_seconds(partial(multiply, matrix, matrix), seconds))
    return best


def least_seconds(compute: Callable[[], jax.Array], seconds: float) -> float:
    """Of one call, among as many as fit into some seconds."""
    least, end = math.inf, time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        compute().block_until_ready()
        least = min(least, time.perf_counter() - start)
    return least
