"""Parts of algorithms that clone the actions of a dataset: acting, the loss of one action, and the loop over updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxrl.algorithms.common.offline.datasets import data_statistics
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.distributions import Categorical, MultiCategorical
from jaxrl.optimize.learner import ReplayLearner
from jaxrl.replay import Draw
from jaxrl.replay.transitions import example_row
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.types import Array, Key, Metrics, PyTree


def init(setup: ReplaySetup[Any], key: Key, hyperparams: Any) -> ReplayLearner:
    learner = setup.init_learner(key, hyperparams, data_statistics(setup))
    stored = setup.replay.init(example_row(setup.observation_space, setup.action_space))
    return ReplayLearner(**learner._asdict(), replay=stored)


def cloning_loss(output: Categorical | MultiCategorical | Array, action: Array) -> Array:
    """Return the loss of actions in the model's units, f32[...]: for a Box (π(s) − a)², as a mean over the components, otherwise
    −log π(a | s)."""
    if isinstance(output, Categorical | MultiCategorical):
        return -output.log_prob(action)
    return jax.lax.square(output - action).mean(-1)


def played_action(setup: AlgorithmSetup[Any], output: PyTree, env_id: Array, key: Key, *, explore: bool) -> Array:
    """Return the action for each environment, [B]: the best one, or with ``explore`` one drawn from a distribution. A policy
    without a distribution has no exploration."""
    if not isinstance(output, Categorical | MultiCategorical):
        return setup.to_environment(output)
    return setup.to_environment(setup.sample(output, key, env_id) if explore else output.mode())


def learn(
    setup: ReplaySetup[Any],
    learner: ReplayLearner,
    batch: Callable[[PyTree, Draw], Any],
    loss: Callable[[PyTree, Any], tuple[Array, dict[str, Array]]],
) -> tuple[ReplayLearner, Metrics]:
    """Run the updates of an iteration.

    Args:
      batch: (replay's state, draw) -> the update's batch, as in ``ReplaySetup.scan_updates``, with a field ``inputs``, which are
        normalised here.
      loss: (params, batch) -> (loss, scalars to log).
    """
    hp = setup.current(learner)
    descent = setup.descent(hp, learner.params)

    def normalized(replay: PyTree, draw: Draw) -> Any:
        drawn = batch(replay, draw)
        return drawn._replace(inputs=normalize_inputs(learner.statistics, drawn.inputs))

    def update_once(progress: Any, update: tuple[Array, Any]) -> Any:
        progress, metrics = descent.step(lambda params: loss(params, update[1]), progress)
        return progress, (metrics, ())

    start = descent.start(learner.params, learner.opt_state)
    progress, replay, metrics = setup.scan_updates(learner, update_once, start, normalized)
    return setup.updated(learner, hp, metrics, **descent.finish(progress), replay=replay)
