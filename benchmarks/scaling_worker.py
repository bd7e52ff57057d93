"""Worker process of ``python -m benchmarks scaling``: ``python -m benchmarks.scaling_worker CORE PROCESSES NUMBER PORT``.

It trains a case over devices, or runs all-reduces alone. ``CORE``: the only core that it may use, or "any".
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from benchmarks.cases import Case
from benchmarks.hlo import Program
from benchmarks.jaxrl_side import make_agent
from benchmarks.protocol import serve
from jaxrl.parallel import DATA, SEEDS, data_parallel, initialize, make_mesh, shard_seeds
from jaxrl.runtime.trainers.fused import CPU_OPTIONS
from jaxrl.training import run_iterations
from jaxrl.types import Agent
from jaxrl.xla.private_jax import known_options

ANY = "any"
JOINING, SILENT = 120.0, 600.0
"""Seconds in which all processes must join, and after which a silent one counts as lost. A machine may be suspended meanwhile."""


# ------------------------------------------------------------------------------------------------------------------------ sides


def alone(agent: Agent) -> Agent:
    """Train one seed on one device."""
    return agent


def seeds(num_devices: int, agent: Agent) -> Agent:
    return shard_seeds(agent, make_mesh({SEEDS: num_devices}))


def shared(agent: Agent) -> Agent:
    """Train one seed on all devices. Each device has its share of the environments."""
    return data_parallel(agent, make_mesh({DATA: jax.device_count()}))


SIDES: dict[str, Callable[[Agent], Agent]] = {
    "whole": alone,
    "half": alone,
    "seeds on one": partial(seeds, 1),
    "seeds on two": partial(seeds, 2),
    "shared": shared,
    "apart": partial(seeds, 2),
}
"""How each side is laid out over devices. "half" has the rows that one device of "shared" has. "apart" trains two such seeds,
which do not communicate."""


class Training:
    """A compiled side, ready to train."""

    def __init__(self, side: str, case: Case) -> None:
        agent = make_agent(case)
        over = SIDES[side](agent)
        key = jax.random.key(0)
        self.states = over.init(jax.random.split(key, case.num_seeds) if case.num_seeds > 1 else key)
        loop = jax.jit(lambda states, iterations: run_iterations(over, states, iterations), donate_argnums=0)
        options = known_options(CPU_OPTIONS) if jax.default_backend() == "cpu" else None
        self._loop = loop.lower(self.states, np.int32(1)).compile(options)
        self.all_reduces = sorted(Program(self._loop.as_text() or "").all_reduces().items())

    def run(self, iterations: int) -> float:
        """Train for ``iterations`` and return the seconds."""
        start = time.perf_counter()
        self.states, metrics = self._loop(self.states, np.int32(iterations))
        jax.block_until_ready((self.states, metrics))
        return time.perf_counter() - start


# ------------------------------------------------------------------------------------------------------------------ all-reduces


def all_reduces(all_of: Sequence[tuple[int, int]]) -> Callable[..., Any]:
    """Return a program of (rounds, 0) that repeats, ``rounds`` times, the all-reduces listed as (bytes, times).

    The zero is an argument, so that the compiler cannot compute the result in advance.
    """

    def several(rounds: jax.Array, zero: jax.Array) -> jax.Array:
        def reduce(x: jax.Array, times: int) -> jax.Array:
            return jax.lax.fori_loop(0, times, lambda _, x: jax.lax.psum(x, DATA), x)

        def one_round(_: jax.Array, zero: jax.Array) -> jax.Array:
            for num_bytes, times in all_of:  # each depends on the previous one, so that devices cannot be at different ones
                zero = reduce(jnp.zeros(num_bytes // 4) + zero, times)[0]
            return zero

        return jax.lax.fori_loop(0, rounds, one_round, zero)

    mesh = make_mesh({DATA: jax.device_count()})
    mapped = jax.shard_map(several, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    return jax.jit(mapped)


# --------------------------------------------------------------------------------------------------------------------- commands


class Commands:
    """Commands of a worker. Programs stay compiled between commands."""

    def __init__(self) -> None:
        self._training: dict[str, Training] = {}
        self._reducing: dict[Any, Callable[..., Any]] = {}

    def prepare(self, side: str, case: Mapping[str, Any]) -> dict[str, Any]:
        """Compile a side and train for one iteration. Return the (bytes, times) of an iteration's all-reduces."""
        self._training[side] = Training(side, Case(**case))
        self._training[side].run(1)
        return {"all_reduces": self._training[side].all_reduces}

    def train(self, side: str, iterations: int) -> dict[str, Any]:
        return {"seconds": self._training[side].run(iterations)}

    def reduce(self, all_of: Sequence[Sequence[int]], rounds: int) -> dict[str, Any]:
        """Run all-reduces alone, given as (bytes, times)."""
        chosen = tuple((num_bytes, times) for num_bytes, times in all_of)
        if chosen not in self._reducing:
            self._reducing[chosen] = all_reduces(chosen)
            jax.block_until_ready(self._reducing[chosen](np.int32(1), np.float32(0)))
        start = time.perf_counter()
        jax.block_until_ready(self._reducing[chosen](np.int32(rounds), np.float32(0)))
        return {"seconds": time.perf_counter() - start}


def main(core: str, num_processes: str, number: str, port: str) -> None:
    if core != ANY:
        os.sched_setaffinity(0, {int(core)})  # before JAX starts its threads, one per core
    if int(num_processes) > 1:
        initialize(f"127.0.0.1:{port}", int(num_processes), int(number), timeout=JOINING, heartbeat=SILENT)
    commands = Commands()
    serve({name: getattr(commands, name) for name in ("prepare", "train", "reduce")})


if __name__ == "__main__":
    main(*sys.argv[1:])
