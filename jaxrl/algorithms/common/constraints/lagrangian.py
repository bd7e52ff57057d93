"""Lagrange multiplier that a PID controller sets (Stooke et al. 2020, *Responsive Safety in Reinforcement Learning by PID
Lagrangian Methods*), as an option of PPO.

Reads top to bottom: option, state, controller, advantages, network.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp

from jaxrl.algorithms.common import on_policy
from jaxrl.algorithms.common.constraints.costs import check_env_cost, cost_of
from jaxrl.algorithms.common.ppo_objectives import PenaltyState
from jaxrl.builder.prepare import PreparedAgent
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.optimize.learner import Learner
from jaxrl.returns import discounts, gae
from jaxrl.rollout.episode_mean import EpisodeMean, add_rollout, no_episodes
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import Range
from jaxrl.types import ApplyFn, Array, Mean, Model, PyTree, Rollout, StepInput

CostLimit = Annotated[float, Range(0), "``Lagrangian.limit``."]
Kp = Annotated[float, Range(0), "``Lagrangian.kp``."]
Ki = Annotated[float, Range(0), "``Lagrangian.ki``."]
Kd = Annotated[float, Range(0), "``Lagrangian.kd``."]
Smoothing = Annotated[float, Range(0, 0.999), "``Lagrangian.smoothing``."]


@option("lagrangian")
class Lagrangian(Option):
    """Keep the mean cost of an episode, the undiscounted sum of ``info["cost"]``, at or below a limit."""

    limit: CostLimit = hyperparameter("cost_limit", 25.0)
    """Largest mean cost of an episode."""
    kp: Kp = hyperparameter("pid_kp", 0.05)
    """Proportional gain: λ per cost above the limit."""
    ki: Ki = hyperparameter("pid_ki", 5e-4)
    """Integral gain: λ per cost above the limit, summed over iterations. With this gain alone it is dual ascent."""
    kd: Kd = hyperparameter("pid_kd", 0.05)
    """Derivative gain: λ per rise of the cost since the iteration before."""
    smoothing: Smoothing = hyperparameter("cost_smoothing", 0.8)
    """Weight of earlier iterations' episodes in the estimate of the cost, per iteration; 0: those of the last iteration alone."""


# ----------------------------------------------------------------------------------------------------------------------- state


class ConstraintState(NamedTuple):
    """Costs of episodes, and the state of the controller."""

    costs: EpisodeMean
    multiplier: Array
    """f32[]: λ."""
    integral: Array
    """f32[]: sum of the costs above the limit, at least 0."""
    previous: Array
    """f32[]: estimate of the cost at the previous update; 0 before the first."""


class ConstrainedLearner(Learner):
    """A ``Learner`` with the state of a constraint."""

    constraint: ConstraintState


class ConstrainedPenaltyState(PenaltyState):
    """A ``PenaltyState`` with the state of a constraint."""

    constraint: ConstraintState


def with_constraint_state(setup: AlgorithmSetup[Any], learner: Any) -> Any:
    """Add the initial state of the constraint, if there is one, to the learner."""
    if setup.config.constraint is None:
        return learner
    zero, kind = jnp.zeros((), jnp.float32), ConstrainedPenaltyState if isinstance(learner, PenaltyState) else ConstrainedLearner
    return kind(**learner._asdict(), constraint=ConstraintState(no_episodes(setup.config.num_envs), zero, zero, zero))


def observe(setup: AlgorithmSetup[Any], learner: Any, rollout: Rollout) -> Any:
    """Update the statistics with the rollout's valid rows, and with a constraint the costs of episodes."""
    observed = on_policy.observe(setup, learner, rollout)
    if setup.config.constraint is None:
        return observed
    costs, _ = add_rollout(
        learner.constraint.costs, rollout, cost_of(rollout), setup.current(learner).cost_smoothing, setup.axis_name
    )
    return observed._replace(constraint=learner.constraint._replace(costs=costs))


# ------------------------------------------------------------------------------------------------------------------ controller


def controlled(state: ConstraintState, hp: Any) -> ConstraintState:
    """Set λ = (kp·Δ + ki·I + kd·∂)₊ for the estimated cost J of an episode (algorithm 2).

    Δ = J − limit is the cost above the limit, I ← (I + Δ)₊ its integral, and ∂ = (J − J of the previous update)₊ its rise. The
    state does not change before an episode has ended.
    """
    cost = state.costs.mean
    error, rise = cost - hp.cost_limit, jnp.maximum(cost - state.previous, 0.0)
    integral = jnp.maximum(state.integral + error, 0.0)
    multiplier = jnp.maximum(hp.pid_kp * error + hp.pid_ki * integral + hp.pid_kd * rise, 0.0)
    any_ended = state.costs.count > 0
    new = (multiplier, integral, cost)
    return ConstraintState(state.costs, *(jnp.where(any_ended, x, old) for x, old in zip(new, state[1:], strict=True)))


def update_multiplier(setup: AlgorithmSetup[Any], learner: Any, rollout: Rollout, hp: Any) -> tuple[Any, dict[str, Array | Mean]]:
    """Return the learner with λ set by the costs up to this rollout, for the update that learns from it, and what to log; without
    a constraint the same learner and nothing."""
    if setup.config.constraint is None:
        return learner, {}
    costs, ended = add_rollout(learner.constraint.costs, rollout, cost_of(rollout), hp.cost_smoothing, setup.axis_name)
    state = controlled(learner.constraint._replace(costs=costs), hp)
    return learner._replace(constraint=state), {"charts/episodic_cost": ended, "losses/lagrange_multiplier": state.multiplier}


# ------------------------------------------------------------------------------------------------------ advantages and network


class CostTargets(NamedTuple):
    """Targets for the value of costs. Leaves are those of a ``Batch``."""

    target: Array
    """The λ-return of the costs, to which the value regresses."""
    value: Array
    """The value before the update."""


def constrained(rows: Any, state: ConstraintState, rollout: Rollout, cost_value: Array, hp: Any) -> Any:
    """Return a batch with advantages (A − λ·A_C) / (1 + λ), and with targets for the value of costs.

    Args:
      rows: ``Batch`` of leaves [T, B], with the advantages A of rewards.
      cost_value: f32[T + 1, B].
    """
    value, next_value = cost_value[:-1], cost_value[1:]
    advantage = gae(cost_of(rollout), *discounts(rollout, hp.gamma, hp.gae_lambda), value, next_value, rollout.valid)
    mixed = (rows.advantage - state.multiplier * advantage) / (1.0 + state.multiplier)
    return rows._replace(advantage=mixed, cost=CostTargets(advantage + value, value))


class ConstrainedOutput(NamedTuple):
    """Output of an actor-critic with two values."""

    policy: Any
    value: Array
    cost_value: Array
    """f32[...]: value of costs."""


def with_cost_value(model: Model) -> Model:
    """Return a model with a ``ConstrainedOutput`` in place of an ``ActorCriticOutput`` of two values, of rewards and of costs."""

    def split(function: ApplyFn) -> ApplyFn:
        def apply(params: PyTree, carry: PyTree, inputs: StepInput, key: Any = None) -> tuple[PyTree, Any]:
            carry, output = function(params, carry, inputs, key=key)
            return carry, ConstrainedOutput(output.policy, output.value[..., 0], output.value[..., 1])

        return apply

    return model._replace(apply=split(model.apply), unroll=split(model.unroll))


def prepare_constraint(prepared: PreparedAgent[Any]) -> PreparedAgent[Any]:
    """Check that the environment reports a cost, and give the model a value of it; without a constraint return the same.

    Raises:
      ValueError: the environment reports no cost, or is a game of two players.
    """
    if prepared.setup.config.constraint is None:
        return prepared
    if prepared.env.players == 2:
        raise ValueError(f"constraint=Lagrangian(…) is for environments of one player, and {prepared.env.name} is a game of two")
    check_env_cost(prepared.env)
    return dataclasses.replace(prepared, setup=dataclasses.replace(prepared.setup, model=with_cost_value(prepared.setup.model)))
