"""Constants of traced code, found by NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.checks.validate import CONTROL_FLOW
from jaxrl.xla.constants import Table, constants


@pytest.mark.parametrize("by_a_backend", [None, jnp.cumsum, jax.nn.relu], ids=["by NumPy", "cumsum", "relu"])
def test_constants_are_those_that_jax_computes(by_a_backend: Any) -> None:
    def made() -> dict[str, Any]:
        high = jnp.array([2.0, jnp.inf, 3.0])
        stacked = jnp.array([0, jax.lax.select(True, 5, 7), jax.lax.select(False, 5, 7)], jnp.float32)
        more = {"more": by_a_backend(high)} if by_a_backend else {}
        return {"text": "as it is", "high": high, "low": -high, "stacked": stacked, "number": 3, **more}

    found, expected = constants(made), made()
    assert found.keys() == expected.keys() and found["text"] == "as it is" and found["number"] == 3
    for name in expected.keys() - {"text", "number"}:
        assert type(found[name]) is np.ndarray and found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name], expected[name])


def test_a_function_that_looks_at_values_says_so() -> None:
    with pytest.raises(CONTROL_FLOW):
        constants(lambda: 1 if jnp.array([True, False])[0] else 2)


def test_a_traced_index_indexes_a_table() -> None:
    rows = np.arange(6).reshape(3, 2)
    picked = jax.eval_shape(lambda i: rows.view(Table)[i], jax.ShapeDtypeStruct((), jnp.int32))
    assert picked.shape == (2,)
    np.testing.assert_array_equal(rows.view(Table)[2], rows[2])
