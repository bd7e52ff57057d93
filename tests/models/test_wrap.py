"""Flax modules as models: outputs, memory, random draws, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl.builder.networks import model_output, resolve_model
from jaxrl.distributions import Categorical
from jaxrl.models import ActorCriticOutput, from_linen, from_nnx, orthogonal
from jaxrl.rollout.outputs import split_variables, train_model, with_statistics
from jaxrl.types import Model, StepInput, Variables
from tests.helpers import probes
from tests.helpers.agents import small, small_dqn, small_ppo
from tests.helpers.networks import B, T, check_orthogonal, jit, shapes_of_a_step

SIZE = 4


class LinenNet(nn.Module):
    """relu(obs·W₀ + b₀)·W₁ + b₁ for two actions and a value, with dropout if there is a key."""

    @nn.compact
    def __call__(self, inputs: StepInput) -> ActorCriticOutput:
        x = nn.relu(nn.Dense(SIZE, kernel_init=orthogonal(1.0), name="hidden")(inputs.obs))
        x = nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(x)
        x = nn.Dense(3, name="out")(x)
        return ActorCriticOutput(Categorical(x[..., :2]), x[..., 2])


class NnxNet(nnx.Module):
    """``LinenNet`` in nnx."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(1, SIZE, kernel_init=orthogonal(1.0), rngs=rngs), nnx.Linear(SIZE, 3, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, inputs: StepInput) -> ActorCriticOutput:
        x = self.layers[1](self.dropout(nnx.relu(self.layers[0](inputs.obs))))
        return ActorCriticOutput(Categorical(x[..., :2]), x[..., 2])


class LinenSum(nn.Module):
    """carry ← carry + w·obs, without use of ``is_first``."""

    @nn.compact
    def __call__(self, carry: Any, inputs: StepInput) -> tuple[Any, ActorCriticOutput]:
        carry = carry + self.param("w", nn.initializers.constant(2.0), (1,)) * inputs.obs
        return carry, ActorCriticOutput(Categorical(jnp.concatenate([carry, -carry], -1)), carry[..., 0])


class NnxSum(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.w = nnx.Param(jnp.full((1,), 2.0))

    def __call__(self, carry: Any, inputs: StepInput) -> tuple[Any, ActorCriticOutput]:
        carry = carry + self.w * inputs.obs
        return carry, ActorCriticOutput(Categorical(jnp.concatenate([carry, -carry], -1)), carry[..., 0])


def start(batch_size: int) -> Any:
    return jnp.full((batch_size, 1), 100.0)


MEMORYLESS = [pytest.param(lambda: from_linen(LinenNet()), id="linen"), pytest.param(lambda: from_nnx(NnxNet), id="nnx")]
RECURRENT = [
    pytest.param(lambda: from_linen(LinenSum(), initial_carry=start), id="linen"),
    pytest.param(lambda: from_nnx(NnxSum, initial_carry=start), id="nnx"),
]


def rows(*lead: int, is_first: Any = None) -> StepInput:
    obs = jnp.float32(np.random.default_rng(0).normal(size=(*lead, 1)))
    first = jnp.zeros(lead, bool) if is_first is None else jnp.asarray(is_first)
    return StepInput(obs, jnp.zeros(lead, jnp.int32), jnp.zeros(lead), first)


def layers(params: Any) -> tuple[Any, Any]:
    """Return the two layers, from each library's parameters."""
    if "params" in params:
        return params["params"]["hidden"], params["params"]["out"]
    return params["layers"]["0"], params["layers"]["1"]


@pytest.mark.parametrize("make", MEMORYLESS)
def test_a_module_is_a_model(make: Callable[[], Model]) -> None:
    model = make()
    params = jit(jax.vmap(lambda key: model.init(key, rows(1))))(jax.random.split(jax.random.key(0), 2))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params, is_leaf=lambda x: not isinstance(x, dict)))
    for kernel in layers(params)[0]["kernel"]:
        check_orthogonal(kernel)
    params = jax.tree.map(lambda x: x[1], params)
    inputs = rows(T, B)
    carry, output = jit(model.unroll)(params, (), inputs)
    assert carry == () == model.initial_carry(3)
    hidden, out = jax.tree.map(np.asarray, layers(params))
    expected = np.maximum(inputs.obs @ hidden["kernel"] + hidden["bias"], 0) @ out["kernel"] + out["bias"]
    np.testing.assert_allclose(output.policy.logits, expected[..., :2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(output.value, expected[..., 2], rtol=1e-5, atol=1e-6)
    row = model.apply(params, (), jax.tree.map(lambda x: x[2], inputs))[1]
    np.testing.assert_allclose(row.value, expected[2, :, 2], rtol=1e-5, atol=1e-6)


class LinenOfObservations(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(2)(nn.Dense(SIZE)(x))


class NnxOfObservations(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layer = nnx.Linear(1, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.layer(x.reshape(x.shape[0], -1))


class LinenSumOfObservations(nn.Module):
    @nn.compact
    def __call__(self, carry: Any, x: Any) -> Any:
        return carry + nn.Dense(1)(x), carry


class NnxSumOfObservations(NnxOfObservations):
    def __call__(self, carry: Any, x: Any) -> Any:
        return carry + self.layer(x), carry


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: from_linen(LinenOfObservations()), "LinenOfObservations"),
        (lambda: from_nnx(NnxOfObservations), "NnxOfObservations"),
        (lambda: from_linen(LinenSumOfObservations(), initial_carry=start), "LinenSumOfObservations"),
        (lambda: from_nnx(NnxSumOfObservations, initial_carry=start), "NnxSumOfObservations"),
    ],
)
def test_a_module_of_observations_is_told_of_inputs_obs(make: Callable[[], Model], name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} is called with a StepInput, but takes an observation: use inputs\.obs"):
        model = make()
        params = model.init(jax.random.key(0), rows(1))
        model.apply(params, model.initial_carry(1), rows(1))


def test_other_failures_of_a_module_are_its_own() -> None:
    class Broken(nn.Module):
        @nn.compact
        def __call__(self, inputs: StepInput) -> Any:
            raise KeyError("its own")

    with pytest.raises(TypeError, match="fails with KeyError: 'its own'"):
        small_dqn(probes.truncation(5), model=from_linen(Broken()))


@pytest.mark.slow
@pytest.mark.parametrize("make", MEMORYLESS)
def test_a_module_draws_where_there_is_a_key(make: Callable[[], Model]) -> None:
    model = make()
    params = model.init(jax.random.key(0), rows(1))
    values = jit(lambda key: model.apply(params, (), rows(64), key=key)[1].value)
    one, again, other = values(jax.random.key(1)), values(jax.random.key(1)), values(jax.random.key(2))
    np.testing.assert_array_equal(one, again)
    plain = model.apply(params, (), rows(64))[1].value
    np.testing.assert_array_equal(plain, model.apply(params, (), rows(64))[1].value)
    assert (one != other).any() and (one != plain).any() and (other != plain).any()


@pytest.mark.parametrize("make", RECURRENT)
def test_a_module_with_memory_begins_anew_with_each_episode(make: Callable[[], Model]) -> None:
    """The module does not handle this: sums of an episode's observations, from the initial carry."""
    model = make()
    is_first = np.zeros((T, B), bool)
    is_first[3, 0] = is_first[0, 1] = True
    inputs = rows(T, B, is_first=is_first)
    params = model.init(jax.random.key(0), rows(1))
    before = jnp.array([[7.0], [8.0], [9.0]])
    last, output = jit(model.unroll)(params, before, inputs)
    expected, carry = np.zeros((T, B)), np.array([7.0, 8.0, 9.0])
    for t in range(T):
        carry = np.where(is_first[t], 100, carry) + 2 * np.asarray(inputs.obs)[t, :, 0]
        expected[t] = carry
    np.testing.assert_allclose(output.value, expected, rtol=1e-5)
    np.testing.assert_allclose(last[:, 0], expected[-1], rtol=1e-5)
    carry, step = before, jit(model.apply)
    for t in range(T):
        carry, row = step(params, carry, jax.tree.map(lambda x, t=t: x[t], inputs))
        np.testing.assert_allclose(row.value, expected[t], rtol=1e-5)
    np.testing.assert_array_equal(model.initial_carry(2), start(2))


@pytest.mark.parametrize("make", MEMORYLESS + RECURRENT)
def test_ppo_takes_a_module(make: Callable[[], Model]) -> None:
    """On shapes: the state's contents, and the restored ones."""
    shapes_of_a_step(small_ppo(probes.constant_reward(), model=make()))


def test_a_recurrent_module_is_refused_where_an_algorithm_learns_from_rows() -> None:
    with pytest.raises(TypeError, match="DQN learns from single rows, so its model must be memoryless"):
        small_dqn(probes.action_choice(), model=from_linen(LinenSum(), initial_carry=start))


class LinenBatchNorm(nn.Module):
    @nn.compact
    def __call__(self, inputs: StepInput) -> Any:
        return nn.BatchNorm(use_running_average=True)(nn.Dense(2)(inputs.obs))


class NnxBatchNorm(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(1, rngs=rngs)

    def __call__(self, inputs: StepInput) -> Any:
        return self.norm(inputs.obs)


class LinenTrained(nn.Module):
    """Flax's batch normalisation, which learns from valid rows; one value for each row."""

    @nn.compact
    def __call__(self, inputs: StepInput, valid: Any = None, axis_name: str | None = None) -> Any:
        norm = nn.BatchNorm(use_running_average=valid is None, momentum=0.5, axis_name=axis_name)
        obs = inputs.obs[0] if isinstance(inputs.obs, tuple) else inputs.obs  # a critic sees the action too
        x = norm(nn.Dense(2)(obs), mask=None if valid is None else valid[:, None])
        return nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(x).sum(-1)


def test_statistics_are_apart_from_parameters_and_learn_from_valid_rows() -> None:
    model = from_linen(LinenTrained(), statistics=("batch_stats",))
    rng = np.random.default_rng(0)
    inputs = StepInput(jnp.float32(rng.normal(size=(5, 1))), jnp.zeros(5, jnp.int32), jnp.zeros(5), jnp.zeros(5, bool))
    valid = jnp.array([True, True, False, True, False])
    variables = jit(model.init)(jax.random.key(0), inputs)
    assert isinstance(variables, Variables) and model.train is not None
    assert {*variables.params} == {"params"} and {*variables.statistics} == {"batch_stats"}
    kernel = variables.params["params"]["Dense_0"]["kernel"]
    before = np.asarray(inputs.obs @ kernel)
    outputs, statistics = jit(model.train)(variables, inputs, valid)
    learnt, chosen = statistics["batch_stats"]["BatchNorm_0"], before[np.asarray(valid)]
    np.testing.assert_allclose(learnt["mean"], 0.5 * chosen.mean(0), atol=1e-5)
    np.testing.assert_allclose(learnt["var"], 0.5 + 0.5 * chosen.var(0), atol=1e-5)
    np.testing.assert_allclose(outputs, ((before - chosen.mean(0)) / np.sqrt(chosen.var(0) + 1e-5)).sum(-1), atol=1e-3)
    carry, outputs = jit(model.apply)(Variables(variables.params, statistics), (), inputs)
    np.testing.assert_allclose(outputs, ((before - learnt["mean"]) / np.sqrt(learnt["var"] + 1e-5)).sum(-1), atol=1e-4)
    assert carry == ()
    _, dropped = model.apply(variables, (), inputs, key=jax.random.key(1))
    assert (dropped != model.apply(variables, (), inputs)[1]).any()


def test_statistics_have_no_gradient() -> None:
    model = from_linen(LinenTrained(), statistics=("batch_stats",))
    inputs = StepInput(jnp.arange(4.0)[:, None], jnp.zeros(4, jnp.int32), jnp.zeros(4), jnp.zeros(4, bool))
    params, statistics = split_variables(model.init(jax.random.key(0), inputs))

    def through_statistics(params: Any) -> Any:
        learnt = train_model(model, with_statistics(params, statistics), inputs, jnp.ones(4, bool))[1]
        return sum(x.sum() for x in jax.tree.leaves(learnt))

    assert all((x == 0).all() for x in jax.tree.leaves(jit(jax.grad(through_statistics))(params)))


def test_an_algorithm_that_learns_no_statistics_refuses_them() -> None:
    trained = from_linen(LinenTrained(), statistics=("batch_stats",))
    for make, title in ((small_dqn, "DQN"), (small_ppo, "PPO")):
        with pytest.raises(TypeError, match=f"{title} learns parameters alone, but model has statistics to learn, as batch"):
            make(probes.action_choice(), model=trained)
    with pytest.raises(TypeError, match="SAC learns parameters alone, but critic has statistics to learn, as batch"):
        small("sac", probes.target_action(), critic=trained)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": 3}, "its train is 3, and must be a function"),
        ({"init": lambda key, inputs: {}}, r"init must return Variables\(params, statistics\), because"),
        (
            {"train": lambda variables, inputs: None},
            r"train\(variables, inputs, valid\) on the spaces of .* fails with TypeError",
        ),
        (
            {"train": lambda variables, inputs, valid: (jnp.zeros(2), variables.statistics)},
            r"train returned .*; it must return \(outputs, statistics\), with the outputs of apply",
        ),
        ({"train": lambda variables, inputs, valid: (jnp.zeros(1), ())}, "it must return .* and the statistics of init"),
    ],
)
def test_training_of_the_wrong_kind(change: dict[str, Any], message: str) -> None:
    def apply(variables: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        return carry, jnp.zeros(len(inputs.is_first))

    init, train = lambda key, inputs: Variables({}, {"mean": jnp.zeros(1)}), lambda variables, inputs, valid: 0
    model = Model(init, apply, apply, lambda batch_size: (), train)._replace(**change)
    env = probes.target_action()
    with pytest.raises(TypeError, match=message):
        model_output(model, resolve_model(model, None, env), env)  # type: ignore[arg-type]


def test_collections_that_do_not_fit() -> None:
    inputs = StepInput(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32), jnp.zeros(1), jnp.zeros(1, bool))
    with pytest.raises(TypeError, match=r"statistics=\('moments',\): LinenNet has no variables moments"):
        from_linen(LinenNet(), statistics=("moments",)).init(jax.random.key(0), inputs)
    with pytest.raises(TypeError, match=r"statistics=\('moments',\) and initial_carry are mutually exclusive"):
        from_linen(LinenSum(), initial_carry=start, statistics=("moments",))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"LinenBatchNorm has batch_stats .* statistics=\('batch_stats',\)$"):
        small_dqn(probes.action_choice(), model=from_linen(LinenBatchNorm()))
    with pytest.raises(TypeError, match=r"NnxBatchNorm has BatchStat in addition to its parameters"):
        from_nnx(NnxBatchNorm)
    with pytest.raises(TypeError, match=r"module=.*LinenNet.* must be an instance of a flax.linen.Module"):
        from_linen(LinenNet)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"make=NnxNet must be a function of nnx.Rngs that returns a module: lambda rngs"):
        from_nnx(NnxNet(nnx.Rngs(0)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"make=.* returns a int, but must return a flax.nnx.Module"):
        from_nnx(lambda rngs: 3)  # type: ignore[arg-type, return-value]
