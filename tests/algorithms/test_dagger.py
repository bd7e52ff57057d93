"""DAgger: who acts and what the teacher shows, what replay holds, what a student learns, teachers in specs, and refusals."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import make_dagger
from jaxrl.algorithms.dagger import Shown, loss, shown_rows
from jaxrl.builder.teacher import Teacher, resolve_teacher
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import greedy_policy
from jaxrl.rollout.collect import collect
from jaxrl.rollout.inputs import example_input
from jaxrl.runtime.logs.run_folder import first_difference, what_counts
from jaxrl.runtime.run import RunDiverged
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, Tiny, assert_bit_equal, run_steps, small, small_ppo, some_teacher
from tests.helpers.hosted import hosted

TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 4,
        "batch_size": 16,
        "replay_ratio": 2.0,
        "learning_starts": 16,
        "buffer_size": 64,
        "anneal": False,
        "model": partial(greedy_policy, hidden_sizes=(8,)),
    },
    value=None,
    # A single observation, and so a single action of the teacher.
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=2", {"batch_size": 32, "learning_starts": 16}),
)
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
MEMORY: dict[str, Any] = {"model": {"core": "gru", "hidden_sizes": (8,), "core_size": 8}, "batch_size": 4, "sequence_length": 4}


def collected(agent: Agent, state: Any) -> Any:
    """Return the rollout of the next iteration."""

    @jit
    def run(state: Any) -> Any:
        policy, ids = agent.algorithm.policy(state.learner), jnp.arange(state.actor.done.shape[0])
        env, key = agent.env, jax.random.fold_in(state.key, state.iteration)
        return collect(agent.algorithm, env, policy, state.actor, state.env_params, ids, key, 16)[1]

    return run(state)


def shown_by(teacher: Teacher, obs: Any) -> np.ndarray:
    """Return the greedy actions of a teacher without memory, [N]."""
    env, size = teacher.agent.env, len(obs)
    inputs = jax.tree.map(lambda x: jnp.repeat(x, size, 0), example_input(env.observation_space, env.action_space))
    ids, inputs = jnp.arange(size), inputs._replace(obs=jnp.asarray(obs))
    return np.asarray(teacher.agent.algorithm.act(teacher.policy, (), inputs, ids, KEY(), explore=False)[1])


def setup_of(agent: Agent) -> Any:
    return agent.algorithm.learn.args[0]  # type: ignore[union-attr]


@cache
def student(env: str = "CartPole-v1", **settings: Any) -> tuple[Agent, Teacher]:
    return small("dagger", env, **settings), some_teacher(env)


# ---------------------------------------------------------------------------------------------------------------------- acting


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_teacher_acts_first_and_shows_its_actions_always(env: str) -> None:
    agent, teacher = student(env)
    state = jit(agent.init)(KEY())
    for version in (0, 1):
        rollout = collected(agent, state._replace(learner=state.learner._replace(version=jnp.int32(version))))
        obs, shown = np.asarray(rollout.inputs.obs[:-1]), np.asarray(rollout.extras["teacher_action"])
        expected = shown_by(teacher, obs.reshape(-1, obs.shape[-1])).reshape(shown.shape)
        np.testing.assert_allclose(shown, expected, rtol=1e-5)
        same = np.asarray(rollout.action == rollout.extras["teacher_action"])[np.asarray(rollout.valid)]
        assert same.all() if version == 0 else not same.all()


@pytest.mark.slow
def test_the_teacher_acts_with_a_probability_drawn_for_each_row() -> None:
    agent, _ = student("Pendulum-v1")
    state = jit(agent.init)(KEY(), {"beta": 0.25})
    state = state._replace(learner=state.learner._replace(version=jnp.ones((), jnp.int32)))
    many = [collected(agent, state._replace(iteration=jnp.int32(i))) for i in range(16)]
    guided = np.concatenate([np.asarray(r.action == r.extras["teacher_action"])[..., 0].ravel() for r in many])
    assert abs(guided.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / guided.size)


def test_a_teacher_with_memory_sees_what_happened() -> None:
    env = "CartPole-v1"
    teacher = some_teacher(env, model=RECURRENT)
    agent = make_dagger(env, teacher=teacher, **TINY.settings)
    rollout = collected(agent, jit(agent.init)(KEY()))
    network = RECURRENT(agent.env.observation_space, agent.env.action_space)
    inputs = jax.tree.map(lambda x: x[:-1], rollout.inputs)
    output = jit(network.unroll)(teacher.policy.params, rollout.carry[1], inputs)[1]
    np.testing.assert_array_equal(rollout.extras["teacher_action"], output.policy.mode())
    assert np.asarray(rollout.inputs.is_first[1:]).any()


def test_evaluation_is_of_the_student_alone() -> None:
    agent, _ = student()
    state = jit(agent.init)(KEY())
    inputs = jax.tree.map(lambda x: x[0], collected(agent, state).inputs)
    policy, carry = agent.algorithm.policy(state.learner), agent.algorithm.initial_carry(4)
    without = policy._replace(exploration=jax.tree.map(lambda x: x * jnp.nan, policy.exploration))
    for each in (policy, without):
        _, action, extras = agent.algorithm.act(each, carry, inputs, jnp.arange(4), KEY(), explore=False)
        assert not extras
        model = setup_of(agent).model
        np.testing.assert_array_equal(action, model.apply(state.learner.params, (), inputs)[1].mode())


# -------------------------------------------------------------------------------------------------------------------- learning


def test_the_loss_is_a_mean_over_valid_rows() -> None:
    agent, _ = student()
    learner = jit(agent.init)(KEY()).learner
    setup = setup_of(agent)
    rng = np.random.default_rng(0)
    inputs = jax.tree.map(lambda x: x[0], collected(agent, jit(agent.init)(KEY())).inputs)
    batch = Shown(inputs, jnp.asarray(rng.integers(0, 2, 4), jnp.int32), jnp.array([True, True, False, True]))
    found = loss(setup, learner.params, batch)[0]
    logits = np.asarray(setup.model.apply(learner.params, (), inputs)[1].logits, np.float64)
    log_prob = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = log_prob[np.arange(4), np.asarray(batch.action)]
    np.testing.assert_allclose(found, -chosen[[0, 1, 3]].mean(), rtol=1e-5)


@pytest.mark.parametrize("memory", [False, True])
def test_drawn_rows_have_the_action_shown_there(memory: bool) -> None:
    settings = {**TINY.settings, **(MEMORY if memory else {})}
    teacher = some_teacher("CartPole-v1")
    agent = make_dagger("CartPole-v1", teacher=teacher, **settings)
    state = jit(agent.init)(KEY())
    for _ in range(9):  # around the ring, and over ends of episodes
        state = run_steps(agent, state, 1)[0]
    setup = setup_of(agent)
    draw = setup.replay.draw(state.learner.replay, KEY(), 64)
    batch = jit(partial(shown_rows, setup))(state.learner.replay, draw)
    valid = np.asarray(batch.valid).ravel()
    obs = np.asarray(batch.inputs.obs).reshape(len(valid), -1)[valid]
    np.testing.assert_array_equal(np.asarray(batch.action).ravel()[valid], shown_by(teacher, obs))
    assert valid.sum() > 30 and not (memory and valid.all())
    if memory:
        assert jax.tree.leaves(batch.carry)[0].shape == (64, 8)


@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_a_student_learns_to_act_as_its_teacher(env: str) -> None:
    teacher = some_teacher(env)
    sizes = {"num_envs": 8, "rollout_length": 16, "batch_size": 64, "replay_ratio": 16.0, "buffer_size": 4096}
    agent = make_dagger(env, teacher=teacher, learning_rate=3e-3, model={"hidden_sizes": (32,)}, learning_starts=128, **sizes)
    state, _ = run_steps(agent, jit(agent.init)(KEY()), 40)
    rollout = collected(agent, state)
    obs = np.asarray(rollout.inputs.obs[:-1]).reshape(-1, rollout.inputs.obs.shape[-1])
    inputs = jax.tree.map(lambda x: x[:-1].reshape(-1, *x.shape[2:]), rollout.inputs)
    carry = agent.algorithm.initial_carry(len(obs))
    policy = agent.algorithm.policy(state.learner)
    action = np.asarray(agent.algorithm.act(policy, carry, inputs, jnp.arange(len(obs)), KEY(), explore=False)[1])
    expected = shown_by(teacher, obs)
    if env == "CartPole-v1":
        assert (action == expected).mean() > 0.95
    else:
        assert np.abs(action - np.clip(expected, -2, 2)).mean() < 0.15


def test_a_student_sees_less_than_its_teacher() -> None:
    """The teacher sees the entire state, of which the student's observation has a part."""
    env, teacher = "CartPole-v1|privileged_state(1,3)", some_teacher("CartPole-v1")

    def entire(obs: Any) -> Any:
        (name,) = set(obs) - {"privileged_state"}
        seen, hidden = obs[name], obs["privileged_state"]
        return jnp.stack([seen[0], hidden[0], seen[1], hidden[1]])

    agent = make_dagger(env, teacher=teacher, teacher_obs=entire, **{**TINY.settings, **MEMORY})
    rollout = collected(agent, jit(agent.init)(KEY()))
    obs = np.asarray(jax.vmap(jax.vmap(entire))(rollout.inputs.obs))[:-1].reshape(-1, 4)
    np.testing.assert_array_equal(np.ravel(rollout.extras["teacher_action"]), shown_by(teacher, obs))
    assert np.isfinite(float(run_steps(agent, jit(agent.init)(KEY()), 1)[1]["losses/cloning_loss"].sum))


# ------------------------------------------------------------------------------------------------------------ specs and folders


@pytest.mark.slow
def test_a_spec_holds_no_parameters_and_a_run_all(tmp_path: Path) -> None:
    teacher = some_teacher("CartPole-v1")
    agent = make_dagger("CartPole-v1", teacher=teacher, **{**TINY.settings, "model": {"hidden_sizes": (8,)}})
    rebuilt = jaxrl.build(agent.spec)
    assert rebuilt.spec == agent.spec
    with pytest.raises(RunDiverged, match="all seeds diverged"):
        jaxrl.run(rebuilt, 96, quiet=True, tensorboard=False)

    quiet: dict[str, Any] = {"quiet": True, "seeds": 2, "tensorboard": False, "eval_every": 1, "eval_episodes": 2}
    whole, _ = jaxrl.run(agent, 96, **quiet)
    jaxrl.run(agent, 48, out=tmp_path / "student", **quiet)
    resumed, _ = jaxrl.resume(tmp_path / "student", total_steps=96, quiet=True)
    assert_bit_equal(resumed, whole)
    policy = jaxrl.load_policy(tmp_path / "student", which="last", seed=1)
    expected = jax.tree.map(lambda x: x[1], whole.learner.params)
    jax.tree.map(np.testing.assert_array_equal, policy.policy.params, expected)
    np.testing.assert_array_equal(jax.tree.leaves(policy.policy.exploration.teacher)[0], jax.tree.leaves(teacher.policy)[0])


def test_another_teacher_is_another_run() -> None:
    """``run`` compares specs before it resumes."""
    ppo = small_ppo("CartPole-v1")
    other = (ppo, jit(ppo.init)(KEY()))
    specs = [make_dagger("CartPole-v1", teacher=teacher).spec for teacher in (some_teacher("CartPole-v1"), other)]
    assert str(first_difference(*what_counts(*specs))).startswith("parts.teacher.teacher.digest is")
    assert first_difference(*what_counts(specs[0], make_dagger("CartPole-v1", teacher=some_teacher("CartPole-v1")).spec)) is None


@pytest.mark.slow
def test_the_command_line_takes_the_folder_of_a_teacher(tmp_path: Path) -> None:
    from jaxrl.runtime.cli.main import main

    small_run = ["--env", "CartPole-v1", "--total-steps", "2048", "--out"]
    assert main(["train", "ppo", *small_run, str(tmp_path / "teacher"), "--quiet"]) == 0
    assert (
        main(["train", "dagger", *small_run, str(tmp_path / "student"), "--quiet", "--teacher", str(tmp_path / "teacher")]) == 0
    )
    assert jaxrl.load_policy(tmp_path / "student")(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"num_workers": 2}])
def test_students_play_on_the_host(more: dict[str, Any]) -> None:
    env = "gymnasium:CartPole-v1"
    agent = make_dagger(env, teacher=some_teacher(env), **TINY.settings)
    states, history = jaxrl.run(agent, 128, quiet=True, **more)
    assert np.isfinite(history["losses/cloning_loss"][-1]).all() and int(states.learner.version[0]) > 0


@pytest.mark.slow
def test_several_agents_have_one_teacher() -> None:
    env = "jaxrl:Spread"
    agent = make_dagger(env, teacher=some_teacher(env), **TINY.settings)
    rollout = collected(agent, jit(agent.init)(KEY()))
    assert rollout.extras["teacher_action"].shape == rollout.action.shape
    assert np.isfinite(float(run_steps(agent, jit(agent.init)(KEY()), 1)[1]["losses/cloning_loss"].sum))


# ------------------------------------------------------------------------------------------------------------------- bad input


def test_what_is_no_teacher() -> None:
    agent = small_ppo("CartPole-v1")
    states = jax.eval_shape(jax.vmap(agent.init), jax.eval_shape(lambda: jax.random.split(KEY(), 2)))
    with pytest.raises(TypeError, match=r"give it one with teacher=jaxrl.load_policy\(run\)"):
        make_dagger("CartPole-v1")
    for wrong in ("runs/ppo", agent, (agent, states), (agent, None)):
        with pytest.raises(TypeError, match=r"must be a trained policy, as jaxrl.load_policy\(run\) returns"):
            make_dagger("CartPole-v1", teacher=wrong)
    with pytest.raises(ValueError, match=r"the teacher takes actions of Discrete\(2\), and gymnax:Pendulum-v1 has Box"):
        make_dagger("Pendulum-v1", teacher=some_teacher("CartPole-v1"))
    with pytest.raises(ValueError, match=r"and Acrobot.* has .*: pass teacher_obs="):
        make_dagger(
            hosted(probes.constant_reward())._replace(action_space=spaces.Discrete(2), name="Acrobot"),
            teacher=some_teacher("CartPole-v1"),
        )
    with pytest.raises(ValueError, match=r"teacher_obs=.* must return observations of Box"):
        resolve_teacher(some_teacher("CartPole-v1"), agent.env, lambda obs: obs[:2])
    with pytest.raises(ValueError, match=r"sequence_length=8 has no effect on a model without memory"):
        make_dagger("CartPole-v1", teacher=some_teacher("CartPole-v1"), sequence_length=8)
