"""Networks: initialisation, unrolling, and inputs from each space."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.distributions import Categorical, Normal
from jaxrl.models import (
    ActorCriticOutput,
    OrthogonalKernel,
    actor_critic,
    drawn_at_once,
    encode_space,
    orthogonal,
    q_network,
)
from jaxrl.rollout.inputs import example_input
from jaxrl.spaces.trees import zeros
from jaxrl.types import StepInput
from tests.helpers.networks import BOX, DISCRETE, OBSERVATION, B, T, check_orthogonal, jit, sequence, small_actor_critic

# --------------------------------------------------------------------------------------------------------------- initialisation


SHAPES = [(8, 8), (64, 64), (4, 64), (64, 4), (1, 8), (8, 1), (1, 1), (3, 3, 2, 5)]


@pytest.mark.slow
def test_kernels_are_orthogonal_times_their_gain() -> None:
    """Over eight keys at once, as for eight seeds. Leaves without this initialiser do not change, even matrices."""
    given = {str(shape): OrthogonalKernel(jnp.zeros(shape), 2.0) for shape in SHAPES}
    given |= {"bias": jnp.arange(3.0), "sigma": jnp.full((3, 3), 0.5)}
    keys = jax.random.split(jax.random.key(0), 8)
    drawn = jit(jax.vmap(lambda key: drawn_at_once(key, given)))(keys)
    np.testing.assert_array_equal(drawn["bias"], np.broadcast_to(np.arange(3.0), (8, 3)))
    np.testing.assert_array_equal(drawn["sigma"], np.full((8, 3, 3), 0.5))
    alone = drawn_at_once(keys[3], given)
    for shape in SHAPES:
        assert drawn[str(shape)].shape == (8, *shape) and drawn[str(shape)].dtype == jnp.float32
        kernels = np.asarray(drawn[str(shape)], np.float64)
        for w in kernels:
            check_orthogonal(w / 2.0)
        if math.prod(shape) > 1:
            assert np.abs(kernels[0] - kernels[1]).max() > 1e-3
        np.testing.assert_allclose(kernels[3], alone[str(shape)], atol=1e-5)


def test_kernels_prefer_no_direction_and_are_independent() -> None:
    """Uniform over orthogonal matrices: entries of 3×3 have mean 0 and variance ⅓, and rotations are as likely as reflections."""
    keys = jax.random.split(jax.random.key(1), 2000)
    drawn = jax.vmap(lambda key: drawn_at_once(key, [OrthogonalKernel(jnp.ones((3, 3)), 1.0)] * 2))(keys)
    for w in np.asarray(drawn, np.float64):
        assert np.abs(w.mean(0)).max() < 4 * math.sqrt(1 / 3 / 2000)
        assert np.abs((w**2).mean(0) - 1 / 3).max() < 4 * math.sqrt(4 / 45 / 2000)
        assert abs((np.linalg.det(w) > 0).mean() - 0.5) < 4 * math.sqrt(0.25 / 2000)
    products = np.asarray(drawn[0] * drawn[1], np.float64)
    assert np.abs(products.mean(0)).max() < 4 * math.sqrt(1 / 9 / 2000)


class Mixed(nn.Module):
    """A user's network, in which some layers have orthogonal kernels."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Embed(5, 4, name="table")(x)
        sigma = self.param("sigma", nn.initializers.constant(0.5), (4, 4))
        x = nn.Dense(4, kernel_init=orthogonal(1.0), name="alone")(x @ sigma)
        stack = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=3)
        return stack(4, kernel_init=orthogonal(1.0), name="stack")(x)


def test_only_the_layers_that_want_orthogonal_kernels_have_them() -> None:
    module, x = Mixed(), jnp.arange(2)
    key = jax.random.key(0)
    plain = jit(module.init)(key, x)
    ours = drawn_at_once(key, plain)["params"]
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(ours, is_leaf=lambda x: not isinstance(x, dict)))
    for params in (nn.meta.unbox(plain)["params"], ours):  # with flax's own init alone, and in a Model's
        check_orthogonal(params["alone"]["kernel"])
        for kernel in params["stack"]["kernel"]:
            check_orthogonal(kernel)
        assert np.ptp(params["stack"]["kernel"], axis=0).max() > 1e-3
        assert (params["sigma"] == 0.5).all()
    with pytest.raises(AssertionError):
        check_orthogonal(ours["table"]["embedding"].T)
    np.testing.assert_array_equal(ours["table"]["embedding"], nn.meta.unbox(plain)["params"]["table"]["embedding"])
    assert module.apply(plain, x).shape == module.apply({"params": ours}, x).shape == (3, 2, 4)


def singular_values(kernel: Any) -> np.ndarray:
    return np.linalg.svd(np.asarray(kernel, np.float64), compute_uv=False)


def test_layers_start_with_the_scales_of_the_field() -> None:
    """√2 in hidden layers, 0.01 for the policy, 1 for values, zero biases, and a standard deviation of 1."""
    params = small_actor_critic(BOX)[1]["params"]
    for layer, scale in (
        (params["actor"]["hidden_0"], math.sqrt(2)),
        (params["critic"]["hidden_0"], math.sqrt(2)),
        (params["policy"]["mean"], 0.01),
        (params["value"], 1.0),
    ):
        np.testing.assert_allclose(singular_values(layer["kernel"]), scale, rtol=1e-4)
        assert not layer["bias"].any()
    np.testing.assert_array_equal(params["policy"]["log_std"], [0, 0])


# --------------------------------------------------------------------------------------------------------------------- unrolling


CASES = [
    pytest.param(DISCRETE, {}, id="memoryless-discrete"),
    pytest.param(BOX, {}, id="memoryless-box"),
    pytest.param(DISCRETE, {"core": "gru", "core_size": 8}, id="gru-discrete"),
    pytest.param(BOX, {"core": "gru", "core_size": 8}, id="gru-box"),
]


@pytest.mark.parametrize("action_space, settings", CASES)
def test_unroll_is_repeated_apply(action_space: spaces.Space, settings: dict[str, Any]) -> None:
    model, params = small_actor_critic(action_space, **settings)
    inputs = sequence(action_space)
    start = jax.tree.map(lambda x: jax.random.normal(jax.random.key(5), x.shape), model.initial_carry(B))
    last, unrolled = jit(model.unroll)(params, start, inputs)
    carry, step = start, jit(model.apply)
    for t in range(T):
        carry, output = step(params, carry, jax.tree.map(lambda x, t=t: x[t], inputs))
        jax.tree.map(lambda x, y, t=t: np.testing.assert_allclose(x[t], y, rtol=1e-4, atol=1e-5), unrolled, output)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), last, carry)
    assert isinstance(unrolled, ActorCriticOutput)
    assert unrolled.value.shape == (T, B)
    assert isinstance(unrolled.policy, Categorical if action_space is DISCRETE else Normal)
    assert unrolled.policy[0].shape == (T, B, 4 if action_space is DISCRETE else 2)


GRU = {"core": "gru", "core_size": 8}


def gru_values(inputs: StepInput, carry: Any = None) -> np.ndarray:
    model, params = small_actor_critic(DISCRETE, **GRU)
    return np.asarray(jit(model.unroll)(params, model.initial_carry(B) if carry is None else carry, inputs)[1].value)


def test_the_carry_restarts_with_the_episode() -> None:
    inputs = sequence(DISCRETE)
    other_past = inputs._replace(obs=inputs.obs.at[:3].add(1.0))
    other_carry = jnp.ones((B, 8))
    base = gru_values(inputs)
    np.testing.assert_array_equal(gru_values(other_past)[3:, 0], base[3:, 0])  # row 3 is a first row
    assert (gru_values(other_past)[3:, 2] != base[3:, 2]).all()  # no first row: the past has an effect
    np.testing.assert_array_equal(gru_values(inputs, other_carry)[:, 1], base[:, 1])
    assert (gru_values(inputs, other_carry)[:, 2] != base[:, 2]).all()
    # A first row starts exactly as a new environment does.
    model, _ = small_actor_critic(DISCRETE, **GRU)
    np.testing.assert_array_equal(model.initial_carry(5), jnp.zeros((5, 8)))
    fresh = jax.tree.map(lambda x: x[3:], inputs)
    np.testing.assert_allclose(gru_values(fresh)[:, 0], base[3:, 0], rtol=1e-5)


def test_the_future_does_not_shine_back_and_environments_are_apart() -> None:
    inputs, base = sequence(DISCRETE), gru_values(sequence(DISCRETE))
    changed = gru_values(inputs._replace(obs=inputs.obs.at[4, 2].add(1.0)))
    assert (changed != base).nonzero()[1].tolist() == [2, 2]  # rows 4 and 5 of environment 2
    np.testing.assert_array_equal(changed[:4], base[:4])


@pytest.mark.parametrize("settings, sees", [({}, False), (GRU, True)])
def test_who_sees_the_previous_action_and_reward(settings: dict[str, Any], sees: bool) -> None:
    model, params = small_actor_critic(DISCRETE, **settings)
    inputs = sequence(DISCRETE)
    unroll = jit(lambda inputs: model.unroll(params, model.initial_carry(B), inputs)[1].value)
    for changed in (
        inputs._replace(prev_action=(inputs.prev_action + 1) % 4),
        inputs._replace(prev_reward=inputs.prev_reward + 1),
    ):
        assert bool((unroll(changed) != unroll(inputs)).any()) == sees
    first = inputs._replace(is_first=jnp.ones((T, B), bool))
    other = first._replace(prev_action=(first.prev_action + 1) % 4)
    np.testing.assert_array_equal(unroll(first), unroll(other))  # there was no previous action, not even action 0


def test_q_network() -> None:
    model = q_network(OBSERVATION, DISCRETE, hidden_sizes=(8,))
    params = jit(model.init)(jax.random.key(0), example_input(OBSERVATION, DISCRETE))
    inputs = sequence(DISCRETE)
    carry, q_values = model.unroll(params, (), inputs)
    assert carry == () == model.initial_carry(7)
    assert q_values.shape == (T, B, 4) and q_values.dtype == jnp.float32
    np.testing.assert_allclose(q_values[2], model.apply(params, (), jax.tree.map(lambda x: x[2], inputs))[1], rtol=1e-5)


# -------------------------------------------------------------------------------------------------------------------- spaces


ENCODINGS = [
    pytest.param(spaces.Box(-9, 9, (2,), np.float32), [1.5, -2], [1.5, -2], id="box"),
    pytest.param(spaces.Box(-9, 9, (), np.float32), 3.0, [3], id="scalar box"),
    pytest.param(spaces.Box(-9, 9, (2, 2), np.int32), [[1, 2], [3, 4]], [1, 2, 3, 4], id="whole numbers"),
    pytest.param(spaces.Box(0, 255, (1, 3), np.uint8), [[0, 51, 255]], [0, 0.2, 1], id="picture"),
    pytest.param(spaces.Box(0, 4, (3,), np.uint8), [0, 1, 4], [0, 0.25, 1], id="small bytes"),
    pytest.param(spaces.Discrete(3), 2, [0, 0, 1], id="discrete"),
    pytest.param(spaces.Discrete(3, start=-1), 0, [0, 1, 0], id="discrete with start"),
    pytest.param(spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1], id="multi binary"),
    pytest.param(spaces.MultiBinary((2, 2)), [[1, 0], [0, 1]], [1, 0, 0, 1], id="multi binary 2d"),
    pytest.param(spaces.MultiDiscrete([2, 3]), [1, 0], [0, 1, 1, 0, 0], id="multi discrete"),
    pytest.param(
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        [1, 0],
        [1, 0, 0, 1, 0],
        id="multi discrete with start",
    ),
    pytest.param(
        spaces.MultiDiscrete([[2, 2], [3, 2]]),
        [[1, 0], [2, 1]],
        [0, 1, 1, 0, 0, 0, 1, 0, 1],
        id="multi discrete 2d",
    ),
    pytest.param(
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 255, (2,), np.uint8), "action_mask": spaces.MultiBinary(4)}),
        {"b": 1, "a": [255, 0], "action_mask": [1, 1, 0, 1]},
        [1, 0, 0, 1],
        id="dict, by name, without its mask",
    ),
    pytest.param(
        spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32)}))),
        (0, {"x": [0.5]}),
        [1, 0, 0.5],
        id="nested",
    ),
]


def as_value(space: spaces.Space, plain: Any) -> Any:
    """Return plain numbers as a value of ``space``, with JAX's dtypes."""
    if isinstance(space, spaces.Dict):
        return {name: as_value(part, plain[name]) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_value(part, x) for part, x in zip(space, plain, strict=True))
    return jnp.asarray(plain, zeros(space).dtype)


@pytest.mark.parametrize("space, plain, expected", ENCODINGS)
def test_encode_space(space: spaces.Space, plain: Any, expected: list[float]) -> None:
    value = as_value(space, plain)
    for lead in ((), (3,), (2, 3)):
        batch = jax.tree.map(lambda x, lead=lead: jnp.broadcast_to(x, (*lead, *x.shape)), value)
        encoded = encode_space(space, batch)
        assert encoded.dtype == jnp.float32
        np.testing.assert_allclose(encoded, np.broadcast_to(expected, (*lead, len(expected))), rtol=1e-6)


@pytest.mark.parametrize("space, plain, expected", [case for case in ENCODINGS if not case.marks])
def test_networks_take_every_space(space: spaces.Space, plain: Any, expected: list[float]) -> None:
    for make, part in ((actor_critic, "actor"), (q_network, "torso")):
        model = make(space, DISCRETE, hidden_sizes=(8,))
        shapes = jax.eval_shape(model.init, jax.random.key(0), example_input(space, DISCRETE))
        assert shapes["params"][part]["hidden_0"]["kernel"].shape == (len(expected), 8)


def test_other_spaces_are_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"Text.* cannot be encoded.*pass a custom model"):
        encode_space(spaces.Text(3), jnp.zeros(3))


def test_a_mask_alone_is_no_observation() -> None:
    alone = spaces.Dict({"action_mask": spaces.MultiBinary(4)})
    for space in (alone, spaces.Dict({"game": alone})):
        with pytest.raises(ValueError, match=r"has nothing for a network to see: action_mask is .*another entry"):
            jax.eval_shape(q_network(space, DISCRETE).init, jax.random.key(0), example_input(space, DISCRETE))


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize("make", [actor_critic, q_network])
def test_settings_that_no_network_has(make: Any) -> None:
    with pytest.raises(ValueError, match=r"activation='gelu' is unknown: choose one of \['elu', 'relu', 'silu', 'tanh'\]"):
        make(OBSERVATION, DISCRETE, activation="gelu")
    for sizes in ((64, 0), (-1,), (64.0,), "64"):
        with pytest.raises(ValueError, match=r"hidden_sizes=.*must be positive integers"):
            make(OBSERVATION, DISCRETE, hidden_sizes=sizes)


@pytest.mark.parametrize(
    "settings",
    [{"core": "gru", "core_size": 0}, {"core": "gru", "core_size": 8.5}, {"hidden_sizes": 64}, {"hidden_sizes": (True,)}],
)
def test_sizes_that_are_none(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=list(settings)[-1]):
        actor_critic(OBSERVATION, DISCRETE, **settings)


def test_cores_and_action_spaces_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match=r"core='gro' is unknown: choose one of \(None, 'gru', .*\). Did you mean 'gru'"):
        actor_critic(OBSERVATION, DISCRETE, core="gro")
    with pytest.raises(TypeError, match=r"MultiBinary\(2\): .*Discrete, MultiDiscrete or Box"):
        actor_critic(OBSERVATION, spaces.MultiBinary(2))
    with pytest.raises(TypeError, match=r"Box.*Q-network needs a Discrete"):
        q_network(OBSERVATION, BOX)
