"""Greedy policies: outputs in each action space, against NumPy, masks, memory, and kernels of low rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.distributions import MASKED, Categorical, MultiCategorical
from jaxrl.evolution.noise import LowRankKernel, LowRankNoise
from jaxrl.models import greedy_policy
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.inputs import example_input
from jaxrl.types import StepInput
from tests.helpers.agents import assert_close
from tests.helpers.lowering import lowered
from tests.helpers.networks import BOX, DISCRETE, OBSERVATION, B, T, jit, sequence, values_for
from tests.helpers.oracles.evolution import dense

KEY = partial(jax.random.key, 0)
SEVERAL = spaces.MultiDiscrete([2, 3])
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)
PICTURE = spaces.Dict({"x": OBSERVATION, "image": spaces.Box(0, 255, (10, 10, 2), np.uint8)})


def made(actions: spaces.Space = DISCRETE, seen: spaces.Space = OBSERVATION, **settings: Any) -> tuple[Any, Any]:
    """Return a model and random parameters, including biases."""
    model = greedy_policy(seen, actions, **{"hidden_sizes": (6,), **settings})
    return model, values_for(jax.eval_shape(model.init, KEY(), example_input(seen, actions)))


def outputs(actions: spaces.Space, seen: spaces.Space = OBSERVATION, **settings: Any) -> Any:
    """Return the shapes of outputs for a batch of one."""
    model, params = made(actions, seen, **settings)
    return jax.eval_shape(model.apply, params, model.initial_carry(1), example_input(seen, actions))[1]


@pytest.mark.parametrize(
    "settings", [{}, {"core": "gru"}, {"hidden_sizes": ()}, {"core": "lstm", "use_previous": False}], ids=str
)
def test_outputs_choose_an_action_of_the_space(settings: dict[str, Any]) -> None:
    one, several = outputs(DISCRETE, **settings), outputs(SEVERAL, **settings)
    assert isinstance(one, Categorical) and one.logits.shape == (1, 4)
    assert isinstance(several, MultiCategorical) and several.logits.shape == (1, 2, 3)
    for box in (BOX, UNBOUNDED, spaces.Box(-1, 1, (2, 3), np.float32)):
        action = outputs(box, **settings)
        assert action.shape == (1, int(np.prod(box.shape))) and action.dtype == jnp.float32
    assert outputs(BOX, squash=True, **settings).shape == (1, 2)


def test_images_and_dicts_have_their_encoders() -> None:
    """The default width of vectors is 2×64, and ``()`` is a linear policy."""
    assert outputs(BOX, PICTURE).shape == (1, 2)
    default = jax.eval_shape(greedy_policy(OBSERVATION, BOX).init, KEY(), example_input(OBSERVATION, BOX))["params"]
    assert [layer["kernel"].shape for layer in default["torso"].values()] == [(3, 64), (64, 64)]
    _, linear = made(BOX, hidden_sizes=())
    assert jax.tree.map(np.shape, linear) == {"params": {"head": {"action": {"bias": (2,), "kernel": (3, 2)}}}}


def linear(x: Any, layer: Any) -> Any:
    return np.asarray(x) @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])


def test_outputs_are_numpys() -> None:
    """And actions are squashed only if asked: the algorithm clips them."""
    x = np.random.default_rng(0).normal(size=(B, 3), scale=3).astype(np.float32)
    for actions, name, squash in ((DISCRETE, "logits", False), (UNBOUNDED, "action", False), (BOX, "action", True)):
        model, params = made(actions, **({"squash": True} if squash else {}))
        params = jax.tree.map(lambda x: 9 * x, params)
        _, found = model.apply(params, (), first_input(jnp.asarray(x), actions, B))
        layers = params["params"]
        expected = linear(np.tanh(linear(x, layers["torso"]["hidden_0"])), layers["head"][name])
        found = found.logits if isinstance(found, Categorical) else found
        np.testing.assert_allclose(found, np.tanh(expected) if squash else expected, rtol=1e-4, atol=1e-4)
        assert np.abs(expected).max() > 1


def test_heads_start_small_and_hidden_layers_with_the_scale_of_the_field() -> None:
    for actions, name in ((DISCRETE, "logits"), (BOX, "action")):
        params = greedy_policy(OBSERVATION, actions).init(KEY(), example_input(OBSERVATION, actions))["params"]
        scales = {"head": 0.01, "torso": np.sqrt(2)}
        for part, layer in (("head", params["head"][name]), ("torso", params["torso"]["hidden_1"])):
            np.testing.assert_allclose(np.linalg.svd(layer["kernel"])[1], scales[part], rtol=1e-4)
            assert not layer["bias"].any()


@pytest.mark.parametrize("core", [None, "gru"])
def test_masked_actions_are_never_the_best(core: str | None) -> None:
    """The mask is not encoded, and applies to each dimension of a MultiDiscrete space."""
    seen = spaces.Dict({"x": OBSERVATION, "action_mask": spaces.MultiBinary(5)})
    model, params = made(SEVERAL, seen, core=core)
    assert {x.shape[0] for path, x in jax.tree.leaves_with_path(params) if "hidden_0" in str(path) and x.ndim == 2} == (
        {3} if core is None else {3 + 5 + 1}  # the previous action and reward too
    )
    masks = jnp.array([[1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [1, 1, 0, 0, 1]], jnp.int8)
    inputs = first_input({"x": jnp.ones((3, 3)), "action_mask": masks}, SEVERAL, 3)
    _, output = model.apply(jax.tree.map(lambda x: 50 * x, params), model.initial_carry(3), inputs)
    assert output.mode()[:2].tolist() == [[0, 1], [1, 0]] and int(output.mode()[2, 1]) == 2
    np.testing.assert_array_equal(output.logits[0] <= MASKED, [[False, True, True], [True, False, True]])


@pytest.mark.parametrize("settings", [{}, {"core": "gru", "core_size": 5}], ids=["memoryless", "gru"])
def test_unroll_is_apply_row_by_row(settings: dict[str, Any]) -> None:
    """Over ends of episodes, where a carry is reset."""
    model, params = made(BOX, **settings)
    inputs, carry = sequence(BOX), model.initial_carry(B)
    last, together = jit(model.unroll)(params, carry, inputs)
    rows, step = [], jit(model.apply)
    for t in range(T):
        carry, output = step(params, carry, jax.tree.map(lambda x, t=t: x[t], inputs))
        rows.append(output)
    assert_close(together, jnp.stack(rows))
    assert_close(last, carry)


# ------------------------------------------------------------------------------------------------------------ kernels of low rank

LAYERS: dict[str, dict[str, Any]] = {
    "linear": {"hidden_sizes": ()},
    "layer norm": {"layer_norm": True, "activation": "relu"},
    "gru": {"core": "gru", "core_size": 5},
    "lstm": {"core": "lstm", "core_size": 5},
}


def perturbed(params: Any, rank: int = 2, member: int = 3) -> Any:
    return LowRankNoise(rank=rank).member(KEY(), jnp.int32(member), params, jnp.float32(0.5))


@pytest.mark.parametrize("kind", LAYERS)
def test_kernels_of_low_rank_are_those_they_stand_for(kind: str) -> None:
    model, params = made(**LAYERS[kind])
    low = perturbed(params)
    kernels = jax.tree.leaves(low, is_leaf=lambda x: isinstance(x, LowRankKernel))
    number = sum(isinstance(x, LowRankKernel) for x in kernels)
    assert number == sum(x.ndim == 2 for x in jax.tree.leaves(params)) > 0
    run = jit(model.unroll)
    found, expected, mean = (run(p, model.initial_carry(B), sequence(DISCRETE)) for p in (low, dense(low), params))
    assert_close(found, expected, atol=1e-4)
    assert np.abs(found[1].logits - mean[1].logits).max() > 0.1


def test_kernels_of_low_rank_beside_convolutions() -> None:
    """Those of convolutions have full noise."""
    model, params = made(DISCRETE, PICTURE, hidden_sizes=(4,))
    low, inputs = perturbed(params), example_input(PICTURE, DISCRETE)
    inputs = inputs._replace(obs=jax.tree.map(jnp.ones_like, inputs.obs))
    found, expected = (jit(model.apply)(p, (), inputs)[1].logits for p in (low, dense(low)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert any(x.ndim == 4 for x in jax.tree.leaves(low))


def test_half_precision_stays_half_with_kernels_of_low_rank() -> None:
    model, params = made(BOX, dtype="bfloat16")
    low = perturbed(params)
    inputs = first_input(jnp.ones((B, 3)), BOX, B)
    found, expected = (np.asarray(model.apply(p, (), inputs)[1], np.float32) for p in (low, dense(low)))
    np.testing.assert_allclose(found, expected, atol=0.05)
    text = lowered(lambda p: model.apply(p, (), inputs), low, platforms=["cpu"])
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert sum("bf16" in line for line in products) >= 3 and len(products) == 6


def test_members_share_the_products_with_the_mean() -> None:
    """Of six products for two layers, those with the kernels of the mean have no axis of members, the narrow ones have."""
    model, params = made()
    inputs = jax.tree.map(lambda x: jnp.broadcast_to(x, (7, *x.shape)), example_input(OBSERVATION, DISCRETE))

    def outputs_of(member: Any, row: StepInput) -> Any:
        low = LowRankNoise().member(KEY(), member, params, jnp.float32(0.5))
        return model.apply(low, (), row)[1].logits

    text = lowered(jax.vmap(outputs_of), jnp.arange(7), inputs, platforms=["cpu"])
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 6 and sum("batching_dims" in line for line in products) == 4


# ------------------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("actions", "settings", "error", "message"),
    [
        (
            spaces.MultiBinary(3),
            {},
            TypeError,
            r"action_space is MultiBinary\(3\): greedy_policy needs a Discrete, MultiDiscrete",
        ),
        (
            DISCRETE,
            {"squash": True},
            ValueError,
            r"squash=True needs a Box with bounds on all sides, but action_space is Discrete",
        ),
        (UNBOUNDED, {"squash": True}, ValueError, r"squash=True needs a Box with bounds on all sides, but .*inf"),
        (DISCRETE, {"shared": True}, TypeError, r"unexpected keyword argument 'shared'"),
        (DISCRETE, {"core": "rnn"}, ValueError, r"core='rnn' is unknown"),
    ],
)
def test_what_is_refused(actions: spaces.Space, settings: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        greedy_policy(OBSERVATION, actions, **settings)
    assert "\n" not in str(raised.value)
