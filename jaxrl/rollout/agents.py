"""Agents of an environment as lanes of a batch: lane = environment · A + agent, so B = N · A.

Rows, carries, statistics and replay know lanes alone, so an algorithm for one agent learns for all of them, with shared
parameters. Only the functions of an environment see [N, A, ...]. Functions take NumPy or JAX arrays and return arrays of the same
kind. With ``num_agents`` 0, an environment is a lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tree

from jaxrl.types import Array, HostStep, PyTree, TimeStep


def as_lanes(batch: PyTree, num_agents: int) -> Any:
    """Return the leaves [N, A, ...] as [N · A, ...]."""
    return tree.map_structure(lambda x: x.reshape(-1, *x.shape[2:]), batch) if num_agents else batch


def by_agent(lanes: PyTree, num_agents: int) -> Any:
    """Return the leaves [N · A, ...] as [N, A, ...]."""
    return tree.map_structure(lambda x: x.reshape(-1, num_agents, *x.shape[1:]), lanes) if num_agents else lanes


def sequences_by_agent(rows: PyTree, num_agents: int) -> Any:
    """Return the leaves [T, N · A, ...] of rows as sequences [N, T, A, ...]; with ``num_agents`` 0, as [B, T, ...]."""
    if not num_agents:
        return tree.map_structure(lambda x: x.swapaxes(0, 1), rows)
    return tree.map_structure(lambda x: x.reshape(len(x), -1, num_agents, *x.shape[2:]).swapaxes(0, 1), rows)


def sequences_as_lanes(sequences: PyTree, num_agents: int) -> Any:
    """Return the leaves [N, T, A, ...] of sequences as those of lanes, [N · A, T, ...]."""
    if not num_agents:
        return sequences
    return tree.map_structure(lambda x: x.swapaxes(1, 2).reshape(-1, x.shape[1], *x.shape[3:]), sequences)


def environment_of(lane: Array, num_agents: int) -> Array:
    """Return the ids of the environments, i32[N], of the lanes with these ids, i32[B]."""
    return lane[::num_agents] // num_agents if num_agents else lane


def row_as_lanes(reached: TimeStep | HostStep, num_agents: int) -> Any:
    """Return a row of N environments as one of lanes."""
    if not num_agents:
        return reached
    terminated, truncated = (of_each_agent(flag, num_agents) for flag in (reached.terminated, reached.truncated))
    return as_lanes(reached._replace(terminated=terminated, truncated=truncated), num_agents)


def of_each_agent(flag: Array, num_agents: int) -> Array:
    """Return flags of environments, [N], or of their agents already, as bool[N, A]."""
    return flag if flag.ndim > 1 else flag[:, None].repeat(num_agents, 1)


def together(rows: Array, num_agents: int) -> Array:
    """Return numbers of lanes, [..., B], as those of environments and their agents, [..., N, A]."""
    return rows.reshape(*rows.shape[:-1], -1, max(1, num_agents))


def all_over(over: Array, num_agents: int) -> Array:
    """Return whether the episodes of all lanes of an environment are over, [..., N], for bool[..., B]."""
    return together(over, num_agents).all(-1) if num_agents else over


def num_environment_rows(valid: Array, num_agents: int) -> Array:
    """Return the number of rows, i32[...], that environments have not spent on a reset, for bool[..., T, B]."""
    return (together(valid, num_agents).any(-1) if num_agents else valid).sum((-2, -1), dtype=np.int32)


def lanes_of(environment: Array, num_agents: int) -> Array:
    """Return the ids of the lanes, i32[B], of environments with these ids, i32[N]."""
    if not num_agents:
        return environment
    xp = environment.__array_namespace__()
    return (environment[:, None] * num_agents + xp.arange(num_agents, dtype=environment.dtype)).reshape(-1)


def joint_actions(action: Array, others: Array, num_agents: int) -> Array:
    """Return the actions of all agents of each lane's environment, f32[..., B, A · d].

    Args:
      action: that of each lane, f32[..., B, d].
      others: those that the other lanes take, f32[..., B, d].
    """
    xp, team = action.__array_namespace__(), (*action.shape[:-2], -1, 1, num_agents, action.shape[-1])
    joint = xp.where(xp.eye(num_agents, dtype=bool)[..., None], action.reshape(team), others.reshape(team))
    return joint.reshape(*action.shape[:-1], -1)


def spent_on_reset(over: Array, num_agents: int) -> Array:
    """Return which lanes spend their next row on a reset, bool[B]: those of environments in which all are over."""
    return all_over(over, num_agents).repeat(num_agents) if num_agents else over
