"""Shaping of fitness: weights of the members of a population, from their returns.

A NaN counts as the lowest fitness. Members of equal fitness have equal weights.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from jaxrl.types import Array

ShapingFn = Callable[[Array], Array]
"""Function of fitness, f32[N], that returns weights, f32[N]."""


def lowest_for_nan(fitness: Array) -> Array:
    """Replace NaN by the lowest other value, or by 0 if there is none."""
    lowest = jnp.min(fitness, initial=jnp.inf, where=~jnp.isnan(fitness))
    return jnp.where(jnp.isnan(fitness), jnp.where(lowest < jnp.inf, lowest, 0.0), fitness)


def places(fitness: Array) -> tuple[Array, Array]:
    """Return the number of members below each, and that of those below it or equal, i32[N]. NaN is below all others."""
    values = jnp.where(jnp.isnan(fitness), -jnp.inf, fitness)
    ordered = jnp.sort(values)
    return jnp.searchsorted(ordered, values, side="left"), jnp.searchsorted(ordered, values, side="right")


def mean_ranks(fitness: Array) -> Array:
    """Return ranks from 0 to N - 1, f32[N]. Members of equal fitness share the mean of their ranks; NaN is below all others."""
    below, up_to = places(fitness)
    return (below + up_to - 1).astype(jnp.float32) / 2


def centered_rank(fitness: Array) -> Array:
    """Return ranks scaled to [-1/2, 1/2] (Salimans et al. 2017, section 2.1); 0 for a single member.

    Ties share their mean rank, so a population of equal members does not move.
    """
    return mean_ranks(fitness) / max(fitness.shape[0] - 1, 1) - (0.5 if fitness.shape[0] > 1 else 0.0)


def wierstra(fitness: Array) -> Array:
    """Return the utilities max(0, ln(N/2 + 1) - ln k) / Σ - 1/N of the k-th best member (Wierstra et al. 2014, "Natural evolution
    strategies", section 3.1). Ties share their mean utility."""
    number = fitness.shape[0]
    raw = jnp.maximum(0.0, jnp.log(number / 2 + 1) - jnp.log(jnp.arange(number, 0, -1.0)))
    utilities = raw / raw.sum() - 1 / number
    below, up_to = places(fitness)
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(utilities)])
    return (sums[up_to] - sums[below]) / (up_to - below)


def standardize(fitness: Array) -> Array:
    """Return fitness with mean 0 and standard deviation 1; 0 if all members are equal."""
    values = lowest_for_nan(fitness)
    deviation = values.std()
    return jnp.where(deviation > 0, (values - values.mean()) / jnp.where(deviation > 0, deviation, 1.0), 0.0)


def raw_fitness(fitness: Array) -> Array:
    """Return the fitness itself."""
    return lowest_for_nan(fitness)


def best_pairs(fitness: Array, share: float = 1.0) -> Array:
    """Return fitness divided by its standard deviation, for the best pairs; 0 for the others (Mania et al. 2018, "Simple random
    search provides a competitive approach to reinforcement learning", algorithm 2, version V1-t).

    A pair is as good as its better member. Weights are scaled by N over the number of kept members, so that their mean over all
    members is that over the kept ones.

    Args:
      fitness: f32[N], where members 2i and 2i + 1 are a pair.
      share: share of the pairs that are kept, at least one.
    """
    values = lowest_for_nan(fitness).reshape(-1, 2)
    kept = max(1, round(share * values.shape[0]))
    chosen = jnp.zeros(values.shape[0], bool).at[jnp.argsort(-values.max(1), stable=True)[:kept]].set(True)
    mean = jnp.sum(values * chosen[:, None]) / (2 * kept)
    deviation = jnp.sqrt(jnp.sum(jnp.square(values - mean) * chosen[:, None]) / (2 * kept))
    scaled = values / jnp.where(deviation > 0, deviation, 1.0) * (values.shape[0] / kept)
    return jnp.where(chosen[:, None] & (deviation > 0), scaled, 0.0).ravel()
