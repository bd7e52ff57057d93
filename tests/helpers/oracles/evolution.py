"""Evolution strategies in NumPy: weights of members by their fitness, noise of members, and the step of a generation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import rankdata

from jaxrl.evolution.noise import LowRankKernel
from jaxrl.types import Agent, Policy


def dense(params: Any) -> Any:
    """Compute the kernels that low-rank ones stand for."""
    is_low = lambda x: isinstance(x, LowRankKernel)  # noqa: E731
    return jax.tree.map(lambda x: x.kernel + x.left @ x.right.T if is_low(x) else x, params, is_leaf=is_low)


def member_params(agent: Agent, policy: Policy, members: int) -> Any:
    """Return the parameters of all members, leaves [N, ...]."""
    assert agent.algorithm.members is not None
    of_one = agent.algorithm.members
    return jax.jit(jax.vmap(lambda member: dense(of_one(policy, member).params)))(jnp.arange(members))


def noise_of(agent: Agent, policy: Policy, members: int, sigma: float) -> Any:
    """Return the noise of all members, f64[N, ...]: their distance from the mean, divided by σ."""
    double = lambda x: np.asarray(x, np.float64)  # noqa: E731
    params = member_params(agent, policy, members)
    return jax.tree.map(lambda x, mean: (double(x) - double(mean)) / sigma, params, policy.params)


def utilities(fitness: np.ndarray) -> np.ndarray:
    """Return those of Wierstra et al. 2014; members of equal fitness share their mean."""
    number = len(fitness)
    raw = np.maximum(0, np.log(number / 2 + 1) - np.log(np.arange(1, number + 1)))
    by_place = (raw / raw.sum() - 1 / number)[::-1]  # the best is last
    first, last = (rankdata(fitness, how).astype(int) for how in ("min", "max"))
    return np.array([by_place[low - 1 : high].mean() for low, high in zip(first, last, strict=True)])


def openai_weights(shaping: str, fitness: np.ndarray) -> np.ndarray:
    """Return the weights of members, f64[N]. NaN counts as the lowest fitness."""
    values = np.where(np.isnan(fitness), np.nanmin(fitness), fitness)
    below_all = np.where(np.isnan(fitness), -np.inf, fitness)
    return {
        "centered_rank": lambda: (rankdata(below_all) - 1) / (len(fitness) - 1) - 0.5,
        "wierstra": lambda: utilities(below_all),
        "standardize": lambda: (values - values.mean()) / values.std(),
        "raw": lambda: values,
    }[shaping]()


def openai_ascent(shaping: str, fitness: np.ndarray, noise: Any, sigma: float) -> Any:
    """Estimate the gradient of the expected fitness, Σ w ε / (N σ) (Salimans et al. 2017, algorithm 1)."""
    weights = openai_weights(shaping, fitness)
    return jax.tree.map(lambda e: np.tensordot(weights, e, 1) / (len(fitness) * sigma), noise)


def ars_ascent(share: float, fitness: np.ndarray, noise: Any, sigma: float) -> Any:
    """Return the direction of Mania et al. 2018, algorithm 2, Σ (r₊ − r₋) δ / (b σ_R) over the best b pairs, times 1/(2σ).

    The step size is then α = learning_rate / (2σ).
    """
    values = np.where(np.isnan(fitness), np.nanmin(fitness), fitness)
    plus, minus = values[0::2], values[1::2]
    kept = np.argsort(-np.maximum(plus, minus), kind="stable")[: max(1, round(share * len(plus)))]
    deviation = np.concatenate([plus[kept], minus[kept]]).std()
    difference = (plus - minus)[kept] / (len(kept) * deviation)
    return jax.tree.map(lambda e: np.tensordot(difference, e[0::2][kept], 1) / (2 * sigma), noise)
