"""Wrappers against plain Python on a small game, across terminations and truncations; their syntax in ids; invalid arguments."""

from __future__ import annotations

import json
import re
import string
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.envs import check_env, describe_env, make_env
from jaxrl.envs.ids import Call, EnvId, format_id, parse_id
from jaxrl.envs.wrappers import (
    WRAPPERS,
    StickyParams,
    action_repeat,
    clip_action,
    flatten_observation,
    frame_stack,
    privileged_state,
    scale_action,
    select_observation,
    sticky_actions,
    time_aware,
    time_limit,
    usage,
)
from jaxrl.models.torso import leaves
from jaxrl.rollout.autoreset import StepOutcome, first_input, no_episode
from jaxrl.rollout.collect import advance
from jaxrl.rollout.env_batches import reset_envs
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.search.sweep import read_sweep
from jaxrl.types import ActorState, Env, TimeStep
from tests.helpers.agents import assert_bit_equal, small_ppo

NUM_ENVS = 2


class Ends(NamedTuple):
    """Times at which an episode of ``clock`` terminates and is truncated."""

    end: Any = 7
    cut: Any = 100


def clock(end: int = 7, cut: int = 100, bound: float = 8.0) -> Env:
    """Environment that observes (the time, the previous action, their product), with the time plus the action as reward."""

    def seen(time: Any, action: Any) -> Any:
        return jnp.stack([time.astype(jnp.float32), action, time * action])

    def reset(key: Any, params: Ends) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(3)

    def step(key: Any, time: Any, action: Any, params: Ends) -> Any:
        time, done = time + 1, jnp.asarray(time + 1 >= params.end)
        reward = time + action[0]
        return time, TimeStep(seen(time, action[0]), reward, done, jnp.asarray(time >= params.cut), {"time": time})

    def render(time: Any, action: Any, params: Ends) -> Any:
        pixel = [int(time), 0 if action is None else int(action[0]), int(params.end)]
        return np.array([[pixel]], np.uint8)

    line = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    push = spaces.Box(-bound, bound, (1,), np.float32)
    return Env(reset, step, line, push, Ends(end, cut), render=render, render_fps=12)


class Game:
    """``clock`` in plain Python."""

    def __init__(self, end: int = 7, cut: int = 100) -> None:
        self.end, self.cut = end, cut

    def reset(self) -> list[float]:
        self.time = 0
        return [0, 0, 0]

    def step(self, action: float) -> tuple[list[float], float, bool, bool]:
        self.time += 1
        seen = [self.time, action, self.time * action]
        return seen, self.time + action, self.time >= self.end, self.time >= self.cut


def play(env: Env, actions: Any, params: Any = None) -> tuple[Any, StepOutcome]:
    """Return ``(obs [T + 1, B], outcome [T, B])`` of rows as in a rollout. All environments get the same actions [T]."""
    params, env_id = env.params if params is None else params, jnp.arange(NUM_ENVS)
    keys = jax.random.split(jax.random.key(0), len(actions) + 1)

    def row(actor: ActorState, action_and_key: Any) -> Any:
        action, key = action_and_key
        after, outcome = advance(env, actor, (), action, params, env_id, key, jax.random.fold_in(key, 1))
        return after, (actor.input.obs, outcome)

    @jax.jit
    def rows(actions: Any) -> Any:
        env_state, obs = reset_envs(env, keys[-1], env_id, params)
        first = first_input(obs, env.action_space, NUM_ENVS)
        actor = ActorState(env_state, first, (), jnp.zeros(NUM_ENVS, bool), no_episode(NUM_ENVS, jnp))
        last, (obs, outcome) = jax.lax.scan(row, actor, (actions, keys[:-1]))
        return jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), obs, last.input.obs), outcome

    batch = np.broadcast_to(np.asarray(actions, np.float32)[:, None, None], (len(actions), NUM_ENVS, 1))
    return jax.tree.map(np.asarray, rows(batch))


def expected(game: Any, actions: Any, limit: int | None = None) -> tuple[np.ndarray, ...]:
    """Return observations [T + 1], and rewards, flags and validity [T], of NEXT_STEP rows."""
    seen, rows, done, length = [game.reset()], [], False, 0
    for action in actions:
        if done:
            seen.append(game.reset())
            rows.append((0, False, False, False))
            done, length = False, 0
            continue
        obs, reward, terminated, truncated = game.step(action)
        length += 1
        truncated = (truncated or length == limit) and not terminated
        done = terminated or truncated
        seen.append(obs)
        rows.append((reward, terminated, truncated, True))
    return np.array(seen, np.float32), *map(np.array, zip(*rows, strict=True))


def assert_rows(env: Env, game: Any, actions: Any, limit: int | None = None) -> None:
    obs, outcome = play(env, actions)
    seen, *rows = expected(game, actions, limit)
    assert not all(rows[-1]) and (rows[1].any() or rows[2].any())  # some episode ended, and another one began
    for i in range(NUM_ENVS):
        np.testing.assert_allclose(obs[:, i], seen, rtol=1e-6)
        for got, want in zip((outcome.reward, outcome.terminated, outcome.truncated, outcome.valid), rows, strict=True):
            np.testing.assert_allclose(got[:, i], want, rtol=1e-6)


ACTIONS = np.array([1, -2, 3, 0, 5, -1, 2, 4, -3, 1, 2, 7, 0, 1, -5, 2, 1, 3, -2, 6], np.float32)


# ---------------------------------------------------------------------------------------------------------------- observations


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


# --------------------------------------------------------------------------------------------------------------------- actions


class Acting(Game):
    def __init__(self, change: Callable[[float], float], **ends: int) -> None:
        super().__init__(**ends)
        self.change = change

    def step(self, action: float) -> Any:
        return super().step(self.change(action))


def test_actions_are_scaled() -> None:
    env = scale_action(clock(5), -2.0, 6.0)
    assert env.action_space == spaces.Box(-2.0, 6.0, (1,), np.float32)
    assert_rows(env, Acting(lambda a: float(np.interp(a, [-2, 6], [-8, 8])), end=5), ACTIONS)
    assert scale_action(clock()).action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_actions_are_clipped() -> None:
    env = clip_action(clock(5, bound=2.5))
    assert env.action_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert_rows(env, Acting(lambda a: min(max(a, -2.5), 2.5), end=5), ACTIONS)


class Sticky(Game):
    """Executes the first action of an episode forever."""

    def reset(self) -> Any:
        self.first: float | None = None
        return super().reset()

    def step(self, action: float) -> Any:
        self.first = action if self.first is None else self.first
        return super().step(self.first)


def test_actions_stick() -> None:
    assert_rows(sticky_actions(clock(5), 1.0), Sticky(5), ACTIONS)
    never = sticky_actions(clock(5), 0.0)
    assert_rows(never, Game(5), ACTIONS)
    params = StickyParams(Ends(), np.array([0.0, 1.0], np.float32))  # one per environment
    obs, _ = play(never, ACTIONS[:7], params)
    np.testing.assert_array_equal(obs[1:, 0, 1], ACTIONS[:7])
    np.testing.assert_array_equal(obs[1:, 1, 1], ACTIONS[0])


def test_actions_stick_as_often_as_asked() -> None:
    actions = np.arange(1, 2001)
    obs, _ = play(sticky_actions(clock(10_000, 10_000), 0.25), actions)
    executed = obs[1:, :, 1]
    stuck = executed != actions[:, None]
    np.testing.assert_array_equal(executed[1:][stuck[1:]], executed[:-1][stuck[1:]])
    assert not stuck[0].any() and abs(stuck.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / stuck.size)
    assert (stuck[:, 0] != stuck[:, 1]).any()


# ------------------------------------------------------------------------------------------------------------------------ time


class Repeated(Game):
    def __init__(self, repeats: int, limit: int | None = None, **ends: int) -> None:
        super().__init__(**ends)
        self.repeats, self.limit = repeats, limit

    def step(self, action: float) -> Any:
        total = 0.0
        for _ in range(self.repeats):
            obs, reward, terminated, truncated = super().step(action)
            total, truncated = total + reward, truncated or self.time == self.limit
            if terminated or truncated:
                break
        return obs, total, terminated, truncated


@pytest.mark.parametrize(
    ("repeats", "limit", "end", "cut"),
    [(3, None, 7, 100), (3, None, 6, 100), (2, None, 100, 5), (3, 7, 100, 100), (3, 6, 100, 100), (4, 10, 9, 100)],
)
def test_actions_are_repeated_until_the_end(repeats: int, limit: int | None, end: int, cut: int) -> None:
    inner = clock(end, cut) if limit is None else time_limit(clock(end, cut), limit)
    env = action_repeat(inner, repeats)
    assert env.max_episode_steps == (None if limit is None else -(-limit // repeats))
    assert_rows(env, Repeated(repeats, limit, end=end, cut=cut), ACTIONS)


def test_repeats_tell_what_the_last_step_told() -> None:
    _, outcome = play(action_repeat(clock(7), 3), ACTIONS[:3])
    np.testing.assert_array_equal(outcome.info["time"], [[3, 3], [6, 6], [7, 7]])


@pytest.mark.parametrize(("end", "limit"), [(100, 4), (3, 4), (4, 4)])
def test_episodes_are_cut(end: int, limit: int) -> None:
    env = time_limit(clock(end), limit)
    assert_rows(env, Game(end), ACTIONS, limit)
    assert time_limit(env, 9).max_episode_steps == 4 and time_limit(env, 2).max_episode_steps == 2


# ------------------------------------------------------------------------------------------------------------------- contracts

IDS = [
    "tests.envs.wrappers.test_wrappers:clock|frame_stack(3)|flatten_observation|time_limit(9)|time_aware",
    "tests.envs.wrappers.test_wrappers:clock|select_observation(1)|scale_action|sticky_actions",
    "tests.envs.wrappers.test_wrappers:clock?end=5|time_limit(4)|clip_action|action_repeat(3)|frame_stack(2)",
    "CartPole-v1?gravity=5.0|select_observation(0,2)|action_repeat(2)|sticky_actions(0.5)",
    "CartPole-v1|privileged_state(1,3)|frame_stack(2)",
    "Catch-bsuite|sticky_actions|frame_stack(2)|action_repeat(2)|time_limit(3)",
]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_they_keep_the_contract(env_id: str) -> None:
    env = make_env(env_id)
    check_env(env, steps=20)
    assert make_env(env.name) is env and describe_env(env) == env.name
    assert make_env(jaxrl.make_ppo(env_id).spec["env"]) is env and jaxrl.make_ppo(env).spec["env"] == env.name


OTHERS = ("agent_id", "central_state", "select_observation", "privileged_state", "time_limit")  # two are for several agents


@pytest.mark.parametrize("by", [call for call in WRAPPERS if call not in OTHERS])
def test_pictures_are_of_what_is_inside(by: str) -> None:
    arguments = {"frame_stack": (2,), "action_repeat": (2,), "sticky_actions": (0.0,)}
    env = WRAPPERS[by](time_limit(clock(7), 20), *arguments.get(by, ()))
    state, _ = env.reset(jax.random.key(0), env.params)
    action = np.array([0.5], np.float32)
    after, _ = env.step(jax.random.key(1), state, jnp.asarray(action), env.params)
    assert env.render is not None
    executed = {"scale_action": 4}.get(by, 0)
    assert env.render(state, None, env.params).tolist() == [[[0, 0, 7]]]
    assert env.render(after, action, env.params).tolist() == [[[2 if by == "action_repeat" else 1, executed, 7]]]
    assert env.render_fps == (6 if by == "action_repeat" else 12)
    assert WRAPPERS[by](time_limit(clock(7)._replace(render=None), 20), *arguments.get(by, ())).render is None


def test_pictures_show_the_action_that_stuck() -> None:
    env = sticky_actions(clock(), 1.0)
    state, _ = env.reset(jax.random.key(0), env.params)
    for action in (3.0, 5.0):
        state, _ = env.step(jax.random.key(0), state, jnp.array([action]), env.params)
    assert env.render is not None and env.render(state, np.array([5.0]), env.params)[0, 0, 1] == 3


def test_the_same_arguments_give_the_same_environment() -> None:
    env = make_env("CartPole-v1")
    assert isinstance(env, Env)
    stacked = frame_stack(env, num_frames=np.int64(4))  # type: ignore[arg-type]
    assert (
        stacked is make_env("CartPole-v1| frame_stack( num_frames = 4 )") and stacked.name == "gymnax:CartPole-v1|frame_stack(4)"
    )
    assert describe_env(time_limit(stacked, 9)) == "gymnax:CartPole-v1|frame_stack(4)|time_limit(9)"
    other = env._replace(params=env.params.replace(gravity=np.float32(1)))
    assert frame_stack(other, 4).params.gravity == 1 and describe_env(frame_stack(other, 4)) is None
    assert frame_stack(clock(), 4).name == "custom|frame_stack(4)"


# ------------------------------------------------------------------------------------------------------------------------- ids

names = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6).filter(str.isidentifier)
literals = st.integers() | st.floats(allow_nan=False) | st.text(max_size=6) | st.none() | st.booleans() | st.tuples(st.integers())


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.builds(Call, names, st.lists(literals, max_size=3).map(tuple), st.dictionaries(names, literals, max_size=2))))
def test_ids_with_wrappers_read_back_as_written(calls: list[Call]) -> None:
    try:
        [compile(f"{call.name}({','.join(f'{key}=0' for key in call.keywords)})", "", "eval") for call in calls]
    except SyntaxError:
        return  # a Python keyword
    env_id = EnvId("gymnax", "X", {"text": "a|b"}, tuple(calls))
    assert parse_id(format_id(env_id)) == env_id


def test_words_and_options_in_ids() -> None:
    assert parse_id("X?a=1|select_observation(speed, 'a b')|f(x=2)") == EnvId(
        "gymnax", "X", {"a": 1}, (Call("select_observation", ("speed", "a b")), Call("f", (), {"x": 2}))
    )
    env = make_env("CartPole-v1|time_limit(9)", gravity=3.0)
    assert env.name == "gymnax:CartPole-v1?gravity=3.0|time_limit(9)"
    assert make_env("Pendulum-v1|scale_action").name == "gymnax:Pendulum-v1|scale_action(-1.0,1.0)"


CARTPOLE, PENDULUM = "CartPole-v1|", "Pendulum-v1|"


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        (CARTPOLE, "'' is not a wrapper; after '|' write its name and arguments, as in time_limit(200)"),
        (CARTPOLE + "frame_stack(4", "'frame_stack(4' is not a wrapper"),
        (CARTPOLE + "frame_stack(*4)", "is not a wrapper"),
        (CARTPOLE + "frame_stack(2+__import__('os'))", "is not a wrapper"),
        (CARTPOLE + "a.frame_stack(2)", "is not a wrapper"),
        (CARTPOLE + "time_limit(200)?gravity=5", "is not a wrapper; …: options come before the first '|'"),
        ("CartPole-v1?gravity='a|b'", "a '|' that is part of a value is written %7C"),
        (CARTPOLE + "frame_stac(4)", "unknown wrapper 'frame_stac'. Did you mean 'frame_stack'? Wrappers: …sticky_actions("),
        (CARTPOLE + "frame_stack", "wrapper frame_stack: missing … 'num_frames'; write frame_stack(num_frames)"),
        (CARTPOLE + "frame_stack(n=4)", "wrapper frame_stack has no argument 'n'; write frame_stack(num_frames)"),
        (CARTPOLE + "frame_stack(env=4)", "wrapper frame_stack has no argument 'env'"),
        (CARTPOLE + "frame_stack(4, 5)", "wrapper frame_stack: too many …; write frame_stack(num_frames)"),
        (CARTPOLE + "frame_stack(4, num_frames=5)", "wrapper frame_stack: multiple values for argument 'num_frames'"),
        (CARTPOLE + "frame_stack(n)", "frame_stack('n') cannot wrap gymnax:CartPole-v1: num_frames='n' must be an integer >= 1"),
        (CARTPOLE + "frame_stack(0)", "num_frames=0 must be an integer >= 1"),
        (CARTPOLE + "action_repeat(1.5)", "repeats=1.5 must be an integer >= 1"),
        (CARTPOLE + "time_limit(-1)", "max_steps=-1 must be an integer >= 1"),
        (CARTPOLE + "sticky_actions(1.5)", "probability=1.5 is not allowed: it must be a number in [0, 1]"),
        (CARTPOLE + "sticky_actions('often')", "probability='often' must be a number in [0, 1]"),
        (CARTPOLE + "time_aware", "it needs an episode limit: … 'gymnax:CartPole-v1|time_limit(500)|time_aware'"),
        ("Catch-bsuite|time_limit(9)|time_aware", "the observation space is Box…: put flatten_observation before it"),
        (CARTPOLE + "scale_action", "it needs a Box action space with finite bounds, not Discrete(2)"),
        (PENDULUM + "clip_action|scale_action", "it needs a Box action space with finite bounds, not Box(-inf, inf"),
        (PENDULUM + "scale_action(1, -1)", "low=1 must be below high=-1"),
        (PENDULUM + "scale_action(high=1e999)", "high=inf is not allowed: it must be a finite number"),
        (PENDULUM + "scale_action(None)", "low=None must be a finite number"),
        (CARTPOLE + "clip_action", "it needs a Box action space, not Discrete(2)"),
        (CARTPOLE + "select_observation", "it must name the parts to keep, each once, from 0 to 3"),
        (CARTPOLE + "select_observation(0, 4)", "each once, from 0 to 3, not 4"),
        (CARTPOLE + "select_observation(0, -1)", "from 0 to 3, not -1"),
        (CARTPOLE + "select_observation(0, 0)", "each once, … not 0"),
        (CARTPOLE + "select_observation(True)", "not True"),
        (CARTPOLE + "select_observation((0, 2))", "not (0, 2)"),
        ("Catch-bsuite|select_observation(0)", "it keeps parts of a vector or of a Dict, but the observation space is Box"),
        ("CartPol-v1|time_limit(9)", "no environment 'CartPol-v1'. Did you mean 'CartPole-v1'"),
        ("envpool:Pong-v5|frame_stack(4)", "envpool:Pong-v5 runs on the host…for frame_stack: stack_num=4 (Atari"),
        ("envpool:CartPole-v1|time_limit(9)", "runs on the host…for time_limit: max_episode_steps=200 (all)"),
        (
            "gymnasium:CartPole-v1|frame_stack(4)",
            "…write a function that returns it wrapped, and name the function: gymnasium:module",
        ),
    ],
)
def test_bad_input_is_refused(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=".*".join(map(re.escape, message.split("…")))):
        make_env(env_id)


def test_only_environments_are_wrapped() -> None:
    with pytest.raises(TypeError, match=r"frame_stack wraps a jaxrl.Env, such as make_env\('CartPole-v1'\), not str"):
        frame_stack("CartPole-v1", 4)  # type: ignore[arg-type]


def test_usage_is_what_an_id_takes() -> None:
    assert [usage(name) for name in ("time_aware", "time_limit", "scale_action", "select_observation")] == [
        "time_aware",
        "time_limit(max_steps)",
        "scale_action(low=-1.0, high=1.0)",
        "select_observation(*keep)",
    ]


@pytest.mark.slow
def test_wrapped_environments_start_no_backend() -> None:
    """An agent can be built on any machine: nothing may be computed before a run begins."""
    from tests.helpers.fresh_python import in_fresh_python

    ids = [f"gymnax:CartPole-v1|{each}" for each in ("flatten_observation|sticky_actions", "time_limit(9)|time_aware")]
    code = f"import jaxrl.envs as e\nfor each in {ids}: e.validate_env(e.make_env(each + '|frame_stack(2)|action_repeat(2)'))\n"
    assert in_fresh_python(code + "from jaxrl.xla.private_jax import backends_started\nresult = backends_started()") is False


@pytest.mark.slow
def test_ppo_learns_from_a_wrapped_environment_and_is_built_again() -> None:
    agent = small_ppo("CartPole-v1|select_observation(0, 2)|frame_stack(2)|time_limit(12)|time_aware|sticky_actions(0.1)")
    assert agent.env.observation_space.shape == (5,)
    step = jax.jit(agent.step)
    state, metrics = step(agent.init(jax.random.key(0)))
    for _ in range(3):
        state, metrics = step(state)
    longest = max(float(metrics["charts/episodic_length"].sum), 0.0)  # type: ignore[union-attr]
    assert np.isfinite(float(metrics["losses/value_loss"].sum)) and longest <= 12 * agent.num_envs  # type: ignore[union-attr]
    again = jaxrl.build(agent.spec)
    assert again.env is agent.env
    assert_bit_equal(again.init(jax.random.key(0)), agent.init(jax.random.key(0)))


@pytest.mark.slow
def test_the_command_line_trains_and_resumes_by_id(tmp_path: Path) -> None:
    env_id, folder = "CartPole-v1|select_observation(0,2)|time_limit(3)", tmp_path / "run"
    sizes = ["--num-envs=2", "--rollout-length=4", "--num-epochs=1", "--num-minibatches=1", "--eval-every=0", "--total-steps=8"]
    assert main(["train", "ppo", "--env", env_id, *sizes, "--out", str(folder)]) == 0
    assert main(["train", "--resume", str(folder), "--total-steps", "16"]) == 0
    assert json.loads((folder / "config.json").read_text())["agent"]["env"] == env_id
    assert jaxrl.load_policy(str(folder), which="last")(np.zeros(2, np.float32)) in (0, 1)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(f'algorithm = "ppo"\nenv = "{env_id}"\ntotal_steps = 64\n[grid]\ngamma = [0.9, 0.99]\n')
    assert read_sweep(sweep).env == env_id
