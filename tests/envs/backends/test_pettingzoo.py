"""PettingZoo's environments as host environments of several agents: rows of agents that end one after another, masks, spaces,
workers, and what is refused."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.envs import check_env, describe_env, family_of, list_envs, make_env, reach_of, runs_on_host
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.subprocess.processes import WorkerRestarted
from jaxrl.models import actor_critic, per_agent
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.types import HostEnv

pytest.importorskip("pettingzoo")
pettingzoo_envs = importlib.import_module("tests.helpers.pettingzoo_envs")

OURS = "pettingzoo:tests.helpers.pettingzoo_envs:"
NUM_ENVS = 2
in_workers = pytest.mark.parametrize("num_workers", [0, 2])


def needs(package: str, *values: Any) -> Any:
    lacking = importlib.util.find_spec(package) is None
    return pytest.param(*values, marks=pytest.mark.skipif(lacking, reason=f"{package} is not installed"))


def host(env_id: str, **options: Any) -> HostEnv:
    env = make_env(env_id, **options)
    assert isinstance(env, HostEnv)
    return env


def rows(envs: Any, action: Any, count: int, fields: Any = ("obs", "reward", "terminated", "truncated")) -> list[np.ndarray]:
    """Return ``count`` rows of one constant action, stacked over time."""
    steps = [envs.step(action) for _ in range(count)]
    return [np.stack([getattr(step, field) for step in steps]) for field in fields]


# ------------------------------------------------------------------------------------------------------------ rows and contract


@pytest.mark.parametrize(
    "name",
    [
        "Mortal",
        "Mortal?agent_id=True",
        "Mortal?max_episode_steps=2",
        "Mortal?num_workers=2",
        "Mortal?world_state=True&agent_id=True",
        "Pair",
        "Pair?mask='info'",
        "Pair?mask='obs'",
        "Pair?mask='info'&equal=True",
        "Pair?mask='obs'&equal=True",
        "converted?max_episode_steps=3",
        "jaxrl-tests/Mortal-v3",
    ],
)
def test_check_env_accepts_them(name: str) -> None:
    """Spaces, dtypes, NEXT_STEP rows, seeds, copies, pictures, masks, and environments that a worker opens separately."""
    check_env(make_env(f"{OURS}{name}"), steps=12)


@in_workers
def test_rows_of_agents_that_end_one_after_another(num_workers: int) -> None:
    """Lives are 1, 3 and 2 rows; the last agent is truncated, alone. The fourth row is spent on the reset."""
    env = host(f"{OURS}Mortal", num_workers=num_workers)
    assert (env.num_agents, env.action_space) == (3, spaces.Discrete(2))
    envs = env.open(NUM_ENVS, 0)
    first = envs.reset()
    obs, reward, terminated, truncated = rows(envs, np.ones((NUM_ENVS, 3), np.int32), 6)
    envs.close()
    assert obs.dtype == reward.dtype == np.float32 and first.shape == (NUM_ENVS, 3, 3)
    expected: Any = [[1.02, 11.02, 21.02], [0, 12.02, 22.02], [0, 13.02, 0], [0, 0, 0]]  # action 1 is the environment's 2
    np.testing.assert_allclose(reward[:, 1], expected + expected[:2], rtol=1e-6)
    ends = [[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(terminated, np.repeat(np.array(ends, bool)[:, None], NUM_ENVS, 1))
    np.testing.assert_array_equal(truncated[:, 0], np.isin(np.arange(6), [1, 2, 5])[:, None] & np.array([False, False, True]))
    time, agent, episode = np.moveaxis(np.concatenate([first[None], obs]), -1, 0)
    np.testing.assert_array_equal(time[:, 0], [[0, 0, 0], [1, 1, 1], [1, 2, 2], [1, 3, 2], [0, 0, 0], [1, 1, 1], [1, 2, 2]])
    np.testing.assert_array_equal(agent, np.broadcast_to(np.arange(3), (7, NUM_ENVS, 3)))
    assert (episode == episode[..., :1]).all() and len(np.unique(episode)) == 2 * NUM_ENVS


def test_the_host_loop_takes_each_agent_as_a_lane() -> None:
    agent = jaxrl.make_ppo(f"{OURS}Mortal", num_envs=1, rollout_length=5, num_minibatches=1)
    sampler = HostSampler(agent, 0)
    rollout, metrics = sampler.collect(agent.algorithm.policy(agent.init(jax.random.key(0)).learner), jax.random.key(0))
    sampler.close()
    valid = [[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]
    np.testing.assert_array_equal(rollout.valid, np.array(valid, bool))
    np.testing.assert_array_equal(rollout.truncated, np.array([[0] * 3, [0, 0, 1], [0] * 3, [0] * 3, [0] * 3], bool))
    np.testing.assert_array_equal(rollout.terminated[:3], np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0]], bool))
    assert (np.asarray(rollout.reward)[~np.array(valid, bool)] == 0).all()
    assert float(metrics["charts/episodic_length"]) == pytest.approx((1 + 3 + 2 + 1) / 4)


@in_workers
def test_a_time_limit_truncates_the_agents_that_are_left(num_workers: int) -> None:
    env = host(f"{OURS}Mortal", max_episode_steps=2, num_workers=num_workers)
    assert env.max_episode_steps == 2
    envs = env.open(NUM_ENVS, 0)
    envs.reset()
    terminated, truncated = rows(envs, np.zeros((NUM_ENVS, 3), int), 4, ("terminated", "truncated"))
    np.testing.assert_array_equal(terminated[:, 0], np.array([[1, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0]], bool))
    np.testing.assert_array_equal(truncated[:, 0], np.array([[0, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 0]], bool))
    mask = np.array([False, True])
    obs = envs.reset_where(mask)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(obs[:, :, 0], [[1, 1, 1], [0, 0, 0]])
    after = envs.step(np.zeros((NUM_ENVS, 3), int))
    np.testing.assert_array_equal(after.truncated, [[False, True, True], [False, False, False]])
    envs.close()


def test_a_seed_and_a_number_fix_a_stream() -> None:
    env = host(f"{OURS}Mortal")
    four, two, other = (env.open(n, seed, first) for n, seed, first in ((4, 5, 0), (2, 5, 2), (4, 6, 0)))
    drawn = [envs.reset()[:, 0, 2] for envs in (four, two, other)]
    np.testing.assert_array_equal(drawn[0][2:], drawn[1])
    again = [envs.reset()[:, 0, 2] for envs in (four, two)]
    np.testing.assert_array_equal(again[0][2:], again[1])
    assert len(np.unique(np.concatenate([drawn[0], drawn[2], again[0]]))) == 12


def test_processes_give_the_rows_of_one() -> None:
    envs = [host(f"{OURS}Mortal", num_workers=n).open(5, 0) for n in (0, 3)]
    jax.tree.map(np.testing.assert_array_equal, *[each.reset() for each in envs])
    for t in range(8):
        action = np.random.default_rng(t).integers(2, size=(5, 3))
        jax.tree.map(np.testing.assert_array_equal, *[each.step(action) for each in envs])
    for each in envs:
        each.close()


def test_a_worker_that_is_replaced_in_mid_episode_begins_anew(tmp_path: Path) -> None:
    """Its environments spend the row on a reset, which no flag announces, while the others continue."""
    env = host(f"{OURS}Mortal", once=str(tmp_path / "crashed"), num_workers=2, worker_restarts=1)
    envs: Any = env.open(2, 0)
    first, action = envs.reset(), np.zeros((2, 3), int)
    row = envs.step(action)
    assert row.obs[:, 1, 0].tolist() == [1, 1] and not envs.begun_anew().any()
    with pytest.warns(WorkerRestarted, match=r"ended with exit code 3 during step.* begins? new episodes in a new process"):
        row = envs.step(action)
    anew = envs.begun_anew()
    assert anew.any()  # both, if they crash at the same time
    for i in range(2):
        assert row.obs[i, :, 0].tolist() == ([0, 0, 0] if anew[i] else [1, 2, 2])
        assert row.reward[i].tolist() == pytest.approx([0, 0, 0] if anew[i] else [0, 12.01, 22.01])
        assert (row.terminated[i] | row.truncated[i]).tolist() == ([False] * 3 if anew[i] else [True, False, True])
    assert (row.obs[anew, 0, 2] != first[anew, 0, 2]).all()
    assert envs.step(action).obs[anew, :, 0].tolist() == [[1, 1, 1]] * int(anew.sum())
    envs.close()


def test_lanes_of_a_replaced_worker_begin_together(tmp_path: Path) -> None:
    """Also that of the agent which had ended: the row is not valid for any of them, and the next one begins an episode."""
    env = host(f"{OURS}Mortal", once=str(tmp_path / "crashed"), num_workers=1, worker_restarts=1)
    stepper, action = Stepper(env, 1, 0), np.zeros(3, int)
    stepper.reset()
    row = stepper.step(action)
    assert row.valid.tolist() == [True] * 3 and row.over.tolist() == [True, False, False]
    with pytest.warns(WorkerRestarted):
        row = stepper.step(action)
    assert not row.valid.any() and not row.over.any() and not (row.terminated | row.truncated).any()
    assert row.reward.tolist() == [0, 0, 0] and stepper.input.is_first.tolist() == [True] * 3
    assert stepper.input.obs[:, 0].tolist() == [0, 0, 0]
    after, expected = [stepper.step(action) for _ in range(3)], [[1.01, 11.01, 21.01], [0, 12.01, 22.01], [0, 13.01, 0]]
    np.testing.assert_allclose([row.reward for row in after], expected, rtol=1e-6)
    np.testing.assert_allclose(after[-1].episode.episodic_return, [1.01, 36.03, 43.02], rtol=1e-6)
    stepper.close()


# ------------------------------------------------------------------------------------------------------------- spaces and masks


@pytest.mark.parametrize("mask", ["", "info", "obs"])
def test_unequal_agents_are_padded(mask: str) -> None:
    """The speaker has five actions and a number, the listener three and two numbers."""
    env = host(f"{OURS}Pair", mask=mask)
    assert env.action_space == spaces.Discrete(5) and isinstance(env.observation_space, spaces.Dict)
    assert env.observation_space["action_mask"] == spaces.MultiBinary(5)
    envs = env.open(1, 0)
    first = envs.reset()
    np.testing.assert_array_equal(first["observation"], [[[0, 0], [0, 1]]])
    np.testing.assert_array_equal(first["agent_id"], [[0, 1]])
    row = envs.step(np.array([[4, 2]]))
    np.testing.assert_array_equal(row.obs["observation"], [[[4, 0], [1, 1]]])
    np.testing.assert_array_equal(row.obs["action_mask"], [[[1] * 5, [1, 1, 0 if mask else 1, 0, 0]]])
    np.testing.assert_array_equal(row.reward, [[4, 2]])
    with pytest.raises(ValueError, match="action 3 of agent 'listener': it has 3 actions, and action_mask forbids the others"):
        envs.step(np.array([[4, 3]]))
    plain = host(f"{OURS}Pair", agent_id=False).observation_space
    assert isinstance(plain, spaces.Dict) and {*plain} == {"observation", "action_mask"}


def test_critics_may_see_the_state_of_the_world() -> None:
    """The state changes while an agent waits for the others, and is the first of the next episode after a reset."""
    env = host(f"{OURS}Mortal", world_state=True)
    assert isinstance(env.observation_space, spaces.Dict)
    assert env.observation_space["privileged_state"].shape == (2,)
    envs = env.open(1, 0)
    seen = [envs.reset()["privileged_state"]] + [envs.step(np.zeros((1, 3), int)).obs["privileged_state"] for _ in range(4)]
    assert [x[0].tolist() for x in seen] == [[[t, 7]] * 3 for t in (0, 1, 2, 3, 0)]
    agent = jaxrl.make_mappo(env, num_envs=2)
    assert agent.num_lanes == 6
    with pytest.raises(ValueError, match=r"Pair has no state\(\), which world_state=True needs"):
        host(f"{OURS}Pair", world_state=True)
    with pytest.raises(ValueError, match="world_state=2 must be True or False"):
        host(f"{OURS}Pair", world_state=2)


def test_equal_agents_stay_as_they_are() -> None:
    assert host(f"{OURS}Mortal").observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    numbered = host(f"{OURS}Mortal", agent_id=True)
    assert isinstance(numbered.observation_space, spaces.Dict) and numbered.observation_space["observation"].shape == (3,)
    assert numbered.open(2, 0).reset()["agent_id"].tolist() == [[0, 1, 2]] * 2
    jaxrl.make_ppo(numbered, num_envs=2, model=partial(per_agent, network=actor_critic))  # each agent with its parameters
    assert host(f"{OURS}Pair", equal=True).observation_space == spaces.Box(0, 9, (2,), np.float32)
    masked = host(f"{OURS}Pair", equal=True, mask="info")
    row = masked.open(1, 0)
    row.reset()
    np.testing.assert_array_equal(row.step(np.array([[2, 1]])).obs["action_mask"], [[[1, 1, 1], [1, 0, 1]]])


@pytest.mark.parametrize("kind", ["discrete", "multi", "dict"])
def test_equal_agents_of_any_kind_get_a_number(kind: str) -> None:
    env = host(f"{OURS}Places", kind=kind, agent_id=True)
    entries = {"discrete": ("observation",), "multi": ("observation",), "dict": ("place", "two")}[kind]
    assert isinstance(env.observation_space, spaces.Dict) and {*env.observation_space} == {*entries, "agent_id"}
    check_env(env, steps=4)
    envs = env.open(2, 0)
    envs.reset()
    obs = envs.step(np.zeros((2, 3), int)).obs
    two = [[[1, 0], [1, 1], [1, 2]]] * 2
    expected = {"place": [[1] * 3] * 2, "two": two, "observation": two if kind == "multi" else [[1] * 3] * 2}
    assert {name: x.tolist() for name, x in obs.items()} == {"agent_id": [[0, 1, 2]] * 2} | {n: expected[n] for n in entries}


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (np.zeros((2, 2), int), ValueError, r"shape \(2, 2\); it must be \(2, 3\): one row per environment and agent"),
        (np.zeros(6, int), ValueError, r"shape \(6,\); it must be \(2, 3\)"),
        (np.zeros((2, 3)), TypeError, "dtype float64; it must hold integers"),
        (np.array([[0, 1, 0], [0, 2, 0]]), ValueError, r"outside \[0, 1\] in environments 1$"),
    ],
)
@in_workers
def test_actions_are_checked(action: Any, error: Any, message: str, num_workers: int) -> None:
    envs = host(f"{OURS}Mortal", num_workers=num_workers).open(2, 0)
    envs.reset()
    with pytest.raises(error, match=rf"^{OURS}Mortal: action .*{message}"):
        envs.step(action)
    envs.step(np.zeros((2, 3), int))
    envs.close()


# --------------------------------------------------------------------------------------------------------------- names, options


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.helpers.pettingzoo_envs:Mortl", "has no 'Mortl'. Did you mean 'Mortal'"),
        ("tests.helpers.pettingzoo_envs", "has neither parallel_env nor env"),
        ("tests.helpers.no_such:Mortal", "no module 'tests.helpers.no_such' was found"),
        ("butterfly/pistonbal-v6", "pettingzoo has no environment 'butterfly/pistonbal-v6'.*Did you mean 'butterfly/pistonball"),
        ("tests.helpers.pettingzoo_envs:Endless", "needs the option 'length': make_env"),
        ("tests.helpers.pettingzoo_envs:Endless?lenght=3", "no option 'lenght'. Did you mean 'length'"),
        ("tests.helpers.pettingzoo_envs:Mortal?render_mode='human'", "render_mode is not an option"),
        ("tests.helpers.pettingzoo_envs:Mortal?actions=0", r"actions=0 must be an integer >= 1 \(its default is 2\)"),
        ("tests.helpers.pettingzoo_envs:Mortal?agent_id=3", "agent_id=3 must be True or False"),
        ("tests.helpers.pettingzoo_envs:Mortal?max_episode_steps=0", "max_episode_steps=0 must be an integer >= 1"),
        ("tests.helpers.pettingzoo_envs:Mortal?num_workers=-1", "num_workers=-1 must be an integer >= 0"),
        ("tests.helpers.pettingzoo_envs:number", "gives an object of type int, neither a ParallelEnv nor an AECEnv"),
        ("tests.helpers.pettingzoo_envs:in_turns", r"its agents take turns; .* at once \(a ParallelEnv\)"),
        ("tests.helpers.pettingzoo_envs:broken", "pettingzoo cannot build .*: OSError: no such maze"),
        ("tests.helpers.pettingzoo_envs:Mortal?fault='nobody'", "has no possible_agents"),
        ("tests.helpers.pettingzoo_envs:Mortal?fault='pair'", "reset must return a pair of dicts"),
        ("tests.helpers.pettingzoo_envs:Mortal?fault='waits'", "after reset, agent 'bob' is not in env.agents"),
        (
            "tests.helpers.pettingzoo_envs:Places?unequal=True",
            r"agent 0 observes Discrete\(9\): pad takes .* unless all agents observe eq",
        ),
        ("tests.helpers.pettingzoo_envs:Pair?kind='mixed'", r"agents are 'speaker', 'listener': actions differ in kind"),
    ],
)
def test_what_cannot_be_made_is_explained(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(f"pettingzoo:{name}")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("returns", "agents that appear from nowhere: 'ann' takes part after its end; jaxrl needs the same agents"),
        ("stranger", "agents that appear from nowhere: 'dan' takes part without being one of possible_agents"),
        ("leaves", "agent 'bob' left env.agents, and neither its termination nor its truncation is True"),
        ("silent", r"step gave no rewards\['bob'\]: an agent that takes part has an entry"),
        ("shape", r"observations\['bob'\] is float64\[2\], but observation_space is float32\[3\]"),
        ("flag", r"truncations\['bob'\] is 'no'; it must be True or False"),
        ("short", "step must return five dicts"),
        ("raises", r"raised RuntimeError: the floor is wet \(.*pettingzoo_envs.py, line \d+\)"),
    ],
)
def test_what_breaks_the_interface_is_named(fault: str, message: str) -> None:
    envs = host(f"{OURS}Mortal", fault=fault).open(1, 0, 3)
    envs.reset()
    with pytest.raises(EnvironmentFailed, match=rf"^{OURS}Mortal: environment 3:? {message}"):
        rows(envs, np.zeros((1, 3), int), 3)
    with pytest.raises(RuntimeError, match="these environments are closed"):
        envs.step(np.zeros((1, 3), int))


def test_open_is_followed_by_reset() -> None:
    envs = host(f"{OURS}Mortal").open(1, 0)
    with pytest.raises(RuntimeError, match=r"call reset\(\) before the first step\(\)"):
        envs.step(np.zeros((1, 3), int))


def test_ids_and_names() -> None:
    env = host(f"{OURS}Mortal", actions=4)
    assert describe_env(env) == env.name == f"{OURS}Mortal?actions=4"
    assert runs_on_host(env.name) and reach_of(env.name) == "tests.helpers.pettingzoo_envs:Mortal"
    assert reach_of("pettingzoo:a_package.maze_v2") == "a_package.maze_v2:parallel_env"  # what an id imports has to be trusted
    assert reach_of("pettingzoo:butterfly/pistonball-v6") is None
    registered = host("pettingzoo:jaxrl-tests/Mortal-v3")
    assert registered.action_space == spaces.Discrete(3)
    assert "pettingzoo:jaxrl-tests/Mortal-v3" in list_envs("pettingzoo")
    assert [family_of(f"pettingzoo:{name}") for name in ("sisl/pursuit-v5", "a.b:c", "mpe2.simple_v3")] == ["sisl", "a", "mpe2"]


@pytest.mark.parametrize(
    ("source", "name"),
    [(pettingzoo_envs.Mortal, "Mortal"), (pettingzoo_envs.Mortal(), "Mortal"), (pettingzoo_envs.converted, "converted")],
)
def test_a_class_or_an_environment_is_answered_with_its_id(source: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"PettingZoo's {name}: give the id .*'pettingzoo:tests.helpers.pettingzoo_envs:{name}'"):
        make_env(source)


def test_what_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs the package pettingzoo.*pip install "jaxrl\[pettingzoo\]"'):
        list_envs("pettingzoo")
    with pytest.raises(ModuleNotFoundError, match=r'pip install "jaxrl\[pettingzoo\]"'):
        make_env("pettingzoo:classic/rps-v2?num_actions=5")


@pytest.mark.parametrize(
    ("env_id", "agents", "limit"),
    [
        needs("pygame", "pettingzoo:classic/rps_v2?max_cycles=5", 2, 5),
        needs("mpe2", "pettingzoo:mpe2.simple_spread_v3?max_cycles=5", 3, 5),
        needs("mpe2", "pettingzoo:mpe2.simple_speaker_listener_v4:env?max_cycles=4", 2, 4),
    ],
)
def test_real_ones(env_id: str, agents: int, limit: int) -> None:
    """The limit of these environments is a truncation of all agents."""
    env = host(env_id)
    assert env.num_agents == agents
    check_env(env, steps=limit + 3)
    envs = env.open(2, 0)
    envs.reset()
    terminated, truncated = rows(envs, np.zeros((2, agents), int), limit + 1, ("terminated", "truncated"))
    assert not terminated.any() and truncated[limit - 1].all() and not np.delete(truncated, limit - 1, 0).any()


# ------------------------------------------------------------------------------------------------------------------- everything


@pytest.mark.parametrize("name", ["Mortal", pytest.param("Pair?mask='info'&num_workers=1", marks=pytest.mark.slow)])
def test_ppo_trains_and_is_evaluated(name: str) -> None:
    agent = jaxrl.make_ppo(
        f"{OURS}{name}", num_envs=2, rollout_length=8, num_minibatches=1, num_epochs=1, model={"hidden_sizes": (4,)}
    )
    states, history = jaxrl.run(agent, 2 * agent.steps_per_iteration, seeds=2, eval_episodes=2, quiet=True)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states.learner.params))
    if name == "Mortal":
        returns = history["charts/team_return"][1:]  # 1 + 36 + 43, and a hundredth of six actions, which are 1 or 2
        assert returns.size and ((returns >= 80.055) & (returns <= 80.125)).all()
        np.testing.assert_allclose(history["evaluation/episodic_return"][[0, -1]] * 3, 80.09, atol=0.035)  # the mean over agents
