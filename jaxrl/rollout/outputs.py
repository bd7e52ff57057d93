"""Outputs of a model for the rows of a rollout or of a batch."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.types import ApplyFn, Model, PyTree, Rollout, StepInput
from jaxrl.xla.cache_blocking import is_a_part
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
