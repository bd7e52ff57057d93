"""Agents over seeds and devices: functions that take an Agent and return one.

Data of an environment (its state, its rows in replay, its return statistics) is on one device. Everything else is the same on all
devices. ``update`` averages gradients and statistics over the agent's ``axis_name``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from jaxrl.agent.checks import check_agent, check_key, warn_if_eager
from jaxrl.builder.spec import build, unimportable_parts
from jaxrl.rollout.env_batches import params_axes
from jaxrl.settings.aliases import shortened
from jaxrl.settings.doors import open_door
from jaxrl.settings.validation import check_count
from jaxrl.training import check_pure
from jaxrl.types import Agent, AgentState, Key, PyTree
from jaxrl.xla.seed_axis import over_seeds, per_seed

SEEDS, DATA = "seeds", "data"
"""Names of mesh axes: the first shards the seeds, the second the environments of each seed."""


def __getattr__(name: str) -> Any:
    """Return ``initialize``, which has side effects and is therefore defined in ``jaxrl.runtime``."""
    return open_door(__name__, name)


def env_axes(agent: Agent, state: AgentState) -> AgentState:
    """Return the axis of each leaf that runs over environments, or -1 if it has none.

    NamedTuples in the state declare it with a property ``env_axes`` (see ``jaxrl.types.LearnerState``).

    Raises:
      ValueError: the size of a declared axis differs from the number of environments.
    """
    env = check_pure(agent, "env_axes")
    if agent.episodes:  # all devices play the same episodes, each with a share of the members
        return jax.tree.map(lambda x: -1, state)
    num_lanes = state.actor.done.shape[0]
    sizes = {num_lanes, num_lanes // max(1, env.num_agents)}  # states of environments have no axis of agents
    params = jax.tree.map(lambda a: -1 if a is None else a, params_axes(env, state.env_params), is_leaf=lambda a: a is None)
    axes = declared_axes(state)._replace(env_params=params)

    def check(path: Any, leaf: Any, axis: int) -> None:
        if axis >= 0 and (leaf.ndim <= axis or leaf.shape[axis] not in sizes):
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has shape {leaf.shape}, but its env_axes declares that axis {axis} runs over "
                f"the {num_lanes} environments"
            )

    jax.tree.map_with_path(check, state._replace(env_params=()), axes._replace(env_params=()))
    return axes


def declared_axes(tree: PyTree, axis: int = -1) -> Any:
    """Return ``tree`` with each leaf replaced by its axis over environments, as declared by the outermost NamedTuple around it
    that declares one: a population has an axis of members before those of its members' states.

    Leaves without a declaration are replaced by ``axis``.
    """
    if _declares(tree):

        def of_field(name: str, part: PyTree) -> Any:
            own = tree.env_axes.get(name)
            return declared_axes(part, axis) if own is None else jax.tree.map(lambda _: own, part)

        return type(tree)(*[of_field(name, part) for name, part in tree._asdict().items()])
    return jax.tree.map(lambda x: declared_axes(x, axis) if _declares(x) else axis, tree, is_leaf=_declares)


def _declares(x: Any) -> bool:
    return hasattr(x, "env_axes")


def partition_specs(agent: Agent, state: AgentState) -> AgentState:
    """Return the ``PartitionSpec`` of each leaf for shard_map over ``agent.axis_name``."""
    return specs_of(env_axes(agent, state), _axis_name(agent))


def seed_specs(agent: Agent, state: AgentState) -> AgentState:
    """Return the same for states with a leading axis of seeds, sharded over ``SEEDS``; ``state`` is the state of one seed."""
    return jax.tree.map(lambda spec: PartitionSpec(SEEDS, *spec), partition_specs(agent, state))


def specs_of(axes: PyTree, name: str) -> Any:
    """Return the ``PartitionSpec`` of each leaf, given its axis that is sharded over the mesh axis ``name``, or -1 for none."""
    return jax.tree.map(lambda axis: PartitionSpec(*[None] * axis, name) if axis >= 0 else PartitionSpec(), axes)


def split_state(agent: Agent, state: AgentState, num_devices: int) -> AgentState:
    """Split a state into one per device, stacked [num_devices, ...]: the argument of ``jax.pmap(agent.step, axis_name=...)``."""
    _axis_name(agent)
    _shares(agent, num_devices)

    def split(x: jax.Array, axis: int) -> jax.Array:
        if axis < 0:
            return jnp.broadcast_to(x, (num_devices, *x.shape))
        return jnp.stack(jnp.split(x, num_devices, axis))

    return jax.tree.map(split, state, env_axes(agent, state))


def join_state(agent: Agent, states: AgentState) -> AgentState:
    """Join the states of all devices into one state with all environments; the inverse of ``split_state``."""
    first = jax.tree.map(lambda x: x[0], states)
    return jax.tree.map(lambda x, axis: x[0] if axis < 0 else jnp.concatenate(list(x), axis), states, env_axes(agent, first))


def vmap_seeds(agent: Agent, num_seeds: int) -> Agent:
    """Vectorise an agent over ``num_seeds`` seeds on one device.

    Returns:
      An Agent whose states have a leading axis [num_seeds] in front of every leaf. Its ``init`` takes one key, which it splits,
      or [num_seeds] keys. Each hyperparameter is one value for all seeds or one per seed. Every seed gives the same results as
      when it runs alone.
    """
    _check_no_data(agent, "vmap_seeds")
    num_seeds = check_count("num_seeds", num_seeds)

    def init(key: Key, hyperparams: Any = None, env_params: PyTree = None) -> AgentState:
        return _init_seeds(agent, seed_keys(key, num_seeds), hyperparams, env_params)

    return agent._replace(init=init, step=over_seeds(num_seeds)(agent.step))


def _check_no_data(agent: Agent, name: str) -> None:
    check_agent(agent)
    if agent.data is not None:
        raise ValueError(f"{name} is for agents without data=…: use jaxrl.run, or jax.vmap(agent.step, in_axes=(0, None))")


def shard_seeds(agent: Agent, mesh: Mesh | None = None) -> Agent:
    """Shard the seeds of an agent over devices. Each device trains its seeds without communication.

    Args:
      mesh: a mesh with an axis ``"seeds"``; default: all devices on one axis.

    Returns:
      An Agent like that of ``vmap_seeds``, with states sharded over the axis. Its ``init`` takes one key per seed; the number of
      seeds must be a multiple of the number of devices on the axis.
    """
    _check_no_data(agent, "shard_seeds")
    mesh = make_mesh({SEEDS: jax.device_count()}) if mesh is None else mesh
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"mesh={shortened(mesh)} must be a jax.sharding.Mesh, as jaxrl.parallel.make_mesh({{{SEEDS!r}: 2}}) makes it"
        )
    if SEEDS not in mesh.shape:
        raise ValueError(f"mesh has the axes {mesh.axis_names}, and shard_seeds needs an axis named {SEEDS!r}")
    return _over(agent, mesh, agent, None)


def data_parallel(agent: Agent, mesh: Mesh | int | None = None) -> Agent:
    """Shard the environments, batches and replay of an agent over devices.

    Args:
      agent: an agent with an ``axis_name``, or one from a builder of jaxrl with importable parts, which is rebuilt with one.
      mesh: a mesh with an axis ``"data"``, which shards the environments of a seed, and for several seeds an axis ``"seeds"``;
        or a number of devices for one seed; default: all devices. The number of devices on ``"data"`` must divide ``num_envs``,
        and ``batch_size`` if there is one.

    Returns:
      An Agent whose ``init`` places its state on the devices and whose ``step`` (jit it) runs on all of them. With an axis of
      seeds it takes and returns states as the agent of ``shard_seeds`` does. Its rollouts are the same as on one device, and its
      gradients are means over all rows. On-policy algorithms of jaxrl compute the same updates as on one device, up to rounding,
      if the number of devices is a power of two. Algorithms with replay draw different rows on each device.
    """
    check_agent(agent)
    if not isinstance(mesh, Mesh):
        number = jax.device_count() if mesh is None else check_count("mesh", mesh)
        mesh = make_mesh({agent.axis_name or DATA: number})
    axes = [name for name in mesh.axis_names if name != SEEDS]
    if len(axes) != 1 or agent.axis_name not in (None, *axes):
        name = agent.axis_name or DATA
        raise ValueError(f"mesh has the axes {mesh.axis_names}, and data_parallel needs {name!r}, and optionally {SEEDS!r}")
    shared = agent if agent.axis_name else on_axis(agent, axes[0])
    check_devices(shared, mesh.shape[axes[0]])
    return _over(agent, mesh, shared, axes[0])


def make_mesh(shape: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a mesh for the functions of this module from axis names and sizes, over the first of the devices."""
    number = math.prod(shape.values())
    found = list(jax.devices() if devices is None else devices)
    if number > len(found):
        raise ValueError(f"mesh {dict(shape)} needs {number} devices, and there are {len(found)}")
    kinds = (AxisType.Auto,) * len(shape)
    return jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=kinds, devices=found[:number])


def _over(agent: Agent, mesh: Mesh, stepping: Agent, data: str | None) -> Agent:
    """Return an agent on a mesh: ``init`` of ``agent`` and ``step`` of ``stepping``.

    Args:
      data: the mesh axis that shards environments, or None.
    """
    several = SEEDS in mesh.shape

    def specs_for(states: AgentState) -> Any:
        if data is None:
            return PartitionSpec(SEEDS)
        state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[several:], x.dtype), states)
        return seed_specs(stepping, state) if several else partition_specs(stepping, state)

    def init(key: Key, hyperparams: Any = None, env_params: PyTree = None) -> AgentState:
        if not several:
            state = agent.init(key, hyperparams, env_params)
        else:
            keys = seed_keys(key, key.shape[0] if getattr(key, "ndim", 0) else mesh.shape[SEEDS])
            if len(keys) % mesh.shape[SEEDS]:
                raise ValueError(f"{len(keys)} seeds must be a multiple of the {mesh.shape[SEEDS]} devices on the axis {SEEDS!r}")
            state = _init_seeds(agent, keys, hyperparams, env_params)
        specs = specs_for(state)
        # A compiled program places the states exactly as a step leaves them; otherwise step would be traced twice.
        return jax.jit(jax.shard_map(lambda x: x, mesh=mesh, in_specs=(specs,), out_specs=specs, check_vma=False))(state)

    def step(states: AgentState) -> Any:
        warn_if_eager(states)
        specs, gives = specs_for(states), PartitionSpec(SEEDS) if several else PartitionSpec()
        local_step = over_seeds(states.iteration.shape[0] // mesh.shape[SEEDS] if several else None)(stepping.step)
        checked = not several and agent.algorithm.check_vma
        return jax.shard_map(local_step, mesh=mesh, in_specs=(specs,), out_specs=(specs, gives), check_vma=checked)(states)

    return stepping._replace(init=init, step=step)


def seed_keys(key: Key, num_seeds: int) -> Key:
    """Return one key per seed: ``key`` split, or ``key`` itself if it holds that number of keys."""
    if jnp.ndim(key) == 0:
        check_key(key)
        return jax.random.split(key, num_seeds)
    check_key(key[0])
    if key.shape != (num_seeds,):
        raise ValueError(f"key has shape {key.shape}: give one key, or one for each of the {num_seeds} seeds")
    return key


def _init_seeds(agent: Agent, keys: Key, hyperparams: Any, env_params: PyTree) -> AgentState:
    number = keys.shape[0]
    if hasattr(hyperparams, "_asdict"):
        hyperparams = hyperparams._asdict()
    return jax.vmap(agent.init, in_axes=(0, 0, None))(keys, per_seed(hyperparams, number), env_params)


def check_replicas(states: PyTree, gather: Callable[[dict[str, str]], Sequence[Mapping[str, str]]] = lambda mine: [mine]) -> None:
    """Check that devices that hold copies of the same array hold the same values.

    Args:
      gather: returns the digests of the copies of all processes, given those of this process; for arrays over several processes.

    Raises:
      RuntimeError: copies differ. The message names the leaf.
    """
    mine: dict[str, str] = {}
    for path, leaf in jax.tree.leaves_with_path(states):
        if not isinstance(leaf, jax.Array):
            continue
        parts = [str(index) for index in leaf.sharding.devices_indices_map(leaf.shape).values()]
        for shard in leaf.addressable_shards if len({*parts}) < len(parts) else ():  # several devices hold the same part
            data = jax.random.key_data(shard.data) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else shard.data
            digest = hashlib.sha256(np.asarray(data).tobytes()).hexdigest()
            _note_copy(mine, f"{jax.tree_util.keystr(path)} {shard.index}", digest)
    known: dict[str, str] = {}
    for each in gather(mine):
        for place, digest in each.items():
            _note_copy(known, place, digest)


def _note_copy(known: dict[str, str], place: str, digest: str) -> None:
    if known.setdefault(place, digest) != digest:
        raise RuntimeError(
            f"states{place.partition(' ')[0]} is not the same on all devices that share it: resume from the last checkpoint, and "
            "report a bug in the code that computed it"
        )


def on_axis(agent: Agent, name: str) -> Agent:
    """Rebuild an agent from its spec, with a ``step`` that runs under a device axis of this name.

    Raises:
      ValueError: the agent has no spec, or a part of the spec cannot be imported.
    """
    if not agent.spec:
        raise ValueError("this agent has no spec to rebuild it from: bind it with axis_name='d', and pass that agent")
    return build(agent.spec, axis_name=name)


def _axis_name(agent: Agent) -> str:
    if agent.axis_name is None:
        raise ValueError("this agent has no axis_name: build it with axis_name='d', and map its step over that axis")
    return agent.axis_name


def check_devices(agent: Agent, num_devices: int) -> None:
    """Raise ValueError unless the agent's environments and batches can be split evenly over this number of devices.

    The builder must accept the sizes of one device's share. If the agent cannot be rebuilt, only tracing ``step`` checks this.
    """
    shares = _shares(agent, num_devices)
    if num_devices == 1 or not agent.spec or unimportable_parts(agent.spec):
        return
    try:
        build(agent.spec, axis_name=None, **shares)
    except ValueError as error:
        have = ", ".join(f"{name}={size}" for name, size in shares.items())
        raise ValueError(f"each of {num_devices} devices would have {have}, but {error}") from error


def _shares(agent: Agent, num_devices: int) -> dict[str, Any]:
    """Return one device's share of the sizes that are totals over all devices."""
    environments = {"members": agent.num_envs // agent.episodes} if agent.episodes else {"num_envs": agent.num_envs}
    settings = environments | {name: x for name, x in agent.spec.get("settings", {}).items() if x is not None}
    sizes = {name: settings[name] for name in (*environments, "batch_size") if name in settings}
    for name, size in sizes.items():
        if size % num_devices:
            raise ValueError(f"{name}={size} must be a multiple of the number of devices, {num_devices}")
    return {name: size // num_devices for name, size in sizes.items()}
