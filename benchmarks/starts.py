"""Cost of starting an empty kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.hlo import Program
from benchmarks.matmuls import least_seconds
from jaxrl.runtime.trainers.fused import CPU_OPTIONS
from jaxrl.xla.private_jax import known_options

TRIPS = 2_000
CHAIN = 64
"""Approximate kernels per trip. Each depends on all of the previous one's output, so the compiler cannot fuse them."""


def kernel_seconds(seconds: float = 0.5) -> float:
    """Return the seconds per kernel in a long chain of tiny kernels on one CPU device, compiled with ``jaxrl.run``'s options."""

    def trip(_: int, x: jax.Array) -> jax.Array:
        for _ in range(CHAIN):
            x = x * x.sum()
        return x

    def chain(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, TRIPS, trip, x)

    x = jnp.zeros(8)
    compiled: Any = jax.jit(chain).lower(x).compile(known_options(CPU_OPTIONS))
    return least_seconds(lambda: compiled(x), seconds) / Program(compiled.as_text()).all_kernels()
