"""Conservative Q-learning (CQL: Kumar et al. 2020; Cal-QL: Nakamoto et al. 2023) as options: a term in the loss of values that
lowers those of all actions and raises those of the data's actions. Its updates in actor-critics are in
``jaxrl.algorithms.common.offline.conservative_updates``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl.distributions import select_actions
from jaxrl.models.heads import masked
from jaxrl.replay.transitions import Transitions
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import Count, CountOrZero, NonNegative, Positive, Range
from jaxrl.types import Array, PyTree

MOST_WEIGHT = 1e6
"""Largest weight that ``LagrangeCQL`` learns."""


@option("cql")
class Conservative(Option):
    """Add the conservative term, log Σ exp Q(s, ·) − Q(s, a), to the loss (Kumar et al. 2020, eq. 4)."""

    weight: NonNegative = hyperparameter("conservative_weight", 1.0)
    """α, the weight of the term."""


@dataclass(frozen=True)
class ConservativeCritics(Option):
    """Settings of ``CQL`` and ``LagrangeCQL``."""

    samples: Count = 10
    """For a Box: actions drawn from each of a uniform distribution, the policy, and the policy at the next observation."""
    weighted: bool = True
    """For a Box: divide by the densities of the drawn actions, so that the term estimates log ∫ exp Q(s, a) da (CQL(H)). If
    false, the mean of exp Q over the drawn actions and that of the data is in its place (CQL(ρ) in the authors' code)."""
    calibrated: bool = False
    """Cal-QL, with data: do not lower the values of the policy's actions below the returns of the data (Nakamoto et al. 2023)."""
    backup_entropy: bool = False
    """Include the policy's entropy in targets, as SAC does."""
    cloning_updates: CountOrZero = 0
    """Updates at the start in which the policy clones the actions of the data instead of maximising values."""


@option("cql")
class CQL(ConservativeCritics):
    """Add the conservative term to the critics' loss, with a constant weight (Kumar et al. 2020, eq. 4)."""

    weight: NonNegative = hyperparameter("conservative_weight", 5.0)
    """α, the weight of the term."""

    def init(self, hp: Any) -> PyTree:
        """Return the initial state of the weight."""
        return ()

    def weight_at(self, hp: Any, state: PyTree) -> Array:
        """Return the weight, f32[]."""
        return jnp.asarray(hp.conservative_weight)

    def adapted(self, hp: Any, state: PyTree, gap: Array) -> PyTree:
        """Return the state of the weight after an update with this mean of the term, f32[]."""
        return state


class Multiplier(NamedTuple):
    """State of the weight of ``LagrangeCQL``."""

    log_weight: Array
    opt_state: PyTree


@option("lagrange")
class LagrangeCQL(ConservativeCritics):
    """Add the conservative term to the critics' loss, with a weight that rises while the term is above a threshold, and falls
    while it is below (Kumar et al. 2020, appendix F)."""

    threshold: Annotated[float, Range()] = hyperparameter("conservative_threshold", 10.0)
    """τ, in discounted rewards."""
    initial: Positive = hyperparameter("conservative_weight", 1.0)
    """α, the weight at the start."""
    learning_rate: shared.LearningRate = hyperparameter("conservative_learning_rate", 1e-3)
    """Adam's step size for the logarithm of α."""

    def init(self, hp: Any) -> Multiplier:
        log_weight = jnp.log(hp.conservative_weight)
        return Multiplier(log_weight, optax.adam(hp.conservative_learning_rate).init(log_weight))

    def weight_at(self, hp: Any, state: Multiplier) -> Array:
        return jnp.minimum(jnp.exp(state.log_weight), MOST_WEIGHT)

    def adapted(self, hp: Any, state: Multiplier, gap: Array) -> Multiplier:
        """Take a step of Adam that raises α·(gap − τ), by log α."""
        slope = -self.weight_at(hp, state) * (gap - hp.conservative_threshold)
        step, opt_state = optax.adam(hp.conservative_learning_rate).update(slope, state.opt_state)
        return Multiplier(state.log_weight + step, opt_state)


# ----------------------------------------------------------------------------------------------------------------- the term


def discrete_gap(values: Array, action: Array, obs: PyTree) -> Array:
    """Return log Σ exp Q(s, ·) − Q(s, a), f32[N], over the actions that the mask allows.

    Args:
      values: Q of all actions, f32[N, n].
      action: those of the data, i32[N].
    """
    return jax.nn.logsumexp(masked(values, obs), -1) - select_actions(values, action)


def conservative_term(
    weight: Array | float, values: Array, batch: Transitions, mean: Callable[[Array], Array]
) -> tuple[Array, dict[str, Array]]:
    """Return the mean ``discrete_gap``, given its weight, as a ``jaxrl.algorithms.common.q_learning.ValueTerm``."""
    gap = mean(batch.weight * discrete_gap(values, batch.action, batch.inputs.obs))
    return weight * gap, {"losses/conservative_gap": gap}


class Penalty(NamedTuple):
    """Inputs of the conservative term of one update."""

    weight: Array
    """α, f32[]."""
    action: PyTree = ()
    """Drawn actions in [−1, 1], f32[K, N, d]; () for Discrete actions, where the term is exact."""
    log_density: PyTree = ()
    """Logarithms of the densities that they were drawn from, f32[K, N]; () if they are not ``weighted``."""
    least: PyTree = ()
    """Lower bounds of their values in the term, f32[K, N], −∞ where there is none; () unless it is ``calibrated``."""


def sampled_gap(values: Array, of_data: Array, penalty: Penalty) -> Array:
    """Return an estimate of log ∫ exp Q(s, a) da − Q(s, a of the data), f32[num_critics, N].

    The mean of exp Q / p over the drawn actions, with their densities p, is an unbiased estimate of the integral. Without
    densities, the mean of exp Q over the drawn actions and that of the data is in its place.

    Args:
      values: Q of the drawn actions, f32[num_critics, K, N].
      of_data: Q of the data's actions, f32[num_critics, N].
    """
    if not isinstance(penalty.least, tuple):
        values = jnp.maximum(values, penalty.least)
    if isinstance(penalty.log_density, tuple):
        values = jnp.concatenate([values, of_data[:, None]], 1)
    else:
        values = values - penalty.log_density
    return jax.nn.logsumexp(values, 1) - jnp.log(values.shape[1]) - of_data
