"""MuZero (Schrittwieser et al. 2020): tree search with a learned model, optionally by the search of Danihelka et al. (2022).

Reads top to bottom: settings, search, storing, learning, builder. In ``jaxrl.algorithms.common.planning``, the networks are in
``latent_model``, the tree in ``tree_search``, targets in ``model_targets``, and the loss in ``latent_loss``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.planning.latent_loss import muzero_loss
from jaxrl.algorithms.common.planning.latent_model import (
    LatentModel,
    LatentParams,
    Support,
    imagine,
    resolve_latent_model,
    with_shared_arguments,
)
from jaxrl.algorithms.common.planning.model_targets import Searched, targets
from jaxrl.algorithms.common.planning.tree_search import PUCT, RANDOM_MOVES, Found, Gumbel, Node, package, random_actions, search
from jaxrl.algorithms.common.value_rescaling import Rescale
from jaxrl.builder.components import resolve_replay
from jaxrl.builder.config import BufferConfig
from jaxrl.builder.keywords import latent_model_keywords, split_keywords, with_keywords_of
from jaxrl.builder.prepare import prepare
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.models import representation
from jaxrl.optimize.learner import ReplayLearner
from jaxrl.replay import Draw
from jaxrl.replay.options import Prioritized, Uniform
from jaxrl.replay.sequence import Sequences, sequences, swap_axes
from jaxrl.replay.transitions import example_row, replay_rows
from jaxrl.returns import bootstrap_mask
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, NonNegative, Positive, Range, Unit, added, is_whole
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class MuZeroConfig(BufferConfig):
    """Structural settings of MuZero."""

    num_envs: Count = 16
    rollout_length: Count = 16
    batch_size: Count = 128
    """Positions per gradient step, each with the ``unroll_steps`` after it."""
    replay_ratio: Positive = 16.0
    """Positions drawn per row collected: updates per iteration = replay_ratio · num_envs · rollout_length / batch_size,
    exactly."""
    simulations: Count = 16
    """Positions that a search adds to its tree."""
    search: Gumbel | PUCT = added(PUCT())
    """How a search chooses actions, in the tree and for the environment. ``Gumbel`` scales the values of a position's actions to
    [0, 1]; where there are only two, the better one is then far ahead however small the difference, so give it a smaller
    ``value_scale``."""
    unroll_steps: Count = 5
    """K: steps of the learned model from each drawn position."""
    n_step: Count = 10
    """Rewards in a return before it bootstraps."""
    fresh_values: bool = added(True)
    """Bootstrap returns from the network's values at each update. If false, they bootstrap from those that searches found when
    the rows were collected, as in the paper: values of older policies."""
    replay: Uniform | Prioritized = added(Uniform())
    """How positions are drawn from replay, unless ``replay`` is a custom ``ReplayFn``."""
    reanalyze: Unit = added(0.0)
    """Share of each batch whose policies are searched again with the current parameters (MuZero Reanalyze, appendix H)."""
    num_bins: Annotated[int, Range(3, integral=True)] = 51
    """Values of the distributions of rewards and returns."""
    value_limit: Positive = 300.0
    """The largest of these values; the smallest is its opposite."""
    target_sigma: NonNegative = added(0.0)
    """Standard deviation of normal distributions around rewards and returns, as targets of the distributions, in widths of a bin
    (HL-Gauss: Farebrother et al. 2024); 0: the two bins that are nearest share a target."""
    rescale: Rescale | None = added(Rescale())
    """Space these values on a scale that grows like the square root of the return."""

    @property
    def rows_after(self) -> int:
        """Number of rows after a drawn position that its targets need."""
        return self.unroll_steps + self.n_step

    @property
    def window(self) -> tuple[int, str]:
        return self.rows_after + 2, "unroll_steps + n_step + 2"

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        if not is_whole(rows := self.reanalyze * self.batch_size):
            raise ValueError(
                f"reanalyze={self.reanalyze:g} of batch_size={self.batch_size} is {rows:g} positions, which must be a whole "
                "number: change one of these"
            )


class MuZeroHyperparams(NamedTuple):
    """Hyperparameters of MuZero: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    vf_coef: NonNegative = 0.25
    """Weight of the value's loss."""
    max_grad_norm: shared.MaxGradNorm = 5.0
    adam_eps: shared.AdamEps = 1e-5
    total_steps: shared.TotalSteps = 0.0


@dataclass(frozen=True, kw_only=True)
class MuZeroSetup(ReplaySetup[MuZeroConfig]):
    """Setup of MuZero."""

    latent: LatentModel


class Exploration(NamedTuple):
    """Exploration state of a policy: what acting needs in addition to the network."""

    gamma: Array
    at_random: Array
    """bool[]: actions are drawn uniformly."""


# ---------------------------------------------------------------------------------------------------------------------- search


def policy(setup: MuZeroSetup, learner: ReplayLearner) -> Policy:
    """Return the policy: the parameters, and γ for the search. It acts at random until the first update, so in the warm-up."""
    return Policy(learner.params, (), Exploration(setup.current(learner).gamma, setup.acts_at_random(learner)), learner.version)


def act(
    setup: MuZeroSetup, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, Searched]:
    """Search from every position with the learned model, and return the chosen actions."""
    keys, exploration = fold_each(key, env_id), policy.exploration
    found = search_all(setup, policy.params, exploration.gamma, inputs, keys, explore=explore)
    action = found.action
    if explore:
        # A search with an untrained network tells actions apart by chance alone, and would always take the same.
        apart = jax.vmap(partial(jax.random.fold_in, data=RANDOM_MOVES))(keys)
        drawn = random_actions(apart, inputs.obs, found.policy.shape[-1])
        action = jnp.where(exploration.at_random, drawn, action)
    return carry, action, Searched(found.policy, found.value)


def search_all(setup: MuZeroSetup, params: LatentParams, gamma: Array, inputs: StepInput, keys: Key, *, explore: bool) -> Found:
    """Search from each observation, [B], with its own key."""
    config, latent = setup.config, setup.latent
    state = latent.represent(params, inputs)
    output = latent.predict(params, state)
    node = Node(output.logits, latent.support.decode(output.value))
    expand = partial(imagine, latent, params, gamma)

    def one(node: Node, state: Array, obs: PyTree, key: Key) -> Found:
        return search(config.search, expand, node, state, obs, key, config.simulations, explore=explore)

    return jax.vmap(one)(node, state, inputs.obs, keys)


def reanalyzed(setup: MuZeroSetup, params: LatentParams, gamma: Array, batch: Sequences, key: Key) -> Searched:
    """Return the policies and values to learn from: those that were stored with the rows, or with ``fresh_values`` the network's
    values, and for the share ``reanalyze`` of the sequences the policies of new searches."""
    config, (policy, value) = setup.config, batch.extras
    if config.fresh_values:
        value = setup.latent.act(params, (), batch.inputs)[1].value
    if count := round(config.reanalyze * value.shape[1]):
        length = config.unroll_steps + 1
        key, own = jax.random.split(key)
        chosen = jax.random.permutation(own, value.shape[1])[:count]  # prioritised draws are in the order of the environments
        positions = jax.tree.map(lambda x: x[:length, chosen].reshape(-1, *x.shape[2:]), batch.inputs)
        keys = jax.random.split(key, length * count)
        found = search_all(setup, params, gamma, positions, keys, explore=False).policy
        policy = policy.at[:length, chosen].set(found.reshape(length, count, -1))
    return Searched(policy, value)


# ------------------------------------------------------------------------------------------------------------ storing, learning


def init(setup: MuZeroSetup, key: Key, hyperparams: MuZeroHyperparams) -> ReplayLearner:
    learner = setup.init_learner(key, hyperparams)
    number = int(setup.action_space.n)  # type: ignore[attr-defined]
    found = Searched(jnp.zeros(number), jnp.zeros(()))
    row = example_row(setup.observation_space, setup.action_space, found)
    return ReplayLearner(**learner._asdict(), replay=setup.replay.init(row))


def observe(setup: MuZeroSetup, learner: ReplayLearner, rollout: Rollout) -> ReplayLearner:
    """Store a rollout's rows with what searches found."""
    rows = replay_rows(rollout, rollout.extras)
    return learner._replace(replay=setup.replay.add(learner.replay, rows, rollout.env_id))


def learn(setup: MuZeroSetup, learner: ReplayLearner) -> tuple[ReplayLearner, Metrics]:
    config, hp = setup.config, setup.current(learner)

    def batch(replay: PyTree, draw: Draw) -> Sequences:
        return swap_axes(setup.weighted(sequences(setup.replay, replay, draw, config.rows_after), learner))

    def loss(params: LatentParams, before: LatentParams, rows: Sequences, key: Key) -> Any:
        rows = swap_axes(rows)
        rows = rows._replace(inputs=zero_invalid(rows.inputs, bootstrap_mask(rows)))
        found = reanalyzed(setup, before, hp.gamma, rows, key)
        target = targets(rows, found, hp.gamma, config.unroll_steps, config.n_step)
        return muzero_loss(setup.latent, hp.vf_coef, params, rows, target, setup.axis_name)

    return setup.learn(learner, hp, loss, batch)


# --------------------------------------------------------------------------------------------------------------------- builder


def make_algorithm(setup: MuZeroSetup) -> Algorithm:
    """Return MuZero as an ``Algorithm``, bound to spaces but not to an environment."""
    return setup.algorithm(init=init, policy=policy, act=act, observe=observe, learn=learn, check_vma=False)


@with_keywords_of(latent_model_keywords)
def make_muzero(env: EnvLike, **keywords: Any) -> Agent:
    """MuZero (Schrittwieser et al. 2020; Danihelka et al. 2022) for Discrete actions, with one player or two. Each action is
    chosen by a tree search with a learned model, which predicts rewards, values, policies and ends from latent states.

    Raises:
      ImportError: mctx is not installed.
    """
    package()
    settings, parts = split_keywords(make_muzero, keywords)
    parts = with_shared_arguments(parts)
    prepared = prepare(make_muzero, env, MuZeroConfig, MuZeroHyperparams, settings, (spaces.Discrete,), representation, parts)
    config = prepared.setup.config
    support = Support(config.value_limit, config.num_bins, config.rescale, config.target_sigma)
    latent = resolve_latent_model(prepared.setup.model, prepared.output, parts, prepared.env, support)
    replay = resolve_replay(parts["replay"], prepared.env, config, before=1, after=config.rows_after)
    setup = dataclasses.replace(prepared.setup, model=latent.as_model)
    return prepared.bind(make_algorithm(MuZeroSetup.from_setup(setup, replay=replay, latent=latent)))
