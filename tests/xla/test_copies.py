"""Copies that XLA keeps on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.xla.copies import stored

X = jnp.array([0.0, -1.5, np.inf, np.nan, 2.0])


def test_what_is_stored_is_unchanged() -> None:
    np.testing.assert_array_equal(jax.jit(stored)(X), X)
    rows = jnp.stack([X, 2 * X])
    np.testing.assert_array_equal(jax.jit(jax.vmap(stored))(rows), rows)
    slope = jax.jit(jax.grad(lambda x: (stored(x) ** 2).sum()))
    np.testing.assert_array_equal(slope(X[:2]), 2 * X[:2])


@pytest.mark.parametrize("keep", [stored, jax.vmap(stored)])
def test_it_is_behind_a_conditional_on_a_cpu(keep: object) -> None:
    """Code of XLA for a CPU is not fused across it."""
    compute = lambda x: keep(jnp.sqrt(x))[None] * jnp.ones((50, 1, 1))  # type: ignore[operator] # noqa: E731
    compiled = jax.jit(compute).lower(jnp.ones((2, 5))).compile()
    assert " conditional(" in compiled.as_text()
