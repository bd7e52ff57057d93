"""Action distributions: pytrees of arrays with ``sample``, ``mode``, ``log_prob``, ``entropy`` and ``kl``.

| | actions | |
|---|---|---|
| ``Categorical`` | Discrete | masks by logits of ``MASKED`` |
| ``MultiCategorical`` | MultiDiscrete | the same, a mask per dimension |
| ``Normal`` | Box | clipped to the bounds by ``to_environment`` |
| ``TanhNormal`` | bounded Box | never leaves the bounds |

A distribution is batched over any leading axes; ``sample`` of a batch uses one key for all of it, so per-environment sampling
maps it (``sample_each``). Entropies and divergences are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.spaces.action_scaling import within
from jaxrl.types import Array, Key
from jaxrl.xla.fast_random import unrolled


class Distribution(Protocol):
    def sample(self, key: Key) -> Array: ...
    def mode(self) -> Array: ...
    def log_prob(self, action: Array) -> Array: ...
    def entropy(self) -> Array: ...
    def kl(self, other: Self) -> Array:
        """KL(self ‖ other), f32[...]: E[log self − log other] over what self draws."""
        ...


def select_actions(values: Array, index: Array) -> Array:
    """``values[..., index]``: f32[..., n] at i32[...]. By a sum over one-hot rows: a gather's gradient is a slow scatter."""
    chex.assert_shape(index, values.shape[:-1])
    return jnp.where(jax.nn.one_hot(index, values.shape[-1], dtype=bool), values, 0).sum(-1)


MASKED = -1e9
"""The logit of an action that ``action_mask`` forbids: finite, so that gradients stay finite; exp of it is exactly 0.

Where a mask forbids every action, a trace cannot say so: jaxrl's networks then act, and give Q-values, as if the mask were not
there (``jaxrl.spaces.action_masks.some_allowed``). The host loop and ``check_env``, which see values, refuse such a mask where
an episode continues. In a dimension of a MultiDiscrete space that forbids all its choices the distribution is uniform over them.
"""

LACKING = 2 * MASKED
"""The logit of a choice that a dimension of a MultiDiscrete space does not have: below all others, whatever the mask says."""


class Categorical(NamedTuple):
    """Over ``{0, …, n − 1}``, from unnormalised log-probabilities."""

    logits: Array
    """f32[..., n]. A masked action has a logit of ``MASKED``."""

    def sample(self, key: Key) -> Array:
        """i32[...], by the Gumbel-max trick."""
        # From the largest: noise is lost on logits that are all as large as MASKED.
        return jax.random.categorical(key, self.logits - self.logits.max(-1, keepdims=True)).astype(jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        """f32[...] for action i32[...]."""
        return _log_prob(self.logits, action)

    def entropy(self) -> Array:
        """f32[...]: −Σ p log p. A masked action has probability 0 and adds nothing."""
        return _entropy(self.logits)

    def kl(self, other: Categorical) -> Array:
        """f32[...]: Σ p log(p / q). An action that is masked in both adds nothing; one that only ``other`` forbids has a q of
        exp(``MASKED``), and adds a huge number in place of infinity."""
        chex.assert_equal_shape([self.logits, other.logits])
        log_p, log_q = _finite_log_p(self.logits), _finite_log_p(other.logits)
        return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)

    def quantile(self, u: Array) -> Array:
        """i32[...]: the first action whose cumulative probability exceeds u, f32[...] in [0, 1): a sample if u is uniform.

        Never one of probability 0.
        """
        weight = jnp.exp(self.logits - self.logits.max(-1, keepdims=True))
        chex.assert_equal_shape([u, weight[..., 0]])
        # A sum of thousands of numbers that XLA takes in parts may fall by rounding from one entry to the next, and so first
        # exceed u where nothing is added. The largest sum of an entry with a weight is exceeded by no u below 1.
        cumulative = jnp.where(weight > 0, jnp.cumsum(weight, -1), 0.0)
        return jnp.argmax(cumulative > (u * cumulative.max(-1))[..., None], -1).astype(jnp.int32)


def _finite_log_p(logits: Array) -> Array:
    """A network of one's own may mask with −∞, and 0 times that is no 0."""
    log_p = jax.nn.log_softmax(logits)
    return jnp.maximum(log_p, jnp.finfo(log_p.dtype).min)


# Gradients in closed form: through log_softmax, which both go through, they take four kernels more.


@jax.custom_jvp
def _log_prob(logits: Array, action: Array) -> Array:
    return select_actions(jax.nn.log_softmax(logits), action)


@_log_prob.defjvp
def _log_prob_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    """∂ log p(a) / ∂ logit i = 1[i = a] − p(i)."""
    (logits, action), (change, _) = primals, tangents
    score = jax.nn.one_hot(action, logits.shape[-1], dtype=logits.dtype) - jnp.exp(_finite_log_p(logits))
    return _log_prob(logits, action), (score * change).sum(-1)


@jax.custom_jvp
def _entropy(logits: Array) -> Array:
    log_p = _finite_log_p(logits)
    return -(jnp.exp(log_p) * log_p).sum(-1)


@_entropy.defjvp
def _entropy_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """∂H / ∂ logit i = −p(i)·(log p(i) + H)."""
    (logits,), (change,) = primals, tangents
    log_p, entropy = _finite_log_p(logits), _entropy(logits)
    return entropy, -(jnp.exp(log_p) * (log_p + entropy[..., None]) * change).sum(-1)


class MultiCategorical(NamedTuple):
    """Independent Categoricals, one per dimension of a MultiDiscrete space: probabilities multiply, the rest adds up."""

    logits: Array
    """f32[..., d, n] for d dimensions, n the most choices that one has; where a dimension has fewer, the others are
    ``LACKING``, as ``from_flat`` puts them. A masked choice has a logit of ``MASKED``."""

    @classmethod
    def from_flat(cls, logits: Array, nvec: Sequence[int]) -> MultiCategorical:
        """From f32[..., Σ nvec], those of one dimension after those of another, as one layer gives them.

        Args:
          nvec: how many choices each dimension has, [d].
        """
        chex.assert_axis_dimension(logits, -1, sum(nvec))
        parts = jnp.split(logits, np.cumsum(nvec)[:-1], axis=-1)
        lead = [(0, 0)] * (logits.ndim - 1)
        padded = [jnp.pad(part, [*lead, (0, max(nvec) - part.shape[-1])], constant_values=LACKING) for part in parts]
        return cls(jnp.stack(padded, -2))

    def sample(self, key: Key) -> Array:
        """i32[..., d]"""
        return Categorical(self.logits).sample(key)

    def mode(self) -> Array:
        return Categorical(self.logits).mode()

    def log_prob(self, action: Array) -> Array:
        """f32[...] for action i32[..., d]: log p of all dimensions together."""
        return Categorical(self.logits).log_prob(action).sum(-1)

    def entropy(self) -> Array:
        """f32[...]"""
        return Categorical(self.logits).entropy().sum(-1)

    def kl(self, other: MultiCategorical) -> Array:
        """f32[...]"""
        return Categorical(self.logits).kl(Categorical(other.logits)).sum(-1)


class Normal(NamedTuple):
    """A diagonal Gaussian over the last axis."""

    mean: Array
    """f32[..., d]"""
    log_std: Array
    """f32[..., d], in log units of the action."""

    def sample(self, key: Key) -> Array:
        """f32[..., d]"""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def mode(self) -> Array:
        return self.mean

    def log_prob(self, action: Array) -> Array:
        """f32[...]: the density of all d components together."""
        chex.assert_equal_shape([action, self.mean, self.log_std])
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return (-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Array:
        """f32[...]: d/2·log(2πe) + Σ log σ."""
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, other: Normal) -> Array:
        """f32[...]: Σ log(σ₂/σ₁) + (σ₁² + (μ₁ − μ₂)²) / 2σ₂² − ½."""
        chex.assert_equal_shape([self.mean, self.log_std, other.mean, other.log_std])
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return (0.5 * (jnp.exp(2 * log_ratio) + z**2 - 1.0) - log_ratio).sum(-1)


EDGE = 1 - 2.0**-24
"""The float32 next to 1: what ``TanhNormal`` takes an action at a bound for, whose preimage is infinite."""

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
"""Gauss–Hermite quadrature: Σ w·f(z) is E[f(Z)] for a standard normal Z."""


class TanhNormal(NamedTuple):
    """A diagonal Gaussian x ~ N(mean, σ²) squashed between bounds: low + (high − low)·(tanh x + 1)/2, each component by itself
    (Haarnoja et al. 2018, *Soft Actor-Critic Algorithms and Applications*, appendix C).

    Every action lies in the closed interval, and log-probabilities of those on its ends are finite.
    """

    mean: Array
    """f32[..., d], before the squashing."""
    log_std: Array
    """f32[..., d], of x."""
    low: Array | None = None
    """f32[..., d], shaped like the mean; None: −1, as in the model units of a bounded Box."""
    high: Array | None = None
    """The same, above ``low``; None: 1."""

    def sample(self, key: Key) -> Array:
        """f32[..., d]"""
        return self._squash(Normal(self.mean, self.log_std).sample(key))

    def at(self, noise: Array) -> tuple[Array, Array]:
        """The action f32[..., d] that standard normal ``noise`` f32[..., d] draws, and its log-probability f32[...]; gradients
        flow through both. As it is taken from x itself and not from tanh x, it stays exact where that rounds to ±1."""
        chex.assert_equal_shape([noise, self.mean, self.log_std])
        x = self.mean + jnp.exp(self.log_std) * noise
        log_prob = (-0.5 * noise**2 - self.log_std - 0.5 * math.log(2 * math.pi) - _log_slope(x)).sum(-1)
        return self._squash(x), log_prob - jnp.log(self._interval()[1]).sum(-1)

    def mode(self) -> Array:
        """f32[..., d]: the squashed mean, which is the median of each component, and what greedy policies of this kind take. The
        density of a wide Gaussian is highest at the bounds."""
        return self._squash(self.mean)

    def log_prob(self, action: Array) -> Array:
        """f32[...]: log N(x) − Σ log(½(high − low)(1 − tanh² x)) for the x that gives ``action``.

        An action on a bound, or by rounding beyond it, counts as the nearest float32 of (−1, 1) inside, where |x| = 8.7.
        """
        chex.assert_equal_shape([action, self.mean, self.log_std])
        centre, half = self._interval()
        x = jnp.arctanh(jnp.clip((action - centre) / half, -EDGE, EDGE))
        return Normal(self.mean, self.log_std).log_prob(x) - (_log_slope(x) + jnp.log(half)).sum(-1)

    def entropy(self) -> Array:
        """f32[...], an estimate: H(x) + Σ E[log(½(high − low)(1 − tanh² x))] has no closed form.

        The expectation is by Gauss–Hermite quadrature with 16 nodes, so it draws nothing, and its gradient is that of the
        estimate. Off by less than 2e-5 nats per component for σ ≤ 1, 0.004 for σ ≤ 2 and 0.03 for σ ≤ 3.
        """
        _, half = self._interval()
        x = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * jnp.asarray(NODES, self.mean.dtype)
        slope = (_log_slope(x) * jnp.asarray(WEIGHTS, self.mean.dtype)).sum(-1)
        return Normal(self.mean, self.log_std).entropy() + (slope + jnp.log(half)).sum(-1)

    def kl(self, other: TanhNormal) -> Array:
        """f32[...]: that of the Gaussians, since both are squashed alike. ``other`` must have the same bounds."""
        return Normal(self.mean, self.log_std).kl(Normal(other.mean, other.log_std))

    def _squash(self, x: Array) -> Array:
        unit = jnp.clip(jnp.tanh(x), -1.0, 1.0)
        return unit if self.low is None or self.high is None else within(unit, self.low, self.high)

    def _interval(self) -> tuple[Array, Array]:
        """The centre and half the width; a component without width counts as one of width 2."""
        if self.low is None or self.high is None:
            return jnp.zeros_like(self.mean), jnp.ones_like(self.mean)
        chex.assert_equal_shape([self.low, self.high, self.mean])
        low, high = 0.5 * self.low, 0.5 * self.high  # each by itself: the width may be larger than any float32
        return low + high, jnp.where(high > low, high - low, 1.0)


def _log_slope(x: Array) -> Array:
    """log(1 − tanh² x), for large |x| as well, where that is log 0."""
    return 2.0 * (math.log(2) - x - jax.nn.softplus(-2.0 * x))


D = TypeVar("D", bound=Distribution)


def sample_each(distribution: D, keys: Key) -> Array:
    """Sample element b of a distribution batched over [B] with ``keys[b]``: [B, ...].

    Args:
      keys: as ``fold_in`` or ``split`` make them. Their words are random bits already, and a Categorical takes them as they are:
        hashing once instead of twice makes up a part of each row's time when the environments are fast.
    """
    chex.assert_rank(keys, 1)
    chex.assert_tree_shape_prefix(distribution, keys.shape)
    if isinstance(distribution, Categorical):
        bits = jax.random.key_data(keys)[..., -1]
        return distribution.quantile((bits >> 9).astype(jnp.float32) * 2.0**-23)
    return jax.vmap(lambda d, key: d.sample(key))(distribution, unrolled(keys))
