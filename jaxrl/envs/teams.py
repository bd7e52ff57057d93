"""Agents with unequal spaces: padding to common ones, as environments of several agents need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tree
from gymnasium import spaces

from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import AGENT_KEY, as_entries, byte_scale, entries_of
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import Array, Env, Key, PyTree, TimeStep


class TeamResetFn(Protocol):
    def __call__(self, key: Key, params: PyTree, /) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Start an episode; return ``(env_state, observations)``."""
        ...


class TeamStepFn(Protocol):
    def __call__(self, key: Key, env_state: PyTree, actions: tuple[Array, ...], params: PyTree, /) -> tuple[PyTree, TimeStep]:
        """Advance by one action of each agent; return ``(env_state, TimeStep)``.

        ``TimeStep.obs`` is a tuple of observations, ``reward`` is f32[A], and the flags are bool[A] or bool[].
        """
        ...


class TeamRenderFn(Protocol):
    def __call__(self, env_state: PyTree, actions: tuple[Any, ...] | None, params: PyTree, /) -> Any:
        """Draw the environment, as ``RenderFn`` does."""
        ...


class Team(NamedTuple):
    """A pure environment whose agents may have unequal spaces: as ``Env``, with tuples of observations and of actions."""

    reset: TeamResetFn
    step: TeamStepFn
    observation_spaces: tuple[spaces.Space, ...]
    """All equal; or a Box for each agent, or a Dict of a Box, ``observation``, and an ``action_mask``."""
    action_spaces: tuple[spaces.Space, ...]
    """All Discrete, or all a Box of one axis, or all equal."""
    params: PyTree = ()
    name: str = "custom"
    max_episode_steps: int | None = None
    render: TeamRenderFn | None = None
    render_fps: float = 30.0


def pad(team: Team, *, agent_id: bool = True) -> Env:
    """Return an environment of several agents with common spaces, ``Env.num_agents``.

    Unequal observations become f32 vectors, uint8 scaled to [0, 1], padded with zeros to the longest. Discrete actions are those
    of the agent that has the most, and ``action_mask`` allows each agent only those it has. A Box of actions is padded to the
    longest, and an agent takes the first numbers. Observations of any kind and actions that are equal already stay as they are.

    Args:
      agent_id: add the number of the agent to its observation, as the wrapper ``agent_id`` does, so that shared parameters can
        act differently.

    Raises:
      ValueError: the team is empty, or the spaces of its agents differ in kind or cannot be padded.
    """
    padding, draw = padding_of(team.observation_spaces, team.action_spaces, agent_id=agent_id), team.render

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state, observations = team.reset(key, params)
        return state, padding.observations(observations)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        state, reached = team.step(key, env_state, padding.actions(action), params)
        return state, reached._replace(obs=padding.observations(reached.obs))

    def render(env_state: PyTree, action: Any, params: PyTree) -> Any:
        assert draw is not None
        actions: Any = None if action is None else np.asarray(action)
        return draw(env_state, None if actions is None else padding.actions(actions), params)

    return Env(
        reset,
        step,
        padding.observation_space,
        padding.action_space,
        team.params,
        team.name,
        team.max_episode_steps,
        None if draw is None else render,
        team.render_fps,
        num_agents=len(padding.each),
    )


class Padding(NamedTuple):
    """Conversion between the spaces of agents and common ones, for NumPy and JAX arrays."""

    observation_space: spaces.Space
    action_space: spaces.Space
    each: tuple[tuple[spaces.Space, spaces.Space], ...]
    """Observation and action space of each agent."""
    seen: tuple[spaces.Space, ...]
    """Stacked parts of the observation spaces: all of it for each agent, or all but its mask if ``masks_apart``."""
    masks_apart: bool
    """Masks are joined apart from the rest, as each agent may have its own actions."""
    width: int
    """Length of a padded observation; 0 if observations stay as they are."""
    agent_id: bool
    """Observations have the number of the agent."""

    def observations(self, observations: Sequence[PyTree]) -> PyTree:
        """Stack observations, one of each agent with the same leading axes, to [..., A, ...]."""
        seen = [_without_mask(obs) for obs in observations] if self.masks_apart else observations
        first, like = tree.flatten(seen[0])[0], next(_leaves(self.seen[0]))
        xp, axis = first.__array_namespace__(), first.ndim - len(like.shape or ())
        lead = first.shape[:axis]
        if self.width:
            seen = [_vector(xp, x, space, lead, self.width) for x, space in zip(seen, self.seen, strict=True)]
        stacked = tree.map_structure(lambda *x: xp.stack(x, axis), *seen)
        more: dict[str, Array] = {}
        if self.agent_id:
            number = len(self.each)
            more[AGENT_KEY] = xp.broadcast_to(xp.arange(number, dtype=xp.int32), (*lead, number))
        if self.masks_apart and MASK_KEY in entries_of(self.observation_space):
            masks = [_mask(xp, obs, lead, own, self.action_space) for obs, (_, own) in zip(observations, self.each, strict=True)]
            more[MASK_KEY] = xp.stack(masks, axis)
        return {**as_entries(stacked), **more} if more else stacked

    def actions(self, action: Array) -> tuple[Array, ...]:
        """Return the action of each agent, given those of all, [..., A, *shape]."""
        axis = action.ndim - len(self.action_space.shape or ()) - 1
        taken = [action[(slice(None),) * axis + (agent,)] for agent in range(len(self.each))]
        if not isinstance(self.action_space, spaces.Box):
            return tuple(taken)  # the mask allows only those that an agent has
        own = [space.shape or () for _, space in self.each]
        return tuple(x[..., : shape[0]] if len(shape) == 1 else x for x, shape in zip(taken, own, strict=True))


def padding_of(
    observation_spaces: Sequence[spaces.Space], action_spaces: Sequence[spaces.Space], *, agent_id: bool = True
) -> Padding:
    """Return the padding of the spaces of agents. ``pad`` describes it, and lists the errors."""
    if len(observation_spaces) != len(action_spaces):
        raise ValueError(f"{len(observation_spaces)} observation spaces and {len(action_spaces)} action spaces: give one of each")
    each = tuple(zip(observation_spaces, action_spaces, strict=True))
    if not each:
        raise ValueError("a team needs at least one agent: its tuples of spaces are empty")
    action_space = _common_actions(action_spaces)
    apart = isinstance(action_space, spaces.Discrete) or any(spaces_ != each[0] for spaces_ in each)
    seen = tuple(map(_rest, observation_spaces)) if apart else tuple(observation_spaces)
    if next(_leaves(seen[0]), None) is None:
        raise ValueError(f"agents observe {observation_spaces[0]}, in which there is nothing for a network to see")
    width, common = 0, seen[0]
    if any(space != common for space in seen):
        boxes = [_padded(part, space, i) for i, (part, space) in enumerate(zip(seen, observation_spaces, strict=True))]
        width = max(int(np.prod(box.shape)) for box in boxes)
        common = _padded_box(boxes, width)
    more: dict[str, spaces.Space] = {AGENT_KEY: spaces.Discrete(len(each))} if agent_id else {}
    if agent_id and AGENT_KEY in entries_of(common):
        raise ValueError(f"observations have an {AGENT_KEY!r} already: use agent_id=False")
    if apart and _needs_mask(each, action_space):
        more[MASK_KEY] = spaces.MultiBinary(int(action_space.n))  # type: ignore[attr-defined]
    observation_space = spaces.Dict({**entries_of(common), **more}) if more else common
    return Padding(observation_space, action_space, each, seen, apart, width, agent_id)


def _common_actions(action_spaces: Sequence[spaces.Space]) -> spaces.Space:
    first = action_spaces[0]
    if all(space == first for space in action_spaces):
        return first
    if all(isinstance(space, spaces.Discrete) and space.start == 0 for space in action_spaces):
        return max(action_spaces, key=lambda space: int(space.n))  # type: ignore[attr-defined]
    boxes = [space for space in action_spaces if isinstance(space, spaces.Box) and len(space.shape) == 1]
    if len(boxes) < len(action_spaces):
        raise ValueError(
            f"actions differ in kind ({_listed(action_spaces)}): pad joins Discrete actions that start at 0, or Boxes of one axis"
        )
    longest = max(boxes, key=lambda space: space.shape[0])
    for space in boxes:
        if any(not np.array_equal(x[: len(y)], y) for x, y in ((longest.low, space.low), (longest.high, space.high))):
            raise ValueError(f"actions differ in their bounds ({_listed(boxes)}): scale them to the same bounds, such as [-1, 1]")
    return longest


def _needs_mask(each: Sequence[tuple[spaces.Space, spaces.Space]], action_space: spaces.Space) -> bool:
    """Return whether observations hold a mask, after checking those that agents have."""
    masked = False
    for agent, (space, own) in enumerate(each):
        if not isinstance(space, spaces.Dict) or MASK_KEY not in space.spaces:
            continue
        if not isinstance(own, spaces.Discrete):
            raise ValueError(f"agent {agent} has an {MASK_KEY}, and its actions are {own}: masks are for Discrete actions")
        if space[MASK_KEY] != spaces.MultiBinary(int(own.n)):
            raise ValueError(f"agent {agent} has the {MASK_KEY} {space[MASK_KEY]}: use MultiBinary({own.n}) for {own}")
        masked = True
    return masked or (isinstance(action_space, spaces.Discrete) and any(own != action_space for _, own in each))


def _mask(xp: Any, obs: PyTree, lead: tuple[int, ...], own: Any, common: Any) -> Array:
    """Return the mask of an agent, i8[..., n], which forbids the actions that only other agents have."""
    mask = obs[MASK_KEY] if isinstance(obs, dict) and MASK_KEY in obs else xp.ones((*lead, int(own.n)), xp.int8)
    return xp.concatenate([xp.asarray(mask, xp.int8), xp.zeros((*lead, int(common.n - own.n)), xp.int8)], -1)


def _rest(space: spaces.Space) -> spaces.Space:
    """Return an observation space without its mask; the entry ``observation`` alone is what it contains."""
    if not isinstance(space, spaces.Dict):
        return space
    parts = {name: part for name, part in space.items() if name != MASK_KEY}
    return parts[OBSERVATION] if {*parts} == {OBSERVATION} else spaces.Dict(parts)


def _without_mask(obs: PyTree) -> PyTree:
    """Return an observation of ``_rest``."""
    if not isinstance(obs, dict):
        return obs
    parts = {name: part for name, part in obs.items() if name != MASK_KEY}
    return parts[OBSERVATION] if {*parts} == {OBSERVATION} else parts


def _leaves(space: spaces.Space) -> Iterator[spaces.Space]:
    """Yield the parts of a space that have a shape, in the order in which trees of arrays list them."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield space
        return
    for part in [space[name] for name in sorted(space)] if isinstance(space, spaces.Dict) else space:
        yield from _leaves(part)


def _padded(part: spaces.Space, space: spaces.Space, agent: int) -> spaces.Box:
    """Return the part of an observation space that is padded, or raise ValueError."""
    if not isinstance(part, spaces.Box):
        raise ValueError(
            f"agent {agent} observes {space}: pad takes a Box, or a Dict of a Box, {OBSERVATION!r}, and an {MASK_KEY!r}, unless "
            "all agents observe equal spaces"
        )
    return part


def _vector(xp: Any, x: Array, space: Any, lead: tuple[int, ...], width: int) -> Array:
    """Return an observation as f32[..., width]. Networks would scale uint8, but not the f32 that they become here."""
    flat = xp.asarray(x, xp.float32).reshape(*lead, -1) / xp.float32(byte_scale(space, space.dtype))
    return xp.concatenate([flat, xp.zeros((*lead, width - flat.shape[-1]), xp.float32)], -1)


def _padded_box(seen: Sequence[spaces.Box], width: int) -> spaces.Box:
    """Return the space of the vectors, with bounds that hold for all agents."""
    low, high = np.zeros((2, len(seen), width), np.float32)
    for i, space in enumerate(seen):
        scale = np.float32(byte_scale(space, space.dtype))
        low[i, : space.low.size], high[i, : space.high.size] = space.low.ravel() / scale, space.high.ravel() / scale
    return spaces.Box(low.min(0), high.max(0), dtype=np.float32)


def _listed(each: Sequence[spaces.Space]) -> str:
    return ", ".join(f"agent {i}: {space}" for i, space in enumerate(each))
