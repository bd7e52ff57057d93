"""Surrogate objectives row by row, and the penalty's coefficient, against numbers computed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.common.ppo_objectives import KL_COEF_RANGE, SURROGATES, adapted, clipped, penalised
from jaxrl.builder.setup import Learner
from jaxrl.distributions import Normal

RATIO = np.array([0.5, 0.5, 0.9, 1.1, 2.0, 2.0], np.float32)
ADVANTAGE = np.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0], np.float32)


@pytest.mark.slow
def test_the_clip_keeps_the_worse_of_both() -> None:
    """If the ratio has left 0.8 … 1.2 and the advantage would push it further, the row has the value at the bound."""
    rows, logged = clipped(SimpleNamespace(clip_eps=0.2), None, SimpleNamespace(advantage=ADVANTAGE), RATIO, None)
    np.testing.assert_allclose(rows, [-0.5, 0.8, -1.8, 2.2, -3.6, 6.0], rtol=1e-6)
    np.testing.assert_array_equal(logged["losses/clipfrac"], [1, 1, 0, 0, 1, 1])
    given = (SimpleNamespace(clip_eps=0.2), None, SimpleNamespace(advantage=ADVANTAGE))
    gradient = jax.grad(lambda ratio: clipped(*given, ratio, None)[0].sum())(RATIO)
    np.testing.assert_array_equal(gradient, [-1, 0, -2, 2, 0, 3])


def test_the_penalty_is_beta_times_the_divergence_from_the_old_policy() -> None:
    """KL(N(0, 1) ‖ N(μ, σ)) = log σ + (1 + μ²) / 2σ² − ½, which differs from the reverse divergence."""
    mean, std = np.linspace(-1, 1, 6, dtype=np.float32), np.float32(2.0)
    old = Normal(jnp.zeros((6, 1)), jnp.zeros((6, 1)))
    new = Normal(jnp.asarray(mean)[:, None], jnp.full((6, 1), np.log(std)))
    batch, learner = SimpleNamespace(advantage=ADVANTAGE, policy=old), SimpleNamespace(kl_coef=3.0)
    divergence = np.log(std) + (1 + mean**2) / (2 * std**2) - 0.5
    rows, logged = penalised(None, learner, batch, RATIO, new)
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
        (KL_COEF_RANGE[0], 0.0, KL_COEF_RANGE[0]),  # and back again
        (KL_COEF_RANGE[0], 1.0, 2 * KL_COEF_RANGE[0]),
        (KL_COEF_RANGE[1], 1.0, KL_COEF_RANGE[1]),
        (1.0, np.nan, 1.0),
    ],
)
def test_beta_follows_the_target(coef: float, divergence: float, after: float) -> None:
    learner, config = SimpleNamespace(kl_coef=jnp.float32(coef)), SimpleNamespace(kl_target=0.02)
    fields, logged = adapted(config, learner, lambda: jnp.float32(divergence))
    assert float(fields["kl_coef"]) == pytest.approx(after, rel=1e-6)
    assert float(logged["losses/kl_coef"]) == pytest.approx(coef)  # of this iteration
    np.testing.assert_allclose(logged["losses/kl"], divergence)


def test_only_the_penalty_has_a_state() -> None:
    learner: Any = Learner(*"abcdef")  # type: ignore[arg-type]
    config = SimpleNamespace(kl_coef=0.7)
    assert SURROGATES["clip"].init(config, learner) is learner and SURROGATES["clip"].refresh(config, learner, None) == ({}, {})
    state = SURROGATES["kl"].init(config, learner)
    assert state[:6] == learner and state._fields == (*Learner._fields, "kl_coef") and float(state.kl_coef) == pytest.approx(0.7)
