"""Seeds: groups of them in turn, and conditions of loops that hold for any seed, or for more than a number of elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.xla.seed_axis import any_seed, in_groups, more_than
from tests.helpers.agents import assert_close
from tests.helpers.lowering import lowered, operations


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("holds", [[False] * 4, [True] * 4, [False, False, True, False]], ids=["none", "all", "one"])
def test_a_condition_of_any_seed_is_one_for_all(levels: int, holds: list[bool]) -> None:
    conditions = jnp.array(holds)
    function: Any = any_seed
    if levels == 0:
        assert bool(any_seed(conditions[2])) == holds[2]
        return
    if levels == 2:
        conditions, function = conditions.reshape(2, 2), jax.vmap(any_seed)
    np.testing.assert_array_equal(jax.vmap(function)(conditions), np.full(conditions.shape, any(holds)))


COUNTED = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]], bool)
"""Three seeds of five elements, with 3, 1 and 0 that count."""


@pytest.mark.parametrize("number", range(5))
def test_more_than_counts_the_innermost_axis(number: int) -> None:
    """And holds for all seeds if it holds for one."""
    count = lambda condition: more_than(jnp.int32(number), condition)  # noqa: E731
    for row in COUNTED:
        np.testing.assert_array_equal(jax.vmap(count)(jnp.array(row)), np.full(5, row.sum() > number))
    np.testing.assert_array_equal(jax.vmap(jax.vmap(count))(jnp.array(COUNTED)), np.full((3, 5), number < 3))
    assert bool(count(jnp.array(True))) == (number < 1) and not count(jnp.array(False))


def rows_until(limit: Any, condition: Any) -> Any:
    """Count rows until ``limit`` in a loop, and stop the count there."""

    def row(at: Any) -> Any:
        time, count = at
        return time + 1, jnp.where(count < limit, count + 1, count)

    return jax.lax.while_loop(lambda at: condition(at[0] < limit), row, (jnp.int32(0), jnp.int32(0)))


def selects(function: Any, *args: Any) -> int:
    """Count selects in a program, apart from the one that ``rows_until`` has."""
    return operations(lowered(function, *args))["select"] - 1


def test_a_loop_runs_until_the_last_seed_without_selecting_its_carry() -> None:
    limits = jnp.array([2, 7, 0, 5])
    loop, plain = (jax.vmap(lambda limit, c=c: rows_until(limit, c)) for c in (any_seed, lambda x: x))
    time, count = loop(limits)
    assert time.tolist() == [7] * 4 and count.tolist() == limits.tolist()
    assert selects(loop, limits) == 0 and selects(plain, limits) > 0


def test_a_loop_stops_when_few_enough_elements_continue() -> None:
    """At most one of the four: after five rows. Of two seeds, the one that takes longer decides."""
    loop = jax.vmap(lambda limit: rows_until(limit, lambda more: more_than(jnp.int32(1), more)), out_axes=(None, 0))
    time, count = loop(jnp.array([2, 7, 0, 5]))
    assert int(time) == 5 and count.tolist() == [2, 5, 0, 5]
    both = jnp.array([[2, 7, 0, 5], [9, 9, 1, 1]])
    time, count = jax.vmap(loop, out_axes=(None, 0))(both)
    assert int(time) == 9 and count.tolist() == both.tolist()
    assert selects(jax.vmap(loop, out_axes=(None, 0)), both) == 0


def walk(state: Any, steps: Any, scale: Any) -> tuple[Any, Any, Any]:
    """Take steps of a random walk, and return its state, its last step, and the index of the first one."""
    key, at = state
    moves = scale * jax.random.normal(key, (3, 2))
    moved = jax.lax.fori_loop(0, steps, lambda i, at: at + moves[i], at)
    return (jax.random.fold_in(key, steps), moved), {"last": moves[steps - 1]}, jnp.argmax(moves[:, 0])


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_groups_of_seeds_in_turn_have_the_results_of_vmap(size: int) -> None:
    states = (jax.random.split(jax.random.key(0), 6), jnp.arange(12.0).reshape(6, 2))
    axes, args = (0, None, 0), (states, jnp.int32(2), jnp.arange(1.0, 7.0))
    found, expected = jax.jit(in_groups(size)(walk, axes))(*args), jax.vmap(walk, axes)(*args)
    assert_close(found, expected, 1e-6)


def test_groups_update_donated_states_in_place() -> None:
    """A group is copied, the others are not."""
    add = lambda i, carry: (carry[0].at[i].add(1.0), carry[1] + carry[0][i])  # noqa: E731
    step = in_groups(2)(lambda state, steps: jax.lax.fori_loop(0, steps, add, (state, 0.0)), (0, None))
    args = jax.ShapeDtypeStruct((16, 1_000), np.float32), jax.ShapeDtypeStruct((), np.int32)
    memory = jax.jit(step, donate_argnums=0).lower(*args).compile().memory_analysis()
    each, group = 4_000, 8_000
    assert memory.alias_size_in_bytes >= 16 * each and memory.temp_size_in_bytes < 3 * group
