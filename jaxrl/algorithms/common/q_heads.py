"""Value heads: what the outputs of a Q-network are worth, and how they learn from what lies beyond (scalar, C51, QR, IQN); and
how a rule looks ahead with them, by the best next action or softly (Munchausen).
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
    """What is made of a Q-network's outputs."""

    values: Callable[[Any, PyTree], Array]
    """(outputs, observation) -> Q-values f32[..., n]; an action that the mask forbids has a very low one."""
    per_action_return: Callable[[Any], Array]
    """outputs -> what may be averaged over actions, f32[N, n, ...]."""
    loss: Callable[[Any, Transitions, Array], tuple[Array, Array]]
    """(outputs, batch, per-action return beyond f32[N, ...]) -> (losses, how much there was to learn ≥ 0), f32[N] each."""
    arguments: Mapping[str, int]
    """Of ``jaxrl.models.value_network``, for outputs of this kind."""


# ------------------------------------------------------------------------------------------------------------------------ heads


def select_outputs(x: Array, action: Array) -> Array:
    """x[i, action[i]]: f32[N, n, ...] at i32[N]."""
    if x.ndim == 2:
        return select_actions(x, action)
    return select_actions(jnp.moveaxis(x, 1, -1), jnp.broadcast_to(action[:, None], (x.shape[0], x.shape[2])))


def scalar_loss(outputs: Array, batch: Transitions, beyond: Array) -> tuple[Array, Array]:
    """½·(Q(s, a) − y)², y = r + γ·(1 − terminated)·``beyond`` (Mnih et al. 2015, eq. 1); |Q(s, a) − y|."""
    error = select_actions(outputs, batch.action) - bootstrapped(batch, beyond)
    return 0.5 * error**2, jnp.abs(error)


def projected(probabilities: Array, where: Array, support: Array | np.ndarray) -> Array:
    """The distribution of ``probabilities`` f32[N, K] at ``where`` f32[N, K], as one over the evenly spaced ``support`` f32[K]:
    what is between two atoms is shared by nearness, what is beyond them goes to the last (Bellemare et al. 2017, eq. 7)."""
    near = jnp.clip(where, support[0], support[-1])[:, None, :] - support[:, None]  # [N, K of the support, K]
    share = jnp.clip(1.0 - jnp.abs(near) / (support[1] - support[0]), 0.0, 1.0)
    return (share * probabilities[:, None, :]).sum(-1)


def c51_loss(support: Array | np.ndarray, outputs: Array, batch: Transitions, beyond: Array) -> tuple[Array, Array]:
    """The cross-entropy −Σᵢ mᵢ·log pᵢ(s, a), m being the projection of r + γ·(1 − terminated)·Z (Bellemare et al. 2017, algorithm
    1); and KL(m ‖ p), which Rainbow draws by (Hessel et al. 2018, section 3)."""
    # After an end all of it is at the reward, whatever was said of the observation there.
    beyond = jnp.where(batch.discount[:, None] == 0, 1.0 / support.size, beyond)
    where = bootstrapped(batch, jnp.broadcast_to(support, beyond.shape))
    target = jax.lax.stop_gradient(projected(beyond, where, support))
    loss = -(target * jax.nn.log_softmax(select_outputs(outputs, batch.action))).sum(-1)
    return loss, jnp.maximum(loss + xlogy(target, target).sum(-1), 0.0)


def tilted_huber(values: Array, target: Array, fractions: Array, threshold: float = 1.0) -> tuple[Array, Array]:
    """|τ − 1(y < θ)|·H(y − θ) of each quantile θ, at its fraction τ, and each target y, H being Huber's loss, quadratic up to
    ``threshold`` (Dabney et al. 2018a, eq. 9 and 10); and |y − θ|. f32[..., K, M] each.

    The loss is not divided by the threshold κ, as Dabney et al. 2018b, eq. 3, has it for IQN: with κ = 1 both are the same;
    otherwise the losses, and their gradients, are κ times as large, which Adam makes up for but ``max_grad_norm`` does not.

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
    """f32[count]: of as many equal parts of (0, 1)."""
    return (jnp.arange(count) + 0.5) / count


def quantile_loss(outputs: QuantileOutput, batch: Transitions, beyond: Array, threshold: float = 1.0) -> tuple[Array, Array]:
    """Σ over quantiles of the mean over targets (Dabney et al. 2018a, algorithm 1; 2018b, eq. 3); the mean |y − θ| of
    all pairs."""
    values, target = select_outputs(outputs.values, batch.action), bootstrapped(batch, beyond)
    tilted, size = tilted_huber(values, target, outputs.fractions, threshold)
    return tilted.mean(-1).sum(-1), size.mean((-2, -1))


def scalar(config: HeadConfig) -> QHead:
    """A value (Mnih et al. 2015)."""
    return QHead(lambda outputs, obs: outputs, lambda outputs: outputs, scalar_loss, {})


def c51(config: HeadConfig) -> QHead:
    """Probabilities of ``num_atoms`` returns between ``v_min`` and ``v_max`` (Bellemare et al. 2017); outputs are logits."""
    support = np.linspace(config.v_min, config.v_max, config.num_atoms, dtype=np.float32)

    def values(outputs: Array, obs: PyTree) -> Array:
        return masked((jax.nn.softmax(outputs) * support).sum(-1), obs)

    return QHead(values, jax.nn.softmax, partial(c51_loss, support), {"num_outputs": config.num_atoms})


def qr(config: HeadConfig) -> QHead:
    """Quantiles of the return at the midpoints of ``num_quantiles`` equal parts of (0, 1) (Dabney et al. 2018a)."""

    def loss(outputs: Array, batch: Transitions, beyond: Array) -> tuple[Array, Array]:
        return quantile_loss(QuantileOutput(outputs, midpoints(outputs.shape[-1])), batch, beyond, config.huber_threshold)

    values = lambda outputs, obs: masked(outputs.mean(-1), obs)  # noqa: E731
    return QHead(values, lambda outputs: outputs, loss, {"num_outputs": config.num_quantiles})


def iqn(config: HeadConfig) -> QHead:
    """Quantiles of the return at ``num_quantiles`` fractions that each row draws anew (Dabney et al. 2018b)."""
    values = lambda outputs, obs: masked(outputs.values.mean(-1), obs)  # noqa: E731
    loss = partial(quantile_loss, threshold=config.huber_threshold)
    return QHead(values, lambda outputs: outputs.values, loss, {"num_fractions": config.num_quantiles})


HEADS: dict[str, Callable[[Any], QHead]] = {"scalar": scalar, "c51": c51, "qr": qr, "iqn": iqn}
OF_HEADS = {
    **dict.fromkeys(["num_atoms", "v_min", "v_max"], ("c51",)),
    **dict.fromkeys(["num_quantiles", "huber_threshold"], ("qr", "iqn")),
}
"""The heads that look at a setting."""


# -------------------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class HeadConfig(PrioritizedConfig):
    """Structure of a rule that learns Q-values from replay."""

    head: Literal["scalar", "c51", "qr", "iqn"] = added("scalar")
    """What the network says of an action: its value, or the distribution of its return, by probabilities of fixed returns (c51),
    by fixed quantiles (qr), or by quantiles at random fractions (iqn)."""
    num_atoms: Annotated[int, Range(2, integral=True)] = added(51)
    """Returns whose probabilities c51 gives, evenly spaced."""
    v_min: Real = added(-10.0)
    """The least of them, of discounted rewards."""
    v_max: Real = added(10.0)
    """The largest of them."""
    num_quantiles: Count = added(32)
    """Quantiles of qr, and fractions of iqn."""
    huber_threshold: Positive = added(1.0)
    """κ of qr and iqn: their loss is quadratic for errors up to it, and not divided by it. With 1, where returns are far larger,
    nearly all errors count alike."""
    dueling: bool = added(False)
    """A stream for the state's value and one for advantages (Wang et al. 2016)."""
    noisy: bool = added(False)
    """The head's layers are noisy (Fortunato et al. 2018): in training a network is given a key, in evaluation none."""
    noisy_sigma: Positive = added(0.5)
    """σ₀ of the noisy layers."""
    munchausen: Unit = added(0.0)
    """Weight α of the scaled log-policy that is added to rewards, with a soft look ahead (Vieillard et al. 2020); 0: neither."""
    munchausen_temperature: Positive = added(0.03)
    """τ of that policy, softmax(Q / τ)."""
    munchausen_clip: Positive = added(1.0)
    """The scaled log-policy counts as −munchausen_clip where it is lower."""

    @property
    def value_head(self) -> QHead:
        return HEADS[self.head](self)

    @property
    def draws(self) -> bool:
        """Whether the network draws something where it is given a key."""
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
            raise ValueError(f"v_min={self.v_min:g} must be below v_max={self.v_max:g}: the returns between them are c51's atoms")
        if not self.noisy:
            refuse_unused(self, type(self)(), ["noisy_sigma"], "without noisy")
        if not self.munchausen:
            refuse_unused(self, type(self)(), ["munchausen_temperature", "munchausen_clip"], "without munchausen")


def check_outputs(model: Any, is_ours: bool, output: PyTree, action_space: Any, config: HeadConfig) -> None:
    """Refuse a model whose outputs (shapes, for a batch of one) are not what the head takes.

    Args:
      model: the builder's keyword, for errors.
      is_ours: it is jaxrl's network, with arguments or without.

    Raises:
      TypeError: they are not.
      ValueError: settings of jaxrl's network beside another.
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


# ----------------------------------------------------------------------------------------------------------------- looking ahead

Says = Callable[[Any, Any], Any]
"""(observation's inputs, key) -> outputs of a network."""


class OnlineAndTarget(NamedTuple):
    """What two sets of parameters say of inputs."""

    online: Says
    target: Says


def best_next(config: Any, head: QHead, networks: OnlineAndTarget, batch: Transitions, keys: Any) -> tuple[Transitions, Array]:
    """``batch``, and what the target network says of the best next action: that of the online network with ``config.double`` (van
    Hasselt et al. 2016, eq. 4), of the target network without."""
    outputs = networks.target(batch.next_inputs, keys[0])
    chooser = networks.online(batch.next_inputs, keys[1]) if config.double else outputs
    return batch, select_outputs(head.per_action_return(outputs), jnp.argmax(head.values(chooser, batch.next_inputs.obs), -1))


def soft_next(config: Any, head: QHead, networks: OnlineAndTarget, batch: Transitions, keys: Any) -> tuple[Transitions, Array]:
    """The same of the target network's policy π = softmax(Q⁻/τ): what it says of all next actions, weighed by π; and ``batch``
    with the entropy τ·H(π(· | s′)) beyond its rewards, and α·max(τ·log π(a | s), −clip) besides (Vieillard et al. 2020, eq. 1).

    The mixture of distributions is moved by the mean of −τ·log π, not each action's by its own. With n-step returns the
    log-policy is that of the first action alone.
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
