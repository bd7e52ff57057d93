"""Gymnasium's classes and functions as an agent's ``env=``, and messages about everything else passed there."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.envs import make_env
from jaxrl.envs.backends.gymnasium_classes import WANTED
from jaxrl.types import HostEnv
from tests.helpers import gymnasium_envs, probes
from tests.helpers.agents import small_ppo

KEY = jax.random.key(0)


def makes_one(every: int = 3) -> gymnasium.Env:
    return gymnasium_envs.Truncation(every)


def needs_a_rank(rank: int) -> gymnasium.Env:
    return gymnasium_envs.Truncation(rank)


def fails() -> gymnasium.Env:
    raise RuntimeError("no licence")


def local_class() -> type[gymnasium.Env]:
    class Local(gymnasium_envs.Truncation):
        pass

    return Local


def truncations(env: Any) -> list[bool]:
    """Return the truncation flags of the first rows of one environment."""
    envs = env.open(1, 0)
    envs.reset()
    rows = [bool(envs.step(np.zeros(1, np.int64)).truncated[0]) for _ in range(7)]
    envs.close()
    return rows


# --------------------------------------------------------------------------------------------------------- conversions that work


@pytest.mark.parametrize("given", [gymnasium_envs.Truncation, makes_one], ids=["class", "function"])
def test_what_can_be_imported_is_the_environment_of_its_id(given: Any) -> None:
    agent = small_ppo(given)
    env_id = f"gymnasium:{given.__module__}:{given.__name__}"
    assert agent.env is make_env(env_id) and agent.spec["env"] == env_id
    assert jaxrl.build(agent.spec).spec == agent.spec


@pytest.mark.parametrize(
    "given, name",
    [
        (local_class(), "gymnasium:Local"),
        (lambda: gymnasium_envs.Truncation(), "gymnasium:<lambda>"),
        (functools.partial(makes_one, every=5), "gymnasium:makes_one"),
        (functools.partial(gymnasium.make, "CartPole-v1"), "gymnasium:make"),
    ],
    ids=["local", "lambda", "partial", "gymnasium.make"],
)
def test_what_cannot_works_in_this_process_and_is_refused_where_a_spec_is_needed(given: Any, name: str) -> None:
    agent = small_ppo(given)
    assert isinstance(agent.env, HostEnv) and agent.env.name == name
    with pytest.raises(ValueError, match=f"env cannot be rebuilt from the spec, because the environment object '{name}' cannot"):
        jaxrl.build(agent.spec)


def test_options_are_those_of_the_class_and_of_the_backend() -> None:
    local = local_class()
    assert truncations(make_env(local)).index(True) == 4
    assert truncations(make_env(local, every=2)).index(True) == 1
    assert truncations(make_env(gymnasium_envs.Truncation, every=2)).index(True) == 1
    assert truncations(make_env(local, max_episode_steps=3, num_workers=1)).index(True) == 2
    with pytest.raises(ValueError, match=r"gymnasium:Local has no option 'evry'\. Did you mean 'every'"):
        make_env(local, evry=2)


class Limited(gymnasium_envs.Truncation):
    """Takes a limit as an argument."""

    def __init__(self, max_episode_steps: int | None = None) -> None:
        super().__init__(every=max_episode_steps or 6)


def twice_limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1", max_episode_steps=4), 9)


def test_the_limit_with_which_an_environment_is_built_is_kept() -> None:
    made = functools.partial(gymnasium.make, "CartPole-v1")
    assert make_env(lambda: made()).max_episode_steps == 500
    assert make_env(lambda: made(), max_episode_steps=7).max_episode_steps == 7
    assert make_env(twice_limited).max_episode_steps == 4
    assert truncations(make_env(lambda: made(max_episode_steps=4), max_episode_steps=3)).index(True) == 2
    with pytest.raises(ValueError, match="option max_episode_steps=1000 must be at most 500, the limit with which the environ"):
        make_env(lambda: made(), max_episode_steps=1000)
    assert make_env("gymnasium:CartPole-v1", max_episode_steps=1000).max_episode_steps == 1000  # it replaces the registered one


def test_a_limit_that_is_the_environments_own_argument_is_passed_on() -> None:
    assert make_env(Limited).max_episode_steps is None and truncations(make_env(Limited)).index(True) == 5
    longer = make_env(Limited, max_episode_steps=7)
    assert longer.max_episode_steps == 7 and truncations(longer).index(True) == 6
    assert make_env(functools.partial(gymnasium.make, "CartPole-v1"), max_episode_steps=1000).max_episode_steps == 1000
    with pytest.raises(ValueError, match="option max_episode_steps=0 must be an integer >= 1"):
        make_env(Limited, max_episode_steps=0)


@pytest.mark.slow
def test_a_local_class_trains_and_its_run_goes_on_where_it_is_given_again(tmp_path: Path) -> None:
    local, quiet = local_class(), {"eval_every": 0, "quiet": True, "tensorboard": False}
    agent = small_ppo(local)
    jaxrl.run(agent, 2 * agent.steps_per_iteration, out=tmp_path / "run", **quiet)
    longer = 3 * agent.steps_per_iteration
    with pytest.raises(ValueError, match="env cannot be rebuilt from the spec"):
        jaxrl.resume(tmp_path / "run", total_steps=longer, quiet=True)
    states, _ = jaxrl.resume(tmp_path / "run", total_steps=longer, quiet=True, env=local)
    assert int(states.iteration[0]) == 3


# ---------------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    "given, words",
    [
        (
            gymnasium.make("CartPole-v1"),
            "a single CartPoleEnv: give an id, class or function to make num_envs of them, "
            "env='gymnasium:CartPole-v1' or env=lambda: gymnasium.make('CartPole-v1')",
        ),
        (
            gymnasium_envs.Truncation(),
            "give an id, class or function to make num_envs of them, env=Truncation or env=lambda: Truncation(…)",
        ),
        (
            gymnasium.make_vec("CartPole-v1", 2),
            "the batch CartPoleVectorEnv: give 'gymnasium:CartPole-v1' and num_envs=2",
        ),
        (type("SubprocVecEnv", (), {"num_envs": 4})(), "a function that makes one, lambda: gymnasium.make(…), and num_envs=4"),
        ([makes_one] * 3, "a list of functions: give one of them, and num_envs=3"),
        (gymnasium.spec("CartPole-v1"), "an EnvSpec: give its id, 'gymnasium:CartPole-v1'"),
        (probes.constant_reward, "constant_reward, which makes a jaxrl.Env: call it, or give its id 'module:constant_reward'"),
        (dict, "the class dict"),
        (5, "int"),
    ],
    ids=lambda x: None if not isinstance(x, str) else x[:20],
)
def test_what_is_given_otherwise_is_told_what_to_write(given: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        small_ppo(given)
    said = str(caught.value)
    assert said.startswith(WANTED) and said.endswith(words) and len(said) < 260


def test_functions_that_do_not_make_one() -> None:
    with pytest.raises(TypeError, match=r"^env=needs_a_rank needs the argument 'rank'.* env=lambda: needs_a_rank\(rank=…\)$"):
        small_ppo(needs_a_rank)
    with pytest.raises(ValueError, match=r"gymnasium cannot build gymnasium:.*:fails: RuntimeError: no licence$"):
        small_ppo(fails)
    with pytest.raises(TypeError, match=r"not a jaxrl\.Env, which is already an environment"):
        make_env(probes.constant_reward())  # type: ignore[arg-type]


def test_check_env_takes_what_builders_take() -> None:
    jaxrl.check_env("CartPole-v1", steps=2)
    jaxrl.check_env(gymnasium_envs.Truncation, steps=2)
    with pytest.raises(ValueError, match="gymnax has no environment 'CartPle-v1'"):
        jaxrl.check_env("CartPle-v1")
