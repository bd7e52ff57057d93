"""The host loop: arrays that environments write again, limits that they do not know, and the form of them that is scored."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import make_env
from jaxrl.envs.check import COMPILE_FAST
from jaxrl.metrics import merge
from jaxrl.rollout import concat_rollouts
from jaxrl.runtime.cli.film import _host_player
from jaxrl.runtime.drivers.asynchronous import AsyncSampler
from jaxrl.runtime.drivers.host import HostDriver, HostLearner, evaluate_host
from jaxrl.runtime.drivers.sampler import HostSampler
from jaxrl.runtime.drivers.samplers import SAMPLERS
from jaxrl.runtime.drivers.stepping import Stepper
from jaxrl.runtime.play.evaluation import evaluate
from jaxrl.training import freezing, run_iterations, split_rows
from jaxrl.types import Agent, Env, HostEnv, HostStep, TimeStep
from tests import probes
from tests.agents import RECURRENT, assert_bit_equal, assert_close, small, small_dqn, small_ppo, suited
from tests.hosted import hosted

NUM_ENVS = 4


class Clock:
    """Observations are the time since the reset, in one array for ever; rewards are 1; no episode ends, but at ``limit``."""

    limit: int | None = None

    def __init__(self, num_envs: int, seed: int) -> None:
        self.time = np.zeros((num_envs, 1), np.float32)
        self.done = np.zeros(num_envs, bool)

    def reset(self) -> Any:
        self.time[:] = 0
        return self.time

    def step(self, action: Any) -> HostStep:
        self.time += 1
        self.time[self.done] = 0
        no, reward = np.zeros(len(self.time), bool), np.where(self.done, 0, 1).astype(np.float32)
        self.done = no if self.limit is None else self.time[:, 0] >= self.limit
        return HostStep(self.time, reward, no, self.done)

    def close(self) -> None:
        pass


class Resettable(Clock):
    def reset_where(self, mask: Any) -> Any:
        self.time[mask] = 0
        return self.time


class Limited(Clock):
    limit = 3


def clock(kind: Any = Clock, max_episode_steps: int | None = None) -> HostEnv:
    space = spaces.Box(0, np.inf, (1,))
    return HostEnv(kind, space, spaces.Discrete(2), name="clock", max_episode_steps=max_episode_steps)


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
    """Whoever holds one may go on reading while the next are collected, which begin where it ends."""
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
    """Which steps the environments once more, and stacks what comes."""
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
    """Copied as well."""
    np.testing.assert_array_equal(collected(clock(Telling)).info["time"], np.arange(1, 9)[:, None] * np.ones(NUM_ENVS))
    assert collected(clock()).info == {}


@pytest.mark.parametrize("kind", [Resettable, Limited])
def test_episodes_end_at_the_limit_as_in_pure_environments(kind: Any) -> None:
    """Whether the environments keep it themselves or not."""
    rollout = collected(clock(kind, max_episode_steps=3))
    ones = np.ones(NUM_ENVS)
    np.testing.assert_array_equal(rollout.inputs.obs[:, :, 0], np.array([[0, 1, 2, 3, 0, 1, 2, 3, 0]]).T * ones)
    np.testing.assert_array_equal(rollout.truncated, np.array([[0, 0, 1, 0, 0, 0, 1, 0]]).T * ones)
    np.testing.assert_array_equal(rollout.valid, np.array([[1, 1, 1, 0, 1, 1, 1, 0]]).T * ones)
    np.testing.assert_array_equal(rollout.reward, rollout.valid)
    np.testing.assert_array_equal(rollout.inputs.is_first, np.array([[1, 0, 0, 0, 1, 0, 0, 0, 1]]).T * ones)
    assert not rollout.terminated.any()


def test_an_environment_that_cannot_be_cut_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"clock: an episode went on past max_episode_steps=3: set truncated"):
        collected(clock(max_episode_steps=3))


def test_multi_discrete_actions_and_their_masks() -> None:
    """Collected, learnt from and evaluated, with no forbidden action."""
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
    """At the second row of environments 1 and 3, or at their first; but not where their episodes have ended."""

    class Masked(Clock):
        def allows(self, first: Any) -> Any:
            """Environments with an even number whatever they like, the others an action at their first row alone."""
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
        with pytest.raises(ValueError, match=r"clock: action_mask forbids every action in environments 1, 3: allow one in each"):
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
    for env, play in ((clock(), evaluate_host), (clock(), jaxrl.evaluate), (pure_clock(3), jaxrl.evaluate)):
        agent = small_ppo(env)
        state = agent.init(jax.random.key(0))
        with pytest.raises(ValueError, match=message):
            play(agent, state, jax.random.key(1), **settings)


def test_environment_parameters_are_refused_where_there_are_none() -> None:
    agent = small_ppo(clock())
    with pytest.raises(ValueError, match="env_params are for pure environments; clock runs on the host"):
        agent.init(jax.random.key(0), env_params={"gravity": 5.0})


# --------------------------------------------------------------------------------------------------------------------- samplers


class Pair:
    """A pool of two, each with half of the environments."""

    def __init__(self, agent: Agent, seeds: Any) -> None:
        half = agent.num_envs // 2
        self.parts = [HostSampler(agent, seeds, first_id, half) for first_id in (0, half)]

    def collect(self, policy: Any, key: Any) -> Any:
        rollouts, metrics = zip(*(part.collect(policy, key) for part in self.parts), strict=True)
        rollouts = [jax.tree.map(lambda x: x[0], rollout) for rollout in rollouts]
        return jax.tree.map(lambda x: x[None], concat_rollouts(rollouts)), merge(*metrics)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def driven(agent: Agent, seeds: Any, iterations: int, sampler: Any = HostSampler) -> Any:
    driver = HostDriver(agent, seeds, sampler)
    states, metrics, _ = driver.iterate(driver.init(), iterations)
    driver.close()
    return states, metrics


def test_a_pool_is_only_another_sampler() -> None:
    """One that collects in parts gives the states, metrics and warm-up of one that holds all environments."""
    agent = small_dqn("envpool:CartPole-v1")
    assert_close(driven(agent, [3], 5), driven(agent, [3], 5, Pair))


@pytest.mark.parametrize("rule", ["ppo", "dqn"])
def test_seeds_side_by_side_are_those_alone(rule: str) -> None:
    """Their environments, actions and what they learn, in one pool; whatever the others are."""
    agent = small(rule, "envpool:CartPole-v1")
    both, alone = driven(agent, [3, 5], 5), driven(agent, [5], 5)
    assert_close(jax.tree.map(lambda x: x[1:], both), alone)
    params = [np.asarray(x) for x in jax.tree.leaves(both[0].learner.params)]
    assert any((x[0] != x[1]).any() for x in params)


def test_environments_of_several_seeds_are_one_batch() -> None:
    """Seed by seed, those of each as where it is alone; they end, are cut and are closed as one's."""
    env, closed = clock(Resettable, max_episode_steps=3), []

    class Watched(Resettable):
        def __init__(self, num_envs: int, seed: int) -> None:
            super().__init__(num_envs, seed)
            self.time += seed

        def reset(self) -> Any:
            return self.time

        def close(self) -> None:
            closed.append(len(self.time))

    envs = Stepper(env._replace(open=Watched), 2, [3, 5])
    envs.reset()
    assert envs.input.obs[:, 0].tolist() == [3, 3, 5, 5]
    rows = [envs.step(np.zeros(4, int)) for _ in range(4)]
    assert [row.truncated.tolist() for row in rows] == [[False] * 4] * 2 + [[True] * 4] + [[False] * 4]
    assert envs.input.obs[:, 0].tolist() == [0] * 4 and envs.input.is_first.all()
    envs.close()
    assert closed == [2, 2]


class Background(Clock):
    """Steps in the background, and gives rows of the later half first; observations differ between environments."""

    def __init__(self, num_envs: int, seed: int, first_id: int = 0) -> None:
        super().__init__(num_envs, seed)
        self.first, self.sent = first_id, list[int]()

    def reset(self) -> Any:
        self.time[:, 0] = 100 * (self.first + np.arange(len(self.time)))
        return self.time

    def send(self, action: Any, env_id: Any = None) -> None:
        self.sent = [*self.sent, *(reversed(range(len(self.time))) if env_id is None else env_id)]

    def recv(self) -> Any:
        half = len(self.time) // 2
        these, self.sent = np.array(self.sent[:half]), self.sent[half:]
        self.time[these] += 1
        no = np.zeros(half, bool)
        return these, HostStep(self.time[these], np.ones(half, np.float32), no, no)


def test_rows_in_any_order_are_put_in_their_place() -> None:
    """Which the sampler of one whole and of two halves does alike."""
    agent = small_ppo(clock(Background))
    policy, key = agent.algorithm.policy(agent.init(jax.random.key(0)).learner), jax.random.key(1)
    whole, halves = (HostSampler(agent, 0, num_groups=n).collect(policy, key)[0] for n in (1, 2))
    np.testing.assert_array_equal(whole.inputs.obs[:, :, 0], 100 * np.arange(NUM_ENVS) + np.arange(9)[:, None])
    np.testing.assert_array_equal(halves.inputs.obs, whole.inputs.obs)


def collected_by(name: str, agent: Agent, seed: Any = 3, rollouts: int = 1) -> Any:
    """The first rollouts of a sampler, by one policy for each seed."""
    keys = jax.vmap(jax.random.key)(np.atleast_1d(seed))
    policy, key = jax.vmap(lambda key: agent.algorithm.policy(agent.init(key).learner))(keys), keys
    if not np.ndim(seed):
        policy, key = jax.tree.map(lambda x: x[0], policy), keys[0]
    sampler = SAMPLERS[name](agent, seed)
    collected = [sampler.collect(policy, key)[0] for _ in range(rollouts)]
    sampler.close()
    return collected


@pytest.mark.parametrize("env", ["envpool:CartPole-v1", "gymnasium:CartPole-v1?num_workers=2"])
def test_all_samplers_give_the_same_rollout(env: str) -> None:
    """By the same parameters: the halves bit for bit; who goes ahead in the next rollout acts with other keys there."""
    agent = small_ppo(env, model=RECURRENT)
    (first, second), halves, (ready,) = (
        collected_by(name, agent, rollouts=n) for name, n in (("sync", 2), ("alternating", 2), ("async", 1))
    )
    assert_bit_equal(halves, [first, second])
    assert_close(ready, first)


def test_seeds_are_collected_as_alone_whoever_samples() -> None:
    agent = small_ppo("envpool:CartPole-v1")
    (alone,) = collected_by("sync", agent, 5)
    for name in ("alternating", "async"):
        (both,) = collected_by(name, agent, [3, 5])
        assert_close(jax.tree.map(lambda x: x[1], both), alone)


def test_rows_of_fast_environments_begin_the_next_rollout() -> None:
    """No row is lost or doubled, whoever is ready when; the parameters that a rollout began with are its version."""
    agent = small_ppo("envpool:CartPole-v1", num_envs=6, rollout_length=5)
    policy = agent.algorithm.policy(agent.init(jax.random.key(0)).learner)
    sampler = AsyncSampler(agent, 0)
    rollouts = [sampler.collect(policy._replace(version=np.int32(n)), jax.random.key(n))[0] for n in range(20)]
    sampler.close()
    for n, (before, after) in enumerate(itertools.pairwise(rollouts), 1):
        assert_bit_equal(jax.tree.map(lambda x: x[-1], before.inputs), jax.tree.map(lambda x: x[0], after.inputs))
        assert set(after.version.tolist()) <= {n - 2, n - 1, n} and (after.version >= before.version).all()
    done, valid = (np.concatenate([x(r) for r in rollouts]) for x in (lambda r: r.terminated | r.truncated, lambda r: r.valid))
    np.testing.assert_array_equal(~valid[1:], done[:-1])
    assert done.any()


@pytest.mark.parametrize("name", ["alternating", "async"])
def test_who_steps_in_the_background_says_so(name: str) -> None:
    agent = small_ppo("gymnasium:CartPole-v1")
    with pytest.raises(TypeError, match=rf"^sampler='{name}' needs environments that step in the background, and gymnasium:Cart"):
        SAMPLERS[name](agent, [0])
    with pytest.raises(ValueError, match=rf"^sampler='{name}' steps halves of num_envs=3: use an even number"):
        jaxrl.run(small_ppo("envpool:CartPole-v1", num_envs=3, num_minibatches=1), 64, sampler=name, quiet=True)
    with pytest.raises(ValueError, match=rf"^sampler='{name}' is for environments on the host, and .* runs in JAX"):
        jaxrl.run(small_ppo(probes.truncation()), 64, sampler=name, quiet=True)


def test_a_sampler_that_is_unknown() -> None:
    with pytest.raises(ValueError, match=r"^unknown sampler 'alternate'\. Did you mean 'alternating'"):
        jaxrl.run(small_ppo("envpool:CartPole-v1"), 64, sampler="alternate", quiet=True)


def test_a_limit_that_only_jaxrl_knows_is_refused_where_rows_come_as_they_are_ready() -> None:
    agent = small_ppo(clock(Background, max_episode_steps=3))
    sampler = AsyncSampler(agent, 0)
    with pytest.raises(RuntimeError, match=r"^clock: an episode went on past max_episode_steps=3, and sampler='async' cannot"):
        sampler.collect(agent.algorithm.policy(agent.init(jax.random.key(0)).learner), jax.random.key(0))


def test_a_run_says_by_whom_it_is_sampled(tmp_path: Any) -> None:
    """And goes on so; the states are those of the plain loop."""
    agent, settings = small_ppo("envpool:CartPole-v1"), {"quiet": True, "tensorboard": False, "eval_every": 0}
    states, _ = jaxrl.run(agent, 64, sampler="alternating", out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    plain, _ = jaxrl.run(agent, 64, **settings)  # type: ignore[arg-type]
    assert_bit_equal(states, plain)
    with pytest.raises(FileExistsError, match=r'run\.sampler is "alternating" there and null here'):
        jaxrl.run(agent, 64, out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    states, _ = jaxrl.resume(tmp_path / "run", total_steps=96, quiet=True)
    assert states.iteration.tolist() == [3]


def test_a_part_of_the_environments_needs_first_id() -> None:
    agent = small_ppo(clock())
    HostSampler(agent, 0)
    with pytest.raises(TypeError, match=r"^clock: environments 2 to 3 cannot be opened apart from the others: let open take"):
        HostSampler(agent, 0, 2, 2)


# ----------------------------------------------------------------------------------------------------------------------- replay


def places(rows: Any) -> list[int]:
    return [x.unsafe_buffer_pointer() for x in jax.tree.leaves(rows)]


@pytest.mark.parametrize("rule", ["dqn", "sac"])
def test_an_update_writes_into_the_replay(rule: str) -> None:
    """What learns stands where it stood, none of it is copied, and the policy of before goes on acting."""
    agent = small(rule, suited(rule, hosted(probes.truncation(5))), buffer_size=20_000)
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

    update = learner.update.jitted.lower(rows, rest, rollout).compile(compiler_options=COMPILE_FAST)
    memory = update.memory_analysis()
    assert memory.alias_size_in_bytes >= size > 4 * memory.temp_size_in_bytes
    learnt, _ = update(rows, rest, rollout)
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
    """What training sees of ``Resettable``: a tenth of its rewards, and episodes of two steps."""

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
    assert [moment.reward for moment in moments] == [0, 1, 1, 1, 1, 1] and moments[-1].ended
    rollout = collected(agent.env)  # type: ignore[arg-type]
    assert rollout.reward.max() == np.float32(0.1) and rollout.truncated[1].all()


def test_atari_is_scored_by_raw_rewards_and_whole_games() -> None:
    """The same moves in both forms, up to the first life that is lost."""
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
        if training.done.any():
            break
    assert training.done.any() and not scored.done.any()
    assert clipped.max() > 0
    np.testing.assert_array_equal(raw, 25 * clipped)  # a cube is worth 25
