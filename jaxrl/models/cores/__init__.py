"""Cores of networks with memory, GRU, LSTM, attention and S5, and such networks as a ``Model``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.models.cores.attention import AttentionCore, empty_cache
from jaxrl.models.cores.gru_rows import gru, gru_rows
from jaxrl.models.cores.state_space import StateSpaceCore, zero_states
from jaxrl.models.initialisers import drawn_at_once
from jaxrl.models.torso import Network
from jaxrl.settings.loadable import component
from jaxrl.types import Array, Key, Model, PyTree, StepInput

# ------------------------------------------------------------------------------------------------------------------------ gates


def gru_step(carry: Array, gates: Sequence[Array], recurrent: Callable[[Array], Array]) -> Array:
    return gru(carry, gates, recurrent(carry))[0]


def lstm_step(carry: tuple[Array, Array], gates: Sequence[Array], recurrent: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Compute one LSTM step (Gers et al. 2000) from the inputs of the four gates, [..., size] each; the carry is (hidden, cell).

    The forget gate has an additional bias of 1, so that it is open at the start (Jozefowicz et al. 2015).
    """
    hidden, cell = carry
    write, forget, new, read = map(jnp.add, gates, jnp.split(recurrent(hidden), 4, axis=-1))
    cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(write) * jnp.tanh(new)
    return jax.nn.sigmoid(read) * jnp.tanh(cell), cell


# --------------------------------------------------------------------------------------------------------------------- networks


class Core(NamedTuple):
    """Layer with memory: gates, or a module that computes all rows at once."""

    initial_carry: Callable[[Network, int], PyTree]
    """(network, batch_size) -> zeros."""
    gates: int = 1
    """Size of its input in multiples of ``core_size``."""
    step: Callable[[Any, Sequence[Array], Callable[[Array], Array]], Any] | None = None
    """(carry, inputs of the gates, recurrent matmul) -> carry, whose first leaf is the input of the next layer."""
    rows: Callable[[Any, Sequence[Array], Array, Array], Any] | None = None
    """Steps of all rows, if there is a faster way than one after another: (carry, inputs of the gates [T, B, core_size],
    is_first [T, B], recurrent kernel) -> carries [T, B, core_size]."""
    layers: Callable[[Network], nn.Module] | None = None
    """Module in place of ``step``: (carry, inputs [T, B, core_size], is_first [T, B]) -> (carry, features [T, B, core_size])."""

    @property
    def parallel(self) -> bool:
        return self.layers is not None


def _zeros(network: Network, batch_size: int) -> Array:
    return jnp.zeros((batch_size, network.core_size), jnp.float32)


CORES = {
    "gru": Core(_zeros, 3, gru_step, gru_rows),
    "lstm": Core(lambda network, batch_size: (_zeros(network, batch_size), _zeros(network, batch_size)), 4, lstm_step),
    "attention": Core(empty_cache, layers=AttentionCore),
    "s5": Core(zero_states, layers=StateSpaceCore),
}


@component("model")
def recurrent(network: Any, initial_carry: Callable[[int], PyTree], *, parallel: bool = False) -> Model:
    """Build the ``Model`` of a network in three parts: ``encode`` and ``heads`` for all rows at once, ``core`` for one step.

    Args:
      network: flax module with these methods; one with a method ``core_rows`` and ``has_rows`` computes all steps by it.
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
        if getattr(network, "has_rows", False):
            carry, hidden = run(carry, gates, inputs.is_first, method=network.core_rows)
        else:
            carry, hidden = jax.lax.scan(step, carry, (gates, inputs.is_first))
        return carry, run(hidden, inputs.obs, method=network.heads)

    apply, unroll = (single_row, all_rows) if parallel else (all_rows, row_by_row)
    return Model(init, apply, unroll, initial_carry)


def _one_row(inputs: StepInput) -> StepInput:
    return jax.tree.map(lambda x: x[None], inputs)
