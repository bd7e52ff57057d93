"""DQN's loss against NumPy."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.algorithms.common.bootstrapping import Double, Greedy
from jaxrl.algorithms.dqn import DQNConfig, Transitions, dqn_loss
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import q_network
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.inputs import example_input
from jaxrl.types import Model
from tests.helpers.agents import assert_bit_equal
from tests.helpers.oracles.q_learning import ACTIONS, FEATURES, N, loss_case

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""


def linear_model() -> Model:
    """Model with Q-values x·W, easy to compute in NumPy."""
    apply = lambda params, carry, inputs, key=None: (carry, inputs.obs @ params)  # noqa: E731
    return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]


LOOKS = {True: Double(), False: Greedy()}


@cache
def loss_and_gradient(double: bool) -> Any:
    return jit(
        jax.value_and_grad(partial(dqn_loss, linear_model(), DQNConfig(bootstrap=LOOKS[double]), axis_name=None), has_aux=True)
    )


@pytest.mark.parametrize("double", [True, False])
def test_the_loss_is_the_papers(double: bool) -> None:
    for seed in range(3):
        w, w_target, batch = loss_case(seed)
        (loss, metrics), gradient = loss_and_gradient(double)(w, w_target, batch=batch)
        expected, slope, values = 0.0, np.zeros((FEATURES, ACTIONS)), []
        for i in np.flatnonzero(batch.valid):
            x, after = (np.asarray(part.obs[i], np.float64) for part in (batch.inputs, batch.next_inputs))
            best = np.argmax(after @ (w if double else w_target))
            q_value = (x @ w)[batch.action[i]]
            error = q_value - (batch.reward[i] + batch.discount[i] * (after @ w_target)[best])
            expected += 0.5 * batch.weight[i] * error**2 / batch.valid.sum()
            slope[:, batch.action[i]] += batch.weight[i] * error * x / batch.valid.sum()  # no gradient through the target
            values.append(q_value)
        assert float(loss) == pytest.approx(expected, rel=1e-4)
        np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-4)
        errors = np.asarray(metrics.pop("priorities"))
        assert (errors >= 0).all() and expected == pytest.approx(0.5 * np.mean((batch.weight * errors**2)[batch.valid]), rel=1e-4)
        logged = {"losses/td_loss": expected, "losses/q_values": np.mean(values)}
        assert {name: float(value) for name, value in metrics.items()} == pytest.approx(logged, rel=1e-4)


def test_double_makes_a_difference() -> None:
    w, w_target, batch = loss_case(0)
    losses = [float(loss_and_gradient(double)(w, w_target, batch=batch)[0][0]) for double in (True, False)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def with_other_invalid_draws(batch: Transitions, garbage: float) -> Transitions:
    other = jax.tree.map(np.array, batch)
    for x in jax.tree.leaves(other._replace(valid=())):
        x[~batch.valid] = garbage if x.dtype.kind == "f" else 1
    return other


def test_draws_that_are_not_valid_carry_no_weight() -> None:
    w, w_target, batch = loss_case(1)
    changed = with_other_invalid_draws(batch, 7.0)
    assert_bit_equal(*(loss_and_gradient(True)(w, w_target, batch=b) for b in (batch, changed)))
    (loss, metrics), gradient = loss_and_gradient(True)(w, w_target, batch=batch._replace(valid=np.zeros(N, bool)))
    assert float(loss) == 0 and not np.any(gradient) and float(metrics["losses/q_values"]) == 0


def test_draws_that_are_not_valid_carry_no_weight_even_if_they_are_not_finite() -> None:
    """Such a draw is a reset row. Its observation is the last one of an episode, which may not be finite."""
    w, w_target, batch = loss_case(1)
    changed = with_other_invalid_draws(batch, np.nan)
    assert_bit_equal(*(loss_and_gradient(True)(w, w_target, batch=b) for b in (batch, changed)))


def test_a_last_observation_that_is_not_finite_has_no_influence_after_a_termination() -> None:
    w, w_target, batch = loss_case(2)
    broken = np.where(batch.discount[:, None] == 0, np.nan, batch.next_inputs.obs)
    other = batch._replace(next_inputs=batch.next_inputs._replace(obs=broken.astype(np.float32)))
    for double in (True, False):
        assert_bit_equal(*(loss_and_gradient(double)(w, w_target, batch=b) for b in (batch, other)))


def test_forbidden_actions_are_not_looked_ahead_to() -> None:
    """The mask of the next observation applies to the choice of the next action and to the target network's values."""
    space = spaces.Dict({"x": spaces.Box(-1, 1, (FEATURES,), np.float32), "action_mask": spaces.MultiBinary(ACTIONS)})
    model = q_network(space, spaces.Discrete(ACTIONS), hidden_sizes=(8,))
    params = jit(model.init)(KEY(), example_input(space, spaces.Discrete(ACTIONS)))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, FEATURES)).astype(np.float32)
    free, bound = (
        first_input({"x": jnp.asarray(x), "action_mask": jnp.asarray(mask, jnp.int8)}, spaces.Discrete(ACTIONS), N)
        for mask in (np.ones((N, ACTIONS)), np.eye(ACTIONS)[rng.integers(ACTIONS, size=N)])
    )
    q_free = np.asarray(jit(model.apply)(params, (), free)[1])
    allowed = np.asarray(bound.obs["action_mask"]).argmax(-1)
    action, nothing = jnp.zeros(N, jnp.int32), jnp.zeros(N)
    batch = Transitions(free, bound, action, nothing, jnp.full(N, 0.9), jnp.ones(N), jnp.ones(N, bool))
    for double in (True, False):
        loss, _ = jit(lambda p, b, d=double: dqn_loss(model, DQNConfig(bootstrap=LOOKS[d]), p, p, b, None))(params, batch)
        expected = 0.5 * np.mean((q_free[:, 0] - 0.9 * q_free[np.arange(N), allowed]) ** 2)
        assert float(loss) == pytest.approx(expected, rel=1e-4)
