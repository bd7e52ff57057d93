"""Host environments in a group of processes: each process collects from its share of them, and all learn together."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl.envs.subprocess.child import GroupWorkerFailed
from jaxrl.metrics import all_reduce
from jaxrl.parallel import DATA, check_devices, check_replicas, declared_axes, make_mesh
from jaxrl.rollout.collect import JOINED
from jaxrl.runtime.actors.gradients import AllReducedLearner
from jaxrl.runtime.actors.scheme import Scheme
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.samplers.sampler import host_env
from jaxrl.runtime.trainers.host import Collected, HostDriver, InPlace
from jaxrl.runtime.trainers.non_finite import Suspects
from jaxrl.runtime.trainers.trainer import FAILURES
from jaxrl.types import Agent, AgentState, Array, HostEnvs, Key, Metrics, Policy, PyTree, Rollout, StepInput
from jaxrl.xla.seed_axis import over_seeds

WHOLE = PartitionSpec()


def check_scheme(scheme: Scheme) -> None:
    """Raise ValueError if a group of processes does not support the scheme. The message names the nearest one that it does."""
    if scheme.inference == "learner" or scheme.gradients == "workers":
        asked = "inference='learner'" if scheme.inference == "learner" else "gradients='workers'"
        raise ValueError(
            f"{asked} is for one process, and this is one of {current().num_processes}. In a group of processes workers act and "
            "learners average their gradients: use scheme='a2c' or scheme='impala'"
        )


def own_part(agent: Agent) -> Agent:
    """Return the agent with the number of environments of one process. Raise ValueError if they cannot be divided evenly."""
    number = current().num_processes
    try:
        check_devices(agent, number)
    except ValueError as error:
        raise ValueError(f"{number} processes, each with one device, divide the environments of each seed: {error}") from error
    return agent._replace(num_envs=agent.num_envs // number)


def sharing(agent: Agent) -> Agent:
    """Return the agent for a sampler in this process: with its share of the environments, which keep their global numbers."""
    part = own_part(agent)
    first, env, algorithm = current().process_id * part.num_envs, host_env(agent), agent.algorithm

    def open_share(num_envs: int, seed: int, first_id: int = 0) -> HostEnvs:
        return env.open(num_envs, seed, first + first_id)

    def act(policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool) -> Any:
        return algorithm.act(policy, carry, inputs, env_id + first * max(1, env.num_agents), key, explore=explore)

    shared = env._replace(open=open_share, open_eval=env.open_eval or env.open)
    return part._replace(env=shared, algorithm=algorithm._replace(act=act))


def group_mesh() -> Mesh:
    """Return a mesh with one device of each process."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    return make_mesh({DATA: len(first)}, [first[number] for number in sorted(first)])


def shardings(mesh: Mesh, states: AgentState) -> AgentState:
    """Return the sharding of each leaf of all seeds' states. Leaves of environments are on the process that steps these; all
    others are replicated."""
    return jax.tree.map(lambda axis: sharding_along(mesh, None if axis < 0 else axis + 1), declared_axes(states))


def sharding_along(mesh: Mesh, axis: int | None) -> NamedSharding:
    return NamedSharding(mesh, WHOLE if axis is None else PartitionSpec(*[None] * axis, DATA))


class GroupLearner(AllReducedLearner):
    """Learner of a group of processes: each has a replica, with gradients and statistics averaged over all processes."""

    def devices(self, sampler: Any) -> list[jax.Device]:
        return list(group_mesh().devices.flat)

    def __init__(self, agent: Agent, sampler: Any, num_seeds: int) -> None:
        super().__init__(agent, sampler, num_seeds)
        over, whole = over_seeds(num_seeds), sharding_along(self.mesh, None)
        policy = jax.jit(over(agent.algorithm.policy), out_shardings=whole)
        iteration_key = jax.jit(over(jax.random.fold_in), out_shardings=whole)
        self.start = partial(self._start, over(agent.init))
        # Each process acts by itself, without collectives.
        self.policy = lambda learner: local(policy(learner))
        self.iteration_key = lambda *arguments: local(iteration_key(*arguments))
        if agent.algorithm.observe is not None:
            self.observe = InPlace(agent.algorithm, over(self._observe), num_seeds)

    def _start(self, init: Callable[..., AgentState], keys: Key, hyperparams: Any) -> AgentState:
        """Return new states, sharded, so that no process holds a whole replay buffer."""
        data = np.asarray(jax.random.key_data(keys))  # programs over several processes treat NumPy arrays as replicated

        def start(data: Array, hyperparams: Any) -> AgentState:
            return init(jax.random.wrap_key_data(data), hyperparams)

        where = shardings(self.mesh, jax.eval_shape(start, data, hyperparams))
        return jax.jit(start, out_shardings=where)(data, hyperparams)

    def warmup_rollouts(self, state: AgentState) -> Iterator[Rollout]:
        return map(self.joined, super().warmup_rollouts(state))

    def learn_alive(self, state: AgentState, collected: Collected, alive: Array) -> tuple[AgentState, Array, Metrics]:
        rollout, episodes = collected
        # Concatenated over processes here, and summed with the losses.
        parts = jax.tree.map(lambda x: self._beside(np.asarray(x)[:, None], 1), episodes)
        return super().learn_alive(state, (self.joined(rollout), parts), alive)

    def learn_from(self, learner: Any, rollout: Rollout, episodes: Metrics) -> tuple[Any, Metrics]:
        def of_all(parts: Metrics) -> Metrics:
            return all_reduce(jax.tree.map(lambda x: x[0], parts), DATA)

        data_spec = PartitionSpec(DATA)
        reduced = jax.shard_map(of_all, mesh=self.mesh, in_specs=(data_spec,), out_specs=WHOLE, check_vma=False)
        return super().learn_from(learner, rollout, reduced(episodes))

    def _observe(self, learner: Any, rollout: Rollout) -> Any:
        observe = self.shared.algorithm.observe
        assert observe is not None
        return self.over_devices(lambda learner, rollout: (observe(learner, rollout), {}), learner, rollout)[0]

    def joined(self, rollout: Rollout) -> Rollout:
        """Join the processes' parts of a rollout into one over all environments."""
        mine = np.asarray(rollout.env_id)
        numbered = rollout._replace(env_id=mine + current().process_id * mine.shape[-1])
        return jax.tree.map(lambda axis, part: jax.tree.map(lambda x: self._beside(x, axis + 1), part), JOINED, numbered)

    def _beside(self, x: Any, axis: int) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding_along(self.mesh, axis), np.asarray(x))


class GroupDriver(HostDriver):
    """Driver of an agent in a group of processes."""

    learner_of = GroupLearner

    def shapes(self, hyperparams: Any = None) -> AgentState:
        states = super().shapes(hyperparams)
        where = shardings(group_mesh(), states)
        return jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), states, where)

    def place(self, states: AgentState) -> AgentState:
        # Each process has all of a leaf, or the leaf is placed already.
        return jax.tree.map(_place, states, shardings(group_mesh(), states))

    def evaluate(
        self, states: AgentState, iteration: int, num_episodes: int, *, explore: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate; each process plays the episodes of some seeds. Raise RuntimeError if the learner's replicas differ."""
        check_replicas(states.learner, current().gather)
        group, policies = current(), self.policies(states)
        mine = range(group.process_id, len(self.seeds), group.num_processes)
        with ending_the_group():
            played = {str(i): self.play(policies, i, iteration, num_episodes, explore=explore) for i in mine}
            plain = {i: [x.episodic_return.tolist(), x.episodic_length.tolist()] for i, x in played.items()}
            said = functools.reduce(operator.or_, group.gather(plain))
        returns, lengths = zip(*(said[str(i)] for i in range(len(self.seeds))), strict=True)
        return np.asarray(returns, np.float32), np.asarray(lengths, np.int32)

    def found_in_rollouts(self) -> Suspects:
        """Gather the findings of all processes. Each process numbers its lanes from 0."""
        group, share = current(), self.agent.num_lanes // current().num_processes
        said = group.gather([mask[:, :share].tolist() for mask in self.found])
        return Suspects(*(np.concatenate([np.array(part, bool) for part in parts], 1) for parts in zip(*said, strict=True)))

    def _once(self, *arguments: Any) -> Any:
        with ending_the_group():
            return super()._once(*arguments)


@contextlib.contextmanager
def ending_the_group() -> Iterator[None]:
    """Turn the failure of an environment or a worker into an error that ends this process, and with it the others, which wait."""
    try:
        yield
    except FAILURES as error:
        raise GroupWorkerFailed(f"process {current().process_id}: {error}") from error


def local(tree: PyTree) -> PyTree:
    """Return this process's copy of replicated arrays."""

    def local_copy(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(local_copy(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        return x.addressable_data(0)

    return jax.tree.map(local_copy, tree)


def _place(x: Any, sharding: NamedSharding) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # JAX can place only the data of keys
        return jax.random.wrap_key_data(_place(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    return jax.device_put(np.asarray(x) if x.is_fully_addressable else x, sharding)
