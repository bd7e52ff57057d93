"""One environment per mistake: each is detected and named, with a fix."""

import re
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import EnvError, check_env, validate_env
from jaxrl.envs.checks.check_env import _render_problems
from jaxrl.types import Env, TimeStep
from tests.helpers.env_problems import problems


class State(NamedTuple):
    position: Any
    time: Any


def reset(key, params):
    position = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
    return State(position, 0), position


def step(key, state, action, params):
    move = jnp.where(action == 1, params["speed"], -params["speed"])
    state = State(jnp.clip(state.position + move, -1, 1), state.time + 1)
    return state, TimeStep(state.position, state.position.sum(), state.position[0] >= 1, state.time >= 5, {"time": state.time})


def make(**changes):
    fields = {
        "reset": reset,
        "step": step,
        "observation_space": spaces.Box(-1, 1, (2,)),
        "action_space": spaces.Discrete(2),
        "params": {"speed": 0.25},
    }
    return Env(**{**fields, **changes})


def changed(**changes):
    """Return an environment whose step returns a changed TimeStep. Each change maps a TimeStep to a value."""

    def other_step(key, state, action, params):
        state, time_step = step(key, state, action, params)
        return state, time_step._replace(**{name: change(time_step) for name, change in changes.items()})

    return make(step=other_step)


def test_a_good_environment_passes():
    validate_env(make())
    check_env(make(), key=jax.random.key(3), steps=20)  # weak types, Python numbers and info are accepted


def test_an_environment_with_everything_passes():
    """Dict observations, Box actions, keys in the state, no parameters."""
    inside = {"image": spaces.Box(0, 255, (2, 2), np.uint8), "place": spaces.Discrete(3), "mask": spaces.MultiBinary(2)}

    def observe(key):
        return {
            "image": jax.random.randint(key, (2, 2), 0, 256).astype(jnp.uint8),
            "place": jax.random.randint(key, (), 0, 3),
            "mask": jnp.ones(2, jnp.int8),
        }

    def step(key, own_key, action, params):
        own_key = jax.random.fold_in(own_key, 1)
        return own_key, TimeStep(observe(own_key), action.sum(), jax.random.bernoulli(key, 0.3), False)

    actions = spaces.Box(-2, np.inf, (3,))
    check_env(Env(lambda key, params: (key, observe(key)), step, spaces.Dict(inside), actions))


def test_actions_have_the_types_that_jaxrl_passes():
    """int32 or float32, whatever the type of the space: they may be kept in the state."""
    for space, dtype in ((spaces.Box(-1, 1, (2,), np.float16), jnp.float32), (spaces.MultiDiscrete([2, 3], np.int8), jnp.int32)):

        def step(key, kept, action, params):
            return action, TimeStep(action.astype(jnp.float32), jnp.float32(0), jnp.asarray(False), jnp.asarray(False))

        def reset(key, params, dtype=dtype):
            return jnp.zeros(2, dtype), jnp.zeros(2)

        check_env(Env(reset, step, spaces.Box(-9, 9, (2,)), space), steps=3)


def test_a_picture_passes():
    """Rendered from a concrete state, for any ``params``, and from the action that led there."""
    drawn = []

    def render(state, action, params):
        drawn.append((float(state.position[0]), action, params["speed"]))
        return np.zeros((4, 6, 3), np.uint8)

    check_env(make(render=render), steps=5)
    assert [action is None for _, action, _ in drawn] == [True, False]
    (problem,) = problems(make(render=lambda state, action, params: state.position), partial(check_env, steps=5))
    assert "render gave float32[2]" in problem


@pytest.mark.parametrize(
    ("render", "message"),
    [
        (lambda state, action, params: np.zeros((4, 6, 3)), r"render gave float64\[4, 6, 3\]; .* uint8\[height, width, 3\]"),
        (lambda state, action, params: np.zeros((4, 6), np.uint8), r"render gave uint8\[4, 6\]"),
        (lambda state, action, params: None, "render gave nothing"),
        (lambda state, action, params: np.zeros((4 + (action is None), 6, 3), np.uint8), "pictures of different shapes"),
        (lambda state: None, "render raised TypeError"),
    ],
)
def test_other_pictures_are_found(render, message):
    (problem,) = _render_problems(make(render=render), None)
    assert re.search(message, problem)


# -------------------------------------------------------------------------------------------------- found by shapes and types


def gymnax_order(key, params):
    return reset(key, params)[::-1]


def only_obs(key, params):
    return reset(key, params)[1]


def no_time_step(key, state, action, params):
    state, time_step = step(key, state, action, params)
    return time_step.obs, state, time_step.reward, time_step.terminated, {}


def growing_state(key, state, action, params):
    state, time_step = step(key, state, action, params)
    return {"position": state.position}, time_step


def other_state_dtype(key, state, action, params):
    state, time_step = step(key, state, action, params)
    return state._replace(time=state.time / 2), time_step


def python_if(key, state, action, params):
    if action == 1:
        state = state._replace(time=0)
    return step(key, state, action, params)


def numpy_inside(key, state, action, params):
    return step(key, state._replace(position=np.sin(state.position)), action, params)


def raises(key, params):
    raise KeyError("speeed")


def legacy_key(key, params):
    return reset(jax.random.wrap_key_data(jnp.stack([key[0], key[1]])), params)


def closes_over_a_value(kept=[]):  # noqa: B006
    def other_step(key, state, action, params):
        kept.append(state.position)
        return step(key, state._replace(position=kept[0]), action, params)

    return other_step


SHAPES = {
    "reward of shape (1,)": (changed(reward=lambda t: t.reward[None]), r"reward has shape \(1,\).*scalar.*squeeze"),
    "integer reward": (changed(reward=lambda t: jnp.int32(1)), "reward has dtype int32.*float32.*jnp.asarray"),
    "reward is a tree": (changed(reward=lambda t: {"a": t.reward}), "reward is {'a': float32"),
    "float flag": (changed(terminated=lambda t: t.reward), "terminated has dtype float32; it must be bool"),
    "flag per dimension": (changed(truncated=lambda t: t.obs > 0), r"truncated has shape \(2,\)"),
    "info is no dict": (changed(info=lambda t: t.reward), "info is float32.*must be a dict"),
    "info is nested": (
        changed(info=lambda t: {"of": {"time": t.reward}}),
        r"info\['of'\] is \{'time': float32\[\]\}; it must be one array of numbers",
    ),
    "obs shape after step": (
        changed(obs=lambda t: t.obs[:1]),
        r"obs that step returns is float32\[1\], but.*reset.*float32\[2\]",
    ),
    "obs dtype after step": (changed(obs=lambda t: t.obs.astype(jnp.int32)), r"obs that step returns is int32\[2\]"),
    "obs structure after step": (changed(obs=lambda t: {"x": t.obs}), "obs that step returns: structure {'x': float32"),
    "obs dtype": (
        make(observation_space=spaces.Box(-1, 1, (2,), np.int32)),
        "obs that reset returns is float32.*space has int32",
    ),
    "obs shape": (make(observation_space=spaces.Box(-1, 1, (3,))), r"float32\[2\], but observation_space has float32\[3\]"),
    "swapped": (make(reset=gymnax_order), r"reset returned \(obs, env_state\)"),
    "no pair": (make(reset=only_obs), r"reset returned float32\[2\]; it must return \(env_state, obs\)"),
    "no TimeStep": (make(step=no_time_step), "step returned .*must return .*TimeStep"),
    "state structure": (make(step=growing_state), "env_state that step returns: structure"),
    "state dtype": (make(step=other_state_dtype), r"env_state that step returns.time is float32.*reset returns has int32"),
    "Python if": (make(step=python_if), "step uses a traced value in Python control flow.*jnp.where, jax.lax.cond"),
    "NumPy": (make(step=numpy_inside), "step uses a traced value .*in NumPy"),
    "raises": (make(reset=raises), "reset raised KeyError: 'speeed'"),
    "legacy key": (make(reset=legacy_key), "reset takes only a legacy uint32.2. key; jaxrl passes typed keys"),
    "64-bit box": (
        make(observation_space=spaces.Box(-1, 1, (2,), np.float64)),
        "observation_space has dtype float64.*np.float32",
    ),
    "Text": (make(observation_space=spaces.Text(3)), "observation_space is Text.*use one of"),
    "no space": (make(action_space=2), "action_space is 2: use one of"),
    "Dict action": (
        make(action_space=spaces.Dict({"a": spaces.Discrete(2)})),
        "action_space is Dict.*Box, Discrete, MultiDiscrete",
    ),
    "nested": (make(observation_space=spaces.Dict({"a": spaces.Text(3)})), r"observation_space\['a'\] is Text"),
    "start": (make(action_space=spaces.Discrete(2, start=1)), "action_space starts at 1; jaxrl counts actions from 0"),
    "integer box": (make(action_space=spaces.Box(0, 3, (1,), np.int32)), "action_space is a Box of int32: use Discrete"),
    "string param": (make(params={"speed": 0.25, "map": "big"}), r"params\['map'\] is 'big', a str: parameters are data"),
    "function param": (make(params={"speed": jnp.sin}), r"params\['speed'\] is .*use numbers"),
    "limit": (make(max_episode_steps=0), "max_episode_steps=0 must be an integer >= 1"),
    "limit of a float": (make(max_episode_steps=10.0), "max_episode_steps=10.0 must be"),
}


@pytest.mark.parametrize("check", [validate_env, check_env])
@pytest.mark.parametrize("case", SHAPES)
def test_shapes_and_types(case, check):
    env, message = SHAPES[case]
    found = problems(env, check)
    assert len(found) == 1, found
    with pytest.raises(EnvError, match=message):
        check(env)


def test_all_problems_come_at_once():
    env = changed(reward=lambda t: jnp.ones(1, jnp.int32), terminated=lambda t: 0.5, obs=lambda t: t.obs[:1])
    found = problems(env._replace(name="mine", max_episode_steps=-1))
    assert len(found) == 5  # the reward's shape and its dtype are two
    with pytest.raises(EnvError, match=r"environment 'mine' .*\n  1. .*\n  2. .*\n  3. .*\n  4. .*\n  5. "):
        check_env(env._replace(name="mine", max_episode_steps=-1))


def test_only_environments_are_checked():
    for check in (validate_env, check_env):
        with pytest.raises(TypeError, match=r"not str; jaxrl\.make_env"):
            check("CartPole-v1")


# ------------------------------------------------------------------------------------------------------------ found by running


def test_randomness_of_numpy():
    def noisy(key, state, action, params):
        state, time_step = step(key, state, action, params)
        return state, time_step._replace(reward=time_step.reward + np.float32(np.random.rand()))

    def noisy_constant(key, params):
        return reset(key, params)[0], jnp.asarray(np.random.rand(2), jnp.float32)

    for env, name in ((make(step=noisy), "step"), (make(step=jax.jit(noisy)), "step"), (make(reset=noisy_constant), "reset")):
        (problem,) = problems(env)
        assert problem.startswith(f"{name} gives a different program") and "jax.random" in problem


def test_info_that_varies():
    names = iter("abcdefghijklmnopqrstuvwxyz")
    (problem,) = problems(changed(info=lambda t: {next(names): t.reward}))
    assert "a different program" in problem


def test_values_kept_outside():
    found = problems(make(step=closes_over_a_value()))
    assert any("keeps values from one call to the next" in problem for problem in found)


def test_hidden_state_behind_a_callback():
    count = iter(range(10**6))

    def counter(_):
        return np.float32(next(count))

    def counting(key, state, action, params):
        state, time_step = step(key, state, action, params)
        reward = jax.pure_callback(counter, jax.ShapeDtypeStruct((), jnp.float32), time_step.reward, vmap_method="sequential")
        return state, time_step._replace(reward=reward)

    (problem,) = problems(make(step=counting))
    assert "the same key gave different results" in problem


def test_not_vmappable():
    def callback(key, state, action, params):
        state, time_step = step(key, state, action, params)
        reward = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), time_step.reward)
        return state, time_step._replace(reward=reward)

    (problem,) = problems(make(step=callback))
    assert "vmap over keys, states and actions fails" in problem


def test_fails_only_when_run():
    def broken(x):
        raise OSError("the simulator is not there")

    def callback(key, state, action, params):
        state, time_step = step(key, state, action, params)
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return state, time_step._replace(reward=jax.pure_callback(broken, shape, time_step.reward, vmap_method="sequential"))

    (problem,) = problems(make(step=callback))
    assert problem.startswith("a run of reset and step under jit and vmap raised") and "simulator" in problem


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (make(observation_space=spaces.Box(-0.01, 1, (2,))), "the obs after reset is -.*element .*outside.*widen the space"),
        (changed(obs=lambda t: t.obs + 5), "the obs after a step is .*outside observation_space's .-1.0, 1.0."),
        (changed(obs=lambda t: jnp.log(t.obs)), "the obs after a step is NaN"),
        (changed(reward=lambda t: 1 / jnp.float32(0)), "reward is NaN or infinite"),
    ],
)
def test_values(env, message):
    with pytest.raises(EnvError, match=message):
        check_env(env)


def test_discrete_observations_out_of_range():
    def observe(state):
        return jnp.int32(state.time)

    def counting(key, state, action, params):
        state, time_step = step(key, state, action, params)
        return state, time_step._replace(obs=observe(state))

    env = make(reset=lambda key, params: (reset(key, params)[0], jnp.int32(0)), step=counting)
    check_env(env._replace(observation_space=spaces.Discrete(6)))
    (problem,) = problems(env._replace(observation_space=spaces.Discrete(5)))
    assert "the obs after a step is 5, outside observation_space's [0, 4]" in problem


def test_steps_must_be_positive():
    with pytest.raises(ValueError, match="steps=0 must be an integer >= 1"):
        check_env(make(), steps=0)


def test_a_check_says_what_it_is_at():
    said = []
    check_env(make(), steps=2, say=said.append)
    assert said == ["tracing reset and step", "batching reset and step", "compiling and running 2 steps"]
