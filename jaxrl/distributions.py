"""Action distributions: pytrees of arrays with ``sample``, ``log_prob``, ``entropy`` and ``mode``.

A distribution is batched over any leading axes; ``sample`` of a batch uses one key for all of it, so per-environment sampling
maps it (``sample_each``).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, TypeVar

import chex
import jax
import jax.numpy as jnp

from jaxrl.types import Array, Key


class Distribution(Protocol):
    def sample(self, key: Key) -> Array: ...
    def log_prob(self, action: Array) -> Array: ...
    def entropy(self) -> Array: ...
    def mode(self) -> Array: ...


def pick(values: Array, index: Array) -> Array:
    """``values[..., index]``: f32[..., n] at i32[...]. By a sum over one-hot rows: a gather's gradient is a slow scatter."""
    chex.assert_shape(index, values.shape[:-1])
    return jnp.where(jax.nn.one_hot(index, values.shape[-1], dtype=bool), values, 0).sum(-1)


class Categorical(NamedTuple):
    """Over ``{0, …, n − 1}``, from unnormalised log-probabilities."""

    logits: Array
    """f32[..., n]. A masked action has a logit of ``MASKED``."""

    def sample(self, key: Key) -> Array:
        """i32[...], by the Gumbel-max trick."""
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        """f32[...] for action i32[...]."""
        return pick(jax.nn.log_softmax(self.logits), action)

    def entropy(self) -> Array:
        """f32[...], in nats. A masked action has probability 0 and adds nothing."""
        log_p = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

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


MASKED = -1e9
"""The logit of an action that ``action_mask`` forbids: finite, so that gradients stay finite; exp of it is exactly 0."""


class Normal(NamedTuple):
    """A diagonal Gaussian over the last axis."""

    mean: Array
    """f32[..., d]"""
    log_std: Array
    """f32[..., d], in log units of the action."""

    def sample(self, key: Key) -> Array:
        """f32[..., d]"""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def log_prob(self, action: Array) -> Array:
        """f32[...]: the density of all d components together."""
        chex.assert_equal_shape([action, self.mean, self.log_std])
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return (-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Array:
        """f32[...]: d/2·log(2πe) + Σ log σ, in nats."""
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def mode(self) -> Array:
        return self.mean


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
    return jax.vmap(lambda d, key: d.sample(key))(distribution, keys)
