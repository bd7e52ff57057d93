"""Parts of algorithms that clone the actions of a dataset: state, acting, and the loss of one action."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.distributions import Categorical, MultiCategorical
from jaxrl.optimize.learner import Learner
from jaxrl.types import Array, Key, PyTree


class CloningLearner(Learner):
    """Learner state of an algorithm that clones actions."""

    replay: Any


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
