"""Dynamics that evaluate sequences of actions: an ensemble of networks, with its loss, or the environment itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxrl.exploration.action_noise import standard_normal
from jaxrl.optimize.gradients import valid_means
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.running_statistics import EPSILON, RunningMoments, init_moments, normalize, update_moments
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count
from jaxrl.types import Array, Key, Model, Policy, PyTree, Rollout, Simulator, StepInput

RewardFn: TypeAlias = Callable[[Array, Array, Array], Array]
"""(observation f32[n], action in the environment's units, next observation f32[n]) -> reward f32[], of one row."""


@option("ensemble")
class EnsembleDynamics(Option):
    """Plan with an ensemble of probabilistic networks that learn from the rows collected (PETS, Chua et al. 2018)."""

    size: Count = 5
    """Number of networks. Each learns from separate draws."""
    particles: Count = 1
    """Number of trajectories of each sequence in each network, with different noise."""


@option("simulator")
class SimulatorDynamics(Option):
    """Plan with the environment itself, which must be pure. Nothing is learned."""

    particles: Count = 1
    """Number of trajectories of each sequence, with different random numbers of the environment."""


class DynamicsStatistics(NamedTuple):
    """Moments to normalise the networks' inputs and targets."""

    observations: RunningMoments
    """Of f32[n]"""
    targets: RunningMoments
    """Of f32[n + 1]: changes of the observation, and the reward."""


class DynamicsBatch(NamedTuple):
    """Rows to learn the dynamics from, [size, batch_size]."""

    obs: Array
    action: Array
    """f32[..., d] in [−1, 1]"""
    next_obs: Array
    reward: Array
    terminated: Array
    valid: Array


def init_statistics(size: int) -> DynamicsStatistics:
    """Return initial statistics for observations of ``size`` numbers."""
    return DynamicsStatistics(init_moments(jnp.zeros(size)), init_moments(jnp.zeros(size + 1)))


def update_statistics(statistics: DynamicsStatistics, rollout: Rollout, axis_name: str | None) -> DynamicsStatistics:
    """Update the statistics with the valid rows of a rollout."""
    obs = rollout.inputs.obs.astype(jnp.float32)
    rows = targets(obs[:-1], rollout.reward, obs[1:], rollout.terminated)
    return DynamicsStatistics(
        update_moments(statistics.observations, obs[:-1], rollout.valid, axis_name),
        update_moments(statistics.targets, rows, rollout.valid, axis_name),
    )


def targets(obs: Array, reward: Array, next_obs: Array, terminated: Array) -> Array:
    """Return what a network predicts, in the units of the environment: f32[..., n + 1]. Numbers that are not finite after a
    termination, where plans end, count as no change."""
    obs, next_obs = obs.astype(jnp.float32), next_obs.astype(jnp.float32)
    reached = jnp.where(terminated[..., None] & ~jnp.isfinite(next_obs), obs, next_obs)
    return jnp.concatenate([reached - obs, reward[..., None]], axis=-1)


def predict(model: Model, params: PyTree, statistics: DynamicsStatistics, obs: Array, action: Array) -> Any:
    """Return the outputs of each network for its own rows, ``StepPrediction`` [size, N].

    Args:
      params: [size, ...]
      obs: f32[size, N, n], raw.
      action: f32[size, N, d] in [−1, 1].
    """
    rows = obs.shape[1]
    nothing = jnp.zeros((rows, action.shape[-1])), jnp.zeros(rows), jnp.zeros(rows, bool)

    def one(params: PyTree, obs: Array, action: Array) -> Any:
        return model.apply(params, (), StepInput((obs, action), *nothing))[1]

    return jax.vmap(one)(params, normalize(statistics.observations, obs), action)


def in_units(moments: RunningMoments, normalised: Array) -> tuple[Array, Array]:
    """Return ``(changes, rewards)`` in the units of the environment."""
    raw = moments.mean + jnp.sqrt(moments.variance + EPSILON) * normalised
    return raw[..., :-1], raw[..., -1]


class LearnedDynamics(NamedTuple):
    """An ensemble that has learned, and what planning with it needs."""

    model: Model
    params: PyTree
    """[size, ...]"""
    statistics: DynamicsStatistics
    gamma: Array
    reward: RewardFn | None
    to_environment: Callable[[Array], Array]
    """Actions in [−1, 1] -> actions in the environment's units."""


def learned_returns(dynamics: LearnedDynamics, option: EnsembleDynamics, obs: Array, key: Key, sequences: Array) -> Array:
    """Return the mean return of each sequence over its particles, f32[N] (TS∞: a particle keeps its network, Chua et al. 2018).

    R = E[Σₕ γʰ·Πₖ₍ₖ﹤ₕ₎(1 − pₖ)·rₕ], where pₖ is the predicted probability that step k ends the episode. The noise of a
    particle is the same for all sequences, so that they differ by their actions alone.

    Args:
      obs: f32[n], from which all sequences start.
      sequences: f32[N, horizon, d] in [−1, 1].
    """
    number, horizon, _ = sequences.shape
    lead = (option.size, option.particles, number)
    noise = standard_normal(key, (horizon, option.size, option.particles, 1, obs.shape[-1]))

    def step(carry: tuple[Array, Array, Array], row: tuple[Array, Array]) -> tuple[tuple[Array, Array, Array], None]:
        (obs, weight, total), (action, noise) = carry, row
        actions = jnp.broadcast_to(action, (*lead, action.shape[-1]))
        flat = lambda x: x.reshape((option.size, -1, x.shape[-1]))  # noqa: E731
        output = predict(dynamics.model, dynamics.params, dynamics.statistics, flat(obs), flat(actions))
        output = jax.tree.map(lambda x: x.reshape((*lead, *x.shape[2:])), output)
        mean, reward = in_units(dynamics.statistics.targets, output.mean)
        scale = jnp.sqrt(dynamics.statistics.targets.variance + EPSILON)[:-1]
        after = obs + mean + scale * jnp.exp(0.5 * output.log_variance[..., :-1]) * noise
        if dynamics.reward is not None:
            of_each = jax.vmap(jax.vmap(jax.vmap(dynamics.reward)))
            reward = of_each(obs, dynamics.to_environment(actions), after)
        total += weight * reward
        return (after, weight * dynamics.gamma * jax.nn.sigmoid(-output.terminated), total), None

    start = (jnp.broadcast_to(obs.astype(jnp.float32), (*lead, obs.shape[-1])), jnp.ones(lead), jnp.zeros(lead))
    (_, _, total), _ = jax.lax.scan(step, start, (sequences.swapaxes(0, 1), noise))
    return total.mean((0, 1))


def simulated_returns(
    simulator: Simulator,
    option: SimulatorDynamics,
    gamma: Array,
    to_environment: Callable[[Array], Array],
    state: PyTree,
    key: Key,
    sequences: Array,
) -> Array:
    """Return the mean discounted return of each sequence over its particles in the environment itself, f32[N].

    Random numbers come from ``key``, and so not from those that the environment will draw. Rewards after a termination do not
    count; those after a truncation do, for it does not change what actions are worth.

    Args:
      state: the state of the environment, unbatched, from which all sequences start.
      sequences: f32[N, horizon, d] in [−1, 1].
    """

    def one(sequence: Array, keys: Key) -> Array:
        def step(carry: tuple[PyTree, Array, Array], row: tuple[Array, Key]) -> tuple[tuple[PyTree, Array, Array], None]:
            (state, weight, total), (action, key) = carry, row
            state, reached = simulator.step(key, state, to_environment(action))
            total += jnp.where(weight > 0, weight * reached.reward, 0.0)
            return (state, jnp.where(reached.terminated, 0.0, weight * gamma), total), None

        return jax.lax.scan(step, (state, jnp.ones(()), jnp.zeros(())), (sequence, keys))[0][2]

    keys = jax.random.split(key, (option.particles, sequences.shape[1]))
    particles = jax.vmap(one, in_axes=(None, 0))
    return jax.vmap(particles, in_axes=(0, None))(sequences, keys).mean(1)


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
    wanted = normalize(statistics.targets, targets(batch.obs, batch.reward, batch.next_obs, batch.terminated), clip=jnp.inf)
    error = (wanted - output.mean) ** 2
    nll = 0.5 * (error * jnp.exp(-output.log_variance) + output.log_variance).sum(-1)
    ends = jnp.where(batch.terminated, jax.nn.softplus(-output.terminated), jax.nn.softplus(output.terminated))
    logged = {"losses/dynamics_loss": nll, "losses/dynamics_error": error.mean(-1), "losses/termination_loss": ends}
    return valid_means(nll + ends + width_coef * output.width.sum(-1), logged, batch.valid, setup.axis_name)
