"""Environments of brax as pure ``Env``s: true last observations, truncation apart from termination, stable types."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.validate import abstract_key
from jaxrl.envs.ids import EnvId, check_name, check_options, defaults_of, format_id, parse_id
from jaxrl.envs.rendering.brax import figure
from jaxrl.settings.packages import import_package
from jaxrl.spaces.trees import cast_like
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

NAMES = (
    "ant",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_double_pendulum",
    "inverted_pendulum",
    "pusher",
    "reacher",
    "swimmer",
    "walker2d",
)
"""brax's own environments, listed here because importing brax takes seconds. ``fast``, for brax's tests, is left out."""

PHYSICS = ("generalized", "mjx", "positional", "spring")

EPISODE_LENGTH = 1000
"""Default of ``brax.envs.create``."""


def list_names() -> list[str]:
    if importlib.util.find_spec("brax") is None:
        _import_brax("the backend brax")  # raises, and names the pip install
    registered = getattr(sys.modules.get("brax.envs"), "_envs", {})
    return [*NAMES, *sorted({*registered} - {*NAMES, "fast"})]


def make(name: str, options: dict[str, Any]) -> Env:
    """Make a brax environment without brax's wrappers: jaxrl resets and truncates episodes itself.

    Args:
      options: ``backend``, the physics ("generalized", "spring", "positional" or "mjx"; brax chooses by default),
        ``max_episode_steps`` (brax's ``episode_length``, 1,000 by default), and the arguments of the environment's class (such
        as ``ctrl_cost_weight`` of ant). All are static.

    Returns:
      An Env with actions in [−1, 1]. brax's ``done`` is a termination; the limit is a truncation, as in brax's
      ``EpisodeWrapper``. ``TimeStep.info`` holds brax's ``metrics``.
    """
    label = f"brax:{name}"
    _import_brax(label)
    check_name("brax", name, list_names())
    if options.get("backend") not in (None, *PHYSICS):
        raise ValueError(f"{label}: option backend={options['backend']!r} must be one of {', '.join(map(repr, PHYSICS))}")
    arguments = defaults_of(sys.modules["brax.envs"]._envs[name])
    check_options(label, options, {**arguments, "backend": None, "max_episode_steps": EPISODE_LENGTH})
    constructor = {option: value for option, value in options.items() if option != "max_episode_steps"}
    limit = options.get("max_episode_steps", EPISODE_LENGTH)
    return _task(format_id(EnvId("brax", name, constructor)))._replace(max_episode_steps=limit)


@functools.cache
def _task(canonical_id: str) -> Env:
    """Construct an environment and close over it. Cached, so that equal ids share functions and compiled programs."""
    _, name, arguments, _ = parse_id(canonical_id)
    with warnings.catch_warnings(action="ignore"):  # brax warns that it is no longer maintained
        task = sys.modules["brax.envs"].get_environment(name, **arguments)
    draw = figure(canonical_id, task.sys)
    return pure_env(task, lambda env_state: draw(env_state.pipeline_state))


def pure_env(task: Any, draw: Callable[[Any], np.ndarray]) -> Env:
    """Return the environment of a task with brax's functions, which MuJoCo Playground's have, too.

    Args:
      draw: state -> picture.
    """
    like = jax.eval_shape(task.reset, abstract_key())

    # Tasks mix weak types, strong types and Python floats: fix all types here.
    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state = cast_like(task.reset(key), like)
        return state, state.obs

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        env_state = jax.tree.map(lambda x: x, env_state)  # copies the dicts: tasks write into them
        state = cast_like(task.step(env_state, action), like)
        terminated, reward = state.done > 0, state.reward.astype(jnp.float32)
        return state, TimeStep(state.obs, reward, terminated, jnp.zeros_like(terminated), dict(state.metrics))

    def render(env_state: PyTree, action: Any, params: PyTree) -> np.ndarray:
        return draw(env_state)

    observation_space = jax.tree.map(lambda x: spaces.Box(-np.inf, np.inf, x.shape, np.float32), like.obs)
    if not isinstance(observation_space, spaces.Space):
        observation_space = spaces.Dict(observation_space)
    action_space = spaces.Box(-1.0, 1.0, (task.action_size,), np.float32)
    fps = round(1 / float(task.dt), 3)
    return Env(reset, step, observation_space, action_space, render=render, render_fps=fps)


def _import_brax(needed_by: str) -> None:
    """Import brax, which prints and warns about missing optional packages on import. That output is suppressed."""
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        import_package("brax", needed_by, extra="brax")
        import_package("brax.envs", needed_by)
