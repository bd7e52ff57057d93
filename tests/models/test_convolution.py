"""Convolutions by slices equal flax's layer, in values and gradients."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models.convolution import PART, Conv, convolution
from jaxrl.models.initialisers import compute_type
from tests.helpers.networks import jit

SIZES = [
    ((2, 12, 16, 3), 8, 4, "VALID"),
    ((2, 15, 13, 3), 8, 4, "VALID"),  # the stride does not divide the image
    ((2, 7, 9, 3), 4, 2, "VALID"),
    ((1, 5, 6, 2), 3, 1, "VALID"),
    ((1, 3, 3, 2), 3, 1, "VALID"),
    ((2, 5, 4, 3), 3, 1, "SAME"),
    ((1, 8, 7, 2), 3, 2, "VALID"),  # nor the kernel
    ((1, 9, 9, 2), 2, 3, "VALID"),  # which may be smaller
]


def drawn(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def params_of(size: int, channels: int, features: int, *lead: int) -> Any:
    kernel = drawn(*lead, size, size, channels, features) / size
    return {"params": {"kernel": kernel, "bias": drawn(*lead, features, seed=1)}}


def values_and_gradients(layer: nn.Module, params: Any, x: Any) -> Any:
    """Return the layer's output, and the gradients of a loss of it with respect to parameters and input."""

    def loss(params: Any, x: Any) -> Any:
        out = layer.apply(params, x)
        return jnp.sin(out.astype(jnp.float32)).sum(), out  # type: ignore[attr-defined]

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)


def both(size: int, stride: int, padding: str, dtype: str = "float32") -> tuple[nn.Module, nn.Module]:
    theirs = nn.Conv(5, (size, size), (stride, stride), padding, dtype=compute_type(dtype))
    return Conv(5, size, stride, padding, dtype), theirs


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == other.dtype
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(one, other, atol=tolerance * max(1, np.abs(other).max()), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("shape, size, stride, padding", SIZES)
def test_the_layer_is_flaxs(shape: tuple[int, ...], size: int, stride: int, padding: str) -> None:
    """Alone, and for two seeds under vmap. Its parameters have flax's names and shapes, so saved ones can be used."""
    x, (ours, theirs) = drawn(*shape, seed=2), both(size, stride, padding)
    made = nn.meta.unbox(ours.init(jax.random.key(0), x))
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, dict(theirs.init(jax.random.key(0), x)))
    params = params_of(size, shape[-1], 5, 2)
    xs = jnp.stack([x, -x])
    each = [
        jit(lambda params, xs, layer=layer: jax.vmap(lambda p, x: values_and_gradients(layer, p, x))(params, xs))(params, xs)
        for layer in (ours, theirs)
    ]
    assert_close(*each)
    alone = jit(lambda params, x: values_and_gradients(ours, params, x))(jax.tree.map(lambda p: p[1], params), xs[1])
    assert_close(alone, jax.tree.map(lambda leaf: leaf[1], each[1]))


def test_many_images_are_cut_part_by_part() -> None:
    """In the gradient of a program for a CPU, which stores no slices. Also over seeds."""
    x, kernel = drawn(2, PART, 5, 5, 2), drawn(2, 3, 3, 2, 4, seed=1) / 3

    def run(method: str, x: Any, kernel: Any) -> Any:
        loss = lambda x, kernel: jnp.sin(convolution(x, kernel, 1, method)).sum()  # noqa: E731
        return jit(jax.grad(loss, argnums=(0, 1)))(x, kernel[0]), jit(jax.vmap(jax.grad(loss, argnums=1), (None, 0)))(x, kernel)

    (alone, of_seeds), (plain, plain_of_seeds) = (run(method, x, kernel) for method in ("auto", "convolution"))
    assert_close(alone, plain)
    assert_close(of_seeds, plain_of_seeds)


def test_half_precision_is_flaxs() -> None:
    """Both round sums to 8 bits of mantissa, in different orders."""
    x, layers = drawn(2, 12, 12, 3, seed=2), both(8, 4, "VALID", "bfloat16")
    params = params_of(8, 3, 5)
    ours, theirs = (jit(lambda p, x, layer=layer: layer.apply(p, x))(params, x) for layer in layers)
    assert ours.dtype == jnp.bfloat16
    assert_close(ours, theirs, 2**-7)


@pytest.mark.slow
def test_leading_axes_are_kept() -> None:
    x, kernel = drawn(2, 3, 9, 8, 2), drawn(4, 4, 2, 5, seed=1)
    slices, plain = (jit(lambda x, method=method: convolution(x, kernel, 2, method))(x) for method in ("slices", "convolution"))
    assert slices.shape == (2, 3, 3, 3, 5)
    assert_close(slices, plain)
    assert convolution(x[0, 0], kernel, 2, "slices").shape == (3, 3, 5)


def test_the_gradient_of_a_program_for_a_cpu_has_no_convolution() -> None:
    """XLA uses slow loops for it there. The first layer's input needs no gradient, and is not cut twice."""
    x, kernel = drawn(3, 9, 8, 2), drawn(4, 4, 2, 5, seed=1)

    def program(platform: str, **settings: Any) -> str:
        gradient = jax.jit(jax.grad(lambda kernel: (convolution(x, kernel, 2, **settings) ** 2).sum()))
        return gradient.trace(kernel).lower(lowering_platforms=(platform,)).as_text()

    assert program("cpu").count("stablehlo.convolution") == 1 and program("cuda").count("stablehlo.convolution") == 2
    assert program("cpu").count("stablehlo.concatenate") == 1


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_side_by_side_each_has_its_own(axes: tuple[int | None, int | None]) -> None:
    """One kernel with many inputs, or several kernels, each with its gradient."""
    x, kernel = drawn(2, 3, 9, 8, 2), drawn(2, 4, 4, 2, 5, seed=1)
    given = tuple(array if axis == 0 else array[0] for array, axis in zip((x, kernel), axes, strict=True))

    def run(method: str) -> Any:
        both = jax.vmap(lambda x, kernel: jnp.sin(convolution(x, kernel, 2, method)), in_axes=axes)
        return jit(jax.value_and_grad(lambda given: both(*given).sum()))(given), jit(both)(*given)

    assert_close(run("auto"), run("convolution"), 1e-4)
