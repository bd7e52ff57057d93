"""PPO's training batch, and its surrogate objectives as options: clipped ratio, adaptive KL penalty, drift of DPO; RPO's noise.

A surrogate uses the ratio of an action's probabilities under the new and the old policy, and keeps the new policy close to the
old one. Equation numbers are those of Schulman et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.optimize.learner import Learner
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import Positive
from jaxrl.types import Array, Key, PyTree, StepInput

Logged = dict[str, Array]


class Batch(NamedTuple):
    """Training batch. Leaves are [N, ...] for memoryless models and [N, T, ...] (whole sequences) for recurrent ones."""

    inputs: StepInput
    carry: PyTree
    """[N, ...] at the start of each sequence; () when memoryless."""
    action: Array
    """As drawn from the distribution."""
    log_prob: Array
    advantage: Array
    """With ``normalize_advantages``, scaled in each minibatch to mean 0 and standard deviation 1."""
    target: Array
    """The λ-return, to which the value regresses; normalised with ``normalize_values``."""
    value: Array
    """The value before the update, in the units of the target."""
    valid: Array
    policy: PyTree = ()
    """With ``KLPenalty``, the distribution of the policy that acted."""
    noise: PyTree = ()
    """With ``mean_noise``, what is added to the mean."""
    cost: PyTree = ()
    """With a constraint, ``CostTargets``."""


class Surrogate(Option):
    """Base class of surrogates, without a state or a clipped value. Each has its own ``policy_loss``."""

    def with_state(self, learner: Any) -> Any:
        """Add the surrogate's state to the learner."""
        return learner

    def value_error(self, hp: Any, batch: Batch, value: Array) -> Array:
        """Return the squared error of the value of each row."""
        return (value - batch.target) ** 2

    def value_losses(self, config: Any, hp: Any, batch: Batch, outputs: Array) -> Array:
        """Return the loss of the value of each row, given the network's outputs for it: half the error, or that of the head."""
        if config.value_head is None:
            return 0.5 * self.value_error(hp, batch, outputs)
        return config.value_losses(outputs, batch.target)

    def check_value_head(self, value_head: Any) -> None:
        """Raise ValueError if the surrogate changes a loss of the value that a head replaces."""

    def refresh(self, learner: Any, divergence: Callable[[], Array]) -> tuple[Logged, Logged]:
        """Return the learner's fields after an iteration, and scalars to log; ``divergence`` measures KL(old ‖ new)."""
        return {}, {}

    def check_policy(self, policy: Any) -> None:
        """Raise TypeError if the surrogate needs a method that the policy's distribution lacks."""


@option("clip")
class Clip(Surrogate):
    """Clip the ratio to [1 − eps, 1 + eps] (eq. 7)."""

    eps: Positive = hyperparameter("clip_eps", 0.2)
    """Distance of the probability ratio from 1 at which its gradient stops."""
    value_loss: bool = False
    """Clip the change of the value to ±eps, too."""

    def policy_loss(self, hp: Any, learner: Any, batch: Batch, ratio: Array, policy: Any) -> tuple[Array, Logged]:
        """Return −min(ratio·A, clip(ratio, 1 − clip_eps, 1 + clip_eps)·A) of each row (eq. 7), and values of each row to log."""
        near = jax.lax.stop_gradient(jnp.clip(ratio, 1 - hp.clip_eps, 1 + hp.clip_eps))
        moves = (ratio - near) * batch.advantage <= 0
        outside = (jnp.abs(ratio - 1) > hp.clip_eps).astype(jnp.float32)
        return -jnp.where(moves, ratio, near) * batch.advantage, {"losses/clipfrac": outside}

    def value_error(self, hp: Any, batch: Batch, value: Array) -> Array:
        """Return the squared error of the value of each row, of the clipped one where that is larger."""
        error = super().value_error(hp, batch, value)
        if not self.value_loss:
            return error
        near = batch.value + jnp.clip(value - batch.value, -hp.clip_eps, hp.clip_eps)
        clipped = jax.lax.stop_gradient(near - batch.target) ** 2
        # No gradient flows where the clip raises the error. Within the clip both errors are equal, up to rounding.
        outside = jnp.abs(value - batch.value) > hp.clip_eps
        return jnp.where(outside & (clipped > error), clipped, error)

    def check_value_head(self, value_head: Any) -> None:
        if self.value_loss and value_head is not None:
            raise ValueError(
                f"Clip(value_loss=True) clips a squared error, and value_head={value_head.name!r} has none: leave one out"
            )


@option("drift")
class Drift(Surrogate):
    """Subtract a drift, which a search by evolution found (DPO: Lu et al. 2022, *Discovered Policy Optimisation*)."""

    alpha: Positive = 2.0
    """Scale of the drift of actions with a positive advantage."""
    beta: Positive = 0.6
    """Scale of that of others, which depends on the logarithm of the ratio."""

    def policy_loss(self, hp: Any, learner: Any, batch: Batch, ratio: Array, policy: Any) -> tuple[Array, Logged]:
        """Return drift − ratio·A of each row, where drift = max(0, x − s·tanh(x / s)) with x = (ratio − 1)·A and s = alpha for
        A ≥ 0, and with x = log(ratio)·A and s = beta otherwise."""
        is_good = batch.advantage >= 0
        log_ratio = jnp.log(jnp.maximum(ratio, jnp.finfo(jnp.float32).tiny))
        moved = jnp.where(is_good, ratio - 1, log_ratio) * batch.advantage
        scale = jnp.where(is_good, self.alpha, self.beta)
        drift = jax.nn.relu(moved - scale * jnp.tanh(moved / scale))
        return drift - ratio * batch.advantage, {"losses/drift": drift}


class PenaltyState(Learner):
    """A ``Learner`` with the coefficient of the KL penalty."""

    kl_coef: Array
    """f32[]: β."""


COEF_RANGE = (1e-6, 1e6)
"""Bounds of β. At 0 or infinity it could not recover, because it changes by factors."""


@option("kl")
class KLPenalty(Surrogate):
    """Subtract β·KL(old ‖ new), with a coefficient β that adapts (eq. 8)."""

    coef: Positive = 1.0
    """Initial β."""
    target: Positive = 0.01
    """Target of KL(old ‖ new) per iteration, in nats, to which β adapts."""

    def with_state(self, learner: Any) -> PenaltyState:
        return PenaltyState(**learner._asdict(), kl_coef=jnp.float32(self.coef))

    def policy_loss(self, hp: Any, learner: Any, batch: Batch, ratio: Array, policy: Any) -> tuple[Array, Logged]:
        """Return β·KL(old ‖ new) − ratio·A of each row (eq. 8), with the divergence of the distributions in closed form."""
        return learner.kl_coef * batch.policy.kl(policy) - ratio * batch.advantage, {}

    def refresh(self, learner: Any, divergence: Callable[[], Array]) -> tuple[Logged, Logged]:
        """Halve β if KL(old ‖ new) is below target / 1.5, and double it if above target · 1.5 (section 4)."""
        kl = divergence()
        factor = jnp.where(kl < self.target / 1.5, 0.5, jnp.where(kl > self.target * 1.5, 2.0, 1.0))
        coef = jnp.clip(learner.kl_coef * factor, *COEF_RANGE)
        return {"kl_coef": coef}, {"losses/kl": kl, "losses/kl_coef": learner.kl_coef}

    def check_policy(self, policy: Any) -> None:
        if not callable(getattr(policy, "kl", None)):
            raise TypeError(
                f"surrogate=KLPenalty() needs a policy with a method kl(other) -> f32[...], which {type(policy).__name__} lacks: "
                "use surrogate=Clip()"
            )


# ------------------------------------------------------------------------------------------------------------ noise on the mean


NOISE = 2**32 - 1
"""Stream of random numbers for ``mean_noise``."""


def mean_noise_keys(config: Any, key: Key, axis_name: str | None) -> Key | None:
    """Return a key for each epoch, which no other device has and ``minibatches`` does not use; None without ``mean_noise``."""
    if not config.mean_noise:
        return None
    own = jax.random.fold_in(key, NOISE)
    return jax.random.split(
        own if axis_name is None else jax.random.fold_in(own, jax.lax.axis_index(axis_name)), config.num_epochs
    )


def with_mean_noise(config: Any, batch: Batch, key: Key | None) -> Any:
    """Draw the noise of an epoch, with ``mean_noise``."""
    if key is None:
        return batch
    width = config.mean_noise
    return batch._replace(noise=jax.random.uniform(key, batch.action.shape, minval=-width, maxval=width))
