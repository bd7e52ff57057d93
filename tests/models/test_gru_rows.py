"""All rows of a GRU at once: against one row after another, with derivatives of all kinds."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models.cores.gru_rows import gru, gru_rows
from jaxrl.types import Array

T, B, SIZE = 5, 3, 4
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


def one_by_one(carry: Array, gates: Any, is_first: Array, kernel: Array) -> Array:
    """The reference: a plain loop."""
    rows = []
    for t in range(len(is_first)):
        carry = jnp.where(is_first[t][:, None], 0.0, carry)
        products = (carry.astype(kernel.dtype) @ kernel).astype(jnp.float32)
        carry, _ = gru(carry, [x[t] for x in gates], products)
        rows.append(carry)
    return jnp.stack(rows)


def arguments(seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return draw(B, SIZE), [draw(T, B, SIZE) for _ in range(3)], jnp.asarray(rng.random((T, B)) < 0.3), draw(SIZE, 3 * SIZE)


def loss(rows: Any, weight: Array, carry: Array, gates: Any, kernel: Array, is_first: Array) -> Array:
    return (jnp.sin(rows(carry, gates, is_first, kernel)) * weight).sum()


def assert_near(x: Any, y: Any, rtol: float = 1e-4) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol), x, y)


def test_a_step_is_that_of_the_paper() -> None:
    """h′ = z·h + (1 − z)·tanh(x_n + r·(U_n·h)), in NumPy."""
    carry, gates, _, kernel = arguments()
    h, (x_r, x_z, x_n) = np.asarray(carry), (np.asarray(x[0]) for x in gates)
    u_r, u_z, u_n = np.split(h @ np.asarray(kernel), 3, -1)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    z = sigmoid(x_z + u_z)
    expected = z * h + (1 - z) * np.tanh(x_n + sigmoid(x_r + u_r) * u_n)
    assert_near(gru(carry, [x[0] for x in gates], carry @ kernel)[0], expected)


def test_values_and_gradients_are_those_of_a_loop() -> None:
    carry, gates, is_first, kernel = arguments()
    assert is_first.any() and not is_first.all()
    assert_near(jit(gru_rows)(carry, gates, is_first, kernel), one_by_one(carry, gates, is_first, kernel))
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(T, B, SIZE)), jnp.float32)
    found, expected = (
        jit(jax.grad(partial(loss, rows, weight), (0, 1, 2)))(carry, gates, kernel, is_first) for rows in (gru_rows, one_by_one)
    )
    assert_near(found, expected)


def test_forward_and_second_derivatives() -> None:
    carry, gates, is_first, kernel = arguments()
    tangents = jax.tree.map(jnp.ones_like, (carry, gates, kernel))
    weight = jnp.ones((T, B, SIZE))
    for change in (
        lambda f: lambda *x: jax.jvp(f, x, tangents)[1],
        lambda f: jax.grad(lambda *x: sum(map(_squares, jax.grad(f, (0, 2))(*x)))),
    ):
        found, expected = (
            jit(change(partial(loss, rows, weight, is_first=is_first)))(carry, gates, kernel) for rows in (gru_rows, one_by_one)
        )
        assert_near(found, expected, 1e-3)


def _squares(x: Array) -> Array:
    return (x**2).sum()


def test_seeds_and_bfloat16() -> None:
    carry, gates, is_first, kernel = jax.tree.map(lambda *x: jnp.stack(x), *(arguments(seed) for seed in range(2)))
    weight = jnp.ones((T, B, SIZE))
    gradient = lambda rows, *x: jax.grad(partial(loss, rows, weight), (0, 1, 2))(*x)  # noqa: E731
    for kind in (jnp.float32, jnp.bfloat16):
        both = (carry, gates, kernel.astype(kind), is_first)
        found, expected = (jit(jax.vmap(partial(gradient, rows)))(*both) for rows in (gru_rows, one_by_one))
        assert found[2].dtype == kind
        as_f32 = partial(jax.tree.map, lambda x: x.astype(jnp.float32))
        assert_near(as_f32(found), as_f32(expected), 1e-4 if kind == jnp.float32 else 0.1)


@pytest.mark.parametrize("rows", [1, 40])
def test_any_number_of_rows(rows: int) -> None:
    gates = [jnp.ones((rows, B, SIZE))] * 3
    found = gru_rows(jnp.zeros((B, SIZE)), gates, jnp.zeros((rows, B), bool), jnp.eye(SIZE, 3 * SIZE))
    assert found.shape == (rows, B, SIZE) and bool(jnp.isfinite(found).all())
