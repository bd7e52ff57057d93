"""Networks of value heads: noisy layers, streams and fractions against NumPy, with and without a key."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import QuantileOutput, q_network, value_network
from jaxrl.models.initialisers import orthogonal
from jaxrl.models.values import NoisyDense, factors
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.inputs import example_input

N, FEATURES, ACTIONS = 6, 3, 4
SPACES = (spaces.Box(-1, 1, (FEATURES,), np.float32), spaces.Discrete(ACTIONS))
INPUTS = first_input(np.random.default_rng(0).normal(size=(N, FEATURES)).astype(np.float32), SPACES[1], N)
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


@cache
def applied(**arguments: Any) -> Any:
    """Return ``(parameters, outputs without a key, outputs with a key)``."""
    model = value_network(*SPACES, hidden_sizes=(5, 7), activation="relu", **arguments)
    params = jit(model.init)(KEY(), example_input(*SPACES))
    return params["params"], model.apply(params, (), INPUTS)[1], lambda key: model.apply(params, (), INPUTS, key=key)[1]


def layer(params: Any, name: str, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(params[name]["kernel"]) + np.asarray(params[name]["bias"])


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def test_streams_are_added_without_the_mean_advantage() -> None:
    params, outputs, _ = applied(dueling=True, num_outputs=2)
    x = relu(layer(params["torso"], "hidden_0", INPUTS.obs))
    advantage = layer(params, "q", relu(layer(params, "q_hidden", x))).reshape(N, ACTIONS, 2)
    value = layer(params, "value", relu(layer(params, "value_hidden", x)))
    np.testing.assert_allclose(outputs, value[:, None] + advantage - advantage.mean(1, keepdims=True), atol=1e-5)
    assert params["torso"]["hidden_0"]["kernel"].shape == (3, 5) and "hidden_1" not in params["torso"]


def test_a_q_network_may_have_streams() -> None:
    """It is the value network with streams: its names, its initial values, its outputs."""
    arguments: dict[str, Any] = {"hidden_sizes": (5, 7), "layer_norm": True, "dueling": True}
    expected, model = value_network(*SPACES, **arguments), q_network(*SPACES, **arguments)
    example = example_input(*SPACES)
    params = jit(model.init)(KEY(), example)
    jax.tree.map(np.testing.assert_array_equal, params, jit(expected.init)(KEY(), example))
    assert {"torso", "q_hidden", "q", "value_hidden", "value"} < set(params["params"])
    np.testing.assert_array_equal(model.apply(params, (), INPUTS)[1], expected.apply(params, (), INPUTS)[1])
    plain = jax.eval_shape(q_network(*SPACES, **{**arguments, "dueling": False}).init, KEY(), example)
    assert set(plain["params"]) == {"torso", "q"}


@pytest.mark.slow
def test_fractions_are_embedded_by_cosines() -> None:
    params, outputs, of_key = applied(num_fractions=3)
    drawn = of_key(jax.random.key(1))
    for given in (outputs, drawn):
        assert isinstance(given, QuantileOutput) and given.values.shape == (N, ACTIONS, 3) and given.fractions.shape == (N, 3)
        cosines = np.cos(np.pi * np.arange(64) * np.asarray(given.fractions)[..., None])
        x = relu(layer(params["torso"], "hidden_0", INPUTS.obs))[:, None] * relu(layer(params, "fraction", cosines))
        expected = layer(params, "q", relu(layer(params, "q_hidden", x)))
        np.testing.assert_allclose(given.values, expected.swapaxes(1, 2), atol=1e-4)
    np.testing.assert_allclose(outputs.fractions, np.broadcast_to([1 / 6, 3 / 6, 5 / 6], (N, 3)), atol=1e-6)
    fractions = np.asarray(drawn.fractions)
    assert len({*fractions.ravel().tolist()}) == N * 3 and 0 < fractions.min() < fractions.max() < 1


def test_noise_is_factorised() -> None:
    """Fortunato et al.

    2018, eq. 9–11: computed from the outputs for unit vectors, the noise is a matrix of rank one and a bias.
    """
    layer = NoisyDense(4, kernel_init=orthogonal(1.0), sigma=0.8)
    x = jnp.concatenate([jnp.zeros((1, 9)), jnp.eye(9)])
    params = jit(layer.init)(KEY(), x)
    params = jax.tree.map(lambda p: getattr(p, "value", p), params, is_leaf=lambda p: hasattr(p, "unbox"))
    sigma = params["params"]["kernel_sigma"]
    np.testing.assert_allclose(sigma, 0.8 / 3, rtol=1e-6)
    quiet = layer.apply(params, x)
    apply = lambda key: layer.apply(params, x, factors(key, 9 + 4)) - quiet  # noqa: E731
    noise = np.asarray(jit(apply)(jax.random.key(1))) / (0.8 / 3)
    bias, matrix = noise[0], noise[1:] - noise[0]  # ε_out, and ε_in ε_outᵀ
    incoming = matrix[:, 0] / bias[0]
    np.testing.assert_allclose(matrix, np.outer(incoming, bias), atol=1e-4)
    many = np.asarray(jit(jax.vmap(apply))(jax.random.split(KEY(), 4000)))[:, 0].ravel() / (0.8 / 3)
    normal = np.sign(many) * many**2  # of f(ε) = sgn(ε)·√|ε|
    assert abs(normal.mean()) < 0.05 and normal.std() == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_there_is_noise_with_a_key_alone() -> None:
    _, quiet, of_key = applied(noise=0.5)
    one, other = (np.asarray(of_key(jax.random.key(i))) for i in range(2))
    assert (one != other).all() and (one != np.asarray(quiet)).all()
    np.testing.assert_array_equal(one, of_key(KEY()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_outputs": 2, "num_fractions": 2}, "num_outputs=2 and num_fractions=2 are mutually exclusive"),
        ({"core": "gru"}, "core='gru': value_network has no core"),
        ({"core": "gru", "dueling": True}, "core='gru': value_network has no core"),
        ({"num_outputs": 0}, "num_outputs=0 must be an integer >= 1"),
        ({"noise": -1}, "noise=-1 is not allowed: it must be a finite number >= 0"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        value_network(*SPACES, **arguments)


def test_other_actions_are_refused() -> None:
    with pytest.raises(TypeError, match="a Q-network needs a Discrete space"):
        value_network(SPACES[0], SPACES[0], dueling=True)


@pytest.mark.parametrize("arguments", [{"dueling": True}, {"noise": 0.5}, {"num_outputs": 3}])
def test_residual_blocks_are_all_in_the_torso(arguments: dict[str, Any]) -> None:
    """The last hidden layer is not a plain one of the streams then."""
    model = value_network(*SPACES, hidden_sizes=(4, 4), residual=True, **arguments)
    params = jax.eval_shape(model.init, KEY(), example_input(*SPACES))["params"]
    assert {"wide_0", "wide_1"} < {*params["torso"]} and {*params} - {"torso"} == {"q", "value"} & {*params} != set()
