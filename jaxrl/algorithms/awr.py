"""Advantage-weighted regression (AWR, Peng et al. 2019): value and policy are fitted to the rows of a replay, the value to their
λ-returns and the policy to their actions, weighted by their advantage. Memoryless, discrete or continuous.

Reads top to bottom: settings, loss, learning, builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from gymnasium import spaces

from jaxrl.algorithms.common.offline.advantage_weights import Binary, Exponential
from jaxrl.algorithms.common.on_policy import act
from jaxrl.builder.components import resolve_replay
from jaxrl.builder.config import ReplayConfig
from jaxrl.builder.keywords import replay_keywords, split_keywords, with_keywords_of
from jaxrl.builder.networks import check_actor_critic
from jaxrl.builder.prepare import prepare
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.models import actor_critic
from jaxrl.optimize.gradients import valid_means
from jaxrl.optimize.learner import ReplayLearner
from jaxrl.optimize.minibatches import standardized
from jaxrl.replay import Draw
from jaxrl.replay.options import Uniform
from jaxrl.replay.sequence import Sequences, sequences, swap_axes
from jaxrl.replay.transitions import example_row
from jaxrl.returns import bootstrap_mask, discounts, gae
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, NonNegative, Positive, Unit, added
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, PyTree


@dataclass(frozen=True)
class AWRConfig(ReplayConfig):
    """Structural settings of AWR."""

    rollout_length: Count = 32
    batch_size: Count = 16
    """Sequences per gradient step."""
    buffer_size: Count = 50_000
    replay_ratio: Positive = 32.0
    """Trained rows per row collected: updates per iteration = replay_ratio · num_envs · rollout_length / (batch_size · n_step),
    exactly."""
    n_step: Count = 32
    """Rows of a sequence, and the largest number of rewards in a return."""
    weight: Exponential | Binary = Exponential(beta=1.0, limit=20.0)
    """Weight of an action in the policy's loss."""
    normalize_advantages: bool = True
    """Scale advantages to mean 0 and standard deviation 1 within each batch, so that β does not depend on rewards' scale."""
    replay: Uniform = added(Uniform())
    """How the first rows of sequences are drawn from replay, unless ``replay`` is a custom ``ReplayFn``."""

    @property
    def rows_per_update(self) -> tuple[int, str]:
        return self.batch_size * self.n_step, "(batch_size * n_step)"


class AWRHyperparams(NamedTuple):
    """Hyperparameters of AWR: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    gae_lambda: Unit = 0.95
    """λ of the returns: 0 trusts the value, 1 the rewards."""
    # Fields of options:
    beta: NonNegative = 1.0
    weight_limit: Positive = 20.0
    ent_coef: shared.EntCoef = 0.0
    vf_coef: shared.VfCoef = 0.5
    max_grad_norm: shared.MaxGradNorm = 0.5
    adam_eps: shared.AdamEps = 1e-5
    total_steps: shared.TotalSteps = 0.0


# ------------------------------------------------------------------------------------------------------------------------ loss


def awr_loss(
    setup: ReplaySetup[AWRConfig], hp: AWRHyperparams, params: PyTree, batch: Sequences
) -> tuple[Array, dict[str, Array]]:
    """−E[w(A)·log π(a | s)] + vf_coef·½ E[(R − V(s))²] − ent_coef·E[H], with A = R − V(s) and w(A) = min(exp(β·A), limit) (Peng
    et al. 2019, algorithm 1), over the valid rows of all devices, each times its draw's weight.

    The λ-returns R bootstrap where the episode or the sequence ends. They and the weights are constants.

    Args:
      batch: [n_step, N].
    """
    valid, action = batch.valid, from_environment(setup.action_space, batch.action)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.inputs)
    output = setup.model.apply(params, (), flat)[1]
    policy, value = jax.tree.map(lambda x: x.reshape(len(valid) + 1, -1, *x.shape[1:]), (output.policy, output.value))
    advantage, target = jax.lax.stop_gradient(returns(batch, value, hp))
    if setup.config.normalize_advantages and not isinstance(setup.config.weight, Binary):  # which has no β
        advantage = standardized(advantage, valid, setup.axis_name)
    weight, policy = setup.config.weight.weights(advantage, hp), jax.tree.map(lambda x: x[:-1], policy)
    policy_loss, value_loss = -weight * policy.log_prob(action), 0.5 * (value[:-1] - target) ** 2
    logged = {"losses/policy_loss": policy_loss, "losses/value_loss": value_loss, "losses/entropy": policy.entropy()}
    total = batch.weight * (policy_loss + hp.vf_coef * value_loss - hp.ent_coef * policy.entropy())
    return valid_means(total, {**logged, "losses/weight": weight}, valid, setup.axis_name)


def returns(batch: Sequences, value: Array, hp: AWRHyperparams) -> tuple[Array, Array]:
    """Return the advantages R − V(s) and the λ-returns R of the rows, f32[n_step, N] each."""
    advantage = gae(batch.reward, *discounts(batch, hp.gamma, hp.gae_lambda), value[:-1], value[1:], batch.valid)
    return advantage, advantage + value[:-1]


# -------------------------------------------------------------------------------------------------------------------- learning


def init(setup: ReplaySetup[AWRConfig], key: Key, hyperparams: AWRHyperparams) -> ReplayLearner:
    learner = setup.init_learner(key, hyperparams)
    replay = setup.replay.init(example_row(setup.observation_space, setup.action_space))
    return ReplayLearner(**learner._asdict(), replay=replay)


def learn(setup: ReplaySetup[AWRConfig], learner: ReplayLearner) -> tuple[ReplayLearner, Metrics]:
    hp = setup.current(learner)

    def batch(replay: PyTree, draw: Draw) -> Sequences:
        return swap_axes(sequences(setup.replay, replay, draw, setup.config.n_step))

    def loss(params: PyTree, before: PyTree, rows: Sequences, key: Key) -> tuple[Array, dict[str, Array]]:
        rows = swap_axes(rows)
        rows = rows._replace(inputs=zero_invalid(rows.inputs, bootstrap_mask(rows)), action=zero_invalid(rows.action, rows.valid))
        return awr_loss(setup, hp, params, rows)

    return setup.learn(learner, hp, loss, batch)


def make_algorithm(setup: ReplaySetup[AWRConfig]) -> Algorithm:
    """Return AWR as an ``Algorithm``, bound to spaces but not to an environment."""
    return setup.algorithm(init=init, act=act, learn=learn)


@with_keywords_of(replay_keywords)
def make_awr(env: EnvLike, **keywords: Any) -> Agent:
    """Advantage-weighted regression (Peng et al. 2019), for Discrete, MultiDiscrete and Box actions.

    Args:
      model: arguments of ``jaxrl.models.actor_critic``, such as ``{"hidden_sizes": (128, 128)}``; or a memoryless Model whose
        outputs are ``ActorCriticOutput``, or a function of (observation_space, action_space) that returns one. Default: two MLPs
        of 2×64, tanh, or convolutions for images.
      replay: ``Uniform()``, or a ``ReplayFn`` as in ``make_dqn``.
    """
    settings, parts = split_keywords(make_awr, keywords)
    kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)
    prepared = prepare(make_awr, env, AWRConfig, AWRHyperparams, settings, kinds, actor_critic, parts)
    check_actor_critic(parts["model"], prepared.output, prepared.env.action_space)
    config, data = prepared.setup.config, prepared.setup.data
    replay = resolve_replay(parts["replay"], prepared.env, config, before=1, after=config.n_step, data=data)
    if replay.prioritised:
        raise ValueError("replay=… needs priorities, and AWR has no errors to compute them from")
    return prepared.bind(make_algorithm(ReplaySetup.from_setup(prepared.setup, replay=replay)))
