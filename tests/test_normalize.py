"""Running statistics against NumPy over the valid rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.normalize import RunningMoments, init_moments, normalize, update_moments

T, B = 6, 4
EXAMPLE = {"position": jnp.zeros(3), "picture": jnp.zeros((2, 2), jnp.uint8), "height": jnp.zeros(())}
PRIOR = 1e-4
update = jax.jit(update_moments)


def make_rows(seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = {
        "position": rng.normal([3.0, -50.0, 0.01], [1.0, 5.0, 0.001], (T, B, 3)).astype(np.float32),
        "picture": rng.integers(0, 256, (T, B, 2, 2)).astype(np.uint8),
        "height": rng.normal(size=(T, B)).astype(np.float32),
    }
    return rows, rng.random((T, B)) < 0.7


def oracle(batches: list[tuple[dict[str, np.ndarray], np.ndarray]]) -> tuple[float, Any, Any]:
    """Count, means and variances over all valid rows together, and a prior of 1e-4 rows with mean 0 and variance 1."""
    count = PRIOR + sum(where.sum() for _, where in batches)
    means, variances = {}, {}
    for name in EXAMPLE:
        x = np.concatenate([rows[name][where] for rows, where in batches]).astype(np.float64)
        means[name] = x.sum(0) / count
        variances[name] = (PRIOR * (1 + means[name] ** 2) + ((x - means[name]) ** 2).sum(0)) / count
    return count, means, variances


def assert_moments(moments: RunningMoments, expected: Any, rtol: float = 1e-4) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), tuple(moments), tuple(expected))


def test_moments_are_those_of_the_valid_rows() -> None:
    batches = [make_rows(seed) for seed in range(5)]
    moments = init_moments(EXAMPLE)
    for i, (rows, where) in enumerate(batches):
        moments = update(moments, rows, where)
        assert_moments(moments, oracle(batches[: i + 1]))


def test_the_order_of_merging_does_not_matter() -> None:
    batches = [make_rows(seed) for seed in range(4)]
    orders = [batches, batches[::-1], [batches[i] for i in (2, 0, 3, 1)]]
    results = []
    for order in orders:
        moments = init_moments(EXAMPLE)
        for rows, where in order:
            moments = update(moments, rows, where)
        results.append(moments)
    for other in results[1:]:
        assert_moments(other, results[0])


def test_one_batch_or_its_parts() -> None:
    rows, where = make_rows(3)
    whole = update(init_moments(EXAMPLE), rows, where)
    moments = init_moments(EXAMPLE)
    for t in range(T):
        moments = update_moments(moments, jax.tree.map(lambda x, t=t: x[t], rows), where[t])
    assert_moments(moments, whole)


def test_invalid_rows_have_no_influence() -> None:
    rows, where = make_rows(0)
    changed = jax.tree.map(lambda x: np.where(where.reshape(T, B, *[1] * (x.ndim - 2)), x, 77).astype(x.dtype), rows)
    a, b = (update(init_moments(EXAMPLE), x, where) for x in (rows, changed))
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_invalid_rows_have_no_influence_even_if_they_are_not_finite(garbage: float) -> None:
    """A simulation that blew up ends its episode with an observation that is not finite; it is the reset row's."""
    where = jnp.ones((T, B), bool).at[2, 1].set(False)
    rows = jnp.where(where, 1.0, garbage)
    moments = update_moments(init_moments(jnp.zeros(())), rows, where)  # under jit XLA may turn a product into a select
    assert np.isfinite(moments.mean) and np.isfinite(moments.variance)
    assert float(moments.mean) == pytest.approx(1.0, rel=1e-3)


def test_nothing_valid_changes_nothing() -> None:
    rows, where = make_rows(0)
    before = update(init_moments(EXAMPLE), rows, where)
    assert_moments(update(before, rows, np.zeros_like(where)), before, rtol=1e-6)
    fresh = init_moments(EXAMPLE)
    assert_moments(update(fresh, rows, np.zeros_like(where)), fresh, rtol=1e-6)


def test_a_large_offset_does_not_cancel() -> None:
    """E[x²] − E[x]² in f32 would give garbage here."""
    moments = init_moments(jnp.zeros(()))
    rng = np.random.default_rng(0)
    x = (1e4 + rng.normal(size=(40, 2000))).astype(np.float32)
    for part in x:
        moments = update(moments, part, np.ones(2000, bool))
    prior = 1e8 * PRIOR / x.size  # what the prior's mean of 0 adds
    assert float(moments.variance) == pytest.approx(x.astype(np.float64).var() + prior, rel=0.02)


def test_devices_together_see_all_rows() -> None:
    rows, where = make_rows(5)
    whole = update(init_moments(EXAMPLE), rows, where)
    halves = jax.tree.map(lambda x: np.stack([x[:, :2], x[:, 2:]]), (rows, where))
    per_device = jax.vmap(partial(update_moments, axis_name="d"), in_axes=(None, 0, 0), axis_name="d")
    both = per_device(init_moments(EXAMPLE), *halves)
    for device in range(2):
        assert_moments(jax.tree.map(lambda x, d=device: x[d], both), whole)


def test_normalize_centres_scales_and_clips() -> None:
    moments = RunningMoments(jnp.float32(10), {"a": jnp.array([1.0, -2.0])}, {"a": jnp.array([4.0, 0.25])})
    x = np.array([[[3.0, -2.0], [1.0, -1.0]], [[1e6, -1e6], [-1.0, -3.0]]])
    expected = [[[1.0, 0.0], [0.0, 2.0]], [[10.0, -10.0], [-1.0, -2.0]]]
    np.testing.assert_allclose(normalize(moments, {"a": x})["a"], expected, rtol=1e-6)
    np.testing.assert_allclose(normalize(moments, {"a": x}, clip=1.5)["a"].max(), 1.5)


def test_normalize_takes_whole_numbers_and_constants() -> None:
    moments = RunningMoments(jnp.float32(1), jnp.float32(250), jnp.float32(100))
    out = normalize(moments, jnp.array([0, 255], jnp.uint8), clip=100.0)
    np.testing.assert_allclose(out, [-25.0, 0.5])  # and no wrap-around at 0 − 250
    constant = RunningMoments(jnp.float32(1), jnp.float32(3), jnp.float32(0))
    np.testing.assert_array_equal(normalize(constant, jnp.array([3.0])), [0.0])


def test_before_any_row_nothing_changes() -> None:
    x = jnp.array([-2.0, 0.5])
    np.testing.assert_allclose(normalize(init_moments(jnp.zeros(2)), x), x)
