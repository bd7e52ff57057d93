"""Outputs of a model for the rows of a rollout or of a batch: in acting and in training, of one network and of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxrl.types import ApplyFn, Array, Key, Model, PyTree, Rollout, StepInput, Variables
from jaxrl.xla.cache_blocking import is_a_part
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


# ------------------------------------------------------------------------------------------------ statistics that learn


def with_statistics(params: PyTree, statistics: PyTree) -> PyTree:
    """Return the first argument of a model's ``apply``: ``Variables``, or the parameters alone if there are no statistics."""
    return Variables(params, statistics) if jax.tree.leaves(statistics) else params


def split_variables(variables: PyTree) -> tuple[PyTree, PyTree]:
    """Return ``(parameters, statistics)`` of what a model's ``init`` returns; statistics are () if it learns none."""
    return tuple(variables) if isinstance(variables, Variables) else (variables, ())


def train_model(
    model: Model, variables: PyTree, inputs: StepInput, valid: Array, key: Key | None = None, axis_name: str | None = None
) -> tuple[Any, PyTree]:
    """Return ``(outputs, statistics)`` of ``train``; for a model without it, the outputs of ``apply`` and ()."""
    if model.train is None:
        return model.apply(variables, (), inputs, key=key)[1], ()
    outputs, statistics = model.train(variables, inputs, valid, key=key, axis_name=axis_name)
    return outputs, jax.lax.stop_gradient(statistics)


# ------------------------------------------------------------------------------------------------------------ ensembles


def apply_ensemble(model: Model, params: PyTree, inputs: StepInput, key: Key | None = None) -> Any:
    """Return the outputs of a memoryless model's networks, [size, N, ...].

    Args:
      params: of all networks, stacked, [size, ...]; ``Variables`` if they learn statistics.
      inputs: [N, ...].
      key: random key, split between the networks.
    """
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
