"""GAE, λ-returns, n-step returns and discounted sums against loops over single episodes, on rows of every kind."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.returns import discounted_sums, discounts, gae, lambda_returns, n_step_returns
from jaxrl.types import Array

T, B = 9, 3


class Rows(NamedTuple):
    """What the functions take, [T, B]."""

    r_t: np.ndarray
    v_tm1: np.ndarray
    v_t: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray


def advantages(rows: Rows, gamma: float, gae_lambda: float) -> Array:
    return gae(rows.r_t, *discounts(rows, gamma, gae_lambda), rows.v_tm1, rows.v_t, rows.valid)  # type: ignore[arg-type]


advantages_jit = jax.jit(advantages)


@partial(jax.jit, static_argnames="n")
def returns(rows: Rows, gamma: float, lam: float, n: int | None = None) -> Array:
    """λ-returns; or those of n steps."""
    given: Any = (rows.r_t, *discounts(rows, gamma, lam), rows.v_t, rows.valid)  # type: ignore[arg-type]
    return lambda_returns(*given) if n is None else n_step_returns(*given, n=n)


def oracle(rows: Rows, gamma: float, gae_lambda: float) -> np.ndarray:
    """A_t = Σ_k (γλ)^k · δ_{t+k} over the rest of the row's own episode, one environment and one row at a time."""
    length, envs = rows.valid.shape
    advantage = np.zeros((length, envs))
    for b in range(envs):
        for t in range(length):
            if not rows.valid[t, b]:
                continue
            for k in range(t, length):
                if not rows.valid[k, b]:
                    break  # padding: what is known of the episode stops here
                beyond = 0.0 if rows.terminated[k, b] else float(rows.v_t[k, b])
                delta = float(rows.r_t[k, b]) + gamma * beyond - float(rows.v_tm1[k, b])
                advantage[t, b] += (gamma * gae_lambda) ** (k - t) * delta
                if rows.terminated[k, b] or rows.truncated[k, b]:
                    break
    return advantage


def make_rows(seed: int, terminated: np.ndarray, truncated: np.ndarray, padding: np.ndarray) -> Rows:
    """NEXT_STEP rows with these flags: an end is followed by a reset row, ``padding[b]`` rows at the tail are invalid.

    Invalid rows hold garbage, and so does the value beyond a termination.
    """
    rng = np.random.default_rng(seed)
    value = rng.normal(size=(T + 1, B)).astype(np.float32)
    reward = rng.normal(size=(T, B)).astype(np.float32)
    valid = np.ones((T, B), bool)
    for t in range(1, T):
        valid[t] = ~(valid[t - 1] & (terminated | truncated)[t - 1])
    valid &= np.arange(T)[:, None] < T - padding
    reward[~valid] = 1e6
    v_tm1, v_t = value[:-1].copy(), value[1:].copy()
    v_tm1[~valid] = np.nan
    v_t[~valid | terminated] = np.nan
    return Rows(reward, v_tm1, v_t, terminated, truncated, valid)


flags = st.lists(st.booleans(), min_size=T * B, max_size=T * B).map(lambda x: np.array(x).reshape(T, B))
tails = st.lists(st.integers(0, T), min_size=B, max_size=B).map(np.array)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31), flags, flags, tails, st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.7, 1.0]))
def test_gae_is_the_loop_over_episodes(
    seed: int, terminated: np.ndarray, truncated: np.ndarray, padding: np.ndarray, gamma: float, gae_lambda: float
) -> None:
    rows = make_rows(seed, terminated, truncated, padding)
    np.testing.assert_allclose(advantages_jit(rows, gamma, gae_lambda), oracle(rows, gamma, gae_lambda), rtol=1e-4, atol=1e-4)


def column(*values: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(values, dtype)[:, None]


def test_gae_by_hand() -> None:
    """γ = ½, λ = ½: a termination, its reset row, and a truncation at the end of the rollout."""
    rows = Rows(
        r_t=column(1, 2, 0, 4),
        v_tm1=column(10, 20, 30, 40),
        v_t=column(20, 30, 40, 8),
        terminated=column(0, 1, 0, 0, dtype=bool),
        truncated=column(0, 0, 0, 1, dtype=bool),
        valid=column(1, 1, 0, 1, dtype=bool),
    )
    # δ_0 = 1 + 10 − 10 = 1; δ_1 = 2 − 20 = −18; row 2 is the reset; δ_3 = 4 + 4 − 40 = −32.
    np.testing.assert_allclose(advantages(rows, 0.5, 0.5)[:, 0], [1 - 18 / 4, -18, 0, -32])


def test_nothing_leaks_over_an_end_even_without_a_reset_row() -> None:
    """The recursion stops at ends by itself, as its equation says, not only because an invalid row follows."""
    rows = Rows(column(1, 1), column(0, 0), column(0, 10), *(column(0, 0, dtype=bool),) * 2, column(1, 1, dtype=bool))
    for name, first in (("terminated", 1.0), ("truncated", 1.0)):
        ended = rows._replace(**{name: column(1, 0, dtype=bool)})
        np.testing.assert_allclose(advantages(ended, 0.5, 1.0)[:, 0], [first, 6.0])
    np.testing.assert_allclose(advantages(rows, 0.5, 1.0)[:, 0], [4.0, 6.0])


def test_both_flags_mean_terminated() -> None:
    both = Rows(*(column(x) for x in (1.0, 0.0, 100.0)), *(column(1, dtype=bool),) * 3)
    np.testing.assert_allclose(advantages(both, 0.9, 0.95), [[1.0]])
    np.testing.assert_allclose(advantages(both._replace(terminated=column(0, dtype=bool)), 0.9, 0.95), [[91.0]])


@pytest.fixture(scope="module")
def one_rollout() -> Rows:
    """Ends and truncations of every kind in one rollout, with finite values everywhere."""
    rng = np.random.default_rng(7)
    rows = make_rows(1, rng.random((T, B)) < 0.2, rng.random((T, B)) < 0.2, np.array([0, 1, 3]))
    return Rows(rows.r_t, *(np.nan_to_num(x, nan=5.0) for x in rows[1:3]), *rows[3:])


def test_lambda_zero_is_the_one_step_error(one_rollout: Rows) -> None:
    rows = one_rollout
    delta = rows.r_t + 0.9 * rows.v_t * ~rows.terminated - rows.v_tm1
    np.testing.assert_allclose(advantages(rows, 0.9, 0.0), delta * rows.valid, rtol=1e-5, atol=1e-6)


def return_oracle(rows: Rows, gamma: float, n: int) -> np.ndarray:
    """Up to n rewards of the row's own episode, then V of what was reached, and no other value in between."""
    expected = np.zeros((T, B))
    for t, b in zip(*np.nonzero(rows.valid), strict=True):
        discount, k = 1.0, t
        while True:
            expected[t, b] += discount * rows.r_t[k, b]
            discount *= gamma
            if rows.terminated[k, b]:
                break
            if rows.truncated[k, b] or k in (T - 1, t + n - 1) or not rows.valid[k + 1, b]:
                expected[t, b] += discount * rows.v_t[k, b]
                break
            k += 1
    return expected


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), flags, flags, tails, st.sampled_from([0.0, 0.9]))
def test_returns_are_rewards_and_then_the_value_reached(
    seed: int, terminated: np.ndarray, truncated: np.ndarray, padding: np.ndarray, gamma: float
) -> None:
    rows = make_rows(seed, terminated, truncated, padding)
    np.testing.assert_allclose(returns(rows, gamma, 1.0), return_oracle(rows, gamma, T), rtol=1e-4, atol=1e-4)
    for n in (1, 3, T):
        np.testing.assert_allclose(returns(rows, gamma, 1.0, n=n), return_oracle(rows, gamma, n), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_a_lambda_return_is_the_advantage_and_the_value(one_rollout: Rows, lam: float) -> None:
    """Of n steps too, where n is the whole rollout; with λ = 0 one step is all."""
    rows = one_rollout
    expected = np.where(rows.valid, advantages(rows, 0.9, lam) + rows.v_tm1, 0.0)
    np.testing.assert_allclose(returns(rows, 0.9, lam), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(returns(rows, 0.9, lam, n=T), expected, rtol=1e-5, atol=1e-5)


def test_gae_of_one_environment_ignores_the_others(one_rollout: Rows) -> None:
    alone = jnp.concatenate([advantages(Rows(*(x[:, b : b + 1] for x in one_rollout)), 0.9, 0.8) for b in range(B)], axis=1)
    np.testing.assert_allclose(advantages(one_rollout, 0.9, 0.8), alone, rtol=1e-6)


@pytest.mark.parametrize("length, shape", [(1, ()), (2, (2, 3)), (16, (2,)), (17, ()), (40, (2, 3))])
def test_discounted_sums_are_the_loop(length: int, shape: tuple[int, ...]) -> None:
    """Lengths below, at and beyond what the scan unrolls."""
    rng = np.random.default_rng(length)
    r_t, bootstrap = rng.normal(size=(length, *shape)), rng.normal(size=shape)
    discount_t = rng.choice([0.0, 0.5, 0.9, 1.0], size=(length, *shape))
    expected, g = np.zeros((length, *shape)), bootstrap
    for t in reversed(range(length)):
        g = r_t[t] + discount_t[t] * g
        expected[t] = g
    got = discounted_sums(*(jnp.asarray(x, jnp.float32) for x in (r_t, discount_t, bootstrap)))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_shapes_that_do_not_fit_are_refused(one_rollout: Rows) -> None:
    zeros = jnp.zeros((T, B))
    with pytest.raises(AssertionError):
        discounted_sums(zeros, zeros[:-1], zeros[0])
    with pytest.raises(AssertionError):
        discounted_sums(zeros, zeros, jnp.zeros(1))  # would broadcast silently
    with pytest.raises(AssertionError):
        advantages(one_rollout._replace(v_t=one_rollout.v_t[:, :1]), 0.9, 0.9)
    with pytest.raises(AssertionError):
        advantages(Rows(*(x[:, 0] for x in one_rollout)), 0.9, 0.9)
