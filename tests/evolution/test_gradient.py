"""Gradients from members of several versions: the formulas by hand, unbiasedness, and their limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.evolution import gradient
from jaxrl.evolution.gradient import VersionFitness, descent_gradient, stale_gradient
from jaxrl.evolution.noise import NormalNoise, SignNoise
from jaxrl.evolution.shaping import centered_rank, raw_fitness

KEYS = jax.random.split(jax.random.key(0), 3)
THETA = jnp.array([1.0, -2.0, 0.5])
NOISE = NormalNoise()


def noise_of(key: Any, member: int) -> np.ndarray:
    return np.asarray(NOISE.member(key, jnp.int32(member), jnp.zeros(3), jnp.float32(1)))


def results(age: int, members: list[int], fitness: list[float], theta: Any = THETA, sigma: float = 0.5) -> VersionFitness:
    return VersionFitness(
        KEYS[age], sigma, jnp.asarray(theta), age, jnp.array(members, jnp.int32), jnp.array(fitness, jnp.float32)
    )


def test_the_descent_of_a_whole_population() -> None:
    weights = jnp.array([0.5, -0.1, 0.2, -0.6])
    found = descent_gradient(NOISE, KEYS[0], jnp.float32(0.5), weights, THETA, jnp.float32(0.1))
    expected = 0.1 * THETA - sum(w * noise_of(KEYS[0], m) for m, w in enumerate(weights)) / (4 * 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("correction", gradient.CORRECTIONS)
def test_the_present_version_alone_gives_the_plain_gradient(correction: str) -> None:
    fitness = [3.0, 1.0, 4.0, 1.5]
    found, logged = stale_gradient(correction, NOISE, centered_rank, THETA, 0.5, [results(0, [0, 1, 2, 3], fitness)])
    weights = centered_rank(jnp.array(fitness))
    expected = -descent_gradient(NOISE, KEYS[0], jnp.float32(0.5), weights, THETA, jnp.float32(0))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert logged["used"] == 4 and logged.get("effective_sample", 1.0) == pytest.approx(1)


def test_order_and_place_of_members_do_not_matter() -> None:
    one, other = (
        stale_gradient("within", NOISE, centered_rank, THETA, 0.5, [results(0, order, [float(m**2) for m in order])])[0]
        for order in ([8, 9, 4, 5], [5, 8, 9, 4])
    )
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_member_without_the_other_of_its_pair_counts_half() -> None:
    found, _ = stale_gradient("within", NOISE, raw_fitness, THETA, 0.5, [results(0, [0, 1, 6], [1.0, 2.0, 4.0])])
    expected = (noise_of(KEYS[0], 0) + 2 * noise_of(KEYS[0], 1) + 0.5 * 4 * noise_of(KEYS[0], 6)) / (2.5 * 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def parts() -> list[VersionFitness]:
    return [results(0, [0, 1], [2.0, 1.0]), results(1, [2, 3, 4, 5], [5.0, 0.0, 3.0, 2.0], THETA + 0.01, sigma=0.4)]


def test_within_weighs_each_version_by_its_members_and_age() -> None:
    one, other = ([each] for each in parts())
    found, logged = stale_gradient("within", NOISE, centered_rank, THETA, 0.5, parts(), age_discount=0.5)
    each = [stale_gradient("within", NOISE, centered_rank, THETA, 0.5, part)[0] for part in (one, other)]
    np.testing.assert_allclose(found, (2 * each[0] + 4 * 0.5 * each[1]) / (2 + 4 * 0.5), rtol=1e-5)
    assert logged == {"used": 6.0}


def test_drop_uses_the_present_version_alone() -> None:
    found, logged = stale_gradient("drop", NOISE, centered_rank, THETA, 0.5, parts())
    expected, _ = stale_gradient("within", NOISE, centered_rank, THETA, 0.5, parts()[:1])
    np.testing.assert_allclose(found, expected)
    assert logged == {"used": 2.0}
    nothing, logged = stale_gradient("drop", NOISE, centered_rank, THETA, 0.5, parts()[1:])
    assert not np.asarray(nothing).any() and logged == {"used": 0.0}


@pytest.mark.parametrize("older", [0.5, 0.6])
def test_shift_is_evokits_formula(older: float) -> None:
    """−(1/N) Σ r_i (σ_i ε_i + δ_i) of pooled ranks, negated and divided by the present σ²."""
    versions = [results(0, [0, 1], [2.0, 1.0]), results(1, [2, 3], [5.0, 0.0], THETA + jnp.array([0.1, -0.2, 0.3]), older)]
    found, _ = stale_gradient("shift", NOISE, centered_rank, THETA, 0.5, versions)
    ranks = np.asarray(centered_rank(jnp.array([2.0, 1.0, 5.0, 0.0])))
    delta = np.array([0.1, -0.2, 0.3])
    noise = [noise_of(KEYS[0], 0), noise_of(KEYS[0], 1), noise_of(KEYS[1], 2), noise_of(KEYS[1], 3)]
    sigmas, deltas = [0.5, 0.5, older, older], [0, 0, delta, delta]
    expected = sum(r * (s * e + d) for r, s, e, d in zip(ranks, sigmas, noise, deltas, strict=True)) / 4 / 0.25
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("older", [0.5, 0.6])
def test_importance_weights_are_ratios_of_densities(older: float) -> None:
    """The older version may have another σ."""
    delta = np.array([0.1, 0.0, -0.1])
    versions = [results(0, [0, 1], [2.0, 1.0]), results(1, [2, 3], [5.0, 0.0], THETA + jnp.array(delta), older)]
    found, logged = stale_gradient("importance", NOISE, raw_fitness, THETA, 0.5, versions)

    def density(x: np.ndarray, mean: Any, sigma: float) -> float:
        return float(np.exp(-((x - np.asarray(mean)) ** 2).sum() / (2 * sigma**2))) / sigma**3

    points = [np.asarray(THETA) + 0.5 * noise_of(KEYS[0], m) for m in (0, 1)]
    points += [np.asarray(THETA) + delta + older * noise_of(KEYS[1], m) for m in (2, 3)]
    drawn_by = [(THETA, 0.5), (THETA, 0.5), (THETA + delta, older), (THETA + delta, older)]
    weights = np.array([density(x, THETA, 0.5) / density(x, *by) for x, by in zip(points, drawn_by, strict=True)])
    towards = [(x - np.asarray(THETA)) / 0.25 for x in points]
    expected = sum(w * f * t for w, f, t in zip(weights, [2.0, 1.0, 5.0, 0.0], towards, strict=True)) / weights.sum()
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert logged["effective_sample"] == pytest.approx(weights.sum() ** 2 / (weights**2).sum() / 4, rel=1e-3)


def test_importance_falls_back_where_versions_are_far_apart() -> None:
    far = [results(0, [0, 1], [2.0, 1.0]), results(1, list(range(2, 12)), [float(m) for m in range(10)], THETA + 30.0)]
    found, logged = stale_gradient("importance", NOISE, centered_rank, THETA, 0.5, far)
    expected, _ = stale_gradient("within", NOISE, centered_rank, THETA, 0.5, far)
    np.testing.assert_allclose(found, expected)
    assert logged["effective_sample"] < 0.5 and np.isfinite(np.asarray(found)).all()


@partial(jax.jit, static_argnums=0)
def members_of(noise: Any, key: Any, numbers: Any, mean: Any) -> Any:
    return jax.vmap(lambda m: noise.member(key, m, mean, jnp.float32(0.1)))(numbers)


@pytest.mark.parametrize(
    ("correction", "noise"), [("within", NormalNoise()), ("within", SignNoise()), ("importance", NormalNoise())]
)
def test_gradients_of_a_quadratic_are_unbiased(correction: str, noise: Any) -> None:
    """Two thirds of the members are from the version before, whose mean is near."""
    estimates = []
    for i in range(200):
        key, before = jax.random.split(jax.random.key(i))
        versions = []
        for age, (own, mean, members) in enumerate([(key, THETA, range(8)), (before, THETA + 0.01, range(16))]):
            numbers = jnp.arange(len(members))
            fitness = -0.5 * (members_of(noise, own, numbers, mean) ** 2).sum(1)
            versions.append(VersionFitness(own, 0.1, mean, age, numbers, fitness))
        estimates.append(np.asarray(stale_gradient(correction, noise, raw_fitness, THETA, 0.1, versions)[0]))
    error = np.std(estimates, 0) / np.sqrt(200)
    assert (np.abs(np.mean(estimates, 0) + np.asarray(THETA)) < 4 * error + 0.02).all()


def test_an_unknown_correction_is_refused() -> None:
    with pytest.raises(ValueError, match="staleness='ignore' is unknown: choose one of within, shift"):
        stale_gradient("ignore", NOISE, centered_rank, THETA, 0.5, parts())
