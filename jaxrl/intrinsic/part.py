"""What an intrinsic reward is to a learning rule.

A rule that is given one keeps its state in the learner, shows it every rollout before learning, and adds the advantages that it
returns to those of the environment's rewards. So the rollout's rewards stay raw, and a rule needs one line: ``with_intrinsic``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
from gymnasium import spaces

from jaxrl.metrics import scalars
from jaxrl.types import Algorithm, Array, Key, Metrics, Policy, PyTree, Rollout


class Intrinsic(NamedTuple):
    """A reward of the agent's own making, as pure functions. Its state is part of the learner's: saved, resumed, vmapped.

    A NamedTuple in the state that keeps something per environment has ``env_axes`` (see ``jaxrl.types.LearnerState``). Under a
    named device axis the functions see one device's environments, and what else they keep has to stay the same on all.
    """

    init: Callable[[Key, int], Any]
    """(key, num_envs) -> state."""
    observe: Callable[[Any, Rollout, str | None], Any]
    """(state, rollout, axis_name) -> state, with the statistics of a rollout from which nothing is learnt: the warm-up's."""
    learn: Callable[[Any, Rollout, Key, str | None], tuple[Array, Any, dict[str, Array]]]
    """(state, rollout, key, axis_name) -> (advantage f32[T, B], state, numbers to log by their whole keys). The advantages are by
    the state that was given, and 0 on rows that are not valid; the state that is returned has learnt from the rollout."""


IntrinsicFn: TypeAlias = Callable[[spaces.Space, spaces.Space], Intrinsic]
"""(observation_space, action_space) -> Intrinsic: what builders take, as they do for models."""

ADVANTAGE = "intrinsic_advantage"
"""The name in ``Rollout.extras``."""
STREAM = 0x696E7472
"""Far from 0, 1, 2, …, which are the keys that a rule draws from."""


class ExploringLearner(NamedTuple):
    """A rule's learner with the state of its intrinsic reward."""

    params: PyTree
    opt_state: PyTree
    hyperparams: Any
    statistics: PyTree
    key: Key
    version: Array
    intrinsic: PyTree
    rest: Any
    """The learner itself, for what else it keeps, with () for the fields that stand here."""

    @property
    def inner(self) -> Any:
        """The learner as the rule knows it."""
        return self.rest._replace(**{name: getattr(self, name) for name in SHARED})


SHARED = ExploringLearner._fields[:-2]
"""The fields that every learner has."""


def with_state(learner: Any, intrinsic: PyTree) -> ExploringLearner:
    rest = learner._replace(**dict.fromkeys(SHARED, ()))
    return ExploringLearner(**{name: getattr(learner, name) for name in SHARED}, intrinsic=intrinsic, rest=rest)


def with_intrinsic(rollout: Rollout, advantage: Array, ratio: Array | float = 1.0) -> Array:
    """The advantages f32[T, B] with those of the intrinsic reward, where the rule was given one; ``ratio``, f32[T, B], is what
    these count where another policy acted."""
    return advantage + ratio * rollout.extras[ADVANTAGE] if ADVANTAGE in rollout.extras else advantage


def exploring(algorithm: Algorithm, part: Intrinsic, num_envs: int, axis_name: str | None) -> Algorithm:
    """An on-policy rule whose rollouts come with the advantages of an intrinsic reward, learnt beside it.

    Without ``gradients``: those of the part are no gradient of the parameters.
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
