"""What all wrappers share: their names and calls in ids, and maps of what is seen and of what is done."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.envs.ids import Call, format_call
from jaxrl.settings.aliases import nearest
from jaxrl.spaces.goals import has_goals
from jaxrl.types import Array, Env, HostEnv, Key, PyTree, RenderFn, TimeStep

WRAPPERS: dict[str, Callable[..., Env]] = {}
"""Those that ids may name."""

ON_HOST = {
    "frame_stack": "stack_num=4 (Atari, VizDoom) or frame_stack=4 (MuJoCo)",
    "action_repeat": "frame_skip=4 (Atari, VizDoom, MuJoCo)",
    "sticky_actions": "repeat_action_probability=0.25 (Atari)",
    "time_limit": "max_episode_steps=200 (all)",
}
"""Options of envpool's that do what a wrapper does."""

_MADE: dict[str, tuple[Env, Env]] = {}
"""By name: what was wrapped last, and what came of it."""


def wrapper(function: Callable[..., Env]) -> Callable[..., Env]:
    """Of a function ``(env, ...) -> env``: it can stand in ids, which name what it returns, and refuses host environments.

    As with ``make_env``, the same environment and arguments give the same object, and so the same compiled programs.
    """

    @functools.wraps(function)
    def wrapped(env: Env, /, *args: Any, **keywords: Any) -> Env:
        call = bind_call(Call(function.__name__, args, keywords))
        if isinstance(env, HostEnv):
            instead = "; ".join(f"for {name}: {option}" for name, option in ON_HOST.items())
            raise ValueError(
                f"{call.name} wraps pure environments, and {env.name} runs on the host. Those have options of their own instead, "
                f"after a '?', where they take them: of envpool, {instead}. There are none for other wrappers. What wraps one of "
                "gymnasium's is a function of yours that returns the whole, as in gymnasium:module:function"
            )
        if not isinstance(env, Env):
            raise TypeError(f"{call.name} wraps a jaxrl.Env, such as make_env('CartPole-v1') gives, not {type(env).__name__}")
        name = f"{env.name}|{format_call(call)}"
        before, made = _MADE.get(name, (None, env))
        if before is not env:
            try:
                made = function(env, *call.args)._replace(name=name)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{format_call(call)} cannot wrap {env.name}: {error}") from error
            _MADE[name] = env, made
        return made

    WRAPPERS[function.__name__] = wrapped
    return wrapped


def bind_call(call: Call) -> Call:
    """A wrapper's call with all of its arguments in their order, defaults too.

    Raises:
      ValueError: there is no such wrapper, or it takes other arguments.
    """
    if call.name not in WRAPPERS:
        raise ValueError(
            f"unknown wrapper {call.name!r}.{nearest(call.name, WRAPPERS)} Wrappers: {', '.join(map(usage, WRAPPERS))}."
        )
    signature = inspect.signature(WRAPPERS[call.name])
    for name in call.keywords:
        if name not in list(signature.parameters)[1:]:
            raise ValueError(f"wrapper {call.name} has no argument {name!r}; it is written {usage(call.name)}")
    try:
        bound = signature.bind(None, *call.args, **call.keywords)
    except TypeError as error:
        raise ValueError(f"wrapper {call.name}: {error}; it is written {usage(call.name)}") from None
    bound.apply_defaults()
    return Call(call.name, bound.args[1:])


def wrap(env: Env | HostEnv, call: Call) -> Env:
    """What a wrapper in an id makes of ``env``."""
    return WRAPPERS[call.name](env, *call.args, **call.keywords)


def usage(name: str) -> str:
    """How a wrapper is written in an id: ``sticky_actions(probability=0.25)``."""
    _, *parameters = inspect.signature(WRAPPERS[name]).parameters.values()
    return name + (
        f"({', '.join(str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)})" if parameters else ""
    )


# ------------------------------------------------------------------------------------------------------------ parts of wrappers


def map_observation(env: Env, space: spaces.Space, function: Callable[[PyTree], PyTree]) -> Env:
    """What is seen changes, and nothing else. Without an entry of ``GOAL_KEYS`` it is no goal environment any more."""

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        env_state, obs = env.reset(key, params)
        return env_state, function(obs)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        env_state, reached = env.step(key, env_state, action, params)
        return env_state, reached._replace(obs=function(reached.obs))

    compute_reward = env.compute_reward if has_goals(space) else None
    return env._replace(reset=reset, step=step, observation_space=space, compute_reward=compute_reward)


def map_action(env: Env, space: spaces.Space, function: Callable[[Array], Array]) -> Env:
    """What is executed changes, and nothing else."""

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        return env.step(key, env_state, function(action), params)

    def render(env_state: PyTree, action: Any, params: PyTree) -> Any:
        assert env.render is not None
        return env.render(env_state, None if action is None else np.asarray(function(action)), params)

    return env._replace(step=step, action_space=space, render=render if env.render else None)


def inside(env: Env) -> RenderFn | None:
    """Draws what a wrapper's state holds as ``env_state``."""
    render = env.render
    return None if render is None else lambda state, action, params: render(state.env_state, action, params)
