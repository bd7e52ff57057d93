"""Behaviour cloning (Pomerleau 1991): supervised learning of the actions of a dataset, or of those of its best episodes.

Reads top to bottom: settings, acting, learning, builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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
from jaxrl.replay.dataset_replay import dataset_replay
from jaxrl.replay.transitions import Transitions, transitions
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import PositiveUnit
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, StepInput


@dataclass(frozen=True)
class BCConfig(DatasetConfig):
    """Structural settings of BC."""

    best: PositiveUnit = 1.0
    """Fraction of the episodes to learn from, those with the highest returns: 0.1 is "10 % BC"."""

    def network(self, default: Any) -> Any:
        return partial(default, hidden_sizes=(256, 256), activation="relu")


class BCHyperparams(NamedTuple):
    """Hyperparameters of BC: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 3e-4
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


def act(
    setup: ReplaySetup[BCConfig], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    carry, output = setup.model.apply(policy.params, carry, normalize_inputs(policy.statistics, inputs))
    return carry, played_action(setup, output, env_id, key, explore=explore), {}


def loss(setup: ReplaySetup[BCConfig], params: PyTree, batch: Transitions) -> tuple[Array, dict[str, Array]]:
    """Return the mean of ``cloning_loss`` over the drawn rows."""
    output = setup.model.apply(params, (), batch.inputs)[1]
    found = setup.valid_mean(batch.valid)(cloning_loss(output, batch.action))
    return found, {"losses/cloning_loss": found}


def learn(setup: ReplaySetup[BCConfig], learner: ReplayLearner) -> tuple[ReplayLearner, Metrics]:
    def batch(replay: PyTree, draw: Draw) -> Transitions:
        drawn = transitions(setup.replay, replay, draw, 0.0)
        drawn = zero_invalid(drawn, drawn.valid)
        return drawn._replace(action=from_environment(setup.action_space, drawn.action))

    return cloning.learn(setup, learner, batch, partial(loss, setup))


def make_algorithm(setup: ReplaySetup[BCConfig]) -> Algorithm:
    """Return BC as an ``Algorithm``, bound to spaces but not to an environment."""
    return setup.algorithm(init=cloning.init, act=act, learn=learn)


@with_keywords_of(dataset_keywords)
def make_bc(env: EnvLike, **keywords: Any) -> Agent:
    """Behaviour cloning (Pomerleau 1991) of a dataset, for Box, Discrete and MultiDiscrete actions.

    Args:
      model: arguments of ``jaxrl.models.greedy_policy``, such as ``{"hidden_sizes": (64, 64)}``; or a memoryless Model whose
        outputs are actions f32[..., d] of a Box, in [−1, 1] between bounds, or a ``Categorical`` or ``MultiCategorical``; or a
        function of (observation_space, action_space) that returns one. Default: an MLP of 2×256, ReLU, for vectors.
    """
    check_has_data("make_bc", keywords)
    settings, parts = split_keywords(make_bc, keywords)
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)
    prepared = prepare(make_bc, env, BCConfig, BCHyperparams, settings, kinds, greedy_policy, parts)
    check_greedy_policy(parts["model"], prepared.output, prepared.env.action_space)
    replay = dataset_replay(before=1, after=1, best=prepared.setup.config.best)
    return prepared.bind(make_algorithm(ReplaySetup.from_setup(prepared.setup, replay=replay)))
