"""Statistics over seeds, against NumPy and SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import trim_mean

from jaxrl.runtime.plots.statistics import seed_interval, trimmed_mean

NAN = np.nan


def test_interquartile_mean_by_hand() -> None:
    assert trimmed_mean(np.array([100.0, 0, 1, 2, 3, 4, 5, 6]), 0.25) == 3.5  # 2, 3, 4 and 5 are left
    assert trimmed_mean(np.array([9.0, 1, NAN, 2, -50]), 0.25) == 1.5  # of four values, 1 and 2
    assert trimmed_mean(np.array([9.0, 1, NAN, 2]), 0.25) == 4  # three: their mean
    assert np.isnan(trimmed_mean(np.array([NAN, NAN]), 0.25))
    np.testing.assert_array_equal(trimmed_mean(np.array([[1.0, NAN], [NAN, NAN]]), 0.0), [1, NAN])


@pytest.mark.parametrize("num_seeds", range(1, 14))
@pytest.mark.parametrize("cut", [0.0, 0.25])
def test_trimmed_mean_is_scipys(num_seeds: int, cut: float) -> None:
    values = np.random.default_rng(num_seeds).normal(size=(5, num_seeds))
    np.testing.assert_allclose(trimmed_mean(values, cut), trim_mean(values, cut, axis=1))
    with_gaps = np.insert(values, num_seeds // 2, NAN, axis=1)
    np.testing.assert_allclose(trimmed_mean(with_gaps, cut), trim_mean(values, cut, axis=1))


@pytest.mark.parametrize(("metric", "cut"), [("iqm", 0.25), ("mean", 0.0)])
def test_interval_is_that_of_all_resamples(metric: str, cut: float) -> None:
    """With five seeds, all 5^5 resamples can be listed."""
    values = np.array([1.0, 2.5, 3.1, 4.7, 9.3])
    every = [trim_mean(values[list(drawn)], cut) for drawn in itertools.product(range(5), repeat=5)]
    middle, low, high = seed_interval(np.stack([values, 10 * values]), metric=metric, resamples=40_000, level=0.9)
    np.testing.assert_allclose(middle, [trim_mean(values, cut), 10 * trim_mean(values, cut)])
    np.testing.assert_allclose([low[0], high[0]], np.quantile(every, [0.05, 0.95]), atol=0.08)
    np.testing.assert_allclose([low[1], high[1]], [10 * low[0], 10 * high[0]])  # the same seeds are drawn at every point


def test_stratified_interval_draws_from_each_stratum_as_many_as_it_has() -> None:
    values, strata = np.array([1.0, 20.0, 2.0, 21.0, 29.0]), np.array([0, 1, 0, 1, 1])
    low_two, high_three = values[strata == 0], values[strata == 1]
    every = [
        np.mean([*low_two[list(a)], *high_three[list(b)]])
        for a in itertools.product(range(2), repeat=2)
        for b in itertools.product(range(3), repeat=3)
    ]
    _, low, high = seed_interval(values[None], metric="mean", strata=strata, resamples=40_000, level=0.8)
    np.testing.assert_allclose([low[0], high[0]], np.quantile(every, [0.1, 0.9]), atol=0.1)
    _, all_low, all_high = seed_interval(values[None], metric="mean", resamples=40_000, level=0.8)
    assert all_low < low - 3 and all_high > high + 3


def test_strata_without_spread_have_no_interval() -> None:
    values, strata = np.array([[0.0, 10, 0, 10, 0, 10]]), np.array([5, 2, 5, 2, 5, 2])
    middle, low, high = seed_interval(values, strata=strata)
    assert middle == low == high == 5


def test_a_missing_seed_is_no_part_of_any_resample() -> None:
    values = np.array([[4.0, NAN, 6.0, NAN, NAN]])
    middle, low, high = seed_interval(values, metric="mean")
    assert (middle, low, high) == (5, 4, 6)


def test_mean_interval_leaves_out_missing_seeds() -> None:
    values = np.array([[1.0, 1.0, 1.0, np.nan], [0.0, 2.0, 4.0, 6.0]])
    mean, low, high = seed_interval(values, metric="mean")
    np.testing.assert_allclose(mean, [1, 3])
    np.testing.assert_allclose([low[0], high[0]], [1, 1])
    assert 0 < low[1] < 2 and 4 < high[1] < 6
