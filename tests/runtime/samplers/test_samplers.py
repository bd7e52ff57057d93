"""Samplers: seeds in one pool, rows in any order, alternating halves, the half that is ready first; collecting while learning."""

from __future__ import annotations

import functools
import itertools
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.metrics import merge
from jaxrl.rollout.collect import concat_rollouts, example_rollout
from jaxrl.runtime.samplers.asynchronous import AsyncSampler
from jaxrl.runtime.samplers.by_name import SAMPLERS
from jaxrl.runtime.samplers.diagnostics import LAG, LOGGED, MOST_LAG, PARTS, TIMED
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.types import Agent, HostStep
from tests.helpers import probes
from tests.helpers.agents import (
    PLAYING,
    RECURRENT,
    assert_bit_equal,
    assert_close,
    assert_new_noise,
    only_noise,
    small,
    small_dqn,
    small_ppo,
    suited,
)
from tests.helpers.hosted import Clock, Resettable, clock, hosted
from tests.helpers.processes.actor_pools import keys, policies

NUM_ENVS = 4


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


def example(agent: Agent, key: Any) -> Any:
    learner = agent.init(key).learner
    return learner, example_rollout(agent.algorithm, agent.env, agent.algorithm.policy(learner), NUM_ENVS, agent.rollout_length)


def driven(agent: Agent, seeds: Any, iterations: int, sampler: Any = HostSampler) -> Any:
    driver = HostDriver(agent, seeds, sampler)
    states, metrics, _ = driver.iterate(driver.init(), iterations)
    driver.close()
    return states, {name: metric for name, metric in metrics.items() if name not in TIMED}


@pytest.mark.slow
def test_a_pool_is_only_another_sampler() -> None:
    """A sampler that collects in parts gives the states, metrics and warm-up of one with all environments."""
    agent = small_dqn("envpool:CartPole-v1")
    assert_close(driven(agent, [3], 5), driven(agent, [3], 5, Pair))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_seeds_side_by_side_are_those_alone(algorithm: str) -> None:
    """Their environments, actions and results in one pool do not depend on the other seeds."""
    agent = small(algorithm, "envpool:CartPole-v1")
    both, alone = driven(agent, [3, 5], 5), driven(agent, [5], 5)
    assert_close(jax.tree.map(lambda x: x[1:], both), alone)
    params = [np.asarray(x) for x in jax.tree.leaves(both[0].learner.params)]
    assert any((x[0] != x[1]).any() for x in params)


def test_environments_of_several_seeds_are_one_batch() -> None:
    """Seed by seed, each as if alone. They end, are truncated and are closed like those of one seed."""
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
    """Steps in the background, and returns rows of the second half first. Observations differ between environments."""

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
    """The sampler of the whole batch and the sampler of two halves both do this."""
    agent = small_ppo(clock(Background))
    policy, key = agent.algorithm.policy(agent.init(jax.random.key(0)).learner), jax.random.key(1)
    whole, halves = (HostSampler(agent, 0, num_groups=n).collect(policy, key)[0] for n in (1, 2))
    np.testing.assert_array_equal(whole.inputs.obs[:, :, 0], 100 * np.arange(NUM_ENVS) + np.arange(9)[:, None])
    np.testing.assert_array_equal(halves.inputs.obs, whole.inputs.obs)


def collected_by(name: str, agent: Agent, seed: Any = 3, rollouts: int = 1) -> Any:
    """Return the first rollouts of a sampler, with one policy per seed."""
    keys = jax.vmap(jax.random.key)(np.atleast_1d(seed))
    policy, key = jax.vmap(lambda key: agent.algorithm.policy(agent.init(key).learner))(keys), keys
    if not np.ndim(seed):
        policy, key = jax.tree.map(lambda x: x[0], policy), keys[0]
    sampler = SAMPLERS[name](agent, seed)
    collected = [sampler.collect(policy, key)[0] for _ in range(rollouts)]
    sampler.close()
    return collected


@pytest.mark.slow
@pytest.mark.parametrize("env", ["envpool:CartPole-v1", "gymnasium:CartPole-v1?num_workers=2"])
def test_all_samplers_give_the_same_rollout(env: str) -> None:
    """With the same parameters: the halves are equal bit for bit.

    A sampler that works ahead uses other keys in the next rollout.
    """
    agent = small_ppo(env, model=RECURRENT)
    (first, second), halves, (ready,) = (
        collected_by(name, agent, rollouts=n) for name, n in (("sync", 2), ("alternating", 2), ("async", 1))
    )
    assert_bit_equal(halves, [first, second])
    assert_close(ready, first)


@pytest.mark.slow
def test_seeds_are_collected_as_alone_whoever_samples() -> None:
    agent = small_ppo("envpool:CartPole-v1")
    (alone,) = collected_by("sync", agent, 5)
    for name in ("alternating", "async"):
        (both,) = collected_by(name, agent, [3, 5])
        assert_close(jax.tree.map(lambda x: x[1], both), alone)


def test_rows_of_fast_environments_begin_the_next_rollout() -> None:
    """No row is lost or duplicated, for any order of readiness. A rollout's version is that of the parameters at its start."""
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


class Uneven(Background):
    """Rows of an environment take the time given by ``PACE``, on a separate clock.

    ``recv`` returns the half that is done first.
    """

    PACE: ClassVar[list[float]]

    def __init__(self, num_envs: int, seed: int, first_id: int = 0) -> None:
        super().__init__(num_envs, seed, first_id)
        self.now, self.under_way, self.together = 0.0, list[tuple[float, int]](), [tuple(range(num_envs))]

    def send(self, action: Any, env_id: Any = None) -> None:
        sent = range(len(self.time)) if env_id is None else env_id.tolist()
        self.under_way += [(self.now + self.PACE[i], i) for i in sent]
        assert tuple(sent) in self.together, "a recv gave others together"

    def recv(self) -> Any:
        half = len(self.time) // 2
        assert len(self.under_way) >= half, "this would wait for ever"
        self.under_way.sort()
        (*_, (self.now, _)) = first = self.under_way[:half]
        del self.under_way[:half]
        these = np.array([i for _, i in first])
        self.together.append(tuple(these.tolist()))
        self.time[these] += 1
        no = np.zeros(half, bool)
        return these, HostStep(self.time[these], np.ones(half, np.float32), no, no)


class Sized(Uneven):
    """Opened for a number of rows per call, and takes any environments."""

    def __init__(self, num_envs: int, seed: int, first_id: int = 0, *, batch_size: int) -> None:
        assert batch_size == num_envs // 2
        super().__init__(num_envs, seed, first_id)

    def send(self, action: Any, env_id: Any = None) -> None:
        self.together = [tuple(range(len(self.time)) if env_id is None else env_id.tolist())]
        super().send(action, env_id)


PACES = {"a slow one": [9, 1, 1, 1, 1, 1], "a fast one": [1, 9, 10, 11, 12, 13], "halves": [1, 1, 1, 5, 5, 5], "alike": [1] * 6}


@pytest.mark.parametrize("kind", [Uneven, pytest.param(Sized, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pace", PACES)
def test_rows_of_unequal_environments(kind: Any, pace: str) -> None:
    """No environment may be more than a rollout behind, the run continues, and no row is lost.

    If any of them may wait, none gets further ahead than that.
    """
    agent = small_ppo(clock(type("Paced", (kind,), {"PACE": PACES[pace]})), num_envs=6, rollout_length=4)
    policy = agent.algorithm.policy(agent.init(jax.random.key(0)).learner)
    sampler = AsyncSampler(agent, 0)
    (lane,), most = sampler.lanes, 0
    for n in range(20):
        rollout = sampler.collect(policy._replace(version=np.int32(n)), jax.random.key(n))[0]
        times = 100 * np.arange(6) + 4 * n + np.arange(5)[:, None]
        np.testing.assert_array_equal(rollout.inputs.obs[..., 0], times)
        assert rollout.valid.all() and (rollout.version <= n).all()
        most = max(most, n - int(rollout.version.min()), len(lane.buffers))
    assert most <= 2 or kind is Uneven


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("pace", ["a slow one", "a fast one"])
def test_noise_is_new_in_each_row_environment_seed_and_rollout(name: str, pace: str) -> None:
    """Also in rows that are ahead of their rollout."""
    if name == "xla":
        agent = small_ppo("envpool:Pendulum-v1", model=only_noise)
    else:
        env = clock(type("Paced", (Sized if name == "async" else Background,), {"PACE": PACES[pace]}))
        agent = small_ppo(env._replace(action_space=spaces.Box(-1, 1, (2,))), num_envs=6, rollout_length=4, model=only_noise)
    sampler = SAMPLERS[name](agent, seeds := [3, 5])
    policy, each = policies(agent, seeds), [keys(seeds, n) for n in range(4)]
    rollouts = [sampler.collect(policy(n), key)[0] for n, key in enumerate(each)]
    sampler.close()
    assert_new_noise(rollouts)


@pytest.mark.parametrize("lag", [0, 1])
def test_noise_is_new_in_each_iteration(lag: int) -> None:
    """In the host loop, including its warm-up."""
    rollouts = []

    class Noted(HostSampler):
        def collect(self, policy: Any, key: Any) -> Any:
            collected = super().collect(policy, key)
            rollouts.append(collected[0])
            return collected

    env = clock()._replace(action_space=spaces.Box(-1, 1, (2,)))
    driver = HostDriver(small_ppo(env, model=only_noise, normalize_rewards=True), [3, 5], Noted, lag=lag)
    driver.iterate(driver.init(), 3)
    driver.close()
    assert len(rollouts) == 4 + lag
    assert_new_noise(rollouts)


@pytest.mark.parametrize("name", ["alternating", "async"])
def test_who_steps_in_the_background_says_so(name: str) -> None:
    agent = small_ppo("gymnasium:CartPole-v1")
    with pytest.raises(TypeError, match=rf"^sampler='{name}' needs environments that step in the background, and gymnasium:Cart"):
        SAMPLERS[name](agent, [0])
    with pytest.raises(ValueError, match=rf"^sampler='{name}' steps half of num_envs=3 at a time: use an even number"):
        jaxrl.run(small_ppo("envpool:CartPole-v1", num_envs=3, num_minibatches=1), 64, sampler=name, quiet=True)
    with pytest.raises(ValueError, match=rf"^sampler='{name}' is for environments on the host, and .* runs in JAX"):
        jaxrl.run(small_ppo(probes.truncation()), 64, sampler=name, quiet=True)


def test_a_sampler_that_is_unknown() -> None:
    with pytest.raises(ValueError, match=r"^unknown sampler 'alternate'\. Did you mean 'alternating'"):
        jaxrl.run(small_ppo("envpool:CartPole-v1"), 64, sampler="alternate", quiet=True)


def test_a_limit_that_only_jaxrl_knows_is_refused_where_rows_come_as_they_are_ready() -> None:
    agent = small_ppo(clock(Background, max_episode_steps=3))
    sampler = AsyncSampler(agent, 0)
    with pytest.raises(RuntimeError, match=r"^clock: an episode continued past max_episode_steps=3, and sampler='async' cannot"):
        sampler.collect(agent.algorithm.policy(agent.init(jax.random.key(0)).learner), jax.random.key(0))


@pytest.mark.slow
def test_a_run_says_by_whom_it_is_sampled(tmp_path: Any) -> None:
    """It resumes with that sampler. The states are those of the plain loop."""
    agent, settings = small_ppo("envpool:CartPole-v1"), {"quiet": True, "tensorboard": False, "eval_every": 0}
    states, history = jaxrl.run(agent, 64, sampler="alternating", out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    losses = jax.eval_shape(agent.algorithm.update, *jax.eval_shape(functools.partial(example, agent), jax.random.key(0)))[1]
    episodes = {name for name in history if name.startswith(("charts/episodic", "charts/valid"))}
    assert {name for name in history if "/" in name and "evaluation" not in name} == {*losses, *episodes, *LOGGED}
    shares = sum(history[f"time/{part}"] for part in PARTS)
    assert (shares > 0).all() and (shares <= 1).all() and (history["charts/updates_per_second"] > 0).all()
    assert (history["charts/policy_lag"] == 0).all() and (history["charts/policy_lag_max"] == 0).all()
    np.testing.assert_allclose(history["charts/replay_ratio"], agent.spec["settings"]["num_epochs"])
    plain, _ = jaxrl.run(agent, 64, **settings)  # type: ignore[arg-type]
    assert_bit_equal(states, plain)
    with pytest.raises(FileExistsError, match=r'run\.sampler is "alternating" there and null here'):
        jaxrl.run(agent, 64, out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    states, _ = jaxrl.resume(tmp_path / "run", total_steps=96, quiet=True)
    assert states.iteration.tolist() == [3]


# ---------------------------------------------------------------------------------------------------- collecting while learning


class Recorded(HostSampler):
    """Records which parameters act."""

    versions: ClassVar[list[list[int]]] = []

    def collect(self, policy: Any, key: Any) -> Any:
        self.versions.append(np.asarray(policy.version).tolist())
        return super().collect(policy, key)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_collecting_while_learning_is_one_update_late(algorithm: str) -> None:
    """For all divisions into calls of ``iterate``.

    The first rollout is not late, and the first update is the same as without overlap.
    """
    agent = small(algorithm, suited(algorithm, hosted(probes.truncation(5))))
    ends = []
    for calls in ([5], [1, 3, 1]):
        Recorded.versions.clear()
        driver = HostDriver(agent, [3, 5], Recorded, lag=1)
        states, metrics = driver.init(), []
        for iterations in calls:
            states, new, _ = driver.iterate(states, iterations)
            metrics.append(new)
        driver.close()
        warm = agent.algorithm.warmup_iterations
        assert Recorded.versions[warm:] == [[0, 0], *([n, n] for n in range(5))]  # the last one is not used
        lag = merged(metrics)[LAG]
        np.testing.assert_array_equal(lag.sum / lag.count, [4 / 5] * 2)
        np.testing.assert_array_equal(merged(metrics)[MOST_LAG].value, [1, 1])
        ends.append(states)
    assert_bit_equal(*ends)
    if algorithm == "ppo":
        late, plain = HostDriver(agent, [3], lag=1), HostDriver(agent, [3])
        assert_bit_equal(*(driver.iterate(driver.init(), 1)[0] for driver in (late, plain)))
        late.close()


def merged(metrics: list[Any]) -> Any:
    return functools.reduce(merge, metrics)


def test_what_goes_wrong_while_learning_is_told() -> None:
    """The environments are closed."""
    closed = []

    class Broken(Clock):
        def step(self, action: Any) -> HostStep:
            if self.time[0] == 20:
                raise OverflowError("in the world")
            return super().step(action)

        def close(self) -> None:
            closed.append(True)

    driver = HostDriver(small_ppo(clock(Broken)), [0], lag=1)
    with pytest.raises(OverflowError, match="in the world"):
        driver.iterate(driver.init(), 5)
    driver.close()
    assert closed == [True]


def test_which_algorithms_learn_from_what_is_late() -> None:
    takes = {name: small(name, suited(name, probes.truncation())).algorithm.tolerates_lag for name in PLAYING}
    replay = {name for name in PLAYING if small(name, suited(name, probes.truncation())).algorithm.buffers}
    assert {name for name, late in takes.items() if late} >= {"ppo", "impala", *replay} >= {"ppo", "impala", "dqn", "sac"}
    assert not any(takes[name] for name in ("a2c", "reinforce", "pqn"))


def test_overlap_is_refused_where_it_would_be_wrong() -> None:
    with pytest.raises(
        ValueError, match=r"^overlap=True collects with parameters that are one update old, and A2C does not correct"
    ):
        jaxrl.run(small("a2c", clock()), 64, overlap=True, quiet=True)
    with pytest.raises(ValueError, match=r"^overlap=True is for environments on the host, and .* runs in JAX: leave overlap out"):
        jaxrl.run(small_ppo(probes.truncation()), 64, overlap=True, quiet=True)
    with pytest.raises(TypeError, match="overlap='yes'"):
        jaxrl.run(small_ppo(clock()), 64, overlap="yes", quiet=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["a2c", "reinforce", "pqn"])
def test_rows_ahead_are_refused_where_they_would_be_wrong(algorithm: str) -> None:
    agent = small(algorithm, "envpool:CartPole-v1")
    with pytest.raises(
        ValueError, match=r"^sampler='async' begins rollouts with older parameters, and .* does not correct for stale data"
    ):
        jaxrl.run(agent, 64, sampler="async", quiet=True)


def test_a_part_of_the_environments_needs_first_id() -> None:
    agent = small_ppo(clock())
    HostSampler(agent, 0)
    with pytest.raises(TypeError, match=r"^clock: environments 2 to 3 cannot be opened apart from the others: let open take"):
        HostSampler(agent, 0, 2, 2)
