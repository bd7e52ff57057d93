"""GAE, λ-returns, n-step returns, V-trace and discounted sums against loops over single episodes, for every kind of row."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.returns import (
    VTrace,
    discounted_sums,
    discounts,
    endless_gae,
    episode_completed,
    gae,
    gae_from_dones,
    lambda_returns,
    n_step_returns,
    vtrace,
)
from jaxrl.types import Array

T, B = 9, 3


class Rows(NamedTuple):
    """Arguments of the functions, [T, B]."""

    r_t: np.ndarray
    v_tm1: np.ndarray
    v_t: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray


def advantages(rows: Rows, gamma: float, gae_lambda: float) -> Array:
    return gae(rows.r_t, *discounts(rows, gamma, gae_lambda), rows.v_tm1, rows.v_t, rows.valid)  # type: ignore[arg-type]


advantages_jit = jax.jit(advantages)
endless_jit = jax.jit(endless_gae)


@partial(jax.jit, static_argnames="n")
def returns(rows: Rows, gamma: float, lam: float, n: int | None = None) -> Array:
    """Compute λ-returns, or n-step returns."""
    given: Any = (rows.r_t, *discounts(rows, gamma, lam), rows.v_t, rows.valid)  # type: ignore[arg-type]
    return lambda_returns(*given) if n is None else n_step_returns(*given, n=n)


def oracle(rows: Rows, gamma: float, gae_lambda: float) -> np.ndarray:
    """Compute A_t = Σ_k (γλ)^k · δ_{t+k} over the rest of the row's episode, one environment and one row at a time."""
    length, envs = rows.valid.shape
    advantage = np.zeros((length, envs))
    for b in range(envs):
        for t in range(length):
            if not rows.valid[t, b]:
                continue
            for k in range(t, length):
                if not rows.valid[k, b]:
                    break  # padding: the known part of the episode ends here
                beyond = 0.0 if rows.terminated[k, b] else float(rows.v_t[k, b])
                delta = float(rows.r_t[k, b]) + gamma * beyond - float(rows.v_tm1[k, b])
                advantage[t, b] += (gamma * gae_lambda) ** (k - t) * delta
                if rows.terminated[k, b] or rows.truncated[k, b]:
                    break
    return advantage


def make_rows(seed: int, terminated: np.ndarray, truncated: np.ndarray, padding: np.ndarray) -> Rows:
    """Build NEXT_STEP rows with these flags.

    An end is followed by a reset row, and ``padding[b]`` rows at the tail are invalid. Invalid rows hold garbage, and so does the
    value after a termination.
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


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31), flags, tails, st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.7, 1.0]))
def test_a_return_without_end_is_the_loop_over_valid_rows(
    seed: int, ended: np.ndarray, padding: np.ndarray, gamma: float, lam: float
) -> None:
    """As if the invalid rows were missing, and the valid ones were one episode without an end."""
    rows, last = make_rows(seed, ended, np.zeros_like(ended), padding), np.float32([1.5, -2.0, 0.25])
    values = np.concatenate([rows.v_tm1, last[None]])
    expected = np.zeros((T, B))
    for b in range(B):
        there = np.flatnonzero(rows.valid[:, b])
        following = 0.0
        for i, t in reversed(list(enumerate(there))):
            beyond = values[there[i + 1], b] if i + 1 < len(there) else last[b]
            delta = rows.r_t[t, b] + gamma * beyond - values[t, b]
            following = expected[t, b] = delta + gamma * lam * following
    given = endless_jit(rows.r_t, values, rows.valid, gamma, lam)
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)


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
    """The recursion stops at ends because of its equation, not only because an invalid row follows."""
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
    """A rollout with every kind of end and finite values everywhere."""
    rng = np.random.default_rng(7)
    rows = make_rows(1, rng.random((T, B)) < 0.2, rng.random((T, B)) < 0.2, np.array([0, 1, 3]))
    return Rows(rows.r_t, *(np.nan_to_num(x, nan=5.0) for x in rows[1:3]), *rows[3:])


def test_lambda_zero_is_the_one_step_error(one_rollout: Rows) -> None:
    rows = one_rollout
    delta = rows.r_t + 0.9 * rows.v_t * ~rows.terminated - rows.v_tm1
    np.testing.assert_allclose(advantages(rows, 0.9, 0.0), delta * rows.valid, rtol=1e-5, atol=1e-6)


def return_oracle(rows: Rows, gamma: float, n: int) -> np.ndarray:
    """Compute the sum of up to n rewards of the row's episode, then V of the last observation, and no other value."""
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
    """Also for n steps, if n is the whole rollout. λ = 0 gives one step."""
    rows = one_rollout
    expected = np.where(rows.valid, advantages(rows, 0.9, lam) + rows.v_tm1, 0.0)
    np.testing.assert_allclose(returns(rows, 0.9, lam), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(returns(rows, 0.9, lam, n=T), expected, rtol=1e-5, atol=1e-5)


def hand_rows() -> Rows:
    """Two rows of an episode that terminates, its reset row, and two rows of a truncated episode."""
    return Rows(
        r_t=column(1, 2, 0, 4, 8),
        v_tm1=column(10, 20, 30, 40, 50),
        v_t=column(20, 30, 40, 50, 6),
        terminated=column(0, 1, 0, 0, 0, dtype=bool),
        truncated=column(0, 0, 0, 0, 1, dtype=bool),
        valid=column(1, 1, 0, 1, 1, dtype=bool),
    )


def test_returns_by_hand() -> None:
    """γ = ½. After the truncation V = 6."""
    rows = hand_rows()
    # λ = 1: 1 + 2/2; 2; reset; 4 + 11/2; 8 + 6/2.
    np.testing.assert_allclose(returns(rows, 0.5, 1.0)[:, 0], [2, 2, 0, 9.5, 11])
    # λ = ½: 1 + ½(½·20 + ½·2); 2; reset; 4 + ½(½·50 + ½·11); 8 + ½·6.
    np.testing.assert_allclose(returns(rows, 0.5, 0.5)[:, 0], [6.5, 2, 0, 19.25, 11])
    # One step: 1 + 20/2; 2; reset; 4 + 50/2; 8 + 6/2. No episode has more than two.
    np.testing.assert_allclose(returns(rows, 0.5, 1.0, n=1)[:, 0], [11, 2, 0, 29, 11])
    for n in (2, 7):
        np.testing.assert_allclose(returns(rows, 0.5, 1.0, n=n)[:, 0], [2, 2, 0, 9.5, 11])


def test_returns_of_no_steps_are_refused(one_rollout: Rows) -> None:
    for n in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"n={n} must be an integer >= 1"):
            n_step_returns(*(jnp.zeros((T, B)),) * 4, valid=jnp.ones((T, B), bool), n=n)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------------- V-trace


@jax.jit
def traced(rows: Rows, log_rho: Array, gamma: float, lam: float, rho_bar: float, c_bar: float) -> VTrace:
    flags = discounts(rows, gamma, lam)  # type: ignore[arg-type]
    return vtrace(rows.r_t, *flags, rows.v_tm1, rows.v_t, log_rho, rows.valid, rho_bar, c_bar)  # type: ignore[arg-type]


def vtrace_oracle(rows: Rows, log_rho: np.ndarray, gamma: float, lam: float, rho_bar: float, c_bar: float) -> VTrace:
    """Compute v_s = V(x_s) + Σ_t γ^{t−s} (Π_{s≤i<t} c_i) ρ_t (r_t + γ V(x_{t+1}) − V(x_t)).

    This is Espeholt et al. 2018, eq. 1, as a double sum over the rest of the row's episode.
    """
    target, advantage = np.zeros((T, B)), np.zeros((T, B))
    ratio = np.exp(np.float64(log_rho))

    def delta(t: int, b: int) -> float:
        beyond = 0.0 if rows.terminated[t, b] else gamma * rows.v_t[t, b]
        return min(rho_bar, ratio[t, b]) * float(rows.r_t[t, b] + beyond - rows.v_tm1[t, b])

    def goes_on(t: int, b: int) -> bool:
        return t + 1 < T and not (rows.terminated | rows.truncated)[t, b] and bool(rows.valid[t + 1, b])

    for s, b in zip(*np.nonzero(rows.valid), strict=True):
        target[s, b], weight, t = float(rows.v_tm1[s, b]) + delta(s, b), 1.0, s
        while goes_on(t, b):
            weight *= gamma * lam * min(c_bar, ratio[t, b])
            t += 1
            target[s, b] += weight * delta(t, b)
    for s, b in zip(*np.nonzero(rows.valid), strict=True):
        beyond = 0.0 if rows.terminated[s, b] else float(rows.v_t[s, b])
        if goes_on(s, b):  # the trace of the next row has weight λ, its value the rest
            beyond += lam * (target[s + 1, b] - float(rows.v_tm1[s + 1, b]))
        advantage[s, b] = min(rho_bar, ratio[s, b]) * (float(rows.r_t[s, b]) + gamma * beyond - float(rows.v_tm1[s, b]))
    return VTrace(target, advantage)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**31),
    flags,
    flags,
    tails,
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([(1.0, 1.0), (2.5, 0.8), (0.5, 0.5)]),
)
def test_vtrace_is_the_double_sum(
    seed: int,
    terminated: np.ndarray,
    truncated: np.ndarray,
    padding: np.ndarray,
    gamma: float,
    lam: float,
    bars: tuple[float, float],
) -> None:
    rows = make_rows(seed, terminated, truncated, padding)
    log_rho = np.random.default_rng(seed).normal(size=(T, B)).astype(np.float32)
    log_rho[~rows.valid] = np.nan
    # Within an episode V(x_{t+1}) of a row is V(x_t) of the next, in the double sum and in the recursion.
    for got, expected in zip(
        traced(rows, log_rho, gamma, lam, *bars), vtrace_oracle(rows, log_rho, gamma, lam, *bars), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_vtrace_by_hand() -> None:
    """γ = ½, λ = 1, ρ̄ = 2, c̄ = 1, and ratios 4, ½, –, ½, 3."""
    rows, log_rho = hand_rows(), np.log(column(4, 0.5, 1, 0.5, 3))
    target, advantage = traced(rows, log_rho, 0.5, 1.0, 2.0, 1.0)
    # δ: 2·(1 + 10 − 10) = 2; ½·(2 − 20) = −9; reset; ½·(4 + 25 − 40) = −5.5; 2·(8 + 3 − 50) = −78.
    # v: 10 + 2 + ½·1·(−9); 20 − 9; reset; 40 − 5.5 + ½·½·(−78); 50 − 78.
    np.testing.assert_allclose(target[:, 0], [7.5, 11, 0, 15, -28], rtol=1e-6)
    # 2·(1 + ½·11 − 10); ½·(2 − 20); reset; ½·(4 + ½·(−28) − 40); 2·(8 + ½·6 − 50).
    np.testing.assert_allclose(advantage[:, 0], [-7, -9, 0, -25, -78], rtol=1e-6)


def test_vtrace_on_policy_is_the_lambda_return(one_rollout: Rows) -> None:
    rows = one_rollout
    for lam in (0.0, 0.7, 1.0):
        target, advantage = traced(rows, np.zeros((T, B), np.float32), 0.9, lam, 1.0, 1.0)
        np.testing.assert_allclose(target, returns(rows, 0.9, lam), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(advantage, (target - rows.v_tm1) * rows.valid, rtol=1e-4, atol=1e-5)


def test_vtrace_of_ratios_without_bound_is_finite(one_rollout: Rows) -> None:
    for log_rho in (-1e3, 1e3):
        made = traced(one_rollout, np.full((T, B), log_rho, np.float32), 0.9, 1.0, 1.0, 1.0)
        assert all(np.isfinite(x).all() for x in made)


# ------------------------------------------------------------------------------------------------------------------------ shapes


def test_gae_of_one_environment_ignores_the_others(one_rollout: Rows) -> None:
    alone = jnp.concatenate([advantages(Rows(*(x[:, b : b + 1] for x in one_rollout)), 0.9, 0.8) for b in range(B)], axis=1)
    np.testing.assert_allclose(advantages(one_rollout, 0.9, 0.8), alone, rtol=1e-6)


@pytest.mark.parametrize("length, shape", [(1, ()), (2, (2, 3)), (16, (2,)), (17, ()), (40, (2, 3))])
def test_discounted_sums_are_the_loop(length: int, shape: tuple[int, ...]) -> None:
    """Lengths below, at and above the scan's unrolling."""
    rng = np.random.default_rng(length)
    r_t, bootstrap = rng.normal(size=(length, *shape)), rng.normal(size=shape)
    discount_t = rng.choice([0.0, 0.5, 0.9, 1.0], size=(length, *shape))
    expected, g = np.zeros((length, *shape)), bootstrap
    for t in reversed(range(length)):
        g = r_t[t] + discount_t[t] * g
        expected[t] = g
    got = discounted_sums(*(jnp.asarray(x, jnp.float32) for x in (r_t, discount_t, bootstrap)))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rewards, values", [(jnp.int32, jnp.float32), (jnp.float16, jnp.float32), (jnp.float32, jnp.bfloat16)])
def test_rewards_and_values_may_be_of_any_type_of_numbers(one_rollout: Rows, rewards: Any, values: Any) -> None:
    r_t, v_t = (jax.ShapeDtypeStruct((T, B), dtype) for dtype in (rewards, values))

    def all_returns(r_t: Array, v_t: Array) -> Any:
        rest, valid = discounts(one_rollout, 0.9, 0.5), one_rollout.valid
        return (
            gae(r_t, *rest, v_t, v_t, valid),
            endless_gae(r_t, jnp.concatenate([v_t, v_t[-1:]]), valid, 0.9, 0.5),
            lambda_returns(r_t, *rest, v_t, valid),
            vtrace(r_t, *rest, v_t, v_t, jnp.zeros((T, B)), valid),
        )

    assert all(x.dtype == jnp.float32 and x.shape == (T, B) for x in jax.tree.leaves(jax.eval_shape(all_returns, r_t, v_t)))


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
    given: Any = [zeros] * 4
    for call in (
        lambda *rows: lambda_returns(*rows),
        lambda *rows: n_step_returns(*rows, n=2),
        lambda *rows: vtrace(*rows, zeros, zeros),
    ):
        for wrong in (zeros[:, :1], zeros[0], zeros[None]):  # would broadcast silently
            with pytest.raises(AssertionError):
                call(*given, wrong)
            with pytest.raises(AssertionError):
                call(wrong, *given)


def test_rows_whose_episode_ends_are_finished() -> None:
    """By hand, one environment per line: no end; an end, a reset row and a beginning; an episode that began before, with an end
    at the last row; padding, with an end of another episode after it."""
    mark = lambda *lines: np.array([[c == "1" for c in line] for line in lines]).T  # noqa: E731
    rows = Rows(
        *[np.zeros((6, 4))] * 3,
        terminated=mark("000000", "010000", "000001", "000001"),
        truncated=mark("000000", "000000", "100000", "000000"),
        valid=mark("111111", "110111", "101111", "110111"),
    )
    np.testing.assert_array_equal(episode_completed(rows), mark("000000", "110000", "101111", "000111"))


def test_a_row_that_is_not_valid_ends_nothing() -> None:
    rows = Rows(*[np.zeros((2, 1))] * 3, *[np.array([[False], [True]])] * 2, np.array([[True], [False]]))
    assert not np.any(episode_completed(rows))


# --------------------------------------------------------------------------------------------------------------- plain arrays


def cleanrl_gae(rewards: Any, values: Any, dones: Any, next_value: Any, next_done: Any, gamma: float, lam: float) -> Any:
    """Loop of CleanRL's ppo.py, where ``dones[t]`` is about the previous step."""
    advantages, last = np.zeros_like(rewards), np.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        nonterminal = 1.0 - (next_done if t == len(rewards) - 1 else dones[t + 1])
        after = next_value if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + gamma * after * nonterminal - values[t]
        advantages[t] = last = delta + gamma * lam * nonterminal * last
    return advantages


@pytest.mark.parametrize("lead", [(12,), (12, 3), (12, 3, 2)])
def test_gae_of_plain_arrays_is_that_of_a_loop(lead: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=lead), rng.normal(size=(lead[0] + 1, *lead[1:]))
    dones = rng.random((lead[0] + 1, *lead[1:])) < 0.3
    dones[-1] = rng.random(lead[1:]) < 0.5
    expected = cleanrl_gae(rewards, values[:-1], dones[:-1], values[-1], dones[-1], 0.97, 0.9)
    found = gae_from_dones(rewards, values, np.concatenate([dones[1:-1], dones[-1:]]), 0.97, 0.9)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    as_numbers = gae_from_dones(rewards, values, dones[1:].astype(np.float32), 0.97, 0.9)
    np.testing.assert_array_equal(found, as_numbers)


@given(st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_gae_of_plain_arrays_is_gae_of_rows(seed: int) -> None:
    """A truncated episode counts the value of its last observation, which is in the next row."""
    rng = np.random.default_rng(seed)
    ended, cut = rng.random((2, T, B)) < 0.3
    values, final = rng.normal(size=(T + 1, B)), rng.normal(size=(T, B))
    beyond = np.where(cut, final, 0.0)
    found = gae_from_dones(rewards := rng.normal(size=(T, B)), values, ended, 0.95, 0.8, beyond)
    v_t = np.where(ended, final, values[1:])
    all_valid = np.ones((T, B), bool)
    rows = Rows(rewards, values[:-1], v_t, ended & ~cut, ended & cut, all_valid)
    np.testing.assert_allclose(found, oracle(rows, 0.95, 0.8), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            ((5, 2), (5, 2), (5, 2)),
            r"values has shape \(5, 2\), but rewards \(5, 2\) require \(6, 2\): one more row, the value",
        ),
        (((5, 2), (6, 2), (5,)), r"dones has shape \(5,\), but rewards \(5, 2\) require \(5, 2\)"),
        (((5, 2), (6, 2), (5, 2), (6, 2)), r"final_values has shape \(6, 2\)"),
    ],
)
def test_plain_arrays_that_do_not_fit_are_named(shapes: Any, message: str) -> None:
    rewards, values, dones, *final = map(np.zeros, shapes)
    with pytest.raises(ValueError, match=message):
        gae_from_dones(rewards, values, dones, 0.9, 0.9, *final)
