"""Dataset aggregation (Ross et al. 2011): supervised learning of the actions that a trained policy, the teacher, would take in
the states that the student reaches.

Reads top to bottom: settings, state, acting, learning, builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.offline.cloning import cloning_loss, played_action
from jaxrl.builder.keywords import imitation_keywords, split_keywords, with_keywords_of
from jaxrl.builder.networks import check_greedy_policy
from jaxrl.builder.prepare import prepare
from jaxrl.builder.sequence_config import SequenceLength
from jaxrl.builder.teacher import TeacherSetup, required_teacher, teacher_part
from jaxrl.models import greedy_policy
from jaxrl.optimize.learner import Learner
from jaxrl.replay import Draw
from jaxrl.replay.sequence import CarriedRows, sequence_replay, sequences
from jaxrl.replay.transitions import example_row, replay_rows
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.autoreset import expand_mask, next_input
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.outputs import apply_model
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, Positive, Unit
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class DAggerConfig(SequenceLength):
    """Structural settings of DAgger."""

    rollout_length: Count = 32
    batch_size: Count = 256
    """Rows per gradient step; with memory, sequences."""
    replay_ratio: Positive = 32.0
    """Rows drawn per row collected: updates per iteration = replay_ratio · num_envs · rollout_length / batch_size, exactly; with
    memory, / (batch_size · sequence_length)."""

    @property
    def window(self) -> tuple[int, str]:
        return max(1, self.sequence_length) + 2, "a draw"

    def for_model(self, recurrent: bool) -> Self:
        return self.with_memory(recurrent)

    def network(self, default: Any) -> Any:
        return partial(default, hidden_sizes=(256, 256), activation="relu")


class DAggerHyperparams(NamedTuple):
    """Hyperparameters of DAgger: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    beta: Unit = 0.0
    """Probability with which the teacher acts in a row; β in the paper. In the warm-up and the first rollout after it, it always
    does."""
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0


class DAggerState(Learner):
    """Learner state of DAgger."""

    replay: Any
    teacher: Policy
    """The teacher's policy, which does not change."""


class Guided(NamedTuple):
    """Teacher, and how often it acts."""

    teacher: Policy
    beta: Array
    """Probability with which the teacher acts, f32[]."""


DAggerSetup: TypeAlias = TeacherSetup[DAggerConfig]


def init(setup: DAggerSetup, key: Key, hyperparams: DAggerHyperparams) -> DAggerState:
    learner = setup.init_student(key, hyperparams)
    row = example_row(setup.observation_space, setup.action_space)
    row = row._replace(extras=row.action)
    carry = jax.tree.map(lambda x: x[0], setup.model.initial_carry(1))
    replay = setup.replay.init(CarriedRows(row, carry) if setup.config.has_memory else row)
    return DAggerState(**learner._asdict(), replay=replay, teacher=setup.teacher.initial_policy)


# ---------------------------------------------------------------------------------------------------------------------- acting


def policy(setup: DAggerSetup, learner: DAggerState) -> Policy:
    beta = jnp.where(learner.version == 0, 1.0, setup.current(learner).beta)
    return Policy(learner.params, (), Guided(learner.teacher, beta), learner.version)


MIXTURE = 2**31 - 1
"""Random stream of who acts."""


def act(
    setup: DAggerSetup, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Return the student's action. With ``explore`` it is drawn from the policy, or with probability β the teacher's; extras then
    hold the teacher's action as ``teacher_action``."""
    student, teacher = carry
    student, output = setup.model.apply(policy.params, student, inputs)
    action = played_action(setup, output, env_id, key, explore=explore)
    if not explore:
        return (student, teacher), action, {}
    guide: Guided = policy.exploration
    teacher, shown = setup.shown(guide.teacher, teacher, inputs, env_id, key)
    keys = fold_each(jax.random.fold_in(key, MIXTURE), env_id)
    guided = jax.vmap(jax.random.uniform)(keys) < guide.beta
    action = jnp.where(expand_mask(guided, action), shown, action)
    return (student, teacher), action, {"teacher_action": shown}


def observe(setup: DAggerSetup, learner: DAggerState, rollout: Rollout) -> DAggerState:
    """Add the rollout's rows to the replay, with the teacher's actions."""
    rows: Any = replay_rows(rollout, rollout.extras["teacher_action"])
    if setup.config.has_memory:
        rows = CarriedRows(rows, jax.tree.map(lambda x: x[None], rollout.carry[0]))
    return learner._replace(replay=setup.replay.add(learner.replay, rows, rollout.env_id))


# -------------------------------------------------------------------------------------------------------------------- learning


class Shown(NamedTuple):
    """A batch: rows [N], or with memory sequences [N, L]."""

    inputs: StepInput
    action: Array
    """The teacher's, in the model's units."""
    valid: Array
    carry: PyTree = ()
    """[N, ...] of the student before each sequence."""


def shown_rows(setup: DAggerSetup, replay: PyTree, draw: Draw) -> Shown:
    """Return the drawn rows or sequences."""
    if setup.config.has_memory:
        drawn = sequences(setup.replay, replay, draw, setup.config.sequence_length)
        rows = (jax.tree.map(lambda x: x[:-1], (drawn.inputs, drawn.extras)), drawn.valid)
        (inputs, action), valid = jax.tree.map(lambda x: x.swapaxes(0, 1), rows)
        batch = Shown(inputs, action, valid, drawn.carry)
    else:
        row, before = (setup.replay.take(replay, draw, offset) for offset in (0, -1))
        batch = Shown(next_input(row.obs, before.action, before.reward, before.valid), row.extras, draw.valid)
    inputs, action = zero_invalid((batch.inputs, batch.action), batch.valid)
    action = from_environment(setup.action_space, action)
    if isinstance(setup.action_space, spaces.Box) and setup.action_space.is_bounded():
        action = jnp.clip(action, -1.0, 1.0)
    return batch._replace(inputs=inputs, action=action)


def loss(setup: DAggerSetup, params: PyTree, batch: Shown) -> tuple[Array, dict[str, Array]]:
    """Return the mean over valid rows of ``cloning_loss`` for the teacher's actions (Ross et al. 2011, algorithm 3.1)."""
    output = apply_model(setup.model, params, batch.inputs, batch.carry)
    found = setup.valid_mean(batch.valid)(cloning_loss(output, batch.action))
    return found, {"losses/cloning_loss": found}


def learn(setup: DAggerSetup, learner: DAggerState) -> tuple[DAggerState, Metrics]:
    each = lambda params, before, batch, key: loss(setup, params, batch)  # noqa: E731
    return setup.learn(learner, setup.current(learner), each, partial(shown_rows, setup))


# --------------------------------------------------------------------------------------------------------------------- builder


def make_algorithm(setup: DAggerSetup) -> Algorithm:
    """Return DAgger as an ``Algorithm``, bound to spaces but not to an environment."""
    made = setup.algorithm(init=init, policy=policy, act=act, observe=observe, learn=learn)
    both = setup.model.initial_carry, setup.teacher.agent.algorithm.initial_carry
    return made._replace(initial_carry=lambda batch_size: tuple(initial(batch_size) for initial in both))


@with_keywords_of(imitation_keywords)
def make_dagger(env: EnvLike, **keywords: Any) -> Agent:
    """Dataset aggregation (Ross et al. 2011) for Box, Discrete and MultiDiscrete actions: the student acts, the teacher shows
    what it would do, and the student learns that from replay. It is policy distillation by the teacher's actions.

    Args:
      model: arguments of ``jaxrl.models.greedy_policy``, such as ``{"core": "gru"}``; or a Model whose outputs are actions
        f32[..., d] of a Box, in [−1, 1] between bounds, or a ``Categorical`` or ``MultiCategorical``; or a function of
        (observation_space, action_space) that returns one. Default: an MLP of 2×256, ReLU, for vectors.
    """
    settings, parts = split_keywords(make_dagger, keywords)
    parts = {**parts, "teacher": teacher_part(env, parts)}
    kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)
    prepared = prepare(make_dagger, env, DAggerConfig, DAggerHyperparams, settings, kinds, greedy_policy, parts, memory=True)
    teacher = required_teacher("make_dagger", parts["teacher"])
    check_greedy_policy(parts["model"], prepared.output, prepared.env.action_space)
    config = prepared.setup.config
    make = sequence_replay(uniform_replay) if config.has_memory else uniform_replay
    sizes = (config.buffer_size // config.num_envs, config.num_envs, config.rollout_length)
    replay = make(*sizes, before=1, after=max(1, config.sequence_length))
    setup = TeacherSetup.from_setup(prepared.setup, replay=replay, teacher=teacher, teacher_obs=parts["teacher_obs"])
    return prepared.bind(make_algorithm(setup))
