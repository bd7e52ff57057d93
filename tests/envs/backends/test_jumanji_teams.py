"""Environments of several agents of jumanji: spaces of one agent, what agents share, and agents that end alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.envs import check_env, make_env
from jaxrl.envs.backends import jumanji as backend
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.checks.space_problems import mask_problems
from jaxrl.envs.checks.validate import find_problems
from jaxrl.types import Env

jumanji = pytest.importorskip("jumanji")


def pure(name: str) -> Env:
    env = make_env(f"jumanji:{name}")
    assert isinstance(env, Env)
    return env


@pytest.mark.parametrize(
    ("name", "agents", "actions", "parts"),
    [
        ("LevelBasedForaging-v0", 2, 6, {"agents_view": (12,), "step_count": ()}),
        ("RobotWarehouse-v0", 4, 5, {"agents_view": (66,), "step_count": ()}),
        ("Cleaner-v0", 3, 4, {"agent_id": (), "agents_locations": (3, 2), "grid": (10, 10), "step_count": ()}),
        ("Connector-v3", 10, 5, {"agent_id": (), "grid": (10, 10), "step_count": ()}),
    ],
)
def test_spaces_are_those_of_one_agent(name: str, agents: int, actions: int, parts: dict[str, Any]) -> None:
    env = pure(name)
    assert (env.num_agents, env.action_space) == (agents, spaces.Discrete(actions))
    assert not find_problems(env) and not mask_problems(env)
    assert isinstance(env.observation_space, spaces.Dict)
    shapes = {part: space.shape for part, space in env.observation_space.items()}
    assert shapes == parts | {"action_mask": (actions,)}
    assert "agent_id" not in parts or env.observation_space["agent_id"] == spaces.Discrete(agents)


def test_records_in_records_and_actions_without_a_mask() -> None:
    """MultiCVRP's bounds of an action have one action more than its mask."""
    routing, rescue = pure("MultiCVRP-v0"), pure("SearchAndRescue-v0")
    assert routing.action_space == spaces.Discrete(21) and routing.num_agents == 2
    assert isinstance(routing.observation_space, spaces.Dict)
    assert routing.observation_space["nodes"]["coordinates"].shape == (21, 2)  # type: ignore[index]
    assert rescue.action_space == spaces.Box(-1, 1, (2,), np.float32)
    assert isinstance(rescue.observation_space, spaces.Dict)
    assert rescue.observation_space["searcher_views"].shape == (3, 128) and "agent_id" not in rescue.observation_space.spaces
    assert not find_problems(routing) and not find_problems(rescue)


def test_one_agent_can_act_for_all() -> None:
    env = pure("RobotWarehouse-v0?joint=True")
    assert (env.num_agents, env.action_space) == (0, spaces.MultiDiscrete([5] * 4))
    assert not find_problems(env) and not mask_problems(env)
    for name in ("LevelBasedForaging-v0", "Snake-v1"):
        with pytest.raises(ValueError, match=f"jumanji:{name} has no option 'joint'"):
            pure(f"{name}?joint=True")
    with pytest.raises(ValueError, match="joint=1 must be True or False"):
        pure("RobotWarehouse-v0?joint=1")


def test_rewards_of_agents_that_do_not_act_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = SimpleNamespace(reward_spec=SimpleNamespace(shape=(3,)), action_spec=SimpleNamespace(shape=(2,)))
    monkeypatch.setattr(jumanji, "make", lambda name, **options: task)
    with pytest.raises(ValueError, match=r"jumanji:Snake-v1 has rewards \[3\] and actions \[2\]"):
        backend.make("Snake-v1", {})


# ------------------------------------------------------------------------------------------------------------ a team by hand


class Seen(NamedTuple):
    agents_view: Any
    clock: Any
    action_mask: Any


class Two:
    """Two agents, of which the first ends after two rows, and the second is cut after four. Agent i gets i + its action, and
    sees 10·i + t."""

    observation_spec = jumanji.specs.Spec(
        Seen,
        "ObservationSpec",
        agents_view=jumanji.specs.BoundedArray((2, 1), np.float32, 0.0, 99.0, "agents_view"),
        clock=jumanji.specs.BoundedArray((), np.int32, 0, 9, "clock"),
        action_mask=jumanji.specs.BoundedArray((2, 3), bool, False, True, "action_mask"),
    )
    action_spec = jumanji.specs.MultiDiscreteArray(jnp.array([3, 3]), name="action")

    def seen(self, time: Any) -> Seen:
        mask = jnp.array([[True, True, True], [True, True, False]])
        return Seen(jnp.array([[0.0], [10.0]]) + time, jnp.asarray(time, jnp.int32), mask)

    def reset(self, key: Any) -> Any:
        return jnp.zeros((), jnp.int32), jumanji.types.restart(self.seen(0), shape=2)

    def step(self, state: Any, action: Any) -> Any:
        time = state + 1
        reward = jnp.arange(2.0) + action
        discount = jnp.array([time < 2, True], jnp.float32)
        kind = jnp.where(time >= 4, jumanji.types.StepType.LAST, jumanji.types.StepType.MID)
        return time, jumanji.types.TimeStep(
            step_type=kind, reward=reward, discount=discount, observation=self.seen(time), extras={}
        )


def test_rows_of_a_team() -> None:
    env = backend._team(Two(), 2)
    assert not find_problems(env)

    def play(key: Any) -> Any:
        state, first = env.reset(key, ())
        return first, jax.lax.scan(lambda state, _: env.step(key, state, jnp.array([2, 1]), ()), state, None, 4)[1]

    first, reached = jax.device_get(jax.jit(play, compiler_options=COMPILE_FAST)(jax.random.key(0)))
    assert {name: x.tolist() for name, x in first.items()} == {
        "agents_view": [[0], [10]],
        "clock": [0, 0],
        "action_mask": [[1, 1, 1], [1, 1, 0]],
    }
    assert reached.reward.dtype == np.float32 and reached.reward.tolist() == [[2, 2]] * 4
    np.testing.assert_array_equal(reached.terminated, np.array([[0, 0], [1, 0], [1, 0], [1, 0]], bool))
    np.testing.assert_array_equal(reached.truncated, np.array([[0, 0], [0, 0], [0, 0], [0, 1]], bool))
    np.testing.assert_array_equal(reached.obs["agents_view"][:, :, 0], [[1, 11], [2, 12], [3, 13], [4, 14]])


class Shared(NamedTuple):
    clock: Any
    action_mask: Any


class Blind(Two):
    """Two agents that see the same."""

    observation_spec = jumanji.specs.Spec(
        Shared, "ObservationSpec", **{name: vars(Two.observation_spec)[name] for name in ("clock", "action_mask")}
    )

    def seen(self, time: Any) -> Any:
        return Shared(*super().seen(time)[1:])


def test_agents_that_see_the_same_know_their_number() -> None:
    env = backend._team(Blind(), 2)
    assert not find_problems(env)
    _, obs = env.reset(jax.random.key(0), ())
    assert {name: x.tolist() for name, x in obs.items()} == {
        "agent_id": [0, 1],
        "clock": [0, 0],
        "action_mask": [[1, 1, 1], [1, 1, 0]],
    }


@pytest.mark.slow
def test_ppo_trains_a_team() -> None:
    env = backend._team(Two(), 2)
    agent = jaxrl.make_ppo(env, num_envs=2, rollout_length=10, num_minibatches=1, num_epochs=1, model={"hidden_sizes": (4,)})
    states, history = jaxrl.run(agent, 2 * agent.steps_per_iteration, seeds=2, eval_episodes=2, quiet=True)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states.learner.params))
    lengths = history["charts/episodic_length"][1:]
    np.testing.assert_allclose(lengths, 3)  # 2 and 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LevelBasedForaging-v0", "Connector-v3", "RobotWarehouse-v0", "Cleaner-v0"])
def test_check_env_accepts_real_ones(name: str) -> None:
    check_env(pure(f"{name}?time_limit=4"), steps=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LevelBasedForaging-v0", "Connector-v3"])
def test_rows_are_jumanjis(name: str) -> None:
    """With actions at random among those that the mask allows, up to the end."""
    env, task = pure(f"{name}?time_limit=12"), jumanji.make(name, time_limit=12)
    ours, theirs = (jax.jit(step, compiler_options=COMPILE_FAST) for step in (env.step, task.step))
    key = jax.random.key(3)
    state, obs = env.reset(key, ())
    raw, reached = task.reset(key)
    rng = np.random.default_rng(0)
    for _ in range(12):
        np.testing.assert_array_equal(obs["action_mask"], reached.observation.action_mask)
        action = np.array([rng.choice(np.flatnonzero(mask)) for mask in np.asarray(obs["action_mask"])], np.int32)
        state, row = ours(key, state, action, ())
        raw, reached = theirs(raw, action)
        obs = row.obs
        np.testing.assert_array_equal(row.reward, reached.reward)
        np.testing.assert_array_equal(row.terminated, reached.discount == 0)
    assert row.truncated.any() or row.terminated.all()
