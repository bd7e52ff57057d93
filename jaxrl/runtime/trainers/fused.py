"""The driver for pure environments: all seeds in one program, sharded over devices: the seeds, and where they are few their
environments."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl.agent import state_shapes
from jaxrl.parallel import DATA, SEEDS, check_replicas, make_mesh, on_axis, seed_specs
from jaxrl.replay.size import stored_bytes
from jaxrl.runtime.checkpoint.convert_states import mark_discontinuity
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.system.compiling import Compiling, compiled
from jaxrl.runtime.system.memory import check_replay_fits
from jaxrl.runtime.trainers.non_finite import Suspects, of_next_rollout
from jaxrl.training import evaluate, evaluation_key, freezing, run_iterations
from jaxrl.types import Agent, AgentState, Array, Metrics, Policy, PyTree
from jaxrl.xla.private_jax import known_options
from jaxrl.xla.seed_axis import alone, per_seed

PER_SEED = P(SEEDS)
"""Of what is the same on all devices of a seed."""
CPU_OPTIONS: dict[str, bool | int | str] = {
    # XLA's default order of kernels lets several run at once, and small ones then spend more time on passing from thread to
    # thread than they save: PPO's step takes 6 to 10 % longer.
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    # The default is 256 bits also where the processor has 512: PPO's step takes 5 to 9 % longer. Others use what they have.
    "xla_cpu_prefer_vector_width": 512,
}
"""Of the compiler, for programs on a CPU; those that this jaxlib knows are used."""
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

    Devices of different seeds never talk to each other; those that share the environments of one do where its rule takes means.
    Were the sharding left to the compiler, the condition around environment resets would become a collective, and every row would
    wait for the slowest device.
    """

    def __init__(
        self,
        agent: Agent,
        seeds: Sequence[int],
        devices: Sequence[jax.Device],
        devices_per_seed: int = 1,
        stepping: Agent | None = None,
    ) -> None:
        """
        Args:
          devices: as many for each shard of the seeds; the number of shards divides ``len(seeds)``.
          devices_per_seed: over how many of them the environments of each seed are shared out.
          stepping: whose ``step`` runs; default: the agent, built again on the axis ``DATA`` where environments are shared out.
        """
        self.compile_seconds = 0.0
        """Spent so far on tracing and compiling."""
        self.agent, self.devices_per_seed = agent, devices_per_seed
        self.stepping = stepping or (agent if devices_per_seed == 1 else on_axis(agent, DATA))
        self._seeds = np.asarray(seeds, np.uint32)
        self._mesh = make_mesh({SEEDS: len(devices) // devices_per_seed, DATA: devices_per_seed}, devices)
        on_cpu, warmup_rows = devices[0].platform == "cpu", agent.algorithm.warmup_iterations * agent.steps_per_iteration
        quickly = QUICK_OPTIONS if warmup_rows <= QUICK_ROWS else CPU_OPTIONS
        self._init_options = known_options(quickly) if on_cpu else None
        self.compiler_options = known_options(CPU_OPTIONS) if on_cpu else None
        self.programs: dict[Any, Any] = {}
        """Compiled, by name; each on its first use."""

    def init(self, hyperparams: Mapping[str, Any] | None = None) -> AgentState:
        """The states of all seeds; every leaf is [num_seeds, ...], in shards.

        Args:
          hyperparams: the ones to change, one value for all seeds or [num_seeds].
        """
        args = (self._seeds, per_seed(hyperparams, len(self._seeds)))
        if "init" not in self.programs:
            start = time.perf_counter()
            # Each device makes all environments of its seeds, as one alone does, and keeps its own.
            init = self._lower(self._mapped(self._init_one, (0, 0), *args), *args, out_shardings=self._shardings)
            size, here = stored_bytes(self.agent.algorithm, init.out_info.learner), list(self._mesh.local_devices)
            # Each process knows its own memory.
            check_replay_fits(self.agent, size * len(here) // self._mesh.size, len(self._seeds), here)
            compiling = Compiling(partial(init.compile, self._init_options))  # while Python traces the other
            self.programs["iterate"] = self.compile_iterate(self._sharded(init.out_info))
            self.programs["init"] = compiling.result()
            self.compile_seconds += time.perf_counter() - start
        return self.programs["init"](*args)

    def compile_iterate(self, states: AgentState) -> Any:
        """The program of ``iterate`` for states of these shapes and shardings, as ``shapes`` gives them."""
        alive = np.ones(self._seeds.shape, bool)
        return self._compile(self._iterate_one, (0, None, 0), states, np.int32(0), alive, donate=True, gives=self._iterated)

    def shapes(self, hyperparams: Mapping[str, Any] | None = None) -> AgentState:
        """Shapes and shardings of what ``init`` gives."""
        return self._sharded(jax.eval_shape(jax.vmap(self._init_one), self._seeds, per_seed(hyperparams, len(self._seeds))))

    def adopt(self, states: AgentState, iteration: int) -> AgentState:
        """Restored states are whole: nothing to do."""
        return states

    def mark_discontinuity(self, states: AgentState, which: np.ndarray | None = None) -> AgentState:
        """Replay that knows of the seam before its next rows, of all seeds or of some; ``states`` is used up."""
        args = (states,) if which is None else (states, which)
        return self.call(
            ("seal", len(args)), partial(mark_discontinuity, self.agent), (0,) * len(args), *args, donate=True, gives=self._specs
        )

    def place(self, states: AgentState) -> AgentState:
        """In shards again, wherever the caller's functions left them."""
        return jax.device_put(states, self._shardings)

    def iterate(self, states: AgentState, iterations: int, alive: Any = True) -> tuple[AgentState, Metrics, Array]:
        """``iterations`` steps of every seed that is alive, in one call: ``(states, metrics, alive)``. ``states`` is used up.

        What makes a seed stand still, and how, is in ``training.freezing``.
        """
        alive = np.broadcast_to(np.asarray(alive, bool), self._seeds.shape)
        args = (states, np.int32(iterations), alive)
        return self.call("iterate", self._iterate_one, (0, None, 0), *args, donate=True, gives=self._iterated)

    def evaluate(self, states: AgentState, iteration: int, num_episodes: int, *, explore: bool = False) -> tuple[Array, Array]:
        """Episodes of every seed, greedy or as in training: ``(returns, lengths)``, [num_seeds, num_episodes].

        Raises:
          RuntimeError: devices that share a seed do not agree any more on what they have learnt.
        """
        if self.devices_per_seed > 1:
            check_replicas(states.learner, current().gather)

        def play(seed: Array, state: AgentState, iteration: Array) -> tuple[Array, Array]:
            result = evaluate(self.agent, state, evaluation_key(seed, iteration), num_episodes, explore=explore)
            return result.episodic_return, result.episodic_length

        return self.call(("evaluate", num_episodes, explore), play, (0, 0, None), self._seeds, states, np.int32(iteration))

    def suspects(self, states: AgentState, which: np.ndarray) -> Suspects:
        """Which environments broke a seed that was just frozen, [num_seeds, num_envs]: what it broke by is made again."""
        look = partial(of_next_rollout, self.stepping)
        return self.call("suspects", look, (0,), states, gives=P(SEEDS, DATA))

    def policies(self, states: AgentState) -> Policy:
        """Copies, which outlive the states."""

        def policy(state: AgentState) -> Policy:
            return jax.tree.map(jnp.copy, self.agent.algorithm.policy(state.learner))

        return self.call("policies", policy, (0,), states)

    def _init_one(self, seed: Array, hyperparams: PyTree) -> AgentState:
        return self.agent.init(jax.random.key(seed), hyperparams)

    def _iterate_one(self, state: AgentState, iterations: Array, alive: Array) -> tuple[AgentState, Metrics, Array]:
        (state, alive), metrics = run_iterations(freezing(self.stepping), (state, alive), iterations)
        return state, metrics, alive

    @cached_property
    def _specs(self) -> Any:
        """How states lie on the mesh: one for all leaves, or, where environments are shared out, one for each."""
        if self.devices_per_seed == 1:
            return PER_SEED
        return seed_specs(self.stepping, state_shapes(self.agent))

    @property
    def _shardings(self) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(self._mesh, spec), self._specs, is_leaf=_is_spec)

    @property
    def _iterated(self) -> Any:
        """Specs of states, metrics and alive; what is not the state's is the same on all devices of a seed."""
        return self._specs, PER_SEED, PER_SEED

    def _sharded(self, shapes: PyTree) -> PyTree:
        shardings = jax.tree.broadcast(self._shardings, shapes)
        return jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes, shardings)

    def call(
        self,
        name: Any,
        function: Callable[..., Any],
        axes: tuple[int | None, ...],
        *args: Any,
        donate: bool = False,
        gives: Any = PER_SEED,
    ) -> Any:
        """The value of a function of one seed for all of them, compiled on its first use.

        Args:
          name: of the program; the same for the same function and shapes.
          axes: per argument, 0 where it has one value per seed in front, None where all share it.
          donate: use the first argument up.
          gives: ``PartitionSpec`` of what it gives.
        """
        if name not in self.programs:
            start = time.perf_counter()
            self.programs[name] = self._compile(function, axes, *args, donate=donate, gives=gives)
            self.compile_seconds += time.perf_counter() - start
        return self.programs[name](*args)

    def _compile(
        self, function: Callable[..., Any], axes: tuple[int | None, ...], *args: Any, donate: bool = False, gives: Any = PER_SEED
    ) -> Any:
        mapped = self._mapped(function, axes, *args, gives=gives)
        lowered = self._lower(mapped, *args, donate_argnums=(0,) if donate else ())
        return compiled(partial(lowered.compile, self.compiler_options))

    def _lower(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with no_collections():
            return jax.jit(function, **options).lower(*args)

    def _mapped(self, function: Callable[..., Any], axes: tuple[int | None, ...], *args: Any, gives: Any = PER_SEED) -> Any:
        """A function of one seed for all of them, over devices."""
        per_seed = [self._specs if isinstance(arg, AgentState) else PER_SEED for arg in args]
        specs = tuple(spec if axis == 0 else P() for spec, axis in zip(per_seed, axes, strict=True))
        mapped = alone if len(self._seeds) == self._mesh.shape[SEEDS] else jax.vmap
        return jax.shard_map(mapped(function, in_axes=axes), mesh=self._mesh, in_specs=specs, out_specs=gives, check_vma=False)


@contextmanager
def no_collections() -> Iterator[None]:
    """Python's collector of cyclic garbage at rest: while a program is traced it searches all that was ever imported, again and
    again, for a third of the time, and what is traced is needed."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _is_spec(x: Any) -> bool:
    return isinstance(x, P)
