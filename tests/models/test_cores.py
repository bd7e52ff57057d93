"""Recurrent networks against NumPy, over ends of episodes and in all shapes, and the dtypes of layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.models import actor_critic, q_network
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.inputs import example_input
from jaxrl.types import Model, StepInput
from tests.helpers import probes
from tests.helpers.agents import small_dqn, small_ppo
from tests.helpers.networks import BOARD, BOX, DISCRETE, OBSERVATION, B, T, jit, sequence, shapes_of_a_step, values_for

SIZE = 5


def made(make: Any, space: spaces.Space = OBSERVATION, actions: spaces.Space = DISCRETE, **settings: Any) -> tuple[Model, Any]:
    """Return a model and random parameters, including biases."""
    model = make(space, actions, **{"hidden_sizes": (6,), "core_size": SIZE, **settings})
    key = jax.eval_shape(lambda: jax.random.key(0))
    return model, values_for(jax.eval_shape(model.init, key, example_input(space, actions)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gru_step(carry: np.ndarray, x: np.ndarray, recurrent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    h = np.split(carry @ recurrent, 3, -1)
    r, z = sigmoid(x[:, :SIZE] + h[0]), sigmoid(x[:, SIZE : 2 * SIZE] + h[1])
    carry = z * carry + (1 - z) * np.tanh(x[:, 2 * SIZE :] + r * h[2])
    return carry, carry


def lstm_step(carry: tuple[np.ndarray, np.ndarray], x: np.ndarray, recurrent: np.ndarray) -> tuple[Any, np.ndarray]:
    i, f, g, o = np.split(x + carry[0] @ recurrent, 4, -1)
    cell = sigmoid(f + 1) * carry[1] + sigmoid(i) * np.tanh(g)
    hidden = sigmoid(o) * np.tanh(cell)
    return (hidden, cell), hidden


@pytest.mark.parametrize("core, step", [("gru", gru_step), ("lstm", lstm_step)])
@pytest.mark.parametrize("use_previous", [True, False])
def test_cores_against_numpy(core: str, step: Any, use_previous: bool) -> None:
    model, params = made(actor_critic, core=core, use_previous=use_previous)
    inputs = sequence(DISCRETE)
    start = jax.tree.map(lambda x: jax.random.normal(jax.random.key(5), x.shape), model.initial_carry(B))
    last, output = jit(model.unroll)(params, start, inputs)

    p = jax.tree.map(np.asarray, params["params"])
    linear = lambda x, layer: x @ layer["kernel"] + layer["bias"]  # noqa: E731
    x = np.asarray(inputs.obs)
    if use_previous:
        action = np.eye(4)[np.asarray(inputs.prev_action)] * ~np.asarray(inputs.is_first)[..., None]
        x = np.concatenate([x, action, np.asarray(inputs.prev_reward)[..., None]], -1)
    gates = linear(np.tanh(linear(x, p["encoder"]["hidden_0"])), p["core_input"])
    carry, hidden = jax.tree.map(np.asarray, start), []
    for t in range(T):
        first = np.asarray(inputs.is_first)[t][:, None]
        carry, h = step(jax.tree.map(lambda c, f=first: np.where(f, 0, c), carry), gates[t], p["core_recurrent"]["kernel"])
        hidden.append(h)
    np.testing.assert_allclose(output.value, linear(np.stack(hidden), p["value_head"])[..., 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.policy.logits, linear(np.stack(hidden), p["policy_head"]["logits"]), rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), last, carry)


KINDS = [
    pytest.param(actor_critic, {"core": "lstm"}, id="lstm"),
    pytest.param(actor_critic, {"core": "gru", "shared": False}, id="gru, separate"),
    pytest.param(
        actor_critic, {"core": "lstm", "shared": False, "layer_norm": True, "dtype": "bfloat16"}, id="lstm, separate, bf16"
    ),
    pytest.param(q_network, {"core": "gru"}, id="q, gru"),
    pytest.param(q_network, {"core": "lstm", "use_previous": False}, id="q, lstm"),
]


@pytest.mark.parametrize("make, settings", KINDS)
def test_an_unroll_over_ends_is_one_unroll_per_episode(make: Any, settings: dict[str, Any]) -> None:
    """Also repeated steps. The rows before an end have no influence on those after it."""
    model, params = made(make, **settings)
    inputs = sequence(DISCRETE)
    start = jax.tree.map(lambda x: jax.random.normal(jax.random.key(5), x.shape), model.initial_carry(B))
    last, whole = jit(model.unroll)(params, start, inputs)
    # Products over another number of rows may round differently, by 2**-8 of a number with 8 bits.
    tolerance = 2**-8 if settings.get("dtype") == "bfloat16" else 1e-4
    close = partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)

    def part(rows: slice, env: int, carry: Any) -> Any:
        return jit(model.unroll)(params, carry, jax.tree.map(lambda x: x[rows, env : env + 1], inputs))

    def of(env: int, tree: Any) -> Any:
        return jax.tree.map(lambda x: x[env : env + 1], tree)

    before = part(slice(0, 3), 0, of(0, start))[1]
    after_carry, after = part(slice(3, T), 0, model.initial_carry(1))
    jax.tree.map(lambda x, y: close(x[:3, :1], y), whole, before)
    jax.tree.map(lambda x, y: close(x[3:, :1], y), whole, after)
    jax.tree.map(close, of(0, last), after_carry)
    jax.tree.map(lambda x, y: close(x[:, 1:2], y), whole, part(slice(0, T), 1, model.initial_carry(1))[1])
    carry, step = start, jit(model.apply)
    for t in range(T):
        carry, row = step(params, carry, jax.tree.map(lambda x, t=t: x[t], inputs))
        jax.tree.map(lambda x, y, t=t: close(x[t], y), whole, row)
    jax.tree.map(close, last, carry)


@pytest.mark.parametrize("make, settings", KINDS)
def test_the_carry_begins_as_zeros_of_f32(make: Any, settings: dict[str, Any]) -> None:
    model = make(OBSERVATION, DISCRETE, core_size=SIZE, **settings)
    leaves = jax.tree.leaves(model.initial_carry(7))
    assert len(leaves) == (2 if settings["core"] == "lstm" else 1) * (2 if "shared" in settings else 1)
    assert all(leaf.shape == (7, SIZE) and leaf.dtype == jnp.float32 and not leaf.any() for leaf in leaves)


@pytest.mark.parametrize("settings", [{"core": "lstm"}, {"core": "gru", "shared": False}, {"use_previous": True}])
def test_ppo_trains_them(settings: dict[str, Any]) -> None:
    agent = small_ppo("tests.helpers.probes:memory", model=partial(actor_critic, hidden_sizes=(8,), core_size=8, **settings))
    shapes_of_a_step(agent)
    assert jaxrl.build(agent.spec).spec == agent.spec


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_a_core_is_refused_where_an_algorithm_learns_from_rows(core: str) -> None:
    with pytest.raises(TypeError, match="DQN learns from single rows, so its model must be memoryless"):
        small_dqn(probes.action_choice(), model=partial(q_network, core=core))


def test_separate_cores_have_nothing_in_common() -> None:
    model, params = made(actor_critic, core="gru", shared=False)
    inputs = sequence(DISCRETE)

    def value(params: Any) -> Any:
        return model.unroll(params, model.initial_carry(B), inputs)[1].value.sum()

    gradient = jit(jax.grad(value))(params)["params"]
    assert set(gradient) == {"actor", "critic", "policy_head", "value_head"}
    assert not any(leaf.any() for leaf in jax.tree.leaves((gradient["actor"], gradient["policy_head"])))
    assert all(leaf.any() for leaf in jax.tree.leaves((gradient["critic"], gradient["value_head"])))


# ------------------------------------------------------------------------------------------------------- stable parameter names


BEFORE = {
    "vector": (actor_critic, {}, "actor/hidden_0 actor/hidden_1 critic/hidden_0 critic/hidden_1 policy/logits value"),
    "gru": (
        actor_critic,
        {"core": "gru"},
        "core_input core_recurrent encoder/hidden_0 encoder/hidden_1 policy_head/logits value_head",
    ),
    "q": (q_network, {}, "q torso/hidden_0 torso/hidden_1"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_networks_of_vectors_have_the_parameters_that_checkpoints_hold(name: str) -> None:
    make, settings, layers = BEFORE[name]
    model = make(OBSERVATION, DISCRETE, **settings)
    shapes = jax.eval_shape(model.init, jax.random.key(0), example_input(OBSERVATION, DISCRETE))
    expected = {f"params/{layer}/{kind}" for layer in layers.split() for kind in ("kernel", "bias")}
    expected -= {"params/core_recurrent/bias"}
    found = {"/".join(str(k.key) for k in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
    assert set(found) == expected and {leaf.dtype for leaf in found.values()} == {np.dtype("float32")}
    if name == "gru":
        assert found["params/core_input/kernel"].shape == (64, 192)
        assert found["params/encoder/hidden_0/kernel"].shape == (3 + 4 + 1, 64)


# ------------------------------------------------------------------------------------------------------------ dtypes of layers


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, space, settings",
    [
        (actor_critic, OBSERVATION, {}),
        (actor_critic, OBSERVATION, {"core": "lstm"}),
        (actor_critic, BOARD, {"layer_norm": True}),
        (actor_critic, spaces.Box(0, 255, (36, 36, 1), np.uint8), {"encoder": "nature"}),
        (q_network, spaces.Discrete(5), {"embedding_size": 4}),
    ],
    ids=["vector", "lstm", "board", "nature", "embedding"],
)
def test_bfloat16_is_close_and_gives_f32(make: Any, space: spaces.Space, settings: dict[str, Any]) -> None:
    full, params = made(make, space, **settings)
    half, _ = made(make, space, dtype="bfloat16", **settings)
    rng = np.random.default_rng(0)
    obs = jnp.asarray(rng.integers(5, size=(B, *(space.shape or ()))), example_input(space, DISCRETE).obs.dtype)
    inputs = first_input(obs, DISCRETE, B)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        lambda x: x.shape, jax.eval_shape(half.init, jax.random.key(0), inputs)
    )
    started = jax.eval_shape(half.init, jax.random.key(0), inputs)
    assert {leaf.dtype for leaf in jax.tree.leaves(started)} == {np.dtype("float32")}

    def run(model: Model) -> Any:
        return jit(model.apply)(params, model.initial_carry(B), inputs)

    exact, rough = run(full), run(half)
    for x, y in zip(jax.tree.leaves(exact), jax.tree.leaves(rough), strict=True):
        assert x.dtype == y.dtype == jnp.float32
        np.testing.assert_allclose(y, x, rtol=0.05, atol=0.05 * np.abs(x).max())
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(exact), jax.tree.leaves(rough), strict=True))
    gradient = jax.eval_shape(
        jax.grad(lambda p: jax.tree.leaves(half.apply(p, half.initial_carry(B), inputs)[1])[0].sum()), params
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {np.dtype("float32")}


def test_layer_norm_comes_before_the_activation() -> None:
    model, params = made(q_network, layer_norm=True, activation="relu")
    inputs = jax.tree.map(lambda x: x[0], sequence(DISCRETE))
    torso, q = jax.tree.map(np.asarray, (params["params"]["torso"], params["params"]["q"]))
    x = np.asarray(inputs.obs) @ torso["hidden_0"]["kernel"] + torso["hidden_0"]["bias"]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    x = np.maximum(x * torso["norm_0"]["scale"] + torso["norm_0"]["bias"], 0)
    np.testing.assert_allclose(model.apply(params, (), inputs)[1], x @ q["kernel"] + q["bias"], rtol=1e-4, atol=1e-5)


def test_whole_numbers_are_looked_up() -> None:
    """One vector for each value, starting at the space's lowest. Chosen by the space's size, or by the argument."""
    space = spaces.MultiDiscrete([[2, 3], [2, 4]], start=[[1, 0], [0, -1]])
    model, params = made(q_network, space, hidden_sizes=(), embedding_size=3)
    x = np.array([[[1, 2], [1, -1]], [[2, 0], [0, 2]]])
    tables = [np.asarray(params["params"]["torso"][f"embedding_{i}"]["embedding"]) for i in range(4)]
    rows = (x - space.start).reshape(2, 4)
    expected = np.concatenate([table[rows[:, i]] for i, table in enumerate(tables)], -1)
    q = jax.tree.map(np.asarray, params["params"]["q"])
    inputs = first_input(jnp.asarray(x, jnp.int32), DISCRETE, 2)
    np.testing.assert_allclose(model.apply(params, (), inputs)[1], expected @ q["kernel"] + q["bias"], rtol=1e-5, atol=1e-6)
    for most, layers in ((1024, {"hidden_0"}), (1025, {"embedding_0", "hidden_0"})):
        for kind in (spaces.Discrete(most), spaces.MultiDiscrete([most])):
            assert set(made(q_network, kind)[1]["params"]["torso"]) == layers


@pytest.mark.parametrize("actions", [DISCRETE, BOX])
def test_a_network_without_memory_may_see_what_came_before(actions: spaces.Space) -> None:
    model, params = made(actor_critic, actions=actions, use_previous=True)
    inputs: StepInput = sequence(actions)
    base = model.apply(params, (), inputs)[1].value
    other_reward = model.apply(params, (), inputs._replace(prev_reward=inputs.prev_reward + 1))[1].value
    other_action = model.apply(params, (), inputs._replace(prev_action=inputs.prev_action + 1))[1].value
    assert (base != other_reward).all()
    np.testing.assert_array_equal(base != other_action, ~inputs.is_first)
