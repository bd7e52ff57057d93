"""All wrappers: the contract, pictures, their syntax in ids, and invalid arguments."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.envs import check_env, describe_env, make_env
from jaxrl.envs.ids import Call, EnvId, format_id, parse_id
from jaxrl.envs.wrappers import WRAPPERS, frame_stack, sticky_actions, time_limit, usage
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.search.sweep import read_sweep
from jaxrl.types import Env
from tests.helpers.agents import assert_bit_equal, small_ppo
from tests.helpers.clocks import clock

IDS = [
    "tests.helpers.clocks:clock|frame_stack(3)|flatten_observation|time_limit(9)|time_aware",
    "tests.helpers.clocks:clock|select_observation(1)|scale_action|sticky_actions",
    "tests.helpers.clocks:clock?end=5|time_limit(4)|clip_action|action_repeat(3)|frame_stack(2)",
    "CartPole-v1?gravity=5.0|select_observation(0,2)|action_repeat(2)|sticky_actions(0.5)",
    "CartPole-v1|privileged_state(1,3)|frame_stack(2)",
    "Catch-bsuite|sticky_actions|frame_stack(2)|action_repeat(2)|time_limit(3)",
]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_they_keep_the_contract(env_id: str) -> None:
    env = make_env(env_id)
    check_env(env, steps=20)
    assert make_env(env.name) is env and describe_env(env) == env.name
    assert make_env(jaxrl.make_ppo(env_id).spec["env"]) is env and jaxrl.make_ppo(env).spec["env"] == env.name


OTHERS = ("agent_id", "central_state", "select_observation", "privileged_state", "time_limit")  # two are for several agents


@pytest.mark.parametrize("by", [call for call in WRAPPERS if call not in OTHERS])
def test_pictures_are_of_what_is_inside(by: str) -> None:
    arguments = {"frame_stack": (2,), "action_repeat": (2,), "sticky_actions": (0.0,)}
    env = WRAPPERS[by](time_limit(clock(7), 20), *arguments.get(by, ()))
    state, _ = env.reset(jax.random.key(0), env.params)
    action = np.array([0.5], np.float32)
    after, _ = env.step(jax.random.key(1), state, jnp.asarray(action), env.params)
    assert env.render is not None
    executed = {"scale_action": 4}.get(by, 0)
    assert env.render(state, None, env.params).tolist() == [[[0, 0, 7]]]
    assert env.render(after, action, env.params).tolist() == [[[2 if by == "action_repeat" else 1, executed, 7]]]
    assert env.render_fps == (6 if by == "action_repeat" else 12)
    assert WRAPPERS[by](time_limit(clock(7)._replace(render=None), 20), *arguments.get(by, ())).render is None


def test_pictures_show_the_action_that_stuck() -> None:
    env = sticky_actions(clock(), 1.0)
    state, _ = env.reset(jax.random.key(0), env.params)
    for action in (3.0, 5.0):
        state, _ = env.step(jax.random.key(0), state, jnp.array([action]), env.params)
    assert env.render is not None and env.render(state, np.array([5.0]), env.params)[0, 0, 1] == 3


def test_the_same_arguments_give_the_same_environment() -> None:
    env = make_env("CartPole-v1")
    assert isinstance(env, Env)
    stacked = frame_stack(env, num_frames=np.int64(4))  # type: ignore[arg-type]
    assert (
        stacked is make_env("CartPole-v1| frame_stack( num_frames = 4 )") and stacked.name == "gymnax:CartPole-v1|frame_stack(4)"
    )
    assert describe_env(time_limit(stacked, 9)) == "gymnax:CartPole-v1|frame_stack(4)|time_limit(9)"
    other = env._replace(params=env.params.replace(gravity=np.float32(1)))
    assert frame_stack(other, 4).params.gravity == 1 and describe_env(frame_stack(other, 4)) is None
    assert frame_stack(clock(), 4).name == "custom|frame_stack(4)"


names = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6).filter(str.isidentifier)
literals = st.integers() | st.floats(allow_nan=False) | st.text(max_size=6) | st.none() | st.booleans() | st.tuples(st.integers())


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.builds(Call, names, st.lists(literals, max_size=3).map(tuple), st.dictionaries(names, literals, max_size=2))))
def test_ids_with_wrappers_read_back_as_written(calls: list[Call]) -> None:
    try:
        [compile(f"{call.name}({','.join(f'{key}=0' for key in call.keywords)})", "", "eval") for call in calls]
    except SyntaxError:
        return  # a Python keyword
    env_id = EnvId("gymnax", "X", {"text": "a|b"}, tuple(calls))
    assert parse_id(format_id(env_id)) == env_id


def test_words_and_options_in_ids() -> None:
    assert parse_id("X?a=1|select_observation(speed, 'a b')|f(x=2)") == EnvId(
        "gymnax", "X", {"a": 1}, (Call("select_observation", ("speed", "a b")), Call("f", (), {"x": 2}))
    )
    env = make_env("CartPole-v1|time_limit(9)", gravity=3.0)
    assert env.name == "gymnax:CartPole-v1?gravity=3.0|time_limit(9)"
    assert make_env("Pendulum-v1|scale_action").name == "gymnax:Pendulum-v1|scale_action(-1.0,1.0)"


CARTPOLE, PENDULUM = "CartPole-v1|", "Pendulum-v1|"


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        (CARTPOLE, "'' is not a wrapper; after '|' write its name and arguments, as in time_limit(200)"),
        (CARTPOLE + "frame_stack(4", "'frame_stack(4' is not a wrapper"),
        (CARTPOLE + "frame_stack(*4)", "is not a wrapper"),
        (CARTPOLE + "frame_stack(2+__import__('os'))", "is not a wrapper"),
        (CARTPOLE + "a.frame_stack(2)", "is not a wrapper"),
        (CARTPOLE + "time_limit(200)?gravity=5", "is not a wrapper; …: options come before the first '|'"),
        ("CartPole-v1?gravity='a|b'", "a '|' that is part of a value is written %7C"),
        (CARTPOLE + "frame_stac(4)", "unknown wrapper 'frame_stac'. Did you mean 'frame_stack'? Wrappers: …sticky_actions("),
        (CARTPOLE + "frame_stack", "wrapper frame_stack: missing … 'num_frames'; write frame_stack(num_frames)"),
        (CARTPOLE + "frame_stack(n=4)", "wrapper frame_stack has no argument 'n'; write frame_stack(num_frames)"),
        (CARTPOLE + "frame_stack(env=4)", "wrapper frame_stack has no argument 'env'"),
        (CARTPOLE + "frame_stack(4, 5)", "wrapper frame_stack: too many …; write frame_stack(num_frames)"),
        (CARTPOLE + "frame_stack(4, num_frames=5)", "wrapper frame_stack: multiple values for argument 'num_frames'"),
        (CARTPOLE + "frame_stack(n)", "frame_stack('n') cannot wrap gymnax:CartPole-v1: num_frames='n' must be an integer >= 1"),
        (CARTPOLE + "frame_stack(0)", "num_frames=0 must be an integer >= 1"),
        (CARTPOLE + "action_repeat(1.5)", "repeats=1.5 must be an integer >= 1"),
        (CARTPOLE + "time_limit(-1)", "max_steps=-1 must be an integer >= 1"),
        ("jaxrl:TicTacToe|action_repeat(2)", "action_repeat repeats actions, and jaxrl:TicTacToe… is a game of two players"),
        ("jaxrl:TicTacToe|sticky_actions", "sticky_actions repeats actions, and jaxrl:TicTacToe… is a game of two players"),
        (CARTPOLE + "sticky_actions(1.5)", "probability=1.5 is not allowed: it must be a number in [0, 1]"),
        (CARTPOLE + "sticky_actions('often')", "probability='often' must be a number in [0, 1]"),
        (CARTPOLE + "time_aware", "it needs an episode limit: … 'gymnax:CartPole-v1|time_limit(500)|time_aware'"),
        ("Catch-bsuite|time_limit(9)|time_aware", "the observation space is Box…: put flatten_observation before it"),
        (CARTPOLE + "scale_action", "it needs a Box action space with finite bounds, not Discrete(2)"),
        (PENDULUM + "clip_action|scale_action", "it needs a Box action space with finite bounds, not Box(-inf, inf"),
        (PENDULUM + "scale_action(1, -1)", "low=1 must be below high=-1"),
        (PENDULUM + "scale_action(high=1e999)", "high=inf is not allowed: it must be a finite number"),
        (PENDULUM + "scale_action(None)", "low=None must be a finite number"),
        (CARTPOLE + "clip_action", "it needs a Box action space, not Discrete(2)"),
        (CARTPOLE + "select_observation", "it must name the parts to keep, each once, from 0 to 3"),
        (CARTPOLE + "select_observation(0, 4)", "each once, from 0 to 3, not 4"),
        (CARTPOLE + "select_observation(0, -1)", "from 0 to 3, not -1"),
        (CARTPOLE + "select_observation(0, 0)", "each once, … not 0"),
        (CARTPOLE + "select_observation(True)", "not True"),
        (CARTPOLE + "select_observation((0, 2))", "not (0, 2)"),
        ("Catch-bsuite|select_observation(0)", "it keeps parts of a vector or of a Dict, but the observation space is Box"),
        ("CartPol-v1|time_limit(9)", "no environment 'CartPol-v1'. Did you mean 'CartPole-v1'"),
        ("envpool:Pong-v5|frame_stack(4)", "envpool:Pong-v5 runs on the host…for frame_stack: stack_num=4 (Atari"),
        ("envpool:CartPole-v1|time_limit(9)", "runs on the host…for time_limit: max_episode_steps=200 (all)"),
        (
            "gymnasium:CartPole-v1|frame_stack(4)",
            "…write a function that returns it wrapped, and name the function: gymnasium:module",
        ),
    ],
)
def test_bad_input_is_refused(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=".*".join(map(re.escape, message.split("…")))):
        make_env(env_id)


def test_only_environments_are_wrapped() -> None:
    with pytest.raises(TypeError, match=r"frame_stack wraps a jaxrl.Env, such as make_env\('CartPole-v1'\), not str"):
        frame_stack("CartPole-v1", 4)  # type: ignore[arg-type]


def test_usage_is_what_an_id_takes() -> None:
    assert [usage(name) for name in ("time_aware", "time_limit", "scale_action", "select_observation")] == [
        "time_aware",
        "time_limit(max_steps)",
        "scale_action(low=-1.0, high=1.0)",
        "select_observation(*keep)",
    ]


@pytest.mark.slow
def test_wrapped_environments_start_no_backend() -> None:
    """An agent can be built on any machine: nothing may be computed before a run begins."""
    from tests.helpers.fresh_python import in_fresh_python

    ids = [f"gymnax:CartPole-v1|{each}" for each in ("flatten_observation|sticky_actions", "time_limit(9)|time_aware")]
    code = f"import jaxrl.envs as e\nfor each in {ids}: e.validate_env(e.make_env(each + '|frame_stack(2)|action_repeat(2)'))\n"
    assert in_fresh_python(code + "from jaxrl.xla.private_jax import backends_started\nresult = backends_started()") is False


@pytest.mark.slow
def test_ppo_learns_from_a_wrapped_environment_and_is_built_again() -> None:
    agent = small_ppo("CartPole-v1|select_observation(0, 2)|frame_stack(2)|time_limit(12)|time_aware|sticky_actions(0.1)")
    assert agent.env.observation_space.shape == (5,)
    step = jax.jit(agent.step)
    state, metrics = step(agent.init(jax.random.key(0)))
    for _ in range(3):
        state, metrics = step(state)
    longest = max(float(metrics["charts/episodic_length"].sum), 0.0)  # type: ignore[union-attr]
    assert np.isfinite(float(metrics["losses/value_loss"].sum)) and longest <= 12 * agent.num_envs  # type: ignore[union-attr]
    again = jaxrl.build(agent.spec)
    assert again.env is agent.env
    assert_bit_equal(again.init(jax.random.key(0)), agent.init(jax.random.key(0)))


@pytest.mark.slow
def test_the_command_line_trains_and_resumes_by_id(tmp_path: Path) -> None:
    env_id, folder = "CartPole-v1|select_observation(0,2)|time_limit(3)", tmp_path / "run"
    sizes = ["--num-envs=2", "--rollout-length=4", "--num-epochs=1", "--num-minibatches=1", "--eval-every=0", "--total-steps=8"]
    assert main(["train", "ppo", "--env", env_id, *sizes, "--out", str(folder)]) == 0
    assert main(["train", "--resume", str(folder), "--total-steps", "16"]) == 0
    assert json.loads((folder / "config.json").read_text())["agent"]["env"] == env_id
    assert jaxrl.load_policy(str(folder), which="last")(np.zeros(2, np.float32)) in (0, 1)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(f'algorithm = "ppo"\nenv = "{env_id}"\ntotal_steps = 64\n[grid]\ngamma = [0.9, 0.99]\n')
    assert read_sweep(sweep).env == env_id
