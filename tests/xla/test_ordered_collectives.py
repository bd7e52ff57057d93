"""Ordered collectives: their results, and that each waits for the previous one on a CPU, as traced and as compiled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from benchmarks.hlo import Instruction, Program
from jaxrl.metrics import all_reduce
from jaxrl.parallel import split_state
from jaxrl.types import Max, Mean, Min
from jaxrl.xla.collectives import together
from jaxrl.xla.ordered_collectives import REDUCTIONS, in_order
from jaxrl.xla.private_jax import Jaxpr, JaxprEqn, Literal, jaxprs_in_params
from tests.helpers.agents import assert_bit_equal, assert_close, every_playing_algorithm, small
from tests.helpers.lowering import ACCELERATORS, lowered, operations

AXIS = "devices"
ROWS = 256


def independent(x: jax.Array) -> dict[str, Any]:
    """Make reductions of all kinds that do not depend on each other, in every kind of control flow."""
    mean = jax.lax.pmean(x, AXIS)
    most = jax.lax.pmax(x.astype(jnp.int32), AXIS)

    def add(total: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total + jax.lax.psum(row, AXIS).sum(), jax.lax.pmin(row, AXIS)

    total, least = jax.lax.scan(add, x.sum() * 0, jnp.stack([x, 2 * x, x**2]))

    def discount(later: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (now := jax.lax.psum(row, AXIS) + 0.5 * later), now

    returns = jax.lax.scan(discount, x[:2] * 0, jnp.stack([x[:2], x[2:4], x[4:6]]), reverse=True)[1]
    rest = x[0] - x[0] + 1.0
    doubled = jax.lax.while_loop(lambda s: s[1] < 3, lambda s: (jax.lax.psum(s[0], AXIS) * rest, s[1] + 1), (rest, 0))[0]
    chosen = jax.lax.cond(total > 0, lambda x: jax.lax.psum(x, AXIS) * 2, lambda x: jax.lax.pmax(x, AXIS) * 3, x[:5])
    here = jax.lax.platform_dependent(x, cpu=lambda x: jax.lax.psum(x, AXIS), default=lambda x: jax.lax.pmax(x, AXIS))
    jitted = jax.jit(lambda x: jax.lax.psum({"a": x[:2], "b": x[2:4].astype(jnp.int32)}, AXIS))(x)
    return {
        "mean": mean,
        "most": most,
        "total": total,
        "least": least,
        "returns": returns,
        "doubled": doubled,
        "chosen": chosen,
        "here": here,
        "jitted": jitted,
    }


def sharded(function: Callable[..., Any], x: jax.Array, axes: tuple[str, ...] = (AXIS,)) -> Any:
    """Map over two devices, the last axis of the mesh."""
    mesh = jax.make_mesh((*(1 for _ in axes[1:]), 2), axes, axis_types=(AxisType.Auto,) * len(axes))

    def one(x: jax.Array) -> Any:
        return jax.tree.map(lambda y: y[None], function(x[0]))

    return jax.shard_map(one, mesh=mesh, in_specs=PartitionSpec(axes), out_specs=PartitionSpec(axes))(x)


MAPPED = {
    "vmap": lambda function, x: jax.vmap(function, axis_name=AXIS)(x),
    "pmap": lambda function, x: jax.pmap(function, axis_name=AXIS)(x),
    "shard_map": sharded,
    "shard_map of two axes": partial(sharded, axes=("seeds", AXIS)),
}
X = jax.random.normal(jax.random.key(0), (2, ROWS))


@pytest.fixture(scope="module")
def values() -> Any:
    """Return the reductions' values computed separately, where none can overtake another."""
    return jax.vmap(independent, axis_name=AXIS)(X)


class Step(NamedTuple):
    """An equation or an instruction: its name, its inputs, its outputs, and its inner programs."""

    name: str
    reads: frozenset[Hashable]
    writes: frozenset[Hashable]
    communicates: bool


def is_chain(steps: Iterable[Step]) -> bool:
    """Return True if each communicating step depends on the previous one's output."""
    behind: dict[Hashable, set[int]] = {}
    number = -1
    for step in steps:
        needs = set().union(*(behind.get(x, ()) for x in step.reads))
        if step.communicates:
            if number >= 0 and number not in needs:
                return False
            number += 1
            needs.add(number)
        behind |= dict.fromkeys(step.writes, needs)
    return True


def on_cpu(eqn: JaxprEqn) -> list[Jaxpr]:
    """Return the inner programs of an equation; of a choice by platform, the program for CPUs, which comes first."""
    inner = [*jaxprs_in_params(eqn.params)]
    return inner[:1] if eqn.params.get("branches_platforms") else inner


def traced_chains(jaxpr: Jaxpr) -> list[bool]:
    """Check a traced program and each inner program that communicates."""

    def communicates(eqn: JaxprEqn) -> bool:
        return eqn.primitive.name in REDUCTIONS or any(communicates(inner) for jaxpr in on_cpu(eqn) for inner in jaxpr.eqns)

    def atoms(found: Iterable[Any]) -> frozenset[Hashable]:
        return frozenset(x for x in found if not isinstance(x, Literal))

    steps = [Step(eqn.primitive.name, atoms(eqn.invars), atoms(eqn.outvars), communicates(eqn)) for eqn in jaxpr.eqns]
    inner = [x for eqn, step in zip(jaxpr.eqns, steps, strict=True) if step.communicates for x in on_cpu(eqn)]
    return [is_chain(steps), *(found for x in inner for found in traced_chains(x))]


def compiled_chains(text: str) -> list[bool]:
    program = Program(text)

    def communicates(x: Instruction) -> bool:
        return x.opcode.startswith("all-reduce") or any(
            communicates(inner) for name in x.called for inner in program.own_instructions(name)
        )

    def steps(computation: str) -> list[Step]:
        found = program.own_instructions(computation)
        return [Step(x.name, frozenset(x.operands), frozenset({x.name}), communicates(x)) for x in found]

    return [is_chain(steps(name)) for name in program.computations()]


@pytest.mark.slow
@pytest.mark.parametrize("how", MAPPED)
def test_the_values_are_those_without_order(how: str, values: Any) -> None:
    assert_close(jax.jit(partial(MAPPED[how], in_order(independent)))(X), values)


def test_the_checks_of_this_file_see_what_has_no_order() -> None:
    axis = {"axis_env": [(AXIS, 2)]}
    assert not all(traced_chains(jax.make_jaxpr(independent, **axis)(X[0]).jaxpr))
    assert all(traced_chains(jax.make_jaxpr(in_order(independent), **axis)(X[0]).jaxpr))


def test_the_compiled_program_keeps_the_order() -> None:
    """XLA may rewrite the traced program. It must not find out that the number passed on is always 0."""

    def compiled(function: Callable[..., Any]) -> str:
        return jax.jit(partial(sharded, function)).lower(X).compile().as_text()

    text = compiled(in_order(independent))
    assert text.count(" all-reduce(") >= 8 and all(compiled_chains(text))
    assert not all(compiled_chains(compiled(independent)))


def test_on_other_devices_nothing_is_added() -> None:
    def lowered_to(platform: str, function: Callable[..., Any]) -> Counter[str]:
        return operations(lowered(partial(sharded, function), X, platforms=(platform,)))

    assert lowered_to("cuda", independent)["all_reduce"] > 8
    for platform in ACCELERATORS:
        assert lowered_to(platform, in_order(independent)) == lowered_to(platform, independent)
    assert lowered_to("cpu", in_order(independent)) != lowered_to("cpu", independent)


@pytest.mark.slow
@every_playing_algorithm
def test_a_step_over_devices_waits_at_each_collective(algorithm: str) -> None:
    agent = small(algorithm, "CartPole-v1", axis_name=AXIS)
    states = jax.eval_shape(lambda: split_state(agent, agent.init(jax.random.key(0)), 2))
    share = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), states)
    jaxpr = jax.make_jaxpr(agent.step, axis_env=[(AXIS, 2)])(share).jaxpr
    assert jaxpr.pretty_print().count(f"axes=('{AXIS}',)") > 3 and all(traced_chains(jaxpr))


def test_scopes_stay_with_what_is_ordered() -> None:
    def scoped(x: jax.Array) -> jax.Array:
        with jax.named_scope("update"):
            return jax.lax.psum(x, AXIS)

    text = jax.jit(jax.vmap(in_order(scoped), axis_name=AXIS)).lower(X).as_text(debug_info=True)
    assert re.search(r"update\W*/reduce_sum", text)


def test_leaves_of_one_type_go_together() -> None:
    tree = {"a": X, "b": (10 * X[:, :3]).astype(jnp.int32), "c": X[:, 0]}
    most = partial(together, jax.lax.pmax, axis_name=AXIS)
    expected = jax.tree.map(lambda x: np.broadcast_to(np.max(x, 0), x.shape), tree)
    assert_bit_equal(jax.vmap(most, axis_name=AXIS)(tree), expected)
    jaxpr = jax.make_jaxpr(most, axis_env=[(AXIS, 2)])(jax.tree.map(lambda x: x[0], tree)).jaxpr
    assert [eqn.primitive.name for eqn in jaxpr.eqns].count("pmax") == 2


def test_metrics_take_three_collectives() -> None:
    def metrics(x: jax.Array) -> dict[str, Any]:
        return {
            "mean": Mean(x.sum(), jnp.int32(x.size)),
            "least": Min(x.min()),
            "most": Max(x.max()),
            "other": Mean(x[0], jnp.int32(1)),
        }

    reduced = jax.vmap(lambda x: all_reduce(metrics(x), AXIS), axis_name=AXIS)(X)
    assert_close(jax.tree.map(lambda x: x[0], reduced), metrics(X.ravel()) | {"other": Mean(X[:, 0].sum(), jnp.int32(2))})
    jaxpr = jax.make_jaxpr(lambda x: all_reduce(metrics(x), AXIS), axis_env=[(AXIS, 2)])(X[0]).jaxpr
    assert [eqn.primitive.name for eqn in jaxpr.eqns if eqn.primitive.name in REDUCTIONS] == ["psum", "psum", "pmax"]
