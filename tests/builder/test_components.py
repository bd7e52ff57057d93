"""Components from users: errors are raised when the agent is built, in one line with the cause and the fix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import jaxrl
from jaxrl.builder.attempt import show
from jaxrl.builder.components import constant_optimizer
from jaxrl.builder.networks import resolve_model
from jaxrl.models import ActorCriticOutput, actor_critic, from_linen, from_nnx, q_network
from jaxrl.replay.sequence import sequence_replay
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.inputs import example_input
from jaxrl.runtime.logs.run_folder import first_difference, what_counts
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import (
    RECURRENT,
    SMALL_ACTOR_CRITIC,
    SMALL_Q_NETWORK,
    every_builder,
    every_rollout_builder,
    small_dqn,
    small_ppo,
)
from tests.helpers.networks import shapes_of_a_step

ENV = probes.constant_reward()
ACTOR_CRITIC = SMALL_ACTOR_CRITIC(ENV.observation_space, ENV.action_space)
Builder = Callable[..., Agent]


def one_line(caught: Any) -> str:
    text = str(caught.value)
    assert "\n" not in text and " at 0x" not in text and len(text) < 500
    return text


# ------------------------------------------------------------------------------------------------------------------- optimisers


def adamw(hp: Any) -> optax.GradientTransformation:
    return optax.adamw(hp.learning_rate)


@pytest.mark.slow
@every_builder
def test_a_ready_transformation_is_taken_as_it_is_and_no_rate_is_logged(build: Builder) -> None:
    """The learning rate inside is unknown. The default of the unused hyperparameter must not be logged."""
    _, metrics = shapes_of_a_step(build(ENV, optimizer=optax.adamw(1e-3)))
    assert "charts/learning_rate" not in metrics
    _, metrics = shapes_of_a_step(build(ENV, optimizer=lambda hp: optax.sgd(0.1)))
    assert "charts/learning_rate" not in metrics
    for reads in (None, adamw, lambda hp: optax.sgd(hp._asdict()["learning_rate"])):
        _, metrics = shapes_of_a_step(build(ENV, optimizer=reads))
        assert "charts/learning_rate" in metrics


def test_a_ready_transformation_is_not_changed() -> None:
    transformation = optax.adamw(1e-3)
    assert constant_optimizer(transformation)(None) is transformation


@every_builder
@pytest.mark.parametrize(
    "wrong, words",
    [
        (optax.adamw, "optimizer=adamw must be an optax transformation, or a function of the hyperparameters"),
        (lambda: optax.adam(1e-3), "optimizer=<lambda> must be"),
        ("adam", "optimizer='adam' must be"),
        ("", "optimizer='' must be"),
        (lambda hp: None, "it gave NoneType"),
        (lambda hp: optax.adam(hp.lr), "there is no hyperparameter 'lr'. It is called 'learning_rate' here"),
        (lambda hp: optax.lbfgs(hp.learning_rate), "This one fails with TypeError"),
        (lambda hp: optax.sgd(1e-3 if hp.learning_rate > 0.5 else 1.0), "This one fails with TracerBoolConversionError"),
        (optax.GradientTransformation(lambda p: (), lambda g, s, p: (1.0, s)), "they must agree"),
    ],
)
def test_an_optimizer_that_fails_says_so_at_the_door(build: Builder, wrong: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        build(ENV, optimizer=wrong)
    text = one_line(caught)
    assert text.startswith("optimizer=") and words in text
    assert "they must agree" in text or "lambda hp: optax.adamw(hp.learning_rate)" in text


@every_rollout_builder
def test_settings_that_the_optimizer_does_not_look_at_are_refused(build: Builder) -> None:
    with pytest.raises(ValueError, match=r"learning_rate=0.5 has no effect, because optimizer=.* does not use it") as caught:
        build(ENV, optimizer=optax.adamw(1e-3), learning_rate=0.5)
    one_line(caught)
    with pytest.raises(ValueError, match=r"max_grad_norm=3 has no effect.*clip_by_global_norm\(hp.max_grad_norm\)"):
        build(ENV, optimizer=adamw, max_grad_norm=3.0)
    with pytest.raises(ValueError, match=r"learning_rate has a schedule, but optimizer=.* does not use it"):
        build(ENV, optimizer=optax.adamw(1e-3), schedules={"learning_rate": lambda i: 1.0})
    build(ENV, optimizer=optax.adamw(1e-3), anneal=True, total_steps=100)  # anneal=True, as by default, has no effect
    build(ENV, optimizer=adamw, learning_rate=0.5)
    build(ENV, optimizer=optax.adamw(1e-3), schedules={"gamma": lambda i: 1.0})


def test_a_ready_transformation_is_refused_by_name_where_a_spec_is_needed() -> None:
    spec = small_ppo("tests.helpers.probes:constant_reward", optimizer=optax.adamw(1e-3)).spec
    with pytest.raises(ValueError, match=r"^optimizer cannot be rebuilt"):
        jaxrl.build(spec)
    assert jaxrl.build(spec, optimizer=adamw).num_envs == 4


@every_rollout_builder
def test_a_setting_without_effect_is_left_open(build: Builder) -> None:
    """So the agent can be built again after a default changes. An older run folder stores the number."""
    spec = build("tests.helpers.probes:constant_reward", optimizer=adamw).spec
    settings = spec["settings"]
    assert settings["max_grad_norm"] is None and settings["learning_rate"] is not None and settings["gamma"] is not None
    assert jaxrl.build(spec).spec == spec
    older = {**spec, "settings": {**settings, "max_grad_norm": 123.0}}
    assert first_difference(*what_counts(older, spec)) is None
    assert "gamma" in str(first_difference(*what_counts({**older, "settings": {**settings, "gamma": 0.5}}, spec)))


# -------------------------------------------------------------------------------------------------------------------- schedules


@every_builder
@pytest.mark.parametrize(
    "schedules, words",
    [
        (lambda i: 1.0, "must map names of hyperparameters to functions: {'learning_rate': …}"),
        ([("learning_rate", lambda i: 1.0)], "must map names of hyperparameters to functions"),
        ({"learning_rate": 0.5}, "schedules['learning_rate']=0.5 must be a function of the iteration that returns a factor"),
        ({"learning_rate": lambda i: i.value}, "schedules['learning_rate'] fails with AttributeError"),
        ({"learning_rate": lambda i: 1.0 if i < 5 else 0.5}, "schedules['learning_rate'] fails with TracerBoolConversionError"),
        ({"learning_rate": lambda: 1.0}, "schedules['learning_rate'] fails with TypeError"),
        (
            {"learning_rate": lambda i: jnp.ones(3)},
            "schedules['learning_rate'] returns float32[3]: it must return one number, a factor",
        ),
        ({"learning_rate": lambda i: None}, "schedules['learning_rate'] returns nothing: it must return one number"),
    ],
)
def test_a_schedule_that_gives_no_factor_is_refused(build: Builder, schedules: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        build(ENV, schedules=schedules)
    text = str(caught.value)
    assert words in text and "\n" not in text and len(text) < 400


# ----------------------------------------------------------------------------------------------------------------------- models


class Net(nn.Module):
    width: int = 2

    @nn.compact
    def __call__(self, inputs: Any) -> Any:
        return nn.Dense(self.width)(inputs.obs)


class NnxNet(nnx.Module):
    def __init__(self, width: int = 2, *, rngs: nnx.Rngs) -> None:
        self.out = nnx.Linear(1, width, rngs=rngs)

    def __call__(self, inputs: Any) -> Any:
        return self.out(inputs.obs)


@pytest.mark.parametrize(
    "model, call",
    [
        (Net(), r"from_linen\(Net\("),
        (Net, r"from_linen\(Net\("),
        (NnxNet, r"from_nnx\(lambda rngs: NnxNet\("),
        (NnxNet(rngs=nnx.Rngs(0)), r"from_nnx\(lambda rngs: NnxNet\("),
    ],
)
@every_builder
def test_a_flax_module_is_told_how_to_become_a_model(build: Builder, model: Any, call: str) -> None:
    with pytest.raises(TypeError, match=rf"^model=N.* is a flax module.*model=jaxrl.models.{call}") as caught:
        build(ENV, model=model)
    one_line(caught)


def test_what_the_message_says_works() -> None:
    env = probes.action_choice()
    with pytest.raises(TypeError, match=r"must give Q-values f32\[batch, 2\]; for a batch of one it gives float32\[1, 3\]"):
        small_dqn(env, model=from_linen(Net(width=3)))
    with pytest.raises(TypeError, match=r"must give Q-values f32\[batch, 2\]; for a batch of one it gives float32\[1, 3\]"):
        small_dqn(env, model=from_nnx(lambda rngs: NnxNet(width=3, rngs=rngs)))
    small_dqn(env, model=from_linen(Net()))
    small_dqn(env, model=from_nnx(lambda rngs: NnxNet(rngs=rngs)))


def test_a_model_for_other_spaces() -> None:
    other = probes.memory()
    model = SMALL_ACTOR_CRITIC(jaxrl.make_env("Pendulum-v1").observation_space, other.action_space)
    with pytest.raises(
        TypeError, match=r"^model=Model\(…\): init\(key, inputs\) on the spaces of .* fails with TypeError"
    ) as caught:
        small_ppo(ENV, model=model)
    one_line(caught)
    three = SMALL_ACTOR_CRITIC(ENV.observation_space, jaxrl.make_env("Acrobot-v1").action_space)
    with pytest.raises(
        TypeError, match=r"^model=Model\(…\) must give a Categorical policy of size .*; it gives Categorical float32"
    ) as caught:
        small_ppo(ENV, model=three)
    one_line(caught)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"initial_carry": None}, "its initial_carry is None, and must be a function: lambda batch_size: () for a model without"),
        ({"initial_carry": ()}, "its initial_carry is (), and must be a function"),
        ({"init": lambda key: {}}, "init(key, inputs) on the spaces of"),
        (
            {"apply": lambda p, c, x: ACTOR_CRITIC.apply(p, c, x)[1]},
            "apply must return (carry, outputs); it returned ActorCritic",
        ),
        ({"apply": lambda p, c, x: (c, x.observation)}, "fails with AttributeError: 'StepInput' object has no attribute"),
        ({"apply": lambda p, c, x: (jnp.zeros(3), ACTOR_CRITIC.apply(p, c, x)[1])}, "returned the carry float32[3], and initial"),
        ({"unroll": lambda p, c, x: None}, "unroll must return (carry, outputs); it returned nothing"),
        (
            {"unroll": lambda p, c, x: (c, jax.tree.map(lambda y: y[0], ACTOR_CRITIC.apply(p, c, x)[1]))},
            "with a leading time axis",
        ),
    ],
)
def test_a_model_that_breaks_its_contract(change: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError) as caught:
        small_ppo(ENV, model=ACTOR_CRITIC._replace(**change))
    assert one_line(caught).startswith("model=Model(…)") and words in one_line(caught)


@pytest.mark.parametrize(
    "model, words",
    [
        ("mlp", "model='mlp' must be a jaxrl.Model(init, apply, unroll, initial_carry), or a function of"),
        ([64, 64], "model=[64, 64] must be a jaxrl.Model"),
        (lambda: None, "model=<lambda> takes (), and must be a jaxrl.Model"),
        (lambda *spaces: 3, "model=<lambda> gives 3 for the spaces of"),
        (partial(q_network, hidden_sizes=(8,)), "model=partial(q_network, …) must give an ActorCriticOutput"),
    ],
)
def test_what_is_no_model(model: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        small_ppo(ENV, model=model)
    assert words in one_line(caught)


def test_arguments_of_the_network_mean_the_function_with_them() -> None:
    env = "tests.helpers.probes:constant_reward"
    given = {"hidden_sizes": [8], "core": "gru", "core_size": 4}
    assert small_ppo(env, model=given).spec == small_ppo(env, model=partial(actor_critic, **given)).spec
    carry = small_ppo(env, model=given).algorithm.initial_carry(3)
    assert [leaf.shape for leaf in jax.tree.leaves(carry)] == [(3, 4)]
    assert small_dqn(env, model={"hidden_sizes": (8,)}).spec == small_dqn(env, model=SMALL_Q_NETWORK).spec
    assert small_dqn(env, model={}).spec == small_dqn(env, model=None).spec


@pytest.mark.parametrize(
    "build, model, words",
    [
        (
            small_ppo,
            {"cor": "gru"},
            "model={'cor': 'gru'}: actor_critic takes no 'cor'. Did you mean 'core'? It takes: encoder, ",
        ),
        (small_dqn, {"squash": True}, "model={'squash': True}: q_network takes no 'squash'."),
        (
            small_ppo,
            {"core": "gruu"},
            "core='gruu' is unknown: choose one of (None, 'gru', 'lstm', 'attention', 's5'). Did you mean 'gru'?",
        ),
        (
            small_ppo,
            {"core": "gru", "context": 8},
            "context=8 has no effect with core='gru': it is for core='attention'",
        ),
        (small_ppo, {"hidden_sizes": 8}, "hidden_sizes=8 must be positive integers, as in (64, 64), or (64,) for one layer"),
        (small_dqn, {"core": "gru"}, "DQN learns from single rows, so its model must be memoryless"),
    ],
)
def test_wrong_arguments_of_the_network(build: Any, model: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        build(ENV, model=model)
    assert words in one_line(caught)


def test_a_model_may_take_a_key_or_leave_it_out() -> None:
    """An algorithm with a key passes it to any model; one without passes none."""
    model = SMALL_Q_NETWORK(ENV.observation_space, ENV.action_space)
    seen = []

    def noisy(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        seen.append(key)
        return model.apply(params, carry, inputs)

    def plain(params: Any, carry: Any, inputs: Any) -> Any:
        return model.apply(params, carry, inputs)

    for apply, keys in ((noisy, ["key"]), (plain, [])):
        seen.clear()
        given = model._replace(apply=apply, unroll=apply)
        shapes_of_a_step(small_dqn(ENV, model=given))
        assert all(key is None for key in seen)
        resolved = resolve_model(given, SMALL_Q_NETWORK, ENV)
        for function in (resolved.apply, resolved.unroll):
            seen.clear()
            inputs = example_input(ENV.observation_space, ENV.action_space)
            jax.eval_shape(lambda: function(model.init(jax.random.key(0), inputs), (), inputs, key="key"))  # noqa: B023
            assert seen == keys


def test_built_in_models_keep_the_contract() -> None:
    agents = [small_ppo(ENV, model=model) for model in (RECURRENT, actor_critic, SMALL_ACTOR_CRITIC)]
    agents.append(small_dqn(ENV, model=SMALL_Q_NETWORK))
    assert all("unimportable" not in str(agent.spec["parts"]["model"]) for agent in agents)


# ----------------------------------------------------------------------------------------------------------------------- replay


@pytest.mark.parametrize(
    "replay, words",
    [
        (
            5,
            "replay=5 must be Uniform(…), Prioritized(…), Recent(…), or a function (capacity per environment, num_envs, "
            "rows_per_add, *, before, after) -> Replay, such as jaxrl.replay.uniform.uniform_replay",
        ),
        (uniform_replay(60, 4, 2), "replay=Replay(…) must be Uniform(…)"),
        (lambda capacity: uniform_replay(capacity, 4, 2), "replay=<lambda> must be Uniform(…)"),
        (lambda *sizes, after: uniform_replay(*sizes, after=after), "replay=<lambda> must be Uniform(…)"),
        (lambda *sizes, **window: None, "replay=<lambda> gives None, and must be Uniform(…)"),
    ],
)
def test_what_is_no_replay(replay: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        small_dqn(ENV, replay=replay)
    assert words in one_line(caught) and one_line(caught).endswith(" such as jaxrl.replay.uniform.uniform_replay")


def test_a_replay_of_other_rows() -> None:
    with pytest.raises(TypeError, match=r"^replay=.*sequence_replay.*, which must store the rows of .*constant_reward, fails"):
        small_dqn(ENV, replay=sequence_replay())


def test_equal_shares_of_a_batch() -> None:
    """``data_parallel`` checks the sizes at once, and a custom mapped axis when it is traced."""
    agent = small_dqn(ENV, batch_size=33, replay_ratio=33.0, axis_name="d")
    states = jax.eval_shape(jax.vmap(agent.init, axis_name="d"), jax.random.split(jax.random.key(0), 2))
    with pytest.raises(ValueError, match="batch_size=33 must be a multiple of the 2 devices, which draw equal shares of a batch"):
        jax.eval_shape(jax.vmap(agent.step, axis_name="d"), states)


# ----------------------------------------------------------------------------------------------------------------------- losses


def decay(params: Any, batch: Any) -> Any:
    return 1e-3 * optax.tree.norm(params), {"decay": optax.tree.norm(params)}


def test_one_loss_need_not_be_in_a_list() -> None:
    agent = small_ppo("tests.helpers.probes:constant_reward", extra_losses=decay)
    assert agent.spec == small_ppo("tests.helpers.probes:constant_reward", extra_losses=[decay]).spec
    assert "losses/decay" in shapes_of_a_step(agent)[1]


@pytest.mark.parametrize(
    "loss, words",
    [
        (lambda p, b: b.value.mean(), "returned float32[]: it must return (loss, {name: scalar to log})"),
        (
            lambda p, b: (b.value, {}),
            "returned float32[16] as the loss, which must be one number, such as a mean over the valid rows",
        ),
        (lambda p, b: (b.value.mean(), {"v": b.value}), "returned float32[16] as the scalar 'v', which must be one number"),
        (lambda p, b: (b.value.mean(), {"v": "high"}), "returned str as the scalar 'v', which must be one number"),
        (lambda p, b: None, "returned nothing: it must return"),
        (lambda p, b: (b.reward.mean(), {}), "This one fails with AttributeError: 'Batch' object has no attribute 'reward'"),
        (lambda b: (0.0, {}), "This one fails with TypeError"),
        ("l2", "extra_losses[0]='l2' must be a function (params, Batch) -> (loss, {name: scalar})"),
    ],
)
def test_a_wrong_loss_is_refused_when_the_agent_is_built(loss: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        small_ppo(ENV, extra_losses=[loss])
    assert one_line(caught).startswith("extra_losses[0]=") and words in one_line(caught)


def test_losses_are_tried_on_sequences_and_over_devices_too() -> None:
    def over_devices(params: Any, batch: Any) -> Any:
        assert batch.value.shape == (2, 8)  # sequences
        return jax.lax.pmean(batch.value.mean(), "d"), {}

    small_ppo(ENV, model=RECURRENT, extra_losses=over_devices, axis_name="d")
    small_ppo(probes.target_action(), model=RECURRENT, extra_losses=over_devices, axis_name="d", hold_noise=3)
    with pytest.raises(TypeError, match="extra_losses='l2' must be"):
        small_ppo(ENV, extra_losses="l2")
    with pytest.raises(TypeError, match=r"extra_losses=dict\(…\) must be|extra_losses=\{"):
        small_ppo(ENV, extra_losses={"decay": decay})


def test_parts_are_shown_in_a_few_words() -> None:
    assert show(partial(actor_critic, core="gru")) == "partial(actor_critic, …)"
    assert (show(Net()), show(Net), show(ACTOR_CRITIC), show("mlp")) == ("Net(…)", "Net", "Model(…)", "'mlp'")
    assert show(ActorCriticOutput) == "ActorCriticOutput" and show(lambda: 0) == "<lambda>"
