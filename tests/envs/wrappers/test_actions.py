"""Wrappers of actions and of time against plain Python on a small game, across terminations and truncations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs.wrappers import (
    StickyParams,
    action_repeat,
    clip_action,
    scale_action,
    sticky_actions,
    time_limit,
)
from tests.helpers.clocks import ACTIONS, Ends, Game, assert_rows, clock, play


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


@pytest.mark.parametrize("cost", [True, np.int8(100)])
def test_costs_of_any_type_are_summed_over_repeats(cost: Any) -> None:
    inner = clock(100)

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        state, reached = inner.step(key, state, action, params)
        return state, reached._replace(info={"cost": jnp.asarray(cost)})

    _, outcome = play(action_repeat(inner._replace(step=step), 3), ACTIONS[:1])
    np.testing.assert_array_equal(outcome.info["cost"], np.full_like(outcome.info["cost"], 3 * float(cost)))
    assert outcome.info["cost"].dtype == np.float32


@pytest.mark.parametrize(("end", "limit"), [(100, 4), (3, 4), (4, 4)])
def test_episodes_are_cut(end: int, limit: int) -> None:
    env = time_limit(clock(end), limit)
    assert_rows(env, Game(end), ACTIONS, limit)
    assert time_limit(env, 9).max_episode_steps == 4 and time_limit(env, 2).max_episode_steps == 2
