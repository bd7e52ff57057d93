"""Cores of networks with memory, GRU, LSTM and attention, and such networks as a ``Model``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.models.initialisers import compute_type, dense, drawn_at_once
from jaxrl.models.torso import Network
from jaxrl.settings.loadable import component
from jaxrl.types import Array, Key, Model, PyTree, StepInput

# ------------------------------------------------------------------------------------------------------------------------ gates


def gru(carry: Array, gates: Array, recurrent: Callable[[Array], Array]) -> Array:
    """Compute one GRU step (Cho et al. 2014, reset gate after the matmul) from the inputs of the three gates, [..., 3·size]."""
    x_r, x_z, x_n = jnp.split(gates, 3, axis=-1)
    h_r, h_z, h_n = jnp.split(recurrent(carry), 3, axis=-1)
    update = jax.nn.sigmoid(x_z + h_z)
    return update * carry + (1 - update) * jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n)


def lstm(carry: tuple[Array, Array], gates: Array, recurrent: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Compute one LSTM step (Gers et al. 2000) from the inputs of the four gates, [..., 4·size]; the carry is (hidden, cell).

    The forget gate has an additional bias of 1, so that it is open at the start (Jozefowicz et al. 2015).
    """
    hidden, cell = carry
    write, forget, new, read = jnp.split(gates + recurrent(hidden), 4, axis=-1)
    cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(write) * jnp.tanh(new)
    return jax.nn.sigmoid(read) * jnp.tanh(cell), cell


# -------------------------------------------------------------------------------------------------------------------- attention


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
    """Multi-head attention and two dense layers, each added to its input (Vaswani et al. 2017) after a normalisation.

    A learnt number per head and distance is added to the logits, so outputs do not depend on the time since the episode's start.
    """

    network: Network

    @nn.compact
    def __call__(self, x: Array, keys: Array, values: Array, mask: Array) -> tuple[Array, Array, Array]:
        """Transform rows f32[B, T, d], given earlier keys and values f32[B, S − T, d] and who attends to whom, bool[B, T, S].

        Returns:
          (rows, keys, values), with keys and values f32[B, S, d] of the earlier rows and of these.
        """
        network, size = self.network, x.shape[-1]
        residual = 1 / math.sqrt(2 * network.attention_layers)  # for the number of terms of their sum (Radford et al. 2019)

        def layer(features: int, gain: float, name: str, x: Array) -> Array:
            return dense(features, gain, name, dtype=network.dtype)(x).astype(jnp.float32)

        def normed(name: str, x: Array) -> Array:
            return nn.LayerNorm(dtype=compute_type(network.dtype), name=name)(x)

        all_three = layer(3 * size, math.sqrt(3), "query_key_value", normed("attention_norm", x))  # each with a gain of 1
        query, *new = jnp.split(all_three, 3, axis=-1)
        keys, values = (jnp.concatenate(rows, axis=1) for rows in zip((keys, values), new, strict=True))
        bias = self.param("distance_bias", nn.initializers.zeros, (network.attention_heads, network.context))
        seen = attention(query, keys, values, mask, distance_bias(bias, *mask.shape[1:]))
        x = x + layer(size, residual, "attention_output", seen)
        hidden = jax.nn.relu(layer(4 * size, math.sqrt(2), "hidden", normed("hidden_norm", x)))
        return x + layer(size, residual, "hidden_output", hidden), keys, values


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


# --------------------------------------------------------------------------------------------------------------------- networks


class Core(NamedTuple):
    """Layer with memory: gates, or a module that computes all rows at once."""

    initial_carry: Callable[[Network, int], PyTree]
    """(network, batch_size) -> zeros."""
    gates: int = 1
    """Size of its input in multiples of ``core_size``."""
    step: Callable[[Any, Array, Callable[[Array], Array]], Any] | None = None
    """(carry, inputs of the gates, recurrent matmul) -> carry, whose first leaf is the input of the next layer."""
    layers: Callable[[Network], nn.Module] | None = None
    """Module in place of ``step``: (carry, inputs [T, B, core_size], is_first [T, B]) -> (carry, features [T, B, core_size])."""

    @property
    def parallel(self) -> bool:
        return self.layers is not None


def _zeros(network: Network, batch_size: int) -> Array:
    return jnp.zeros((batch_size, network.core_size), jnp.float32)


CORES = {
    "gru": Core(_zeros, 3, gru),
    "lstm": Core(lambda network, batch_size: (_zeros(network, batch_size), _zeros(network, batch_size)), 4, lstm),
    "attention": Core(empty_cache, layers=AttentionCore),
}


@component("model")
def recurrent(network: Any, initial_carry: Callable[[int], PyTree], *, parallel: bool = False) -> Model:
    """Build the ``Model`` of a network in three parts: ``encode`` and ``heads`` for all rows at once, ``core`` for one step.

    Args:
      network: flax module with these methods.
      initial_carry: batch_size -> the carry at the start of an episode.
      parallel: ``core`` also computes all rows at once, [T, B], and one step is the case of T = 1.
    """

    def whole(network: Any, carry: PyTree, inputs: StepInput) -> tuple[PyTree, Any]:
        carry, hidden = network.core(carry, network.encode(inputs), inputs.is_first)
        return carry, network.heads(hidden, inputs.obs)

    def init(key: Key, inputs: StepInput) -> PyTree:
        carry, rows = initial_carry(inputs.is_first.shape[0]), _one_row(inputs) if parallel else inputs
        return drawn_at_once(key, network.init(key, carry, rows, method=whole))

    def all_rows(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        return network.apply(params, carry, inputs, method=whole)

    def single_row(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        carry, outputs = all_rows(params, carry, _one_row(inputs))
        return carry, jax.tree.map(lambda x: x[0], outputs)

    def row_by_row(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        run: Any = partial(network.apply, params)

        def step(carry: PyTree, row: tuple[PyTree, Array]) -> tuple[PyTree, PyTree]:
            return run(carry, *row, method=network.core)

        gates = run(inputs, method=network.encode)
        carry, hidden = jax.lax.scan(step, carry, (gates, inputs.is_first))
        return carry, run(hidden, inputs.obs, method=network.heads)

    apply, unroll = (single_row, all_rows) if parallel else (all_rows, row_by_row)
    return Model(init, apply, unroll, initial_carry)


def _one_row(inputs: StepInput) -> StepInput:
    return jax.tree.map(lambda x: x[None], inputs)
