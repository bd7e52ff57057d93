"""Gymnasium's environments as host environments: rows, dtypes, seeds, spaces, limits and lives, in one and several processes."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.envs import check_env, describe_env, family_of, list_envs, make_env, reach_of
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.rollout.autoreset import first_input
from jaxrl.runtime.evaluation.rendering import drawing
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.runtime.trainers.host import HostLearner
from jaxrl.types import HostEnv
from tests.helpers import probes
from tests.helpers.agents import assert_close, run_steps, small_dqn, small_ppo, tiny
from tests.helpers.gymnasium_envs import SPACES

NUM_ENVS = 3
OURS = "gymnasium:tests.helpers.gymnasium_envs:"

in_workers = pytest.mark.parametrize("num_workers", [0, 2])


def host(env_id: str, **options: Any) -> HostEnv:
    env = make_env(env_id, **options)
    assert isinstance(env, HostEnv)
    return env


def opened(env_id: str, seed: int = 0, num_envs: int = NUM_ENVS, **options: Any) -> Any:
    envs = host(env_id, **options).open(num_envs, seed)
    envs.reset()
    return envs


def rows(envs: Any, action: Any, count: int, fields: Any = ("obs", "reward", "terminated", "truncated")) -> list[np.ndarray]:
    """Return ``count`` rows of one constant action, stacked over time."""
    steps = [envs.step(action) for _ in range(count)]
    return [np.stack([getattr(step, field) for step in steps]) for field in fields]


def column(*values: Any) -> np.ndarray:
    return np.array(values)[:, None] * np.ones(NUM_ENVS, type(values[0]))


# ------------------------------------------------------------------------------------------------------------ rows and contract


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("CartPole-v1", 40),
        ("Pendulum-v1?max_episode_steps=5", 12),
        ("FrozenLake-v1", 40),
        ("Blackjack-v1", 12),
        ("tests.helpers.gymnasium_envs:Truncation", 12),
        ("tests.helpers.gymnasium_envs:jaxrl-tests/Noise-v0", 12),
        ("tests.helpers.gymnasium_envs:Lives?episodic_life=True", 12),
        ("tests.helpers.gymnasium_envs:wrapped", 12),
        ("tests.helpers.gymnasium_envs:jaxrl-tests/Noise-v0?num_workers=2", 12),
    ],
)
def test_check_env_accepts_them(name: str, steps: int) -> None:
    """Spaces, dtypes, NEXT_STEP rows, seeds, copies, pictures, and environments that a worker opens separately."""
    check_env(make_env(f"gymnasium:{name}"), steps=steps)


@in_workers
def test_rows_of_an_episode(num_workers: int) -> None:
    envs = opened("gymnasium:CartPole-v1", max_episode_steps=3, num_workers=num_workers)
    obs, reward, terminated, truncated = rows(envs, np.ones(NUM_ENVS, np.int32), 5)
    np.testing.assert_array_equal(reward, column(1, 1, 1, 0, 1))
    np.testing.assert_array_equal(truncated, column(False, False, True, False, False))
    assert not terminated.any() and reward.dtype == obs.dtype == np.float32
    assert (np.abs(obs[2]) > 0.3).any(axis=1).all()  # the true last observation: three pushes give speed
    assert (np.abs(obs[3]) <= 0.05).all()  # the next one is from the reset
    envs.close()


def test_the_limit_is_the_registered_one() -> None:
    assert host("gymnasium:CartPole-v1").max_episode_steps == 500
    assert host("gymnasium:CartPole-v1?max_episode_steps=7").max_episode_steps == 7
    assert host(f"{OURS}Truncation").max_episode_steps is None
    noise = host(f"{OURS}jaxrl-tests/Noise-v0")
    assert noise.max_episode_steps == 3
    _, _, truncated = rows(opened(noise.name), np.zeros((NUM_ENVS, 1)), 5, ("obs", "reward", "truncated"))
    np.testing.assert_array_equal(truncated, column(False, False, True, False, False))


@in_workers
def test_some_environments_are_reset_alone(num_workers: int) -> None:
    """For a limit that only jaxrl knows. The reset costs no row."""
    env = host(f"{OURS}Noise", num_workers=num_workers)._replace(max_episode_steps=2)
    stepper = Stepper(env, NUM_ENVS, 0)
    stepper.reset()
    seen = [stepper.input.obs[:, 1].tolist()]
    for _ in range(6):
        stepper.step(np.zeros((NUM_ENVS, 1), np.float32))
        seen.append(stepper.input.obs[:, 1].tolist())
    assert seen == [[time] * NUM_ENVS for time in (0, 1, 2, 0, 1, 2, 0)]
    stepper.close()


@pytest.mark.slow
def test_the_data_are_those_of_the_pure_probe() -> None:
    """Whole learner states agree after the warm-up and five iterations, and the value after a truncation is learnt in full."""
    fused, on_host = (
        small_ppo(env, gamma=0.9, learning_rate=0.02) for env in (probes.truncation(), make_env(f"{OURS}Truncation"))
    )
    state, _ = run_steps(fused, fused.init(jax.random.key(0)), 5)
    learner = HostLearner(on_host, HostSampler(on_host, 0))
    after = learner.init(jax.random.key(0))
    for _ in range(5):
        after, _ = learner.step(after)
    assert_close(state.learner, after.learner, atol=1e-6)
    for _ in range(700):
        after, metrics = learner.step(after)
    value = tiny("ppo").value(on_host, after.learner, first_input(np.zeros((1, 1), np.float32), on_host.env.action_space, 1))
    np.testing.assert_allclose(value, 10.0, rtol=0.05)
    assert float(metrics["charts/episodic_length"].sum) == 5 * float(metrics["charts/episodic_length"].count) > 0
    learner.close()


def test_envpool_and_gymnasium_play_the_same_cartpole() -> None:
    """Step by step from the same state, which only gymnasium's can be set to: float32 there, float64 here."""
    pool, ours = opened("envpool:CartPole-v1", num_envs=8), opened("gymnasium:CartPole-v1", num_envs=8)
    rng, ended = np.random.default_rng(0), np.zeros(8, bool)
    begin = make_env("envpool:CartPole-v1").open(8, 0).reset()  # type: ignore[union-attr]
    for env, state in zip(ours._envs, begin, strict=True):
        env.unwrapped.state = state.astype(np.float64)
    for _ in range(60):
        action = rng.integers(2, size=8)
        theirs, mine = pool.step(action), ours.step(action)
        np.testing.assert_array_equal(theirs.reward[~ended], mine.reward[~ended])
        np.testing.assert_array_equal(theirs.terminated[~ended], mine.terminated[~ended])
        np.testing.assert_allclose(theirs.obs[~ended], mine.obs[~ended], atol=1e-4)
        assert not theirs.truncated.any() and not mine.truncated.any()
        ended |= theirs.terminated  # new episodes begin in other states
    assert ended.sum() >= 6


# ------------------------------------------------------------------------------------------------------------------------ seeds


@in_workers
def test_a_seed_and_a_number_fix_a_stream(num_workers: int) -> None:
    few, many, other = (
        host("gymnasium:CartPole-v1", num_workers=num_workers).open(n, seed).reset() for n, seed in ((2, 5), (4, 5), (4, 6))
    )
    np.testing.assert_array_equal(few, many[:2])
    everything = np.concatenate([many, other])
    assert len(np.unique(everything, axis=0)) == len(everything)  # consecutive seeds share no environment


def test_processes_give_the_rows_of_one() -> None:
    """Over ends, in parts of other sizes, and in a part that is opened separately."""
    name, action = f"{OURS}jaxrl-tests/Noise-v0", np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    alone, shared = opened(name, num_envs=5), opened(name, num_envs=5, num_workers=3)
    part = host(name, num_workers=2).open(3, 0, first_id=2)
    part.reset()
    for _ in range(8):
        one, many, some = alone.step(action), shared.step(action), part.step(action[2:])
        jax.tree.map(np.testing.assert_array_equal, one, many)
        jax.tree.map(lambda whole, last: np.testing.assert_array_equal(whole[2:], last), one, some)
    for envs in (alone, shared, part):
        envs.close()


def test_a_second_reset_goes_on_with_the_stream() -> None:
    envs = host("gymnasium:CartPole-v1").open(2, 0)
    assert (envs.reset() != envs.reset()).all()


# ----------------------------------------------------------------------------------------------------------------------- spaces


@pytest.mark.parametrize(
    ("seen", "shape", "dtype"),
    [
        ("box", (2, 3), np.float32),
        ("double", (2,), np.float32),
        ("image", (4, 5, 3), np.uint8),
        ("whole", (2,), np.int32),
        ("discrete", (), np.int32),
        ("multi", (2,), np.int32),
        ("binary", (3,), np.int8),
        ("binary grid", (2, 2), np.int8),
    ],
)
def test_observations_have_32_bits(seen: str, shape: Any, dtype: Any) -> None:
    env = host(f"{OURS}Spaces", seen=seen)
    check_env(env, steps=4)
    obs = env.open(2, 0).reset()
    assert (obs.shape, obs.dtype) == ((2, *shape), dtype)
    assert seen == "double" or all(SPACES[seen].contains(x.astype(SPACES[seen].dtype)) for x in obs)


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["dict", "tuple"])
@in_workers
def test_nested_observations(seen: str, num_workers: int) -> None:
    env = host(f"{OURS}Spaces", seen=seen, num_workers=num_workers)
    check_env(env, steps=3)
    agent = small_ppo(env, num_envs=2, rollout_length=4)
    learner = HostLearner(agent, HostSampler(agent, 0))
    state, _ = learner.step(learner.init(jax.random.key(0)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.learner.params))
    learner.close()


@pytest.mark.parametrize(
    ("taken", "space", "actions", "sums"),
    [
        ("discrete", spaces.Discrete(3), [0, 1, 2], [-1, 0, 1]),
        ("multi", spaces.MultiDiscrete([3, 2]), [[0, 0], [2, 1], [1, 0]], [-2, 1, -1]),
        ("binary", spaces.MultiDiscrete([2, 2, 2]), [[0, 0, 0], [1, 0, 1], [1, 1, 1]], [0, 2, 3]),
        ("whole", spaces.MultiDiscrete([8, 8]), [[0, 0], [7, 7], [3, 4]], [-6, 8, 1]),
        (
            "double",
            spaces.Box(np.float32([-0.1, -np.inf]), np.float32([0.1, np.inf])),
            [[0.1, 1], [-0.1, 0], [0, 2]],
            [1.1, -0.1, 2],
        ),
    ],
)
def test_actions_count_from_zero(taken: str, space: Any, actions: Any, sums: Any) -> None:
    """The environment gets actions of its declared space, with float64 bounds, and refuses all others."""
    env = host(f"{OURS}Spaces", taken=taken)
    assert env.action_space == space
    kind = np.float32 if taken == "double" else np.int32
    np.testing.assert_allclose(opened(env.name).step(np.asarray(actions, kind)).reward, sums, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seen": "text"}, r"observation_space is Text\(.*jaxrl supports Box, Discrete, .*gymnasium:module:function"),
        ({"seen": "sequence"}, r"observation_space\['a'\] is Sequence\("),
        ({"seen": "huge"}, r"observation_space is Box\(-1099511627776.*32 bits: narrow its bounds, or use floats"),
        ({"seen": "many"}, r"observation_space is Discrete\(2147483649\), whose values int32 cannot hold: use smaller ones"),
        ({"seen": "far"}, r"observation_space is MultiDiscrete\(.*, whose values int32 cannot hold"),
        ({"taken": "dict"}, r"action_space is Dict\(.*jaxrl supports a Box of floats, Discrete, MultiDiscrete or MultiBinary"),
        ({"taken": "tuple"}, r"action_space is Tuple\("),
        ({"taken": "wide"}, r"action_space is Box\(0, 1073741824"),
    ],
)
def test_spaces_that_nothing_takes_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{OURS}Spaces: {message}"):
        make_env(f"{OURS}Spaces", **options)


@pytest.mark.parametrize(
    ("name", "action", "error", "message"),
    [
        ("CartPole-v1", np.zeros(2, int), ValueError, r"shape \(2,\); it must be \(3,\)"),
        ("CartPole-v1", np.zeros(3), TypeError, "dtype float64; it must hold integers"),
        ("CartPole-v1", np.array([0, 2, 1]), ValueError, r"outside \[0, 1\] in environments 1$"),
        ("Pendulum-v1", np.array([[0.0], [np.nan], [0.0]]), ValueError, "NaN or infinity in environments 1$"),
        ("Pendulum-v1", np.array([[2.0], [-2.1], [0.0]]), ValueError, r"outside \[-2.0, 2.0\] in environments 1$"),
    ],
)
@in_workers
def test_actions_are_checked(name: str, action: Any, error: Any, message: str, num_workers: int) -> None:
    """In the process that passes them. The environments continue."""
    envs = opened(f"gymnasium:{name}", num_workers=num_workers)
    with pytest.raises(error, match=rf"^gymnasium:{name}: action .*{message}"):
        envs.step(action)
    envs.step(np.zeros_like(action) if name == "Pendulum-v1" else np.zeros(NUM_ENVS, int))
    envs.close()


# --------------------------------------------------------------------------------------------------------- lives and raw rewards


@in_workers
def test_lives_and_raw_rewards(num_workers: int) -> None:
    """A lost life ends an episode in training, and its game continues from the last observation. Evaluation ignores lives."""
    env = host(f"{OURS}Lives", reward_clip=True, episodic_life=True, num_workers=num_workers)
    envs = env.open(NUM_ENVS, 0)
    first = envs.reset()
    obs, reward, terminated, info = rows(envs, np.zeros(NUM_ENVS, int), 10, ("obs", "reward", "terminated", "info"))
    np.testing.assert_array_equal(np.concatenate([first[None], obs])[..., 0], column(0.0, 1, 2, 2, 3, 4, 4, 5, 6, 0, 1))
    np.testing.assert_array_equal(terminated, column(False, True, False, False, True, False, False, True, False, False))
    np.testing.assert_array_equal(reward, column(1.0, 1, 0, 1, 1, 0, 1, 1, 0, 1))
    np.testing.assert_array_equal([told["lives"] for told in info], column(3, 2, 2, 2, 1, 1, 1, 0, 3, 3))
    np.testing.assert_array_equal([told["reward"] for told in info], column(5.0, 5, 0, 5, 5, 0, 5, 5, 0, 5))
    envs.close()
    scored = Stepper(env, NUM_ENVS, 0, evaluation=True)
    scored.reset()
    for _ in range(6):
        row = scored.step(np.zeros(NUM_ENVS, int))
    assert row.done.all() and (row.episode.episodic_return == 30).all() and (row.episode.episodic_length == 6).all()
    scored.close()


@in_workers
def test_a_game_that_is_reset_has_all_its_lives(num_workers: int) -> None:
    """jaxrl's limit ends it in the row in which a life was lost: the game's continuation is dropped."""
    envs = opened(f"{OURS}Lives", episodic_life=True, num_workers=num_workers)
    zeros, lost = np.zeros(NUM_ENVS, int), rows(envs, np.zeros(NUM_ENVS, int), 2, ("terminated",))[0]
    np.testing.assert_array_equal(lost, column(False, True))
    mask = np.arange(NUM_ENVS) != 1
    obs = envs.reset_where(mask)
    assert (obs[mask] == 0).all()
    after = np.stack([envs.step(zeros).obs[:, 0] for _ in range(2)])
    np.testing.assert_array_equal(after, np.where(mask, [[1], [2]], [[2], [3]]))
    envs.close()


def test_what_is_told_besides() -> None:
    """Numbers with the names in the info of ``reset``, and 0 where a later info lacks one."""
    told = opened(f"{OURS}Noise").step(np.zeros((NUM_ENVS, 1), np.float32)).info
    assert {name: (x.dtype, x.shape) for name, x in told.items()} == {"success": (np.dtype(np.float32), (NUM_ENVS,))}
    assert opened("gymnasium:CartPole-v1").step(np.zeros(NUM_ENVS, int)).info == {}
    assert host("gymnasium:CartPole-v1").open_eval is None
    with pytest.raises(EnvironmentFailed, match=r"environment 0: info has no 'lives', which episodic_life=True needs"):
        opened("gymnasium:CartPole-v1", episodic_life=True)


# --------------------------------------------------------------------------------------------------------------- names, options


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole", "gymnasium has no environment 'CartPole': write 'gymnasium:CartPole-v1'$"),
        ("Corridor", "gymnasium has no environment 'Corridor'.*list_envs.*'gymnasium:module:Corridor'"),
        ("no_such_module:X-v0", "no module 'no_such_module' was found in .* put that folder on PYTHONPATH$"),
        ("tests.helpers.gymnasium_envs:Livs", "neither registers nor defines an environment 'Livs'. Did you mean 'Lives'?"),
        ("tests.helpers.gymnasium_envs:Path", "neither registers nor defines an environment 'Path'"),
        ("tests.helpers.gymnasium_envs:subprocess", "neither registers nor defines"),
        (
            "CartPole-v1?gravity=3",
            "no option 'gravity'.*It takes: episodic_life, max_episode_steps, num_workers, .*worker_timeout",
        ),
        ("CartPole-v1?num_worker=3", "no option 'num_worker'. Did you mean 'num_workers'"),
        ("CartPole-v1?sutton_barto_reward=3", "option sutton_barto_reward=3 must be True or False"),
        ("CartPole-v1?num_workers=-1", "option num_workers=-1 must be an integer >= 0"),
        ("CartPole-v1?num_workers=True", "option num_workers=True must be an integer >= 0"),
        ("CartPole-v1?worker_timeout=0", "option worker_timeout=0 must be a number of seconds > 0"),
        ("CartPole-v1?max_episode_steps=0", "option max_episode_steps=0 must be an integer >= 1"),
        ("CartPole-v1?max_episode_steps=2.5", "option max_episode_steps=2.5 must be an integer >= 1"),
        ("CartPole-v1?episodic_life=1", "option episodic_life=1 must be True or False"),
        ("CartPole-v1?render_mode=human", "render_mode is not an option: jaxrl sets it"),
        ("FrozenLake-v1?map_name=9x9", r"cannot build gymnasium:FrozenLake-v1 with the options .*KeyError: '9x9'$"),
        ("tests.helpers.gymnasium_envs:Failing?how=build", "OSError: no world to build$"),
    ],
)
def test_names_and_options_are_checked(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make_env(f"gymnasium:{name}")
    assert "\n" not in str(error.value)


def test_missing_packages_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("Box2D", "mujoco"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ModuleNotFoundError, match=r'LunarLander-v3 needs the packages? Box2D.*not installed: pip install "jaxrl\[box2d\]"$'
    ):
        make_env("gymnasium:LunarLander-v3?gravity=-5.0")
    with pytest.raises(
        ModuleNotFoundError, match=r'Ant-v5 needs the packages? mujoco.*not installed: pip install "gymnasium\[mujoco\]"$'
    ):
        make_env("gymnasium:Ant-v5?ctrl_cost_weight=0.25")
    with pytest.raises(ModuleNotFoundError, match=r"jaxrl-tests/Unknown-v0 cannot be built here: No module named 'tests.no_such"):
        make_env(f"{OURS}jaxrl-tests/Unknown-v0")
    with pytest.raises(ModuleNotFoundError, match="v2 and v3 based environments have been moved"):
        make_env("gymnasium:Hopper-v2")
    names = list_envs("gymnasium")
    assert {"gymnasium:CartPole-v1", "gymnasium:Taxi-v4"} <= {*names}
    assert not {"gymnasium:LunarLander-v3", "gymnasium:Ant-v5", "gymnasium:Hopper-v2"} & {*names}


def test_families() -> None:
    ids = ("CartPole-v1", "LunarLander-v3", "phys2d/CartPole-v1", "tests.helpers.gymnasium_envs:jaxrl-tests/Noise-v0")
    assert [family_of(f"gymnasium:{name}") for name in ids] == ["classic_control", "box2d", "phys2d", "tests"]


def test_ids_rebuild_and_name_what_they_import() -> None:
    env = host(f"{OURS}wrapped", every=2)
    assert env.name == f"{OURS}wrapped?every=2" and make_env(env.name) is env and describe_env(env) == env.name
    np.testing.assert_array_equal(rows(opened(env.name), np.zeros(NUM_ENVS, int), 3)[1], column(10, 10, 0))
    assert reach_of(env.name) == "tests.helpers.gymnasium_envs:wrapped" and reach_of("gymnasium:CartPole-v1") is None
    assert describe_env(env._replace(name=f"{OURS}Lives?num_workers=7")) is None  # it is not imported just for a name
    assert jaxrl.build(small_ppo(env).spec).env.name == env.name


def test_open_and_close_are_guarded() -> None:
    for num_workers in (0, 1):
        env = host("gymnasium:CartPole-v1", num_workers=num_workers)
        with pytest.raises((RuntimeError, EnvironmentFailed), match=r"call reset\(\) before the first step"):
            env.open(2, 0).step(np.zeros(2, int))
        envs = env.open(2, 0)
        envs.close()
        envs.close()
        for call in (envs.reset, lambda: envs.step(np.zeros(2, int))):  # noqa: B023
            with pytest.raises(RuntimeError, match=r"gymnasium:CartPole-v1: these environments are closed"):
                call()
        for num_envs, seed in ((0, 0), (2.5, 0), (2, -1)):
            with pytest.raises(ValueError, match="must be an integer"):
                env.open(num_envs, seed)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ pictures, learning


def test_environments_draw_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    env = host(f"{OURS}Truncation", num_workers=2)
    assert env.open_render is not None and env.render_fps == 7
    envs: Any = env.open_render(2, 0)
    envs.reset()
    envs.step(np.zeros(2, int))
    assert envs.render().shape == (2, 20, 30, 3) and (envs.render() == 1).all()
    assert drawing(env).draw(envs, None, None).shape == (20 * 14, 30 * 14, 3)
    assert host(f"{OURS}Lives").open_render is None and host(f"{OURS}wrapped").open_render is None
    monkeypatch.setitem(sys.modules, "pygame", None)
    envs = host("gymnasium:CartPole-v1").open_render(1, 0)  # type: ignore[misc]
    envs.reset()
    with pytest.raises(OSError, match=r"gymnasium cannot render gymnasium:CartPole-v1 here: pygame is not installed"):
        envs.render()


@pytest.mark.slow
def test_ppo_learns_a_little() -> None:
    agent = small_ppo("gymnasium:CartPole-v1", num_envs=8, rollout_length=32, learning_rate=0.01)
    _, history = jaxrl.run(agent, 8192, seeds=1, quiet=True, eval_every=0)
    returns = history["charts/episodic_return"][:, 0]
    assert np.nanmean(returns[:2]) < 35 and np.nanmean(returns[-3:]) > 60


@pytest.mark.slow
def test_a_resumed_run_begins_new_episodes(tmp_path: Any) -> None:
    agent = small_dqn("gymnasium:CartPole-v1?num_workers=2")
    settings: dict[str, Any] = {"seeds": 1, "quiet": True, "eval_every": 0}
    jaxrl.run(agent, 256, out=tmp_path / "run", **settings)
    states, history = jaxrl.resume(tmp_path / "run", total_steps=512, quiet=True)
    whole, _ = jaxrl.run(agent, 512, **settings)
    assert states.iteration == whole.iteration and states.learner.version == whole.learner.version
    assert np.nanmax(history["charts/episodic_return"]) >= 8
