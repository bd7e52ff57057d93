"""Noise of members: from (key, member) alone, antithetic, with unit variance; sums of it, and unbiased gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.evolution.noise import LowRankKernel, LowRankNoise, Noise, NormalNoise, SignNoise, is_kernel, weighted_noise

PARAMS = {"kernel": jnp.arange(35.0).reshape(5, 7), "bias": jnp.ones(2)}
KEY = jax.random.key(3)
flat_noise: Any = pytest.mark.parametrize("noise", [NormalNoise(), SignNoise()])
every_noise: Any = pytest.mark.parametrize("noise", [NormalNoise(), SignNoise(), LowRankNoise(), LowRankNoise(rank=3)])


def dense(params: Any) -> Any:
    """Compute the kernels that low-rank ones stand for."""
    is_low = lambda x: isinstance(x, LowRankKernel)  # noqa: E731
    return jax.tree.map(lambda x: x.kernel + x.left @ x.right.T if is_low(x) else x, params, is_leaf=is_low)


def member_params(noise: Noise, key: Any, member: Any, params: Any, sigma: Any) -> Any:
    return dense(noise.member(key, member, params, sigma))


def noise_of(noise: Noise, key: Any, pair: Any, size: int) -> Any:
    """Draw the noise of a kernel of this size, flat."""
    kernel = {"kernel": jnp.zeros((4, size // 4))}
    return member_params(noise, key, 2 * pair, kernel, jnp.float32(1))["kernel"].ravel()


@every_noise
def test_members_of_a_pair_have_opposite_noise(noise: Noise) -> None:
    one, other = (member_params(noise, KEY, jnp.int32(m), PARAMS, jnp.float32(0.5)) for m in (6, 7))
    for a, b, mean in zip(*map(jax.tree.leaves, (one, other, PARAMS)), strict=True):
        np.testing.assert_allclose((a + b) / 2, mean, atol=1e-6)
        assert np.abs(a - mean).max() > 0.1


@every_noise
def test_noise_is_new_in_each_pair_and_generation(noise: Noise) -> None:
    drawn = [np.asarray(noise_of(noise, key, jnp.int32(pair), 64)) for key in (KEY, jax.random.key(4)) for pair in range(3)]
    assert len({each.tobytes() for each in drawn}) == 6


@every_noise
def test_moments(noise: Noise) -> None:
    """Mean 0 and variance 1, and no correlation between parameters or pairs, within 4 standard errors."""
    drawn = np.asarray(jax.vmap(lambda pair: noise_of(noise, KEY, pair, 40))(jnp.arange(5000)))
    error = 1 / np.sqrt(5000)
    assert np.abs(drawn.mean(0)).max() < 4.5 * error
    covariance = drawn.T @ drawn / 5000
    fourth = 9 if isinstance(noise, LowRankNoise) else 3  # at most, of a product of two normal numbers
    np.testing.assert_allclose(np.diag(covariance), 1, atol=4.5 * error * np.sqrt(fourth - 1))
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 5 * error * np.sqrt(fourth / 3)
    assert abs((drawn[:-1] * drawn[1:]).mean()) < 4.5 / np.sqrt(drawn[1:].size)


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
    assert np.asarray(SignNoise().draw(KEY, jnp.int32(pair), size)).tolist() == expected


@every_noise
@pytest.mark.parametrize("number", [2, 32, *(pytest.param(number, marks=pytest.mark.slow) for number in (10, 140))])
def test_sums_are_those_of_all_noise_in_memory(noise: Noise, number: int) -> None:
    weights = jax.random.normal(jax.random.key(1), (number,))
    nothing = jax.tree.map(jnp.zeros_like, PARAMS)
    members = [member_params(noise, KEY, jnp.int32(m), nothing, jnp.float32(1)) for m in range(number)]
    expected = jax.tree.map(lambda *leaves: sum(w * x for w, x in zip(weights, leaves, strict=True)), *members)
    found = jax.jit(lambda w: weighted_noise(noise, KEY, w, PARAMS))(weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found, expected)


def test_an_odd_number_of_members_is_refused() -> None:
    with pytest.raises(ValueError, match="weights of 3 members must be an even number"):
        weighted_noise(NormalNoise(), KEY, jnp.ones(3), PARAMS)


def test_only_kernels_of_dense_layers_have_low_rank() -> None:
    layer, convolution = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}, {"kernel": jnp.ones((2, 2, 3, 4))}
    params = {"a": layer, "b": convolution, "embedding": jnp.ones((4, 5))}
    found = {jax.tree_util.keystr(path): is_kernel(path, x) for path, x in jax.tree.leaves_with_path(params)}
    assert [name for name, is_one in found.items() if is_one] == ["['a']['kernel']"]
    assert not is_kernel((), jnp.ones((2, 2)))


@every_noise
def test_the_gradient_of_a_quadratic_is_unbiased(noise: Noise) -> None:
    """Over 10,000 generations of eight members, within 3 standard errors in each of five parameters."""
    scales = {"kernel": jnp.array([[1.0, 0.5], [2.0, 0.1]]), "bias": jnp.array([1.5])}
    theta = {"kernel": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "bias": jnp.array([0.3])}
    sigma = jnp.float32(0.1)

    def fitness(params: Any) -> Any:
        return -0.5 * sum(jnp.sum(a * x**2) for a, x in zip(*map(jax.tree.leaves, (scales, params)), strict=True))

    def estimate(key: Any) -> Any:
        members = jax.vmap(lambda m: member_params(noise, key, m, theta, sigma))(jnp.arange(8))
        ascent = weighted_noise(noise, key, jax.vmap(fitness)(members), theta)
        return jax.tree.map(lambda x: x / (8 * sigma), ascent)

    estimates = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(5), 10_000))
    for found, a, x in zip(*map(jax.tree.leaves, (estimates, scales, theta)), strict=True):
        errors = np.asarray(found).std(0) / 100
        assert (np.abs(np.asarray(found).mean(0) + a * x) < 3 * errors + 1e-4).all()
