"""Shuffled minibatches that are used once per epoch, and explained variance against NumPy."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl.metrics import scalars, to_floats
from jaxrl.optimize.minibatches import (
    check_minibatches,
    explained_variance,
    mean_over_taken_steps,
    minibatches,
    num_blocks,
    shuffled,
    shuffled_rows,
    standardized,
    stop_on_kl,
)

KEY = partial(jax.random.key, 0)


def test_every_item_is_in_one_minibatch_of_each_epoch() -> None:
    order = np.asarray(minibatches(KEY(), 12, 3, 3, 4))
    assert order.shape == (3, 4, 3) and order.dtype == np.int32
    epochs = order.reshape(3, 12)
    np.testing.assert_array_equal(np.sort(epochs, -1), np.tile(np.arange(12), (3, 1)))
    assert not np.array_equal(epochs[0], epochs[1])
    with pytest.raises(ValueError, match="num_minibatches=5 must divide the 12 items on each device"):
        minibatches(KEY(), 12, 3, 3, 5)


@pytest.mark.parametrize(
    ("size", "num_envs", "parts", "blocks"),
    [
        (8 * 16, 16, 4, 16),
        (8 * 16, 16, 32, 4),
        (7 * 12, 12, 7, 4),
        (7 * 12, 12, 6, 2),
        (16, 16, 4, 4),
        (6, 6, 2, 1),
        (5, 5, 5, 1),
    ],
)
def test_a_minibatch_takes_as_much_of_each_block_of_environments(size: int, num_envs: int, parts: int, blocks: int) -> None:
    assert num_blocks(size, num_envs, parts) == blocks
    env = np.asarray(minibatches(KEY(), size, num_envs, 2, parts)) % num_envs  # rows [T, B], or sequences if T is 1
    block = env // (num_envs // blocks)
    np.testing.assert_array_equal((block[..., None] == np.arange(blocks)).sum(2), size // parts // blocks)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_shuffle_their_blocks_as_one_does(devices: int, rows: int) -> None:
    """Items are named (row, environment); 24 environments make 8 blocks of 3."""
    num_envs, parts = 24, 3
    local, shape = num_envs // devices, (devices, 2, parts, -1)

    def share(_: Any) -> Any:
        order = minibatches(KEY(), rows * local, local, 2, parts, "d")
        return order // local * num_envs + jax.lax.axis_index("d") * local + order % local

    shares = np.asarray(jax.vmap(share, axis_name="d")(jnp.arange(devices))).reshape(shape)
    together = np.concatenate(list(shares), -1)
    alone = np.asarray(minibatches(KEY(), rows * num_envs, num_envs, 2, parts))
    np.testing.assert_array_equal(np.sort(together, -1), np.sort(alone, -1))


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
    error = jnp.where(valid, jnp.asarray(target - value), jnp.nan)  # invalid rows may hold any value
    assert float(explained_variance(jnp.asarray(target), error, jnp.asarray(valid))) == pytest.approx(expected, rel=1e-4)
    assert float(explained_variance(jnp.asarray(target), jnp.zeros(40), jnp.asarray(valid))) == pytest.approx(1.0)


def test_explained_variance_refuses_what_would_broadcast() -> None:
    with pytest.raises(AssertionError, match="shape"):
        explained_variance(jnp.zeros((3, 1)), jnp.zeros(3), jnp.ones(3, bool))


class Rows(NamedTuple):
    x: Any
    advantage: Any
    valid: Any
    carry: Any = ()


def test_the_minibatches_of_an_epoch() -> None:
    rng = np.random.default_rng(0)
    valid = rng.random(12) < 0.7
    rows = Rows(np.where(valid, np.arange(12.0), np.inf), rng.normal(size=12), valid, np.full(12, np.inf))
    order = rng.permutation(12).reshape(3, 4)
    parts = shuffled(rows, jnp.asarray(order), standardize=True)
    np.testing.assert_array_equal(parts.x, np.where(valid, np.arange(12.0), 0.0)[order])  # finite in invalid rows
    assert np.isinf(parts.carry).all() and parts.carry.shape == (3, 4)
    for part, which in zip(np.asarray(parts.advantage), order, strict=True):
        of_part = rows.advantage[which][valid[which]]
        np.testing.assert_allclose(
            part[valid[which]], (of_part - of_part.mean()) / np.sqrt(of_part.var() + 1e-8), rtol=1e-4, atol=1e-5
        )
    np.testing.assert_array_equal(
        shuffled(rows, jnp.asarray(order), standardize=False).advantage, np.float32(rows.advantage)[order]
    )


def test_numbers_of_parts_have_to_divide() -> None:
    config = lambda number: SimpleNamespace(num_minibatches=number, rollout_length=4)  # noqa: E731
    check_minibatches(config(4), 24, recurrent=False, accumulation_steps=3)
    check_minibatches(config(3), 24, recurrent=True)
    with pytest.raises(ValueError, match=r"^num_minibatches=5 must divide num_envs \* rollout_length=24$"):
        check_minibatches(config(5), 24, recurrent=False)
    with pytest.raises(ValueError, match=r"^num_minibatches=4 must divide num_envs=6 \(a recurrent model learns from whole"):
        check_minibatches(config(4), 24, recurrent=True)
    with pytest.raises(ValueError, match=r"^accumulation_steps=4 must divide num_envs \* rollout_length / num_minibatches = 6$"):
        check_minibatches(config(4), 24, recurrent=False, accumulation_steps=4)


def test_from_the_first_step_beyond_the_limit_on_nothing_changes() -> None:
    def step(carry: Any, moved: Any) -> Any:
        old, going = carry
        new = {"x": old["x"] + 1, "n": old["n"] * 2}
        going, new = stop_on_kl(0.5, {"losses/approx_kl": moved}, going, new, old)
        return (new, going), going

    start = ({"x": jnp.float32(0), "n": jnp.int32(1)}, jnp.array(True))
    moved = jnp.array([0.1, jnp.nan, 0.5, 0.6, 0.1, 0.0])
    (state, _), going = jax.lax.scan(step, start, moved)
    assert going.tolist() == [True, True, True, False, False, False]  # NaN does not stop early, so that it is reported
    assert (float(state["x"]), int(state["n"])) == (3.0, 8)
    assert stop_on_kl(0.5, {}, None, "new", "old") == (None, "new")


def test_what_is_logged_is_that_of_the_steps_taken() -> None:
    logged = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.full((3, 2), jnp.nan).at[0].set(1.0).at[1, 0].set(4.0)}
    taken = mean_over_taken_steps(logged, jnp.array([[True, True], [True, False], [False, False]]))
    assert to_floats(scalars(taken)) == {"a": 1.0, "b": 2.0, "charts/num_epochs": 1.5}
    assert mean_over_taken_steps(logged, None) == logged
