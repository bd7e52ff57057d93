"""JaxMARL's environments as pure ones: rows of agents that end alone, time limits, masks and unequal spaces, on stand-ins with
JaxMARL's interface; and the package itself where it is installed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import envs
from jaxrl.envs import check_env, family_of, list_envs, make_env
from jaxrl.envs.backends import jaxmarl as backend
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.checks.space_problems import mask_problems
from jaxrl.envs.checks.validate import find_problems
from jaxrl.types import Env

real = pytest.mark.skipif(
    importlib.util.find_spec("jaxmarl") is None, reason='jaxmarl is not installed: pip install "jaxrl[jaxmarl]"'
)


class Discrete:
    def __init__(self, n: int) -> None:
        self.n, self.shape, self.dtype = n, (), jnp.int32


class Box:
    def __init__(self, low: Any, high: Any, shape: Any) -> None:
        self.low, self.high, self.shape, self.dtype = low, high, shape, jnp.float32


class Dict:
    shape = ()


class State(NamedTuple):
    step: Any
    drawn: Any
    info: Any = ()


class Base:
    """As JaxMARL's ``MultiAgentEnv``, without its ``step``, which resets automatically."""

    def __init__(self, num_agents: int = 2) -> None:
        self.num_agents = num_agents

    def get_avail_actions(self, state: State) -> Any:
        raise NotImplementedError


class Race(Base):
    """Ann ends at row 1. Bob gets 10 + t + action in row t. ``max_steps`` ends all, with a ``done`` as JaxMARL's."""

    def __init__(self, max_steps: int = 3, speed: float = 1.0, scenario: Any = None, table: Any = (), **more: Any) -> None:
        super().__init__(**more)
        self.agents, self.max_steps, self.speed = ["ann", "bob"], max_steps, speed

    def observation_space(self, agent: str) -> Any:
        return Box(-jnp.inf, jnp.inf, 3)  # Hanabi's shape is a number, too

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def seen(self, state: State) -> Any:
        left = self.max_steps - state.step if type(self).__name__ == "Overcooked" else 0
        return {agent: jnp.stack([state.step, i, left]).astype(jnp.float32) for i, agent in enumerate(self.agents)}

    def reset(self, key: Any) -> Any:
        state = State(jnp.zeros((), jnp.int32), jax.random.uniform(key))
        return self.seen(state), state

    def ended(self, state: State) -> Any:
        return {"ann": state.step >= 1, "__all__": state.step >= self.max_steps}

    def step_env(self, key: Any, state: State, actions: Any) -> Any:
        state = state._replace(step=state.step + 1)
        rewards = {a: 10.0 * i + state.step + jnp.float32(actions[a]) for i, a in enumerate(self.agents)}
        return self.seen(state), state, rewards, self.ended(state), {"other": 1}


class Overcooked(Race):
    """Observes the rows that are left. Both agents end at row 2 if the draw is below ``luck``."""

    luck = 0.0

    def ended(self, state: State) -> Any:
        done = (state.step >= self.max_steps) | ((state.step >= 2) & (state.drawn < self.luck))
        return {"ann": done, "bob": done, "__all__": done}


class Masked(Race):
    def get_avail_actions(self, state: State) -> Any:
        return {agent: jnp.array([True, agent == "ann"]) for agent in self.agents}

    def get_world_state(self, state: State) -> Any:
        return jnp.stack([state.step, 7])


class Unequal(Masked):
    """Bob has three actions and observes one number."""

    def observation_space(self, agent: str) -> Any:
        return Box(0.0, 9.0, (1,)) if agent == "bob" else Box(0.0, 9.0, (2,))

    def action_space(self, agent: str) -> Any:
        return Discrete(3 if agent == "bob" else 2)

    def seen(self, state: State) -> Any:
        return {"ann": jnp.stack([state.step, 1]).astype(jnp.float32), "bob": jnp.atleast_1d(state.step).astype(jnp.float32)}

    def get_avail_actions(self, state: State) -> Any:
        return {"ann": jnp.array([True, False]), "bob": jnp.array([False, True, True])}


class Places(Race):
    """Observes the row as a choice."""

    def observation_space(self, agent: str) -> Any:
        return Discrete(9)

    def seen(self, state: State) -> Any:
        return dict.fromkeys(self.agents, state.step)


class Physics(Race):
    """Its state tells that an end is a truncation, as that of MABrax does."""

    def __init__(self, auto_reset: bool = True, episode_length: int = 4) -> None:
        super().__init__()
        assert not auto_reset or episode_length == 4
        self.auto_reset, self.length = auto_reset, episode_length
        del self.max_steps

    def reset(self, key: Any) -> Any:
        state = State(jnp.zeros((), jnp.int32), jnp.zeros(()), {"truncation": jnp.zeros(())})
        return self.seen(state), state

    def seen(self, state: State) -> Any:
        return {agent: jnp.full(3, state.step, jnp.float32) for agent in self.agents}

    def step_env(self, key: Any, state: State, actions: Any) -> Any:
        obs, state, rewards, _, info = super().step_env(key, state, actions)
        cut = (state.step >= self.length).astype(jnp.float32)
        return obs, state._replace(info={"truncation": cut}), rewards, {"__all__": cut > 0}, info

    def ended(self, state: State) -> Any:
        return {}


class Nested(Race):
    def observation_space(self, agent: str) -> Any:
        return Dict()


def played(env: Env, rows: int, action: Any = (1, 0)) -> Any:
    """Return the first observations, and rows of one constant action."""

    def play(key: Any) -> Any:
        state, first = env.reset(key, ())
        return first, jax.lax.scan(lambda state, _: env.step(key, state, jnp.array(action), ()), state, None, rows)[1]

    return jax.device_get(jax.jit(play, compiler_options=COMPILE_FAST)(jax.random.key(0)))


def test_rows_of_an_agent_that_ends_alone() -> None:
    env = backend.team_of("race", Race())
    assert (env.num_agents, env.max_episode_steps, env.action_space) == (2, 3, spaces.Discrete(2))
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    first, reached = played(env, 4)
    assert first.tolist() == [[0, 0, 0], [0, 1, 0]]
    assert reached.reward.tolist() == [[2, 11], [3, 12], [4, 13], [5, 14]] and reached.reward.dtype == np.float32
    np.testing.assert_array_equal(reached.terminated, np.array([[1, 0]] * 4, bool))  # max_steps is jaxrl's limit
    assert not reached.truncated.any() and reached.info == {}
    assert reached.obs[:, :, 0].tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]


def test_a_time_limit_that_observations_show_stays() -> None:
    """All agents that end in its last row are truncated; those that end earlier terminate."""
    task = Overcooked()
    env = backend.team_of("kitchen", task)
    assert task.max_steps == env.max_episode_steps == 3
    first, reached = played(env, 3)
    assert first[:, 2].tolist() == [3, 3] and reached.obs[:, 0, 2].tolist() == [2, 1, 0]
    assert not reached.terminated.any() and reached.truncated.tolist() == [[False] * 2] * 2 + [[True] * 2]
    task = Overcooked()
    task.luck = 2.0
    _, reached = played(backend.team_of("kitchen", task), 2)
    assert reached.terminated.tolist() == [[False] * 2, [True] * 2] and not reached.truncated.any()


def test_an_end_that_the_state_calls_a_truncation_is_one() -> None:
    _, reached = played(backend.team_of("physics", Physics(auto_reset=False)), 4)
    assert not reached.terminated.any() and reached.truncated.tolist() == [[False] * 2] * 3 + [[True] * 2]


def test_masks_and_the_state_of_the_world() -> None:
    env = backend.team_of("masked", Masked(), world_state=True)
    assert isinstance(env.observation_space, spaces.Dict)
    assert env.observation_space["action_mask"] == spaces.MultiBinary(2)
    assert env.observation_space["privileged_state"].shape == (2,)
    assert not find_problems(env) and not mask_problems(env)
    _, reached = played(env, 1)
    assert reached.obs["action_mask"].tolist() == [[[1, 1], [1, 0]]]
    assert reached.obs["privileged_state"].tolist() == [[[1, 7], [1, 7]]]
    with pytest.raises(ValueError, match="race has no get_world_state: leave world_state out"):
        backend.team_of("race", Race(), world_state=True)


def test_unequal_agents_are_padded() -> None:
    env = backend.team_of("unequal", Unequal(), world_state=True)
    assert env.action_space == spaces.Discrete(3) and not find_problems(env) and not mask_problems(env)
    first, reached = played(env, 1, (0, 2))
    assert first["observation"].tolist() == [[0, 1], [0, 0]] and first["agent_id"].tolist() == [0, 1]
    assert first["action_mask"].tolist() == [[1, 0, 0], [0, 1, 1]]
    assert reached.reward.tolist() == [[1, 13]]
    plain = backend.team_of("unequal", Unequal(), agent_id=False).observation_space
    assert isinstance(plain, spaces.Dict) and {*plain} == {"observation", "action_mask"}
    numbered = backend.team_of("race", Race(), agent_id=True)
    assert played(numbered, 1)[0]["agent_id"].tolist() == [0, 1]
    places = backend.team_of("places", Places(), agent_id=True)
    assert places.observation_space == spaces.Dict({"observation": spaces.Discrete(9), "agent_id": spaces.Discrete(2)})
    assert not find_problems(places)


def test_other_spaces_are_refused() -> None:
    with pytest.raises(
        ValueError, match="nested: agent 'ann' has a space Dict, but jaxrl supports Box, Discrete and MultiDiscrete"
    ):
        backend.team_of("nested", Nested())


def test_check_env_accepts_one() -> None:
    check_env(backend.team_of("race", Race()), steps=6)


def test_ppo_trains_a_team() -> None:
    env = backend.team_of("race", Race())
    agent = jaxrl.make_ppo(env, num_envs=2, rollout_length=8, num_minibatches=1, num_epochs=1, model={"hidden_sizes": (4,)})
    states, history = jaxrl.run(agent, 2 * agent.steps_per_iteration, seeds=2, eval_episodes=2, quiet=True)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states.learner.params))
    np.testing.assert_allclose(history["charts/episodic_length"][1:], 2)  # 1 and 3


# --------------------------------------------------------------------------------------------------------------- names, options


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package jaxmarl with one environment."""
    module: Any = types.ModuleType("jaxmarl")
    module.__spec__ = importlib.machinery.ModuleSpec("jaxmarl", None)
    kinds = {"switch_riddle": Race, "ant_4x2": Physics, "humanoid_9|8": Physics}
    module.make = lambda name, **options: kinds[name](**options)
    smax = types.ModuleType("jaxmarl.environments.smax.smax_env")
    smax.MAP_NAME_TO_SCENARIO = {"2s3z": (5, 5)}  # type: ignore[attr-defined]
    monkeypatch.setattr(envs, "_MADE", {})
    monkeypatch.setitem(sys.modules, "jaxmarl", module)
    monkeypatch.setitem(sys.modules, "jaxmarl.environments.smax.smax_env", smax)


@pytest.mark.usefixtures("stand_in")
def test_options() -> None:
    def made(name: str, **options: Any) -> Env:
        return backend.make(name, options)

    assert made("switch_riddle", max_steps=5).max_episode_steps == 5
    assert made("switch_riddle", scenario="2s3z", num_agents=2, agent_id=True).observation_space["agent_id"].n == 2  # type: ignore[index]
    assert played(made("humanoid_9%7C8", episode_length=2), 2)[1].truncated.tolist() == [[False] * 2, [True] * 2]
    for name, options, message in (
        ("switch_ridle", {}, "jaxmarl has no environment 'switch_ridle'. Did you mean 'switch_riddle'"),
        ("switch_riddle", {"max_step": 5}, "no option 'max_step'. Did you mean 'max_steps'"),
        ("switch_riddle", {"max_steps": 0}, r"max_steps=0 must be an integer >= 1 \(its default is 3\)"),
        ("switch_riddle", {"table": [1]}, "no option 'table'"),  # no plain data
        ("switch_riddle", {"agent_id": 3}, "agent_id=3 must be True or False"),
        ("switch_riddle", {"world_state": 3}, "world_state=3 must be True or False"),
        ("switch_riddle", {"world_state": True}, "jaxmarl:switch_riddle has no get_world_state"),
        ("switch_riddle", {"scenario": "2s3y"}, "scenario='2s3y' does not exist. Did you mean '2s3z'.* There are: 2s3z"),
        ("ant_4x2", {"auto_reset": True}, "no option 'auto_reset'"),
        ("switch_riddle", {"num_agents": 2, "speed": "fast"}, "speed='fast' must be a number"),
    ):
        with pytest.raises(ValueError, match=message):
            made(name, **options)


@pytest.mark.usefixtures("stand_in")
def test_names_and_families() -> None:
    listed = list_envs("jaxmarl")
    assert "jaxmarl:MPE_simple_spread_v3" in listed and len(listed) == 26
    families = {name: family_of(f"jaxmarl:{name}") for name in ("MPE_simple_v3", "SMAX", "overcooked_v2", "hopper_3x1")}
    assert families == {"MPE_simple_v3": "MPE", "SMAX": "SMAX", "overcooked_v2": "others", "hopper_3x1": "MABrax"}
    assert make_env("jaxmarl:switch_riddle?max_steps=4").name == "jaxmarl:switch_riddle?max_steps=4"


def test_what_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs the package jaxmarl.*pip install "jaxrl\[jaxmarl\]"'):
        backend.make("SMAX", {})


# ------------------------------------------------------------------------------------------------------------- the package itself


@real
@pytest.mark.slow
@pytest.mark.parametrize("name", ["MPE_simple_spread_v3", "MPE_simple_speaker_listener_v4", "switch_riddle"])
def test_check_env_accepts_real_ones(name: str) -> None:
    env = make_env(f"jaxmarl:{name}")
    assert env.max_episode_steps == (6 if name == "switch_riddle" else 25)
    check_env(env, steps=4)


@real
@pytest.mark.slow
def test_all_names_are_those_of_the_package() -> None:
    import jaxmarl

    assert {name.replace("%7C", "|") for name in backend.NAMES} <= {*jaxmarl.registered_envs}
    for name in ("hanabi", "HeuristicEnemySMAX", "coin_game", "overcooked"):
        env = make_env(f"jaxmarl:{name}")
        assert not find_problems(env) and not mask_problems(env)


@real
@pytest.mark.slow
def test_rows_are_those_of_the_package() -> None:
    import jaxmarl

    task, env = jaxmarl.make("MPE_simple_spread_v3"), make_env("jaxmarl:MPE_simple_spread_v3")
    assert isinstance(env, Env)
    key = jax.random.key(0)
    obs, raw = task.reset(key)
    state, ours = env.reset(key, ())
    np.testing.assert_allclose(ours, np.stack([obs[agent] for agent in task.agents]), rtol=1e-6)
    for t in range(3):
        action = jnp.array([t, 1, 4], jnp.int32)
        obs, raw, rewards, _, _ = task.step_env(key, raw, dict(zip(task.agents, action, strict=True)))
        state, row = env.step(key, state, action, ())
        np.testing.assert_allclose(row.obs, np.stack([obs[agent] for agent in task.agents]), rtol=1e-6)
        np.testing.assert_allclose(row.reward, np.stack([rewards[agent] for agent in task.agents]), rtol=1e-6)
