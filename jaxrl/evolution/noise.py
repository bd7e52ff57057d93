"""Noise of the members of a population, drawn from (key, member) alone.

A member is the parameters plus σ times its noise. Any process can draw the noise of any member again, so a few bytes stand for a
member, and results do not depend on how members are divided among chunks, devices or workers. Members 2i and 2i + 1 are a pair
with opposite noise: mirrored sampling (Brockhoff et al. 2010, "Mirrored sampling and sequential selection for evolution
strategies").
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl.settings.aliases import unknown
from jaxrl.types import Array, Key, PyTree
from jaxrl.xla.fast_random import bits, fold_in, normal

NoiseKind = Literal["normal", "sign"]
"""Distribution of the noise: standard normal; or +1 and -1 with equal probability (Rademacher), which other languages reproduce
to the bit."""

WORD = 32
"""Bits of a word of random bits."""


def pair_noise(kind: NoiseKind, key: Key, pair: Array, size: int) -> Array:
    """Draw the noise of the first member of a pair, f32[size], with mean 0 and variance 1.

    Args:
      kind: its distribution.
      key: key of the generation.
      pair: number of the pair, i32[].
      size: number of parameters.

    "sign" has the value +1 where bit j mod 32 of word j // 32 is 0, and else -1. Word w is the exclusive or of the two words of
    Threefry-2x32 with the key ``fold_in(key, pair)`` and the counter (0, w).

    Raises:
      ValueError: ``kind`` is unknown.
    """
    own = fold_in(key, pair)
    if kind == "normal":
        return normal(own, (size,))
    if kind == "sign":
        words = bits(own, (-(-size // WORD),), jnp.uint32)
        negative = (words[:, None] >> jnp.arange(WORD, dtype=jnp.uint32)) & 1
        return 1.0 - 2.0 * negative.ravel()[:size].astype(jnp.float32)
    raise unknown("noise", kind, get_args(NoiseKind))


def member_params(kind: NoiseKind, key: Key, member: Array, params: PyTree, sigma: Array) -> PyTree:
    """Return the parameters of a member: ``params`` plus ``sigma`` times its noise.

    Args:
      kind, key: as in ``pair_noise``.
      member: number of the member, i32[].
      params: mean of the population.
      sigma: standard deviation, f32[].
    """
    mean, unravel = ravel_pytree(params)
    noise = pair_noise(kind, key, member // 2, mean.size)
    return unravel(mean + jnp.where(member % 2 == 0, sigma, -sigma) * noise)


def weighted_noise(
    kind: NoiseKind, key: Key, weights: Array, params: PyTree, *, first: int | Array = 0, chunk: int = 8
) -> PyTree:
    """Compute the sum over members of weight times noise, without the noise of all of them in memory.

    With shaped fitness F as weights, and divided by N · σ, this estimates the gradient of the expected fitness with respect to
    the mean: Σ F_m ε_m / (N σ) (Salimans et al. 2017, "Evolution strategies as a scalable alternative to reinforcement
    learning", equation 1).

    Args:
      kind, key: as in ``pair_noise``.
      weights: weights of the members ``first``, ``first`` + 1, …, f32[N]; N and ``first`` are even.
      params: parameters, whose structure the result has.
      chunk: number of pairs whose noise is drawn at once.

    Raises:
      ValueError: N is odd.
    """
    mean, unravel = ravel_pytree(params)
    if weights.shape[0] % 2:
        raise ValueError(f"weights of {weights.shape[0]} members must be an even number of them: members are pairs")
    differences = weights[0::2] - weights[1::2]
    pairs = jnp.arange(differences.shape[0]) + jnp.asarray(first) // 2

    def term(pair_and_weight: Any) -> Array:
        pair, weight = pair_and_weight
        return weight * pair_noise(kind, key, pair, mean.size)

    def add(total: Array, part: Any) -> tuple[Array, None]:
        return total + jax.vmap(term)(part).sum(0), None

    whole = differences.shape[0] // chunk * chunk
    split = jax.tree.map(lambda x: x[:whole].reshape(-1, chunk, *x.shape[1:]), (pairs, differences))
    total, _ = jax.lax.scan(add, jnp.zeros_like(mean), split)
    return unravel(add(total, (pairs[whole:], differences[whole:]))[0] if whole < differences.shape[0] else total)
