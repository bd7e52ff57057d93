"""Model predictive control by sampling, in an ensemble of learned probabilistic dynamics (PETS, Chua et al. 2018) or in the
environment itself.

Reads top to bottom: settings, planning, storing, learning, builder. The planners, the dynamics and their loss are in
``jaxrl.algorithms.common.planning``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.off_policy import init_replay
from jaxrl.algorithms.common.off_policy_networks import seen_by_critic
from jaxrl.algorithms.common.planning import checks
from jaxrl.algorithms.common.planning.dynamics import (
    DynamicsBatch,
    EnsembleDynamics,
    RewardFn,
    SimulatorDynamics,
    dynamics_loss,
    init_statistics,
    returns_of,
    update_statistics,
)
from jaxrl.algorithms.common.planning.planners import CEM, MPPI, RandomShooting
from jaxrl.builder.config import BufferConfig, RolloutConfig
from jaxrl.builder.keywords import model_based_keywords, split_keywords, with_keywords_of
from jaxrl.builder.prepare import PreparedAgent, prepare
from jaxrl.builder.replay_setup import ReplaySetup, in_parts, store
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.envs import resolve_env
from jaxrl.exploration.action_noise import normal_each, uniform_of
from jaxrl.models import dynamics_network
from jaxrl.optimize.learner import Learner, ReplayLearner
from jaxrl.replay import Draw
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import example_input
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, CountOrZero, NonNegative, Positive, refuse_unused
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, Rollout, Simulator, StepInput


@dataclass(frozen=True)
class MPCConfig(BufferConfig):
    """Structural settings of MPC."""

    num_envs: Count = 1
    rollout_length: Count = 50
    anneal: bool = False
    batch_size: Count = 128
    """Rows per gradient step, for each network of the ensemble."""
    replay_ratio: Positive = 128.0
    """Rows drawn per row collected, for each network: updates per iteration = replay_ratio · num_envs · rollout_length /
    batch_size, exactly. The default gives one update per row."""
    learning_starts: CountOrZero = 500
    """Rows collected at random before the first update."""
    horizon: Count = 20
    """Length of a plan in steps."""
    planner: RandomShooting | CEM | MPPI = CEM()
    """How a plan is found."""
    dynamics: EnsembleDynamics | SimulatorDynamics = EnsembleDynamics()
    """Dynamics in which plans are evaluated."""

    @property
    def warmup_iterations(self) -> int:
        return super().warmup_iterations if isinstance(self.dynamics, EnsembleDynamics) else 0

    def network(self, default: Any) -> Any:
        return default if isinstance(self.dynamics, EnsembleDynamics) else checks.no_network

    def for_env(self, env: Any) -> MPCConfig:
        checks.check_spaces(env, learned=isinstance(self.dynamics, EnsembleDynamics))
        return self

    def check(self, *, recurrent: bool = False) -> None:
        if isinstance(self.dynamics, EnsembleDynamics):
            return super().check(recurrent=recurrent)
        RolloutConfig.check(self, recurrent=recurrent)
        unused = ("batch_size", "buffer_size", "replay_ratio", "learning_starts", "anneal")
        return refuse_unused(self, MPCConfig(), unused, checks.WITHOUT_LEARNING)


class MPCHyperparams(NamedTuple):
    """Hyperparameters of MPC: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    width_coef: NonNegative = 0.01
    """Weight of the distance between the learnt bounds of the log variance in the loss."""
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


@dataclass(frozen=True, kw_only=True)
class MPCSetup(ReplaySetup[MPCConfig]):
    """Setup of MPC."""

    reward: RewardFn | None = None

    @property
    def action_size(self) -> int:
        return math.prod(self.action_space.shape)  # type: ignore[arg-type]

    def draw(self, learner: Any) -> Draw:
        """Draw the rows for all updates of an iteration, for each network its own."""
        number = self.config.updates_per_iteration * self.config.dynamics.size  # type: ignore[union-attr]
        return self.draw_batches(learner.replay, self.draw_key(learner), number)


class Exploration(NamedTuple):
    """Exploration state of a policy: the discount of its plans, and whether actions are drawn uniformly instead."""

    gamma: Array
    at_random: Array


# -------------------------------------------------------------------------------------------------------------------- planning


def policy(setup: MPCSetup, learner: Learner) -> Policy:
    """Return the policy. With learned dynamics it acts at random until the first update, and so during the warm-up."""
    learns = isinstance(setup.config.dynamics, EnsembleDynamics)
    at_random = setup.acts_at_random(learner) if learns else jnp.zeros((), bool)
    return Policy(learner.params, learner.statistics, Exploration(setup.current(learner).gamma, at_random), learner.version)


def act(
    setup: MPCSetup,
    policy: Policy,
    carry: Array,
    inputs: StepInput,
    env_id: Array,
    key: Key,
    *,
    explore: bool,
    simulator: Simulator | None = None,
) -> tuple[Array, Array, dict[str, Array]]:
    """Plan from every observation, and return the first actions. The carry, f32[B, horizon, d], is the rest of the last plan,
    from which the next begins."""
    keys = jax.vmap(lambda key: jax.random.split(key, 3))(fold_each(key, env_id))
    mean = jnp.where(inputs.is_first[:, None, None], 0.0, carry)
    state = () if simulator is None else simulator.state

    def plan_one(obs: Array, state: PyTree, mean: Array, plan_key: Key, model_key: Key) -> Array:
        score = partial(returns_of(setup, policy, simulator), obs, state, model_key)
        return setup.config.planner.plan(score, mean, plan_key)

    plan = jax.vmap(plan_one)(inputs.obs, state, mean, keys[:, 0], keys[:, 1])
    action = plan[:, 0]
    if explore:
        drawn = uniform_of(normal_each(keys[:, 2], setup.action_size))
        action = jnp.where(policy.exploration.at_random, drawn, action)
    return jnp.concatenate([plan[:, 1:], jnp.zeros_like(plan[:, :1])], axis=1), setup.to_environment(action), {}


# ------------------------------------------------------------------------------------------------------------ storing, learning


def init(setup: MPCSetup, key: Key, hyperparams: MPCHyperparams) -> ReplayLearner:
    model_key, learner_key = jax.random.split(key)
    seen = seen_by_critic(setup.observation_space, setup.action_space)
    keys = jax.random.split(model_key, setup.config.dynamics.size)  # type: ignore[union-attr]
    params = jax.vmap(setup.model.init, in_axes=(0, None))(keys, example_input(seen, setup.action_space))
    opt_state = setup.descent(hyperparams, params).init(params)
    statistics = init_statistics(setup.observation_space.shape[0])  # type: ignore[index]
    fields = (params, opt_state, hyperparams, statistics, learner_key, jnp.zeros((), jnp.int32))
    return ReplayLearner(*fields, replay=init_replay(setup))


def observe(setup: MPCSetup, learner: ReplayLearner, rollout: Rollout) -> ReplayLearner:
    """Store a rollout's rows and update the statistics with them."""
    return store(setup, learner, rollout)._replace(statistics=update_statistics(learner.statistics, rollout, setup.axis_name))


def learn(setup: MPCSetup, learner: ReplayLearner) -> tuple[ReplayLearner, Metrics]:
    hp, size = setup.current(learner), setup.config.dynamics.size  # type: ignore[union-attr]

    def batch(replay: PyTree, draw: Draw) -> DynamicsBatch:
        row, reached = (setup.replay.take(replay, draw, offset) for offset in (0, 1))
        action = from_environment(setup.action_space, row.action)
        return DynamicsBatch(row.obs, action, reached.obs, row.reward, row.terminated, draw.valid)

    def loss(params: PyTree, before: PyTree, rows: DynamicsBatch, key: Key) -> Any:
        return dynamics_loss(setup, hp.width_coef, learner.statistics, params, in_parts(rows, size))

    return setup.learn(learner, hp, loss, batch)


def init_nothing(setup: MPCSetup, key: Key, hyperparams: MPCHyperparams) -> Learner:
    return Learner((), (), hyperparams, (), key, jnp.zeros((), jnp.int32))


def learn_nothing(setup: MPCSetup, learner: Learner, rollout: Rollout) -> tuple[Learner, Metrics]:
    return learner._replace(version=learner.version + 1), {}


# --------------------------------------------------------------------------------------------------------------------- builder


def make_algorithm(setup: MPCSetup) -> Algorithm:
    """Return MPC as an ``Algorithm``, bound to spaces but not to an environment."""
    if isinstance(setup.config.dynamics, EnsembleDynamics):
        algorithm = setup.algorithm(init=init, policy=policy, act=act, observe=observe, learn=learn, check_vma=False)
    else:
        algorithm = AlgorithmSetup.algorithm(
            setup, init=init_nothing, policy=policy, act=act, update=learn_nothing, plans=True, check_vma=False
        )
    shape = (setup.config.horizon, setup.action_size)
    return algorithm._replace(initial_carry=lambda batch_size: jnp.zeros((batch_size, *shape)))


@with_keywords_of(model_based_keywords)
def make_mpc(env: EnvLike, **keywords: Any) -> Agent:
    """Model predictive control for bounded Box actions and vector observations: at each step a planner optimises a sequence of
    actions by sampling, and the first is executed. Plans are evaluated in an ensemble of networks that learn the dynamics, the
    reward and the termination (PETS, Chua et al. 2018), or with ``dynamics=SimulatorDynamics()`` in the environment itself.

    Args:
      model: each network: arguments of ``jaxrl.models.dynamics_network``, such as ``{"hidden_sizes": (128, 128)}``; or a
        memoryless Model with the same inputs, whose outputs are ``StepPrediction``, or a function of (observation_space,
        action_space) that returns one. Default: an MLP of 2×64, SiLU.

    Raises:
      ValueError: sizes that do not fit together, hyperparameters out of range, settings without effect, a Box without bounds,
        several agents.
    """
    settings, parts = split_keywords(make_mpc, keywords)
    seen_space = partial(seen_by_critic, action_space=resolve_env(env).action_space)
    network, kinds = dynamics_network, (spaces.Box,)
    prepared: PreparedAgent[MPCConfig] = prepare(
        make_mpc, env, MPCConfig, MPCHyperparams, settings, kinds, network, parts, seen_space=seen_space
    )
    config = prepared.setup.config
    if isinstance(config.dynamics, SimulatorDynamics):
        checks.refuse_learning(prepared, parts, used=("gamma", "total_steps"))
    else:
        checks.check_dynamics(prepared, parts)
    sizes = (config.buffer_size // config.num_envs, config.num_envs, config.rollout_length)
    replay = uniform_replay(*sizes, before=0, after=1)
    return prepared.bind(make_algorithm(MPCSetup.from_setup(prepared.setup, replay=replay, reward=parts["reward"])))
