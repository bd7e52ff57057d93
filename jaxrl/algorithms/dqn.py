"""Deep Q-learning (Mnih et al. 2015) with replay, a target network and, by default, double Q-learning and n-step returns.

Reads top to bottom: settings, loss, acting, learning, builder. Value heads are in ``jaxrl.algorithms.common.q_heads``,
and ways to bootstrap in ``jaxrl.algorithms.common.bootstrapping``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common import q_learning
from jaxrl.algorithms.common.bootstrapping import Double, Greedy, Munchausen, OnlineAndTarget
from jaxrl.algorithms.common.offline.conservative import Conservative, conservative_term
from jaxrl.algorithms.common.q_heads import C51, IQN, QR, HLGauss, Scalar, check_outputs
from jaxrl.algorithms.common.q_learning import ValueTerm, actions, policy
from jaxrl.builder.components import resolve_replay
from jaxrl.builder.config import HindsightConfig
from jaxrl.builder.keywords import replay_keywords, split_keywords, with_keywords_of
from jaxrl.builder.networks import ModelFn, is_own
from jaxrl.builder.prepare import PreparedAgent, prepare
from jaxrl.builder.replay_setup import PRIORITIES, ReplaySetup
from jaxrl.distributions import select_actions
from jaxrl.exploration.options import Noisy, Spread
from jaxrl.models import q_network, value_network
from jaxrl.optimize.gradients import valid_mean
from jaxrl.optimize.learner import TargetLearner
from jaxrl.replay import Draw, Replay
from jaxrl.replay.transitions import Transitions, example_row, transitions
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, NonNegative, added, refuse_unused
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Model, Policy, PyTree, StepInput


@dataclass(frozen=True)
class DQNConfig(HindsightConfig):
    """Structural settings of DQN."""

    rollout_length: Count = 32
    n_step: Count = 5
    """Rewards in a return before it bootstraps; 1 in the paper."""
    target_update_interval: Count = 64
    """Updates between changes of the target network."""
    head: Scalar | C51 | HLGauss | QR | IQN = added(Scalar())
    """Outputs of the network for each action: its value, or the distribution of its return."""
    bootstrap: Double | Greedy | Munchausen = added(Double())
    """The value of the next observation in targets."""
    exploration: Spread | None = added(None)
    """How ε differs between environments; by default it is the same in all."""
    noise: Noisy | None = added(None)
    """Noise in the network, instead of ε or in addition."""
    conservative: Conservative | None = added(None)
    """Conservative Q-learning: lower the values of actions that are not in the data, for offline learning."""

    @property
    def draws(self) -> bool:
        """True if the network draws random numbers when it is given a key."""
        return self.noise is not None or isinstance(self.head, IQN)

    def network(self, default: ModelFn) -> ModelFn:
        arguments: dict[str, Any] = dict(self.head.functions.arguments)
        if self.noise is not None:
            arguments["noise"] = self.noise.sigma
        return partial(value_network, **arguments) if arguments else default


class DQNHyperparams(NamedTuple):
    """Hyperparameters of DQN: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 0.01
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 1.0
    epsilon_start: shared.EpsilonStart = 1.0
    epsilon_end: shared.EpsilonEnd = 0.1
    exploration_steps: shared.ExplorationSteps = 5_000.0
    conservative_weight: NonNegative = 1.0
    """``Conservative.weight``."""
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    """Clip the gradient to this global norm. A tight clip shrinks the batches with the largest errors, which contain episode
    ends."""
    adam_eps: shared.AdamEps = 0.01
    """Adam's ε. A large value takes smaller steps where gradients are small, as between actions of nearly the same value."""
    total_steps: shared.TotalSteps = 0.0


# ------------------------------------------------------------------------------------------------------------------------ loss


def dqn_loss(
    model: Model,
    config: DQNConfig,
    params: PyTree,
    target_params: PyTree,
    batch: Transitions,
    axis_name: str | None,
    key: Key | None = None,
    terms: Sequence[ValueTerm] = (),
) -> tuple[Array, dict[str, Array]]:
    """Return the mean over valid draws of the head's loss, weighted by the draw, and the metrics with the rows' priorities.

    The scalar head's loss is ½·(y − Q(s, a))². With n-step returns, the reward in y is the sum of n discounted rewards, γ is γⁿ,
    and s′ is n steps ahead. Targets bootstrap from the target network as ``config.bootstrap`` says.

    Args:
      key: random key of the networks; each call of a network uses a different part of it.
      terms: further terms to add.
    """
    batch, head = zero_invalid(batch, batch.valid), config.head.functions
    keys = [None] * 3 if key is None else list(jax.random.split(key, 3))
    online, target = (lambda inputs, key, p=p: model.apply(p, (), inputs, key=key)[1] for p in (params, target_params))
    towards, beyond = config.bootstrap.look_ahead(head, OnlineAndTarget(online, target), batch, keys[1:])

    outputs = online(batch.inputs, keys[0])
    losses, priorities = head.loss(outputs, towards, jax.lax.stop_gradient(beyond))
    mean = valid_mean(batch.valid, axis_name)
    loss = mean(batch.weight * losses)
    values = head.values(outputs, batch.inputs.obs)
    logged = {"losses/td_loss": loss, "losses/q_values": mean(select_actions(values, batch.action))}
    for term in terms:
        more, scalars = term(values, batch, mean)
        loss, logged = loss + more, logged | scalars
    return loss, logged | {PRIORITIES: jnp.where(batch.valid, priorities, 0.0)}


def init(setup: ReplaySetup[DQNConfig], key: Key, hyperparams: DQNHyperparams) -> TargetLearner:
    return q_learning.init(setup, key, hyperparams, example_row(setup.observation_space, setup.action_space))


def act(
    setup: ReplaySetup[Any], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    config, keys = setup.config, fold_each(key, env_id) if explore else None
    if keys is not None and config.noise is not None:  # each environment draws separate noise, independent of the batch
        apply_to_row = lambda row, key: setup.model.apply(policy.params, (), jax.tree.map(lambda x: x[None], row), key=key)[1]  # noqa: E731
        # Far from 0 and 1: the action is drawn with split(key), and split(key)[i] equals fold_in(key, i).
        row_keys = fold_each(keys, jnp.full_like(env_id, 2**31 - 1))
        outputs = jax.tree.map(lambda x: x[:, 0], jax.vmap(apply_to_row)(inputs, row_keys))
    else:
        carry, outputs = setup.model.apply(policy.params, carry, inputs)
    q_values = config.head.functions.values(outputs, inputs.obs)
    return carry, actions(setup, policy, q_values, inputs, env_id, keys), {}


def network_keys(setup: ReplaySetup[DQNConfig], learner: TargetLearner) -> Key | None:
    """Return a random key for each update, or None if the network draws no random numbers."""
    if not setup.config.draws:
        return None
    return jax.random.split(setup.device_key(setup.stream(learner, 0)), setup.config.updates_per_iteration)


def learn(setup: ReplaySetup[DQNConfig], learner: TargetLearner) -> tuple[TargetLearner, Metrics]:
    return learn_with(setup, learner, ())


def learn_with(setup: ReplaySetup[Any], learner: Any, terms: Sequence[ValueTerm]) -> tuple[Any, Metrics]:
    """Run the updates of an iteration, with further ``terms`` of the loss."""
    config, hp = setup.config, setup.current(learner)
    if config.conservative is not None:
        terms = (partial(conservative_term, hp.conservative_weight), *terms)

    def loss(params: PyTree, target_params: PyTree, batch: Transitions, key: Key | None) -> tuple[Array, dict[str, Array]]:
        return dqn_loss(setup.model, config, params, target_params, batch, setup.axis_name, key, terms)

    def batch(replay: PyTree, draw: Draw) -> Transitions:
        return setup.weighted(transitions(setup.replay, replay, draw, hp.gamma, config.n_step), learner)

    return q_learning.learn(setup, learner, hp, loss, batch, network_keys(setup, learner))


def make_algorithm(setup: ReplaySetup[DQNConfig]) -> Algorithm:
    """Return DQN as an ``Algorithm``, bound to spaces but not to an environment."""
    transferable_fields = ("params", "target_params", "statistics")
    return setup.algorithm(init=init, policy=policy, act=act, learn=learn, transferable_fields=transferable_fields)


@with_keywords_of(replay_keywords)
def make_dqn(env: EnvLike, **keywords: Any) -> Agent:
    """Deep Q-learning (Mnih et al. 2015) for Discrete actions; by default double (van Hasselt et al. 2016), with n-step returns.

    With another ``head`` than ``Scalar``, a custom Model must have the outputs that it reads; see
    ``jaxrl.algorithms.common.q_heads``.
    """
    settings, parts = split_keywords(make_dqn, keywords)
    prepared = prepare(make_dqn, env, DQNConfig, DQNHyperparams, settings, (spaces.Discrete,), q_network, parts)
    return prepared.bind(make_algorithm(ReplaySetup.from_setup(prepared.setup, replay=checked_replay(prepared, parts))))


def checked_replay(prepared: PreparedAgent[Any], parts: Mapping[str, Any]) -> Replay:
    """Check the outputs of the network and its noise, and return the replay.

    Args:
      parts: the builder's keywords that are not settings.
    """
    config, model = prepared.setup.config, parts["model"]
    check_outputs(model, prepared.output, prepared.env.action_space, config.head)
    if config.noise is not None and not (isinstance(model, Mapping) or is_own(model, q_network)):
        refuse_unused(config.noise, Noisy(), ["sigma"], "with a custom model, which defines its layers itself")
    return resolve_replay(parts["replay"], prepared.env, config, before=1, after=config.n_step, data=prepared.setup.data)
