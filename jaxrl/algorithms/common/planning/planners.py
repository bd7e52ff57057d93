"""Planners: options that search for the best sequence of actions by sampling.

A planner is a pure function ``plan(score, mean, key) -> plan``. Sequences of actions are f32[horizon, d] in [−1, 1]; ``score``
gives the return of each of many sequences, and ``mean`` is a first guess, such as the previous plan without its first action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.exploration.action_noise import standard_normal, uniform
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count, Positive, PositiveUnit, Unit
from jaxrl.types import Array, Key

Score: TypeAlias = Callable[[Array], Array]
"""Sequences f32[N, horizon, d] in [−1, 1] -> their returns f32[N]."""


@option("random_shooting")
class RandomShooting(Option):
    """Take the best of uniformly drawn sequences (Nagabandi et al. 2018). The first guess has no effect."""

    candidates: Count = 500
    """Number of sequences."""

    def plan(self, score: Score, mean: Array, key: Key) -> Array:
        """Return argmax R(A) over A⁽¹⁾, …, A⁽ᴺ⁾ ~ U[−1, 1]."""
        sequences = uniform(key, (self.candidates, *mean.shape))
        return sequences[jnp.argmax(comparable(score(sequences)))]


@option("cem")
class CEM(Option):
    """Cross-entropy method (Rubinstein 1999; de Boer et al. 2005), as in PETS (Chua et al. 2018): fit a Gaussian to the best
    sequences that it drew, again and again."""

    candidates: Count = 100
    """Number of sequences drawn in each iteration."""
    iterations: Count = 4
    """Number of Gaussians fitted."""
    elites: Count = 10
    """Number of best sequences to which a Gaussian is fitted."""
    deviation: Positive = 0.5
    """Standard deviation of the first Gaussian."""
    smoothing: Unit = 0.1
    """α: weight of the previous mean and standard deviation in the next."""

    def check(self) -> None:
        if self.elites > self.candidates:
            raise ValueError(f"elites={self.elites} must be at most candidates={self.candidates}")

    def plan(self, score: Score, mean: Array, key: Key) -> Array:
        """Return the mean after the last of the iterations μ ← α·μ + (1 − α)·mean(elites), σ ← α·σ + (1 − α)·std(elites), where
        the elites have the highest returns of A⁽ⁱ⁾ = clip(μ + σ·ε⁽ⁱ⁾, −1, 1), ε ~ N(0, 1)."""

        def smoothed(old: Array, new: Array) -> Array:
            return self.smoothing * old + (1.0 - self.smoothing) * new

        def iterate(gaussian: tuple[Array, Array], key: Key) -> tuple[tuple[Array, Array], None]:
            mean, deviation = gaussian
            sequences = jnp.clip(mean + deviation * standard_normal(key, (self.candidates, *mean.shape)), -1.0, 1.0)
            elites = sequences[jax.lax.top_k(comparable(score(sequences)), self.elites)[1]]
            return (smoothed(mean, elites.mean(0)), smoothed(deviation, elites.std(0))), None

        start = (mean, jnp.full_like(mean, self.deviation))
        return jax.lax.scan(iterate, start, jax.random.split(key, self.iterations))[0][0]


@option("mppi")
class MPPI(Option):
    """Model predictive path integral control (Williams et al. 2017): average noisy sequences, weighted by the exponential of
    their returns. The noise is filtered over time, as in PDDM (Nagabandi et al. 2020), so that sequences are smooth."""

    candidates: Count = 200
    """Number of sequences drawn in each iteration."""
    iterations: Count = 2
    """Number of averages. Each is the next mean."""
    temperature: Positive = 0.2
    """λ, in standard deviations of the candidates' returns, so that it does not depend on the scale of rewards."""
    deviation: Positive = 0.8
    """Standard deviation of the noise before the filter."""
    beta: PositiveUnit = 0.7
    """β: weight of new noise in the filter; 1 leaves noise unfiltered."""

    def plan(self, score: Score, mean: Array, key: Key) -> Array:
        """Return the mean after the last of the iterations μ ← Σᵢ wᵢ·A⁽ⁱ⁾, wᵢ ∝ exp((R(A⁽ⁱ⁾) − max R) / (λ·std(R))), where
        A⁽ⁱ⁾ = clip(μ + n⁽ⁱ⁾, −1, 1) with noise nₜ = β·uₜ + (1 − β)·nₜ₋₁, u ~ N(0, σ²)."""
        lag = np.subtract.outer(np.arange(len(mean)), np.arange(len(mean)))
        response = jnp.asarray(np.where(lag >= 0, self.beta * (1.0 - self.beta) ** np.maximum(lag, 0), 0.0), jnp.float32)

        def iterate(mean: Array, key: Key) -> tuple[Array, None]:
            noise = self.deviation * standard_normal(key, (self.candidates, *mean.shape))
            sequences = jnp.clip(mean + jnp.einsum("ts,nsd->ntd", response, noise), -1.0, 1.0)
            returns = comparable(score(sequences))
            scale = self.temperature * returns.std() + 1e-8  # equal returns have equal weights
            weights = jax.nn.softmax((returns - returns.max()) / scale)
            return jnp.einsum("n,ntd->td", weights, sequences), None

        return jax.lax.scan(iterate, mean, jax.random.split(key, self.iterations))[0]


Planner: TypeAlias = RandomShooting | CEM | MPPI


def comparable(returns: Array) -> Array:
    """Replace returns that are not finite by the lowest finite one: a model may predict them far from its data."""
    finite = jnp.isfinite(returns)
    lowest = jnp.where(finite, returns, jnp.inf).min()
    return jnp.where(finite, returns, jnp.where(jnp.isfinite(lowest), lowest, 0.0))
