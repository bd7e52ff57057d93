"""The definition of a row by hand, with NumPy and JAX, and without JAX."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.rollout.autoreset import finish_step, first_input, next_input, no_episode
from jaxrl.types import EpisodeStatistics, HostStep

BOTH = pytest.mark.parametrize("xp", [np, jnp])


def same(got: Any, expected: Any, dtype: Any, xp: Any) -> None:
    assert isinstance(got, np.ndarray if xp is np else jax.Array) and got.dtype == dtype
    np.testing.assert_array_equal(got, expected)


@BOTH
def test_what_a_row_comes_to(xp: Any) -> None:
    """One continues, one terminates, one is truncated, one both. Two are at the limit, where one terminates. One resets."""
    yes_no = lambda *bits: xp.asarray(bits, bool)  # noqa: E731
    before = EpisodeStatistics(xp.full(7, 10.0, xp.float32), xp.asarray([3, 3, 3, 3, 6, 6, 6], xp.int32))
    reached = HostStep(
        obs={"x": xp.arange(7)},
        reward=xp.asarray([0.5] * 6 + [np.nan]),  # a reset row's reward and flags do not count
        terminated=yes_no(0, 1, 0, 1, 0, 1, 1),
        truncated=yes_no(0, 0, 1, 1, 0, 0, 1),
        info={"lives": xp.arange(7)},
    )
    action = xp.ones((7, 2), xp.float32)
    inputs, row = finish_step(yes_no(0, 0, 0, 0, 0, 0, 1), before, action, reached, max_episode_steps=7)
    same(row.reward, np.float32([0.5] * 6 + [0]), np.float32, xp)
    same(row.terminated, [0, 1, 0, 1, 0, 1, 0], bool, xp)
    same(row.truncated, [0, 0, 1, 0, 1, 0, 0], bool, xp)
    same(row.valid, [1] * 6 + [0], bool, xp)
    same(row.done, [0, 1, 1, 1, 1, 1, 0], bool, xp)
    same(row.episode.episodic_return, np.float32([10.5] * 6 + [0]), np.float32, xp)
    same(row.episode.episodic_length, [4, 4, 4, 4, 7, 7, 0], np.int32, xp)
    assert row.info is reached.info and inputs.obs is reached.obs
    same(inputs.prev_action, np.outer([1] * 6 + [0], [1, 1]), np.float32, xp)
    same(inputs.prev_reward, row.reward, np.float32, xp)
    same(inputs.is_first, [0] * 6 + [1], bool, xp)


@BOTH
def test_without_a_limit_an_episode_goes_on(xp: Any) -> None:
    no, reward = xp.zeros(1, bool), xp.ones(1, xp.int32)  # integers become f32
    episode = no_episode(1, xp)
    for _ in range(3):
        _, row = finish_step(no, episode, xp.zeros(1, xp.int32), HostStep(xp.zeros(1), reward, no, no), None)
        episode = row.episode
    same(episode.episodic_return, [3], np.float32, xp)
    same(episode.episodic_length, [3], np.int32, xp)
    assert not row.done.any()


@BOTH
def test_the_first_input_is_the_one_after_a_reset_row(xp: Any) -> None:
    """In the dtype that acting uses, for any small dtype of the space."""
    obs = {"x": xp.ones((2, 3), xp.float32)}
    for space, action in (
        (spaces.Discrete(3, dtype=np.uint8), xp.ones(2, xp.int32)),
        (spaces.Box(-1, 1, (3,), np.float16), xp.ones((2, 3), xp.float32)),
        (spaces.MultiDiscrete([2, 2]), xp.ones((2, 2), xp.int32)),
    ):
        first = first_input(obs, space, 2)
        after = next_input(obs, action, xp.ones(2, xp.float32), xp.zeros(2, bool))
        for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(after), strict=True):
            same(x, y, y.dtype, xp)


def test_host_environments_are_stepped_without_jax() -> None:
    """A process that only steps them does not need JAX."""
    program = """
import sys
sys.modules["jax"] = None  # an import of it fails
import numpy as np
from gymnasium import spaces
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.types import HostEnv, HostStep

class Envs:
    def __init__(self, num_envs, seed, first_id=0):
        self.time, self.no = np.full(num_envs, first_id), np.zeros(num_envs, bool)
    def observe(self):
        return {"a": self.time, "b": {"c": self.time}}
    def reset(self):
        return self.observe()
    def step(self, action):
        self.time += action
        return HostStep(self.observe(), np.ones(len(action)), self.no, self.no)
    def reset_where(self, mask):
        self.time[mask] = 0
        return self.observe()
    def close(self):
        pass

numbers = spaces.Box(0, 99, (), np.int32)
env = HostEnv(Envs, spaces.Dict(a=numbers, b=spaces.Dict(c=numbers)), spaces.Discrete(3), max_episode_steps=2)
envs = Stepper(env, 2, seed=0, first_id=5)
envs.reset()
seen = []
for _ in range(4):
    row = envs.step(np.array([1, 2]))
    seen.append((envs.input.obs["b"]["c"].tolist(), row.truncated.tolist(), row.valid.tolist()))
print(seen)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert not done.stderr
    no, yes = [False, False], [True, True]
    assert done.stdout.strip() == str([([6, 7], no, yes), ([7, 9], yes, yes), ([0, 0], no, no), ([1, 2], no, yes)])
