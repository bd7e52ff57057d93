"""R2D2 (Kapturowski et al. 2019): recurrent Q-learning from prioritised sequences, each stored with its initial carry.

Reads top to bottom: settings, loss, storing, learning, builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common import q_learning
from jaxrl.algorithms.common.q_learning import act, policy
from jaxrl.algorithms.common.sequence_batches import check_sequences, example_sequence, store_sequences
from jaxrl.algorithms.common.teams.value_decomposition import QMIX, VDN, TeamValue, decomposed, team_rows, team_value
from jaxrl.algorithms.common.value_rescaling import Rescale, scale
from jaxrl.builder.attempt import show
from jaxrl.builder.components import resolve_replay
from jaxrl.builder.keywords import replay_keywords, split_keywords, with_keywords_of
from jaxrl.builder.networks import ModelFn, check_q_values, is_recurrent
from jaxrl.builder.prepare import prepare
from jaxrl.builder.replay_setup import PRIORITIES, ReplaySetup
from jaxrl.builder.sequence_config import SequenceConfig
from jaxrl.distributions import select_actions
from jaxrl.exploration.options import Spread
from jaxrl.models import q_network
from jaxrl.optimize.gradients import valid_means
from jaxrl.optimize.learner import TargetLearner
from jaxrl.replay import Draw
from jaxrl.replay.options import Sequence
from jaxrl.replay.sequence import Sequences, sequence_priorities, sequences, swap_axes
from jaxrl.returns import bootstrap_mask, discounts, n_step_returns
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, CountOrZero, Positive, Unit, added
from jaxrl.types import Agent, Array, EnvLike, Key, Metrics, Model, PyTree


@dataclass(frozen=True)
class R2D2Config(SequenceConfig):
    """Structural settings of R2D2."""

    num_envs: Count = 16
    rollout_length: Count = 16
    """Rows that each environment contributes to an iteration. A sequence begins with each rollout, so sequences longer than a
    rollout overlap."""
    batch_size: Count = 32
    """Sequences per gradient step."""
    replay_ratio: Positive = 32.0
    """Trained rows per row collected: updates per iteration = replay_ratio · num_envs · rollout_length / (batch_size ·
    sequence_length), exactly."""
    n_step: Count = 10
    burn_in: CountOrZero = 0
    """Rows at the start of each sequence that only bring the carry up to date with the parameters, and enter no loss."""
    sequence_length: Count = 32
    """Rows after the burn-in, from which the network learns."""
    replay: Sequence = added(Sequence())
    """How sequences are drawn, unless ``replay`` is a custom ``ReplayFn``."""
    rescale: Rescale | None = added(Rescale())
    """Learn values on a scale that grows like the square root of the return."""
    target_update_interval: Count = 32
    """Updates between changes of the target network."""
    exploration: Spread | None = added(None)
    """How ε differs between environments; by default it is the same in all."""
    decomposition: VDN | QMIX | None = added(None)
    """With several agents: the value of the team, which is learnt in place of one for each agent. A sequence is then that of all
    agents of an environment."""

    @property
    def draws_environments(self) -> bool:
        return self.decomposition is not None

    def network(self, default: Any) -> ModelFn:
        return partial(default, core="gru")


class R2D2Hyperparams(NamedTuple):
    """Hyperparameters of R2D2: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    """Discount per step; 0.997 in the paper."""
    tau: shared.Tau = 1.0
    eta: Unit = 0.9
    """η: a sequence's priority is η times its largest error plus 1 − η times its mean error."""
    epsilon_start: shared.EpsilonStart = 1.0
    epsilon_end: shared.EpsilonEnd = 0.05
    exploration_steps: shared.ExplorationSteps = 20_000.0
    max_grad_norm: shared.MaxGradNorm = 40.0
    adam_eps: shared.AdamEps = 1e-3
    total_steps: shared.TotalSteps = 0.0


# ------------------------------------------------------------------------------------------------------------------------ loss


def q_values(model: Model, config: R2D2Config, params: PyTree, batch: Sequences) -> Array:
    """Q-values f32[sequence_length + n_step, N, actions] after the burn-in; no gradient flows through the burn-in."""
    burn_in, carry = config.burn_in, batch.carry
    if burn_in:
        head = jax.tree.map(lambda x: x[:burn_in], batch.inputs)
        carry, _ = model.unroll(jax.lax.stop_gradient(params), carry, head)
    return model.unroll(params, carry, jax.tree.map(lambda x: x[burn_in:], batch.inputs))[1]


def r2d2_loss(
    model: Model,
    config: R2D2Config,
    gamma: Array | float,
    eta: Array | float,
    params: PyTree,
    target_params: PyTree,
    batch: Sequences,
    axis_name: str | None,
    team: TeamValue | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Mean of ½·(y − Q(s_t, a_t))², times the sequence's weight, over the valid rows after the burn-in of all devices.

    y = h(Σₖ γᵏ·r_{t+k} + γⁿ·h⁻¹(Q⁻(s_{t+n}, argmaxₐ Q(s_{t+n}, a)))), with fewer rewards if the episode ends earlier (section
    2.3). Both networks start from the carry stored with the sequence. The metrics returned include the priorities.

    With ``team`` the values are those of environments (Rashid et al. 2018, eq. 6). Actions are chosen by the values of agents.
    """
    h, inverse = scale(config.rescale)
    batch = batch._replace(inputs=zero_invalid(batch.inputs, bootstrap_mask(batch)))
    online = q_values(model, config, params, batch)
    target = model.unroll(target_params, batch.carry, batch.inputs)[1][config.burn_in :]

    lanes: Any = batch._replace(carry=(), weight=())  # type: ignore[arg-type]
    lanes = jax.tree.map(lambda x: x[config.burn_in :], lanes)
    learnt, weight, rows = slice(config.sequence_length), batch.weight, lanes
    reached = select_actions(target[1:], jnp.argmax(online[1:], -1))
    chosen = select_actions(online[learnt], lanes.action[learnt])
    if team is not None:
        rows, weight = team_rows(lanes, team.num_agents), weight[:: team.num_agents]
        reached = team.reached(target_params, lanes, reached)
        obs = jax.tree.map(lambda x: x[learnt], lanes.inputs.obs)
        chosen = team.chosen(params, chosen, lanes.valid[learnt], obs)
    returns = n_step_returns(rows.reward, *discounts(rows, gamma), inverse(reached), rows.valid, config.n_step)
    valid = rows.valid[learnt]
    error = chosen - jax.lax.stop_gradient(h(returns[learnt]))
    loss = 0.5 * weight * error**2
    loss, logged = valid_means(loss, {"losses/td_loss": loss, "losses/q_values": inverse(chosen)}, valid, axis_name)
    return loss, logged | {PRIORITIES: sequence_priorities(error, valid, eta)}


# --------------------------------------------------------------------------------------------------------------------- learning


def init(setup: ReplaySetup[R2D2Config], key: Key, hyperparams: R2D2Hyperparams) -> TargetLearner:
    return q_learning.init(setup, key, hyperparams, example_sequence(setup))


def learn(setup: ReplaySetup[R2D2Config], learner: TargetLearner) -> tuple[TargetLearner, Metrics]:
    config, hp, team = setup.config, setup.current(learner), team_value(setup)
    num_agents = team.num_agents if team else 0

    def loss(params: PyTree, target_params: PyTree, batch: Sequences) -> tuple[Array, dict[str, Array]]:
        return r2d2_loss(setup.model, config, hp.gamma, hp.eta, params, target_params, swap_axes(batch), setup.axis_name, team)

    def batch(replay: PyTree, draw: Draw) -> Sequences:
        return swap_axes(setup.weighted(sequences(setup.replay, replay, draw, config.rows_behind, num_agents), learner))

    return q_learning.learn(setup, learner, hp, loss, batch)


# --------------------------------------------------------------------------------------------------------------------- builder


@with_keywords_of(replay_keywords)
def make_r2d2(env: EnvLike, **keywords: Any) -> Agent:
    """R2D2 (Kapturowski et al. 2019) for Discrete actions: Q-learning with a recurrent network.

    Args:
      model: arguments of ``jaxrl.models.q_network``, such as ``{"core": "lstm"}``; or a recurrent Model whose outputs are
        Q-values f32[..., n], or a function of (observation_space, action_space) that returns one. Default: for vectors, an MLP of
        2×64, ReLU, followed by a GRU of 64 units; the previous action and reward are inputs too.
      replay: ``Sequence(exponent=…)``, or a ``ReplayFn`` as returned by ``sequence_replay``, whose sequences must begin with each
        rollout, and whose weights must be those of β = 1, which are raised to the power of ``Sequence.importance_exponent``.
    """
    if keywords.get("data") is not None:
        raise ValueError("R2D2 learns from sequences and the carries before them, which a dataset does not hold: use make_dqn")
    settings, parts = split_keywords(make_r2d2, keywords)
    prepared = prepare(make_r2d2, env, R2D2Config, R2D2Hyperparams, settings, (spaces.Discrete,), q_network, parts, memory=True)
    config, model, replay = prepared.setup.config, parts["model"], parts["replay"]
    check_q_values(model, prepared.output, prepared.env.action_space)
    if not is_recurrent(prepared.setup.model):
        raise TypeError(
            f"model={show(model)} has no memory, but R2D2 learns from sequences and their initial carry: give it a core, as with "
            'model={"core": "gru"}, or use make_dqn'
        )
    prepared = decomposed(prepared)
    together = config.replay.of_agents(prepared.setup.num_agents) if config.decomposition else None
    stored = resolve_replay(replay or together, prepared.env, config, before=1, after=config.rows_behind)
    setup = ReplaySetup.from_setup(prepared.setup, replay=stored)
    if replay is not None:
        if (exponent := config.replay.exponent) != Sequence().exponent:
            raise ValueError(f"replay.exponent={exponent:g} has no effect with replay={show(replay)}, which has its own")
        check_sequences(replay, setup, setup.num_agents if config.decomposition else 0)
    algorithm = partial(setup.algorithm, init=init, policy=policy, act=act, observe=store_sequences, learn=learn)
    return prepared.bind(algorithm(transferable_fields=("params", "target_params", "statistics")))
