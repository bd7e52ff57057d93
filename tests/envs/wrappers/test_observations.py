"""Wrappers of observations against plain Python on a small game, across terminations and truncations."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import make_env
from jaxrl.envs.wrappers import (
    flatten_observation,
    frame_stack,
    privileged_state,
    select_observation,
    time_aware,
    time_limit,
)
from jaxrl.models.torso import leaves
from jaxrl.types import Env, TimeStep
from tests.helpers.clocks import ACTIONS, Game, assert_rows, clock


class Stacked(Game):
    frames: deque[list[float]]

    def reset(self) -> list[float]:
        first = super().reset()
        self.frames = deque([first] * 3, maxlen=3)
        return [x for frame in self.frames for x in frame]

    def step(self, action: float) -> Any:
        obs, *rest = super().step(action)
        self.frames.append(obs)
        return [x for frame in self.frames for x in frame], *rest


@pytest.mark.parametrize(("end", "cut"), [(6, 100), (100, 5)])
def test_frames_are_stacked_within_an_episode(end: int, cut: int) -> None:
    env = frame_stack(clock(end, cut), 3)
    assert env.observation_space.shape == (9,)
    assert_rows(env, Stacked(end, cut), ACTIONS)


def with_observations(space: spaces.Space, values: list[Any]) -> Env:
    """Environment with observations of ``space`` from a list, the first one from reset."""

    def at(time: Any) -> Any:
        return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(each) for each in x])[time], *values)

    def reset(key: Any, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), at(0)

    def step(key: Any, time: Any, action: Any, params: Any) -> Any:
        return time + 1, TimeStep(at(time + 1), jnp.float32(0), jnp.asarray(False), jnp.asarray(False))

    return Env(reset, step, space, spaces.Discrete(2))


def observed(env: Env, steps: int) -> list[Any]:
    """Return the observations of one episode. Assert that each is in the space."""
    state, obs = env.reset(jax.random.key(0), env.params)
    seen = [obs]
    for _ in range(steps):
        state, reached = env.step(jax.random.key(0), state, jnp.int32(0), env.params)
        seen.append(reached.obs)
    for obs in seen:
        widened = jax.tree.map(np.asarray, obs)
        assert env.observation_space.contains(widened) or isinstance(env.observation_space, spaces.MultiDiscrete), widened
    return seen


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.Box(0, 255, (4, 3, 2), np.uint8), (4, 3, 6)),
        (spaces.Box(-1, 1, (4, 3), np.float32), (4, 3, 3)),
        (spaces.MultiBinary(2), (6,)),
        (spaces.MultiDiscrete([3, 4]), (6,)),
        (spaces.Discrete(5, start=2), (3,)),
    ],
)
def test_frames_are_joined_along_channels(space: spaces.Space, shape: tuple[int, ...]) -> None:
    space.seed(0)
    values = [np.asarray(space.sample()) for _ in range(5)]
    env = frame_stack(with_observations(space, values), 3)
    assert env.observation_space.shape == shape
    as_channels = [x[..., None] if x.ndim in (0, 2) else x for x in [values[0]] * 2 + values]
    for t, seen in enumerate(observed(env, 4)):
        np.testing.assert_array_equal(seen, np.concatenate(as_channels[t : t + 3], -1))
        assert np.all(seen >= bounds_of(env.observation_space)[0]) and np.all(seen <= bounds_of(env.observation_space)[1])
        assert seen.dtype == jax.dtypes.canonicalize_dtype(space.dtype)


def bounds_of(space: Any) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    return (0, 1) if isinstance(space, spaces.MultiBinary) else (space.start, space.start + space.nvec - 1)


PARTS = spaces.Dict(
    {
        "place": spaces.Discrete(3, start=1),
        "photo": spaces.Box(0, 255, (1, 2), np.uint8),
        "speed": spaces.Box(-4, 5, (2,), np.float32),
        "action_mask": spaces.MultiBinary(2),
    }
)


def parts(place: int, photo: list[int], speed: list[float], mask: list[int]) -> dict[str, Any]:
    return {
        "place": np.int32(place),
        "photo": np.array([photo], np.uint8),
        "speed": np.array(speed, np.float32),
        "action_mask": np.array(mask, np.int8),
    }


SEEN = [parts(3, [0, 255], [-4, 2], [1, 1]), parts(1, [51, 0], [0, 5], [0, 1])]


def test_parts_are_for_critics_alone() -> None:
    speeds = privileged_state(with_observations(spaces.Box(-4, 5, (3,), np.float32), [np.float32([1, 2, 3])] * 2), 2, 0)
    first, _ = observed(speeds, 1)
    np.testing.assert_array_equal(first["observation"], [2])
    np.testing.assert_array_equal(first["privileged_state"], [3, 1])
    entries = privileged_state(with_observations(PARTS, SEEN), "speed", "place")
    first, _ = observed(entries, 1)
    assert {*first} == {"photo", "action_mask", "privileged_state"} and {*first["privileged_state"]} == {"speed", "place"}
    np.testing.assert_array_equal(first["privileged_state"]["speed"], [-4, 2])
    paths = [[path for path, _ in leaves(entries.observation_space, privileged=seen)] for seen in (False, True)]
    assert paths[0] == [("photo",)]
    assert paths[1] == [("photo",), ("privileged_state", "place"), ("privileged_state", "speed")]


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ((), "must name the parts to hide, each once, from 0 to 2"),
        ((3,), "from 0 to 2, not 3"),
        ((1, 1), "each once, from 0 to 2, not 1"),
        ((0, 1, 2), "it hides all that there is to see"),
    ],
)
def test_parts_that_cannot_be_hidden(hidden: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        privileged_state(with_observations(spaces.Box(-4, 5, (3,), np.float32), [np.float32([1, 2, 3])] * 2), *hidden)


def test_a_state_is_hidden_once() -> None:
    once = privileged_state(with_observations(PARTS, SEEN), "speed")
    with pytest.raises(ValueError, match="its observations have a 'privileged_state' already"):
        privileged_state(once, "place")


def test_observations_are_flattened() -> None:
    env = flatten_observation(with_observations(PARTS, SEEN))  # in the order of names, as gymnasium sorts them
    first, second = observed(env, 1)
    np.testing.assert_allclose(first["obs"], [0, 1, 0, 0, 1, -4, 2])
    np.testing.assert_allclose(second["obs"], [0.2, 0, 1, 0, 0, 0, 5])
    np.testing.assert_array_equal(second["action_mask"], [0, 1])
    flat = env.observation_space["obs"]  # type: ignore[index]
    np.testing.assert_array_equal(flat.low, [0, 0, 0, 0, 0, -4, -4])
    np.testing.assert_array_equal(flat.high, [1, 1, 1, 1, 1, 5, 5])
    pair = spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (1, 2), np.float32)])
    env = flatten_observation(with_observations(pair, [(np.array([1, 2], np.int32), np.array([[0.5, -0.5]], np.float32))]))
    np.testing.assert_allclose(observed(env, 0)[0], [0, 1, 0, 0, 1, 0.5, -0.5])


def test_a_mask_alone_is_nothing_to_flatten() -> None:
    mask = spaces.Dict({"action_mask": spaces.MultiBinary(2)})
    with pytest.raises(ValueError, match=r"flatten_observation cannot wrap custom: .* nothing for a network to see"):
        flatten_observation(with_observations(mask, [{"action_mask": np.ones(2, np.int8)}]))


def test_frames_of_a_dict_leave_the_mask() -> None:
    env = frame_stack(with_observations(PARTS, SEEN), 2)
    state, _ = env.reset(jax.random.key(0), env.params)
    second = env.step(jax.random.key(0), state, jnp.int32(0), env.params)[1].obs
    np.testing.assert_array_equal(second["speed"], [-4, 2, 0, 5])
    np.testing.assert_array_equal(second["photo"], [[[0, 51], [255, 0]]])
    np.testing.assert_array_equal(second["place"], [3, 1])
    np.testing.assert_array_equal(second["action_mask"], [0, 1])


class Chosen(Game):
    def reset(self) -> Any:
        obs = super().reset()
        return [obs[2], obs[0]]

    def step(self, action: float) -> Any:
        obs, *rest = super().step(action)
        return [obs[2], obs[0]], *rest


def test_parts_of_an_observation_are_hidden() -> None:
    assert_rows(select_observation(clock(6), 2, 0), Chosen(6), ACTIONS)
    env = select_observation(with_observations(PARTS, SEEN), "speed")
    assert set(env.observation_space) == {"speed", "action_mask"}  # type: ignore[call-overload]
    np.testing.assert_array_equal(observed(env, 1)[1]["speed"], [0, 5])
    space = make_env("CartPole-v1|select_observation(0,2)").observation_space
    np.testing.assert_array_equal(space.low, make_env("CartPole-v1").observation_space.low[[0, 2]])  # type: ignore[attr-defined]


class Timed(Game):
    def reset(self) -> Any:
        return [*super().reset(), 0]

    def step(self, action: float) -> Any:
        obs, *rest = super().step(action)
        return [*obs, self.time / 5], *rest


@pytest.mark.parametrize("end", [3, 100])
def test_the_time_is_told(end: int) -> None:
    env = time_aware(time_limit(clock(end), 5))
    assert env.max_episode_steps == 5
    assert_rows(env, Timed(end), ACTIONS, limit=5)
    timed = time_aware(time_limit(with_observations(PARTS, SEEN * 2), 4))
    assert [float(obs["time"][0]) for obs in observed(timed, 3)] == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize(("high", "scale"), [(255, 255), (4, 4)])
def test_bytes_are_scaled_where_the_time_makes_floats_of_them(high: int, scale: int) -> None:
    """As networks and ``flatten_observation`` scale uint8."""
    space = spaces.Box(0, high, (2,), np.uint8)
    bytes_seen = time_limit(with_observations(space, [np.array([0, high], np.uint8), np.array([1, 2], np.uint8)]), 2)
    timed = time_aware(bytes_seen)
    np.testing.assert_allclose(observed(timed, 1), np.float32([[0, 1, 0], [1 / scale, 2 / scale, 0.5]]))
    assert timed.observation_space == spaces.Box(0, 1, (3,), np.float32)
    np.testing.assert_array_equal(observed(timed, 1)[1][:2], observed(flatten_observation(bytes_seen), 1)[1])


def test_the_time_is_one_at_the_smaller_of_two_limits() -> None:
    env = time_aware(time_limit(with_observations(PARTS, SEEN * 2)._replace(params=Limited(2)), 4))
    assert [float(obs["time"][0]) for obs in observed(env, 2)] == [0.0, 0.5, 1.0]


class Limited(NamedTuple):
    max_steps_in_episode: int
