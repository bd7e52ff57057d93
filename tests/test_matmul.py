"""The product of dense layers: that of ``jax.lax.dot_general``, in value and in every derivative."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models.matmul import dot_general

Product = Callable[[Any, Any], Any]


def plain(x: Any, kernel: Any) -> Any:
    return x @ kernel


def ours(x: Any, kernel: Any) -> Any:
    return dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))


def loss(product: Product, x: Any, kernel: Any) -> Any:
    return (jnp.sin(product(x, kernel)) ** 2).sum()


DERIVATIVES: dict[str, Callable[[Product], Callable[..., Any]]] = {
    "gradient": lambda product: jax.grad(partial(loss, product), (0, 1)),
    "forward": lambda product: jax.jacfwd(product, (0, 1)),
    "second": lambda product: jax.jacfwd(jax.grad(partial(loss, product), 1), 1),
    "vmapped": lambda product: jax.vmap(jax.grad(partial(loss, product), 1), (0, None)),
    "vmapped seeds": lambda product: lambda x, kernel: jax.vmap(jax.grad(partial(loss, product), 1))(x, jnp.stack([kernel] * 2)),
}


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 3)])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_every_derivative_is_the_products(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, kernel = jnp.float32(rng.normal(size=shape)), jnp.float32(rng.normal(size=(3, 5)))
    np.testing.assert_array_equal(ours(x, kernel), plain(x, kernel))
    ours_made, plain_made = (jax.jit(DERIVATIVES[name](product))(x, kernel) for product in (ours, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours_made, plain_made)


def test_half_precision_stays_half() -> None:
    x, kernel = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 5), jnp.bfloat16)
    assert ours(x, kernel).dtype == jnp.bfloat16
    assert jax.eval_shape(jax.grad(lambda k: ours(x, k).astype(jnp.float32).sum()), kernel).dtype == jnp.bfloat16


def test_no_product_of_the_gradient_contracts_its_rows_on_a_cpu() -> None:
    """XLA has no fast product for a transposed left side there; the plain product has one such."""
    x, kernel = jax.ShapeDtypeStruct((128, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    for product, slow in ((plain, 1), (ours, 0)):
        text = jax.jit(jax.grad(partial(loss, product), 1)).lower(x, kernel).compile().as_text()
        assert text.count("lhs_contracting_dims={0}") == slow
