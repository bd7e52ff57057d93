"""Metrics: merging obeys the laws of a commutative monoid, and a metric without counts is blank."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import metrics
from jaxrl.types import Max, Mean, Metrics, Min


def assert_equal(a: Metrics, b: Metrics) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y, strict=True), a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b)


def measure(values: jax.Array, where: jax.Array) -> Metrics:
    return {
        "mean": metrics.masked_mean(values, where),
        "min": metrics.masked_min(values, where),
        "max": metrics.masked_max(values, where),
        "scalar": metrics.scalar(values[0]),
    }


measure_jit = jax.jit(measure)

# Sums of small integers are exact in f32, so the laws hold to the bit.
parts = st.lists(
    st.tuples(st.lists(st.integers(-1000, 1000), min_size=4, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4)).map(
        lambda part: (np.array(part[0], np.float32), np.array(part[1]))
    ),
    min_size=3,
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(parts)
def test_merge_reduce_and_identity_are_lawful(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    a, b, c = (measure_jit(*part) for part in parts)
    merged = metrics.merge(metrics.merge(a, b), c)
    assert_equal(merged, metrics.merge(a, metrics.merge(b, c)))
    assert_equal(metrics.merge(a, b), metrics.merge(b, a))
    assert_equal(metrics.merge(a, metrics.identity(a)), a)
    assert_equal(metrics.merge(metrics.identity(a), a), a)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), a, b, c)
    assert_equal(metrics.reduce(stacked), merged)

    values, where = (np.concatenate(x) for x in zip(*parts, strict=True))
    chosen = values[where]
    closed = metrics.to_floats(merged)
    if chosen.size:
        expected = {"mean": chosen.mean(dtype=np.float64), "min": chosen.min(), "max": chosen.max()}
        assert {name: closed[name] for name in expected} == pytest.approx(expected)
    else:
        assert closed["mean"] is closed["min"] is closed["max"] is None
    assert closed["scalar"] == pytest.approx(np.mean([part[0][0] for part in parts]))
    assert closed == metrics.to_floats(stacked)  # to_floats also reduces over axes


def example() -> Metrics:
    values = jnp.arange(24.0).reshape(2, 3, 4)
    return jax.vmap(jax.vmap(measure))(values, values % 5 != 0)


@pytest.mark.slow
def test_reduce_over_any_axes() -> None:
    open_metrics = example()
    assert_equal(metrics.reduce(metrics.reduce(open_metrics, 1)), metrics.reduce(open_metrics, None))
    assert_equal(metrics.reduce(open_metrics, (0, 1)), metrics.reduce(open_metrics, None))
    assert metrics.reduce(open_metrics, 1)["mean"].sum.shape == (2,)


def test_identity_of_abstract_metrics_keeps_shapes_and_types() -> None:
    open_metrics = example()
    empty = metrics.identity(jax.eval_shape(lambda: open_metrics))
    jax.tree.map(lambda x, y: np.testing.assert_equal((x.shape, x.dtype), (y.shape, y.dtype)), empty, open_metrics)
    assert set(metrics.to_floats(empty).values()) == {None}
    assert_equal(metrics.merge(empty, open_metrics), open_metrics)


def test_all_reduce_is_reduce_over_devices() -> None:
    open_metrics = metrics.reduce(example(), 1)
    over_devices = jax.vmap(functools.partial(metrics.all_reduce, axis_name="d"), axis_name="d")(open_metrics)
    expected = metrics.reduce(open_metrics)
    for device in range(2):
        assert_equal(jax.tree.map(lambda x, d=device: x[d], over_devices), expected)
    assert metrics.all_reduce(expected, None) is expected


def test_what_is_masked_out_does_not_count_whatever_it_is() -> None:
    values = jnp.array([1.0, jnp.nan, jnp.inf, 4.0, -jnp.inf])
    closed = metrics.to_floats(measure(values, jnp.array([True, False, False, True, False])))
    assert closed == {"mean": 2.5, "min": 1.0, "max": 4.0, "scalar": 1.0}


def test_whole_numbers_are_taken_too() -> None:
    closed = metrics.to_floats(measure(jnp.array([3, 5, 7], jnp.int32), jnp.array([True, True, False])))
    assert closed == {"mean": 4.0, "min": 3.0, "max": 5.0, "scalar": 3.0}


def test_scalars_of_several_updates_count_one_each() -> None:
    losses = {"a": jnp.array([1.0, 2.0, 6.0]), "b": jnp.float32(5), "c": 2}
    logged = metrics.scalars(losses)
    assert metrics.to_floats(logged) == {"a": 3.0, "b": 5.0, "c": 2.0}
    assert [int(logged[name].count) for name in "abc"] == [3, 1, 1]
    assert {(x.shape, x.dtype.name) for x in jax.tree.leaves(logged)} == {((), "float32"), ((), "int32")}


def test_counts_are_exact() -> None:
    """Above 2^24, adding 1 to an f32 count would not change it."""
    many = {"m": Mean(jnp.float32(0), jnp.int32(2**24))}
    one = {"m": metrics.scalar(jnp.float32(1))}
    merged = metrics.merge(metrics.merge(many, one), one)
    assert merged["m"].count.dtype == jnp.int32
    assert int(merged["m"].count) == 2**24 + 2
    assert metrics.masked_mean(jnp.ones(3), jnp.array([True, False, True])).count.dtype == jnp.int32
    # Over many seeds the total on the host may exceed 32 bits.
    seeds = {"m": Mean(np.full(4, 2.0**30, np.float32), np.full(4, 2**30, np.int32))}
    assert metrics.to_floats(seeds) == {"m": 1.0}


def test_a_diverged_mean_is_not_hidden() -> None:
    assert np.isnan(metrics.to_floats({"loss": metrics.scalar(jnp.nan)})["loss"])


def test_blanks() -> None:
    nothing = {"a": Mean(np.float32(0), np.int32(0)), "b": Min(np.float32(np.inf)), "c": Max(np.full(3, -np.inf))}
    assert metrics.to_floats(nothing) == {"a": None, "b": None, "c": None}
    some = {"c": Max(np.array([-np.inf, 2.0])), "a": Mean(np.array([0.0, 3.0]), np.array([0, 2]))}
    assert metrics.to_floats(some) == {"c": 2.0, "a": 1.5}


def test_scalars_that_a_scan_writes_as_one_come_out_by_name() -> None:
    def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, metrics.Stacked]:
        return carry + x, metrics.stack({"double": 2 * x, "count": jnp.int32(3)})

    _, stacked = jax.lax.scan(body, jnp.float32(0), jnp.arange(4.0))
    assert stacked.values.shape == (4, 2)
    named = metrics.unstack(stacked)
    np.testing.assert_array_equal(named["double"], [0, 2, 4, 6])
    np.testing.assert_array_equal(named["count"], [3.0] * 4)


def test_a_metric_is_its_ratio_for_float_and_numpy() -> None:
    """A NamedTuple is a sequence to NumPy, which would otherwise return [sum, count]."""
    mean = Mean(jnp.array([6.0, 0.0, 1.0]), jnp.array([3, 0, 1], jnp.int32))
    np.testing.assert_array_equal(np.asarray(mean), [2.0, np.nan, 1.0])
    assert float(mean) == 1.75 == metrics.to_floats({"m": mean})["m"]
    assert np.mean(np.asarray(Mean(jnp.float32(6), jnp.int32(3)))) == 2.0
    np.testing.assert_array_equal(np.asarray(Min(jnp.array([1.0, jnp.inf]))), [1.0, np.nan])
    np.testing.assert_array_equal(
        np.array(Max(jnp.array([-jnp.inf, 4.0])), np.float32), np.array([np.nan, 4], np.float32), strict=True
    )
    assert float(Min(jnp.array([3.0, 1.0]))) == 1.0 and float(Max(jnp.float32(4))) == 4.0
    assert np.isnan([float(Mean(jnp.float32(0), jnp.int32(0))), float(Min(jnp.float32(jnp.inf)))]).all()
