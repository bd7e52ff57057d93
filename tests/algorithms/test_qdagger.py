"""QDagger: when the teacher acts, returns of both, the weight of its actions and their loss, students, datasets, refusals."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import make_dqn, make_qdagger
from jaxrl.algorithms.qdagger import Returns, distillation_term, remaining_weight
from jaxrl.builder.teacher import Teacher
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.metrics import to_floats
from jaxrl.options import IQN, Conservative, Noisy, Prioritized
from jaxrl.replay.transitions import Transitions
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.collect import collect
from jaxrl.rollout.episode_mean import EpisodeMean
from jaxrl.rollout.inputs import example_input
from jaxrl.runtime.run import RunDiverged
from jaxrl.training import run_iterations
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_Q_NETWORK, Tiny, assert_bit_equal, outputs_of, run_steps, small, some_teacher
from tests.helpers.datasets import random_dataset

TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 2,
        "batch_size": 32,
        "replay_ratio": 8,
        "buffer_size": 240,
        "learning_starts": 64,
        "target_update_interval": 3,
        "n_step": 1,
        "teacher_steps": 16,
        "anneal": False,
        "model": SMALL_Q_NETWORK,
    },
    value=outputs_of,
    # A single transition, and so a single action of the teacher.
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 64}),
)
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


@cache
def student(**settings: Any) -> tuple[Agent, Teacher]:
    return small("qdagger", "CartPole-v1", **settings), some_teacher("CartPole-v1")


def shown_by(teacher: Teacher, obs: Any) -> np.ndarray:
    """Return the greedy actions of a teacher without memory, [N]."""
    env, size = teacher.agent.env, len(obs)
    inputs = jax.tree.map(lambda x: jnp.repeat(x, size, 0), example_input(env.observation_space, env.action_space))
    inputs = inputs._replace(obs=jnp.asarray(obs))
    return np.asarray(teacher.agent.algorithm.act(teacher.policy, (), inputs, jnp.arange(size), KEY(), explore=False)[1])


def collected(agent: Agent, state: Any, length: int = 2) -> tuple[Any, Any]:
    """Return the actor's next state, and the rollout of the next iteration."""
    policy, ids = agent.algorithm.policy(state.learner), jnp.arange(state.actor.done.shape[0])
    key = jax.random.fold_in(state.key, state.iteration)
    return collect(agent.algorithm, agent.env, policy, state.actor, state.env_params, ids, key, length)[:2]


def rollout_of(agent: Agent, state: Any, length: int = 16) -> Any:
    return jit(partial(collected, agent, length=length))(state)[1]


def at_version(state: Any, version: int) -> Any:
    return state._replace(learner=state.learner._replace(version=jnp.int32(version)))


# ---------------------------------------------------------------------------------------------------------------------- acting


@pytest.mark.parametrize("version, taught", [(0, True), (1, True), (2, False), (9, False)])
def test_the_teacher_acts_in_the_first_rows(version: int, taught: bool) -> None:
    """16 rows after the warm-up are two iterations."""
    agent, teacher = student()
    rollout = rollout_of(agent, at_version(jit(agent.init)(KEY()), version))
    obs = np.asarray(rollout.inputs.obs[:-1])
    same = (shown_by(teacher, obs.reshape(-1, 4)).reshape(obs.shape[:2]) == np.asarray(rollout.action))[np.asarray(rollout.valid)]
    assert same.all() if taught else not same.all()


def test_afterwards_and_in_evaluation_it_acts_as_dqn() -> None:
    agent, _ = student()
    dqn = make_dqn("CartPole-v1", **{name: value for name, value in TINY.settings.items() if name != "teacher_steps"})
    state = at_version(jit(agent.init)(KEY()), 5)
    inputs = jax.tree.map(lambda x: x[0], rollout_of(agent, state).inputs)
    mine = agent.algorithm.policy(state.learner)
    plain = mine._replace(exploration=mine.exploration.epsilon)
    for policy, explore in ((mine, True), (mine, False), (mine._replace(exploration=()), False)):
        acted = agent.algorithm.act(policy, (), inputs, jnp.arange(4), KEY(), explore=explore)
        assert_bit_equal(acted, dqn.algorithm.act(plain, (), inputs, jnp.arange(4), KEY(), explore=explore))


# --------------------------------------------------------------------------------------------------------------------- returns


def test_returns_are_of_who_acts() -> None:
    """Against a loop over the rewards of CartPole, through the teacher's rows and the student's. Episodes that the teacher began
    and the student ended are of neither."""
    agent, _ = student()
    state, observe = jit(agent.init)(KEY()), jit(agent.algorithm.observe)
    assert float(state.learner.returns.teacher.count) > 0  # of the warm-up
    state = state._replace(learner=state.learner._replace(returns=jax.tree.map(jnp.zeros_like, state.learner.returns)))
    running, ended, total, count = np.zeros(4), list[float](), 0.0, 0.0
    by_teacher, of_neither = np.zeros(4, bool), 0
    collect_next = jit(partial(collected, agent))
    for iteration in range(60):
        taught = iteration < 30
        state = at_version(state, 0 if taught else 7)._replace(iteration=jnp.int32(iteration))
        actor, rollout = collect_next(state)
        over = []
        for row in range(2):
            first, valid = np.asarray(rollout.inputs.is_first[row]), np.asarray(rollout.valid[row])
            running = np.where(first, 0, running) + np.where(valid, rollout.reward[row], 0)
            by_teacher = np.where(first, taught, by_teacher)
            ended_here = valid & np.asarray(rollout.terminated[row] | rollout.truncated[row])
            over += [*running[ended_here & (by_teacher == taught)]]
            of_neither += (ended_here & (by_teacher != taught)).sum()
        if taught:
            ended += over
        elif over:
            total, count = 0.9 * total + sum(over), 0.9 * count + len(over)
        state = state._replace(learner=observe(state.learner, rollout), actor=actor)
    found: Returns = state.learner.returns
    assert len(ended) > 5 and count > 2 and of_neither > 0
    assert float(found.teacher.mean) == pytest.approx(np.mean(ended), rel=1e-5)
    assert float(found.student.mean) == pytest.approx(total / count, rel=1e-5)
    np.testing.assert_array_equal(found.teacher.running, found.student.running)
    np.testing.assert_array_equal(found.begun_by_teacher, by_teacher)


def means(teacher: float, student: float, counts: tuple[float, float] = (2.0, 2.0)) -> Returns:
    both = (
        EpisodeMean(jnp.zeros(1), jnp.float32(x * n), jnp.float32(n)) for x, n in zip((teacher, student), counts, strict=True)
    )
    return Returns(*both, jnp.zeros(1, bool))


@pytest.mark.parametrize(
    "returns, expected",
    [
        (means(200, 50), 0.75),
        (means(200, 200), 0.0),
        (means(200, 450), 0.0),
        (means(200, -10), 1.0),
        (means(-100, -150), 0.5),
        (means(-100, -500), 1.0),
        (means(-100, -80), 0.0),
        (means(0, -1), 1.0),
        (means(200, 200, (0, 3)), 1.0),
        (means(200, 200, (3, 0)), 1.0),
    ],
)
def test_the_weight_fades_as_the_student_catches_up(returns: Returns, expected: float) -> None:
    assert float(remaining_weight(returns, 2.0)) == pytest.approx(2 * expected)


# ------------------------------------------------------------------------------------------------------------------------ loss


def test_the_loss_is_a_cross_entropy_to_the_teachers_actions() -> None:
    rng = np.random.default_rng(0)
    values, shown = rng.normal(size=(6, 3)), rng.integers(3, size=6)
    weight, valid = rng.uniform(0.2, 1, 6), np.array([1, 1, 0, 1, 1, 0], bool)
    nothing: dict[str, Any] = dict.fromkeys(Transitions._fields)
    batch = Transitions(**{**nothing, "weight": jnp.asarray(weight), "valid": jnp.asarray(valid)})
    mean = lambda x: x[np.flatnonzero(valid)].mean()  # noqa: E731
    found, logged = distillation_term(lambda inputs: jnp.asarray(shown), 0.5, 2.0, jnp.asarray(values), batch, mean)
    log_prob = values / 2 - np.log(np.exp(values / 2).sum(-1, keepdims=True))
    expected = -(weight * log_prob[np.arange(6), shown])[valid].mean()
    assert float(logged["losses/distillation_loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(found) == pytest.approx(0.5 * expected, rel=1e-5)


def test_without_a_weight_it_learns_as_dqn() -> None:
    """The same learner, given the same replay."""
    agent, _ = student()
    dqn = make_dqn("CartPole-v1", **{name: value for name, value in TINY.settings.items() if name != "teacher_steps"})
    state = run_steps(agent, jit(partial(agent.init, hyperparams={"distillation_weight": 0.0}))(KEY()), 12)[0]
    plain = jit(dqn.init)(KEY()).learner
    fields = {name: getattr(state.learner, name) for name in plain._fields if name != "hyperparams"}
    hp = plain.hyperparams._replace(epsilon_start=jnp.float32(0.1))
    found, metrics = jit(agent.algorithm.learn)(state.learner)
    expected, theirs = jit(dqn.algorithm.learn)(plain._replace(**fields, hyperparams=hp))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), found.params, expected.params)
    mine = to_floats(metrics)
    assert mine["charts/distillation_weight"] == 0 and mine["losses/distillation_loss"] > 0
    assert mine["losses/td_loss"] == pytest.approx(to_floats(theirs)["losses/td_loss"], rel=1e-4)


def test_truncation_bootstraps() -> None:
    agent = small("qdagger", probes.truncation(), gamma=0.9, learning_rate=0.02, distillation_weight=0.0)
    state, _ = jax.jit(partial(run_iterations, agent))(agent.init(KEY()), 800)
    inputs = first_input(jnp.zeros((1, 1)), agent.env.action_space, 1)
    np.testing.assert_allclose(outputs_of(agent, state.learner, inputs), 10.0, rtol=0.05)


def test_a_student_learns_to_act_as_its_teacher() -> None:
    """While the weight has not faded."""
    teacher = some_teacher("CartPole-v1")
    sizes = {"num_envs": 8, "rollout_length": 16, "batch_size": 64, "replay_ratio": 16.0, "buffer_size": 4096}
    more = {"learning_rate": 3e-3, "learning_starts": 128, "teacher_steps": 1e9, "distillation_weight": 10.0}
    agent = make_qdagger("CartPole-v1", teacher=teacher, model={"hidden_sizes": (32,)}, **sizes, **more)
    state, metrics = run_steps(agent, jit(agent.init)(KEY()), 40)
    obs = np.asarray(rollout_of(agent, state).inputs.obs[:-1]).reshape(-1, 4)
    inputs = first_input(jnp.asarray(obs), agent.env.action_space, len(obs))
    policy = agent.algorithm.policy(state.learner)
    acted = agent.algorithm.act(policy, (), inputs, jnp.arange(len(obs)), KEY(), explore=False)[1]
    assert (np.asarray(acted) == shown_by(teacher, obs)).mean() > 0.95
    assert to_floats(metrics)["charts/distillation_weight"] == 10


# ------------------------------------------------------------------------------------------------------- options, specs, folders


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"head": IQN(4)}, {"noise": Noisy()}, {"replay": Prioritized()}, {"n_step": 3}, {"conservative": Conservative()}]
)
def test_the_options_of_dqn_apply(more: dict[str, Any]) -> None:
    settings = {**TINY.settings, "model": {"hidden_sizes": (8,)}, **more}
    agent = make_qdagger("CartPole-v1", teacher=some_teacher("CartPole-v1"), **settings)
    metrics = to_floats(run_steps(agent, jit(agent.init)(KEY()), 12)[1])
    assert np.isfinite([metrics["losses/td_loss"], metrics["losses/distillation_loss"]]).all()


@pytest.mark.parametrize("online", [False, True])
def test_the_data_of_a_teacher_are_learnt_from(online: bool) -> None:
    data, settings = random_dataset("CartPole-v1"), {"batch_size": 32, "model": SMALL_Q_NETWORK}
    sizes = {"online": True, "num_envs": 4, "rollout_length": 8} if online else {"updates": 5}
    agent = make_qdagger("CartPole-v1", teacher=some_teacher("CartPole-v1"), data=data, **settings, **sizes)
    state, metrics = jit(agent.step)(jit(agent.init)(KEY()), data)
    assert np.isfinite(to_floats(metrics)["losses/distillation_loss"])
    assert to_floats(metrics)["charts/distillation_weight"] == 1 and int(state.learner.version) == 1


def test_a_spec_holds_no_parameters_and_a_run_all(tmp_path: Path) -> None:
    settings = {**TINY.settings, "model": {"hidden_sizes": (8,)}}
    agent = make_qdagger("CartPole-v1", teacher=some_teacher("CartPole-v1"), **settings)
    rebuilt = jaxrl.build(agent.spec)
    assert rebuilt.spec == agent.spec
    with pytest.raises(RunDiverged, match="all seeds diverged"):
        jaxrl.run(rebuilt, 96, quiet=True, tensorboard=False)
    quiet: dict[str, Any] = {"quiet": True, "seeds": 2, "tensorboard": False}
    whole, _ = jaxrl.run(agent, 256, **quiet)
    jaxrl.run(agent, 128, out=tmp_path / "student", **quiet)
    resumed, _ = jaxrl.resume(tmp_path / "student", total_steps=256, quiet=True)
    assert_bit_equal(resumed, whole)
    policy = jaxrl.load_policy(tmp_path / "student", which="last", seed=1)
    assert policy(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"num_workers": 2}])
def test_students_play_on_the_host(more: dict[str, Any]) -> None:
    env = "gymnasium:CartPole-v1"
    agent = make_qdagger(env, teacher=some_teacher(env), **TINY.settings)
    states, history = jaxrl.run(agent, 256, quiet=True, **more)
    assert np.isfinite(history["losses/distillation_loss"][-1]).all() and int(states.learner.version[0]) > 0


# ------------------------------------------------------------------------------------------------------------------- bad input


def test_bad_input() -> None:
    teacher = some_teacher("CartPole-v1")
    with pytest.raises(TypeError, match=r"make_qdagger learns from a trained policy: give it one with teacher="):
        make_qdagger("CartPole-v1")
    with pytest.raises(
        ValueError, match="the teacher has memory, and shows its actions in single rows of replay here: use make_dagger"
    ):
        make_qdagger("CartPole-v1", teacher=some_teacher("CartPole-v1", model=RECURRENT))
    with pytest.raises(ValueError, match="temperature=0 is not allowed"):
        make_qdagger("CartPole-v1", teacher=teacher, temperature=0.0)
    with pytest.raises(ValueError, match="teacher_steps=-1 is not allowed"):
        make_qdagger("CartPole-v1", teacher=teacher, teacher_steps=-1.0)
    with pytest.raises(ValueError, match="reset_interval=1024 would also reset the teacher"):
        make_qdagger("CartPole-v1", teacher=teacher, reset_interval=1024)
    with pytest.raises(ValueError, match=r"teacher_steps=1000 has no effect with data=…: no environment is stepped"):
        make_qdagger("CartPole-v1", teacher=teacher, data=random_dataset("CartPole-v1"), batch_size=32, teacher_steps=1000.0)
    with pytest.raises(ValueError, match=r"those of self-play in .*TicTacToe say who wins, .*: use make_dagger"):
        make_qdagger("jaxrl:TicTacToe", teacher=some_teacher("jaxrl:TicTacToe"))
    with pytest.raises(ValueError, match=r"the teacher takes actions of Discrete\(2\)"):
        make_qdagger("Pendulum-v1", teacher=teacher)
