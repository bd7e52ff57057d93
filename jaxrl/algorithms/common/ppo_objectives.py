"""What a policy is improved by, in place of the return that it would have, while data of an older one is at hand.

A surrogate takes the ratio of the probabilities of an action under both policies, and keeps the new one near (Schulman et al.
2017, whose equations these are).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.settings.validation import refuse_unused
from jaxrl.types import Array, Key, PyTree


class Surrogate(NamedTuple):
    """One of them, with what it keeps in the learner's state."""

    init: Callable[[Any, Any], Any]
    """(config, learner) -> the learner with it."""
    loss: Callable[..., tuple[Array, dict[str, Array]]]
    """(hyperparams, learner, batch, ratio, new policy) -> what to minimise, row by row, and what to log of each."""
    refresh: Callable[..., tuple[dict[str, Array], dict[str, Array]]]
    """(config, learner, function that measures KL(old ‖ new)) -> fields of the learner after an iteration, and what to log."""


# ------------------------------------------------------------------------------------------------------------------------ clip


def clipped(hp: Any, learner: Any, batch: Any, ratio: Array, policy: Any) -> tuple[Array, dict[str, Array]]:
    """−min(ratio·A, clip(ratio, 1 − clip_eps, 1 + clip_eps)·A) (eq. 7)."""
    near = jax.lax.stop_gradient(jnp.clip(ratio, 1 - hp.clip_eps, 1 + hp.clip_eps))
    moves = (ratio - near) * batch.advantage <= 0
    outside = (jnp.abs(ratio - 1) > hp.clip_eps).astype(jnp.float32)
    return -jnp.where(moves, ratio, near) * batch.advantage, {"losses/clipfrac": outside}


# --------------------------------------------------------------------------------------------------------------------- penalty


class PenaltyState(NamedTuple):
    """A ``Learner`` with the coefficient of a penalty."""

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
"""What β keeps to, so that it never becomes 0 or infinite, from which no factor would lead back."""


def penalised(hp: Any, learner: Any, batch: Any, ratio: Array, policy: Any) -> tuple[Array, dict[str, Array]]:
    """β·KL(old ‖ new) − ratio·A (eq. 8), the divergence of the whole distributions, in closed form."""
    return learner.kl_coef * batch.policy.kl(policy) - ratio * batch.advantage, {}


def adapted(config: Any, learner: Any, divergence: Callable[[], Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """β halved where the policy moved by less than kl_target / 1.5, doubled where by more than kl_target · 1.5 (section 4)."""
    kl = divergence()
    factor = jnp.where(kl < config.kl_target / 1.5, 0.5, jnp.where(kl > config.kl_target * 1.5, 2.0, 1.0))
    kl_coef = jnp.clip(learner.kl_coef * factor, *KL_COEF_RANGE)
    return {"kl_coef": kl_coef}, {"losses/kl": kl, "losses/kl_coef": learner.kl_coef}


SURROGATES = {
    "clip": Surrogate(lambda config, learner: learner, clipped, lambda *_: ({}, {})),
    "kl": Surrogate(with_penalty, penalised, adapted),
}


def check_surrogate(config: Any, ready: Any) -> None:
    """Refuse what the surrogate does not look at, and a policy that it cannot measure.

    Args:
      ready: the ``PreparedAgent`` of a builder whose rule has ``clip_eps``.
    """
    if config.surrogate != "kl":
        return
    why = "with surrogate='kl', which clips no ratio: leave it out"
    if not config.clip_value_loss:
        refuse_unused(ready.hyperparams, type(ready.hyperparams)(), ("clip_eps",), why)
        if "clip_eps" in ready.setup.schedules:
            raise ValueError(f"clip_eps has a schedule, and no effect {why}")
    if not callable(getattr(ready.output.policy, "kl", None)):
        kind = type(ready.output.policy).__name__
        raise TypeError(f"surrogate='kl' needs a policy with a method kl(other) -> f32[...], which {kind} lacks: leave it out")
