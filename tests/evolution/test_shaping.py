"""Shaping of fitness: ranks with ties and NaN, utilities, standard scores and ARS, against SciPy and by hand."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from jaxrl.evolution.shaping import best_pairs, centered_rank, lowest_for_nan, mean_ranks, raw_fitness, standardize, wierstra

SHAPINGS = [centered_rank, wierstra, standardize, raw_fitness]
FITNESS = st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(float("nan"))), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(FITNESS)
def test_ranks_are_scipys(values: list[float]) -> None:
    array = np.array(values, np.float32)
    expected = rankdata(np.where(np.isnan(array), -np.inf, array)) - 1
    np.testing.assert_allclose(mean_ranks(jnp.array(array)), expected)
    np.testing.assert_allclose(centered_rank(jnp.array(array)), expected / 5 - 0.5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(FITNESS, st.permutations(range(6)))
def test_weights_follow_their_members_and_better_ones_weigh_more(values: list[float], order: list[int]) -> None:
    array = np.array(values, np.float32)
    finite = np.where(np.isnan(array), -np.inf, array)
    for shaping in SHAPINGS:
        weights = np.asarray(shaping(jnp.array(array)))
        assert np.isfinite(weights).all()
        np.testing.assert_allclose(np.asarray(shaping(jnp.array(array[order]))), weights[order], atol=1e-6)
        by_fitness = weights[np.argsort(finite, kind="stable")]
        assert (np.diff(by_fitness) >= -1e-6).all()
        if shaping is not raw_fitness:
            assert abs(weights.sum()) < 1e-4


@settings(max_examples=30, deadline=None)
@given(FITNESS)
def test_ranks_do_not_depend_on_the_scale(values: list[float]) -> None:
    array = jnp.array(values, jnp.float32)
    for shaping in (centered_rank, wierstra):
        np.testing.assert_allclose(shaping(jnp.exp(array) * 7 - 2), shaping(array), atol=1e-6)


def test_nan_is_not_above_a_fitness_of_minus_infinity() -> None:
    nan, low = float("nan"), -float("inf")
    for fitness, expected in (([nan, low, 1.0], [low, low, 1.0]), ([nan, 2.0], [2.0, 2.0]), ([nan, nan], [0.0, 0.0])):
        np.testing.assert_array_equal(lowest_for_nan(jnp.array(fitness)), expected)


@pytest.mark.parametrize("shaping", [centered_rank, wierstra, standardize])
@pytest.mark.parametrize("values", [[500.0] * 4, [float("nan")] * 4, [3.0]])
def test_equal_members_have_no_weight(shaping: Any, values: list[float]) -> None:
    np.testing.assert_allclose(shaping(jnp.array(values)), 0, atol=1e-6)


def test_utilities_by_hand() -> None:
    """Four members: ln 3, ln 3 - ln 2, 0 and 0, scaled to a sum of 1, less a quarter."""
    raw = np.array([0, 0, np.log(3) - np.log(2), np.log(3)])
    expected = raw / raw.sum() - 0.25
    np.testing.assert_allclose(wierstra(jnp.array([1.0, 2.0, 3.0, 4.0])), expected, atol=1e-6)


def test_the_best_pairs_by_hand() -> None:
    """Of the pairs (1, 5), (4, 4), (0, 2) and (3, NaN), the best two are the first two: deviation of 1, 5, 4, 4 is 1.5."""
    fitness = jnp.array([1.0, 5.0, 4.0, 4.0, 0.0, 2.0, 3.0, jnp.nan])
    expected = np.array([1.0, 5.0, 4.0, 4.0, 0, 0, 0, 0]) / 1.5 * 2
    np.testing.assert_allclose(best_pairs(fitness, 0.5), expected, atol=1e-6)
    kept = np.array([1.0, 5.0, 4.0, 4.0, 0.0, 2.0, 3.0, 0.0])
    np.testing.assert_allclose(best_pairs(fitness), kept / kept.std(), atol=1e-5)
    np.testing.assert_allclose(best_pairs(jnp.full(4, 7.0)), 0)
