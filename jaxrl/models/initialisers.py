"""Dense layers: activations, compute types, and orthogonal kernels drawn for a whole network at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.evolution.noise import LowRankKernel
from jaxrl.models.matmul import dense_layer
from jaxrl.settings.loadable import component
from jaxrl.types import Array, Key, PyTree

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu, "elu": jax.nn.elu, "silu": jax.nn.silu}
DTYPES = ("float32", "bfloat16")


def compute_type(dtype: str) -> Any:
    """Return the type that layers compute in. Parameters are always f32."""
    return {"float32": jnp.float32, "bfloat16": jnp.bfloat16}[dtype]


@component("value", home="jaxrl.models")
def polar(x: Array) -> Array:
    """Compute the (semi-)orthogonal matrix nearest to ``x``, f32[rows, columns], with matmuls only.

    40 Newton–Schulz steps X ← 1.5·X − 0.5·X·XᵀX. LAPACK's QR deadlocks when vmapped on few CPU cores.
    """
    multiply = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)  # noqa: E731
    rows, columns = x.shape
    x = x if rows >= columns else x.T
    x = jax.lax.fori_loop(0, 40, lambda _, x: 1.5 * x - 0.5 * multiply(x, multiply(x.T, x)), x / jnp.linalg.norm(x))
    return x if rows >= columns else x.T


@component("value")
class OrthogonalKernel(struct.PyTreeNode, nn.meta.AxisMetadata[Array]):
    """Kernel from the initialiser ``orthogonal``, boxed so that ``drawn_at_once`` can find and redraw it."""

    value: Array
    gain: float | None = struct.field(pytree_node=False)
    """None in a stack of layers made by ``nn.vmap``, whose kernels are not redrawn."""

    def unbox(self) -> Array:
        return self.value

    def replace_boxed(self, val: Any) -> Any:
        return self.replace(value=val)

    def add_axis(self, index: int, params: dict[Any, Any]) -> Any:
        return self.replace(gain=None)

    def remove_axis(self, index: int, params: dict[Any, Any]) -> Any:
        return self


@component("value", home="jaxrl.models")
def orthogonal(gain: float = math.sqrt(2)) -> Callable[..., OrthogonalKernel]:
    """Return an initialiser for flax's layers, a (semi-)orthogonal matrix times ``gain``.

    Use it as ``nn.Dense(64, kernel_init=orthogonal(1.0))``. The polar factor of a Gaussian matrix is uniform over orthogonal
    matrices (Saxe et al. 2014 take the QR factor).
    """

    def init(key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32) -> OrthogonalKernel:
        return OrthogonalKernel((gain * _drawn_alone(key, shape)).astype(dtype), gain)

    return init


@partial(jax.jit, static_argnums=1)  # for its cache: flax calls initialisers for their shapes each time it applies a network
def _drawn_alone(key: Key, shape: tuple[int, ...]) -> Array:
    return polar(jax.random.normal(key, (math.prod(shape[:-1]), shape[-1]))).reshape(shape)


@component("value", home="jaxrl.models")
def drawn_at_once(key: Key, variables: PyTree) -> PyTree:
    """Unbox the variables of a flax network's ``init`` and redraw all orthogonal kernels from one draw.

    XLA takes a fifth of a second on a CPU to compile a draw of each new shape. The layers' own draws are unused and drop out.
    """

    def is_drawn(x: Any) -> bool:
        return isinstance(x, OrthogonalKernel) and x.gain is not None

    leaves, structure = jax.tree.flatten(variables, is_leaf=is_drawn)
    sizes = [leaf.value.size if is_drawn(leaf) else 0 for leaf in leaves]
    drawn = jnp.split(jax.random.normal(key, (sum(sizes),)), list(itertools.accumulate(sizes))[:-1])

    def kernel(value: Array, gain: float, x: Array) -> Array:
        return (gain * polar(x.reshape(-1, value.shape[-1]))).reshape(value.shape).astype(value.dtype)

    kernels = [kernel(leaf.value, leaf.gain, x) if is_drawn(leaf) else leaf for leaf, x in zip(leaves, drawn, strict=True)]
    return nn.meta.unbox(structure.unflatten(kernels))


class Dense(nn.Dense):
    """flax's ``Dense``, computed by ``dense_layer``."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        kernel = self.weights("kernel", self.kernel_init, (inputs.shape[-1], self.features))
        bias = self.weights("bias", self.bias_init, (self.features,)) if self.use_bias else None
        if isinstance(kernel, LowRankKernel):
            parts = (inputs, kernel.kernel, bias, kernel.left, kernel.right)
            x, kernel, bias, left, right = nn.dtypes.promote_dtype(*parts, dtype=self.dtype)
            return dense_layer(x, kernel, bias) + (x @ left) @ right.T
        return dense_layer(*nn.dtypes.promote_dtype(inputs, kernel, bias, dtype=self.dtype))

    def weights(self, name: str, init: Callable[..., Any], shape: tuple[int, ...]) -> Array:
        """``param`` without tracing the initialiser for its shape at every call, which is half of the layer's tracing time."""
        stored: Any = self.get_variable("params", name)
        return stored if getattr(stored, "shape", None) == shape else self.param(name, init, shape, self.param_dtype)


@component("value", home="jaxrl.models")
def dense(
    features: int, gain: float = math.sqrt(2), name: str | None = None, *, use_bias: bool = True, dtype: str = "float32"
) -> Dense:
    """Return a layer with an orthogonal kernel times ``gain`` and a zero bias."""
    return Dense(features, use_bias, dtype=compute_type(dtype), kernel_init=orthogonal(gain), name=name)
