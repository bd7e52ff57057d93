"""Base of all wrappers: their names and calls in ids, and maps over observations and actions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.envs.ids import Call, format_call
from jaxrl.settings.aliases import nearest
from jaxrl.spaces.goals import OBSERVATION, has_goals
from jaxrl.types import Array, Env, HostEnv, Key, PyTree, RenderFn, TimeStep

WRAPPERS: dict[str, Callable[..., Env]] = {}
"""Wrappers that ids may name."""

ON_HOST = {
    "frame_stack": "stack_num=4 (Atari, VizDoom) or frame_stack=4 (MuJoCo)",
    "action_repeat": "frame_skip=4 (Atari, VizDoom, MuJoCo)",
    "sticky_actions": "repeat_action_probability=0.25 (Atari)",
    "time_limit": "max_episode_steps=200 (all)",
}
"""Options of envpool that replace a wrapper."""

FOR_AGENTS = {"agent_id", "central_state", "flatten_observation", "select_observation", "privileged_state", "time_limit"}
"""Wrappers that also take environments of several agents."""

FOR_ONE_PLAYER = {"action_repeat", "sticky_actions"}
"""Wrappers that repeat an action, which in a game of two players would be the other's next move."""

_MADE: dict[str, tuple[Env, Env]] = {}
"""By the name of the result: the last wrapped environment, and the result."""


def wrapper(function: Callable[..., Env]) -> Callable[..., Env]:
    """Register a function ``(env, ...) -> env`` for use in ids. The result is named by its id; host environments are refused.

    As with ``make_env``, the same environment and arguments give the same object, and so share compiled programs.
    """

    @functools.wraps(function)
    def wrapped(env: Env, /, *args: Any, **keywords: Any) -> Env:
        call = bind_call(Call(function.__name__, args, keywords))
        if isinstance(env, HostEnv):
            instead = "; ".join(f"for {name}: {option}" for name, option in ON_HOST.items())
            raise ValueError(
                f"{call.name} wraps pure environments, but {env.name} runs on the host. Some of envpool's environments take an "
                f"option after a '?' instead: {instead}. Other wrappers have no such option. For a Gymnasium environment, "
                "write a function that returns it wrapped, and name the function: gymnasium:module:function"
            )
        if not isinstance(env, Env):
            raise TypeError(f"{call.name} wraps a jaxrl.Env, such as make_env('CartPole-v1'), not {type(env).__name__}")
        if env.num_agents and call.name not in FOR_AGENTS:
            raise ValueError(
                f"{call.name} wraps environments of one agent, and {env.name} has {env.num_agents}: use one of "
                f"{', '.join(sorted(FOR_AGENTS))}"
            )
        if env.players == 2 and call.name in FOR_ONE_PLAYER:
            raise ValueError(
                f"{call.name} repeats actions, and {env.name} is a game of two players, where the next move is the other's: "
                "leave it out"
            )
        name = f"{env.name}|{format_call(call)}"
        last_env, wrapped_env = _MADE.get(name, (None, env))
        if last_env is not env:
            try:
                wrapped_env = function(env, *call.args)._replace(name=name)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{format_call(call)} cannot wrap {env.name}: {error}") from error
            _MADE[name] = env, wrapped_env
        return wrapped_env

    WRAPPERS[function.__name__] = wrapped
    return wrapped


def bind_call(call: Call) -> Call:
    """Return a wrapper's call, checked, with all arguments in positional order, defaults included."""
    if call.name not in WRAPPERS:
        raise ValueError(
            f"unknown wrapper {call.name!r}.{nearest(call.name, WRAPPERS)} Wrappers: {', '.join(map(usage, WRAPPERS))}."
        )
    signature = inspect.signature(WRAPPERS[call.name])
    for name in call.keywords:
        if name not in list(signature.parameters)[1:]:
            raise ValueError(f"wrapper {call.name} has no argument {name!r}; write {usage(call.name)}")
    try:
        bound = signature.bind(None, *call.args, **call.keywords)
    except TypeError as error:
        raise ValueError(f"wrapper {call.name}: {error}; write {usage(call.name)}") from None
    bound.apply_defaults()
    return Call(call.name, bound.args[1:])


def wrap(env: Env | HostEnv, call: Call) -> Env:
    """Apply a wrapper from an id to ``env``."""
    return WRAPPERS[call.name](env, *call.args, **call.keywords)


def usage(name: str) -> str:
    """Return a wrapper as written in an id: ``sticky_actions(probability=0.25)``."""
    _, *parameters = inspect.signature(WRAPPERS[name]).parameters.values()
    shown = ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)
    return f"{name}({shown})" if parameters else name


def map_observation(env: Env, space: spaces.Space, function: Callable[[PyTree], PyTree]) -> Env:
    """Map observations only, each agent's by itself. If ``space`` lacks an entry of ``GOAL_KEYS``, the result is not a goal
    environment."""
    return map_observations(env, space, jax.vmap(function) if env.num_agents else function)


def map_observations(env: Env, space: spaces.Space, function: Callable[[PyTree], PyTree]) -> Env:
    """Map observations as the environment returns them, of several agents those of all."""

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        env_state, obs = env.reset(key, params)
        return env_state, function(obs)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        env_state, reached = env.step(key, env_state, action, params)
        return env_state, reached._replace(obs=function(reached.obs))

    compute_reward = env.compute_reward if has_goals(space) else None
    symmetries = env.symmetries if isinstance(space, spaces.Dict) and OBSERVATION in space.spaces else None
    changed: dict[str, Any] = {"observation_space": space, "compute_reward": compute_reward, "symmetries": symmetries}
    return env._replace(reset=reset, step=step, **changed)


def map_action(env: Env, space: spaces.Space, function: Callable[[Array], Array]) -> Env:
    """Map actions only."""

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        return env.step(key, env_state, function(action), params)

    def render(env_state: PyTree, action: Any, params: PyTree) -> Any:
        assert env.render is not None
        return env.render(env_state, None if action is None else np.asarray(function(action)), params)

    return env._replace(step=step, action_space=space, render=render if env.render else None)


def inside(env: Env) -> RenderFn | None:
    """Return a render function for the environment whose state the wrapper keeps as ``env_state``."""
    render = env.render
    return None if render is None else lambda state, action, params: render(state.env_state, action, params)
