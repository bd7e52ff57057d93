"""Driver for pure environments: all seeds in one program, with seeds, or the environments of few seeds, sharded over devices."""

from __future__ import annotations

import gc
import threading
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

from jaxrl.agent import state_shapes, with_data
from jaxrl.parallel import DATA, SEEDS, check_replicas, make_mesh, on_axis, seed_specs
from jaxrl.replay.dataset import Dataset
from jaxrl.replay.size import stored_bytes
from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.checkpoint.convert_states import mark_discontinuity
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.samplers.sampler import stack
from jaxrl.runtime.system.compiling import Compiling, compiled
from jaxrl.runtime.system.memory import check_replay_fits
from jaxrl.runtime.trainers.host_evaluation import evaluate_host
from jaxrl.runtime.trainers.non_finite import Suspects, of_next_rollout
from jaxrl.runtime.trainers.seed_groups import by_group
from jaxrl.training import evaluate_pure, evaluation_key, freezing, run_iterations
from jaxrl.types import Agent, AgentState, Array, HostEnv, Metrics, Policy, PyTree
from jaxrl.xla.private_jax import known_options
from jaxrl.xla.seed_axis import alone, per_seed

PER_SEED = P(SEEDS)
"""Sharding of values that are the same on all devices of a seed."""
CPU_OPTIONS: dict[str, bool | int | str] = {
    # XLA's default scheduler runs several kernels at once. Small kernels then lose more time in passing between threads than
    # they save: PPO's step takes 6 to 10 % longer.
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    # The default is 256 bits even on processors with 512, where PPO's step takes 5 to 9 % longer. Others use their own width.
    "xla_cpu_prefer_vector_width": 512,
}
"""Compiler options for programs on a CPU; options that this jaxlib does not know are omitted."""
QUICK_OPTIONS = CPU_OPTIONS | {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""Compiler options for programs that run once and briefly: they compile in a third of the time, and run several times as
long."""
QUICK_ROWS = 1_000
"""Rows of warm-up up to which compiling well would take longer than running slowly."""


class FusedDriver:
    """Steps many seeds in one jitted function: ``shard_map`` over devices, ``vmap`` on each, on CPUs in groups.

    Devices of different seeds never communicate. Devices that share the environments of one seed communicate where its algorithm
    takes means. If the sharding were left to the compiler, the condition around environment resets would become a collective,
    and every row would wait for the slowest device.
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
          devices: equally many for each shard of the seeds; the number of shards divides ``len(seeds)``.
          devices_per_seed: number of devices that share the environments of each seed.
          stepping: agent whose ``step`` runs; default: ``agent``, rebuilt on the axis ``DATA`` if environments are shared.
        """
        self.compile_seconds = 0.0
        """Time spent so far on tracing and compiling."""
        self._compiling = threading.Lock()
        """Held while a program is compiled, as several threads may call it."""
        self.agent, self.devices_per_seed = agent, devices_per_seed
        self.stepping = stepping or (agent if devices_per_seed == 1 else on_axis(agent, DATA))
        self._seeds = np.asarray(seeds, np.uint32)
        self._mesh = make_mesh({SEEDS: len(devices) // devices_per_seed, DATA: devices_per_seed}, devices)
        warmup_rows = agent.algorithm.warmup_iterations * agent.steps_per_iteration
        quickly = QUICK_OPTIONS if warmup_rows <= QUICK_ROWS else CPU_OPTIONS
        self._on_cpu = devices[0].platform == "cpu"
        self._init_options = known_options(quickly) if self._on_cpu else None
        self.compiler_options = known_options(CPU_OPTIONS) if self._on_cpu else None
        learns_from_data = isinstance(agent.data, Dataset)  # one that only plays has a description
        self.data = jax.device_put(agent.data, NamedSharding(self._mesh, P())) if learns_from_data else ()
        """Dataset, a copy on each device; () without one."""
        self.programs: dict[Any, Any] = {}
        """Compiled programs by name, each compiled on its first use."""

    def init(self, hyperparams: Mapping[str, Any] | None = None) -> AgentState:
        """Return the states of all seeds, sharded; ``hyperparams`` to change are one value for all seeds or [num_seeds]."""
        args = (self._seeds, per_seed(hyperparams, len(self._seeds)))
        with self._compiling:
            if "init" not in self.programs:
                self._compile_init(*args)
        return self.programs["init"](*args)

    def _compile_init(self, *args: Any) -> None:
        start = time.perf_counter()
        # Each device creates all environments of its seeds, as a single device would, and keeps its own share.
        init = self._lower(self._mapped(self._init_one, (0, 0), *args), *args, out_shardings=self._shardings)
        size, here = stored_bytes(self.agent.algorithm, init.out_info.learner), list(self._mesh.local_devices)
        # Each process checks its own memory only.
        check_replay_fits(self.agent, size * len(here) // self._mesh.size, len(self._seeds), here)
        compiling = Compiling(partial(init.compile, self._init_options))  # in the background, while Python traces `iterate`
        self.programs["iterate"] = self.compile_iterate(self._sharded(init.out_info))
        self.programs["init"] = compiling.result()
        self.compile_seconds += time.perf_counter() - start

    def compile_iterate(self, states: AgentState) -> Any:
        """Compile ``iterate`` for states of these shapes and shardings, as given by ``shapes``."""
        alive = np.ones(self._seeds.shape, bool)
        args = (states, np.int32(0), alive, self.data)
        over = by_group if self._on_cpu else jax.vmap
        return self._compile(self._iterate_one, (0, None, 0, None), *args, donate=True, gives=self._iterated, over=over)

    def shapes(self, hyperparams: Mapping[str, Any] | None = None) -> AgentState:
        return self._sharded(jax.eval_shape(jax.vmap(self._init_one), self._seeds, per_seed(hyperparams, len(self._seeds))))

    def adopt(self, states: AgentState, iteration: int) -> AgentState:
        return states  # they are complete

    def mark_discontinuity(self, states: AgentState, which: np.ndarray | None = None) -> AgentState:
        args = (states,) if which is None else (states, which)
        mark, axes = partial(mark_discontinuity, self.agent), (0,) * len(args)
        name = ("mark_discontinuity", len(args))
        return self.call(name, mark, axes, *args, donate=True, gives=self._specs)

    def place(self, states: AgentState) -> AgentState:
        return jax.device_put(states, self._shardings)

    def iterate(self, states: AgentState, iterations: int, alive: Any = True) -> tuple[AgentState, Metrics, Array]:
        alive = np.broadcast_to(np.asarray(alive, bool), self._seeds.shape)
        args = (states, np.int32(iterations), alive, self.data)
        return self._program("iterate", partial(self.compile_iterate, states))(*args)

    def evaluate(self, states: AgentState, iteration: int, num_episodes: int, *, explore: bool = False) -> tuple[Array, Array]:
        """See ``Driver``. Raises RuntimeError if devices that share a seed no longer hold the same parameters."""
        if self.devices_per_seed > 1:
            check_replicas(states.learner, current().gather)

        if isinstance(self.agent.env, HostEnv):  # it learns from a dataset
            played = stack([self._play_host(states, i, iteration, num_episodes, explore) for i in range(len(self._seeds))])
            return played.episodic_return, played.episodic_length

        def play(seed: Array, state: AgentState, iteration: Array) -> tuple[Array, Array]:
            result = evaluate_pure(self.agent, state, evaluation_key(seed, iteration), num_episodes, explore=explore)
            return result.episodic_return, result.episodic_length

        return self.call(("evaluate", num_episodes, explore), play, (0, 0, None), self._seeds, states, np.int32(iteration))

    def _play_host(self, states: AgentState, i: int, iteration: int, num_episodes: int, explore: bool) -> Evaluation:
        """Play episodes of the i-th seed on the host."""
        policy = jax.tree.map(lambda x: np.asarray(x[i]), self.policies(states))
        return evaluate_host(self.agent, policy, evaluation_key(int(self._seeds[i]), iteration), num_episodes, explore=explore)

    def suspects(self, states: AgentState, which: np.ndarray) -> Suspects:
        """Repeat the rollout of each seed that was just frozen, and return its broken environments, [num_seeds, num_envs]."""
        look = partial(of_next_rollout, self.stepping)
        return self.call("suspects", look, (0,), states, gives=P(SEEDS, DATA))

    def policies(self, states: AgentState) -> Policy:
        """Return copies of the policies, which outlive the donated states."""

        def policy(state: AgentState) -> Policy:
            return jax.tree.map(jnp.copy, self.agent.algorithm.policy(state.learner))

        return self.call("policies", policy, (0,), states)

    def _init_one(self, seed: Array, hyperparams: PyTree) -> AgentState:
        return self.agent.init(jax.random.key(seed), hyperparams)

    def _iterate_one(self, state: AgentState, iterations: Array, alive: Array, data: PyTree) -> tuple[AgentState, Metrics, Array]:
        (state, alive), metrics = run_iterations(freezing(with_data(self.stepping, data)), (state, alive), iterations)
        return state, metrics, alive

    @cached_property
    def _specs(self) -> Any:
        """Partition specs of states on the mesh: one for all leaves, or one per leaf if environments are shared."""
        if self.devices_per_seed == 1:
            return PER_SEED
        return seed_specs(self.stepping, state_shapes(self.agent))

    @property
    def _shardings(self) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(self._mesh, spec), self._specs)

    @property
    def _iterated(self) -> Any:
        """Specs of states, metrics and alive; metrics and alive are the same on all devices of a seed."""
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
        """Call a function of one seed for all seeds, compiled on its first use.

        Args:
          name: name of the program; the same for the same function and shapes.
          axes: per argument, 0 if it has a leading axis [num_seeds], None if all seeds share it.
          donate: donate the first argument.
          gives: ``PartitionSpec`` of the result.
        """
        return self._program(name, partial(self._compile, function, axes, *args, donate=donate, gives=gives))(*args)

    def _program(self, name: Any, compile_it: Callable[[], Any]) -> Any:
        """Return the program of this name, compiled on its first use."""
        with self._compiling:
            if name not in self.programs:
                start = time.perf_counter()
                self.programs[name] = compile_it()
                self.compile_seconds += time.perf_counter() - start
        return self.programs[name]

    def _compile(
        self,
        function: Callable[..., Any],
        axes: tuple[int | None, ...],
        *args: Any,
        donate: bool = False,
        gives: Any = PER_SEED,
        over: Callable[..., Any] = jax.vmap,
    ) -> Any:
        mapped = self._mapped(function, axes, *args, gives=gives, over=over)
        lowered = self._lower(mapped, *args, donate_argnums=(0,) if donate else ())
        return compiled(partial(lowered.compile, self.compiler_options))

    def _lower(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with no_collections():
            return jax.jit(function, **options).lower(*args)

    def _mapped(
        self,
        function: Callable[..., Any],
        axes: tuple[int | None, ...],
        *args: Any,
        gives: Any = PER_SEED,
        over: Callable[..., Any] = jax.vmap,
    ) -> Any:
        """Map a function of one seed over all seeds and devices; ``over``: over several seeds of a device."""
        per_seed = [self._specs if isinstance(arg, AgentState) else PER_SEED for arg in args]
        specs = tuple(spec if axis == 0 else P() for spec, axis in zip(per_seed, axes, strict=True))
        mapped = alone if len(self._seeds) == self._mesh.shape[SEEDS] else over
        return jax.shard_map(mapped(function, in_axes=axes), mesh=self._mesh, in_specs=specs, out_specs=gives, check_vma=False)


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable Python's garbage collector. While a program is traced, it would scan all imported modules repeatedly, for a third
    of the time, and free nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
