"""Output heads: masks of actions, bounds, and the standard deviation before training."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.distributions import LACKING, MASKED, Normal, TanhNormal
from jaxrl.models import (
    action_value,
    actor_critic,
    policy_network,
    q_network,
    split_mask,
    value_network,
)
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.inputs import example_input
from jaxrl.types import StepInput
from tests.helpers.agents import assert_bit_equal, to_numpy
from tests.helpers.networks import BOX, DISCRETE, OBSERVATION, B, jit, sequence, small_actor_critic

# --------------------------------------------------------------------------------------------------------------------- masks


WITH_MASK = spaces.Dict({"x": OBSERVATION, "action_mask": spaces.MultiBinary(4)})


def masked_inputs(mask: Any) -> StepInput:
    obs = {
        "x": jnp.asarray(np.random.default_rng(0).normal(size=(B, 3)), jnp.float32),
        "action_mask": jnp.asarray(mask, jnp.int8),
    }
    return first_input(obs, DISCRETE, B)


@pytest.mark.parametrize(
    "make", [actor_critic, partial(actor_critic, core="gru", core_size=8), q_network], ids=["mlp", "gru", "q"]
)
def test_masks_bind_and_are_never_encoded(make: Any) -> None:
    model = make(WITH_MASK, DISCRETE, hidden_sizes=(8,))
    params = jit(model.init)(jax.random.key(0), example_input(WITH_MASK, DISCRETE))
    apply = jit(lambda inputs: model.apply(params, model.initial_carry(B), inputs)[1])
    mask = np.array([[1, 0, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1]])
    free, bound = apply(masked_inputs(np.ones((B, 4)))), apply(masked_inputs(mask))
    if make is not q_network:
        np.testing.assert_array_equal(bound.value, free.value)
        free, bound = free.policy.logits, bound.policy.logits
    np.testing.assert_array_equal(bound, np.where(mask, free, MASKED))
    assert (np.asarray(free) > MASKED).all()
    assert not np.isin(bound.argmax(-1), [1, 2])[0] and bound.argmax(-1)[1] == 2


OF_MASKS: dict[str, Any] = {
    "actor-critic": partial(actor_critic, WITH_MASK, DISCRETE, hidden_sizes=(8,)),
    "policy": partial(policy_network, WITH_MASK, DISCRETE, hidden_sizes=(8,)),
    "q": partial(q_network, WITH_MASK, DISCRETE, hidden_sizes=(8,)),
    "recurrent q": partial(q_network, WITH_MASK, DISCRETE, hidden_sizes=(8,), core="gru", core_size=8),
    "dueling": partial(value_network, WITH_MASK, DISCRETE, hidden_sizes=(8,), dueling=True),
    "critic": partial(action_value, WITH_MASK, DISCRETE, hidden_sizes=(8,)),
}


@pytest.mark.parametrize("name", OF_MASKS)
def test_a_mask_that_forbids_everything_is_none(name: str) -> None:
    """At a last observation all actions may be forbidden. Q-values are still needed there if the episode was truncated."""
    model = OF_MASKS[name]()
    params = jit(model.init)(jax.random.key(0), example_input(WITH_MASK, DISCRETE))
    apply = jit(lambda inputs: model.apply(params, model.initial_carry(B), inputs)[1])
    assert_bit_equal(apply(masked_inputs(np.zeros((B, 4)))), apply(masked_inputs(np.ones((B, 4)))))


@pytest.mark.slow
def test_gradients_through_a_mask_are_finite() -> None:
    model = actor_critic(WITH_MASK, DISCRETE, hidden_sizes=(8,))
    params = jit(model.init)(jax.random.key(0), example_input(WITH_MASK, DISCRETE))
    inputs = masked_inputs([[1, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]])  # the last forbids everything, as at a last observation

    def loss(params: Any) -> Any:
        output = model.apply(params, (), inputs)[1]
        return output.policy.entropy().sum() + output.policy.log_prob(jnp.array([0, 2, 1])).sum() + output.value.sum()

    gradient = to_numpy(jax.grad(loss)(params))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert any((x != 0).any() for x in jax.tree.leaves(gradient["params"]["policy"]))


SEVERAL = spaces.MultiDiscrete([[2, 3], [2, 2]])


@pytest.mark.parametrize("core", [None, "gru"])
def test_a_mask_per_dimension(core: str | None) -> None:
    """As one array or as a Tuple. Dimensions are separate, and none gets more choices than it has."""
    flat = np.array([[1, 0, 0, 1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 0, 1, 1, 0, 1], [1] * 9], np.int8)
    masks = (flat, tuple(np.split(flat, [2, 5, 7], axis=-1)))
    kinds = (spaces.MultiBinary(9), spaces.Tuple([spaces.MultiBinary(n) for n in (2, 3, 2, 2)]))
    made = []
    for mask, kind in zip(masks, kinds, strict=True):
        space = spaces.Dict({"x": OBSERVATION, "action_mask": kind})
        model = actor_critic(space, SEVERAL, hidden_sizes=(8,), core=core, core_size=8)
        obs = {"x": jnp.ones((B, 3)), "action_mask": jax.tree.map(jnp.asarray, mask)}
        inputs = first_input(obs, SEVERAL, B)
        params = jit(model.init)(jax.random.key(0), inputs)
        made.append(np.asarray(model.apply(params, model.initial_carry(B), inputs)[1].policy.logits))
    assert made[0].shape == (B, 4, 3)
    np.testing.assert_array_equal(*made)
    there = np.array([[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]], bool)
    expected = np.where(there, 1.0, LACKING) * np.ones((B, 1, 1))
    expected[:, there] = np.where(flat, 1.0, MASKED)
    np.testing.assert_array_equal(made[0] > 0.5 * MASKED, expected == 1)
    np.testing.assert_array_equal(np.minimum(made[0], -1), np.minimum(expected, -1))


@pytest.mark.parametrize("shape", [(1,), (3,), (4, 1), ()])
def test_a_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """A mask of shape (1,) would silently forbid all or nothing."""
    space = spaces.Dict({"x": OBSERVATION, "action_mask": spaces.Box(0, 1, shape, np.int8)})
    for make in (actor_critic, q_network):
        with pytest.raises(
            ValueError, match=r"action_mask is int8\[1.*\], but the actions are float32\[1, 4\]: the mask must have one entry"
        ):
            jax.eval_shape(make(space, DISCRETE).init, jax.random.key(0), example_input(space, DISCRETE))


def test_a_squashed_head_is_the_gaussian_one_within_the_bounds() -> None:
    inputs = sequence(BOX)
    plain, squashed = (small_actor_critic(BOX, squash=squash) for squash in (False, True))
    assert jax.tree.structure(plain[1]) == jax.tree.structure(squashed[1])
    policy, free = (model.unroll(params, (), inputs)[1].policy for model, params in (squashed, plain))
    assert isinstance(policy, TanhNormal) and isinstance(free, Normal)
    np.testing.assert_array_equal(policy.mean, free.mean)
    np.testing.assert_allclose(policy.mode(), np.tanh(free.mode()), rtol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"squash": True}, {"core": "gru"}, {"core": "gru", "shared": False}])
def test_the_standard_deviation_before_training(settings: dict[str, Any]) -> None:
    for given, expected in ({}, 1.0), ({"initial_std": 0.4}, 0.4):
        model, params = small_actor_critic(BOX, **settings, **given)
        policy = jit(model.apply)(params, model.initial_carry(1), example_input(OBSERVATION, BOX))[1].policy
        np.testing.assert_allclose(np.exp(policy.log_std), np.full(policy.log_std.shape, expected), rtol=1e-6)


def test_discrete_actions_have_no_standard_deviation() -> None:
    for make in (actor_critic, policy_network):
        with pytest.raises(ValueError, match=r"initial_std=0.5 has no effect on actions of Discrete.*: it is for a Box"):
            make(OBSERVATION, DISCRETE, initial_std=0.5)
        with pytest.raises(ValueError, match=r"initial_std=0.* must be"):
            make(OBSERVATION, BOX, initial_std=0)


@pytest.mark.parametrize(
    "space", [DISCRETE, spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(np.float32(0), np.float32(np.inf), (2,))]
)
def test_what_cannot_be_squashed(space: spaces.Space) -> None:
    with pytest.raises(
        ValueError, match=r"squash=True needs a Box with bounds on all sides, but action_space is .*: leave it out"
    ):
        actor_critic(OBSERVATION, space, squash=True)
    with pytest.raises(TypeError, match=r"squash=.yes. must be True or False"):
        actor_critic(OBSERVATION, BOX, squash="yes")  # type: ignore[arg-type]


def test_split_mask() -> None:
    obs = {"x": 1, "action_mask": 2}
    assert split_mask(obs) == ({"x": 1}, 2)
    assert obs == {"x": 1, "action_mask": 2}
    assert split_mask({"x": 1}) == ({"x": 1}, None)
    array = jnp.zeros(3)
    assert split_mask(array) == (array, None)
