"""Attention as the core of a network: a causal transformer over the last rows of an episode."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.models.initialisers import compute_type, dense
from jaxrl.models.torso import Network
from jaxrl.types import Array, PyTree


def empty_cache(network: Network, batch_size: int) -> tuple[Array, Array, Array]:
    """Return the carry before an episode: keys and values of earlier rows, f32[B, layers, rows, d], and which are valid,
    bool[B, rows]. The latest row is the last one."""
    rows = max(network.context - 1, 1)  # checkpoints cannot store empty arrays; nothing attends to an additional row
    cache = jnp.zeros((batch_size, network.attention_layers, rows, network.core_size), jnp.float32)
    return cache, cache, jnp.zeros((batch_size, rows), bool)


class AttentionCore(nn.Module):
    """Causal transformer with a sliding window. Each layer attends to the last ``context`` rows of the same episode.

    Keys and values of earlier rows are cached (Dai et al. 2019, section 3.2), so a layer reaches context − 1 rows further back
    than the one before it. Layers are normalised at their inputs (Parisotto et al. 2020, section 3.1).
    """

    network: Network

    @nn.compact
    def __call__(self, carry: PyTree, x: Array, is_first: Array) -> tuple[PyTree, Array]:
        """Compute features f32[T, B, d] of rows f32[T, B, d] that follow those of the carry; return (carry, features)."""
        network, (keys, values, valid) = self.network, carry
        (num_rows, _), held = is_first.shape, valid.shape[-1]
        x, episode = x.swapaxes(0, 1), jnp.cumsum(is_first.T, axis=1)
        episodes = jnp.concatenate([jnp.where(valid, 0, -1), episode], axis=1)  # [B, S]: of the cached rows, then of these
        distance = held + jnp.arange(num_rows)[:, None] - jnp.arange(held + num_rows)
        mask = (episode[:, :, None] == episodes[:, None]) & (distance >= 0) & (distance < network.context)

        cache = []
        for i in range(network.attention_layers):
            x, *rows = AttentionLayer(network, name=f"layer_{i}")(x, keys[:, i], values[:, i], mask)
            cache.append([part[:, num_rows:] for part in rows])
        valid = episodes[:, num_rows:] == episode[:, -1:]
        kept = [jnp.where(valid[:, None, :, None], jnp.stack(parts, axis=1), 0.0) for parts in zip(*cache, strict=True)]
        features = nn.LayerNorm(dtype=compute_type(network.dtype), name="norm")(x)
        return (*kept, valid), features.astype(jnp.float32).swapaxes(0, 1)


class AttentionLayer(nn.Module):
    """Multi-head attention and two dense layers, each after a normalisation and added to its input (Vaswani et al. 2017).

    A learnt number per head and distance is added to the logits, so outputs do not depend on the time since the episode's start.
    ``gated`` replaces each sum by a ``Gate`` of the input and the rectified output (Parisotto et al. 2020, section 3.2).
    """

    network: Network

    @nn.compact
    def __call__(self, x: Array, keys: Array, values: Array, mask: Array) -> tuple[Array, Array, Array]:
        """Transform rows f32[B, T, d], given earlier keys and values f32[B, S − T, d] and who attends to whom, bool[B, T, S].

        Returns:
          (rows, keys, values), with keys and values f32[B, S, d] of the earlier rows and of these.
        """
        network, size = self.network, x.shape[-1]
        # For the number of terms of their sum (Radford et al. 2019). A gate has no sum, and its input is rectified.
        gain = math.sqrt(2) if network.gated else 1 / math.sqrt(2 * network.attention_layers)

        def layer(features: int, gain: float, name: str, x: Array) -> Array:
            return dense(features, gain, name, dtype=network.dtype)(x).astype(jnp.float32)

        def normed(name: str, x: Array) -> Array:
            return nn.LayerNorm(dtype=compute_type(network.dtype), name=name)(x)

        def joined(name: str, x: Array, new: Array) -> Array:
            return Gate(network.dtype, name=name)(x, jax.nn.relu(new)) if network.gated else x + new

        all_three = layer(3 * size, math.sqrt(3), "query_key_value", normed("attention_norm", x))  # each with a gain of 1
        query, *new = jnp.split(all_three, 3, axis=-1)
        keys, values = (jnp.concatenate(rows, axis=1) for rows in zip((keys, values), new, strict=True))
        bias = self.param("distance_bias", nn.initializers.zeros, (network.attention_heads, network.context))
        seen = attention(query, keys, values, mask, distance_bias(bias, *mask.shape[1:]))
        x = joined("attention_gate", x, layer(size, gain, "attention_output", seen))
        hidden = jax.nn.relu(layer(4 * size, math.sqrt(2), "hidden", normed("hidden_norm", x)))
        return joined("hidden_gate", x, layer(size, gain, "hidden_output", hidden)), keys, values


class Gate(nn.Module):
    """Gate of GRU type (Parisotto et al. 2020, section 3.2): (1 − z)·x + z·h, of the input x and the output y of a layer.

    r = σ(W_r·y + U_r·x), z = σ(W_z·y + U_z·x − b) and h = tanh(W·y + U·(r·x)). b begins at 2, so z is small at the start and a
    layer is near the identity.
    """

    dtype: str

    @nn.compact
    def __call__(self, x: Array, y: Array) -> Array:
        """Return f32[..., d] for x and y of that shape."""
        size = x.shape[-1]

        def of(name: str, x: Array, number: int) -> Array:  # each of the matrices side by side with a gain of 1
            return dense(number * size, math.sqrt(number), name, use_bias=False, dtype=self.dtype)(x).astype(jnp.float32)

        y_r, y_z, y_h = jnp.split(of("output", y, 3), 3, axis=-1)
        x_r, x_z = jnp.split(of("input", x, 2), 2, axis=-1)
        z = jax.nn.sigmoid(y_z + x_z - self.param("bias", nn.initializers.constant(2.0), (size,)))
        return (1 - z) * x + z * jnp.tanh(y_h + of("reset_input", jax.nn.sigmoid(y_r + x_r) * x, 1))


def attention(query: Array, keys: Array, values: Array, mask: Array, bias: Array) -> Array:
    """Compute softmax(q·kᵀ / √e + bias)·v for each head of e = d / heads features (Vaswani et al. 2017, eq. 1).

    Args:
      query: f32[B, T, d].
      keys, values: f32[B, S, d].
      mask: bool[B, T, S]; False where a row does not attend to another one, whose values then have no influence, even NaN.
      bias: f32[heads, T, S].
    """
    heads = bias.shape[0]
    query, keys, values = (x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads) for x in (query, keys, values))
    logits = jnp.einsum("bthe,bshe->bhts", query, keys) / math.sqrt(query.shape[-1]) + bias
    weights = jax.nn.softmax(jnp.where(mask[:, None], logits, -jnp.inf))
    seen = jnp.einsum("bhts,bshe->bthe", weights, jnp.where(jnp.isfinite(values), values, 0.0))
    return seen.reshape(*seen.shape[:-2], -1)


def distance_bias(bias: Array, num_rows: int, num_keys: int) -> Array:
    """Return ``bias[head, distance]``, f32[heads, T, S], where the last T of S rows look back to all of them.

    Distances without a bias have arbitrary numbers. Each row of the result is the one before it, shifted by
    one (Dai et al. 2019, appendix B), so the gradient is a sum, without a scatter.
    """
    heads, context = bias.shape
    shifted = jnp.pad(bias[:, ::-1], ((0, 0), (num_keys - num_rows - context + 1, num_rows)))  # [heads, S + 1]
    repeated = jnp.broadcast_to(shifted[:, None], (heads, num_rows, num_keys + 1)).reshape(heads, -1)
    return repeated[:, : num_rows * num_keys].reshape(heads, num_rows, num_keys)
