"""Dense layers: x·W + b, values and all derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models.matmul import dense_layer

Layer = Callable[[Any, Any, Any], Any]


def plain(x: Any, kernel: Any, bias: Any) -> Any:
    return x @ kernel if bias is None else x @ kernel + bias


def loss(layer: Layer, x: Any, kernel: Any, bias: Any) -> Any:
    return (jnp.sin(layer(x, kernel, bias)) ** 2).sum()


def seeds(layer: Layer, *args: Any) -> Any:
    return jax.vmap(jax.grad(partial(loss, layer), (1, 2)))(*jax.tree.map(lambda x: jnp.stack([x, x + 1]), args))


DERIVATIVES: dict[str, Callable[[Layer], Callable[..., Any]]] = {
    "gradient": lambda layer: jax.grad(partial(loss, layer), (0, 1, 2)),
    "forward": lambda layer: jax.jacfwd(layer, (0, 1, 2)),
    "second": lambda layer: jax.jacfwd(jax.grad(partial(loss, layer), (1, 2)), (1, 2)),
    "vmapped": lambda layer: jax.vmap(jax.grad(partial(loss, layer), (1, 2)), (0, None, None)),
    "vmapped seeds": lambda layer: partial(seeds, layer),
}


SHAPES = [((2, 4, 3), 5), ((9, 5), 1), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in (((2, 3), 5), ((2, 8, 6), 2)))]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("shape", "outputs"), SHAPES)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_every_derivative_is_the_layers(name: str, shape: tuple[int, ...], outputs: int, has_bias: bool) -> None:
    rng = np.random.default_rng(0)
    x, kernel, bias = (jnp.float32(rng.normal(size=size)) for size in (shape, (shape[-1], outputs), outputs))
    args = (x, kernel, bias if has_bias else None)
    np.testing.assert_array_equal(dense_layer(*args), plain(*args))
    ours_made, plain_made = (jax.jit(DERIVATIVES[name](layer))(*args) for layer in (dense_layer, plain))
    assert jax.tree.structure(ours_made) == jax.tree.structure(plain_made)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours_made, plain_made)


def test_half_precision_stays_half() -> None:
    x, kernel, bias = (jnp.ones(shape, jnp.bfloat16) for shape in ((2, 3), (3, 5), 5))
    assert dense_layer(x, kernel, bias).dtype == jnp.bfloat16
    gradient = jax.grad(lambda k, b: dense_layer(x, k, b).astype(jnp.float32).sum(), (0, 1))
    assert [g.dtype for g in jax.eval_shape(gradient, kernel, bias)] == [jnp.bfloat16] * 2


def test_no_product_of_the_gradient_contracts_its_rows_on_a_cpu() -> None:
    """XLA has no fast product for a transposed left side there. The plain layer has one, and a reduction for the bias."""
    for outputs, reductions in ((64, 0), (2, 1)):
        args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((128, 64), (64, outputs), (outputs,))]
        for layer, slow, reduced in ((plain, 1, 1), (dense_layer, 0, reductions)):
            text = jax.jit(jax.grad(partial(loss, layer), (1, 2))).lower(*args).compile().as_text()
            assert text.count("lhs_contracting_dims={0}") == slow, outputs
            assert text.count(" reduce(") == reduced, outputs


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "reductions"),
    [(135, 17, 17, 0), (136, 17, 17, 1), (1023, 17, 17, 1), (1024, 17, 17, 1), (64, 256, 1, 1), (65, 256, 1, 1)],
)
def test_each_form_of_the_gradient_is_the_plain_layers(rows: int, inputs: int, outputs: int, reductions: int) -> None:
    """The form of the gradient changes at eight rows per output, at 1,024 rows, and at 16,384 numbers for one output."""
    rng = np.random.default_rng(0)
    args = [jnp.float32(rng.normal(size=size)) for size in ((rows, inputs), (inputs, outputs), outputs)]
    ours, theirs = (jax.jit(jax.grad(partial(loss, layer), (0, 1, 2))).lower(*args).compile() for layer in (dense_layer, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours(*args), theirs(*args))
    text = ours.as_text()
    assert text.count(" reduce(") == reductions
    assert ("f32[2,256]" in text) == (rows == 65), "one output as one of two"
    assert outputs == 1 or (f"f32[17,{rows}]" in text or f"f32[18,{rows}]" in text) == (rows < 1024), "a transposed copy"
