"""Gradients of a population: from the fitness of its members, of this version or of older ones.

All ascend: they estimate the gradient of the expected fitness with respect to the mean of the population, divided by the same
scale. With members of older versions, δ = θ_v − θ is the older mean less the present one.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.evolution.noise import IndependentNoise, Noise, weighted_noise
from jaxrl.evolution.shaping import ShapingFn
from jaxrl.types import Array, Key, PyTree

CORRECTIONS = ("within", "shift", "importance", "drop")
"""Ways to learn from members of older versions; see ``stale_gradient``."""
MOST_WEIGHT = 10.0
"""Limit of an importance weight."""
LEAST_SAMPLE = 0.5
"""Effective sample size, as a share, below which importance weights are not used."""


def descent_gradient(
    noise: Noise, key: Key, sigma: Array, weights: Array, params: PyTree, weight_decay: Array, axis_name: str | None = None
) -> PyTree:
    """Return weight_decay · θ − Σ w_m ε_m / (N σ), along which an optimiser descends.

    Args:
      noise: distribution of the noise; this, ``key``, ``params`` and ``axis_name`` are as in ``weighted_noise``.
      sigma: standard deviation of the members' parameters, f32[].
      weights: weights of all members, f32[N].
      weight_decay: f32[].
    """
    ascent = weighted_noise(noise, key, weights, params, axis_name)
    scale = 1 / (weights.shape[0] * sigma)
    return jax.tree.map(lambda up, theta: weight_decay * theta - scale * up, ascent, params)


class VersionFitness(NamedTuple):
    """Fitness of some members of one version, in any number and order."""

    key: Key
    """Key of the version."""
    sigma: float
    theta: Array
    """f32[D]: mean of the version."""
    age: int
    """Number of versions since then; 0 for the present one."""
    member: Array
    """i32[n], without repetition."""
    fitness: Array
    """f32[n]"""


def stale_gradient(
    correction: str,
    noise: IndependentNoise,
    shaping: ShapingFn,
    theta: Array,
    sigma: float,
    tested: list[VersionFitness],
    age_discount: float = 1.0,
) -> tuple[Array, dict[str, float]]:
    """Estimate the gradient at ``theta``, f32[D], and ``sigma``, from members of several versions.

    A member without the other of its pair has half the weight of the others in the mean.

    Args:
      correction: what to do about older versions.
        "within": shape fitness within each version, and use its gradient at its own mean, with weight age_discount^age.
        "shift": take an older member as one of the present version with the noise (δ + σ_v ε)/σ, and shape the fitness of all
        together (the formula of EvoKit, with which it shares its bias towards older means, divided by σ²).
        "importance": the same, weighted by the density of the present version over that of the older one, at most
        ``MOST_WEIGHT``, and normalised by the sum (IW-ES: Campos et al. 2018, arXiv:1811.04624). Where the effective sample size
        is too small, "within".
        "drop": use the present version alone, as Salimans et al. 2017 do.
      tested: at least one version with members.

    Returns:
      The gradient, f32[D], and numbers to log: ``used``, the number of members that it is from, and ``effective_sample``, the
      effective sample size as a share, with "importance".
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"staleness={correction!r} is unknown: choose one of {', '.join(CORRECTIONS)}")
    logged: dict[str, float] = {}
    if correction in ("shift", "importance"):
        weights = jnp.ones(sum(len(each.member) for each in tested))
        if correction == "importance":
            weights = _densities(noise, theta, sigma, tested)
            share = float(weights.sum() ** 2 / (weights**2).sum() / weights.size)
            logged["effective_sample"] = share
        if correction == "shift" or share >= LEAST_SAMPLE:
            return _pooled(noise, shaping, theta, sigma, tested, weights), {"used": float(weights.size), **logged}
    used = [each for each in tested if correction != "drop" or each.age == 0]
    total, weight = jnp.zeros_like(theta), 0.0
    for each in used:
        share = len(each.member) * age_discount**each.age
        counts = _counts(each.member)
        one = _sum(noise, each, shaping(each.fitness) * counts) / (counts.sum() * each.sigma)
        total, weight = total + share * one, weight + share
    return total / max(weight, 1e-30), {"used": float(sum(len(each.member) for each in used)), **logged}


def _pooled(
    noise: IndependentNoise, shaping: ShapingFn, theta: Array, sigma: float, tested: list[VersionFitness], weights: Array
) -> Array:
    weights = weights * jnp.concatenate([_counts(each.member) for each in tested])
    shaped = weights * shaping(jnp.concatenate([each.fitness for each in tested]))
    total, at = jnp.zeros_like(theta), 0
    for each in tested:
        own = shaped[at : (at := at + len(each.member))]
        total += (each.sigma * _sum(noise, each, own) + own.sum() * (each.theta - theta)) / sigma**2
    return total / weights.sum()


def _densities(noise: IndependentNoise, theta: Array, sigma: float, tested: list[VersionFitness]) -> Array:
    """Return the importance weights of all members, clipped."""
    logs = [
        _log_ratios(noise, each.key, each.member, (each.theta - theta) / sigma, jnp.float32(each.sigma / sigma))
        for each in tested
    ]
    return jnp.minimum(jnp.exp(jnp.minimum(jnp.concatenate(logs), 20.0)), MOST_WEIGHT)


@partial(jax.jit, static_argnums=0)
def _log_ratios(noise: IndependentNoise, key: Key, member: Array, delta: Array, scale: Array) -> Array:
    """Return log N(x | θ, σ²) − log N(x | θ_v, σ_v²) of each member x, f32[n], from ``delta`` = δ/σ and ``scale`` = σ_v/σ."""

    def of_member(m: Array) -> Array:
        drawn = noise.of_member(key, m, delta.size)
        change = delta + (scale - 1.0) * drawn  # from ε to the noise with which the present version draws x
        return delta.size * jnp.log(scale) - change @ (drawn + 0.5 * change)

    return jax.lax.map(of_member, member)


def _sum(noise: IndependentNoise, of: VersionFitness, weights: Array) -> Array:
    """Return Σ w_m ε_m, f32[D]."""
    return _weighted_sum(noise, of.key, of.member, weights, of.theta)


@partial(jax.jit, static_argnums=0)
def _weighted_sum(noise: IndependentNoise, key: Key, member: Array, weights: Array, like: Array) -> Array:
    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + part[1] * noise.of_member(key, part[0], total.size), None

    return jax.lax.scan(add, jnp.zeros_like(like), (member, weights))[0]


def _counts(member: Array) -> Array:
    """Return how much each member counts in the mean, f32[n]: ½ without the other of its pair, and else 1."""
    pairs = member // 2
    ordered = jnp.sort(pairs)
    found = jnp.searchsorted(ordered, pairs, side="right") - jnp.searchsorted(ordered, pairs, side="left")
    return jnp.where(found == 2, 1.0, 0.5)
