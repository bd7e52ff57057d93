"""Outputs of a model for the rows of a rollout or of a batch: in acting and in training, of one network and of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.types import ApplyFn, Array, Key, Model, PyTree, Rollout, StepInput, Variables
from jaxrl.xla.cache_blocking import is_a_part
from jaxrl.xla.collectives import varying
from jaxrl.xla.copies import repeated
from jaxrl.xla.platforms import on_cpu


def apply_model(model: Model, params: PyTree, inputs: StepInput, carry: PyTree) -> Any:
    """Return a model's outputs for rows [N], or for sequences [N, T] that begin with ``carry`` [N], in the same layout."""
    if not jax.tree.leaves(carry):
        return model.apply(params, (), inputs)[1]
    rows = jax.tree.map(lambda x: x.swapaxes(0, 1), inputs)
    return jax.tree.map(lambda x: x.swapaxes(0, 1), model.unroll(params, carry, rows)[1])


def row_by_row(model: Model) -> ApplyFn:
    """Return an ``unroll`` of the model that processes one row of all sequences at a time: it is slower, but needs no more memory
    than acting."""
    return lambda params, carry, inputs, key=None: jax.lax.scan(lambda carry, row: model.apply(params, carry, row), carry, inputs)


def rollout_outputs(model: Model, params: PyTree, rollout: Rollout, inputs: StepInput, *, by_rows: bool) -> Any:
    """Return the model's outputs for a rollout, [T + 1, B], including the observation that its last row reached.

    This is much cheaper than recording outputs at each row when acting. On a CPU, rows are processed in turn if one row of all
    environments is enough work by itself.

    Args:
      inputs: the rollout's inputs, normalised.
      by_rows: process one row at a time, to save memory.
    """
    if by_rows:
        return row_by_row(model)(params, rollout.carry, inputs)[1]
    row, rows = jax.tree.map(lambda x: x[0], inputs), rollout.valid.shape[1]
    if jax.tree.leaves(rollout.carry) or not is_a_part(model.apply, params, rollout.carry, row, rows=rows):
        return model.unroll(params, rollout.carry, inputs)[1]
    return on_cpu(params, rollout.carry, inputs, cpu=row_by_row(model), default=model.unroll)[1]


# ------------------------------------------------------------------------------------------------------ rows of sequences


class Window(struct.PyTreeNode):
    """Rows of N sequences, as inputs of networks with memory. Outputs are those of the rows from ``start`` on."""

    rows: StepInput
    """[start + T, N]"""
    carry: PyTree
    """[N, ...], the policy's before the first row, as it was when acting."""
    start: int = struct.field(pytree_node=False)
    """Number of rows that only bring the carry up to date."""

    def with_actions(self, action: Array) -> Window:
        """Return the rows as critics see them, with the actions f32[T · N, d] of the rows from ``start`` on."""
        obs, (number, size) = self.rows.obs, self.rows.is_first.shape
        given = action.reshape(number - self.start, size, -1)
        before = jnp.zeros((self.start, *given.shape[1:]), given.dtype)
        return self.replace(rows=self.rows._replace(obs=(obs, jnp.concatenate([before, given]))))


def outputs_of(model: Model, params: PyTree, inputs: StepInput | Window, key: Key | None = None, *, of_policy: bool) -> Any:
    """Return a model's outputs for rows [N], or for those of a window, [T · N].

    No gradient flows through the rows before the window's start (Kapturowski et al. 2019, section 3).

    Args:
      params: the parameters, or ``Variables``.
      of_policy: the model begins with the window's carry; else with its own initial one.
    """
    if not isinstance(inputs, Window):
        return model.apply(params, (), inputs, key=key)[1]
    start, carry = inputs.start, inputs.carry
    if not of_policy:
        carry = varying(model.initial_carry(inputs.rows.is_first.shape[1]), *jax.sharding.get_abstract_mesh().manual_axes)
    before, rows = (jax.tree.map(lambda x, part=part: x[part], inputs.rows) for part in (slice(start), slice(start, None)))
    if not jax.tree.leaves(carry):
        return model.apply(params, (), jax.tree.map(_flat, rows), key=key)[1]
    if start:
        carry, _ = model.unroll(jax.lax.stop_gradient(params), carry, before)
    return jax.tree.map(_flat, model.unroll(params, carry, rows)[1])


def _flat(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])


# ------------------------------------------------------------------------------------------------ statistics that learn


def with_statistics(params: PyTree, statistics: PyTree) -> PyTree:
    """Return the first argument of a model's ``apply``: ``Variables``, or the parameters alone if there are no statistics."""
    return Variables(params, statistics) if jax.tree.leaves(statistics) else params


def split_variables(variables: PyTree) -> tuple[PyTree, PyTree]:
    """Return ``(parameters, statistics)`` of what a model's ``init`` returns; statistics are () if it learns none."""
    return tuple(variables) if isinstance(variables, Variables) else (variables, ())


def train_model(
    model: Model, variables: PyTree, inputs: Any, valid: Array, key: Key | None = None, axis_name: str | None = None
) -> tuple[Any, PyTree]:
    """Return ``(outputs, statistics)`` of a policy's ``train``; for a model without it, those of ``outputs_of`` and ()."""
    if model.train is None:
        return outputs_of(model, variables, inputs, key, of_policy=True), ()
    outputs, statistics = model.train(variables, inputs, valid, key=key, axis_name=axis_name)
    return outputs, jax.lax.stop_gradient(statistics)


# ------------------------------------------------------------------------------------------------------------ ensembles


def apply_ensemble(model: Model, params: PyTree, inputs: StepInput | Window, key: Key | None = None) -> Any:
    """Return the outputs of critics, [size, N, ...], or [size, T · N, ...] for a window.

    Args:
      params: of all networks, stacked, [size, ...]; ``Variables`` if they learn statistics.
      inputs: [N, ...], or a window.
      key: random key, split between the networks.
    """
    if isinstance(inputs, Window):
        return jax.vmap(lambda params: outputs_of(model, params, inputs, of_policy=False))(params)
    return _over_networks(lambda params, key, inputs: model.apply(params, (), inputs, key=key)[1], params, inputs, key)


def train_ensemble(
    model: Model, params: PyTree, inputs: StepInput, valid: Array, key: Key | None = None, axis_name: str | None = None
) -> tuple[Any, PyTree]:
    """Return the outputs of ``train_model`` for all networks, and their statistics, [size, ...]. Arguments are as above."""

    def train_one(params: PyTree, key: Key | None, inputs: StepInput) -> tuple[Any, PyTree]:
        return train_model(model, params, inputs, valid, key, axis_name)

    return _over_networks(train_one, params, inputs, key)


def _over_networks(function: Callable[..., Any], params: PyTree, inputs: StepInput, key: Key | None) -> Any:
    size = len(jax.tree.leaves(params)[0])
    keys = None if key is None else jax.random.split(key, size)
    axes = jax.tree.map(lambda x: 0 if x.ndim <= 2 else None, inputs)  # vectors, but not images
    inputs = jax.tree.map(lambda x, axis: x if axis is None else repeated(x, size), inputs, axes)
    return jax.vmap(function, in_axes=(0, 0, axes))(params, keys, inputs)
