"""Separation of a learner's large buffers, which iterations update in place without a copy, from the rest of it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl.types import AgentState, Algorithm, PyTree


def split_rows(algorithm: Algorithm, learner: Any, lead: int = 0) -> tuple[PyTree, PyTree]:
    """Split a learner into the arrays of rows within the algorithm's ``buffers`` (see ``Algorithm``), and the rest.

    Both parts have the structure of the learner, with None for the leaves of the other part. ``lead`` is the number of leading
    axes, of seeds.
    """
    is_row = jax.tree.map(lambda _: False, learner)
    for name in algorithm.buffers:
        buffer = getattr(learner, name)
        declared = any(map(_declares, jax.tree.leaves(buffer, is_leaf=_declares)))
        is_row = is_row._replace(**{name: _marked(buffer, not declared)})
    is_row = jax.tree.map(lambda x, row: row and np.ndim(x) > lead, learner, is_row)
    rows = jax.tree.map(lambda x, row: x if row else None, learner, is_row)
    return rows, jax.tree.map(lambda x, row: None if row else x, learner, is_row)


def _marked(tree: PyTree, row: bool) -> Any:
    """Mark each leaf of ``tree`` as an array of rows or not: as declared by its container's ``row_fields``, else as ``row``."""
    if _declares(tree):
        return type(tree)(*[_marked(part, name in tree.row_fields) for name, part in tree._asdict().items()])
    return jax.tree.map(lambda x: _marked(x, row) if _declares(x) else row, tree, is_leaf=_declares)


def _declares(x: Any) -> bool:
    return hasattr(x, "row_fields")


def join_rows(rows: PyTree, rest: PyTree) -> Any:
    """Join both parts to a learner."""
    return jax.tree.map(lambda row, other: other if row is None else row, rows, rest, is_leaf=lambda x: x is None)


def put_back(algorithm: Algorithm, before: AgentState, after: AgentState) -> AgentState:
    """Return ``before`` with the arrays of rows of ``after``."""
    rows, rest = split_rows(algorithm, after.learner)[0], split_rows(algorithm, before.learner)[1]
    return before._replace(learner=join_rows(rows, rest))
