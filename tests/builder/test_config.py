"""Builder keywords: each has one place, and every wrong one raises one readable error."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agent import bind
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.ppo import PPOConfig, PPOHyperparams
from jaxrl.builder.config import ReplayConfig, RolloutConfig
from jaxrl.builder.settings import free_hyperparams, split_settings
from jaxrl.runtime.training_loop.members import check_hyperparams
from jaxrl.runtime.training_loop.plan import make_plan
from jaxrl.runtime.training_loop.run_config import Evaluations, RunConfig
from jaxrl.settings.options import ABSENT, held_by_options, option_fields
from jaxrl.settings.validation import (
    Count,
    Numbers,
    PositiveUnit,
    Range,
    Unit,
    check_count,
    check_seeds,
    checked,
    in_words,
    merge_hyperparams,
    setting_types,
)
from jaxrl.training import num_iterations
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import every_builder, every_rollout_builder, small_dqn, small_ppo

Builder = Callable[..., Agent]
ENTRIES = [pytest.param(*entry.load(), id=name) for name, entry in ALGORITHMS.items()]
ENV = probes.constant_reward()


# ---------------------------------------------------------------------------------------------------------- one place for each


@pytest.mark.parametrize("builder, config, hyperparams", ENTRIES)
def test_each_keyword_has_exactly_one_home(builder: Builder, config: Any, hyperparams: Any) -> None:
    structure, data = {field.name for field in dataclasses.fields(config)}, set(free_hyperparams(config, hyperparams))
    named = {name for name, p in inspect.signature(builder).parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert not structure & data
    assert named & (structure | data) <= {"replay"}  # an option, or a part
    numbers = {name: getattr(hyperparams(), name) for name in data}
    given = {**{field.name: field.default for field in dataclasses.fields(config)}, **numbers}
    assert split_settings("f", config, hyperparams, given) == (config(), hyperparams())


@pytest.mark.parametrize("builder, config, hyperparams", ENTRIES)
def test_each_setting_has_a_range_that_holds_its_default(builder: Builder, config: Any, hyperparams: Any) -> None:
    types = setting_types(hyperparams) | setting_types(config)
    defaults = hyperparams()._asdict() | vars(config())
    assert types.keys() == defaults.keys()
    for name, kinds in option_fields(config).items():
        assert type(defaults.pop(name)) in [kind or type(None) for kind in kinds], name
        types |= {f"{name}.{kind.name}.{field}": type_ for kind in kinds if kind for field, type_ in setting_types(kind).items()}
        defaults |= {f"{name}.{kind.name}.{field}": x for kind in kinds if kind for field, x in vars(kind()).items()}
    absent = [name for name, default in defaults.items() if default is ABSENT]
    assert {*absent} <= {*held_by_options(config)}
    for name, default in ((name, default) for name, default in defaults.items() if name not in absent):
        plain = (str,) if get_origin(types[name]) is Literal else (tuple,) if types[name] == Numbers else (bool, int, float)
        assert type(default) in plain, name  # no arrays at import
        assert checked(name, default, types[name]) == default and in_words(types[name])
        outside = -math.inf if in_words(types[name]) == "a finite number" else -1.0
        with pytest.raises((TypeError, ValueError), match=f"^{re.escape(name)}={outside:g}"):
            checked(name, outside, types[name])
    config().check()


class NoRange(NamedTuple):
    gamma: Unit = 0.5
    speed: float = 1.0


class NoType(NamedTuple):
    gamma: Unit = 0.5
    speed: Any = 1.0


@dataclasses.dataclass(frozen=True)
class NoRangeConfig(RolloutConfig):
    speed: int = 1


@pytest.mark.parametrize(
    "config, hyperparams",
    [(RolloutConfig, NoRange), (RolloutConfig, NoType), (NoRangeConfig, PPOHyperparams)],
    ids=["float", "Any", "Config"],
)
def test_a_setting_without_a_range_is_refused(config: Any, hyperparams: Any) -> None:
    message = r"\.speed has no range: give the allowed values in its type, as in speed: Unit = ….* Annotated\[float, Range"
    with pytest.raises(TypeError, match=message):
        split_settings("make_algorithm", config, hyperparams, {})
    if hyperparams is not PPOHyperparams:
        with pytest.raises(TypeError, match=message):
            bind(small_ppo(ENV).algorithm, ENV, num_envs=4, rollout_length=8, hyperparams=hyperparams())


def test_configs_are_frozen() -> None:
    for config in (PPOConfig(), DQNConfig()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.num_envs = 3  # type: ignore[misc]


class Toy(NamedTuple):
    gamma: Unit = 0.5
    tau: PositiveUnit = 1.0


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    num_envs: Count = 2
    seats: Annotated[int, Range(1, 4, integral=True)] = 2
    kind: Literal["soft", "hard"] = "soft"
    wide: bool = False


def test_split_settings_sorts() -> None:
    assert split_settings("f", ToyConfig, Toy, {"tau": 0.25, "num_envs": 7}) == (ToyConfig(7), Toy(0.5, 0.25))
    assert split_settings("f", ToyConfig, Toy, {}) == (ToyConfig(), Toy())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"seats": 5}, r"seats=5 must be an integer in \[1, 4\]"),
        ({"kind": "sof"}, r"kind='sof' must be one of 'soft', 'hard'\. Did you mean 'soft'\?"),
        ({"wide": 1}, "wide=1 must be True or False"),
        ({"num_envs": 10**400}, None),
    ],
)
def test_settings_are_what_their_types_say(settings: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert split_settings("f", ToyConfig, Toy, settings)[0] == ToyConfig(**settings)
        return
    with pytest.raises((TypeError, ValueError), match=f"^{message}$"):
        split_settings("f", ToyConfig, Toy, settings)


def test_what_an_iteration_collects_is_counted_in_32_bits() -> None:
    for config in (PPOConfig, ReplayConfig):
        with pytest.raises(ValueError, match=r"num_envs=65536 \* rollout_length=32768 is 2147483648 rows per iteration"):
            config(num_envs=2**16, rollout_length=2**15).check()


# ------------------------------------------------------------------------------------------------------------- unknown keywords


@every_rollout_builder
@pytest.mark.parametrize(
    "wrong, right",
    [("lerning_rate", "learning_rate"), ("num_env", "num_envs"), ("gama", "gamma"), ("rollout_lenght", "rollout_length")],
)
def test_an_unknown_keyword_suggests_the_nearest(build: Builder, wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=rf"{wrong}'.* Did you mean '{right}'\?") as caught:
        build(ENV, **{wrong: 1})
    assert str(caught.value).endswith("?")  # else a full list of settings would hide the hint


@every_builder
def test_an_unknown_keyword_that_is_near_nothing_lists_what_there_is(build: Builder) -> None:
    with pytest.raises(TypeError, match=r"unknown keyword 'xyzzy'\. Settings: .*'learning_rate'.*'(members|num_envs)'"):
        build(ENV, xyzzy=1)


@every_builder
@pytest.mark.parametrize("wrong, right", [("optimiser", "optimizer"), ("schedule", "schedules"), ("axisname", "axis_name")])
def test_an_unknown_keyword_may_be_near_a_part(build: Builder, wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"Did you mean '{right}'"):
        build(ENV, **{wrong: None})


@pytest.mark.parametrize("build, other", [(small_ppo, "replay"), (small_dqn, "extra_losses")])
def test_a_part_of_another_builder_is_not_suggested(build: Builder, other: str) -> None:
    with pytest.raises(TypeError, match=f"unknown keyword '{other}'") as caught:
        build(ENV, **{other: ()})
    assert f"Did you mean '{other}'" not in str(caught.value)


@every_builder
def test_a_keyword_like_no_other_suggests_nothing(build: Builder) -> None:
    with pytest.raises(TypeError, match="'xyzzy'") as caught:
        build(ENV, xyzzy=1)
    assert "Did you mean" not in str(caught.value)


# --------------------------------------------------------------------------------------------------------------- invalid values


@every_rollout_builder
@pytest.mark.parametrize(
    "name, value",
    [
        ("learning_rate", -1e-3),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("gamma", 1.01),
        ("gamma", -0.1),
        ("gamma", math.nan),
        ("max_grad_norm", 0),
        ("max_grad_norm", -math.inf),
    ],
)
def test_hyperparameters_out_of_range(build: Builder, name: str, value: float) -> None:
    words = in_words(setting_types(PPOHyperparams)[name])
    with pytest.raises(ValueError, match=rf"^{name}={value:g} is not allowed: it must be {words}".replace("[", r"\[")):
        build(ENV, **{name: value})
    agent = build(ENV)
    with pytest.raises(ValueError, match=name):
        agent.init(jax.random.key(0), {name: value})
    with pytest.raises(ValueError, match=name):
        agent.init(jax.random.key(0), {name: jnp.float32(value)})


@pytest.mark.parametrize(
    "build, name, value",
    [
        (small_ppo, "gae_lambda", 1.5),
        (small_ppo, "stop_kl", -0.1),
        (small_ppo, "ent_coef", -0.01),
        (small_ppo, "vf_coef", math.nan),
        (small_dqn, "tau", 0.0),
        (small_dqn, "tau", 1.5),
        (small_dqn, "epsilon_start", 1.1),
        (small_dqn, "epsilon_end", -0.1),
        (small_dqn, "exploration_steps", 0),
    ],
)
def test_hyperparameters_of_one_algorithm_out_of_range(build: Builder, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}="):
        build(ENV, **{name: value})


@every_builder
@pytest.mark.parametrize("value", ["fast", None, {}, object()])
def test_hyperparameters_of_the_wrong_type(build: Builder, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^learning_rate="):
        build(ENV, learning_rate=value)


@pytest.mark.parametrize("value", ["0.9", True, [0.9, 0.99], np.array([0.9, 0.99]), []])
@pytest.mark.parametrize("where", ["builder", "init"])
def test_hyperparameters_that_are_no_single_number(value: Any, where: str) -> None:
    """Several values need ``jax.vmap(agent.init)``. Without it they would fail deep in a trace."""
    with pytest.raises((TypeError, ValueError), match="gamma"):
        if where == "builder":
            small_ppo(ENV, gamma=value)
        else:
            merge_hyperparams(PPOHyperparams(), {"gamma": value})


@pytest.mark.parametrize(
    "settings",
    [{"gamma": np.float32(0.5)}, {"gamma": jnp.float32(0.5)}, {"num_envs": np.int64(4)}],
    ids=["numpy", "jax", "count"],
)
def test_numbers_of_numpy_and_jax_become_plain_in_the_spec(settings: dict[str, Any]) -> None:
    spec = small_ppo("tests.helpers.probes:constant_reward", **settings).spec
    assert json.loads(json.dumps(spec)) == spec


@every_rollout_builder
@pytest.mark.parametrize("name", ["num_envs", "rollout_length"])
@pytest.mark.parametrize("value", [0, -4, 2.5, "4", None, True, math.inf, math.nan])
def test_counts_that_are_no_positive_integers(build: Builder, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}={value!r} must be an integer >= 1"):
        build(ENV, **{name: value})


@every_rollout_builder
@pytest.mark.parametrize("value", [8.0, 8e0, np.float32(8), np.float64(8)])
def test_a_whole_float_is_a_count(build: Builder, value: Any) -> None:
    """Users write 100,000 as 1e5."""
    agent = build(ENV, num_envs=value, total_steps=1e5)
    assert agent.num_envs == 8 and type(agent.num_envs) is int
    assert agent.spec == build(ENV, num_envs=8, total_steps=100_000).spec
    iterations = num_iterations(agent, 1e5)
    assert iterations == num_iterations(agent, 100_000) and type(iterations) is int
    with pytest.raises(ValueError, match=r"total_steps=100000.5 must be an integer >= 1"):
        num_iterations(agent, 100_000.5)
    with pytest.raises(ValueError, match="counted in 32 bits"):
        num_iterations(agent, 1e30)


@every_builder
def test_a_length_has_no_fraction(build: Builder) -> None:
    with pytest.raises(ValueError, match=r"^total_steps=100.5 is not allowed: it must be an integer >= 0"):
        build(ENV, total_steps=100.5)


@every_builder
def test_a_learning_rate_of_zero_is_a_control(build: Builder) -> None:
    """Accepted everywhere. Parameters then do not change."""
    agent = build(ENV, learning_rate=0)
    assert agent.spec["settings"]["learning_rate"] == 0.0
    assert merge_hyperparams(PPOHyperparams(), {"learning_rate": 0}).learning_rate == 0
    assert np.all(check_hyperparams(agent, {"learning_rate": [0, 1e-3]}, 2)["learning_rate"] == np.float32([0, 1e-3]))


@pytest.mark.parametrize("build, name", [(small_ppo, "normalize_observations"), (small_ppo, "anneal"), (small_dqn, "anneal")])
def test_switches_that_are_no_booleans(build: Builder, name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name}='no'"):
        build(ENV, **{name: "no"})


def test_check_count() -> None:
    for value in (3, np.int32(3), 3.0, np.float32(3)):
        assert check_count("n", value) == 3 and type(check_count("n", value)) is int
    assert check_count("n", 0, at_least=0) == check_count("n", 0.0, at_least=0) == 0
    for value, least in ((2, 3), (-1, 0), (1.5, 1), (np.float32(2.5), 1), (np.bool_(True), 0), (math.inf, 1)):
        with pytest.raises(ValueError, match=rf"must be an integer >= {least}"):
            check_count("n", value, at_least=least)


def test_a_run_takes_whole_floats() -> None:
    agent = small_ppo(ENV)
    given, plain = (
        make_plan(agent, RunConfig(total_steps, chunk_iterations=chunk, evaluation=Evaluations(every, episodes)))
        for total_steps, every, episodes, chunk in ((1e3, 2.0, 3.0, 4.0), (1000, 2, 3, 4))
    )
    counts = ("total_steps", "eval_every", "eval_episodes", "chunk_iterations", "iterations", "rows_per_iteration")
    assert given == plain and all(type(given.request()[name]) is int for name in counts)
    assert check_seeds(2.0) == [0, 1]
    with pytest.raises(TypeError, match=r"seeds=1\.5 must be a number of seeds"):
        check_seeds(1.5)


@pytest.mark.parametrize(
    "allowed, inside, outside, text",
    [
        (Range(0, open_low=True), [1e-30, 1e30], [0, -1, math.inf], "a finite number > 0"),
        (Range(0), [0, 5], [-1e-9, math.inf, math.nan], "a finite number >= 0"),
        (Range(0, 1), [0, 0.5, 1], [-0.1, 1.1, math.nan], "a number in [0, 1]"),
        (Range(0, 1, open_low=True), [1e-9, 1], [0, 2], "a number in (0, 1]"),
        (Range(-2, 3), [-2, 3], [-3, 4], "a number in [-2, 3]"),
    ],
)
def test_ranges(allowed: Range, inside: list[float], outside: list[float], text: str) -> None:
    assert all(allowed.contains(x) for x in inside)
    assert not any(allowed.contains(x) for x in outside)
    assert str(allowed) == text


# ------------------------------------------------------------------------------------------------- hyperparameters given to init


def test_merge_hyperparams_gives_f32_scalars() -> None:
    for given in (None, {}, {"gamma": 1}, {"gamma": np.float64(0.25)}, Toy(0.25, 0.5)):
        merged = merge_hyperparams(Toy(), given)
        assert isinstance(merged, Toy)
        assert all(x.dtype == jnp.float32 and x.shape == () and not x.weak_type for x in merged), given
    assert merge_hyperparams(Toy(), {"gamma": 0.25}) == Toy(0.25, 1.0)
    assert merge_hyperparams(Toy(), Toy(0.25, 0.75)) == Toy(0.25, 0.75)
    assert Toy() == (0.5, 1.0) and isinstance(Toy().gamma, float)  # defaults stay Python floats: arrays could be donated away


def test_merge_hyperparams_refuses() -> None:
    with pytest.raises(TypeError, match=r"unknown hyperparameter 'gama'. Did you mean 'gamma'\?$"):
        merge_hyperparams(Toy(), {"gama": 0.5})
    for wrong in ([0.5], 0.5, "gamma", PPOHyperparams()):
        with pytest.raises(TypeError, match=f"hyperparams must be a mapping or a Toy, not {type(wrong).__name__}"):
            merge_hyperparams(Toy(), wrong)
    with pytest.raises(ValueError, match="gamma=2 is not allowed"):
        merge_hyperparams(Toy(), Toy(2.0, 1.0))
    with pytest.raises(ValueError, match="gamma=nan is not allowed"):
        merge_hyperparams(Toy(), {"gamma": jnp.array(jnp.nan)})


def test_traced_hyperparameters_pass() -> None:
    merged = jax.vmap(lambda g: merge_hyperparams(Toy(), {"gamma": g}))(jnp.array([0.1, 5.0]))
    np.testing.assert_allclose(merged.gamma, [0.1, 5.0])


@every_builder
def test_init_names_unknown_hyperparameters(build: Builder) -> None:
    agent = build(ENV)
    with pytest.raises(TypeError, match="Did you mean 'learning_rate'"):
        agent.init(jax.random.key(0), {"learning_rat": 1e-3})
    with pytest.raises(TypeError, match="num_envs"):  # the structure cannot change after building
        agent.init(jax.random.key(0), {"num_envs": 3})
