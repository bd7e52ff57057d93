"""Noise of the members of a population, drawn from (key, member) alone.

A member is the parameters plus σ times its noise. Any process can draw the noise of any member again, so a few bytes stand for a
member, and results do not depend on how members are divided among chunks, devices or workers. Members 2i and 2i + 1 are a pair
with opposite noise: mirrored sampling (Brockhoff et al. 2010, "Mirrored sampling and sequential selection for evolution
strategies").
"""

from __future__ import annotations

import abc
import itertools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count
from jaxrl.types import Array, Key, PyTree
from jaxrl.xla.collectives import varying
from jaxrl.xla.fast_random import bits, fold_in, normal
from jaxrl.xla.platforms import on_cpu

WORD = 32
"""Bits of a word of random bits."""


class Noise(Option, abc.ABC):
    """Distribution of the noise, with mean 0 and variance 1 for each parameter."""

    @abc.abstractmethod
    def member(self, key: Key, member: Array, params: PyTree, sigma: Array) -> PyTree:
        """Return the parameters of a member: ``params`` plus ``sigma`` times its noise.

        Args:
          key: key of the generation.
          member: number of the member, i32[].
          params: mean of the population.
          sigma: standard deviation, f32[].
        """

    @abc.abstractmethod
    def weighted(self, key: Key, pairs: Array, weights: Array, params: PyTree) -> PyTree:
        """Return the sum of weight times noise over the first members of some pairs, with the structure of ``params``.

        Args:
          pairs: numbers of the pairs, i32[P].
          weights: f32[P].
        """


class IndependentNoise(Noise):
    """Noise that is independent between parameters."""

    @abc.abstractmethod
    def draw(self, key: Key, pair: Array, size: int) -> Array:
        """Draw the noise of the first member of a pair, f32[size].

        Args:
          key: key of the generation.
          pair: number of the pair, i32[].
        """

    def of_member(self, key: Key, member: Array, size: int) -> Array:
        """Draw the noise of a member, f32[size]."""
        drawn = self.draw(key, member // 2, size)
        return jnp.where(member % 2 == 0, drawn, -drawn)

    def member(self, key: Key, member: Array, params: PyTree, sigma: Array) -> PyTree:
        mean, unravel = ravel_pytree(params)
        return unravel(mean + sigma * self.of_member(key, member, mean.size))

    def weighted(self, key: Key, pairs: Array, weights: Array, params: PyTree) -> PyTree:
        mean, unravel = ravel_pytree(params)
        return unravel(weights @ jax.vmap(lambda pair: self.draw(key, pair, mean.size))(pairs))


@option("normal")
class NormalNoise(IndependentNoise):
    """Standard normal noise (Salimans et al. 2017)."""

    def draw(self, key: Key, pair: Array, size: int) -> Array:
        return normal(fold_in(key, pair), (size,))


@option("sign")
class SignNoise(IndependentNoise):
    """+1 or −1 with equal probability (Rademacher; Spall 1992), which any language reproduces to the bit.

    The value is +1 where bit j mod 32 of word j // 32 is 0, and else −1. Word w is the exclusive or of the two words of
    Threefry-2x32 with the key ``fold_in(key, pair)`` and the counter (0, w).
    """

    def draw(self, key: Key, pair: Array, size: int) -> Array:
        words = bits(fold_in(key, pair), (-(-size // WORD),), jnp.uint32)
        negative = (words[:, None] >> jnp.arange(WORD, dtype=jnp.uint32)) & 1
        return 1.0 - 2.0 * negative.ravel()[:size].astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LowRankKernel:
    """Kernel f32[n, m] of a dense layer plus the product of two narrow matrices, which dense layers do not compute.

    All members share ``kernel``, so that their products with it are one.
    """

    kernel: Array
    left: Array
    """f32[n, r]"""
    right: Array
    """f32[m, r]"""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kernel.shape

    def whole(self) -> Array:
        """Return the sum."""
        return self.kernel + self.left @ self.right.T


@option("low_rank")
class LowRankNoise(Noise):
    """For the kernels of dense layers, a·bᵀ / √rank with standard normal a and b, and standard normal noise for all other
    parameters (Sarkar et al. 2025, "Evolution strategies at the hyperscale").

    A population's forward pass shares the products with the unperturbed kernels, so it needs the built-in networks.
    """

    rank: Count = 1
    """Columns of a and b."""

    def draws(self, key: Key, pair: Array, leaves: list[tuple[Any, Array]]) -> list[Any]:
        """Draw the noise of each leaf: an array, or for a kernel the pair (a, b)."""
        sizes = [self.rank * sum(x.shape) if is_kernel(path, x) else x.size for path, x in leaves]
        drawn = jnp.split(normal(fold_in(key, pair), (sum(sizes),)), list(itertools.accumulate(sizes))[:-1])

        def shaped(path: Any, x: Array, noise: Array) -> Any:
            if not is_kernel(path, x):
                return noise.reshape(x.shape)
            both = noise.reshape(-1, self.rank)
            return both[: x.shape[0]], both[x.shape[0] :]

        return [shaped(path, x, noise) for (path, x), noise in zip(leaves, drawn, strict=True)]

    def member(self, key: Key, member: Array, params: PyTree, sigma: Array) -> PyTree:
        leaves, structure = jax.tree.flatten_with_path(params)
        sigma, scale = jnp.where(member % 2 == 0, sigma, -sigma), 1 / math.sqrt(self.rank)

        def perturbed(mean: Array, noise: Any) -> Any:
            if isinstance(noise, tuple):
                return LowRankKernel(mean, noise[0], noise[1] * (sigma * scale))
            return mean + sigma * noise

        drawn = self.draws(key, member // 2, leaves)
        return structure.unflatten([perturbed(x, noise) for (_, x), noise in zip(leaves, drawn, strict=True)])

    def weighted(self, key: Key, pairs: Array, weights: Array, params: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten_with_path(params)

        def total(noise: Any) -> Array:
            if isinstance(noise, tuple):
                left, right = noise
                return jnp.einsum("p,pnr,pmr->nm", weights, left, right) / math.sqrt(self.rank)
            return jnp.tensordot(weights, noise, 1)

        drawn = jax.vmap(lambda pair: self.draws(key, pair, leaves))(pairs)
        return structure.unflatten([total(noise) for noise in drawn])


def is_kernel(path: Any, x: Array) -> bool:
    """Return whether a leaf of a flax network's parameters is the kernel of a dense layer."""
    return x.ndim == 2 and getattr(path[-1], "key", None) == "kernel" if path else False


# ------------------------------------------------------------------------------------------------------------------------ sums

BLOCKS = 8
"""Parts of the sum of noise, which are then added in order. So it is the same to the bit on 1, 2, 4 or 8 devices."""
CHUNK = 8
"""Pairs whose noise is in memory at once."""


def weighted_noise(noise: Noise, key: Key, weights: Array, params: PyTree, axis_name: str | None = None) -> PyTree:
    """Compute the sum over members of weight times noise, without the noise of all of them in memory.

    With shaped fitness F as weights, and divided by N · σ, this estimates the gradient of the expected fitness with respect to
    the mean: Σ F_m ε_m / (N σ) (Salimans et al. 2017, "Evolution strategies as a scalable alternative to reinforcement
    learning", equation 1).

    Args:
      noise: distribution of the noise.
      key: key of the generation.
      weights: weights of all members, f32[N], the same on all devices; N is even.
      params: parameters, whose structure the result has.
      axis_name: device axis over which the work is divided. The result is the same on all devices.

    Raises:
      ValueError: N is odd, or the devices cannot have equal shares.
    """
    if weights.shape[0] % 2:
        raise ValueError(f"weights of {weights.shape[0]} members must be an even number of them: members are pairs")
    differences = weights[0::2] - weights[1::2]
    number, devices = differences.shape[0], 1 if axis_name is None else jax.lax.axis_size(axis_name)
    if number % devices:
        raise ValueError(f"{2 * number} members cannot be divided among {devices} devices: use a multiple of {2 * devices}")
    blocks = math.lcm(math.gcd(number, BLOCKS), devices)
    blocks = blocks if number % blocks == 0 else devices
    parts = jnp.arange(number).reshape(blocks, -1), differences.reshape(blocks, -1)
    if axis_name is not None:
        share, params = blocks // devices, varying(params, axis_name)
        first = jax.lax.axis_index(axis_name) * share
        parts = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, share), parts)
    sums = jax.lax.map(lambda part: _sum_in_chunks(noise, key, part, params), parts)
    return jax.tree.map(lambda x: x.sum(0), gathered(sums, axis_name))


def gathered(parts: PyTree, axis_name: str | None) -> PyTree:
    """Gather arrays from all devices of an axis along their leading axes.

    The result has the same bits for any number of devices, and so has all that is computed from it.
    """
    if axis_name is not None:

        def placed(x: Array) -> Array:
            size = x.shape[0] * jax.lax.axis_size(axis_name)
            whole = varying(jnp.zeros((size, *x.shape[1:]), x.dtype), axis_name)
            return jax.lax.dynamic_update_slice_in_dim(whole, x, jax.lax.axis_index(axis_name) * x.shape[0], 0)

        parts = jax.lax.psum(jax.tree.map(placed, parts), axis_name)  # each number plus zeros, which changes no bit
    # XLA would fuse a sum of the parts with their computation, and then add in an order that depends on it.
    return on_cpu(parts, cpu=jax.lax.optimization_barrier, default=lambda parts: parts)


def _sum_in_chunks(noise: Noise, key: Key, pairs_and_weights: tuple[Array, Array], params: PyTree) -> PyTree:
    """Sum over pairs, i32[P] and f32[P], one chunk after another."""
    size = math.gcd(len(pairs_and_weights[0]), CHUNK)
    pairs, weights = (x.reshape(-1, size) for x in pairs_and_weights)

    def add(total: PyTree, part: tuple[Array, Array]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, noise.weighted(key, part[0], part[1], params)), None

    first = noise.weighted(key, pairs[0], weights[0], params)  # zeros would be typed as equal on all devices
    return jax.lax.scan(add, first, (pairs[1:], weights[1:]))[0]
