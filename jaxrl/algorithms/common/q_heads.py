"""Value heads of Q-networks (scalar, C51, HL-Gauss, QR, IQN), options of DQN, with their Q-values and losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from jaxrl.builder.attempt import show
from jaxrl.builder.networks import check_q_values
from jaxrl.distributions import select_actions
from jaxrl.models import QuantileOutput
from jaxrl.models.heads import masked
from jaxrl.replay.transitions import Transitions, bootstrapped
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count, Positive, Range
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
    return jnp.where(jax.nn.one_hot(action, x.shape[1], dtype=bool)[:, :, None], x, 0).sum(1)


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


def normal_histogram(y: Array, edges: Array | np.ndarray, deviation: Array | float) -> Array:
    """Return the mass of N(y, deviation²) between neighbouring ``edges`` f32[K + 1], as shares of that within them, f32[..., K]
    (Imani and White 2018, section 3). ``y`` f32[...] is clipped to the edges."""
    mass = jax.scipy.stats.norm.cdf((edges - jnp.clip(y, edges[0], edges[-1])[..., None]) / deviation)
    return jnp.diff(mass) / (mass[..., -1:] - mass[..., :1])


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


@option("scalar")
class Scalar(Option):
    """A single value per action (Mnih et al. 2015)."""

    @property
    def functions(self) -> QHead:
        return QHead(lambda outputs, obs: outputs, lambda outputs: outputs, scalar_loss, {})


def check_bounds(v_min: float, v_max: float, why: str) -> None:
    if v_min >= v_max:
        raise ValueError(f"v_min={v_min:g} must be below v_max={v_max:g}: {why}")


@option("c51")
class C51(Option):
    """The distribution of an action's return, as probabilities of fixed returns (Bellemare et al. 2017)."""

    num_atoms: Annotated[int, Range(2, integral=True)] = 51
    """Number of returns, evenly spaced, that have a probability."""
    v_min: Real = -10.0
    """The smallest of these returns, a sum of discounted rewards."""
    v_max: Real = 10.0
    """The largest of these returns."""

    def check(self) -> None:
        check_bounds(self.v_min, self.v_max, "atoms are the returns between them")

    @property
    def functions(self) -> QHead:
        support = np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)

        def values(outputs: Array, obs: PyTree) -> Array:
            return masked((jax.nn.softmax(outputs) * support).sum(-1), obs)

        return QHead(values, jax.nn.softmax, partial(c51_loss, support), {"num_outputs": self.num_atoms})


@option("hl_gauss")
class HLGauss(Option):
    """A value as the mean of a histogram, trained by cross-entropy with normal distributions around the targets (HL-Gauss:
    Farebrother et al. 2024, *Stop Regressing*)."""

    num_bins: Annotated[int, Range(2, integral=True)] = 51
    """Number of bins of equal width."""
    v_min: Real = -10.0
    """Lower edge of the first bin, a sum of discounted rewards. Smaller targets are clipped to it."""
    v_max: Real = 10.0
    """Upper edge of the last bin."""
    sigma: Positive = 0.75
    """Standard deviation of these distributions, in widths of a bin."""

    def check(self) -> None:
        check_bounds(self.v_min, self.v_max, "bins are between them")

    @property
    def edges(self) -> np.ndarray:
        """f32[num_bins + 1]"""
        return np.linspace(self.v_min, self.v_max, self.num_bins + 1, dtype=np.float32)

    def mean(self, logits: Array) -> Array:
        """Return the values f32[...] that logits f32[..., num_bins] stand for: the means of the centres of the bins."""
        return (jax.nn.softmax(logits) * ((self.edges[:-1] + self.edges[1:]) / 2)).sum(-1)

    def cross_entropy(self, logits: Array, target: Array) -> Array:
        """Return −Σᵢ mᵢ·log pᵢ, f32[...], where m is the ``normal_histogram`` of the target f32[...]."""
        mass = normal_histogram(target, self.edges, self.sigma * float(self.edges[1] - self.edges[0]))
        return -(mass * jax.nn.log_softmax(logits)).sum(-1)

    @property
    def functions(self) -> QHead:
        def loss(outputs: Array, batch: Transitions, beyond: Array) -> tuple[Array, Array]:
            chosen, y = select_outputs(outputs, batch.action), jax.lax.stop_gradient(bootstrapped(batch, beyond))
            return self.cross_entropy(chosen, y), jnp.abs(self.mean(chosen) - y)

        return QHead(lambda outputs, obs: masked(self.mean(outputs), obs), self.mean, loss, {"num_outputs": self.num_bins})


@option("qr")
class QR(Option):
    """Quantiles of an action's return at the midpoints of equal parts of (0, 1) (Dabney et al. 2018a)."""

    num_quantiles: Count = 32
    """Number of quantiles."""
    huber_threshold: Positive = 1.0
    """κ: the loss is quadratic for errors up to κ, and is not divided by κ. With 1 and much larger returns, the gradients of
    nearly all errors have the same size."""

    @property
    def functions(self) -> QHead:
        def loss(outputs: Array, batch: Transitions, beyond: Array) -> tuple[Array, Array]:
            return quantile_loss(QuantileOutput(outputs, midpoints(outputs.shape[-1])), batch, beyond, self.huber_threshold)

        values = lambda outputs, obs: masked(outputs.mean(-1), obs)  # noqa: E731
        return QHead(values, lambda outputs: outputs, loss, {"num_outputs": self.num_quantiles})


@option("iqn")
class IQN(QR):
    """Quantiles of an action's return at random fractions, drawn anew for each row (Dabney et al. 2018b)."""

    @property
    def functions(self) -> QHead:
        values = lambda outputs, obs: masked(outputs.values.mean(-1), obs)  # noqa: E731
        loss = partial(quantile_loss, threshold=self.huber_threshold)
        return QHead(values, lambda outputs: outputs.values, loss, {"num_fractions": self.num_quantiles})


Head: TypeAlias = Scalar | C51 | HLGauss | QR | IQN


def check_outputs(model: Any, output: PyTree, action_space: Any, head: Head) -> None:
    """Raise TypeError unless a model's ``output``, the shapes for a batch of one, is what the head reads.

    Args:
      model: the builder's ``model`` keyword, for errors.
    """
    if isinstance(head, Scalar):
        return check_q_values(model, output, action_space)
    n, (count,) = int(action_space.n), head.functions.arguments.values()
    if isinstance(head, IQN):
        shapes = [getattr(x, "shape", None) for x in output] if isinstance(output, QuantileOutput) else []
        right, wanted = shapes == [(1, n, count), (1, count)], f"a QuantileOutput(f32[batch, {n}, {count}], f32[batch, {count}])"
    else:
        right, wanted = getattr(output, "shape", None) == (1, n, count), f"numbers f32[batch, {n}, {count}]"
    if not right:
        raise TypeError(
            f"model={show(model)} must give {wanted} for head={head.name!r}; for a batch of one it gives {show_shapes(output)}"
        )
    return None
