"""AlphaZero (Silver et al. 2018), with the search of Danihelka et al. (2022) by default.

Reads top to bottom: settings, search, storing, learning, builder. In ``jaxrl.algorithms.common.planning``, the tree is in
``tree_search``, and the loss in ``search_loss``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.planning.search_loss import SearchedRow, alphazero_loss, reflected
from jaxrl.algorithms.common.planning.tree_search import PUCT, RANDOM_MOVES, Gumbel, Node, package, random_actions, search
from jaxrl.builder.config import BufferConfig
from jaxrl.builder.keywords import agent_keywords, split_keywords, with_keywords_of
from jaxrl.builder.networks import check_actor_critic
from jaxrl.builder.prepare import prepare
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.models import actor_critic
from jaxrl.optimize.learner import ReplayLearner
from jaxrl.replay import Draw
from jaxrl.replay.uniform import uniform_replay
from jaxrl.returns import bootstrap_mask, discounts, lambda_returns
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import example_input, zero_invalid
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, NonNegative, Positive, Unit, added
from jaxrl.spaces.entries import player_sign
from jaxrl.types import (
    Agent,
    Algorithm,
    Array,
    Env,
    EnvLike,
    Key,
    Metrics,
    Policy,
    PyTree,
    Rollout,
    Simulator,
    StepInput,
    Symmetries,
)


@dataclass(frozen=True)
class AlphaZeroConfig(BufferConfig):
    """Structural settings of AlphaZero."""

    num_envs: Count = 64
    """Number of games played in parallel."""
    rollout_length: Count = 32
    batch_size: Count = 256
    buffer_size: Count = 65_536
    replay_ratio: Positive = 4.0
    simulations: Count = 32
    """Positions that a search adds to its tree."""
    search: Gumbel | PUCT = added(Gumbel())
    """How a search chooses actions, in the tree and for the environment."""
    symmetries: bool = added(True)
    """Learn from a random symmetry of each position, if the environment has some (``Env.symmetries``)."""


class AlphaZeroHyperparams(NamedTuple):
    """Hyperparameters of AlphaZero: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 1.0
    value_lambda: Unit = 1.0
    """λ of the value's targets: 1 is the outcome of the game, 0 the value that the next search found."""
    vf_coef: NonNegative = 1.0
    """Weight of the value's loss."""
    epsilon: Unit = 0.25
    """Probability of a random move in training, so that games differ. Returns do not look beyond such moves."""
    max_grad_norm: shared.MaxGradNorm = 1.0
    adam_eps: shared.AdamEps = 1e-5
    total_steps: shared.TotalSteps = 0.0


@dataclass(frozen=True, kw_only=True)
class SearchSetup(ReplaySetup[AlphaZeroConfig]):
    """Setup of AlphaZero."""

    symmetries: Symmetries | None = None


class Exploration(NamedTuple):
    """Exploration state of a policy: what a search needs in addition to the network."""

    gamma: Array
    epsilon: Array


# ---------------------------------------------------------------------------------------------------------------------- search


def policy(setup: SearchSetup, learner: ReplayLearner) -> Policy:
    """Return the policy: the parameters, and γ and ε for the search."""
    hp = setup.current(learner)
    return Policy(learner.params, (), Exploration(hp.gamma, hp.epsilon), learner.version)


def act(
    setup: SearchSetup,
    policy: Policy,
    carry: PyTree,
    inputs: StepInput,
    env_id: Array,
    key: Key,
    *,
    explore: bool,
    simulator: Simulator | None = None,
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Search from every position, and return the chosen actions; with ``explore`` some are random. Without a simulator the
    network acts alone."""
    _, output = setup.model.apply(policy.params, (), inputs)
    logits, keys, searched = output.policy.logits, fold_each(key, env_id), jnp.zeros(env_id.shape, bool)
    if simulator is None:
        action = setup.sample(output.policy, key, env_id) if explore else output.policy.mode()
        return carry, action, extras(jax.nn.softmax(logits), output.value, searched)

    def search_one(node: Node, state: PyTree, obs: PyTree, key: Key) -> Any:
        position, simulations = (state, jnp.float32(player_sign(obs))), setup.config.simulations
        expand = partial(look_ahead, setup, policy, simulator)
        return search(setup.config.search, expand, node, position, obs, key, simulations, explore=explore)

    found = jax.vmap(search_one)(Node(logits, output.value), simulator.state, inputs.obs, keys)
    if not explore:
        return carry, found.action, extras(found.policy, found.value, searched)
    choose_keys, draw_keys = jnp.moveaxis(
        jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, RANDOM_MOVES)))(keys), 1, 0
    )
    at_random = jax.vmap(jax.random.uniform)(choose_keys) < policy.exploration.epsilon
    drawn = random_actions(draw_keys, inputs.obs, logits.shape[-1])
    return carry, jnp.where(at_random, drawn, found.action), extras(found.policy, found.value, at_random)


def look_ahead(setup: SearchSetup, policy: Policy, simulator: Simulator, key: Key, position: PyTree, action: Array) -> Any:
    """Implement ``tree_search.Expand``; a position is a state with the sign of its player."""
    state, sign = position
    state, reached = simulator.step(key, state, action)
    row = StepInput(reached.obs, action, reached.reward, jnp.zeros((), bool))
    _, output = setup.model.apply(policy.params, (), jax.tree.map(lambda x: jnp.asarray(x)[None], row))
    next_sign, continues = jnp.float32(player_sign(reached.obs)), jnp.where(reached.terminated, 0.0, 1.0)
    node = Node(output.policy.logits[0], continues * output.value[0])
    return (state, next_sign), reached.reward, policy.exploration.gamma * continues * sign * next_sign, node


def extras(policy: Array, value: Array, at_random: Array) -> dict[str, Array]:
    return {"search_policy": policy, "root_value": value, "at_random": at_random}


# ------------------------------------------------------------------------------------------------------------ storing, learning


def init(setup: SearchSetup, key: Key, hyperparams: AlphaZeroHyperparams) -> ReplayLearner:
    learner = setup.init_learner(key, hyperparams)
    obs = jax.tree.map(lambda x: x[0], example_input(setup.observation_space, setup.action_space).obs)
    row = SearchedRow(obs, jnp.zeros(int(setup.action_space.n)), jnp.zeros(()), jnp.zeros((), bool))  # type: ignore[attr-defined]
    return ReplayLearner(**learner._asdict(), replay=setup.replay.init(row))


def observe(setup: SearchSetup, learner: ReplayLearner, rollout: Rollout) -> ReplayLearner:
    """Store a rollout's positions with their λ-returns. Games that it does not finish bootstrap from the network's value, and a
    position with a random move from the value that its search found."""
    hp = setup.current(learner)
    last = jax.tree.map(lambda x: x[-1], zero_invalid(rollout.inputs, bootstrap_mask(rollout)))
    beyond = setup.model.apply(learner.params, (), last)[1].value
    found, at_random = rollout.extras["root_value"], rollout.extras["at_random"]
    discount, trace = discounts(rollout, hp.gamma, hp.value_lambda)
    trace = jnp.where(jnp.concatenate([at_random[1:], jnp.zeros_like(at_random[:1])]), 0.0, trace)
    value = lambda_returns(rollout.reward, discount, trace, jnp.concatenate([found[1:], beyond[None]]), rollout.valid)
    value = jnp.where(at_random & rollout.valid, found, value)
    obs = jax.tree.map(lambda x: x[:-1], rollout.inputs.obs)
    rows = SearchedRow(obs, rollout.extras["search_policy"], value, rollout.valid)
    return learner._replace(replay=setup.replay.add(learner.replay, rows, rollout.env_id))


def learn(setup: SearchSetup, learner: ReplayLearner) -> tuple[ReplayLearner, Metrics]:
    hp, symmetries = setup.current(learner), setup.symmetries

    def batch(replay: PyTree, draw: Draw) -> SearchedRow:
        row = setup.replay.take(replay, draw, 0)
        return row._replace(valid=draw.valid)

    def loss(params: PyTree, before: PyTree, rows: SearchedRow, key: Key) -> Any:
        if symmetries is not None:
            rows = jax.vmap(lambda row, key: reflected(symmetries, row, key))(rows, jax.random.split(key, len(rows.valid)))
        return alphazero_loss(setup, hp.vf_coef, params, rows)

    return setup.learn(learner, hp, loss, batch)


# --------------------------------------------------------------------------------------------------------------------- builder


def make_algorithm(setup: SearchSetup) -> Algorithm:
    """Return AlphaZero as an ``Algorithm``, bound to spaces but not to an environment."""
    return setup.algorithm(init=init, policy=policy, act=act, observe=observe, learn=learn, plans=True, check_vma=False)


@with_keywords_of(agent_keywords)
def make_alphazero(env: EnvLike, **keywords: Any) -> Agent:
    """AlphaZero (Silver et al. 2018; Danihelka et al. 2022) for Discrete actions: games of two players, by self-play, and pure
    environments of one player. Each action is chosen by a tree search with the environment itself, whose results the network
    learns. Policies of ``load_policy`` act by the network alone.

    Args:
      model: arguments of ``jaxrl.models.actor_critic``; or a memoryless Model whose outputs are ``ActorCriticOutput``, or a
        function of (observation_space, action_space) that returns one. Default: convolutions for boards, two MLPs of 2×64, tanh,
        for vectors.

    Raises:
      ImportError: mctx is not installed.
    """
    package()
    settings, parts = split_keywords(make_alphazero, keywords)
    if isinstance(parts["model"], Mapping) and parts["model"].get("use_previous"):
        raise ValueError("use_previous=True has no effect: it learns from positions, without the moves before")
    config, hyperparams = AlphaZeroConfig, AlphaZeroHyperparams
    prepared = prepare(make_alphazero, env, config, hyperparams, settings, (spaces.Discrete,), actor_critic, parts)
    if number := prepared.env.num_agents:
        raise ValueError(f"AlphaZero plans for one agent or two players, and {prepared.env.name} has {number} agents")
    check_actor_critic(parts["model"], prepared.output, prepared.env.action_space)
    found = prepared.setup.config
    sizes = (found.buffer_size // found.num_envs, found.num_envs, found.rollout_length)
    replay = uniform_replay(*sizes, before=0, after=0)
    symmetries = prepared.env.symmetries if isinstance(prepared.env, Env) and found.symmetries else None
    return prepared.bind(make_algorithm(SearchSetup.from_setup(prepared.setup, replay=replay, symmetries=symmetries)))
