"""What it costs to start a kernel that has nothing to do."""

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
"""Kernels per trip, about: each depends on all of the one before, so that the compiler can join none."""


def kernel_seconds(seconds: float = 0.5) -> float:
    """Seconds per kernel of a long chain of tiny ones on one CPU device, in a program compiled as those of ``jaxrl.run`` are."""

    def trip(_: int, x: jax.Array) -> jax.Array:
        for _ in range(CHAIN):
            x = x * x.sum()
        return x

    def chain(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, TRIPS, trip, x)

    x = jnp.zeros(8)
    compiled: Any = jax.jit(chain).lower(x).compile(known_options(CPU_OPTIONS))
    return least_seconds(lambda: compiled(x), seconds) / Program(compiled.as_text()).all_kernels()
