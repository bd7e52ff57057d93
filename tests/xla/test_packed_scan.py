"""A scan with packed leaves equals ``jax.lax.scan``, to the bit except for the order of sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.xla.packed_scan import SMALL, layout, packed_scan
from tests.helpers.agents import assert_bit_equal

CARRY = {
    "position": jnp.arange(6.0).reshape(2, 3),
    "speed": jnp.float32(0.5),
    "time": jnp.zeros(2, jnp.int32),
    "done": jnp.zeros(2, bool),
    "key": jax.eval_shape(lambda: jax.random.key(0)),
    "nothing": (),
}


def carry() -> dict[str, Any]:
    return {**CARRY, "key": jax.random.key(0)}


def body(carry: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], Any]:
    key = jax.random.fold_in(carry["key"], x)
    position = carry["position"] * 1.1 + carry["speed"] * jax.random.normal(key, (2, 3))
    after = {
        **carry,
        "position": position,
        "speed": carry["speed"] + 0.1,
        "time": carry["time"] + 1,
        "done": position.sum(1) > 3,
        "key": key,
    }
    return after, (after["done"], {"position": position, "mean": position.mean()}, carry["time"], key)


@pytest.mark.parametrize("small", [SMALL, 12, 0])
def test_the_same_bits_as_without_packing(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.xla.packed_scan.SMALL", small)
    xs = jnp.arange(5)
    plain = jax.jit(lambda carry: jax.lax.scan(body, carry, xs))(carry())
    packed = jax.jit(lambda carry: packed_scan(body, carry, xs))(carry())
    # A compiler chooses the order in which it adds the six numbers of a mean, and jaxlib 0.11.2 chooses another one here.
    means = [rows[1].pop("mean") for _, rows in (packed, plain)]
    np.testing.assert_allclose(*means, rtol=3e-7)
    assert_bit_equal(packed, plain)
    seeds = jax.tree.map(lambda x: jnp.stack([x, x]), carry())
    both = jax.jit(jax.vmap(lambda carry: packed_scan(body, carry, xs)))(seeds)
    assert_bit_equal(jax.tree.map(lambda x: x[1], both), jax.jit(lambda c: packed_scan(body, c, xs))(carry()))


def test_a_layout_keeps_types_apart_and_large_leaves_alone() -> None:
    tree = {"a": np.zeros(3, np.float32), "b": np.ones((2, 2), np.float32), "c": np.int32(4), "image": np.zeros(70_000, np.uint8)}
    made = layout(jax.tree.map(jnp.asarray, tree))
    arrays = made.pack(jax.tree.map(jnp.asarray, tree))
    assert [(x.dtype.name, x.shape) for x in arrays] == [("float32", (7,)), ("int32", (1,)), ("uint8", (70_000,))]
    assert_bit_equal(made.unpack(arrays), jax.tree.map(jnp.asarray, tree))


@pytest.mark.parametrize("change", [lambda x: x.astype(jnp.int32), lambda x: x.T])
def test_a_body_that_changes_a_type_or_a_shape_is_refused(change: Any) -> None:
    start = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)}
    with pytest.raises(
        TypeError, match=r"must keep its shapes and types: float32\[2, 3\] became (int32\[2, 3\]|float32\[3, 2\])"
    ):
        packed_scan(lambda c, x: ({**c, "a": change(c["a"])}, None), start, jnp.arange(2))
