"""The number of steps after which an episode ends at the latest."""

from __future__ import annotations

import numpy as np
import pytest

import jaxrl
from jaxrl.envs import make_env
from jaxrl.envs.step_limits import step_limit
from jaxrl.types import Env


@pytest.mark.parametrize(
    ("env_id", "limit"),
    [
        ("CartPole-v1", 500),
        ("CartPole-v1|time_limit(7)", 7),
        ("CartPole-v1?max_steps_in_episode=5|time_limit(10)", 5),
        ("CartPole-v1|sticky_actions(0.25)", 500),
        ("CartPole-v1|sticky_actions(0.25)|sticky_actions(0.5)|time_limit(600)", 500),
        ("jaxrl:Reach", 50),
        ("gymnasium:CartPole-v1", 500),
        ("gymnasium:tests.helpers.gymnasium_envs:Truncation", None),
    ],
)
def test_the_smallest_limit_ends_an_episode(env_id: str, limit: int | None) -> None:
    assert step_limit(make_env(env_id)) == limit


def test_the_largest_of_environments_that_differ() -> None:
    env = make_env("CartPole-v1")
    assert isinstance(env, Env)
    assert step_limit(env._replace(params=env.params.replace(max_steps_in_episode=np.array([3, 9])))) == 9


def test_es_plays_whole_episodes_with_sticky_actions() -> None:
    agent = jaxrl.make_es("CartPole-v1|sticky_actions(0.25)", members=4, episodes=2)
    assert agent.steps_per_iteration == 4 * 2 * 500
