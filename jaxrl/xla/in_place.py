"""Which arrays of a learner iterations write into where they are, and all else of it: large buffers are never copied."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl.types import AgentState, Algorithm, PyTree


def split_rows(algorithm: Algorithm, learner: Any, lead: int = 0) -> tuple[PyTree, PyTree]:
    """The arrays of rows within the rule's ``buffers`` (see ``Algorithm``), and all else of a learner: its tree twice, each time
    with None for the leaves of the other. ``lead``: how many axes there are in front, of seeds."""
    is_row = jax.tree.map(lambda _: False, learner)
    for name in algorithm.buffers:
        buffer = getattr(learner, name)
        declared = any(map(_declares, jax.tree.leaves(buffer, is_leaf=_declares)))
        is_row = is_row._replace(**{name: _marked(buffer, not declared)})
    is_row = jax.tree.map(lambda x, row: row and np.ndim(x) > lead, learner, is_row)
    rows = jax.tree.map(lambda x, row: x if row else None, learner, is_row)
    return rows, jax.tree.map(lambda x, row: None if row else x, learner, is_row)


def _marked(tree: PyTree, row: bool) -> Any:
    """``tree`` with whether each leaf is of rows: as what it is in declares it, else ``row``."""
    if _declares(tree):
        return type(tree)(*[_marked(part, name in tree.row_fields) for name, part in tree._asdict().items()])
    return jax.tree.map(lambda x: _marked(x, row) if _declares(x) else row, tree, is_leaf=_declares)


def _declares(x: Any) -> bool:
    return hasattr(x, "row_fields")


def join_rows(rows: PyTree, rest: PyTree) -> Any:
    """The learner of both parts."""
    return jax.tree.map(lambda row, other: other if row is None else row, rows, rest, is_leaf=lambda x: x is None)


def put_back(algorithm: Algorithm, before: AgentState, after: AgentState) -> AgentState:
    """``before``, but with the arrays of rows as ``after`` has them."""
    rows, rest = split_rows(algorithm, after.learner)[0], split_rows(algorithm, before.learner)[1]
    return before._replace(learner=join_rows(rows, rest))
