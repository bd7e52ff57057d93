"""Decision transformer (Chen et al. 2021): a network with memory clones the actions of a dataset, given the return that follows
them. To act, it is given the return that is asked for.

Reads top to bottom: settings, model, acting, learning, builder.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.offline import cloning
from jaxrl.algorithms.common.offline.cloning import cloning_loss, played_action
from jaxrl.algorithms.common.offline.datasets import check_has_data
from jaxrl.builder.config import DatasetConfig
from jaxrl.builder.keywords import dataset_keywords, split_keywords, with_keywords_of
from jaxrl.builder.networks import check_greedy_policy
from jaxrl.builder.prepare import prepare
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.models import greedy_policy
from jaxrl.optimize.learner import ReplayLearner
from jaxrl.replay import Draw
from jaxrl.replay.dataset import info_of
from jaxrl.replay.dataset_replay import dataset_replay
from jaxrl.rollout.autoreset import next_input
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, Range
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Model, Policy, PyTree, StepInput


@dataclass(frozen=True)
class DTConfig(DatasetConfig):
    """Structural settings of the decision transformer."""

    sequence_length: Count = 32
    """Rows of a sequence, from which the network learns. A sequence ends with its episode."""
    batch_size: Count = 64
    """Sequences per gradient step."""

    def network(self, default: Any) -> Any:
        return partial(default, hidden_sizes=(128,), activation="relu", core="attention", core_size=128)


class DTHyperparams(NamedTuple):
    """Hyperparameters of the decision transformer: f32 scalars in the learner's state, which can be vmapped over and changed
    during a run."""

    learning_rate: shared.LearningRate = 3e-4
    target_fraction: Annotated[float, Range()] = 1.0
    """Return that is asked for, on the way from the lowest return of an episode of the data, 0, to the highest, 1. It may be
    outside."""
    max_grad_norm: shared.MaxGradNorm = 0.25
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


# ----------------------------------------------------------------------------------------------------------------------- model

RETURN_KEY = "return_to_go"
"""Key of the return among the observations that the network sees."""


def seen_space(space: spaces.Space) -> spaces.Dict:
    """Return the space of the network's observations: those of the environment, and the return that is to follow."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    return spaces.Dict({**parts, RETURN_KEY: spaces.Box(-np.inf, np.inf, (1,), np.float32)})


def conditioned(network: Model, nested: bool, scale: float) -> Model:
    """Return a model that gives the return to go to a network, in units of ``scale``. Its carry is that of the network, and the
    return before the previous reward, f32[B], from which it subtracts that reward.

    Args:
      nested: observations are a Dict, to which the return is added.
    """

    def seen(inputs: StepInput, to_go: Array) -> StepInput:
        parts = inputs.obs if nested else {"observation": inputs.obs}
        return inputs._replace(obs={**parts, RETURN_KEY: to_go[..., None] / scale})

    def init(key: Key, inputs: StepInput) -> PyTree:
        return network.init(key, seen(inputs, inputs.prev_reward))

    def apply(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        memory, to_go = carry
        to_go = to_go - inputs.prev_reward
        memory, output = network.apply(params, memory, seen(inputs, to_go))
        return (memory, to_go), output

    def unroll(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        memory, start = carry
        to_go = start - jnp.cumsum(inputs.prev_reward, axis=0)
        memory, output = network.unroll(params, memory, seen(inputs, to_go))
        return (memory, to_go[-1]), output

    return Model(init, apply, unroll, lambda batch_size: (network.initial_carry(batch_size), jnp.zeros(batch_size)))


# ---------------------------------------------------------------------------------------------------------------------- acting


def policy(setup: ReplaySetup[DTConfig], learner: ReplayLearner) -> Policy:
    """Return the policy, with the return that it asks for."""
    assert setup.data is not None
    low, high = info_of(setup.data).returns
    target = low + setup.current(learner).target_fraction * (high - low)
    return Policy(learner.params, learner.statistics, target, learner.version)


def act(
    setup: ReplaySetup[DTConfig], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    memory, to_go = carry
    to_go = jnp.where(inputs.is_first, policy.exploration, to_go)
    inputs = normalize_inputs(policy.statistics, inputs)
    carry, output = setup.model.apply(policy.params, (memory, to_go), inputs)
    return carry, played_action(setup, output, env_id, key, explore=explore), {}


# -------------------------------------------------------------------------------------------------------------------- learning


class Sequences(NamedTuple):
    """Rows of a dataset that follow each other, [N, T]."""

    inputs: StepInput
    action: Array
    """In the model's units."""
    to_go: Array
    """Return from each row on."""
    valid: Array
    """False from the end of the episode on."""


def sequences(setup: ReplaySetup[DTConfig], state: PyTree, draw: Draw) -> Sequences:
    """Return the sequences that begin with the drawn rows, [N, T], not normalised."""
    offsets = jnp.arange(-1, setup.config.sequence_length)
    take = lambda offset: setup.replay.take(state, draw, jnp.broadcast_to(offset, draw.row.shape))  # noqa: E731
    rows = jax.vmap(take, out_axes=1)(offsets)
    before, now = (jax.tree.map(lambda x, part=part: x[:, part], rows) for part in (slice(None, -1), slice(1, None)))
    data = state.data
    at = (draw.row[:, None] + offsets[1:]) % len(data.returns_to_go)
    valid = jnp.cumprod(now.valid, axis=1, dtype=jnp.int32).astype(bool) & draw.valid[:, None]
    inputs = next_input(now.obs, before.action, before.reward, before.valid)
    action = from_environment(setup.action_space, now.action)
    return zero_invalid(Sequences(inputs, action, data.returns_to_go[at], valid), valid)


def loss(setup: ReplaySetup[DTConfig], params: PyTree, batch: Sequences) -> tuple[Array, dict[str, Array]]:
    """Return the mean of ``cloning_loss`` over the valid rows (Chen et al. 2021, section 3)."""
    batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch)  # [T, N]
    start = batch.to_go[0] + batch.inputs.prev_reward[0]
    carry = (setup.model.initial_carry(len(start))[0], start)
    output = setup.model.unroll(params, carry, batch.inputs)[1]
    found = setup.valid_mean(batch.valid)(cloning_loss(output, batch.action))
    return found, {"losses/cloning_loss": found}


def learn(setup: ReplaySetup[DTConfig], learner: ReplayLearner) -> tuple[ReplayLearner, Metrics]:
    return cloning.learn(setup, learner, partial(sequences, setup), partial(loss, setup))


def make_algorithm(setup: ReplaySetup[DTConfig]) -> Algorithm:
    """Return the decision transformer as an ``Algorithm``, bound to spaces but not to an environment."""
    return setup.algorithm(init=cloning.init, policy=policy, act=act, learn=learn)


@with_keywords_of(dataset_keywords)
def make_dt(env: EnvLike, **keywords: Any) -> Agent:
    """Decision transformer (Chen et al. 2021), for Box, Discrete and MultiDiscrete actions. Without a core it is
    return-conditioned behaviour cloning (Emmons et al. 2022).

    Args:
      model: arguments of ``jaxrl.models.greedy_policy``, such as ``{"context": 50}``, ``{"core": "gru"}`` or ``{"core": None}``;
        or a Model whose outputs are those of BC's, and whose observations are a Dict of the environment's and ``"return_to_go"``;
        or a function of (observation_space, action_space) that returns one. Default: a layer of 128 units and a core of attention
        to 20 rows, with 2 layers of 128 units.
    """
    check_has_data("make_dt", keywords)
    settings, parts = split_keywords(make_dt, keywords)
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)
    prepared = prepare(
        make_dt, env, DTConfig, DTHyperparams, settings, kinds, greedy_policy, parts, memory=True, seen_space=seen_space
    )
    check_greedy_policy(parts["model"], prepared.output, prepared.env.action_space)
    data = prepared.setup.data
    assert data is not None
    scale = max(map(abs, info_of(data).returns)) or 1.0
    model = conditioned(prepared.setup.model, isinstance(prepared.env.observation_space, spaces.Dict), scale)
    replay = dataset_replay(before=1, after=prepared.setup.config.sequence_length)
    setup = ReplaySetup.from_setup(dataclasses.replace(prepared.setup, model=model), replay=replay)
    return prepared.bind(make_algorithm(setup))
