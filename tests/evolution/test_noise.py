"""Noise of members: from (key, member) alone, antithetic, with unit variance; sums of it, and unbiased gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.evolution.noise import member_params, pair_noise, weighted_noise

KINDS = ["normal", "sign"]
PARAMS = {"w": jnp.arange(35.0).reshape(5, 7), "b": jnp.ones(2)}
KEY = jax.random.key(3)
every_kind: Any = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_members_of_a_pair_have_opposite_noise(kind: Any) -> None:
    one, other = (member_params(kind, KEY, jnp.int32(m), PARAMS, jnp.float32(0.5)) for m in (6, 7))
    for a, b, mean in zip(*map(jax.tree.leaves, (one, other, PARAMS)), strict=True):
        np.testing.assert_allclose((a + b) / 2, mean, atol=1e-6)
        assert np.abs(a - mean).max() > 0.1


@every_kind
def test_noise_is_new_in_each_pair_and_generation(kind: Any) -> None:
    drawn = [np.asarray(pair_noise(kind, key, jnp.int32(pair), 64)) for key in (KEY, jax.random.key(4)) for pair in range(3)]
    assert len({each.tobytes() for each in drawn}) == 6


@every_kind
def test_moments(kind: Any) -> None:
    """Mean 0 and variance 1, and no correlation between parameters or pairs, within 4 standard errors."""
    noise = np.asarray(jax.vmap(lambda pair: pair_noise(kind, KEY, pair, 40))(jnp.arange(5000)))
    error = 1 / np.sqrt(5000)
    assert np.abs(noise.mean(0)).max() < 4.5 * error
    covariance = noise.T @ noise / 5000
    np.testing.assert_allclose(np.diag(covariance), 1, atol=4.5 * error * np.sqrt(2))
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 5 * error
    assert abs((noise[:-1] * noise[1:]).mean()) < 4.5 / np.sqrt(noise[1:].size)


def threefry(key: Any, x: int, y: int) -> tuple[int, int]:
    """Threefry-2x32 in Python's integers."""
    keys, mask = [int(key[0]), int(key[1]), int(key[0]) ^ int(key[1]) ^ 0x1BD11BDA], 2**32 - 1
    x, y = (x + keys[0]) & mask, (y + keys[1]) & mask
    for i in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = (x + y) & mask
            y = x ^ ((y << r | y >> (32 - r)) & mask)
        x, y = (x + keys[(i + 1) % 3]) & mask, (y + keys[(i + 2) % 3] + i + 1) & mask
    return x, y


def test_signs_are_those_of_another_language() -> None:
    pair, size = 12345, 100
    key = threefry(jax.random.key_data(KEY), 0, pair)
    words = [x ^ y for x, y in (threefry(key, 0, w) for w in range(4))]
    expected = [1.0 - 2 * (words[j // 32] >> j % 32 & 1) for j in range(size)]
    assert np.asarray(pair_noise("sign", KEY, jnp.int32(pair), size)).tolist() == expected


@every_kind
@pytest.mark.parametrize(("number", "chunk", "first"), [(10, 8, 0), (16, 2, 4), (12, 4, 0), (2, 8, 0)])
def test_sums_are_those_of_all_noise_in_memory(kind: Any, number: int, chunk: int, first: int) -> None:
    weights = jax.random.normal(jax.random.key(1), (number,))
    members = [
        member_params(kind, KEY, jnp.int32(first + m), jax.tree.map(jnp.zeros_like, PARAMS), jnp.float32(1))
        for m in range(number)
    ]
    expected = jax.tree.map(lambda *leaves: sum(w * x for w, x in zip(weights, leaves, strict=True)), *members)
    found = jax.jit(lambda w: weighted_noise(kind, KEY, w, PARAMS, first=first, chunk=chunk))(weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found, expected)


def test_an_odd_number_and_an_unknown_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="weights of 3 members must be an even number"):
        weighted_noise("normal", KEY, jnp.ones(3), PARAMS)
    with pytest.raises(ValueError, match="unknown noise 'gauss'"):
        pair_noise("gauss", KEY, jnp.int32(0), 3)  # type: ignore[arg-type]


@every_kind
def test_the_gradient_of_a_quadratic_is_unbiased(kind: Any) -> None:
    """Over 10,000 generations of eight members, within 4 standard errors in each of five parameters."""
    scales, sigma = jnp.array([1.0, 0.5, 2.0, 0.1, 1.5]), jnp.float32(0.1)
    theta = jnp.array([1.0, -2.0, 0.5, 3.0, 0.0])

    def estimate(key: Any) -> Any:
        members = jax.vmap(lambda m: member_params(kind, key, m, theta, sigma))(jnp.arange(8))
        fitness = -0.5 * jnp.sum(scales * members**2, 1)
        return weighted_noise(kind, key, fitness, theta) / (8 * sigma)

    estimates = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(5), 10_000)))
    errors = estimates.std(0) / 100
    assert (np.abs(estimates.mean(0) + scales * theta) < 4 * errors + 1e-4).all()
