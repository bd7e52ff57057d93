"""Wrappers of observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.host import parts_of
from jaxrl.envs.step_limits import step_limit
from jaxrl.envs.wrappers.base import inside, map_observation, wrapper
from jaxrl.settings.validation import check_count
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import PLAYER_KEY, PRIVILEGED_KEY, RESERVED, byte_scale, has_privileged_state
from jaxrl.spaces.goals import ACHIEVED, DESIRED, OBSERVATION
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, Env, Key, PyTree, TimeStep


def _box(low: Any, high: Any) -> spaces.Box:
    """Make a Box with the dtype of its bounds."""
    return spaces.Box(low, high, dtype=low.dtype.type)


@wrapper
def flatten_observation(env: Env) -> Env:
    """Flatten observations to a vector f32[n]: Discrete one-hot, uint8 scaled to [0, 1], Dict and Tuple concatenated.

    A Dict's ``action_mask``, ``privileged_state`` and ``player`` are left unchanged: the observation is then ``{"obs": f32[n],
    …}``.
    """
    from jaxrl.models.encoders import encode_space  # brings flax

    space: Any = env.observation_space
    kept = [name for name in RESERVED if isinstance(space, spaces.Dict) and name in space.spaces]
    flat: spaces.Space = flat_box(space)
    if kept:
        flat = spaces.Dict({"obs": flat, **{name: space[name] for name in kept}})

    def flatten(obs: PyTree) -> PyTree:
        vector = encode_space(space, obs)
        return {"obs": vector, **{name: obs[name] for name in kept}} if kept else vector

    return map_observation(env, flat, flatten)


def flat_box(space: spaces.Space) -> spaces.Box:
    """Return the space of the vectors that ``encode_space`` makes of a space's values. Raise ValueError if nothing is left."""
    from jaxrl.models.encoders import encode_space  # brings flax

    def size_of(space: spaces.Space) -> int:
        return int(jax.eval_shape(lambda: encode_space(space, zeros(space))).shape[0])

    size_of(space)  # raises if the mask is the only entry
    return _box(*_flat_bounds(space, size_of))


def _flat_bounds(space: spaces.Space, size_of: Callable[[spaces.Space], int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and high bounds of a value of ``space`` as flattened by ``encode_space``."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [_flat_bounds(part, size_of) for name, part in parts_of(space) if name not in RESERVED]
        low, high = (np.concatenate(side) for side in zip(*parts, strict=True))
        return low, high
    if isinstance(space, spaces.Box):
        scale = np.float32(byte_scale(space, space.dtype))
        return space.low.ravel().astype(np.float32) / scale, space.high.ravel().astype(np.float32) / scale
    size = size_of(space)
    return np.zeros(size, np.float32), np.ones(size, np.float32)


@wrapper
def select_observation(env: Env, *keep: int | str) -> Env:
    """Keep only some elements of a vector, or some entries of a Dict, which can make a task need memory.

    ``"CartPole-v1|select_observation(0, 2)"`` is CartPole without its velocities.

    Args:
      keep: indices of the vector, from 0, in output order; or names of Dict entries. ``action_mask``, ``privileged_state`` and
        ``player`` are always kept.
    """
    _check_parts(env, keep, "keep")
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        entries = {name: part for name, part in space.items() if name in (*keep, *RESERVED)}
        return map_observation(env, spaces.Dict(entries), lambda obs: {name: obs[name] for name in entries})
    assert isinstance(space, spaces.Box)
    chosen = np.array(keep)
    return map_observation(env, _box(space.low[chosen], space.high[chosen]), lambda obs: obs[chosen])


@wrapper
def privileged_state(env: Env, *hidden: int | str) -> Env:
    """Move some elements of a vector, or some entries of a Dict, to ``privileged_state``, which only critics may see.

    ``"CartPole-v1|privileged_state(1, 3)"`` is CartPole whose policy does not see velocities. What is left of a vector becomes
    the entry ``observation``. Networks ignore the state unless their critic is asked to see it (``critic="privileged"``).

    Args:
      hidden: indices of the vector, from 0; or names of Dict entries. At least one part must be left.
    """
    parts, space = _check_parts(env, hidden, "hide"), env.observation_space
    if len(hidden) == len(parts):
        raise ValueError("it hides all that there is to see: leave at least one part to the policy")
    if isinstance(space, spaces.Dict):
        if has_privileged_state(space):
            raise ValueError(f"its observations have a {PRIVILEGED_KEY!r} already")

        def split(entries: Any) -> dict[str, Any]:
            kept, moved = ({name: entries[name] for name in space if (name in hidden) == moves} for moves in (False, True))
            return {**kept, PRIVILEGED_KEY: spaces.Dict(moved) if entries is space else moved}

        return map_observation(env, spaces.Dict(split(space)), split)
    assert isinstance(space, spaces.Box)
    seen, state = np.array([i for i in parts if i not in hidden]), np.array(hidden)
    both = spaces.Dict(
        {OBSERVATION: _box(space.low[seen], space.high[seen]), PRIVILEGED_KEY: _box(space.low[state], space.high[state])}
    )
    return map_observation(env, both, lambda obs: {OBSERVATION: obs[seen], PRIVILEGED_KEY: obs[state]})


def _check_parts(env: Env, chosen: tuple[int | str, ...], verb: str) -> list[Any]:
    """Return the indices of a vector or the names of a Dict's entries, without reserved ones. Raise ValueError unless ``chosen``
    are some of them, each once."""
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        known: list[Any] = [name for name in space if name not in RESERVED]
        allowed = ", ".join(map(repr, known))
    elif isinstance(space, spaces.Box) and len(space.shape) == 1:
        known, allowed = list(range(space.shape[0])), f"0 to {space.shape[0] - 1}"
    else:
        raise ValueError(f"it {verb}s parts of a vector or of a Dict, but the observation space is {space}")
    wrong = [each for each in chosen if isinstance(each, bool | float) or each not in known or chosen.count(each) > 1]
    if wrong or not chosen:
        raise ValueError(f"it must name the parts to {verb}, each once, from {allowed}{f', not {wrong[0]!r}' if wrong else ''}")
    return known


class FrameStackState(NamedTuple):
    """State of ``frame_stack``."""

    env_state: PyTree
    frames: PyTree
    """The last observations, concatenated."""


@wrapper
def frame_stack(env: Env, num_frames: int) -> Env:
    """Stack the last observations, the newest last (Mnih et al. 2015). An episode starts with copies of the first one.

    They are concatenated along the last axis, the channels of a board or an image: [10, 10, 4] becomes [10, 10, 4·num_frames].
    A board without channels gets them: [10, 5] becomes [10, 5, num_frames]. A vector stays a vector: [3] becomes
    [3·num_frames]. In a Dict each entry is stacked, except ``action_mask``, ``player`` and the goals of a goal environment. A
    replay buffer stores stacked observations, so each frame ``num_frames`` times.
    """
    num_frames, space = check_count("num_frames", num_frames), env.observation_space
    entries = {*space.spaces} if isinstance(space, spaces.Dict) else set()
    single = entries & {MASK_KEY, PLAYER_KEY, *((ACHIEVED, DESIRED) if env.compute_reward is not None else ())}

    def changing(obs: PyTree) -> PyTree:
        return {name: x for name, x in obs.items() if name not in single} if single else obs

    def shown(frames: PyTree, obs: PyTree) -> PyTree:
        return {**frames, **{name: obs[name] for name in single}} if single else frames

    def push(frames: Array, x: Array) -> Array:
        x = _with_channels(x)
        return jnp.concatenate([frames[..., x.shape[-1] :], x], -1)

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        env_state, obs = env.reset(key, params)
        frames = jax.tree.map(lambda x: _tiled(x, num_frames, jnp), changing(obs))
        return FrameStackState(env_state, frames), shown(frames, obs)

    def step(key: Key, state: FrameStackState, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        env_state, reached = env.step(key, state.env_state, action, params)
        frames = jax.tree.map(push, state.frames, changing(reached.obs))
        return FrameStackState(env_state, frames), reached._replace(obs=shown(frames, reached.obs))

    stacked = _stacked(space, num_frames)
    if single:
        stacked = spaces.Dict({**stacked, **{name: space[name] for name in single}})  # type: ignore[dict-item, index]
    return env._replace(reset=reset, step=step, observation_space=stacked, render=inside(env))


def _with_channels(x: Any) -> Any:
    return x[..., None] if x.ndim in (0, 2) else x


def _tiled(x: Any, times: int, numpy: Any = np) -> Any:
    return numpy.concatenate([_with_channels(x)] * times, -1)


def _stacked(space: spaces.Space, times: int) -> spaces.Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _stacked(part, times) for name, part in space.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_stacked(part, times) for part in space])
    if isinstance(space, spaces.Box):
        return _box(_tiled(space.low, times), _tiled(space.high, times))
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(_tiled(np.zeros(space.shape), times).shape)
    sizes = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)  # type: ignore[attr-defined]
    return spaces.MultiDiscrete(_tiled(sizes, times), start=_tiled(np.asarray(space.start), times))  # type: ignore[attr-defined]


class TimeState(NamedTuple):
    """State of ``time_aware``."""

    env_state: PyTree
    elapsed: Array
    """i32[]: steps in this episode."""


@wrapper
def time_aware(env: Env) -> Env:
    """Add the elapsed share of the step limit to observations: 0 at the start of an episode, 1 at the limit.

    The limit is ``max_episode_steps``, or one in ``params`` if that is smaller. If it is part of the task, a value function needs
    the time to be correct (Pardo et al. 2018, section 3). A vector gets one more element, f32[n + 1], and its uint8 are scaled to
    [0, 1], as by ``flatten_observation``; a Dict gets the entry ``time``, f32[1].
    """
    space, limit, scale = env.observation_space, step_limit(env), 1.0
    if env.max_episode_steps is None or limit is None:
        steps = limit or 200
        raise ValueError(f"it needs an episode limit: put a time limit before it, '{env.name}|time_limit({steps})|time_aware'")
    timed: spaces.Space
    if isinstance(space, spaces.Dict) and "time" not in space.spaces:
        timed = spaces.Dict({**space, "time": spaces.Box(0.0, 1.0, (1,))})
    elif isinstance(space, spaces.Box) and len(space.shape) == 1:
        scale = byte_scale(space, space.dtype)  # networks would scale uint8, but not the f32 that they become here
        timed = _box(*(np.array([*side / scale, end], np.float32) for side, end in ((space.low, 0), (space.high, 1))))
    else:
        raise ValueError(
            f"it adds the time to a vector, or to a Dict without an entry 'time', but the observation space is {space}: put "
            "flatten_observation before it"
        )

    def tell(obs: PyTree, elapsed: Array) -> PyTree:
        time = (elapsed / limit).astype(jnp.float32)[None]
        return {**obs, "time": time} if isinstance(space, spaces.Dict) else jnp.concatenate([jnp.float32(obs) / scale, time])

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        env_state, obs = env.reset(key, params)
        elapsed = jnp.zeros((), jnp.int32)
        return TimeState(env_state, elapsed), tell(obs, elapsed)

    def step(key: Key, state: TimeState, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        env_state, reached = env.step(key, state.env_state, action, params)
        # jaxrl enforces the limit; a caller that steps the environment directly may exceed it.
        elapsed = jnp.minimum(state.elapsed + 1, limit)
        return TimeState(env_state, elapsed), reached._replace(obs=tell(reached.obs, elapsed))

    return env._replace(reset=reset, step=step, observation_space=timed, render=inside(env))
