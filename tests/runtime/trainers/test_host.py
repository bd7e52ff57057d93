"""The host loop: arrays that environments overwrite, limits that they do not know, and the form of them used for evaluation."""

from __future__ import annotations

import itertools
import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import make_env
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.runtime.cli.film import _host_player
from jaxrl.runtime.console import progress
from jaxrl.runtime.evaluation.evaluate import evaluate
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.runtime.trainers.host import HostDriver, HostLearner
from jaxrl.runtime.training_loop.outcome import RunInterrupted
from jaxrl.training import freezing, run_iterations
from jaxrl.types import Agent, Env, HostEnv, HostStep, TimeStep
from jaxrl.xla.in_place import split_rows
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, assert_bit_equal, small, small_dqn, small_ppo, suited
from tests.helpers.fakes import press_ctrl_c
from tests.helpers.hosted import Clock, Limited, Resettable, clock, hosted

NUM_ENVS = 4


def pure_clock(max_episode_steps: int) -> Env:
    def step(key: Any, time: Any, action: Any, params: Any) -> Any:
        no = jax.numpy.array(False)
        return time + 1, TimeStep(time + 1, jax.numpy.float32(1), no, no)

    space, zero = spaces.Box(0, np.inf, (1,)), jax.numpy.zeros(1)
    return Env(lambda key, params: (zero, zero), step, space, spaces.Discrete(2), max_episode_steps=max_episode_steps)


def collected(env: HostEnv) -> Any:
    agent = small_ppo(env)
    learner = agent.init(jax.random.key(0)).learner
    rollout, _ = HostSampler(agent, 0).collect(agent.algorithm.policy(learner), jax.random.key(1))
    return rollout


def test_arrays_that_an_environment_writes_again_are_copied() -> None:
    obs = collected(clock()).inputs.obs
    np.testing.assert_array_equal(obs[:, :, 0], np.arange(9)[:, None] * np.ones(NUM_ENVS))


def test_a_rollout_stays_as_it_was() -> None:
    """It can be read while the next rollouts are collected, which begin where it ends."""
    agent = small_ppo(hosted(probes.memory()), model=RECURRENT)
    sampler, policy = HostSampler(agent, 0), agent.algorithm.policy(agent.init(jax.random.key(0)).learner)
    rollouts = [sampler.collect(policy, jax.random.key(n))[0] for n in range(3)]
    again = HostSampler(agent, 0)
    for n, rollout in enumerate(rollouts):
        assert_bit_equal(again.collect(policy, jax.random.key(n))[0], rollout)
    for before, after in itertools.pairwise(rollouts):
        assert_bit_equal(jax.tree.map(lambda x: x[-1], before.inputs), jax.tree.map(lambda x: x[0], after.inputs))
        mine, theirs = (jax.tree.leaves((x.inputs, x.action, x.extras, x.reward)) for x in (before, after))
        assert not any(np.shares_memory(x, y) for x, y in itertools.product(mine, theirs))


def test_rows_are_those_of_a_plain_loop() -> None:
    """The loop steps the same environments again, and stacks the results."""
    agent = small_ppo(hosted(probes.two_choices()))
    policy, key = agent.algorithm.policy(agent.init(jax.random.key(0)).learner), jax.random.key(1)
    rollout, _ = HostSampler(agent, 3).collect(policy, key)
    envs, env_id = Stepper(agent.env, NUM_ENVS, 3), np.arange(NUM_ENVS, dtype=np.int32)  # type: ignore[arg-type]
    act = jax.jit(agent.algorithm.act, static_argnames="explore")
    envs.reset()
    rows, inputs, carry = [], [envs.input], agent.algorithm.initial_carry(NUM_ENVS)
    for row_key in jax.random.split(key, (agent.rollout_length, 3))[:, 0]:
        carry, action, extras = act(policy, carry, envs.input, env_id, row_key, explore=True)
        outcome = envs.step(np.asarray(action))
        rows.append((action, extras, outcome.reward, outcome.terminated, outcome.truncated, outcome.valid))
        inputs.append(envs.input)
    stacked = jax.tree.map(lambda *x: np.stack(x), *rows)
    got = (rollout.action, rollout.extras, rollout.reward, rollout.terminated, rollout.truncated, rollout.valid)
    assert_bit_equal(got, stacked)
    assert_bit_equal(rollout.inputs, jax.tree.map(lambda *x: np.stack(x), *inputs))


class Telling(Clock):
    def step(self, action: Any) -> HostStep:
        return super().step(action)._replace(info={"time": self.time[:, 0]})


def test_what_environments_tell_besides_is_collected() -> None:
    """It is copied too."""
    np.testing.assert_array_equal(collected(clock(Telling)).info["time"], np.arange(1, 9)[:, None] * np.ones(NUM_ENVS))
    assert collected(clock()).info == {}


@pytest.mark.parametrize("kind", [Resettable, Limited])
def test_episodes_end_at_the_limit_as_in_pure_environments(kind: Any) -> None:
    """For environments that enforce the limit, and for those that do not."""
    rollout = collected(clock(kind, max_episode_steps=3))
    ones = np.ones(NUM_ENVS)
    np.testing.assert_array_equal(rollout.inputs.obs[:, :, 0], np.array([[0, 1, 2, 3, 0, 1, 2, 3, 0]]).T * ones)
    np.testing.assert_array_equal(rollout.truncated, np.array([[0, 0, 1, 0, 0, 0, 1, 0]]).T * ones)
    np.testing.assert_array_equal(rollout.valid, np.array([[1, 1, 1, 0, 1, 1, 1, 0]]).T * ones)
    np.testing.assert_array_equal(rollout.reward, rollout.valid)
    np.testing.assert_array_equal(rollout.inputs.is_first, np.array([[1, 0, 0, 0, 1, 0, 0, 0, 1]]).T * ones)
    assert not rollout.terminated.any()


def test_an_environment_that_cannot_be_cut_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"clock: an episode continued past max_episode_steps=3: set truncated"):
        collected(clock(max_episode_steps=3))


@pytest.mark.parametrize(
    ("flags", "said"), [(None, "None"), (["no"] * NUM_ENVS, r"<U2\[4\]"), (np.zeros((NUM_ENVS, 1), bool), r"bool\[4, 1\]")]
)
def test_flags_that_say_nothing_are_refused(flags: Any, said: str) -> None:
    """Their truth value would be used: None would mean that the episode continues, "no" that it ends."""

    class Odd(Clock):
        def step(self, action: Any) -> HostStep:
            return super().step(action)._replace(terminated=flags)

    with pytest.raises(EnvironmentFailed, match=rf"^clock: step gave terminated={said}; it must be an array bool\[4\]$"):
        collected(clock(Odd))


@pytest.mark.slow
def test_multi_discrete_actions_and_their_masks() -> None:
    """Collected, learnt from and evaluated, without forbidden actions."""
    agent = small_ppo(hosted(probes.two_choices()))
    rollout = collected(agent.env)  # type: ignore[arg-type]
    assert rollout.action.shape == (8, NUM_ENVS, 2) and rollout.action.dtype == np.int32
    assert rollout.reward.min() >= 0 and rollout.reward.max() == 1
    learner = agent.init(jax.random.key(0)).learner
    after, _ = jax.jit(agent.algorithm.update)(learner, rollout)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.params))
    played = evaluate(agent, agent.init(jax.random.key(0)), jax.random.key(1), 3)
    assert played.finished.all() and (np.asarray(played.episodic_return) >= 0).all()


def test_a_mask_that_forbids_every_action_stops_the_run() -> None:
    """In the second row of environments 1 and 3, or in their first, but not where their episodes have ended."""

    class Masked(Clock):
        def allows(self, first: Any) -> Any:
            """Environments with an even number allow every action, the others only in their first row."""
            return first | (np.arange(NUM_ENVS) % 2 == 0)

        def seen(self) -> Any:
            free = self.allows(self.time[:, 0] == 0)
            return {"time": self.time, "action_mask": np.repeat(free[:, None], 2, 1).astype(np.int8)}

        def reset(self) -> Any:
            super().reset()
            return self.seen()

        def step(self, action: Any) -> HostStep:
            return super().step(action)._replace(obs=self.seen())

    class Ending(Masked):
        limit = 1

    class Never(Masked):
        def allows(self, first: Any) -> Any:
            return super().allows(False)

    space = spaces.Dict({"time": spaces.Box(0, np.inf, (1,)), "action_mask": spaces.MultiBinary(2)})
    collected(clock(Ending)._replace(observation_space=space))
    for kind in (Masked, Never):
        with pytest.raises(EnvironmentFailed, match=r"clock: action_mask forbids every action in environments 1, 3: allow one"):
            collected(clock(kind)._replace(observation_space=space))


@pytest.mark.parametrize(("max_steps", "length", "finished"), [(None, 3, True), (7, 3, True), (2, 2, False)])
def test_evaluation_ends_at_the_limit_as_in_pure_environments(max_steps: int | None, length: int, finished: bool) -> None:
    for env in (clock(max_episode_steps=3), clock(Limited, max_episode_steps=3), pure_clock(3)):
        agent = small_ppo(env)
        played = evaluate(agent, agent.init(jax.random.key(0)), jax.random.key(1), 2, max_steps=max_steps)
        np.testing.assert_array_equal(played.episodic_length, [length] * 2)
        np.testing.assert_array_equal(played.episodic_return, [length] * 2)
        np.testing.assert_array_equal(played.finished, [finished] * 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_episodes": 0}, "num_episodes=0 must be an integer >= 1"),
        ({"max_steps": 0}, "max_steps=0 must be an integer >= 1"),
        ({"max_steps": -1}, "max_steps=-1 must be an integer >= 1"),
    ],
)
def test_an_evaluation_of_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    for env in (clock(), pure_clock(3)):
        agent = small_ppo(env)
        state = agent.init(jax.random.key(0))
        with pytest.raises(ValueError, match=message):
            evaluate(agent, state, jax.random.key(1), **settings)


def test_environment_parameters_are_refused_where_there_are_none() -> None:
    agent = small_ppo(clock())
    with pytest.raises(ValueError, match="env_params are for pure environments; clock runs on the host"):
        agent.init(jax.random.key(0), env_params={"gravity": 5.0})


# ----------------------------------------------------------------------------------------------------------------------- replay


def places(rows: Any) -> list[int]:
    return [x.unsafe_buffer_pointer() for x in jax.tree.leaves(rows)]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_an_update_writes_into_the_replay(algorithm: str) -> None:
    """The learner is updated in place without copies, and the old policy can still act."""
    agent = small(algorithm, suited(algorithm, hosted(probes.truncation(5))), buffer_size=20_000)
    learner = HostLearner(agent, HostSampler(agent, 0))
    state = learner.init(jax.random.key(0))
    split = partial(split_rows, agent.algorithm)
    policy = learner.policy(state.learner)
    rollout, _ = learner.sampler.collect(policy, jax.random.key(1))
    first = jax.tree.map(lambda x: x[0], rollout.inputs)
    keys = jax.random.split(jax.random.key(2))
    act = partial(learner.sampler.act, policy, rollout.carry, first, rollout.env_id, keys, np.int32(0))
    before, (rows, rest) = act(), split(state.learner)
    size, stood = sum(x.nbytes for x in jax.tree.leaves(rows)), places(rows)
    assert len(stood) >= 2 and size > 20_000

    update = learner.update.jitted.lower(rows, rest, rollout, *learner.update.shared).compile(compiler_options=COMPILE_FAST)
    memory = update.memory_analysis()
    assert memory.alias_size_in_bytes >= size > 4 * memory.temp_size_in_bytes
    learnt, _ = update(rows, rest, rollout, *learner.update.shared)
    assert places(split(learnt)[0]) == stood
    assert all(x.is_deleted() for x in jax.tree.leaves(rows))
    assert not any(x.is_deleted() for x in jax.tree.leaves((policy, rest)))
    assert_bit_equal(act(), before)


def test_the_warm_up_writes_into_the_replay() -> None:
    agent = small_dqn(hosted(probes.truncation(5)))
    learner = HostLearner(agent, HostSampler(agent, 0))
    state = agent.init(jax.random.key(0))
    rows = split_rows(agent.algorithm, state.learner)[0]
    stood = places(rows)
    rollout, _ = learner.sampler.collect(learner.policy(state.learner), jax.random.key(1))
    assert learner.observe is not None
    assert places(split_rows(agent.algorithm, learner.observe(state.learner, rollout))[0]) == stood


@pytest.mark.slow
def test_a_seed_with_replay_is_frozen_as_in_the_fused_program() -> None:
    fused, host = (small_dqn(env) for env in (probes.truncation(5), hosted(probes.truncation(5))))

    def wild(state: Any) -> Any:
        hyperparams = state.learner.hyperparams
        hyperparams = hyperparams._replace(learning_rate=np.full_like(hyperparams.learning_rate, np.inf))
        return state._replace(learner=state.learner._replace(hyperparams=hyperparams))

    driver = HostDriver(host, [3])
    start = wild(driver.init())
    rest = jax.device_get(split_rows(host.algorithm, start.learner, lead=1)[1])
    states, _, alive = driver.iterate(start, 2)
    driver.close()
    assert not alive[0]
    assert_bit_equal(split_rows(host.algorithm, states.learner, lead=1)[1], rest)
    state = jax.tree.map(lambda x: x[0], states)

    def two(state: Any) -> Any:
        return run_iterations(freezing(fused), (state, np.True_), 2)[0]

    after, goes_on = jax.jit(two, compiler_options=COMPILE_FAST)(wild(fused.init(jax.random.key(3))))
    assert not goes_on
    assert_bit_equal(state.learner, after.learner)


# ------------------------------------------------------------------------------------------------------------------- evaluation


class Clipped(Clock):
    """Training's form of ``Resettable``: a tenth of its rewards, and episodes of two steps."""

    limit = 2

    def step(self, action: Any) -> HostStep:
        row = super().step(action)
        return row._replace(reward=row.reward / 10)


def clipped() -> Agent:
    return small_ppo(clock(Clipped, max_episode_steps=5)._replace(open_eval=Resettable))


def test_scores_are_of_the_environment_as_it_is() -> None:
    agent = clipped()
    state = agent.init(jax.random.key(0))
    played = jaxrl.evaluate(agent, state, jax.random.key(1), 2)
    np.testing.assert_array_equal(played.episodic_return, [5, 5])
    policy = agent.algorithm.policy(state.learner)
    moments = list(_host_player(agent, policy, jax.random.key(1), False)(0))
    assert [moment.episodic_return for moment in moments] == [0, 1, 2, 3, 4, 5] and moments[-1].ended
    rollout = collected(agent.env)  # type: ignore[arg-type]
    assert rollout.reward.max() == np.float32(0.1) and rollout.truncated[1].all()


@pytest.mark.slow
def test_atari_is_scored_by_raw_rewards_and_whole_games() -> None:
    """The same actions in both forms, up to the first lost life."""
    env = make_env("envpool:Qbert-v5", reward_clip=True, episodic_life=True, num_threads=1)
    assert isinstance(env, HostEnv)
    training, scored = Stepper(env, NUM_ENVS, 0), Stepper(env, NUM_ENVS, 0, evaluation=True)
    training.reset()
    scored.reset()
    rng, clipped, raw = np.random.default_rng(0), np.zeros(NUM_ENVS), np.zeros(NUM_ENVS)
    for _ in range(300):
        action = rng.integers(6, size=NUM_ENVS).astype(np.int32)
        clipped += training.step(action).reward
        raw += scored.step(action).reward
        if training.over.any():
            break
    assert training.over.any() and not scored.over.any()
    assert clipped.max() > 0
    np.testing.assert_array_equal(raw, 25 * clipped)  # a cube has 25 points


class Pressed(Clock):
    """Gets a Ctrl-C in the row ``when``, counted over all rollouts."""

    when, row = 0, 0

    def step(self, action: Any) -> HostStep:
        Pressed.row += 1
        if Pressed.row == self.when:
            press_ctrl_c()
        return super().step(action)


def test_ctrl_c_ends_a_chunk_after_the_current_iteration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the last chunk. A resumed run continues in the middle of the chunk. The display shows each iteration."""
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    agent = small_ppo(HostEnv(Pressed, spaces.Box(0, np.inf, (1,)), spaces.Discrete(2), name="Pressed"))
    rows = agent.steps_per_iteration

    def train() -> Any:
        return jaxrl.run(agent, 10 * rows, out=tmp_path, chunk_iterations=4, eval_every=0)

    for begin, iteration in ((0, 6), (6, 9)):
        monkeypatch.setattr(Pressed, "when", Pressed.row + (iteration - begin) * agent.rollout_length)
        with pytest.raises(RunInterrupted, match=f"stopped at step {iteration * rows} of {10 * rows}"):
            train()
        shown = re.findall(r"^step +(\d+)/\d+  ETA (.*)$", capsys.readouterr().out, re.MULTILINE)
        assert [int(step) for step, _ in shown] == [n * rows for n in range(begin + 1, iteration + 1)]
        assert [eta == "–" for _, eta in shown] == [n == 0 for n in range(iteration - begin)]
    state, history = train()
    assert history["iteration"].tolist() == [4, 6, 8, 9, 10] and state.iteration.tolist() == [10]
    np.testing.assert_array_equal(history["env_steps"], history["iteration"][:, None] * rows)
