"""Parts of a learner that are written in place: the rows that its buffers declare, or all arrays if nothing is declared."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxrl.types import Algorithm
from jaxrl.xla.in_place import join_rows, split_rows
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, small_dqn


class Learner(NamedTuple):
    params: Any
    memory: Any


class Ring(NamedTuple):
    rows: Any
    table: Any

    @property
    def row_fields(self) -> tuple[str, ...]:
        return ("rows",)


def algorithm() -> Algorithm:
    return small_dqn(probes.truncation()).algorithm._replace(buffers=("memory",))


@pytest.mark.parametrize("lead", [0, 1])
def test_what_a_buffer_declares_are_its_rows(lead: int) -> None:
    seeds = (2,) * lead
    rows, table, count = np.ones((*seeds, 5)), np.zeros((*seeds, 3)), np.zeros(seeds)
    plain = Learner(table, {"rows": rows, "table": table, "count": count})
    declared = Learner(table, {"ring": Ring({"x": rows, "count": count}, table), "table": table, "count": count})
    for learner, shapes in ((plain, [rows.shape, table.shape]), (declared, [rows.shape])):
        taken, rest = split_rows(algorithm(), learner, lead)
        assert [x.shape for x in jax.tree.leaves(taken)] == shapes
        assert len(jax.tree.leaves(rest)) == len(jax.tree.leaves(learner)) - len(shapes)
        assert_bit_equal(join_rows(taken, rest), learner)
