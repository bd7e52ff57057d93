"""Several agents are lanes: an environment resets when all are over, and the rows of those that wait do not count."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.rollout.agents import as_lanes, by_agent, environment_of, lanes_of
from jaxrl.rollout.collect import init_actor
from jaxrl.runtime.samplers.population import MemberPlayer
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.training import evaluate_pure
from jaxrl.types import Env
from tests.helpers.agents import LEARN_ANYWHERE, algorithms, small
from tests.helpers.hosted import hosted
from tests.helpers.teams import copies, mortal, without_chance

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
KEY = partial(jax.random.key, 0)
PPO = {"rollout_length": 8, "num_minibatches": 2, "num_epochs": 2, "model": {"hidden_sizes": (8,)}}


def test_lanes_and_agents() -> None:
    for xp in (np, jnp):
        rows = xp.arange(12).reshape(2, 3, 2)
        lanes = as_lanes({"a": rows}, 3)
        assert lanes["a"].shape == (6, 2) and (by_agent(lanes, 3)["a"] == rows).all()
        assert environment_of(xp.arange(6, 12), 3).tolist() == [2, 3] and lanes_of(xp.array([2, 3]), 3).tolist() == [
            *range(6, 12)
        ]
        assert environment_of(xp.arange(3), 0).tolist() == lanes_of(xp.arange(3), 0).tolist() == [0, 1, 2]


def test_a_team_of_copies_learns_as_so_many_environments() -> None:
    """PPO on N environments of A agents, whose episodes have equal lengths, equals PPO on N · A environments."""
    alone = jaxrl.make_env("Pendulum-v1")
    assert isinstance(alone, Env)
    alone = without_chance(alone, 5)
    one, many = jaxrl.make_ppo(alone, num_envs=6, **PPO), jaxrl.make_ppo(copies(alone, 3), num_envs=2, **PPO)
    assert (many.num_envs, many.num_lanes, many.steps_per_iteration) == (2, 6, 16)
    states = [agent.init(KEY()) for agent in (one, many)]
    for _ in range(2):
        results = [jit(agent.step)(state) for agent, state in zip((one, many), states, strict=True)]
        states = [state for state, _ in results]
    expected, found = ((state.learner._replace(key=()), state.actor._replace(env_state=())) for state in states)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)
    metrics, team = (metrics for _, metrics in results)
    assert set(team) - set(metrics) == {"charts/team_return"}
    assert float(team["charts/episodic_return"]) == pytest.approx(float(metrics["charts/episodic_return"]), rel=1e-5)
    assert float(team["charts/team_return"]) == pytest.approx(3 * float(metrics["charts/episodic_return"]), rel=1e-5)
    assert np.asarray(team["charts/valid_rows"].count).item() == 16
    assert float(team["charts/valid_rows"]) == pytest.approx(float(metrics["charts/valid_rows"]))


def rollout_of(env: Env, rows: int, num_envs: int = 2) -> Any:
    agent = jaxrl.make_ppo(env, num_envs=num_envs, rollout_length=rows, num_minibatches=1, model={"hidden_sizes": (4,)})
    state = agent.init(KEY())
    from jaxrl.rollout.collect import collect

    lanes = jnp.arange(agent.num_lanes, dtype=jnp.int32)
    policy = agent.algorithm.policy(state.learner)
    return jit(lambda actor: collect(agent.algorithm, env, policy, actor, (), lanes, KEY(), rows))(state.actor)


def test_rows_of_agents_that_end_one_after_another() -> None:
    """Lives 1, 3, 2: three rows of the episode, a row for the reset, and so on."""
    actor, rollout, metrics = rollout_of(mortal(), 9)
    valid = np.asarray(rollout.valid).reshape(9, 2, 3)
    lives = [[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0]]
    np.testing.assert_array_equal(valid, np.repeat(np.array(lives * 2 + lives[:1], bool)[:, None], 2, 1))
    ends = [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]]
    np.testing.assert_array_equal(rollout.terminated.reshape(9, 2, 3)[:, 0], np.array(ends * 2 + ends[:1], bool))
    assert not rollout.truncated.any()
    rewards = [[1, 11, 21], [0, 12, 22], [0, 13, 0], [0, 0, 0]]
    np.testing.assert_array_equal(rollout.reward.reshape(9, 2, 3)[:, 1], rewards * 2 + rewards[:1])
    first = np.asarray(rollout.inputs.is_first).reshape(10, 2, 3)
    np.testing.assert_array_equal(first, np.isin(np.arange(10), [0, 4, 8])[:, None, None] & np.ones((10, 2, 3), bool))
    time, agent, episode = np.moveaxis(np.asarray(rollout.inputs.obs).reshape(10, 2, 3, 3), -1, 0)
    np.testing.assert_array_equal(time[:, 0, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(agent, np.broadcast_to(np.arange(3), (10, 2, 3)))
    assert len({*episode.ravel().tolist()}) == 6 and (episode == episode[..., :1]).all()  # all agents begin anew together
    np.testing.assert_array_equal(rollout.env_id, np.arange(6))
    np.testing.assert_array_equal(rollout.info["time"].reshape(9, 2, 3)[:3, 0, 2], [1, 2, 3])
    assert actor.done.reshape(2, 3).tolist() == [[True, False, False]] * 2
    # Returns: 1; 11 + 12 + 13; 21 + 22. Two episodes each in two environments, and one more of the first agent.
    assert float(metrics["charts/team_return"]) == 1 + 36 + 43
    assert float(metrics["charts/episodic_return"]) == pytest.approx((4 * 80 + 2 * 1) / 14)
    assert float(metrics["charts/episodic_return_max"]) == 43 and float(metrics["charts/episodic_return_min"]) == 1
    assert float(metrics["charts/episodic_length"]) == pytest.approx((4 * 6 + 2 * 1) / 14)
    assert [int(x) for x in metrics["charts/valid_rows"]] == [2 * 7, 2 * 9]


def test_an_agent_may_be_truncated_alone() -> None:
    _, rollout, _ = rollout_of(mortal((2, 2), truncates=(True, False)), 3, 1)
    np.testing.assert_array_equal(rollout.truncated, [[0, 0], [1, 0], [0, 0]])
    np.testing.assert_array_equal(rollout.terminated, [[0, 0], [0, 1], [0, 0]])


def test_a_time_limit_ends_all_that_live() -> None:
    _, rollout, metrics = rollout_of(mortal((1, 9))._replace(max_episode_steps=3), 5, 1)
    np.testing.assert_array_equal(rollout.terminated[:, 0], [1, 0, 0, 0, 1])
    np.testing.assert_array_equal(rollout.truncated, [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0]])
    assert float(metrics["charts/team_return"]) == 1 + 11 + 12 + 13


def test_flags_may_be_those_of_all_agents() -> None:
    env = mortal((2, 2))

    def step(*args: Any) -> Any:
        state, reached = env.step(*args)
        return state, reached._replace(terminated=reached.terminated[0], truncated=jnp.zeros((), bool))

    found, expected = (rollout_of(each, 7)[1] for each in (env._replace(step=step), env))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_evaluation_plays_until_all_are_over() -> None:
    agent = jaxrl.make_ppo(mortal(), **PPO)
    played = jit(lambda state: evaluate_pure(agent, state, KEY(), 4))(agent.init(KEY()))
    np.testing.assert_allclose(played.episodic_return, [80 / 3] * 4, rtol=1e-6)  # the mean over agents
    assert played.episodic_length.tolist() == [3] * 4 and played.finished.all()


# ---------------------------------------------------------------------------------------------------------------------- on host


def test_rows_on_the_host_are_the_same() -> None:
    env = hosted(mortal())
    agent = jaxrl.make_ppo(env, num_envs=2, rollout_length=9, num_minibatches=1, model={"hidden_sizes": (4,)})
    _, expected, counted = rollout_of(mortal(), 9)
    sampler = HostSampler(agent, 0)
    policy = agent.algorithm.policy(agent.init(KEY()).learner)
    rollout, metrics = sampler.collect(policy, KEY())
    sampler.close()
    for name in ("reward", "terminated", "truncated", "valid", "env_id", "info"):
        jax.tree.map(np.testing.assert_array_equal, getattr(rollout, name), getattr(expected, name))
    np.testing.assert_array_equal(rollout.inputs.is_first, expected.inputs.is_first)
    np.testing.assert_array_equal(rollout.inputs.obs[..., :2], expected.inputs.obs[..., :2])
    assert {name: float(x) for name, x in metrics.items()} == {name: float(x) for name, x in counted.items()}


# ----------------------------------------------------------------------------------------------------------------------- learning


@algorithms(("ppo",), LEARN_ANYWHERE)
def test_what_an_agent_sees_after_its_end_teaches_nothing(algorithm: str) -> None:
    learners = []
    for beyond in (0.0, 50.0):
        agent = small(algorithm, mortal(beyond=beyond))
        state = agent.init(KEY())
        step = jit(agent.step)
        for _ in range(3):
            state, _ = step(state)
        learners.append([getattr(state.learner, name) for name in ("params", "opt_state", "statistics")])
    jax.tree.map(np.testing.assert_array_equal, *learners)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(learners[0]))


# -------------------------------------------------------------------------------------------------------------------- populations

ES: dict[str, Any] = {"members": 4, "episodes": 2, "horizon": 5, "model": {"hidden_sizes": (4,)}}


def test_members_of_a_population_play_teams() -> None:
    """Lives 1, 3, 2: fitness is the mean over agents, and statistics are of the rows in which each agent lives."""
    agent = jaxrl.make_es(mortal(), **ES)
    assert agent.num_envs == 8 and agent.steps_per_iteration == 40
    state, metrics = jit(agent.step)(jit(agent.init)(KEY()))
    assert float(metrics["charts/episodic_return"]) == pytest.approx(80 / 3)
    assert float(metrics["charts/team_return"]) == pytest.approx(80)
    assert float(metrics["charts/episodic_length"]) == 3 and [int(x) for x in metrics["charts/valid_rows"]] == [24, 40]
    seen: Any = state.learner.statistics.observations
    rows = [(0, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2)]  # time and agent
    assert float(seen.count) == pytest.approx(8 * len(rows), abs=1e-3)
    np.testing.assert_allclose(seen.mean[:2], np.mean(rows, 0), rtol=1e-4)
    np.testing.assert_allclose(seen.variance[:2], np.var(rows, 0), rtol=1e-3)


def test_members_on_the_host_play_teams() -> None:
    agents = [jaxrl.make_es(env, **ES) for env in (mortal(), hosted(mortal()))]
    state, metrics = jit(agents[0].step)(jit(agents[0].init)(KEY()))
    player = MemberPlayer(agents[1])
    policy: Any = jax.tree.map(np.asarray, agents[1].algorithm.policy(jit(agents[1].init)(KEY()).learner))
    played = player.play(policy, KEY(), range(4))
    np.testing.assert_allclose(played.episodic_return, [80 / 3] * 8, rtol=1e-6)
    assert played.episodic_length.tolist() == [3] * 8 and played.moments.count.tolist() == [1, 3, 2] * 8
    learner, _ = jit(agents[1].algorithm.learn_from)(agents[1].init(KEY()).learner, played)
    found, expected = (x.statistics.observations for x in (learner, state.learner))
    np.testing.assert_allclose(found.mean[:2], expected.mean[:2], rtol=1e-5)
    assert float(metrics["charts/episodic_return"]) == pytest.approx(played.episodic_return.mean())


def test_lanes_explore_with_the_members_of_their_environment() -> None:
    agent = jaxrl.make_es("jaxrl:TwoStep", **ES | {"horizon": 2})
    state = jit(agent.init)(KEY())
    policy = agent.algorithm.policy(state.learner)
    actor = init_actor(agent.algorithm, agent.env, KEY(), jnp.arange(8), ())
    inputs: Any = jax.tree.map(lambda x: jnp.repeat(x[:1], 8, 0), actor.input)
    explored = jit(lambda lane: agent.algorithm.act(policy, (), inputs, lane, KEY(), explore=True)[1])(jnp.arange(8))
    for lane in range(8):
        member = agent.algorithm.members(policy, jnp.int32(lane // 2))
        one = jax.tree.map(lambda x: x[:1], inputs)
        assert explored[lane] == agent.algorithm.act(member, (), one, jnp.zeros(1, int), KEY(), explore=False)[1][0]


def test_a_population_learns_as_a_team() -> None:
    """Fitness is that of joint actions, so a population finds the 11 of the climbing game, which independent learners miss."""
    settings: dict[str, Any] = {"members": 64, "horizon": 1, "learning_rate": 0.1, "sigma": 0.3, "model": {"hidden_sizes": (8,)}}
    agent = jaxrl.make_es("jaxrl:MatrixGame?payoff=climbing&repeat=1|agent_id", **settings)

    def train(key: Any) -> Any:
        return jax.lax.scan(lambda state, _: agent.step(state), agent.init(key), length=60)[0]

    states = jit(jax.vmap(train))(jax.random.split(KEY(), 4))
    returns = jit(jax.vmap(lambda state: evaluate_pure(agent, state, KEY(), 1).episodic_return))(states)
    assert returns.ravel().tolist() == [11.0] * 4


@pytest.mark.parametrize("sampler", ["async", "xla"])
def test_samplers_of_one_agent(sampler: str) -> None:
    with pytest.raises(ValueError, match=f"sampler='{sampler}' is for environments of one agent, and hosted:mortal has 3"):
        jaxrl.run(small("ppo", hosted(mortal())), 64, sampler=sampler, quiet=True)
