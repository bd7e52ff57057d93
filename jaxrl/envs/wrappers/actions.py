"""Wrappers of actions and of episode length."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.wrappers.base import inside, map_action, wrapper
from jaxrl.rollout.autoreset import zero_actions
from jaxrl.settings.validation import Range, check_count, check_number
from jaxrl.spaces.trees import bounds
from jaxrl.types import Array, Env, Key, PyTree, TimeStep


@wrapper
def scale_action(env: Env, low: float = -1.0, high: float = 1.0) -> Env:
    """Map actions in [low, high], clipped, linearly onto the bounds of the environment's Box, in every dimension."""
    space = env.action_space
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        raise ValueError(f"it needs a Box action space with finite bounds, not {space}")
    for name, value in (("low", low), ("high", high)):
        check_number(name, value)
    if not low < high:
        raise ValueError(f"low={low:g} must be below high={high:g}")
    inner_low, inner_high = bounds(space)

    def onto(action: Array) -> Array:
        share = (jnp.clip(action, low, high) - low) / (high - low)
        return jnp.clip(inner_low * (1.0 - share) + inner_high * share, inner_low, inner_high)  # rounding may exceed the bounds

    return map_action(env, spaces.Box(low, high, space.shape, np.float32), onto)


@wrapper
def clip_action(env: Env) -> Env:
    """Clip actions to the bounds of the environment's Box.

    The new Box is unbounded, so jaxrl's algorithms act in the environment's units and do not map [−1, 1] onto its bounds.
    """
    space = env.action_space
    if not isinstance(space, spaces.Box):
        raise ValueError(f"it needs a Box action space, not {space}")
    low, high = bounds(space)
    return map_action(env, spaces.Box(-np.inf, np.inf, space.shape, np.float32), lambda action: jnp.clip(action, low, high))


class StickyParams(NamedTuple):
    """Parameters of ``sticky_actions``."""

    env: PyTree
    """Parameters of the wrapped environment."""
    probability: Any


class StickyState(NamedTuple):
    """State of ``sticky_actions``."""

    env_state: PyTree
    action: Array
    """The last executed action."""
    begun: Array
    """bool[]: whether this episode has had an action."""


@wrapper
def sticky_actions(env: Env, probability: float = 0.25) -> Env:
    """Repeat the previous action with this probability (Machado et al. 2018, section 5).

    The first action of an episode is always executed. A repeated action may violate the current action mask. ``params`` are
    ``StickyParams``: the probability is data.
    """
    check_number("probability", probability, Range(0, 1))
    no_action = zero_actions(env.action_space, 1)[0]

    def reset(key: Key, params: StickyParams) -> tuple[PyTree, PyTree]:
        env_state, obs = env.reset(key, params.env)
        return StickyState(env_state, jnp.asarray(no_action), jnp.asarray(False)), obs

    def step(key: Key, state: StickyState, action: Array, params: StickyParams) -> tuple[PyTree, TimeStep]:
        stick_key, key = jax.random.split(key)
        sticks = state.begun & (jax.random.uniform(stick_key) < params.probability)
        executed = jnp.where(sticks, state.action, action).astype(no_action.dtype)
        env_state, reached = env.step(key, state.env_state, executed.astype(action.dtype), params.env)
        return StickyState(env_state, executed, jnp.asarray(True)), reached

    def render(state: StickyState, action: Any, params: StickyParams) -> Any:
        assert env.render is not None
        return env.render(state.env_state, None if action is None else state.action, params.env)

    params = StickyParams(env.params, np.float32(probability))
    return env._replace(reset=reset, step=step, params=params, render=render if env.render else None)


@wrapper
def time_limit(env: Env, max_steps: int) -> Env:
    """Truncate episodes after ``max_steps`` steps. A shorter limit of the environment stays in force."""
    max_steps = check_count("max_steps", max_steps)
    return env._replace(max_episode_steps=min(max_steps, env.max_episode_steps or max_steps))


def _number(cost: Array) -> Array:
    """Return a cost that can be summed: of bools or bytes, the sum would not be a number of events."""
    return cost.astype(jnp.float32)


class RepeatState(NamedTuple):
    """State of ``action_repeat``."""

    env_state: PyTree
    elapsed: Array
    """i32[]: steps of the wrapped environment in this episode."""


@wrapper
def action_repeat(env: Env, repeats: int) -> Env:
    """Repeat each action for ``repeats`` steps, or until the episode ends, and sum the rewards, and costs in ``info["cost"]``.

    The observation, the flags and the rest of ``info`` are those of the last step. The episode limit still counts steps of the
    wrapped environment. The result is not a goal environment: a sum of rewards cannot be computed from the achieved goal.
    """
    repeats, limit = check_count("repeats", repeats), env.max_episode_steps

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        env_state, obs = env.reset(key, params)
        return RepeatState(env_state, jnp.zeros((), jnp.int32)), obs

    def step(key: Key, state: RepeatState, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        def once(carry: tuple[RepeatState, TimeStep], key: Key) -> tuple[tuple[RepeatState, TimeStep], None]:
            state, before = carry
            env_state, reached = env.step(key, state.env_state, action, params)
            elapsed = state.elapsed + 1
            # Enforce the limit here: jaxrl counts only the outer steps.
            truncated = reached.truncated if limit is None else reached.truncated | (elapsed >= limit)
            costs = {"cost": before.info["cost"] + _number(reached.info["cost"])} if "cost" in reached.info else {}
            info = {**reached.info, **costs}
            reached = reached._replace(reward=before.reward + reached.reward, truncated=truncated, info=info)
            done, new = before.terminated | before.truncated, (RepeatState(env_state, elapsed), reached)
            return jax.tree.map(lambda old, new: jnp.where(done, old, new), carry, new), None

        _, shapes = jax.eval_shape(env.step, key, state.env_state, action, params)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        if "cost" in empty.info:
            empty = empty._replace(info={**empty.info, "cost": _number(empty.info["cost"])})
        (state, reached), _ = jax.lax.scan(once, (state, empty), jax.random.split(key, repeats))
        return state, reached

    steps = None if limit is None else math.ceil(limit / repeats)
    fps = env.render_fps / repeats
    env = env._replace(max_episode_steps=steps, render=inside(env), render_fps=fps, compute_reward=None)
    return env._replace(reset=reset, step=step)
