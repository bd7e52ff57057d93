"""Policies and action-values: inputs, outputs and errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import action_value, deterministic_policy, policy_network
from jaxrl.rollout.inputs import example_input

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
BOX = spaces.Box(np.array([0, -2], np.float32), np.array([4, -1], np.float32))
SEEN = spaces.Dict({"x": spaces.Box(-1, 1, (3,), np.float32), "image": spaces.Box(0, 255, (10, 10, 2), np.uint8)})
UNIT = spaces.Tuple((SEEN, spaces.Box(-1, 1, (2,), np.float32)))


def params_and_output(model: Any, seen: spaces.Space, action_space: spaces.Space = BOX) -> Any:
    inputs = example_input(seen, action_space)
    params = jax.eval_shape(model.init, KEY(), inputs)
    return params, jax.eval_shape(model.apply, params, (), inputs)[1]


def test_policies_of_all_kinds() -> None:
    _, squashed = params_and_output(policy_network(SEEN, BOX, hidden_sizes=(8,)), SEEN)
    assert isinstance(squashed, TanhNormal) and squashed.mean.shape == squashed.log_std.shape == (1, 2) and squashed.low is None
    _, logits = params_and_output(policy_network(SEEN, spaces.Discrete(5)), SEEN, spaces.Discrete(5))
    assert isinstance(logits, Categorical) and logits.logits.shape == (1, 5)
    _, action = params_and_output(deterministic_policy(SEEN, BOX), SEEN)
    assert action.shape == (1, 2)


@pytest.mark.parametrize("core", [None, "gru"])
def test_the_standard_deviation_before_training(core: str | None) -> None:
    """It depends on the observation: with an output layer of small weights it is close to the asked one."""
    inputs = example_input(SEEN, BOX)
    for given, expected in ({}, 1.0), ({"initial_std": 0.4}, 0.4):
        model = policy_network(SEEN, BOX, hidden_sizes=(8,), core=core, **given)
        policy = jit(model.apply)(jit(model.init)(KEY(), inputs), model.initial_carry(1), inputs)[1]
        np.testing.assert_allclose(np.exp(policy.log_std), np.full((1, 2), expected), rtol=0.05)


def test_action_values_of_all_kinds() -> None:
    assert params_and_output(action_value(SEEN, BOX), UNIT)[1].shape == (1,)
    assert params_and_output(action_value(SEEN, BOX, num_outputs=7), UNIT)[1].shape == (1, 7)
    discrete = spaces.Discrete(5)
    assert params_and_output(action_value(SEEN, discrete), SEEN, discrete)[1].shape == (1, 5)


def test_vectors_have_the_papers_width_and_images_their_encoders() -> None:
    def widths(seen: spaces.Space) -> list[int]:
        params, _ = params_and_output(policy_network(seen, BOX), seen)
        torso = params["params"]["torso"]
        return [layer["kernel"].shape[-1] for name, layer in torso.items() if name.startswith("hidden")]

    assert widths(SEEN["x"]) == [256, 256] and widths(SEEN) == [128]


@pytest.mark.slow
def test_dropout_drops_where_a_key_is_given_and_only_there() -> None:
    seen = spaces.Box(-1, 1, (3,), np.float32)
    model = action_value(seen, BOX, hidden_sizes=(64,), dropout=0.5, layer_norm=True)
    inputs = example_input(spaces.Tuple((seen, UNIT[1])), BOX)
    inputs = inputs._replace(obs=(jnp.ones((1, 3)), jnp.ones((1, 2))))

    def values(key: Any) -> Any:
        params = model.init(key, inputs)
        keys = jax.random.split(key, 200)
        return model.apply(params, (), inputs)[1], jax.vmap(lambda k: model.apply(params, (), inputs, key=k)[1])(keys)

    without, dropped = jit(values)(KEY())
    assert len(np.unique(dropped)) > 190 and np.isfinite(without).all()


def test_residual_layers_are_those_of_simba() -> None:
    """Against NumPy: a linear layer, two blocks, and a last normalisation."""
    seen = spaces.Box(-1, 1, (3,), np.float32)
    model = deterministic_policy(seen, BOX, hidden_sizes=(4, 4), residual=True)
    inputs = example_input(seen, BOX)._replace(obs=jnp.float32([[0.3, -0.7, 1.1]]))
    params = jit(model.init)(KEY(), inputs)
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(KEY(), x.shape), params)
    weights = jax.tree.map(np.asarray, params)["params"]
    torso, x = weights["torso"], np.float64([0.3, -0.7, 1.1])
    layer = lambda name, x: x @ torso[name]["kernel"] + torso[name]["bias"]  # noqa: E731

    def norm(name: str, x: Any) -> Any:
        return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * torso[name]["scale"] + torso[name]["bias"]

    x = layer("embedding", x)
    for i in range(2):
        wide = layer(f"wide_{i}", norm(f"norm_{i}", x))
        assert wide.shape == (16,)
        x = x + layer(f"hidden_{i}", np.maximum(wide, 0))
    action = np.tanh(norm("norm", x) @ weights["action"]["kernel"] + weights["action"]["bias"])
    np.testing.assert_allclose(jit(model.apply)(params, (), inputs)[1][0], action, atol=1e-5)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: policy_network(SEEN, spaces.MultiDiscrete([2, 3])), TypeError, "policy_network needs a Box or Discrete space"),
        (lambda: deterministic_policy(SEEN, spaces.MultiDiscrete([2])), TypeError, "deterministic_policy needs a Box"),
        (
            lambda: policy_network(SEEN, BOX, core="gru", batch_renorm=True),
            ValueError,
            "core='gru' and batch_renorm=True are mutu",
        ),
        (lambda: action_value(SEEN, spaces.MultiDiscrete([2])), TypeError, "action_value needs a Box or Discrete space"),
        (lambda: action_value(SEEN, spaces.Discrete(2), num_outputs=3), TypeError, "needs a Box for num_outputs"),
        (lambda: action_value(SEEN, BOX, dropout=1), ValueError, "dropout=1 is not allowed"),
        (lambda: action_value(SEEN, BOX, num_outputs=0), ValueError, "num_outputs=0 must be"),
        (lambda: action_value(SEEN["x"], BOX, encoder="nature"), ValueError, "encoder='nature' has no effect"),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
