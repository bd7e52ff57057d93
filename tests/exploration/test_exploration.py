"""Actions within bounds and masks."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from gymnasium import spaces

from jaxrl.distributions import MASKED
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.action_noise import normal_each, uniform_of
from jaxrl.exploration.epsilon_greedy import epsilon_greedy, spread_epsilon
from jaxrl.spaces.action_scaling import from_environment, to_environment

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""


def test_boxes_are_scaled_and_clipped() -> None:
    box = spaces.Box(np.array([0, -2], np.float32), np.array([4, -1], np.float32))
    model_units = jnp.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0], [9.0, -9.0]])
    expected = [[0, -2], [2, -1.25], [4, -1], [4, -2]]
    np.testing.assert_allclose(to_environment(box, model_units), expected)
    free = spaces.Box(-np.inf, np.inf, (2, 1), np.float32)
    np.testing.assert_array_equal(to_environment(free, model_units), model_units[..., None])
    actions = jnp.array([0, 2, 1])
    np.testing.assert_array_equal(to_environment(spaces.Discrete(3), actions), actions)


def test_actions_stay_within_any_bounds() -> None:
    """gymnasium's exact check passes too: with rounding, an affine map alone gives -0.79999995 in [-3, -0.8]."""
    rng = np.random.default_rng(0)
    ends = rng.normal(size=(2, 2000)) * 10.0 ** rng.integers(-6, 7, (2, 2000))
    ends[:, 0], ends[:, 1] = (-3.0, -0.8), (-3e38, 3e38)
    units = jnp.concatenate([jnp.array([-1.0, 1.0, 0.0, 3.0, 1 - 2.0**-24]), jnp.asarray(rng.normal(size=20), jnp.float32)])
    for dtype in (np.float32, np.float64):
        low, high = np.sort(ends.astype(dtype), axis=0)
        box = spaces.Box(low, high, dtype=dtype)
        actions = np.asarray(jit(partial(to_environment, box))(jnp.broadcast_to(units[:, None], (25, 2000))))
        assert all(box.contains(action) for action in actions)
        np.testing.assert_allclose(actions[0], low, rtol=1e-6)
        np.testing.assert_allclose(actions[1], high, rtol=1e-6)


def test_actions_of_the_environment_are_taken_back() -> None:
    """Per dimension, with asymmetric, huge and zero-width bounds. Shapes are flattened."""
    low, high = np.array([[0, -2], [-1e30, 5]], np.float32), np.array([[4, -1], [1e30, 5]], np.float32)
    box = spaces.Box(low, high)
    units = jnp.array([[-1.0, -1.0, -1.0, 0.0], [0.25, 0.5, -0.5, 0.0], [1.0, 1.0, 1.0, 0.0]])
    actions = to_environment(box, units)
    assert actions.shape == (3, 2, 2)
    np.testing.assert_allclose(from_environment(box, actions), units, atol=1e-6)
    np.testing.assert_array_equal(from_environment(box, jnp.full((2, 3, 2, 2), jnp.inf))[..., 0], 1)


def test_uniform_of_normal_noise_is_uniform() -> None:
    noise = normal_each(jax.random.split(KEY(), 4000), 2)
    assert scipy.stats.kstest(np.asarray(noise).ravel(), scipy.stats.norm.cdf).pvalue > 1e-3
    assert scipy.stats.kstest(np.asarray(uniform_of(noise)).ravel(), scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3
    np.testing.assert_array_equal(noise[7], normal_each(jax.random.split(KEY(), 4000)[7:8], 2)[0])


def test_half_bounded_boxes_are_respected() -> None:
    half = spaces.Box(np.float32(0), np.float32(np.inf), (1,), np.float32)
    assert float(to_environment(half, jnp.array([[-3.0]]))[0, 0]) >= 0


def choose(epsilon: float, mask: Any = None, n: int = 4000) -> np.ndarray:
    q_values = jnp.broadcast_to(jnp.array([0.0, 3.0, 1.0, 2.0]), (n, 4))
    mask = None if mask is None else jnp.broadcast_to(jnp.asarray(mask), (n, 4))
    q_values = q_values if mask is None else jnp.where(mask, q_values, MASKED)
    return np.asarray(jit(epsilon_greedy)(q_values, mask, jnp.float32(epsilon), jax.random.split(KEY(), n)))


def test_epsilon_greedy_frequencies() -> None:
    assert set(choose(0.0)) == {1} and choose(0.0).dtype == np.int32
    for epsilon in (0.3, 1.0):
        counts = np.bincount(choose(epsilon), minlength=4)
        expected = 4000 * (epsilon / 4 + (1 - epsilon) * np.eye(4)[1])
        assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


def test_epsilon_greedy_keeps_to_the_mask() -> None:
    mask = [True, False, False, True]  # the action with the largest logit is forbidden
    assert set(choose(0.0, mask)) == {3}
    counts = np.bincount(choose(1.0, mask), minlength=4)
    assert counts[1] == counts[2] == 0
    assert scipy.stats.chisquare(counts[[0, 3]]).pvalue > 1e-3
    assert set(choose(1.0, [False, False, True, False])) == {2}


def test_each_row_draws_by_its_own_key() -> None:
    q_values, keys = jax.random.normal(KEY(), (6, 4)), jax.random.split(KEY(), 6)
    run = jit(lambda q_values, keys: epsilon_greedy(q_values, None, jnp.float32(0.8), keys))
    np.testing.assert_array_equal(run(q_values[2:4], keys[2:4]), run(q_values, keys)[2:4])


def test_exploration_rates_are_spread_over_the_environments() -> None:
    """ε_i = ε^(1 + α·i / (N − 1)) (Horgan et al. 2018), for any of the N environments in any order."""
    env_id = np.array([7, 0, 3], np.int32)
    rates = spread_epsilon(jnp.float32(0.4), 7.0, jnp.asarray(env_id), 8)
    np.testing.assert_allclose(rates, 0.4 ** (1 + 7 * env_id / 7), rtol=1e-5)
    assert spread_epsilon(jnp.float32(0.4), 0.0, jnp.asarray(env_id), 8).shape == ()
