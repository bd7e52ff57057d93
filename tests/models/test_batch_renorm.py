"""Batch renormalisation against NumPy: outputs, running moments, masked rows, warm-up, gradients, and several devices."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import BatchRenorm, action_value, policy_network
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.outputs import apply_ensemble, split_variables, train_ensemble, train_model
from jaxrl.types import Variables
from tests.helpers.agents import assert_bit_equal, assert_close
from tests.helpers.oracles.policy_gradient import slope

N, FEATURES, EPS = 8, 3, 1e-3
LAYER = BatchRenorm(momentum=0.9, r_max=1.5, d_max=0.4, warmup_steps=2)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


def case(seed: int, steps: int) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    params = {"scale": 1 + normal(FEATURES), "bias": normal(FEATURES)}
    statistics = {"mean": normal(FEATURES), "variance": np.exp(normal(FEATURES)), "steps": np.int32(steps)}
    x = np.float32([-0.5, 0.3, 1.0]) + np.float32([0.2, 1.0, 3.0]) * normal(N, FEATURES)
    return params, statistics, x, rng.random(N) < 0.7


def layer(params: Any, statistics: Any, x: Any, valid: Any) -> Any:
    y, changed = LAYER.apply({"params": params, "batch_stats": statistics}, x, valid, mutable=["batch_stats"])
    return y, changed["batch_stats"]


def corrections(statistics: Any, x: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """r and d, after the warm-up."""
    std, batch_std = (np.sqrt(v + EPS) for v in (statistics["variance"], x[valid].var(0)))
    return np.clip(batch_std / std, 1 / 1.5, 1.5), np.clip((x[valid].mean(0) - statistics["mean"]) / std, -0.4, 0.4)


def by_hand(params: Any, x: np.ndarray, valid: np.ndarray, r: Any, d: Any) -> np.ndarray:
    standard = (x - x[valid].mean(0)) / np.sqrt(x[valid].var(0) + EPS)
    return (standard * r + d) * params["scale"] + params["bias"]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_outputs_and_running_moments_are_the_papers(steps: int) -> None:
    """The first two batches are normalised without corrections. Rows that are not valid have no influence."""
    for seed in range(3):
        params, statistics, x, valid = case(seed, steps)
        r, d = corrections(statistics, x, valid) if steps == 2 else (1.0, 0.0)
        y, changed = layer(params, statistics, x, valid)
        np.testing.assert_allclose(y[valid], by_hand(params, x, valid, r, d)[valid], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(changed["mean"], 0.9 * statistics["mean"] + 0.1 * x[valid].mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(changed["variance"], 0.9 * statistics["variance"] + 0.1 * x[valid].var(0), rtol=1e-4)
        assert int(changed["steps"]) == min(steps + 1, 2)
        other = np.where(valid[:, None], x, np.float32(77.0))
        again, same = layer(params, statistics, other, valid)
        assert_bit_equal((again[valid], same), (y[valid], changed))


def test_corrections_are_clipped_in_the_case() -> None:
    """The tests above and below cover both sides of both limits, and values between."""
    found = [corrections(statistics, x, valid) for _, statistics, x, valid in (case(seed, 2) for seed in range(3))]
    r, d = (np.concatenate(values) for values in zip(*found, strict=True))
    for values, low, high in ((r, 1 / 1.5, 1.5), (d, -0.4, 0.4)):
        assert values.min() == np.float32(low) and values.max() == np.float32(high)
        assert ((values > low + 1e-3) & (values < high - 1e-3)).any()


def test_acting_uses_the_running_moments() -> None:
    params, statistics, x, _ = case(0, 0)
    y = LAYER.apply({"params": params, "batch_stats": statistics}, x.reshape(2, 4, FEATURES))
    expected = (x - statistics["mean"]) / np.sqrt(statistics["variance"] + EPS) * params["scale"] + params["bias"]
    np.testing.assert_allclose(y, expected.reshape(2, 4, FEATURES), rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]


def test_a_batch_without_valid_rows_changes_nothing() -> None:
    params, statistics, x, valid = case(0, 1)
    y, changed = layer(params, statistics, x, np.zeros_like(valid))
    assert_bit_equal(changed, jax.tree.map(jnp.asarray, statistics))
    assert np.isfinite(y).all()


@pytest.mark.parametrize("steps", [0, 2])
def test_gradients_flow_through_the_moments_of_the_batch_and_not_through_corrections(steps: int) -> None:
    params, statistics, x, valid = case(1, steps)
    weights = np.random.default_rng(2).normal(size=(N, FEATURES)) * valid[:, None]
    loss = lambda tree: (layer(tree, statistics, tree["x"], valid)[0] * weights).sum()  # noqa: E731
    gradient = jit(jax.grad(loss))({**params, "x": x})
    r, d = corrections(statistics, x, valid) if steps == 2 else (1.0, 0.0)
    expected = slope(lambda tree: (by_hand(tree, tree["x"], valid, r, d) * weights).sum(), {**params, "x": x})
    assert_close(gradient, jax.tree.map(np.float32, expected), atol=1e-3)


def test_devices_share_the_moments_of_the_whole_batch() -> None:
    """Outputs, running moments, and the mean of the devices' gradients, with different numbers of valid rows."""
    params, statistics, x, _ = case(2, 2)
    valid = np.array([1, 1, 1, 0, 0, 1, 0, 0], bool)
    rng = np.random.default_rng(3)
    weights = (rng.normal(size=(N, FEATURES)) * valid[:, None]).astype(np.float32)

    def value(params: Any, x: Any, valid: Any, weights: Any, axis_name: str | None) -> Any:
        variables = {"params": params, "batch_stats": statistics}
        y, changed = LAYER.apply(variables, x, valid, axis_name, mutable=["batch_stats"])
        return (y * weights).sum(), (y, changed)

    whole = jit(jax.grad(partial(value, axis_name=None), has_aux=True))
    gradient, (y, changed) = whole(params, x, valid, weights)
    parts = [jnp.asarray(array).reshape(2, 4, *array.shape[1:]) for array in (x, valid, weights)]
    on_devices = jax.vmap(jax.grad(partial(value, axis_name="d"), has_aux=True), in_axes=(None, 0, 0, 0), axis_name="d")
    gradients, (outputs, statistics_of_each) = jit(on_devices)(params, *parts)
    assert_close(outputs.reshape(y.shape), y, atol=1e-4)
    for device in range(2):
        assert_close(jax.tree.map(lambda leaf, i=device: leaf[i], statistics_of_each), changed, atol=1e-5)
    assert_close(jax.tree.map(lambda g: g.sum(0), gradients), gradient, atol=1e-4)


# -------------------------------------------------------------------------------------------------------------------- networks

OBSERVATION, BOX = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32)


def seen(n: int) -> Any:
    rng = np.random.default_rng(0)
    return first_input(jnp.float32(rng.normal(size=(n, 2))), BOX, n)


def test_each_dense_layer_of_a_network_gets_normal_features() -> None:
    """The input, and the two hidden layers after their activation, as in Bhatt et al. 2024."""
    model = policy_network(OBSERVATION, BOX, hidden_sizes=(8, 8), batch_renorm=True)
    params, statistics = split_variables(jit(model.init)(jax.random.key(0), seen(1)))
    torso = statistics["batch_stats"]["torso"]
    assert {name: layer["mean"].shape for name, layer in torso.items()} == {"renorm_in": (2,), "renorm_0": (8,), "renorm_1": (8,)}
    inputs, valid = seen(6), jnp.ones(6, bool)
    output, changed = jit(partial(train_model, model))(Variables(params, statistics), inputs, valid)
    weights, x = params["params"]["torso"], np.asarray(inputs.obs)
    for name in ("renorm_in", "renorm_0", "renorm_1"):
        np.testing.assert_allclose(changed["batch_stats"]["torso"][name]["mean"], 0.01 * x.mean(0), atol=1e-5)
        x = (x - x.mean(0)) / np.sqrt(x.var(0) + EPS)
        if hidden := {"renorm_in": weights["hidden_0"], "renorm_0": weights["hidden_1"]}.get(name):
            x = np.maximum(x @ hidden["kernel"] + hidden["bias"], 0)
    head = params["params"]["mean"]
    np.testing.assert_allclose(output.mean, x @ head["kernel"] + head["bias"], atol=1e-3)


def test_critics_of_an_ensemble_have_separate_statistics() -> None:
    model = action_value(OBSERVATION, BOX, hidden_sizes=(4,), batch_renorm=True)
    inputs = seen(5)
    inputs = inputs._replace(obs=(inputs.obs, jnp.linspace(-1, 1, 5)[:, None]))
    both = jit(jax.vmap(model.init, in_axes=(0, None)))(jax.random.split(jax.random.key(0)), inputs)
    outputs, statistics = jit(partial(train_ensemble, model))(both, inputs, jnp.ones(5, bool))
    acting = jit(partial(apply_ensemble, model))(both, inputs)
    assert outputs.shape == acting.shape == (2, 5)
    for i in range(2):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], both)
        alone, learnt = train_model(model, one, inputs, jnp.ones(5, bool))
        assert_close((outputs[i], jax.tree.map(lambda leaf, i=i: leaf[i], statistics)), (alone, learnt), atol=1e-5)
        assert_close(acting[i], model.apply(one, (), inputs)[1], atol=1e-5)


def test_without_batch_renorm_there_are_no_statistics() -> None:
    model = action_value(OBSERVATION, BOX, hidden_sizes=(4,))
    params = jax.eval_shape(model.init, jax.random.key(0), seen(1)._replace(obs=(jnp.zeros((1, 2)), jnp.zeros((1, 1)))))
    assert model.train is None and split_variables(params) == (params, ())
