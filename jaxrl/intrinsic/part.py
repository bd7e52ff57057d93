"""Interface between intrinsic rewards and algorithms.

An algorithm with an intrinsic reward keeps the reward's state in its learner and passes each rollout to the reward before
learning. It adds the advantages returned to those of the environment's rewards. So the rollout's rewards stay raw, and an
algorithm needs a single call: ``with_intrinsic``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
from gymnasium import spaces

from jaxrl.metrics import scalars
from jaxrl.optimize.learner import Learner
from jaxrl.types import Algorithm, Array, Key, Metrics, Policy, PyTree, Rollout


class Intrinsic(NamedTuple):
    """An intrinsic reward, as pure functions. Its state is part of the learner's state, which is saved, resumed and vmapped.

    A NamedTuple in the state with values per environment has ``env_axes`` (see ``jaxrl.types.LearnerState``). Under a named
    device axis the functions see one device's environments, and all other state must stay the same on all devices.
    """

    init: Callable[[Key, int], Any]
    """(key, num_envs) -> state."""
    observe: Callable[[Any, Rollout, str | None], Any]
    """(state, rollout, axis_name) -> state, with statistics updated by a rollout of the warm-up, without learning."""
    learn: Callable[[Any, Rollout, Key, str | None], tuple[Array, Any, dict[str, Array]]]
    """(state, rollout, key, axis_name) -> (advantage f32[T, B], state, scalars to log by full log key). Advantages are computed
    with the state passed in, and are 0 on invalid rows; the state returned has learnt from the rollout."""


IntrinsicFn: TypeAlias = Callable[[spaces.Space, spaces.Space], Intrinsic]
"""(observation_space, action_space) -> Intrinsic, as accepted by builders."""

ADVANTAGE = "intrinsic_advantage"
"""Key of the advantages in ``Rollout.extras``."""
STREAM = 0x696E7472
"""Number folded into random keys; far from 0, 1, 2, …, which the algorithm folds in."""


class ExploringLearner(Learner):
    """An algorithm's learner with the state of its intrinsic reward."""

    intrinsic: PyTree
    rest: Any
    """The algorithm's learner, for its further fields; the fields above are () in it."""

    @property
    def inner(self) -> Any:
        """The algorithm's learner."""
        return self.rest._replace(**{name: getattr(self, name) for name in SHARED})


SHARED = Learner._fields
"""Fields of every learner."""


def with_state(learner: Any, intrinsic: PyTree) -> ExploringLearner:
    rest = learner._replace(**dict.fromkeys(SHARED, ()))
    return ExploringLearner(**{name: getattr(learner, name) for name in SHARED}, intrinsic=intrinsic, rest=rest)


def with_intrinsic(rollout: Rollout, advantage: Array, ratio: Array | float = 1.0) -> Array:
    """Add the intrinsic reward's advantages, if there is one, to ``advantage`` f32[T, B].

    Args:
      ratio: f32[T, B], weight of the intrinsic advantages, for rollouts of another policy.
    """
    return advantage + ratio * rollout.extras[ADVANTAGE] if ADVANTAGE in rollout.extras else advantage


def exploring(algorithm: Algorithm, part: Intrinsic, num_envs: int, axis_name: str | None) -> Algorithm:
    """Wrap an on-policy algorithm to add an intrinsic reward, which also learns from each rollout.

    The result has no ``gradients``: the update of the intrinsic reward is not a gradient of the algorithm's parameters.
    """

    def init(key: Key, hyperparams: Any) -> ExploringLearner:
        return with_state(algorithm.init(key, hyperparams), part.init(jax.random.fold_in(key, STREAM), num_envs))

    def observe(learner: ExploringLearner, rollout: Rollout) -> ExploringLearner:
        inner = learner.inner if algorithm.observe is None else algorithm.observe(learner.inner, rollout)
        return with_state(inner, part.observe(learner.intrinsic, rollout, axis_name))

    def update(learner: ExploringLearner, rollout: Rollout) -> tuple[ExploringLearner, Metrics]:
        key = jax.random.fold_in(jax.random.fold_in(learner.key, STREAM), learner.version)
        advantage, state, logged = part.learn(learner.intrinsic, rollout, key, axis_name)
        rows = rollout._replace(extras={**rollout.extras, ADVANTAGE: advantage})
        inner, metrics = algorithm.update(learner.inner, rows)
        return with_state(inner, state), metrics | scalars(logged)

    def policy(learner: ExploringLearner) -> Policy:
        return algorithm.policy(learner.inner)

    return algorithm._replace(init=init, policy=policy, observe=observe, update=update, gradients=None, apply=None)
