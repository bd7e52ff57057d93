"""Agents with unequal spaces: padding to common ones, as environments of several agents need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

OBSERVATION = "observation"
"""Entry of a Dict observation that is padded, beside the mask."""


class Team(NamedTuple):
    """A pure environment whose agents may have unequal spaces: as ``Env``, with tuples of observations and of actions."""

    reset: Callable[[Key, PyTree], tuple[PyTree, tuple[PyTree, ...]]]
    """(key, params) -> (env_state, observations)"""
    step: Callable[[Key, PyTree, tuple[Array, ...], PyTree], tuple[PyTree, TimeStep]]
    """(key, env_state, actions, params) -> (env_state, TimeStep), with a tuple of observations and f32[A] rewards."""
    observation_spaces: tuple[spaces.Space, ...]
    """Each a Box, or a Dict of a Box, "observation", and an "action_mask"."""
    action_spaces: tuple[spaces.Space, ...]
    """All Discrete, or all a Box of one axis."""
    params: PyTree = ()
    name: str = "custom"
    max_episode_steps: int | None = None
    render: Any = None
    render_fps: float = 30.0


class Padding(NamedTuple):
    """Conversion between the spaces of agents and common ones, for NumPy and JAX arrays."""

    observation_space: spaces.Space
    action_space: spaces.Space
    each: tuple[tuple[spaces.Space, spaces.Space], ...]
    """Observation and action space of each agent."""
    width: int
    """Numbers in a padded observation before the agent's number; 0 if observations stay as they are."""
    agent_id: bool

    def observations(self, observations: Sequence[PyTree]) -> PyTree:
        """Stack observations, one of each agent with the same leading axes, to [..., A, ...]."""
        seen = [obs[OBSERVATION] if isinstance(obs, dict) else obs for obs in observations]
        xp, axis = seen[0].__array_namespace__(), seen[0].ndim - len(_seen(self.each[0][0]).shape or ())
        lead = seen[0].shape[:axis]
        if self.width:
            parts = [xp.asarray(x, xp.float32).reshape(*lead, -1) for x in seen]
            seen = [xp.concatenate([x, xp.zeros((*lead, self.width - x.shape[-1]), xp.float32)], -1) for x in parts]
        if self.agent_id:
            number = np.eye(len(seen), dtype=np.float32)
            seen = [xp.concatenate([x, xp.broadcast_to(number[i], (*lead, len(seen)))], -1) for i, x in enumerate(seen)]
        stacked = xp.stack(seen, axis)
        if not isinstance(self.observation_space, spaces.Dict):
            return stacked
        count = int(self.action_space.n)  # type: ignore[attr-defined]
        masks = [self._mask(xp, obs, action, lead, count) for obs, (_, action) in zip(observations, self.each, strict=True)]
        return {OBSERVATION: stacked, MASK_KEY: xp.stack(masks, axis)}

    def actions(self, action: Array) -> tuple[Array, ...]:
        """Return the action of each agent, given those of all, [..., A, *shape]."""
        axis = action.ndim - len(self.action_space.shape or ()) - 1
        taken = [action[(slice(None),) * axis + (i,)] for i in range(len(self.each))]
        if isinstance(self.action_space, spaces.Discrete):
            return tuple(taken)  # the mask allows only those that an agent has
        return tuple(x[..., : space.shape[0]] for x, (_, space) in zip(taken, self.each, strict=True))  # type: ignore[index]

    @staticmethod
    def _mask(xp: Any, obs: PyTree, space: Any, lead: tuple[int, ...], count: int) -> Array:
        own = obs[MASK_KEY] if isinstance(obs, dict) else xp.ones((*lead, int(space.n)), xp.int8)
        return xp.concatenate([xp.asarray(own, xp.int8), xp.zeros((*lead, count - int(space.n)), xp.int8)], -1)


def pad(team: Team, *, agent_id: bool = True) -> Env:
    """Return an environment of several agents with common spaces, ``Env.num_agents``.

    Observations become f32 vectors, padded with zeros to the longest. Discrete actions are those of the agent with most of them,
    and ``action_mask`` allows each agent its own; a Box of actions is padded to the longest, and an agent takes the first numbers.
    Spaces that are equal already stay as they are.

    Args:
      agent_id: append the agent's number to its observation, one-hot, so that shared parameters can act differently.
    """
    padding = padding_of(team.observation_spaces, team.action_spaces, agent_id=agent_id)

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state, observations = team.reset(key, params)
        return state, padding.observations(observations)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        state, reached = team.step(key, env_state, padding.actions(action), params)
        return state, reached._replace(obs=padding.observations(reached.obs))

    return Env(
        reset,
        step,
        padding.observation_space,
        padding.action_space,
        team.params,
        team.name,
        team.max_episode_steps,
        team.render,
        team.render_fps,
        num_agents=len(padding.each),
    )


def padding_of(
    observation_spaces: Sequence[spaces.Space], action_spaces: Sequence[spaces.Space], *, agent_id: bool = True
) -> Padding:
    """Return the padding of these agents' spaces.

    Raises:
      ValueError: there are no agents, spaces differ in kind, or they are of a kind that cannot be padded.
    """
    each = tuple(zip(observation_spaces, action_spaces, strict=True))
    if not each:
        raise ValueError("a team needs at least one agent: its tuples of spaces are empty")
    count, masked = _common_actions(action_spaces), any(isinstance(space, spaces.Dict) for space in observation_spaces)
    seen = [_seen(space, i) for i, space in enumerate(observation_spaces)]
    equal = all(space == seen[0] for space in seen)
    vectors = agent_id or not equal
    width = max(int(np.prod(space.shape)) for space in seen) if vectors and not (equal and len(seen[0].shape) == 1) else 0
    common = _padded_box(seen, width or int(seen[0].shape[0]), len(each) * agent_id) if vectors else seen[0]
    if masked or (isinstance(count, spaces.Discrete) and any(space != count for space in action_spaces)):
        if not isinstance(count, spaces.Discrete):
            raise ValueError(f"agents with an {MASK_KEY} need Discrete actions, and they have {count}")
        return Padding(
            spaces.Dict({OBSERVATION: common, MASK_KEY: spaces.MultiBinary(int(count.n))}), count, each, width, agent_id
        )
    return Padding(common, count, each, width, agent_id)


def _common_actions(action_spaces: Sequence[spaces.Space]) -> spaces.Space:
    first = action_spaces[0]
    if all(isinstance(space, spaces.Discrete) for space in action_spaces):
        return max(action_spaces, key=lambda space: int(space.n))  # type: ignore[attr-defined]
    if all(space == first for space in action_spaces):
        return first
    if all(isinstance(space, spaces.Box) and len(space.shape) == 1 for space in action_spaces):
        longest: Any = max(action_spaces, key=lambda space: space.shape[0])  # type: ignore[index]
        for space in action_spaces:
            own: Any = space
            if not all(np.array_equal(x[: len(y)], y) for x, y in ((longest.low, own.low), (longest.high, own.high))):
                raise ValueError(f"agents have actions with other bounds, {longest} and {own}: scale them to the same ones")
        return longest
    named = ", ".join(f"agent {i} {space}" for i, space in enumerate(action_spaces))
    raise ValueError(f"actions differ in kind ({named}): pad joins Discrete actions, or those of a Box with one axis")


def _seen(space: spaces.Space, agent: int = 0) -> spaces.Box:
    """Return the part of an observation space that is padded."""
    part = space.spaces.get(OBSERVATION) if isinstance(space, spaces.Dict) else space
    others = set(space.spaces) - {OBSERVATION, MASK_KEY} if isinstance(space, spaces.Dict) else set()
    if not isinstance(part, spaces.Box) or others:
        raise ValueError(
            f"agent {agent} observes {space}: pad takes a Box, or a Dict of a Box, {OBSERVATION!r}, and an {MASK_KEY!r}"
        )
    return part


def _padded_box(seen: Sequence[spaces.Box], width: int, more: int) -> spaces.Box:
    """Return the space of the vectors: bounds that hold for all agents, and ``more`` numbers of 0 or 1."""
    low, high = np.zeros((2, len(seen), width), np.float32)
    for i, space in enumerate(seen):
        low[i, : space.low.size], high[i, : space.high.size] = space.low.ravel(), space.high.ravel()
    bounds = [np.concatenate([low.min(0), np.zeros(more)]), np.concatenate([high.max(0), np.ones(more)])]
    return spaces.Box(*(bound.astype(np.float32) for bound in bounds), dtype=np.float32)
