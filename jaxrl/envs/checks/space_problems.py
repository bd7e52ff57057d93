"""Problems of an environment's spaces: kinds, types, masks, players, and entries whose names have a meaning."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.envs.host import parts_of
from jaxrl.rollout.autoreset import zero_actions
from jaxrl.spaces.action_masks import MASK_KEY, choices, nothing_allowed
from jaxrl.spaces.entries import PLAYER_KEY, RESERVED
from jaxrl.spaces.trees import zeros
from jaxrl.types import Env, HostEnv, PyTree

OBSERVATIONS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)
ACTIONS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)


def space_problems(space_name: str, space: Any, supported: tuple[type, ...]) -> list[str]:
    """Return the problems of a space's kind, dtype and start, and those of its parts."""
    if not isinstance(space, supported):
        names = ", ".join(kind.__name__ for kind in supported)
        return [f"{space_name} is {space!r}: use one of gymnasium.spaces' {names}"]
    if isinstance(space, spaces.Dict | spaces.Tuple):
        labelled = [(f"{space_name}[{name!r}]", part) for name, part in parts_of(space)]
        return [problem for label, part in labelled for problem in space_problems(label, part, supported)]
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        if dtype.itemsize > 4 or dtype.kind not in "fiub":
            return [f"{space_name} has dtype {dtype}; JAX computes in 32 bits: use Box(..., dtype=np.float32) or a smaller type"]
        if space_name == "action_space" and dtype.kind != "f":
            return [f"action_space is a Box of {dtype}: use Discrete or MultiDiscrete for integers, or a Box of np.float32"]
    if space_name == "action_space" and isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        return [f"action_space starts at {space.start}; jaxrl counts actions from 0: leave `start` out, and add it inside step"]
    return []


def nested_name_problems(space: Any, label: str = "observation_space") -> list[str]:
    """Return the problem of each reserved name inside an entry, where it has no meaning but would be hidden from networks."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return []
    inner = [(f"{label}[{name!r}]", part) for name, part in parts_of(space)]
    problems = [
        f"{part_label} has an entry {name!r}, which networks do not see and which has a meaning in observation_space only: "
        "move the entry there, or rename it"
        for part_label, part in inner
        if isinstance(part, spaces.Dict)
        for name in RESERVED
        if name in part.spaces
    ]
    return problems + [problem for part_label, part in inner for problem in nested_name_problems(part, part_label)]


def mask_problems(env: Env | HostEnv) -> list[str]:
    """Return the problem of a mask that does not fit the action space. Only a custom model may use it."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or MASK_KEY not in space.spaces:
        return []
    mask = abstract(space[MASK_KEY])
    if mask is None or choices({MASK_KEY: jax.tree.map(lambda x: np.zeros(x.shape), mask)}, env.action_space):
        return []
    return [
        f"observation_space[{MASK_KEY!r}] is {space[MASK_KEY]}, and action_space {env.action_space}: a mask has one entry for "
        "each action, MultiBinary(n) for Discrete(n); for MultiDiscrete MultiBinary(sum(nvec)), or a Tuple of one per dimension"
    ]


def player_problems(env: Env | HostEnv) -> list[str]:
    """Check that a game says whose move it is, and that nothing else does; see ``Env.players``."""
    space, players = env.observation_space, env.players
    if isinstance(players, bool) or players not in (1, 2):
        return [f"players={players!r} must be 1, or 2 for a game of two players who take turns"]
    found = space.spaces.get(PLAYER_KEY) if isinstance(space, spaces.Dict) else None
    if players == 2 and env.num_agents:
        return [f"players=2 with num_agents={env.num_agents}: a game has one lane for both players, so leave num_agents out"]
    if players == 2 and found != spaces.Discrete(2):
        return [
            f"players=2 needs observations that say whose move it is, and observation_space is {space}: use a Dict with "
            f"{PLAYER_KEY!r}: Discrete(2)"
        ]
    if players == 1 and found is not None:
        return [f"observation_space has {PLAYER_KEY!r}, which is for games of two players: set players=2, or rename the entry"]
    return []


def choice_problems(when: str, obs: PyTree, action_space: spaces.Space, ended: Any = False) -> list[str]:
    """Return the problem of observations [...] whose mask forbids every action although the episode has not ended."""
    none_allowed = nothing_allowed(obs, action_space)
    if none_allowed is None or not np.any(np.asarray(none_allowed) & ~np.asarray(ended)):
        return []
    return [f"{MASK_KEY} forbids every action {when}: allow one in each dimension, or terminate the episode there"]


def abstract_action(space: spaces.Space, num_agents: int = 0) -> Any:
    """Return the shape and dtype of an action as jaxrl passes it, int32 or float32, as ``abstract`` does."""
    action: Any = abstract(space, num_agents)
    return jax.ShapeDtypeStruct(action.shape, zero_actions(space, 1).dtype) if hasattr(action, "shape") else action


def abstract(space: spaces.Space, num_agents: int = 0) -> PyTree | None:
    """Return shapes and dtypes of a value of ``space`` in JAX, of each agent's if there are several; None if the space is not
    supported."""
    try:
        return jax.eval_shape(lambda: zeros(space, (num_agents,) * (num_agents > 0)))
    except (AttributeError, TypeError):
        return None
