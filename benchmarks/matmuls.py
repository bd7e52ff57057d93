"""The machine's rate at large matrix products."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

SIZES = (256, 512, 1024, 2048)
SECONDS_PER_SIZE = 0.5


def matmul_rate(sizes: tuple[int, ...] = SIZES, seconds: float = SECONDS_PER_SIZE) -> float:
    """Return the floating-point operations per second of products of square f32 matrices.

    The rate is the best over sizes, and over one product at a time on one device, which may use all cores, and one product on
    each device at once.
    """
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
    """Call ``compute`` repeatedly for ``seconds`` and return the seconds of the fastest call."""
    least, end = math.inf, time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        compute().block_until_ready()
        least = min(least, time.perf_counter() - start)
    return least
