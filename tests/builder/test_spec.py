"""``Agent.spec``: plain data that builds the same agent again, and names what it cannot build."""

from __future__ import annotations

import inspect
import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxrl
from jaxrl import build, models
from jaxrl.builder.spec import describe, realize
from jaxrl.builder.trusted_imports import import_object
from jaxrl.models import actor_critic
from jaxrl.optimize import clipped_adam
from jaxrl.options import QR, Greedy
from jaxrl.replay.sequence import sequence_replay
from jaxrl.replay.uniform import uniform_replay
from jaxrl.types import Agent, Model, StepInput
from tests.helpers import probes
from tests.helpers.agents import IN_A_SPEC, REPRESENTATIVES, SMALL_ACTOR_CRITIC, algorithms, small, small_dqn, small_ppo, suited
from tests.helpers.optimizers import halved, plain_sgd

KEY = partial(jax.random.key, 0)
ENV = "tests.helpers.probes:truncation?every=3"


# Components that another process can import.


def weight_decay(params: Any, batch: Any) -> Any:
    return 1e-3 * optax.tree.norm(params), {}


def linear_init(key: Any, inputs: StepInput) -> Any:
    return jax.random.normal(key, (inputs.obs.shape[-1], 2))


def linear_apply(params: Any, carry: Any, inputs: StepInput) -> Any:
    return carry, inputs.obs @ params


def uniform_sequences(*sizes: int, **window: int) -> Any:
    return sequence_replay(uniform_replay)(*sizes, **window)  # type: ignore[arg-type]


def no_carry(batch_size: int) -> Any:
    return ()


# --------------------------------------------------------------------------------------------------------- components as data


@pytest.mark.parametrize(
    "part",
    [
        None,
        True,
        3,
        0.25,
        "text",
        [1, [2.0, None]],
        {"a": {"b": [1]}},
        actor_critic,
        Model,
        {"learning_rate": halved},
        [halved, weight_decay],
    ],
)
def test_describe_and_realize_are_inverse(part: Any) -> None:
    data = json.loads(json.dumps(describe(part)))
    assert realize(data) == part
    assert describe(realize(data)) == data


@pytest.mark.parametrize("number", [np.int64(3), np.float32(0.5), np.float64(0.25), np.bool_(True)])
def test_numbers_of_numpy_become_plain(number: Any) -> None:
    again = realize(json.loads(json.dumps(describe(partial(plain_sgd, momentum=number))))).keywords["momentum"]
    assert again == number and type(again) in (bool, int, float)


def test_partials_keep_their_arguments() -> None:
    part = partial(partial(plain_sgd, momentum=0.5), jax.tree.map)
    again = realize(json.loads(json.dumps(describe(part))))
    assert again.func is plain_sgd and again.args == (jax.tree.map,) and again.keywords == {"momentum": 0.5}


def test_import_object_finds_qualified_names() -> None:
    assert import_object("tests.helpers.probes:Cut") is probes.Cut
    assert import_object("jaxrl.types:Model._replace") == Model._replace


class Instance:
    def __call__(self, iteration: Any) -> Any:
        return iteration


@pytest.mark.parametrize("part", [lambda i: i, optax.linear_schedule(1, 0, 3), Instance(), Instance().__call__, jnp.float32(1)])
def test_what_cannot_be_imported_is_marked_and_refused(part: Any) -> None:
    data = describe({"optimizer": part})
    json.dumps(data)
    with pytest.raises(ValueError, match=r"^spec\['optimizer'\] cannot be rebuilt.*at the top of a module"):
        realize(data)


def test_what_main_defines_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has another __main__."""
    import __main__

    def here() -> None: ...

    here.__module__, here.__qualname__ = "__main__", "here"
    monkeypatch.setattr(__main__, "here", here, raising=False)
    assert "unimportable" in describe(here)


# ------------------------------------------------------------------------------------------------------------------ round trip


AGENTS = {
    "ppo": lambda: small_ppo(ENV, gamma=0.5, normalize_rewards=True),
    "ppo, every part": lambda: small_ppo(
        ENV,
        optimizer=partial(plain_sgd, momentum=0.9),
        schedules={"clip_eps": halved},
        extra_losses=[weight_decay],
        axis_name="d",
        anneal=True,
        total_steps=1000,
    ),
    "ppo, default parts": lambda: jaxrl.make_ppo("CartPole-v1"),
    "dqn": lambda: small_dqn(ENV, head=QR(num_quantiles=7), bootstrap=Greedy(), epsilon_end=0.2),
    "dqn, every part": lambda: small_dqn(ENV, optimizer=clipped_adam, replay=uniform_replay, schedules={"learning_rate": halved}),
}


def assert_same(a: Agent, b: Agent) -> None:
    assert a.spec == b.spec
    assert (a.num_envs, a.rollout_length, a.axis_name, a.env.name) == (b.num_envs, b.rollout_length, b.axis_name, b.env.name)
    ours, theirs = (jax.eval_shape(agent.init, jax.eval_shape(KEY)) for agent in (a, b))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), ours) == jax.tree.map(lambda x: (x.shape, x.dtype), theirs)


@pytest.mark.parametrize("name", AGENTS)
def test_a_spec_goes_through_json_and_comes_back(name: str) -> None:
    agent = AGENTS[name]()
    text = json.dumps(agent.spec)
    again = build(json.loads(text))
    assert json.dumps(again.spec) == text
    assert_same(agent, again)


def test_a_custom_replay_and_its_options_come_back() -> None:
    """R2D2 raises the weights of any replay to an exponent of the option of the same name."""
    agent = small("r2d2", ENV, **{"replay": uniform_sequences, "replay.importance_exponent": 0.3})
    assert agent.spec["settings"]["replay"]["importance_exponent"] == 0.3 and agent.spec["parts"]["replay"]
    assert_same(agent, build(json.loads(json.dumps(agent.spec))))
    assert build(agent.spec, replay="sequence").spec == small("r2d2", ENV).spec


def test_settings_come_back() -> None:
    agent = small_dqn(ENV, gamma=0.5, tau=0.1, target_update_interval=7)
    assert agent.spec["settings"]["target_update_interval"] == 7
    hyperparams = jax.jit(lambda key: build(agent.spec).init(key).learner.hyperparams)(KEY())
    assert (float(hyperparams.gamma), float(hyperparams.tau)) == (0.5, pytest.approx(0.1))


def test_changing_the_settings_changes_the_spec() -> None:
    base = small_ppo(ENV).spec
    for change in ({"gamma": 0.7}, {"num_envs": 6}, {"optimizer": plain_sgd}, {"env": "tests.helpers.probes:truncation?every=4"}):
        changed = small_ppo(**{"env": ENV, **change}).spec
        assert changed != base and json.loads(json.dumps(changed)) == changed


@algorithms(REPRESENTATIVES, IN_A_SPEC)
def test_overrides_replace_what_the_spec_says(algorithm: str) -> None:
    agent = small(algorithm, ENV)
    settings: dict[str, Any] = {"learning_rate": 0.3, "anneal": True, "axis_name": "d"}
    other = build(agent.spec, env=suited(algorithm, "tests.helpers.probes:discounting"), **settings)
    assert_same(other, small(algorithm, "tests.helpers.probes:discounting", **settings))
    assert agent.spec == small(algorithm, ENV).spec  # the first one has not changed
    with pytest.raises(TypeError, match="Did you mean 'learning_rate'"):
        build(agent.spec, learning_rat=0.3)


# ------------------------------------------------------------------------------------------------------------------ unimportable


def test_a_lambda_as_model_works_here_and_is_refused_by_name() -> None:
    agent = small_ppo(ENV, model=lambda *spaces: SMALL_ACTOR_CRITIC(*spaces))
    jax.eval_shape(lambda key: agent.step(agent.init(key)), KEY())
    spec = json.loads(json.dumps(agent.spec))
    with pytest.raises(
        ValueError, match=r"^model cannot be rebuilt from the spec, because <function .*<lambda>.* cannot be imported"
    ):
        build(spec)
    assert build(spec, model=SMALL_ACTOR_CRITIC).spec == small_ppo(ENV).spec  # or replaced


def test_an_environment_object_works_here_and_is_refused_by_name() -> None:
    agent = small_dqn(probes.truncation())
    jax.eval_shape(lambda key: agent.step(agent.init(key)), KEY())
    spec = json.loads(json.dumps(agent.spec))
    with pytest.raises(ValueError, match=r"^env cannot be rebuilt.*'tests\.helpers\.probes:truncation'.*'module:function'"):
        build(spec)
    assert build(spec, env=ENV).spec == small_dqn(ENV).spec


@pytest.mark.parametrize(
    "keyword, part",
    [
        ("optimizer", lambda hp: optax.sgd(0.1)),
        ("schedules", {"gamma": lambda i: 1.0}),
        ("extra_losses", [lambda params, batch: (0, {})]),
    ],
)
def test_other_lambdas_are_refused_by_name(keyword: str, part: Any) -> None:
    spec = small_ppo(ENV, **{keyword: part}).spec
    with pytest.raises(ValueError, match=rf"^{keyword}.* cannot be rebuilt from the spec"):
        build(spec)


def test_an_environment_that_make_env_gave_has_its_id() -> None:
    agent = small_ppo(jaxrl.make_env("CartPole-v1", gravity=5.0))
    again = build(json.loads(json.dumps(agent.spec)))
    assert float(again.env.params.gravity) == 5.0
    assert again.spec == agent.spec
    changed = agent.env._replace(max_episode_steps=7)
    with pytest.raises(ValueError, match=r"^env cannot be rebuilt"):
        build(small_ppo(changed).spec)


def test_a_model_of_importable_functions_comes_back() -> None:
    model = Model(linear_init, linear_apply, linear_apply, no_carry)
    agent = small_dqn(ENV, model=model)
    assert_same(agent, build(json.loads(json.dumps(agent.spec))))
    described = json.loads(json.dumps(describe(model)))
    assert "train" not in described["model"]  # as in specs written before it existed
    training = model._replace(train=linear_apply)
    assert realize(describe(model), trust=["tests"]) == model and realize(describe(training), trust=["tests"]) == training


def test_what_a_model_is_made_of_keeps_its_name() -> None:
    """Specs of runs name ``jaxrl.models:orthogonal``, in whichever file of that package it is defined."""
    functions = [name for name in models.__all__ if inspect.isfunction(getattr(models, name))]
    assert {"actor_critic", "q_network", "orthogonal", "encode_space"} <= set(functions)
    for name in functions:
        assert describe(getattr(models, name)) == {"import": f"jaxrl.models:{name}"}


# ----------------------------------------------------------------------------------------------------------------- invalid specs


def test_a_spec_with_holes_is_refused() -> None:
    with pytest.raises(ValueError, match="not an agent spec: 1 must be the name of a setting"):
        jaxrl.build({**small_ppo("CartPole-v1").spec, "parts": {1: 2}})
    with pytest.raises(ValueError, match=r"not an agent spec: it lacks \['builder', 'parts'\]"):
        build({"env": ENV, "settings": {}})


def test_what_is_no_spec_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^spec must be the mapping that Agent\.spec is, not a str$"):
        build("CartPole-v1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not a Agent: give its spec, agent\.spec$"):
        build(small_ppo(ENV))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["no_such_module:f", "jaxrl.models:no_such_function", "tests.helpers.probes"])
def test_what_is_gone_is_named(path: str) -> None:
    """A checkpoint outlives the module that defined its network."""
    spec = small_ppo(ENV).spec
    with pytest.raises(ValueError, match=rf"model.*{path}"):
        build({**spec, "parts": {**spec["parts"], "model": {"import": path}}})
