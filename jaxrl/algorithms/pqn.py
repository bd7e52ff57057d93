"""Parallelised Q-learning (Gallici et al. 2024): λ-returns over rollouts of many environments and a normalised network, without
replay or a target network.

Reads top to bottom: settings, targets, loss, update, builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
from gymnasium import spaces

from jaxrl.algorithms.common.q_learning import act, epsilon, policy
from jaxrl.algorithms.common.teams.value_decomposition import (
    QMIX,
    VDN,
    TeamValue,
    check_team_minibatches,
    decomposed,
    team_rows,
    team_value,
)
from jaxrl.algorithms.pqn_box import bind_box
from jaxrl.builder.config import RolloutConfig
from jaxrl.builder.keywords import agent_keywords, split_keywords, with_keywords_of
from jaxrl.builder.networks import ModelFn, check_q_values
from jaxrl.builder.prepare import prepare
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.distributions import select_actions
from jaxrl.envs import resolve_env
from jaxrl.exploration.options import Spread
from jaxrl.models import deterministic_policy, q_network
from jaxrl.optimize.descent import Progress
from jaxrl.optimize.gradients import valid_means
from jaxrl.optimize.learner import Learner
from jaxrl.optimize.minibatches import check_minibatches, explained_variance, minibatches, over_epochs
from jaxrl.returns import discounts, lambda_returns
from jaxrl.rollout.agents import as_lanes, by_agent, sequences_as_lanes, sequences_by_agent
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.outputs import apply_model
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, Unit, added
from jaxrl.types import Agent, Array, EnvLike, Metrics, Model, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class PQNConfig(RolloutConfig):
    """Structural settings of PQN."""

    num_envs: Count = 32
    rollout_length: Count = 64
    """Rows that each environment contributes to an iteration, and the largest number of rewards in a return."""
    num_epochs: Count = 4
    """Passes over each rollout."""
    num_minibatches: Count = 16
    """Minibatches per pass, one gradient step each; must divide num_envs * rollout_length, or num_envs with memory."""
    exploration: Spread | None = added(None)
    """How ε differs between environments; by default it is the same in all."""
    decomposition: VDN | QMIX | None = added(None)
    """With several agents: the value of the team, which is learnt in place of one for each agent."""

    def network(self, default: Any) -> ModelFn:
        return partial(default, layer_norm=True)

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        check_minibatches(self, self.steps_per_iteration, recurrent=recurrent)


class PQNHyperparams(NamedTuple):
    """Hyperparameters of PQN: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 5e-4
    gamma: shared.Gamma = 0.99
    q_lambda: Unit = 0.95
    """λ of the returns: 0 trusts the Q-values, 1 the rewards."""
    epsilon_start: shared.EpsilonStart = 1.0
    epsilon_end: shared.EpsilonEnd = 0.1
    exploration_steps: shared.ExplorationSteps = 50_000.0
    max_grad_norm: shared.MaxGradNorm = 10.0
    adam_eps: shared.AdamEps = 1e-5
    total_steps: shared.TotalSteps = 0.0


class PQNRows(NamedTuple):
    """Training rows, [N]; with memory sequences of them, [N, T]. With a decomposition, those of environments; inputs, actions and
    ``alive`` then have another axis, of agents, [N, A, ...] or [N, T, A, ...]."""

    inputs: StepInput
    action: Array
    target: Array
    """The λ-return."""
    valid: Array
    carry: PyTree = ()
    """[N, ...] or [N, A, ...] at the start of each sequence; () without memory."""
    alive: Array | tuple[()] = ()
    """With a decomposition: which agents act, bool."""


# ------------------------------------------------------------------------------------------------------------------------ loss


def targets(
    model: Model, params: PyTree, rollout: Rollout, hp: PQNHyperparams, value: TeamValue | None = None
) -> tuple[PQNRows, Array]:
    """Compute λ-returns G_t = r_t + γ·(λ·G_{t+1} + (1 − λ)·max_a Q(s_{t+1}, a)) (Gallici et al. 2024, algorithm 1).

    At a truncation and at the rollout's end, returns bootstrap from max_a Q of the observation reached; at a termination, from 0.
    Traces continue through random actions, as in Peng's Q(λ).

    Args:
      value: the team's value, with a decomposition.

    Returns:
      The rollout's rows with their returns, and the errors G_t − Q(s_t, a_t) of these.
    """
    flat = lambda tree: jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), tree)  # noqa: E731
    if jax.tree.leaves(rollout.carry):
        return sequence_targets(model, params, rollout, hp, value)
    rows, num_lanes = rollout.valid.size, rollout.valid.shape[1]
    q_values = model.apply(params, (), flat(rollout.inputs))[1]
    reached = q_values[num_lanes:].max(-1).reshape(rollout.valid.shape)
    team: Any = rollout
    if value is not None:
        team, reached = team_rows(rollout, value.num_agents), value.reached(params, rollout, reached)
    returns = lambda_returns(team.reward, *discounts(team, hp.gamma, hp.q_lambda), reached, team.valid)
    inputs, alive = jax.tree.map(lambda x: x[:rows], flat(rollout.inputs)), rollout.valid.reshape(-1)
    inputs, action = zero_invalid((inputs, flat(rollout.action)), alive)
    chosen = select_actions(q_values[:rows], action)
    target, valid = zero_invalid(flat((returns, team.valid)), team.valid.reshape(-1))
    if value is None:
        return PQNRows(inputs, action, target, valid), target - chosen
    error = target - value.chosen(params, chosen, alive, inputs.obs)
    inputs, action, alive = by_agent((inputs, action, alive), value.num_agents)
    return PQNRows(inputs, action, target, valid, alive=alive), error


def sequence_targets(
    model: Model, params: PyTree, rollout: Rollout, hp: PQNHyperparams, value: TeamValue | None
) -> tuple[PQNRows, Array]:
    """Return the same of a rollout with memory: sequences [N, T] that begin with the carry of acting, and errors f32[N, T]."""
    q_values = model.unroll(params, rollout.carry, rollout.inputs)[1]
    reached, chosen = q_values[1:].max(-1), select_actions(q_values[:-1], rollout.action)
    inputs, each = jax.tree.map(lambda x: x[:-1], rollout.inputs), value.num_agents if value else 0
    team: Any = rollout
    if value is not None:
        chosen = value.chosen(params, chosen, rollout.valid, inputs.obs)
        team, reached = team_rows(rollout, each), value.reached(params, rollout, reached)
    returns = lambda_returns(team.reward, *discounts(team, hp.gamma, hp.q_lambda), reached, team.valid)
    target, error = zero_invalid((returns, returns - chosen), team.valid)
    inputs, action, alive = sequences_by_agent((inputs, rollout.action, rollout.valid if each else ()), each)
    target, error, valid = jax.tree.map(lambda x: x.swapaxes(0, 1), (target, error, team.valid))
    return PQNRows(inputs, action, target, valid, by_agent(rollout.carry, each), alive), error


def pqn_loss(
    model: Model, params: PyTree, batch: PQNRows, axis_name: str | None, value: TeamValue | None = None
) -> tuple[Array, dict[str, Array]]:
    """Mean of ½·(G − Q(s, a))² over the valid rows of all devices (Gallici et al. 2024, algorithm 1); G is a constant."""
    each, has_memory = value.num_agents if value else 0, bool(jax.tree.leaves(batch.carry))
    lanes = sequences_as_lanes if has_memory else as_lanes
    inputs, action, alive = lanes((batch.inputs, batch.action, batch.alive), each)
    chosen = select_actions(apply_model(model, params, inputs, as_lanes(batch.carry, each)), action)
    if value is not None:
        flip = lambda tree: jax.tree.map(lambda x: x.swapaxes(0, 1), tree) if has_memory else tree  # noqa: E731
        chosen = flip(value.chosen(params, flip(chosen), flip(alive), flip(inputs.obs)))
    loss = 0.5 * (chosen - batch.target) ** 2
    return valid_means(loss, {"losses/td_loss": loss, "losses/q_values": chosen}, batch.valid, axis_name)


# ---------------------------------------------------------------------------------------------------------------------- update


def update(setup: AlgorithmSetup[PQNConfig], learner: Learner, rollout: Rollout) -> tuple[Learner, Metrics]:
    config, hp = setup.config, setup.current(learner)
    value, descent = team_value(setup), setup.descent(hp, learner.params)
    batch, error = targets(setup.model, learner.params, rollout, hp, value)
    each = value.num_agents if value else 1
    sizes = (len(batch.valid), rollout.env_id.size // each, config.num_epochs, config.num_minibatches)
    order = minibatches(setup.update_key(learner), *sizes, setup.axis_name)

    def minibatch(progress: Progress, part: PQNRows) -> tuple[Progress, dict[str, Array]]:
        return descent.step(lambda params: pqn_loss(setup.model, params, part, setup.axis_name, value), progress)

    progress, metrics = over_epochs(minibatch, descent.start(learner.params, learner.opt_state), batch, order)
    explained = explained_variance(batch.target, error, batch.valid, setup.axis_name)
    metrics |= {"charts/epsilon": epsilon(setup, learner), "losses/explained_variance": explained}
    return setup.updated(learner, hp, metrics, **descent.finish(progress))


@with_keywords_of(agent_keywords)
def make_pqn(env: EnvLike, **keywords: Any) -> Agent:
    """Parallelised Q-learning (Gallici et al. 2024) for Discrete actions, or with a policy for a Box between bounds. The hidden
    layers of the default networks are normalised (Ba et al. 2016), unless ``model={"layer_norm": False}``.

    Args:
      model: arguments of ``jaxrl.models.q_network``, such as ``{"core": "gru"}``; or a Model whose outputs are Q-values
        f32[..., n], or a function of (observation_space, action_space) that returns one. Default: an MLP of 2×64, ReLU, for
        vectors. For a Box the policy: arguments of ``jaxrl.models.deterministic_policy``, which are those of the critic too; or a
        Model whose outputs are actions f32[..., d] in [−1, 1]. Default: an MLP of 2×256, ReLU.
    """
    settings, parts = split_keywords(make_pqn, keywords)
    kinds, is_box = (spaces.Discrete, spaces.Box), isinstance(resolve_env(env).action_space, spaces.Box)
    network = deterministic_policy if is_box else q_network
    about: Any = (PQNConfig, PQNHyperparams, settings, kinds, network, parts)
    prepared = prepare(make_pqn, env, *about, memory=not is_box)
    if is_box:
        return bind_box(prepared, parts["model"])
    check_q_values(parts["model"], prepared.output, prepared.env.action_space)
    check_team_minibatches(prepared.setup)
    prepared = decomposed(prepared)
    return prepared.bind(prepared.setup.algorithm(policy=policy, act=act, update=update))
