"""Random parts that are used once per epoch, and explained variance against NumPy."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl.minibatch import explained_variance, minibatches, shuffled_rows, standardized

KEY = partial(jax.random.key, 0)


def test_every_item_is_in_one_minibatch_of_each_epoch() -> None:
    order = np.asarray(minibatches(KEY(), 12, 3, 4))
    assert order.shape == (3, 4, 3)
    epochs = order.reshape(3, 12)
    np.testing.assert_array_equal(np.sort(epochs, -1), np.tile(np.arange(12), (3, 1)))
    assert not np.array_equal(epochs[0], epochs[1])
    with pytest.raises(ValueError, match="num_minibatches=5 must divide the 12 items on each device"):
        minibatches(KEY(), 12, 3, 5)


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 65_536, 65_537])
def test_shuffled_rows_are_a_permutation(size: int) -> None:
    order = shuffled_rows(KEY(), size)
    np.testing.assert_array_equal(np.sort(order), np.arange(size))
    assert order.dtype == jnp.int32
    if size > 7:
        assert (shuffled_rows(jax.random.key(1), size) != order).mean() > 0.9


@pytest.mark.parametrize("size", [3, 4])
def test_all_orders_are_equally_likely(size: int) -> None:
    orders = jax.vmap(lambda key: shuffled_rows(key, size))(jax.random.split(KEY(), 200 * math.factorial(size)))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == math.factorial(size)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_standardized_over_the_valid_rows() -> None:
    rng = np.random.default_rng(0)
    x, valid = rng.normal(3.0, 7.0, size=(5, 8)).astype(np.float32), rng.random((5, 8)) < 0.7
    made = np.asarray(standardized(jnp.asarray(x), jnp.asarray(valid)))[valid]
    np.testing.assert_allclose(made, (x[valid] - x[valid].mean()) / x[valid].std(), rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError, match="shape"):
        standardized(jnp.zeros((3, 1)), jnp.ones(3, bool))


def test_explained_variance() -> None:
    rng = np.random.default_rng(0)
    target, value, valid = rng.normal(size=40), rng.normal(size=40), rng.random(40) < 0.7
    expected = 1 - (target - value)[valid].var() / target[valid].var()
    error = jnp.where(valid, jnp.asarray(target - value), jnp.nan)  # what is not valid may be anything
    assert float(explained_variance(jnp.asarray(target), error, jnp.asarray(valid))) == pytest.approx(expected, rel=1e-4)
    assert float(explained_variance(jnp.asarray(target), jnp.zeros(40), jnp.asarray(valid))) == pytest.approx(1.0)


def test_explained_variance_refuses_what_would_broadcast() -> None:
    with pytest.raises(AssertionError, match="shape"):
        explained_variance(jnp.zeros((3, 1)), jnp.zeros(3), jnp.ones(3, bool))
