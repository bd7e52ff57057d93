"""Returns of plans in learned dynamics or in the environment itself, and the loss of learned dynamics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.planning.dynamics import (
    DynamicsBatch,
    EnsembleDynamics,
    LearnedDynamics,
    learned_returns,
    predict,
    simulated_returns,
    targets,
)
from jaxrl.optimize.gradients import valid_means
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.running_statistics import normalize
from jaxrl.types import Array, Key, Policy, PyTree, Simulator


def returns_of(setup: Any, policy: Policy, simulator: Simulator | None) -> Callable[[Array, PyTree, Key, Array], Array]:
    """Return the function (observation, state, key, sequences) -> returns of the sequences, f32[N]."""
    gamma, dynamics = policy.exploration.gamma, setup.config.dynamics
    if isinstance(dynamics, EnsembleDynamics):
        learned = LearnedDynamics(setup.model, policy.params, policy.statistics, gamma, setup.reward, setup.to_environment)
        return lambda obs, state, key, sequences: learned_returns(learned, dynamics, obs, key, sequences)
    if simulator is None:
        raise ValueError(
            "dynamics=SimulatorDynamics() plans with the environment itself: load the policy with search=True and pass "
            "env_state=…, or learn the dynamics with dynamics=EnsembleDynamics()"
        )
    simulate = partial(simulated_returns, simulator, dynamics, gamma, setup.to_environment)
    return lambda obs, state, key, sequences: simulate(state, key, sequences)


def dynamics_loss(
    setup: Any, width_coef: Array, statistics: Any, params: PyTree, batch: DynamicsBatch
) -> tuple[Array, dict[str, Array]]:
    """Mean over networks and valid rows of Σⱼ ½·[(yⱼ − μⱼ)²·exp(−sⱼ) + sⱼ] (Chua et al. 2018, equation 1, where s is the log
    variance), plus the cross-entropy of the termination and width_coef·Σⱼ(max sⱼ − min sⱼ), the bounds of s.

    y are the changes of the observation and the reward, normalised. Each network learns from separate draws.
    """
    batch = zero_invalid(batch, batch.valid)
    output = predict(setup.model, params, statistics, batch.obs, batch.action)
    wanted = normalize(statistics.targets, targets(batch.obs, batch.reward, batch.next_obs), clip=jnp.inf)
    error = (wanted - output.mean) ** 2
    nll = 0.5 * (error * jnp.exp(-output.log_variance) + output.log_variance).sum(-1)
    ends = jnp.where(batch.terminated, jax.nn.softplus(-output.terminated), jax.nn.softplus(output.terminated))
    logged = {"losses/dynamics_loss": nll, "losses/dynamics_error": error.mean(-1), "losses/termination_loss": ends}
    return valid_means(nll + ends + width_coef * output.width.sum(-1), logged, batch.valid, setup.axis_name)
