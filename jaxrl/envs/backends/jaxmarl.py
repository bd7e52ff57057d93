"""Environments of JaxMARL as pure ``Env``s of several agents: equal spaces, masks, and time limits apart from terminations."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict
from gymnasium import spaces

from jaxrl.envs.checks.validate import abstract_key
from jaxrl.envs.host import error_text, narrow
from jaxrl.envs.ids import check_known, check_name, check_option, defaults_of, smallest, takes_any
from jaxrl.envs.teams import Padding, padding_of
from jaxrl.settings.aliases import nearest
from jaxrl.settings.packages import import_package
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import PRIVILEGED_KEY, as_entries, entries_of
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.spaces.trees import cast_like
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

MPE = (
    *("adversary_v3", "crypto_v3", "facmac_3a_v1", "facmac_6a_v1", "facmac_9a_v1", "facmac_v1", "push_v3", "reference_v3"),
    *("speaker_listener_v4", "spread_v3", "tag_v3", "v3", "world_comm_v3"),
)
MABRAX = ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9%7C8", "walker2d_2x3")
OTHERS = ("HeuristicEnemySMAX", "SMAX", "coin_game", "hanabi", "jaxnav", "overcooked", "overcooked_v2", "switch_riddle")
NAMES = (*(f"MPE_simple_{name}" for name in MPE), *MABRAX, *OTHERS)
"""Registered names of environments that can be made, listed here because importing jaxmarl takes seconds. In an id, %7C is |."""

OURS: dict[str, Any] = {"agent_id": None, "world_state": False}
"""Options that jaxrl adds to every environment, with defaults."""

TABLES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "scenario": ("jaxmarl.environments.smax.smax_env", "MAP_NAME_TO_SCENARIO", lambda scenario: scenario),
    "layout": ("jaxmarl.environments.overcooked", "overcooked_layouts", FrozenDict),
}
"""Options whose values have names, such as "2s3z" and "forced_coord": option -> module, its table, and conversion."""

NO_LIMIT = 2**30

SHOWS_TIME = ("Overcooked", "OvercookedV2", "JaxNav")
"""Classes whose observations depend on ``max_steps``, which therefore must not be changed."""


def list_names() -> list[str]:
    if importlib.util.find_spec("jaxmarl") is None:
        _import("the backend jaxmarl")  # raises, and names the pip install
    return sorted(NAMES)


def family(name: str) -> str:
    """Return the family of an environment, MPE, SMAX, MABrax or others."""
    if name in MABRAX:
        return "MABrax"
    return "MPE" if name.startswith("MPE_") else "SMAX" if name.endswith("SMAX") else "others"


def make(name: str, options: dict[str, Any]) -> Env:
    """Make an environment of JaxMARL (Rutherford et al. 2024) without its automatic resets.

    Args:
      options: arguments of the environment's class that are plain data, all static; a name for its ``scenario`` (SMAX) or
        ``layout`` (Overcooked); and those of ``OURS``. ``agent_id``: add the number of an agent to its observation;
        by default only if the agents have unequal spaces, which are then padded (``jaxrl.envs.teams.pad``). ``world_state``: add
        the result of ``get_world_state`` as ``privileged_state``.

    Returns:
      An Env with ``num_agents``, in the order of the environment's ``agents``, and an ``action_mask`` where it knows the actions
      that are available. Its ``done`` is a termination, but ``max_steps`` a truncation, after exactly that number of rows: MPE's
      episodes have 25, as PettingZoo's, and not the 26 of JaxMARL.

    Raises:
      ValueError: the environment or an option does not exist, or spaces are not supported.
    """
    label = f"jaxmarl:{name}"
    package = _import(label)
    check_name("jaxmarl", name, list_names())
    task = _built(label, package.make, name, {})
    arguments = _arguments(task)
    plain = {option for option, default in arguments.items() if isinstance(default, bool | int | float | str)}
    check_known(label, options, {*plain, *OURS, *({*TABLES} & {*arguments})} - {"auto_reset", "env_name"})
    for option, value in options.items():
        default = OURS.get(option, arguments.get(option))
        check_option(label, option, value, default, at_least=smallest(default))
    if options.get("agent_id") not in (None, True, False):
        raise ValueError(f"{label}: option agent_id={options['agent_id']!r} must be True or False")
    own = {option: _looked_up(label, option, value) for option, value in options.items() if option not in OURS}
    if "auto_reset" in arguments:
        own["auto_reset"] = False
    ours = {**OURS, **{option: value for option, value in options.items() if option in OURS}}
    return team_of(label, _built(label, package.make, name, own) if own else task, **ours)


def _looked_up(label: str, option: str, value: Any) -> Any:
    """Return the scenario or the layout of a name, and any other value itself."""
    if option not in TABLES or not isinstance(value, str):
        return value
    module, name, convert = TABLES[option]
    table = getattr(importlib.import_module(module), name)
    if value not in table:
        raise ValueError(
            f"{label}: {option}={value!r} does not exist.{nearest(value, table)} There are: {', '.join(sorted(table))}"
        )
    return convert(table[value])


def _built(label: str, build: Callable[..., Any], name: str, options: Mapping[str, Any]) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # MABrax warns about brax
            return build(name.replace("%7C", "|"), **options)
    except ImportError as error:
        raise ModuleNotFoundError(f"{label} cannot be built here: {error}") from error
    except Exception as error:
        raise ValueError(f"jaxmarl cannot build {label} with the options {dict(options)}: {error_text(error)}") from error


def _arguments(task: Any) -> dict[str, Any]:
    """Return the arguments of an environment's class, and of those to which it passes further ones, with their defaults."""
    found: dict[str, Any] = {}
    for kind in (type(task), type(getattr(task, "_env", task))):
        for constructor in [vars(each)["__init__"] for each in inspect.getmro(kind) if "__init__" in vars(each)]:
            found = {**defaults_of(constructor), **found}
            if not takes_any(constructor):
                break
    return {name: default for name, default in found.items() if name != "self"}


def team_of(label: str, task: Any, *, agent_id: bool | None = None, world_state: bool = False) -> Env:
    """Return the Env of a ``MultiAgentEnv``.

    Args:
      label: name for errors.
    """
    limit, hides = _limit(task)
    shape = jax.eval_shape(task.reset, abstract_key())
    team, like = Agents(label, task, shape, agent_id, world_state), shape[1]

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = task.reset(key)
        return cast_like(state, like), team.observe(obs, state)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        obs, state, rewards, dones, _ = task.step_env(key, env_state, team.actions(action))
        state = cast_like(state, like)
        reward = jnp.stack([jnp.asarray(rewards[agent], jnp.float32).reshape(()) for agent in team.names])
        done = jnp.stack([jnp.asarray(dones.get(agent, False), bool).reshape(()) for agent in team.names])
        done = done | jnp.asarray(dones["__all__"], bool).reshape(())
        cut = jnp.zeros((), bool)
        if hides:
            cut = state.step >= limit
        elif "truncation" in getattr(state, "info", ()):  # of MABrax
            cut = state.info["truncation"] > 0
        return state, TimeStep(team.observe(obs, state), reward, done & ~cut, done & cut)

    return Env(
        reset,
        step,
        team.observation_space,
        team.action_space,
        name=label,
        max_episode_steps=limit,
        num_agents=len(team.names),
    )


def _limit(task: Any) -> tuple[int | None, bool]:
    """Return ``max_steps``, which is raised in the environment, and True if it is not, since observations show it."""
    limit = getattr(task, "max_steps", None)
    if limit is None or type(task).__name__ in SHOWS_TIME:
        return limit, limit is not None
    for part in (task, getattr(task, "_env", None)):
        if "max_steps" in getattr(part, "__dict__", ()):
            part.max_steps = NO_LIMIT  # type: ignore[union-attr]
    return int(limit), False


class Agents:
    """Conversion between dicts of agents and arrays with an axis of agents."""

    def __init__(self, label: str, task: Any, shape: Any, agent_id: bool | None, world_state: bool) -> None:
        self.names, self._task = tuple(task.agents), task
        seen = [_space(label, agent, task.observation_space(agent), shape[0][agent].shape) for agent in self.names]
        taken = [_space(label, agent, task.action_space(agent)) for agent in self.names]
        self._mask = _mask_function(task, shape[1], self.names, taken)
        if self._mask is not None:
            seen = [
                spaces.Dict({OBSERVATION: space, MASK_KEY: spaces.MultiBinary(int(action.n))})  # type: ignore[attr-defined]
                for space, action in zip(seen, taken, strict=True)
            ]
        equal = all(space == spaces_[0] for spaces_ in (seen, taken) for space in spaces_)
        self._seen, self._padding = seen, None
        self.observation_space, self.action_space = seen[0], taken[0]
        if not equal or agent_id:
            padding = self._padding = _padding(label, self.names, seen, taken, not equal if agent_id is None else agent_id)
            self.observation_space, self.action_space = padding.observation_space, padding.action_space
        self._world = world_state
        if world_state:
            self._add_world(label, shape[1])

    def _add_world(self, label: str, state: PyTree) -> None:
        try:
            world = jax.eval_shape(self._world_state, state)
        except (AttributeError, NotImplementedError):
            raise ValueError(
                f"{label} has no get_world_state: leave world_state out, or use the wrapper |central_state"
            ) from None
        privileged = spaces.Box(-np.inf, np.inf, world.shape[1:], np.float32)
        self.observation_space = spaces.Dict({**entries_of(self.observation_space), PRIVILEGED_KEY: privileged})

    def _world_state(self, state: PyTree) -> Array:
        """Return the state of the world for each agent, f32[A, ...]."""
        world = jnp.asarray(self._task.get_world_state(state), jnp.float32)
        of_each = world.ndim > 1 and len(world) == len(self.names)
        return world if of_each else jnp.broadcast_to(world, (len(self.names), *world.shape))

    def observe(self, obs: Mapping[str, Array], state: PyTree) -> PyTree:
        each: list[Any] = []
        masks = None if self._mask is None else self._mask(state)
        for agent, space in zip(self.names, self._seen, strict=True):
            if masks is None:
                each.append(jnp.asarray(obs[agent], _dtype(space)))
            else:
                part = jnp.asarray(obs[agent], _dtype(space[OBSERVATION]))  # type: ignore[index]
                each.append({OBSERVATION: part, MASK_KEY: jnp.asarray(masks[agent], jnp.int8)})
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *each) if self._padding is None else self._padding.observations(each)
        if not self._world:
            return stacked
        return {**as_entries(stacked), PRIVILEGED_KEY: self._world_state(state)}

    def actions(self, action: Array) -> dict[str, Array]:
        each = [action[k] for k in range(len(self.names))] if self._padding is None else self._padding.actions(action)
        return dict(zip(self.names, each, strict=True))


def _padding(label: str, names: Any, seen: Any, taken: Any, agent_id: bool) -> Padding:
    try:
        return padding_of(seen, taken, agent_id=agent_id)
    except ValueError as error:
        raise ValueError(f"{label}, whose agents are {', '.join(map(repr, names))}: {error}") from None


def _mask_function(task: Any, state: PyTree, names: Any, taken: Any) -> Callable[[PyTree], Mapping[str, Array]] | None:
    """Return the function that gives the masks of available actions; None without one, or without discrete actions."""
    for method in ("get_avail_actions", "get_legal_moves"):
        function = getattr(task, method, None)
        if function is None or not all(isinstance(space, spaces.Discrete) for space in taken):
            continue
        try:
            masks = jax.eval_shape(function, state)
        except NotImplementedError:
            continue
        if all(masks[agent].shape == (space.n,) for agent, space in zip(names, taken, strict=True)):
            return function
    return None


def _dtype(space: spaces.Space) -> Any:
    return jax.dtypes.canonicalize_dtype(space.dtype)


def _space(label: str, agent: str, space: Any, shape: tuple[int, ...] | None = None) -> spaces.Space:
    """Convert a space of JaxMARL to one of Gymnasium. Some declare another shape than that of the observations, ``shape``."""
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.num_categories))
    if kind != "Box":
        raise ValueError(f"{label}: agent {agent!r} has a space {kind}, but jaxrl supports Box, Discrete and MultiDiscrete of it")
    shape = tuple(np.atleast_1d(space.shape).tolist()) if shape is None else shape
    dtype = narrow(np.dtype(space.dtype))
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), shape) for bound in (space.low, space.high))
    if dtype.kind in "iu":
        low, high = (np.clip(bound, np.iinfo(dtype).min, np.iinfo(dtype).max) for bound in (low, high))
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


def _import(needed_by: str) -> Any:
    """Import jaxmarl, which prints and warns on import, and sets the streams anew."""
    streams: Any = sys
    kept = sys.stdout, sys.stderr, sys.__stdout__
    try:
        streams.stdout = streams.__stdout__ = io.StringIO()
        with warnings.catch_warnings(action="ignore"):
            return import_package("jaxmarl", needed_by, extra="jaxmarl")
    finally:
        streams.stdout, streams.stderr, streams.__stdout__ = kept
