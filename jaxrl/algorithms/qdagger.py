"""Q-learning with a teacher (QDagger: Agarwal et al. 2022): DQN with a further loss, the cross-entropy to the actions of a
trained policy, which fades out as the returns of the student reach the teacher's.

Reads top to bottom: settings, state, acting, observing, learning, builder. The rest is ``jaxrl.algorithms.dqn``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms import dqn
from jaxrl.algorithms.common import q_learning
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.builder.keywords import split_keywords, taught_replay_keywords, with_keywords_of
from jaxrl.builder.prepare import prepare
from jaxrl.builder.replay_setup import store
from jaxrl.builder.teacher import TeacherSetup, required_teacher, teacher_part
from jaxrl.distributions import select_actions
from jaxrl.metrics import scalars
from jaxrl.models import q_network
from jaxrl.optimize.learner import TargetLearner
from jaxrl.replay.transitions import Transitions, example_row
from jaxrl.rollout.episode_mean import EpisodeMean, add_rollout, no_episodes
from jaxrl.rollout.running_statistics import starts_anew
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import NonNegative, Positive, refuse_unused
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, Rollout, StepInput

SMOOTHING = 0.9
"""Weight of earlier episodes in the estimate of the student's return, for each rollout in which an episode ends."""


@dataclass(frozen=True)
class QDaggerConfig(DQNConfig):
    """Structural settings of QDagger, which are those of DQN."""


class QDaggerHyperparams(NamedTuple):
    """Hyperparameters of QDagger: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 0.01
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 1.0
    epsilon_start: shared.EpsilonStart = 0.1
    epsilon_end: shared.EpsilonEnd = 0.1
    exploration_steps: shared.ExplorationSteps = 5_000.0
    teacher_steps: NonNegative = 4_000.0
    """Rows, after the warm-up, in which the teacher acts and the student already learns, and from which the teacher's return is
    known. In the warm-up it acts too. With 0 it never does, and its loss does not fade."""
    distillation_weight: NonNegative = 1.0
    """λ₀, the weight of the teacher's actions in the loss before it fades; 0: DQN, with rows of the teacher."""
    temperature: Positive = 0.1
    """τ of the student's policy softmax(Q/τ) in the loss of the teacher's actions."""
    conservative_weight: NonNegative = 1.0
    """``Conservative.weight``."""
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    adam_eps: shared.AdamEps = 0.01
    total_steps: shared.TotalSteps = 0.0


# ----------------------------------------------------------------------------------------------------------------------- state


class Returns(NamedTuple):
    """Undiscounted returns of episodes in training."""

    teacher: EpisodeMean
    student: EpisodeMean
    begun_by_teacher: Array
    """bool[num_envs]: whether the teacher began the current episode. If so, it is not one of the student's."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"begun_by_teacher": 0}


class QDaggerState(TargetLearner):
    """Learner state of QDagger."""

    teacher: Policy
    """The teacher's policy, which does not change."""
    returns: Returns


class Exploration(NamedTuple):
    """How a student explores."""

    epsilon: Array
    """f32[]"""
    teacher: Policy
    teacher_acts: Array
    """bool[]"""


QDaggerSetup: TypeAlias = TeacherSetup[QDaggerConfig]


def init(setup: QDaggerSetup, key: Key, hyperparams: QDaggerHyperparams) -> QDaggerState:
    learner = setup.init_student(key, hyperparams)
    lanes = setup.config.num_envs
    returns = Returns(no_episodes(lanes), no_episodes(lanes), jnp.zeros(lanes, bool))
    return QDaggerState(
        **learner._asdict(),
        target_params=jax.tree.map(jnp.copy, learner.params),
        replay=setup.replay.init(example_row(setup.observation_space, setup.action_space)),
        teacher=setup.teacher.initial_policy,
        returns=returns,
    )


# ---------------------------------------------------------------------------------------------------------------------- acting


def teacher_acts(setup: QDaggerSetup, learner: QDaggerState) -> Array:
    """Return whether the teacher acts in the next rollout, bool[]."""
    return learner.version.astype(jnp.float32) * setup.steps_per_iteration < setup.current(learner).teacher_steps


def policy(setup: QDaggerSetup, learner: QDaggerState) -> Policy:
    plain = q_learning.policy(setup, learner)
    return plain._replace(exploration=Exploration(plain.exploration, learner.teacher, teacher_acts(setup, learner)))


def act(
    setup: QDaggerSetup, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Return the student's action, ε-greedy with ``explore``, or then the teacher's while it acts."""
    if not explore:
        return dqn.act(setup, policy, carry, inputs, env_id, key, explore=False)
    how: Exploration = policy.exploration
    carry, action, _ = dqn.act(setup, policy._replace(exploration=how.epsilon), carry, inputs, env_id, key, explore=True)
    _, shown = setup.shown(how.teacher, (), inputs, env_id, key)
    return carry, jnp.where(how.teacher_acts, shown, action), {}


def who_began(begun_by_teacher: Array, rollout: Rollout, taught: Array) -> tuple[Array, Array]:
    """Return whether the teacher began the episodes of the rows, bool[T, B], and those that continue, bool[num_envs]."""
    slot = rollout.env_id % begun_by_teacher.shape[0]  # a device holds a contiguous share of the environments

    def forward(by_teacher: Array, anew: Array) -> tuple[Array, Array]:
        by_teacher = jnp.where(anew, taught, by_teacher)
        return by_teacher, by_teacher

    last, of_rows = jax.lax.scan(forward, begun_by_teacher[slot], starts_anew(rollout))
    return of_rows, begun_by_teacher.at[slot].set(last)


def observe(setup: QDaggerSetup, learner: QDaggerState, rollout: Rollout) -> QDaggerState:
    """Add the rollout to the replay, and the returns of its episodes to those of who acted in all of their rows."""
    taught = teacher_acts(setup, learner)
    of_teacher, begun_by_teacher = who_began(learner.returns.begun_by_teacher, rollout, taught)
    acting: EpisodeMean = jax.tree.map(partial(jnp.where, taught), learner.returns.teacher, learner.returns.student)
    rewards = jnp.where(rollout.valid, rollout.reward, 0.0)
    own = of_teacher == taught  # episodes of one who acted in all of their rows
    after, _ = add_rollout(acting, rollout, rewards, jnp.where(taught, 1.0, SMOOTHING), setup.axis_name, own)

    def counted(theirs: Array, before: EpisodeMean) -> EpisodeMean:
        return jax.tree.map(partial(jnp.where, theirs), after, before)._replace(running=after.running)

    means = counted(taught, learner.returns.teacher), counted(~taught, learner.returns.student)
    returns = Returns(*means, begun_by_teacher)
    return store(setup, learner, rollout)._replace(returns=returns)


# -------------------------------------------------------------------------------------------------------------------- learning


def remaining_weight(returns: Returns, weight: Array | float) -> Array:
    """Return λ = λ₀·clip((G* − G) / |G*|, 0, 1), f32[], for the mean returns G* of the teacher and G of the student (section 4,
    where returns are positive); λ₀ before an episode of each has ended."""
    best, found = returns.teacher.mean, returns.student.mean
    behind = (best - found) / jnp.maximum(jnp.abs(best), 1e-6)
    known = (returns.teacher.count > 0) & (returns.student.count > 0)
    return weight * jnp.where(known, jnp.clip(behind, 0.0, 1.0), 1.0)


def distillation_term(
    shown: Callable[[StepInput], Array],
    weight: Array | float,
    temperature: Array | float,
    values: Array,
    batch: Transitions,
    mean: Callable[[Array], Array],
) -> tuple[Array, dict[str, Array]]:
    """Return the mean of −λ·log π(a* | s) for the teacher's action a* and π = softmax(Q/τ) (section 4, with a greedy teacher), as
    a ``jaxrl.algorithms.common.q_learning.ValueTerm``.

    Args:
      shown: function of the batch's inputs that gives the teacher's actions i32[N].
      weight: λ.
      temperature: τ.
    """
    log_prob = select_actions(jax.nn.log_softmax(values / temperature), shown(batch.inputs))
    loss = -mean(batch.weight * log_prob)
    return weight * loss, {"losses/distillation_loss": loss}


def learn(setup: QDaggerSetup, learner: QDaggerState) -> tuple[QDaggerState, Metrics]:
    hp, key = setup.current(learner), setup.device_key(setup.stream(learner, 1))

    def shown(inputs: StepInput) -> Array:
        ids = jnp.arange(inputs.is_first.shape[0], dtype=jnp.int32)
        return jax.lax.stop_gradient(setup.shown(learner.teacher, (), inputs, ids, key)[1])

    weight = remaining_weight(learner.returns, hp.distillation_weight)
    learner, metrics = dqn.learn_with(setup, learner, [partial(distillation_term, shown, weight, hp.temperature)])
    return learner, {**metrics, **scalars({"charts/distillation_weight": weight})}


# --------------------------------------------------------------------------------------------------------------------- builder


def make_algorithm(setup: QDaggerSetup) -> Algorithm:
    """Return QDagger as an ``Algorithm``, bound to spaces but not to an environment."""
    fields = ("params", "target_params", "statistics")
    return setup.algorithm(init=init, policy=policy, act=act, observe=observe, learn=learn, transferable_fields=fields)


@with_keywords_of(taught_replay_keywords)
def make_qdagger(env: EnvLike, **keywords: Any) -> Agent:
    """Q-learning with a teacher (QDagger: Agarwal et al. 2022) for Discrete actions: DQN that also learns the actions of a
    trained policy, until it acts as well as that, and then surpasses it."""
    settings, parts = split_keywords(make_qdagger, keywords)
    parts = {**parts, "teacher": teacher_part(env, parts)}
    prepared = prepare(make_qdagger, env, QDaggerConfig, QDaggerHyperparams, settings, (spaces.Discrete,), q_network, parts)
    if prepared.env.players == 2:
        raise ValueError(
            f"QDagger compares the returns of its teacher and its policy, and those of self-play in {prepared.env.name} say who "
            "wins, not how well both play: use make_dagger"
        )
    teacher = required_teacher("make_qdagger", parts["teacher"])
    if jax.tree.leaves(jax.eval_shape(partial(teacher.agent.algorithm.initial_carry, 1))):
        raise ValueError("the teacher has memory, and shows its actions in single rows of replay here: use make_dagger")
    if (interval := prepared.setup.config.reset_interval) != 0:
        raise ValueError(f"reset_interval={interval} would also reset the teacher and the measured returns: leave it out")
    if prepared.setup.data is not None and not prepared.setup.config.online:
        why = "with data=…: no environment is stepped, and so the teacher's loss does not fade"
        refuse_unused(prepared.hyperparams, QDaggerHyperparams(), ("teacher_steps",), why)
    replay = dqn.checked_replay(prepared, parts)
    setup = TeacherSetup.from_setup(prepared.setup, replay=replay, teacher=teacher, teacher_obs=parts["teacher_obs"])
    return prepared.bind(make_algorithm(setup))
