"""Surrogate objectives row by row, and the penalty's coefficient, against numbers computed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.common.ppo_objectives import COEF_RANGE, Clip, Drift, KLPenalty
from jaxrl.distributions import Normal
from jaxrl.optimize.learner import Learner

RATIO = np.array([0.5, 0.5, 0.9, 1.1, 2.0, 2.0], np.float32)
ADVANTAGE = np.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0], np.float32)


@pytest.mark.slow
def test_the_clip_keeps_the_worse_of_both() -> None:
    """If the ratio has left 0.8 … 1.2 and the advantage would push it further, the row has the value at the bound."""
    given = (SimpleNamespace(clip_eps=0.2), None, SimpleNamespace(advantage=ADVANTAGE))
    rows, logged = Clip().policy_loss(*given, RATIO, None)
    np.testing.assert_allclose(rows, [-0.5, 0.8, -1.8, 2.2, -3.6, 6.0], rtol=1e-6)
    np.testing.assert_array_equal(logged["losses/clipfrac"], [1, 1, 0, 0, 1, 1])
    gradient = jax.grad(lambda ratio: Clip().policy_loss(*given, ratio, None)[0].sum())(RATIO)
    np.testing.assert_array_equal(gradient, [-1, 0, -2, 2, 0, 3])


def test_the_drift_is_that_of_dpo() -> None:
    """Against the equations in NumPy. At a ratio of 1 neither the drift nor its gradient changes the policy gradient."""
    batch = SimpleNamespace(advantage=ADVANTAGE)
    rows, logged = Drift(alpha=2.0, beta=0.6).policy_loss(None, None, batch, RATIO, None)
    expected = []
    for r, a in zip(RATIO.astype(float), ADVANTAGE.astype(float), strict=True):
        x, scale = ((r - 1) * a, 2.0) if a >= 0 else (np.log(r) * a, 0.6)
        expected.append(max(0.0, x - scale * np.tanh(x / scale)))
    np.testing.assert_allclose(logged["losses/drift"], expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(rows, np.array(expected) - RATIO * ADVANTAGE, rtol=1e-5)
    assert expected[4] > 0 and expected[1] > 0 and expected[0] == expected[5] == 0  # a drift only where the advantage pushes away

    def loss(ratio: Any) -> Any:
        return Drift().policy_loss(None, None, batch, ratio, None)[0].sum()

    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones(6)), -ADVANTAGE)
    assert np.isfinite(jax.grad(loss)(jnp.zeros(6))).all()


def test_the_penalty_is_beta_times_the_divergence_from_the_old_policy() -> None:
    """KL(N(0, 1) ‖ N(μ, σ)) = log σ + (1 + μ²) / 2σ² − ½, which differs from the reverse divergence."""
    mean, std = np.linspace(-1, 1, 6, dtype=np.float32), np.float32(2.0)
    old = Normal(jnp.zeros((6, 1)), jnp.zeros((6, 1)))
    new = Normal(jnp.asarray(mean)[:, None], jnp.full((6, 1), np.log(std)))
    batch, learner = SimpleNamespace(advantage=ADVANTAGE, policy=old), SimpleNamespace(kl_coef=3.0)
    divergence = np.log(std) + (1 + mean**2) / (2 * std**2) - 0.5
    rows, logged = KLPenalty().policy_loss(None, learner, batch, RATIO, new)
    np.testing.assert_allclose(rows, 3 * divergence - RATIO * ADVANTAGE, rtol=1e-5)
    assert logged == {}


@pytest.mark.parametrize(
    "coef, divergence, after",
    [
        (1.0, 0.02, 1.0),  # within 0.02 / 1.5 … 0.02 · 1.5
        (1.0, 0.0134, 1.0),
        (1.0, 0.0133, 0.5),
        (1.0, 0.0299, 1.0),
        (1.0, 0.0301, 2.0),
        (0.25, 5.0, 0.5),
        (8.0, 0.0, 4.0),
        (COEF_RANGE[0], 0.0, COEF_RANGE[0]),  # and back again
        (COEF_RANGE[0], 1.0, 2 * COEF_RANGE[0]),
        (COEF_RANGE[1], 1.0, COEF_RANGE[1]),
        (1.0, np.nan, 1.0),
    ],
)
def test_beta_follows_the_target(coef: float, divergence: float, after: float) -> None:
    learner = SimpleNamespace(kl_coef=jnp.float32(coef))
    fields, logged = KLPenalty(target=0.02).refresh(learner, lambda: jnp.float32(divergence))
    assert float(fields["kl_coef"]) == pytest.approx(after, rel=1e-6)
    assert float(logged["losses/kl_coef"]) == pytest.approx(coef)  # of this iteration
    np.testing.assert_allclose(logged["losses/kl"], divergence)


def test_only_the_penalty_has_a_state() -> None:
    learner: Any = Learner(*"abcdef")  # type: ignore[arg-type]
    assert Clip().with_state(learner) is learner and Clip().refresh(learner, None) == ({}, {})  # type: ignore[arg-type]
    state = KLPenalty(coef=0.7).with_state(learner)
    assert [*state][:6] == [*learner] and state._fields == (*Learner._fields, "kl_coef")
    assert float(state.kl_coef) == pytest.approx(0.7)
