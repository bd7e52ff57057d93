"""What a network remembers: nothing, or the carry of a recurrent core; either way it is made a ``Model`` here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.models.initialisers import drawn_at_once
from jaxrl.types import Array, Key, Model, PyTree, StepInput

CORES = (None, "gru")


def gru(carry: Array, gates: Array, recurrent: Callable[[Array], Array]) -> Array:
    """One GRU step (Cho et al. 2014, reset gate after the matmul) from the inputs of the three gates, [..., 3·size]."""
    x_r, x_z, x_n = jnp.split(gates, 3, axis=-1)
    h_r, h_z, h_n = jnp.split(recurrent(carry), 3, axis=-1)
    update = jax.nn.sigmoid(x_z + h_z)
    return update * carry + (1 - update) * jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n)


def memoryless(network: nn.Module) -> Model:
    """Of a network called with ``inputs`` alone."""

    def apply(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
        return carry, network.apply(params, inputs)

    def init(key: Key, inputs: StepInput) -> PyTree:
        return drawn_at_once(key, network.init(key, inputs))

    return Model(init, apply, apply, lambda batch_size: ())


def recurrent(network: Any) -> Model:
    """Of a network with a ``core_size``, in three parts: ``encode`` and ``heads`` for all rows at once, ``core`` for one step."""

    def initial_carry(batch_size: int) -> Array:
        return jnp.zeros((batch_size, network.core_size), jnp.float32)

    def init(key: Key, inputs: StepInput) -> PyTree:
        return drawn_at_once(key, network.init(key, initial_carry(inputs.is_first.shape[0]), inputs))

    def apply(params: PyTree, carry: Array, inputs: StepInput, key: Key | None = None) -> tuple[Array, Any]:
        carry, output = network.apply(params, carry, inputs)
        return carry, output

    def unroll(params: PyTree, carry: Array, inputs: StepInput, key: Key | None = None) -> tuple[Array, Any]:
        run: Any = partial(network.apply, params)

        def step(carry: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            carry = run(carry, *row, method=network.core)
            return carry, carry

        gates = run(inputs, method=network.encode)
        carry, hidden = jax.lax.scan(step, carry, (gates, inputs.is_first))
        return carry, run(hidden, inputs.obs, method=network.heads)

    return Model(init, apply, unroll, initial_carry)
