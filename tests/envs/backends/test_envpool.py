"""envpool as host environments: rows, dtypes, seeds, and checks of actions."""

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import check_env, make_env
from jaxrl.envs.host import env_seeds

NUM_ENVS = 3


def opened(name, seed=0, num_envs=NUM_ENVS, **options):
    envs = make_env(f"envpool:{name}", **options).open(num_envs, seed)
    envs.reset()
    return envs


def rows(envs, action, count, fields=("obs", "reward", "terminated", "truncated")):
    """Return ``count`` rows of one constant action, stacked over time."""
    steps = [envs.step(action) for _ in range(count)]
    return [np.stack([getattr(step, field) for step in steps]) for field in fields]


@pytest.mark.parametrize(
    ("name", "observation_space", "action_space", "limit"),
    [
        ("CartPole-v1", ((4,), np.float32), spaces.Discrete(2), 500),
        ("HalfCheetah-v4", ((17,), np.float32), spaces.Box(-1, 1, (6,)), 1000),
        ("Pong-v5", ((4, 84, 84), np.uint8), spaces.Discrete(6), 27_000),
        ("NChain-v0", ((), np.int64), spaces.Discrete(2), 1000),
        ("JobShop-v0", (None, None), None, 300),
        ("Blackjack-v1", ((3,), np.int32), spaces.Discrete(2), None),
    ],
)
def test_spaces_and_limits(name, observation_space, action_space, limit):
    env = make_env(f"envpool:{name}")
    assert (env.observation_space.shape, env.observation_space.dtype) == observation_space
    if action_space is None:
        assert isinstance(env.action_space, spaces.MultiDiscrete) and not env.action_space.start.any()
    else:
        assert env.action_space == action_space
    assert limit is None or isinstance(env.max_episode_steps, int)
    assert (env.max_episode_steps is None) == (limit is None)
    if name in ("CartPole-v1", "HalfCheetah-v4", "Pong-v5"):
        assert env.max_episode_steps == limit


def test_undeclared_bounds_are_infinite():
    """envpool reports the smallest positive float as the lower bound of unbounded values."""
    walker = make_env("envpool:WalkerWalk-v1").observation_space
    assert np.isneginf(walker["velocity"].low).all() and np.isposinf(walker["velocity"].high).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["CartPole-v1", "HalfCheetah-v4", "WalkerWalk-v1", "Pong-v5", "Maze-v0", "MiniGrid-Empty-5x5-v0"]
)
def test_check_env_accepts_them(name):
    """Spaces, dtypes, NEXT_STEP rows, seeds, copies: flat, nested, images, 64-bit inside."""
    check_env(make_env(f"envpool:{name}"), steps=12)


def test_rows_of_an_episode():
    envs = opened("CartPole-v1", max_episode_steps=3)
    obs, reward, terminated, truncated = rows(envs, np.ones(NUM_ENVS, np.int64), 5)
    np.testing.assert_array_equal(reward, np.array([[1], [1], [1], [0], [1]]) * np.ones(NUM_ENVS))
    np.testing.assert_array_equal(truncated, np.array([[0], [0], [1], [0], [0]], bool) & np.ones(NUM_ENVS, bool))
    assert not terminated.any()
    assert (np.abs(obs[2]) > 0.3).any(axis=1).all()  # the true last observation: three pushes give speed
    assert (np.abs(obs[3]) <= 0.05).all()  # the next one is from the reset


def test_reset_rows_earn_nothing():
    """dm_control's reset rows carry the reward of the new state."""
    reward, truncated = rows(opened("WalkerWalk-v1", max_episode_steps=2), np.zeros((NUM_ENVS, 6)), 4, ("reward", "truncated"))
    np.testing.assert_array_equal(truncated[:, 0], [False, True, False, False])
    np.testing.assert_array_equal(reward > 0, np.array([[1], [1], [0], [1]], bool) & np.ones(NUM_ENVS, bool))
    assert (reward[2] == 0).all()


@pytest.mark.parametrize("name", ["CliffWalking-v1", "CartPole-v1"])
def test_some_environments_are_reset_alone(name):
    """For families that do not enforce their limit, such as CliffWalking. The reset is not an end and costs no row."""
    envs = opened(name, max_episode_steps=4)
    action = np.zeros(NUM_ENVS, np.int64)
    start = rows(envs, action, 3)[0][-1]
    fresh = envs.reset_where(np.array([False, True, False]))
    first = make_env(f"envpool:{name}").open(NUM_ENVS, 0).reset()
    assert fresh.shape == start.shape and fresh.dtype == start.dtype
    if name == "CliffWalking-v1":
        assert fresh[1] == first[1] != start[1]
    obs, reward, _, truncated = rows(envs, action, 2)
    assert (reward[0] != 0).all() and not truncated[:, 1].any()
    np.testing.assert_array_equal(truncated[0], [name == "CartPole-v1", False, name == "CartPole-v1"])
    assert (obs[0, 1] != fresh[1]).any()


def test_options_for_learning_stay_out_of_scores():
    """test_host.py plays both forms."""
    env = make_env("envpool:Pong-v5", reward_clip=True, episodic_life=True, stack_num=2)
    assert env.options == {"reward_clip": True, "episodic_life": True, "stack_num": 2}
    assert env.open_eval.keywords == {"options": {"stack_num": 2}}
    # Otherwise ``open`` is evaluated, so that a custom wrapper that replaces it is evaluated too.
    assert make_env("envpool:Pong-v5", stack_num=2).open_eval is None


def test_a_seed_and_a_number_fix_a_stream():
    few, many, other = (make_env("envpool:CartPole-v1").open(n, seed).reset() for n, seed in ((2, 5), (4, 5), (4, 6)))
    np.testing.assert_array_equal(few, many[:2])
    everything = np.concatenate([many, other])
    assert len(np.unique(everything, axis=0)) == len(everything)  # consecutive seeds share no environment


def test_environments_of_a_part_are_those_of_the_whole():
    whole, part = opened("CartPole-v1", seed=5, num_envs=4), make_env("envpool:CartPole-v1").open(2, 5, first_id=2)
    part.reset()
    for all_of_them, some in zip(*(rows(envs, np.ones(n, int), 30) for envs, n in ((whole, 4), (part, 2))), strict=True):
        np.testing.assert_array_equal(all_of_them[:, 2:], some)


def test_what_atari_tells_besides():
    envs = opened("Breakout-v5", num_envs=2, reward_clip=True, num_threads=1)
    told = envs.step(np.zeros(2, int)).info
    assert {name: (x.dtype, x.shape) for name, x in told.items()} == {"lives": (np.int32, (2,)), "reward": (np.float32, (2,))}
    np.testing.assert_array_equal(told["lives"], [5, 5])
    assert opened("CartPole-v1").step(np.zeros(3, int)).info == {}


def test_seeds_do_not_overlap():
    seeds = [seed for run in range(20) for seed in env_seeds(run, 50)]
    assert len(set(seeds)) == len(seeds) and min(seeds) >= 0 and max(seeds) < 2**31
    assert env_seeds(2**40, 1) != env_seeds(0, 1)
    with pytest.raises(ValueError, match="first_id=-1 must be an integer >= 0"):
        env_seeds(0, 1, -1)


@pytest.mark.parametrize(
    ("name", "action", "error", "message"),
    [
        ("CartPole-v1", np.zeros(2, int), ValueError, r"shape \(2,\); it must be \(3,\)"),
        ("CartPole-v1", np.zeros((3, 1), int), ValueError, r"shape \(3, 1\)"),
        ("CartPole-v1", np.zeros(3), TypeError, "dtype float64; it must hold integers"),
        ("CartPole-v1", np.array([0, 2, 1]), ValueError, r"outside \[0, 1\] in environments 1$"),
        ("CartPole-v1", np.array([-1, 0, -1]), ValueError, r"outside \[0, 1\] in environments 0, 2$"),
        ("Pendulum-v1", np.array([[0.0], [np.nan], [0.0]]), ValueError, "NaN or infinity in environments 1$"),
        ("Pendulum-v1", np.full((3, 1), np.inf), ValueError, "NaN or infinity in environments 0, 1, 2$"),
        ("Pendulum-v1", np.zeros((3, 1), bool), TypeError, "dtype bool"),
        ("JobShop-v0", np.full((3, 10), 10**6), ValueError, "outside"),
    ],
)
def test_actions_are_checked(name, action, error, message):
    with pytest.raises(error, match=message):
        opened(name).step(action)


def test_open_and_close_are_guarded():
    env = make_env("envpool:CartPole-v1")
    envs = env.open(2, 0)
    with pytest.raises(RuntimeError, match=r"call reset\(\) before the first step"):
        envs.step(np.zeros(2, int))
    envs.reset()
    envs.close()
    envs.close()
    for call in (envs.reset, lambda: envs.step(np.zeros(2, int))):
        with pytest.raises(RuntimeError, match="are closed"):
            call()
    for num_envs, seed in ((0, 0), (2.5, 0), (2, -1)):
        with pytest.raises(ValueError, match="must be an integer"):
            env.open(num_envs, seed)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Pong", {}, "envpool has no environment 'Pong': write 'envpool:Pong-v5'"),
        ("Pong-v5", {"stack": 2}, "no option 'stack'. Did you mean 'stack_num'.*It takes: .*frame_skip"),
        ("Pong-v5", {"stack_num": -1}, "must be an integer >= 1"),
        ("Pong-v5", {"stack_num": "two"}, "option stack_num='two' must be an integer"),
        ("Pong-v5", {"reward_clip": 1}, "must be True or False"),
        ("Pong-v5", {"num_envs": 2}, "num_envs is not an option"),
        ("Pong-v5", {"seed": 2}, "seed is not an option"),
        ("Go9x9-v1", {}, "has 2 players"),
        ("Pong-v5", {"render_mode": "nope"}, "envpool refuses .*render_mode"),
    ],
)
def test_names_and_options_are_checked(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_env(f"envpool:{name}", **options)


def test_options_reach_envpool():
    assert make_env("envpool:Pong-v5", stack_num=2, img_height=42).observation_space.shape == (2, 42, 84)
    assert make_env("envpool:CartPole-v1?max_episode_steps=7").max_episode_steps == 7
