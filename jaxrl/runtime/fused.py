"""The driver for pure environments: all seeds in one program, the seed axis sharded over devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxrl.runtime.evaluation import evaluation_key
from jaxrl.training import evaluate, run_iterations
from jaxrl.types import Agent, AgentState, Array, Metrics, PyTree

SEEDS = "seeds"
"""The name of the mesh axis."""


class FusedDriver:
    """Steps of many seeds in one jit: ``shard_map`` over devices, ``vmap`` on each.

    Devices never talk to each other. Were the sharding left to the compiler, the condition around environment resets would become
    a collective, and every row would wait for the slowest device.
    """

    def __init__(self, agent: Agent, seeds: Sequence[int], devices: Sequence[jax.Device]) -> None:
        """``len(devices)`` divides ``len(seeds)``."""
        self.compile_seconds = 0.0
        """Spent so far on tracing and compiling."""
        self._agent = agent
        self._seeds = np.asarray(seeds, np.uint32)
        self._mesh = jax.make_mesh((len(devices),), (SEEDS,), axis_types=(AxisType.Auto,), devices=devices)
        # XLA's default order of kernels on a CPU lets several run at once, and small ones then spend more time on passing from
        # thread to thread than they save: PPO's step takes 6 to 10 % longer.
        in_order: dict[str, bool | str] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
        self._compiler_options = in_order if devices[0].platform == "cpu" else None
        self.programs: dict[Any, Any] = {}
        """Compiled, by name; each on its first use."""

    def init(self, hyperparams: Mapping[str, Any] | None = None) -> AgentState:
        """The states of all seeds; every leaf is [num_seeds, ...], in shards.

        Args:
          hyperparams: the ones to change, one value for all seeds or [num_seeds].
        """
        values = {name: np.broadcast_to(np.float32(x), self._seeds.shape) for name, x in (hyperparams or {}).items()}

        def init(seed: Array, hyperparams: PyTree) -> AgentState:
            return self._agent.init(jax.random.key(seed), hyperparams)

        return self._call("init", init, (0, 0), self._seeds, values)

    def advance(self, states: AgentState, iterations: int) -> tuple[AgentState, Metrics]:
        """``iterations`` steps of every seed, in one call: ``(states, metrics [num_seeds])``. ``states`` is used up."""

        def advance(state: AgentState, iterations: Array) -> tuple[AgentState, Metrics]:
            return run_iterations(self._agent, state, iterations)

        return self._call("advance", advance, (0, None), states, np.int32(iterations), donate=True)

    def evaluate(self, states: AgentState, iteration: int, num_episodes: int) -> tuple[Array, Array]:
        """Greedy episodes of every seed: ``(returns, lengths)``, [num_seeds, num_episodes]."""

        def play(seed: Array, state: AgentState, iteration: Array) -> tuple[Array, Array]:
            result = evaluate(self._agent, state, evaluation_key(seed, iteration), num_episodes)
            return result.episodic_return, result.episodic_length

        return self._call(("evaluate", num_episodes), play, (0, 0, None), self._seeds, states, np.int32(iteration))

    def _call(
        self, name: Any, function: Callable[..., Any], axes: tuple[int | None, ...], *args: Any, donate: bool = False
    ) -> Any:
        if name not in self.programs:
            start = time.perf_counter()
            specs = tuple(P(SEEDS) if axis == 0 else P() for axis in axes)
            mapped = _alone if len(self._seeds) == self._mesh.size else jax.vmap
            sharded = jax.shard_map(
                mapped(function, in_axes=axes), mesh=self._mesh, in_specs=specs, out_specs=P(SEEDS), check_vma=False
            )
            program = jax.jit(sharded, donate_argnums=(0,) if donate else ())
            self.programs[name] = program.lower(*args).compile(self._compiler_options)
            self.compile_seconds += time.perf_counter() - start
        return self.programs[name](*args)


def _alone(function: Callable[..., Any], in_axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """``vmap`` over an axis of size one, without it: batched matmuls of one are a tenth slower than plain ones."""

    def mapped(*args: Any) -> Any:
        one = [arg if axis is None else jax.tree.map(lambda x: x[0], arg) for arg, axis in zip(args, in_axes, strict=True)]
        return jax.tree.map(lambda x: jnp.asarray(x)[None], function(*one))

    return mapped
