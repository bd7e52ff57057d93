"""Agents over devices: which leaves of a state belong to environments, and running ``step`` with the environments shared out.

Everything that belongs to an environment (its state, its rows in replay, its return statistics) lives with one device; everything
else is the same on all of them. Gradients and statistics are averaged inside ``update`` over the agent's ``axis_name``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl.agent import warn_if_eager
from jaxrl.rollout import params_axes
from jaxrl.spec import build, unimportable_parts
from jaxrl.training import check_pure
from jaxrl.types import Agent, AgentState, Key, PyTree


def env_axes(agent: Agent, state: AgentState) -> AgentState:
    """Which axis of each leaf runs over environments; -1 for leaves that belong to none of them.

    The state says so, by the property ``env_axes`` of NamedTuples in it (see ``jaxrl.types.LearnerState``).

    Raises:
      ValueError: an axis that a state declares has another size than the number of environments.
    """
    env, num_envs = check_pure(agent, "env_axes"), state.actor.done.shape[0]
    params = jax.tree.map(lambda a: -1 if a is None else a, params_axes(env, state.env_params), is_leaf=lambda a: a is None)
    axes = declared_axes(state)._replace(env_params=params)

    def check(path: Any, leaf: Any, axis: int) -> None:
        if axis >= 0 and (leaf.ndim <= axis or leaf.shape[axis] != num_envs):
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has the shape {leaf.shape}, and its env_axes says that axis {axis} runs over "
                f"the {num_envs} environments"
            )

    jax.tree.map_with_path(check, state._replace(env_params=()), axes._replace(env_params=()))
    return axes


def declared_axes(tree: PyTree, axis: int = -1) -> Any:
    """``tree`` with the axis over environments that is declared for each leaf, or for what it is in; else ``axis``."""
    if _declares(tree):
        return type(tree)(*[declared_axes(part, tree.env_axes.get(name, axis)) for name, part in tree._asdict().items()])
    return jax.tree.map(lambda x: declared_axes(x, axis) if _declares(x) else axis, tree, is_leaf=_declares)


def _declares(x: Any) -> bool:
    return hasattr(x, "env_axes")


def partition_specs(agent: Agent, state: AgentState) -> AgentState:
    """``PartitionSpec`` of each leaf for shard_map over ``agent.axis_name``."""
    return specs_of(env_axes(agent, state), _axis_name(agent))


def specs_of(axes: PyTree, name: str) -> Any:
    """``PartitionSpec`` of leaves of which each has an axis that is shared out over the devices of ``name``; -1: none."""
    return jax.tree.map(lambda axis: PartitionSpec(*[None] * axis, name) if axis >= 0 else PartitionSpec(), axes)


def split_state(agent: Agent, state: AgentState, num_devices: int) -> AgentState:
    """One state per device, stacked [num_devices, ...]: the argument of ``jax.pmap(agent.step, axis_name=...)``."""
    _axis_name(agent)
    _shares(agent, num_devices)

    def split(x: jax.Array, axis: int) -> jax.Array:
        if axis < 0:
            return jnp.broadcast_to(x, (num_devices, *x.shape))
        return jnp.stack(jnp.split(x, num_devices, axis))

    return jax.tree.map(split, state, env_axes(agent, state))


def join_state(agent: Agent, states: AgentState) -> AgentState:
    """The inverse of ``split_state``: one state that holds all environments."""
    first = jax.tree.map(lambda x: x[0], states)
    return jax.tree.map(lambda x, axis: x[0] if axis < 0 else jnp.concatenate(list(x), axis), states, env_axes(agent, first))


def data_parallel(agent: Agent, num_devices: int | None = None) -> Agent:
    """The same agent with its environments, batches and replay shared out over devices.

    Args:
      agent: with an ``axis_name``, or built by one of jaxrl's builders from importable parts: its spec then builds one.
      num_devices: default: all. Must divide ``num_envs``, and ``batch_size`` where there is one.

    Returns:
      An Agent whose ``init`` places its state over the devices and whose ``step`` (to be jitted) runs on all of them. Its
      rollouts are those of one device; its gradients are means over all rows. On-policy rules of jaxrl learn what they learn on
      one device, up to rounding, where ``num_devices`` is a power of two; replay rules draw another batch on each.
    """
    num_devices = num_devices or jax.device_count()
    shared = agent if agent.axis_name else on_axis(agent, "devices")
    name = _axis_name(shared)
    check_devices(shared, num_devices)
    mesh = jax.make_mesh((num_devices,), (name,), axis_types=(AxisType.Auto,), devices=jax.devices()[:num_devices])

    def init(key: Key, hyperparams: Any = None, env_params: PyTree = None) -> AgentState:
        state = agent.init(key, hyperparams, env_params)
        return jax.tree.map(jax.device_put, state, _shardings(mesh, partition_specs(shared, state)))

    def step(state: AgentState) -> Any:
        warn_if_eager(state)
        specs = partition_specs(shared, state)
        return jax.shard_map(shared.step, mesh=mesh, in_specs=(specs,), out_specs=(specs, PartitionSpec()))(state)

    return shared._replace(init=init, step=step)


def on_axis(agent: Agent, name: str) -> Agent:
    """The agent, built again from its spec, with a ``step`` that runs under a device axis of this name.

    Raises:
      ValueError: it has no spec, or one with a part that cannot be imported.
    """
    if not agent.spec:
        raise ValueError("this agent has no spec to build it again from: bind it with axis_name='d', and share that one out")
    return build(agent.spec, axis_name=name)


def _shardings(mesh: Mesh, specs: PyTree) -> PyTree:
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, PartitionSpec))


def _axis_name(agent: Agent) -> str:
    if agent.axis_name is None:
        raise ValueError("this agent names no device axis: build it with axis_name='d', and map its step over that axis")
    return agent.axis_name


def check_devices(agent: Agent, num_devices: int) -> None:
    """Refuse a number of devices over which the environments and what is learnt from them cannot be shared out evenly.

    A device's share has to be an agent that its builder makes; of one that cannot be built again, only tracing the step shows it.
    """
    shares = _shares(agent, num_devices)
    if num_devices == 1 or not agent.spec or unimportable_parts(agent.spec):
        return
    try:
        build(agent.spec, axis_name=None, **shares)
    except ValueError as error:
        have = ", ".join(f"{name}={size}" for name, size in shares.items())
        raise ValueError(f"each of {num_devices} devices has {have}, and then {error}") from error


def _shares(agent: Agent, num_devices: int) -> dict[str, Any]:
    """A device's share of the sizes that count over all devices."""
    settings = {"num_envs": agent.num_envs, **agent.spec.get("settings", {})}
    sizes = {name: settings[name] for name in ("num_envs", "batch_size") if name in settings}
    for name, size in sizes.items():
        if size % num_devices:
            raise ValueError(f"{name}={size} must be a multiple of the number of devices, {num_devices}")
    return {name: size // num_devices for name, size in sizes.items()}
