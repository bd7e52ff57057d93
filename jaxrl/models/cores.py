"""Recurrent cores, GRU and LSTM, and recurrent networks as a ``Model``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.models.initialisers import drawn_at_once
from jaxrl.settings.loadable import component
from jaxrl.types import Array, Key, Model, PyTree, StepInput


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


class Core(NamedTuple):
    """Recurrent layer. The first leaf of its carry is the input of the next layer."""

    gates: int
    step: Callable[[Any, Array, Callable[[Array], Array]], Any]
    """(carry, inputs of the gates, recurrent matmul) -> carry."""
    initial_carry: Callable[[int, int], PyTree]
    """(core_size, batch_size) -> zeros."""


def _zeros(size: int, batch_size: int) -> Array:
    return jnp.zeros((batch_size, size), jnp.float32)


CORES = {
    "gru": Core(3, gru, _zeros),
    "lstm": Core(4, lstm, lambda size, batch_size: (_zeros(size, batch_size), _zeros(size, batch_size))),
}


@component("model")
def recurrent(network: Any, initial_carry: Callable[[int], PyTree]) -> Model:
    """Build the ``Model`` of a network in three parts: ``encode`` and ``heads`` for all rows at once, ``core`` for one step."""

    def whole(network: Any, carry: PyTree, inputs: StepInput) -> tuple[PyTree, Any]:
        carry, hidden = network.core(carry, network.encode(inputs), inputs.is_first)
        return carry, network.heads(hidden, inputs.obs)

    def init(key: Key, inputs: StepInput) -> PyTree:
        return drawn_at_once(key, network.init(key, initial_carry(inputs.is_first.shape[0]), inputs, method=whole))

    def apply(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        return network.apply(params, carry, inputs, method=whole)

    def unroll(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        run: Any = partial(network.apply, params)

        def step(carry: PyTree, row: tuple[PyTree, Array]) -> tuple[PyTree, PyTree]:
            return run(carry, *row, method=network.core)

        gates = run(inputs, method=network.encode)
        carry, hidden = jax.lax.scan(step, carry, (gates, inputs.is_first))
        return carry, run(hidden, inputs.obs, method=network.heads)

    return Model(init, apply, unroll, initial_carry)
