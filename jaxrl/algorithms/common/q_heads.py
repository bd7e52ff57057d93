"""Value heads of Q-networks (scalar, C51, QR, IQN), with their Q-values and losses; and bootstrapping, from the best next action
or softly (Munchausen).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from jaxrl.builder.components import ModelFn, check_q_values, show
from jaxrl.builder.config import PrioritizedConfig
from jaxrl.distributions import select_actions
from jaxrl.models import QuantileOutput, value_network
from jaxrl.models.heads import masked
from jaxrl.replay.transitions import Transitions, bootstrapped
from jaxrl.settings.validation import Count, Positive, Range, Unit, added, refuse_unused
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Array, PyTree

Real = Annotated[float, Range()]


class QHead(NamedTuple):
    """Functions of a Q-network's outputs."""

    values: Callable[[Any, PyTree], Array]
    """(outputs, observation) -> Q-values f32[..., n]; very low for actions that the mask forbids."""
    per_action_return: Callable[[Any], Array]
    """outputs -> returns of each action, in a form that may be averaged over actions, f32[N, n, ...]."""
    loss: Callable[[Any, Transitions, Array], tuple[Array, Array]]
    """(outputs, batch, per-action return to bootstrap from f32[N, ...]) -> (losses, priorities ≥ 0), f32[N] each."""
    arguments: Mapping[str, int]
    """Arguments of ``jaxrl.models.value_network`` for outputs of this kind."""


# ------------------------------------------------------------------------------------------------------------------------ heads


def select_outputs(x: Array, action: Array) -> Array:
    """Return x[i, action[i]] for x f32[N, n, ...] and action i32[N]."""
    if x.ndim == 2:
        return select_actions(x, action)
    return select_actions(jnp.moveaxis(x, 1, -1), jnp.broadcast_to(action[:, None], (x.shape[0], x.shape[2])))


def scalar_loss(outputs: Array, batch: Transitions, beyond: Array) -> tuple[Array, Array]:
    """Return ½·(Q(s, a) − y)², y = r + γ·(1 − terminated)·``beyond`` (Mnih et al. 2015, eq. 1), and |Q(s, a) − y|."""
    error = select_actions(outputs, batch.action) - bootstrapped(batch, beyond)
    return 0.5 * error**2, jnp.abs(error)


def projected(probabilities: Array, where: Array, support: Array | np.ndarray) -> Array:
    """Project a distribution, with ``probabilities`` f32[N, K] at points ``where`` f32[N, K], onto the evenly spaced ``support``
    f32[K] (Bellemare et al. 2017, eq. 7).

    Mass between two atoms is divided linearly by distance. Mass outside the support goes to its first or last atom.
    """
    near = jnp.clip(where, support[0], support[-1])[:, None, :] - support[:, None]  # [N, K of the support, K]
    share = jnp.clip(1.0 - jnp.abs(near) / (support[1] - support[0]), 0.0, 1.0)
    return (share * probabilities[:, None, :]).sum(-1)


def c51_loss(support: Array | np.ndarray, outputs: Array, batch: Transitions, beyond: Array) -> tuple[Array, Array]:
    """Return the cross-entropy −Σᵢ mᵢ·log pᵢ(s, a), where m is the projection of r + γ·(1 − terminated)·Z (Bellemare et al.
    2017, algorithm 1), and KL(m ‖ p), which is Rainbow's priority (Hessel et al. 2018, section 3)."""
    # After a termination all mass is at the reward, even if the network's outputs for the last observation are not finite.
    beyond = jnp.where(batch.discount[:, None] == 0, 1.0 / support.size, beyond)
    where = bootstrapped(batch, jnp.broadcast_to(support, beyond.shape))
    target = jax.lax.stop_gradient(projected(beyond, where, support))
    loss = -(target * jax.nn.log_softmax(select_outputs(outputs, batch.action))).sum(-1)
    return loss, jnp.maximum(loss + xlogy(target, target).sum(-1), 0.0)


def tilted_huber(values: Array, target: Array, fractions: Array, threshold: float = 1.0) -> tuple[Array, Array]:
    """Return |τ − 1(y < θ)|·H(y − θ) and |y − θ|, f32[..., K, M] each, for each quantile θ, at its fraction τ, and each target y.

    H is the Huber loss, quadratic up to ``threshold`` (Dabney et al. 2018a, eq. 9 and 10). Unlike IQN's loss (Dabney et al.
    2018b, eq. 3), it is not divided by the threshold κ. With κ = 1 both are equal. Otherwise losses and gradients are κ times as
    large; Adam compensates for that, but ``max_grad_norm`` does not.

    Args:
      values: f32[..., K].
      target: f32[..., M].
      fractions: f32[K] or f32[..., K].
    """
    error = target[..., None, :] - values[..., :, None]
    size = jnp.abs(error)
    huber = jnp.where(size < threshold, 0.5 * error**2, threshold * (size - 0.5 * threshold))
    return jnp.abs(fractions[..., None] - (error < 0)) * huber, size


def midpoints(count: int) -> Array:
    """Return the midpoints f32[count] of ``count`` equal parts of (0, 1)."""
    return (jnp.arange(count) + 0.5) / count


def quantile_loss(outputs: QuantileOutput, batch: Transitions, beyond: Array, threshold: float = 1.0) -> tuple[Array, Array]:
    """Return the sum over quantiles of the mean over targets of ``tilted_huber`` (Dabney et al. 2018a, algorithm 1; 2018b, eq.
    3), and the mean |y − θ| of all pairs."""
    values, target = select_outputs(outputs.values, batch.action), bootstrapped(batch, beyond)
    tilted, size = tilted_huber(values, target, outputs.fractions, threshold)
    return tilted.mean(-1).sum(-1), size.mean((-2, -1))


def scalar(config: HeadConfig) -> QHead:
    """Head with a single value per action (Mnih et al. 2015)."""
    return QHead(lambda outputs, obs: outputs, lambda outputs: outputs, scalar_loss, {})


def c51(config: HeadConfig) -> QHead:
    """Head with the probabilities of ``num_atoms`` returns between ``v_min`` and ``v_max``, as logits (Bellemare et al. 2017)."""
    support = np.linspace(config.v_min, config.v_max, config.num_atoms, dtype=np.float32)

    def values(outputs: Array, obs: PyTree) -> Array:
        return masked((jax.nn.softmax(outputs) * support).sum(-1), obs)

    return QHead(values, jax.nn.softmax, partial(c51_loss, support), {"num_outputs": config.num_atoms})


def qr(config: HeadConfig) -> QHead:
    """Head with quantiles of the return at the midpoints of ``num_quantiles`` equal parts of (0, 1) (Dabney et al. 2018a)."""

    def loss(outputs: Array, batch: Transitions, beyond: Array) -> tuple[Array, Array]:
        return quantile_loss(QuantileOutput(outputs, midpoints(outputs.shape[-1])), batch, beyond, config.huber_threshold)

    values = lambda outputs, obs: masked(outputs.mean(-1), obs)  # noqa: E731
    return QHead(values, lambda outputs: outputs, loss, {"num_outputs": config.num_quantiles})


def iqn(config: HeadConfig) -> QHead:
    """Head with quantiles of the return at ``num_quantiles`` random fractions, drawn anew for each row (Dabney et al. 2018b)."""
    values = lambda outputs, obs: masked(outputs.values.mean(-1), obs)  # noqa: E731
    loss = partial(quantile_loss, threshold=config.huber_threshold)
    return QHead(values, lambda outputs: outputs.values, loss, {"num_fractions": config.num_quantiles})


HEADS: dict[str, Callable[[Any], QHead]] = {"scalar": scalar, "c51": c51, "qr": qr, "iqn": iqn}
OF_HEADS = {
    **dict.fromkeys(["num_atoms", "v_min", "v_max"], ("c51",)),
    **dict.fromkeys(["num_quantiles", "huber_threshold"], ("qr", "iqn")),
}
"""Setting -> heads that use it."""


# -------------------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class HeadConfig(PrioritizedConfig):
    """Structural settings of an algorithm that learns Q-values from replay."""

    head: Literal["scalar", "c51", "qr", "iqn"] = added("scalar")
    """Outputs of the network for each action: its value, or the distribution of its return, as probabilities of fixed returns
    (c51), fixed quantiles (qr), or quantiles at random fractions (iqn)."""
    num_atoms: Annotated[int, Range(2, integral=True)] = added(51)
    """c51: number of returns, evenly spaced, that have a probability."""
    v_min: Real = added(-10.0)
    """c51: the smallest of these returns, a sum of discounted rewards."""
    v_max: Real = added(10.0)
    """c51: the largest of these returns."""
    num_quantiles: Count = added(32)
    """Number of quantiles of qr, or of fractions of iqn."""
    huber_threshold: Positive = added(1.0)
    """κ of qr and iqn: the loss is quadratic for errors up to κ, and is not divided by κ. With 1 and much larger returns, the
    gradients of nearly all errors have the same size."""
    dueling: bool = added(False)
    """Use one stream for the state's value and one for advantages (Wang et al. 2016)."""
    noisy: bool = added(False)
    """Use noisy layers in the head (Fortunato et al. 2018). The network gets a random key in training, but not in evaluation."""
    noisy_sigma: Positive = added(0.5)
    """σ₀ of the noisy layers."""
    munchausen: Unit = added(0.0)
    """Weight α of the scaled log-policy added to rewards, with soft targets (Vieillard et al. 2020); 0 disables both."""
    munchausen_temperature: Positive = added(0.03)
    """τ of that policy, softmax(Q / τ)."""
    munchausen_clip: Positive = added(1.0)
    """Clip the scaled log-policy to at least −munchausen_clip."""

    @property
    def value_head(self) -> QHead:
        return HEADS[self.head](self)

    @property
    def draws(self) -> bool:
        """True if the network draws random numbers when it is given a key."""
        return self.noisy or self.head == "iqn"

    def network(self, default: ModelFn) -> ModelFn:
        arguments: dict[str, Any] = dict(self.value_head.arguments)
        if self.dueling:
            arguments["dueling"] = True
        if self.noisy:
            arguments["noise"] = self.noisy_sigma
        return partial(value_network, **arguments) if arguments else default

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        for name, heads in OF_HEADS.items():
            if self.head not in heads:
                refuse_unused(self, type(self)(), [name], f"without head={' or '.join(map(repr, heads))}")
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min={self.v_min:g} must be below v_max={self.v_max:g}: c51's atoms are the returns between them")
        if not self.noisy:
            refuse_unused(self, type(self)(), ["noisy_sigma"], "without noisy")
        if not self.munchausen:
            refuse_unused(self, type(self)(), ["munchausen_temperature", "munchausen_clip"], "without munchausen")


def check_outputs(model: Any, is_ours: bool, output: PyTree, action_space: Any, config: HeadConfig) -> None:
    """Check a model's ``output``, the shapes for a batch of one, against the head.

    Args:
      model: the builder's ``model`` keyword, for errors.
      is_ours: the model is the built-in network, with or without arguments.

    Raises:
      TypeError: the head needs other outputs.
      ValueError: settings of the built-in network with a custom model.
    """
    if not is_ours:
        refuse_unused(config, type(config)(), ["dueling", "noisy_sigma"], "with a custom model, which defines its layers itself")
    if config.head == "scalar":
        return check_q_values(model, output, action_space)
    n, (count,) = int(action_space.n), config.value_head.arguments.values()
    if config.head == "iqn":
        shapes = [getattr(x, "shape", None) for x in output] if isinstance(output, QuantileOutput) else []
        right, wanted = shapes == [(1, n, count), (1, count)], f"a QuantileOutput(f32[batch, {n}, {count}], f32[batch, {count}])"
    else:
        right, wanted = getattr(output, "shape", None) == (1, n, count), f"numbers f32[batch, {n}, {count}]"
    if not right:
        raise TypeError(
            f"model={show(model)} must give {wanted} for head={config.head!r}; for a batch of one it gives {show_shapes(output)}"
        )
    return None


# ----------------------------------------------------------------------------------------------------------------- bootstrapping

Says = Callable[[Any, Any], Any]
"""(inputs, key) -> outputs of a network."""


class OnlineAndTarget(NamedTuple):
    """The online and the target network, as functions of inputs."""

    online: Says
    target: Says


def best_next(config: Any, head: QHead, networks: OnlineAndTarget, batch: Transitions, keys: Any) -> tuple[Transitions, Array]:
    """Return ``batch``, and the target network's return of the best next action.

    The online network selects the action with ``config.double`` (van Hasselt et al. 2016, eq. 4), the target network without.
    """
    outputs = networks.target(batch.next_inputs, keys[0])
    chooser = networks.online(batch.next_inputs, keys[1]) if config.double else outputs
    return batch, select_outputs(head.per_action_return(outputs), jnp.argmax(head.values(chooser, batch.next_inputs.obs), -1))


def soft_next(config: Any, head: QHead, networks: OnlineAndTarget, batch: Transitions, keys: Any) -> tuple[Transitions, Array]:
    """Return ``batch`` with Munchausen rewards, and the target network's returns of all next actions, averaged over a policy.

    The policy is π = softmax(Q⁻/τ) of the target network. The rewards are r + γ·(1 − terminated)·τ·H(π(· | s′)) +
    α·max(τ·log π(a | s), −clip) (Vieillard et al. 2020, eq. 1). The mixture of return distributions is shifted by the mean of
    −τ·log π; the distributions of actions are not shifted separately. With n-step returns, the log-policy is that of the first
    action only.
    """
    temperature = config.munchausen_temperature
    outputs = networks.target(batch.next_inputs, keys[0])
    log_next = jax.nn.log_softmax(head.values(outputs, batch.next_inputs.obs) / temperature)
    policy = jnp.exp(log_next)
    beyond = jnp.einsum("na,na...->n...", policy, head.per_action_return(outputs))
    entropy = bootstrapped(batch, -temperature * (policy * log_next).sum(-1))

    q_values = head.values(networks.target(batch.inputs, keys[1]), batch.inputs.obs)
    chosen = temperature * select_actions(jax.nn.log_softmax(q_values / temperature), batch.action)
    bonus = config.munchausen * jnp.clip(chosen, -config.munchausen_clip, 0.0)
    return batch._replace(reward=jax.lax.stop_gradient(entropy + bonus)), beyond
