"""gymnax environments in jaxrl: all of them in one small program each, and special cases."""

import functools
import inspect

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import check_env, list_envs, make_env
from jaxrl.envs.backends.gymnax import HORIZONS, NOT_PLAIN, list_names
from jaxrl.envs.checks.check_env import COMPILE_FAST, random_action
from jaxrl.envs.checks.validate import outside
from jaxrl.spaces.trees import zeros
from jaxrl.types import Env, TimeStep

pytestmark = pytest.mark.expensive(45)

NUM_STEPS = 4


def avals(tree):
    """Return shape, dtype and weak type of each leaf, and the structure."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]


def rollout(env, key, params):
    """Return ``(obs, TimeStep[T])`` of random actions, without resets."""

    def step(env_state, key):
        action_key, step_key = jax.random.split(key)
        return env.step(step_key, env_state, random_action(env.action_space, action_key), params)

    env_state, obs = env.reset(key, params)
    return obs, jax.lax.scan(step, env_state, jax.random.split(key, NUM_STEPS))[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", list_envs("gymnax"))
def test_every_environment(name):
    """Under jit and vmap, in a scan, with parameters per environment: two whose time limits differ."""
    env = make_env(name)
    assert isinstance(env, Env) and make_env(env.name) is env
    assert all(leaf.dtype in (np.float32, np.int32, np.bool_) for leaf in jax.tree.leaves(env.params))

    key = jax.random.key(0)
    state, obs = jax.eval_shape(env.reset, key, env.params)
    action = zeros(env.action_space)
    next_state, reached = jax.eval_shape(env.step, key, state, action, env.params)
    assert avals(state) == avals(next_state)
    assert avals(obs) == avals(reached.obs)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, obs)))
    assert (obs.shape, obs.dtype) == (zeros(env.observation_space).shape, zeros(env.observation_space).dtype)

    limit = env.params.max_steps_in_episode
    params = jax.tree.map(lambda x: np.stack([x, x]), env.params)
    params = params.replace(max_steps_in_episode=np.array([limit, 2], limit.dtype))
    run = jax.jit(jax.vmap(functools.partial(rollout, env)), compiler_options=COMPILE_FAST)
    obs, time_step = run(jax.random.split(key), params)

    assert isinstance(time_step, TimeStep) and time_step.info == {}
    assert time_step.reward.dtype == jnp.float32 and time_step.reward.shape == (2, NUM_STEPS)
    assert time_step.terminated.dtype == time_step.truncated.dtype == bool
    # Time continues past the end, since environments do not reset by themselves.
    at_limit = time_step.terminated if name.partition(":")[2] in HORIZONS else time_step.truncated
    np.testing.assert_array_equal(at_limit, [[False] * NUM_STEPS, [False] + [True] * (NUM_STEPS - 1)])
    assert at_limit is time_step.truncated or not time_step.truncated.any()
    assert np.isfinite(time_step.reward).all()
    assert not outside("obs", env.observation_space, obs) and not outside("obs", env.observation_space, time_step.obs)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_a_truncated_step_reaches_the_true_observation(name):
    """With and without the limit the observations are equal: a reset replaces none of them."""
    short, long = make_env(name, max_steps_in_episode=NUM_STEPS), make_env(name)
    key = jax.random.key(1)
    run = jax.jit(functools.partial(rollout, long))
    (_, with_limit), (_, without) = run(key, short.params), run(key, long.params)
    assert with_limit.truncated.tolist() == [False] * (NUM_STEPS - 1) + [True]
    assert not without.truncated.any() and not with_limit.terminated.any()
    np.testing.assert_array_equal(with_limit.obs, without.obs)
    _, fresh = long.reset(key, long.params)
    assert not np.allclose(with_limit.obs[-1], fresh)


def test_termination_holds_no_time_limit():
    env = make_env("MountainCar-v0", max_steps_in_episode=1)
    state, _ = env.reset(jax.random.key(0), env.params)
    _, time_step = env.step(jax.random.key(0), state, jnp.int32(1), env.params)
    assert time_step.truncated and not time_step.terminated


@pytest.mark.parametrize("name", sorted(HORIZONS))
def test_a_horizon_that_is_the_task_terminates(name):
    """The observation contains the time, and the value after the last step is 0."""
    env = make_env(name, max_steps_in_episode=3)
    obs, time_step = jax.jit(functools.partial(rollout, env))(jax.random.key(0), env.params)
    assert time_step.terminated.tolist() == [False, False, True, True] and not time_step.truncated.any()
    assert (np.diff(np.append(obs[-1], time_step.obs[:, -1])) > 0).all()


def test_parameters_may_be_closed_over():
    """They are NumPy arrays, and Acrobot indexes its torques by the action."""
    env = make_env("Acrobot-v1")
    state, _ = env.reset(jax.random.key(0), env.params)
    step = functools.partial(jax.eval_shape, lambda action: env.step(jax.random.key(0), state, action, env.params))
    assert step(jnp.int32(1))[1].obs.shape == (6,)


def test_parameters_are_data():
    """One compiled program for all parameters. Different parameters give different dynamics."""
    light, heavy = make_env("CartPole-v1", gravity=1.0), make_env("CartPole-v1", gravity=20)
    assert light.step is heavy.step and light.reset is heavy.reset
    run = jax.jit(functools.partial(rollout, light))
    a, b = run(jax.random.key(0), light.params)[1], run(jax.random.key(0), heavy.params)[1]
    assert not np.allclose(a.obs, b.obs) and run._cache_size() == 1
    assert not light.params.gravity.flags.writeable  # shared by all users of this id


def test_array_parameters():
    env = make_env("Acrobot-v1", available_torque=[-2, 0, 2])
    np.testing.assert_array_equal(env.params.available_torque, np.array([-2, 0, 2], np.float32))
    assert env.name == "gymnax:Acrobot-v1?available_torque=[-2,0,2]"
    assert make_env("MountainCarContinuous-v0", max_action=2.0).action_space.high == 2.0


def test_constructor_arguments_set_shapes():
    deep = make_env("DeepSea-bsuite", size=4, deterministic=False)
    assert deep.observation_space == spaces.Box(0, 1, (4, 4)) and deep.params.max_steps_in_episode == 4
    assert deep.name == "gymnax:DeepSea-bsuite?deterministic=False&size=4"
    lake = make_env("FrozenLake-misc?map_name=8x8")
    assert lake.observation_space == spaces.Discrete(64) and lake.params.max_steps_in_episode == 200
    _, obs = lake.reset(jax.random.key(0), lake.params)
    assert obs.shape == () and obs.dtype == jnp.int32
    assert make_env("Catch-bsuite", rows=4).observation_space == spaces.Box(0, 1, (4, 5))


def test_no_option_is_both_argument_and_parameter():
    for name in list_names():
        env, params = gymnax.make(name)
        arguments = set(inspect.signature(type(env)).parameters)
        assert not (arguments - NOT_PLAIN) & set(vars(params)), name


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CartPole-v1", {"gravty": 1}, "no option 'gravty'. Did you mean 'gravity'.*It takes: force_mag, gravity, length"),
        ("CartPole-v1", {"gravity": "high"}, r"option gravity='high' must be a number \(its default is 9.8\)"),
        ("CartPole-v1", {"gravity": [1.0, 2.0]}, "option gravity=.* must be a number"),
        ("CartPole-v1", {"gravity": True}, "option gravity=True must be a number"),
        ("CartPole-v1", {"max_steps_in_episode": 0}, "must be an integer >= 1"),
        ("CartPole-v1", {"max_steps_in_episode": 9.5}, "must be an integer >= 1"),
        ("DeepSea-bsuite", {"deterministic": 1}, "must be True or False"),
        ("DeepSea-bsuite", {"size": 0}, "must be an integer >= 1"),
        ("DeepSea-bsuite", {"action_mapping_key": 1}, "no option 'action_mapping_key'"),
        ("Acrobot-v1", {"available_torque": [1.0]}, "must be 3 numbers, as in"),
        ("MetaMaze-misc", {"maze_size": 4}, "gymnax cannot construct .*maze_size=4"),
        ("FrozenLake-misc", {"map_name": "9x9"}, "gymnax cannot construct .*4x4"),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_env(name, **options)


def test_mnist_is_never_constructed(monkeypatch):
    monkeypatch.setattr(gymnax, "make", lambda *args, **kwargs: pytest.fail("gymnax.make was called"))
    with pytest.raises(ValueError, match="MNISTBandit-bsuite is not supported: gymnax downloads"):
        make_env("MNISTBandit-bsuite")


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-misc", "MemoryChain-bsuite", "Pendulum-v1"])
def test_check_env_accepts_them(name):
    check_env(make_env(name), steps=20)
