"""The driver for pure environments: all seeds in one program, the seed axis sharded over devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl.runtime.checkpoint.states import seal
from jaxrl.training import evaluate, evaluation_key, freezing, run_iterations
from jaxrl.types import Agent, AgentState, Array, Metrics, Policy, PyTree

SEEDS = "seeds"
"""The name of the mesh axis."""
CPU_OPTIONS: dict[str, bool | int | str] = {
    # XLA's default order of kernels lets several run at once, and small ones then spend more time on passing from thread to
    # thread than they save: PPO's step takes 6 to 10 % longer.
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    # The default is 256 bits also where the processor has 512: PPO's step takes 5 to 9 % longer. Others use what they have.
    "xla_cpu_prefer_vector_width": 512,
}
"""Of the compiler, for programs on a CPU."""
QUICK_OPTIONS = CPU_OPTIONS | {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""For what runs once and briefly: it compiles in a third of the time, and takes several times as long to run."""
QUICK_ROWS = 1_000
"""Rows of warm-up that take less time slowly than it takes to compile them well."""


class FusedDriver:
    """Steps of many seeds in one jit: ``shard_map`` over devices, ``vmap`` on each.

    Devices never talk to each other. Were the sharding left to the compiler, the condition around environment resets would become
    a collective, and every row would wait for the slowest device.
    """

    def __init__(self, agent: Agent, seeds: Sequence[int], devices: Sequence[jax.Device]) -> None:
        """``len(devices)`` divides ``len(seeds)``."""
        self.compile_seconds = 0.0
        """Spent so far on tracing and compiling."""
        self.agent = agent
        self._seeds = np.asarray(seeds, np.uint32)
        self._mesh = jax.make_mesh((len(devices),), (SEEDS,), axis_types=(AxisType.Auto,), devices=devices)
        on_cpu, warmup_rows = devices[0].platform == "cpu", agent.algorithm.warmup_iterations * agent.steps_per_iteration
        self._compiler_options = CPU_OPTIONS if on_cpu else None
        self._init_options = QUICK_OPTIONS if on_cpu and warmup_rows <= QUICK_ROWS else self._compiler_options
        self.programs: dict[Any, Any] = {}
        """Compiled, by name; each on its first use."""

    def init(self, hyperparams: Mapping[str, Any] | None = None) -> AgentState:
        """The states of all seeds; every leaf is [num_seeds, ...], in shards.

        Args:
          hyperparams: the ones to change, one value for all seeds or [num_seeds].
        """
        args = (self._seeds, self._per_seed(hyperparams))
        if "init" not in self.programs:
            start = time.perf_counter()
            init = self._lower(self._init_one, (0, 0), *args)
            with ThreadPoolExecutor(1) as background:  # XLA compiles one while Python traces the other
                compiled = background.submit(init.compile, self._init_options)
                self.programs["iterate"] = self.compile_iterate(self._sharded(init.out_info))
                self.programs["init"] = compiled.result()
            self.compile_seconds += time.perf_counter() - start
        return self.programs["init"](*args)

    def compile_iterate(self, states: AgentState) -> Any:
        """The program of ``iterate`` for states of these shapes and shardings, as ``shapes`` gives them."""
        alive = np.ones(self._seeds.shape, bool)
        lowered = self._lower(self._iterate_one, (0, None, 0), states, np.int32(0), alive, donate=True)
        return lowered.compile(self._compiler_options)

    def shapes(self, hyperparams: Mapping[str, Any] | None = None) -> AgentState:
        """Shapes and shardings of what ``init`` gives."""
        return self._sharded(jax.eval_shape(jax.vmap(self._init_one), self._seeds, self._per_seed(hyperparams)))

    def adopt(self, states: AgentState, iteration: int) -> AgentState:
        """Restored states are whole: nothing to do."""
        return states

    def seal(self, states: AgentState) -> AgentState:
        """Replay that knows of the seam before its next rows; ``states`` is used up."""
        return self.call("seal", partial(seal, self.agent), (0,), states, donate=True)

    def place(self, states: AgentState) -> AgentState:
        """In shards again, wherever the caller's functions left them."""
        return jax.device_put(states, NamedSharding(self._mesh, P(SEEDS)))

    def iterate(self, states: AgentState, iterations: int, alive: Any = True) -> tuple[AgentState, Metrics, Array]:
        """``iterations`` steps of every seed that is alive, in one call: ``(states, metrics, alive)``. ``states`` is used up.

        What makes a seed stand still, and how, is in ``training.freezing``.
        """
        alive = np.broadcast_to(np.asarray(alive, bool), self._seeds.shape)
        return self.call("iterate", self._iterate_one, (0, None, 0), states, np.int32(iterations), alive, donate=True)

    def evaluate(self, states: AgentState, iteration: int, num_episodes: int, *, explore: bool = False) -> tuple[Array, Array]:
        """Episodes of every seed, greedy or as in training: ``(returns, lengths)``, [num_seeds, num_episodes]."""

        def play(seed: Array, state: AgentState, iteration: Array) -> tuple[Array, Array]:
            result = evaluate(self.agent, state, evaluation_key(seed, iteration), num_episodes, explore=explore)
            return result.episodic_return, result.episodic_length

        return self.call(("evaluate", num_episodes, explore), play, (0, 0, None), self._seeds, states, np.int32(iteration))

    def policies(self, states: AgentState) -> Policy:
        """Copies, which outlive the states."""

        def policy(state: AgentState) -> Policy:
            return jax.tree.map(jnp.copy, self.agent.algorithm.policy(state.learner))

        return self.call("policies", policy, (0,), states)

    def _init_one(self, seed: Array, hyperparams: PyTree) -> AgentState:
        return self.agent.init(jax.random.key(seed), hyperparams)

    def _iterate_one(self, state: AgentState, iterations: Array, alive: Array) -> tuple[AgentState, Metrics, Array]:
        (state, alive), metrics = run_iterations(freezing(self.agent), (state, alive), iterations)
        return state, metrics, alive

    def _per_seed(self, hyperparams: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
        return {name: np.broadcast_to(np.float32(x), self._seeds.shape) for name, x in (hyperparams or {}).items()}

    def _sharded(self, shapes: PyTree) -> PyTree:
        sharding = NamedSharding(self._mesh, P(SEEDS))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)

    def call(
        self, name: Any, function: Callable[..., Any], axes: tuple[int | None, ...], *args: Any, donate: bool = False
    ) -> Any:
        """The value of a function of one seed for all of them, compiled on its first use.

        Args:
          name: of the program; the same for the same function and shapes.
          axes: per argument, 0 where it has one value per seed in front, None where all share it.
          donate: use the first argument up.
        """
        if name not in self.programs:
            start = time.perf_counter()
            self.programs[name] = self._lower(function, axes, *args, donate=donate).compile(self._compiler_options)
            self.compile_seconds += time.perf_counter() - start
        return self.programs[name](*args)

    def _lower(self, function: Callable[..., Any], axes: tuple[int | None, ...], *args: Any, donate: bool = False) -> Any:
        """Trace a function of one seed for all of them."""
        specs = tuple(P(SEEDS) if axis == 0 else P() for axis in axes)
        mapped = _alone if len(self._seeds) == self._mesh.size else jax.vmap
        sharded = jax.shard_map(
            mapped(function, in_axes=axes), mesh=self._mesh, in_specs=specs, out_specs=P(SEEDS), check_vma=False
        )
        return jax.jit(sharded, donate_argnums=(0,) if donate else ()).lower(*args)


def _alone(function: Callable[..., Any], in_axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """``vmap`` over an axis of size one, without it: batched matmuls of one are a tenth slower than plain ones."""

    def mapped(*args: Any) -> Any:
        one = [arg if axis is None else jax.tree.map(lambda x: x[0], arg) for arg, axis in zip(args, in_axes, strict=True)]
        return jax.tree.map(lambda x: jnp.asarray(x)[None], function(*one))

    return mapped
