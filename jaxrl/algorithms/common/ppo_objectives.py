"""Surrogate objectives of PPO: clipped ratio and adaptive KL penalty.

A surrogate uses the ratio of an action's probabilities under the new and the old policy, and keeps the new policy close to the
old one. Equation numbers are those of Schulman et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.settings.validation import refuse_unused
from jaxrl.types import Array, Key, PyTree


class Surrogate(NamedTuple):
    """A surrogate objective and its part of the learner's state."""

    init: Callable[[Any, Any], Any]
    """(config, learner) -> learner with the surrogate's state added."""
    loss: Callable[..., tuple[Array, dict[str, Array]]]
    """(hyperparams, learner, batch, ratio, new policy) -> (loss of each row, values of each row to log)."""
    refresh: Callable[..., tuple[dict[str, Array], dict[str, Array]]]
    """(config, learner, function that measures KL(old ‖ new)) -> (learner's fields after an iteration, scalars to log)."""


# ------------------------------------------------------------------------------------------------------------------------ clip


def clipped(hp: Any, learner: Any, batch: Any, ratio: Array, policy: Any) -> tuple[Array, dict[str, Array]]:
    """−min(ratio·A, clip(ratio, 1 − clip_eps, 1 + clip_eps)·A) (eq. 7)."""
    near = jax.lax.stop_gradient(jnp.clip(ratio, 1 - hp.clip_eps, 1 + hp.clip_eps))
    moves = (ratio - near) * batch.advantage <= 0
    outside = (jnp.abs(ratio - 1) > hp.clip_eps).astype(jnp.float32)
    return -jnp.where(moves, ratio, near) * batch.advantage, {"losses/clipfrac": outside}


# --------------------------------------------------------------------------------------------------------------------- penalty


class PenaltyState(NamedTuple):
    """A ``Learner`` with the coefficient of the KL penalty."""

    params: PyTree
    opt_state: PyTree
    hyperparams: Any
    statistics: PyTree
    key: Key
    version: Array
    kl_coef: Array
    """f32[]: β."""


def with_penalty(config: Any, learner: Any) -> PenaltyState:
    return PenaltyState(**learner._asdict(), kl_coef=jnp.float32(config.kl_coef))


KL_COEF_RANGE = (1e-6, 1e6)
"""Bounds of β. At 0 or infinity it could not recover, because it changes by factors."""


def penalised(hp: Any, learner: Any, batch: Any, ratio: Array, policy: Any) -> tuple[Array, dict[str, Array]]:
    """β·KL(old ‖ new) − ratio·A (eq. 8), with the KL divergence of the distributions in closed form."""
    return learner.kl_coef * batch.policy.kl(policy) - ratio * batch.advantage, {}


def adapted(config: Any, learner: Any, divergence: Callable[[], Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Halve β if KL(old ‖ new) is below kl_target / 1.5, and double it if above kl_target · 1.5 (section 4)."""
    kl = divergence()
    factor = jnp.where(kl < config.kl_target / 1.5, 0.5, jnp.where(kl > config.kl_target * 1.5, 2.0, 1.0))
    kl_coef = jnp.clip(learner.kl_coef * factor, *KL_COEF_RANGE)
    return {"kl_coef": kl_coef}, {"losses/kl": kl, "losses/kl_coef": learner.kl_coef}


SURROGATES = {
    "clip": Surrogate(lambda config, learner: learner, clipped, lambda *_: ({}, {})),
    "kl": Surrogate(with_penalty, penalised, adapted),
}


def check_surrogate(config: Any, prepared: Any) -> None:
    """Check settings and policy against the surrogate.

    Args:
      prepared: the ``PreparedAgent`` of an algorithm with ``clip_eps``.

    Raises:
      ValueError: a setting or schedule of ``clip_eps`` that the surrogate does not use.
      TypeError: the KL surrogate with a policy whose distribution has no ``kl``.
    """
    if config.surrogate != "kl":
        return
    why = "with surrogate='kl', which does not clip ratios: leave it out"
    if not config.clip_value_loss:
        refuse_unused(prepared.hyperparams, type(prepared.hyperparams)(), ("clip_eps",), why)
        if "clip_eps" in prepared.setup.schedules:
            raise ValueError(f"schedules['clip_eps'] has no effect {why}")
    if not callable(getattr(prepared.output.policy, "kl", None)):
        kind = type(prepared.output.policy).__name__
        raise TypeError(
            f"surrogate='kl' needs a policy with a method kl(other) -> f32[...], which {kind} lacks: use surrogate='clip'"
        )
