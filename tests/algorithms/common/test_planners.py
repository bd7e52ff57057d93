"""Planners: optima of known problems, the equations of one iteration against NumPy, and returns that are not finite."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.common.planning.planners import CEM, MPPI, RandomShooting, comparable
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.action_noise import standard_normal

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
TARGET = np.array([[0.6, -0.3], [-0.8, 0.1], [0.2, 0.9]], np.float32)
"""Best sequence of three actions."""


def quadratic(sequences: Any) -> Any:
    """R(A) = −Σ(A − A*)²"""
    return -((sequences - TARGET) ** 2).sum((1, 2))


def linear(sequences: Any) -> Any:
    """R(A) = Σ sign(A*)·A, whose optimum is a corner: the signs of A*."""
    return (np.sign(TARGET) * sequences).sum((1, 2))


def planned(planner: Any, score: Any, keys: Any, mean: Any = None) -> np.ndarray:
    start = jnp.zeros(TARGET.shape) if mean is None else mean
    return np.asarray(jit(jax.vmap(lambda key: planner.plan(score, start, key)))(keys))


PLANNERS = [
    (RandomShooting(candidates=4_000), 0.45),
    (CEM(candidates=100, iterations=8), 0.1),
    (MPPI(candidates=200, iterations=12, beta=1.0, deviation=0.5), 0.2),
]


@pytest.mark.parametrize("planner, off", PLANNERS, ids=lambda x: getattr(x, "name", ""))
def test_a_planner_finds_the_best_sequence(planner: Any, off: float) -> None:
    plans = planned(planner, quadratic, jax.random.split(KEY(), 8))
    assert plans.shape == (8, *TARGET.shape) and np.abs(plans).max() <= 1.0
    assert np.abs(plans - TARGET).max() < off
    assert np.unique(plans[:, 0, 0]).size == 8


@pytest.mark.parametrize("planner", [planner for planner, _ in PLANNERS], ids=lambda planner: planner.name)
def test_a_planner_goes_to_the_bounds(planner: Any) -> None:
    plans = planned(planner, linear, jax.random.split(KEY(), 8))
    assert (np.sign(plans) == np.sign(TARGET)).all()
    assert np.asarray(linear(plans)).mean() > (0.6 if planner.name == "random_shooting" else 0.9) * TARGET.size


def test_cem_finds_more_than_random_shooting_with_as_many_sequences() -> None:
    keys = jax.random.split(KEY(), 16)
    for score in (quadratic, linear):
        shot, fitted = (
            np.asarray(score(planned(planner, score, keys)))
            for planner in (RandomShooting(candidates=400), CEM(candidates=100, iterations=4))
        )
        assert (fitted >= shot).mean() > 0.9 and fitted.mean() > shot.mean()


def test_an_iteration_of_cem_against_numpy() -> None:
    planner, mean = CEM(candidates=12, iterations=1, elites=3, deviation=0.4, smoothing=0.25), jnp.full(TARGET.shape, 0.1)
    (plan,) = planned(planner, quadratic, KEY()[None], mean)
    noise = np.asarray(standard_normal(jax.random.split(KEY(), 1)[0], (12, *TARGET.shape)))
    sequences = np.clip(0.1 + 0.4 * noise, -1, 1)
    elites = sequences[np.argsort(-np.asarray(quadratic(sequences)))[:3]]
    np.testing.assert_allclose(plan, 0.25 * 0.1 + 0.75 * elites.mean(0), rtol=1e-4, atol=1e-6)


def test_an_iteration_of_mppi_against_numpy() -> None:
    planner, mean = MPPI(candidates=6, iterations=1, temperature=0.5, deviation=0.7, beta=0.6), jnp.full(TARGET.shape, -0.2)
    (plan,) = planned(planner, quadratic, KEY()[None], mean)
    drawn = 0.7 * np.asarray(standard_normal(jax.random.split(KEY(), 1)[0], (6, *TARGET.shape)))
    noise, last = np.zeros_like(drawn), 0.0
    for t in range(len(TARGET)):
        noise[:, t] = last = 0.6 * drawn[:, t] + 0.4 * last
    sequences = np.clip(-0.2 + noise, -1, 1)
    returns = np.asarray(quadratic(sequences), np.float64)
    weights = np.exp((returns - returns.max()) / (0.5 * returns.std()))
    np.testing.assert_allclose(plan, np.tensordot(weights / weights.sum(), sequences, 1), rtol=1e-4, atol=1e-5)


def test_random_shooting_takes_the_best_that_it_drew() -> None:
    seen: list[Any] = []
    plan = RandomShooting(candidates=50).plan(lambda x: seen.append(x) or quadratic(x), jnp.zeros(TARGET.shape), KEY())
    np.testing.assert_array_equal(plan, seen[0][np.argmax(quadratic(seen[0]))])
    assert np.abs(seen[0]).max() <= 1 and 0.5 < np.abs(seen[0]).mean() / 0.5 < 1.5


@pytest.mark.parametrize("planner", [planner for planner, _ in PLANNERS], ids=lambda planner: planner.name)
def test_returns_that_are_not_finite_are_the_worst(planner: Any) -> None:
    """Sequences that begin to the right are NaN, infinite further right; a plan avoids them, and is finite if all are NaN."""

    def broken(sequences: Any) -> Any:
        first = sequences[:, 0, 0]
        return jnp.where(first > 0.5, jnp.inf, jnp.where(first > 0.2, jnp.nan, first))

    plans = planned(planner, broken, jax.random.split(KEY(), 4))
    assert np.isfinite(plans).all() and (plans[:, 0, 0] < 0.25).all()
    assert np.isfinite(planned(planner, lambda x: jnp.full(len(x), jnp.nan), KEY()[None])).all()
    np.testing.assert_array_equal(comparable(jnp.array([1.0, jnp.nan, -2.0, jnp.inf, -jnp.inf])), [1, -2, -2, -2, -2])


def test_equal_returns_have_equal_weights() -> None:
    planner = MPPI(candidates=4_000, iterations=1, deviation=0.2)
    plan = planned(planner, lambda x: jnp.full(len(x), 1e6), KEY()[None], jnp.full(TARGET.shape, 0.3))
    np.testing.assert_allclose(plan[0], 0.3, atol=0.02)


def test_there_are_as_many_elites_as_candidates_at_most() -> None:
    with pytest.raises(ValueError, match=r"^CEM: elites=11 must be at most candidates=10$"):
        CEM(candidates=10, elites=11)
