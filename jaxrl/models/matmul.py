"""A dense layer whose gradient is fast on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.types import Array


@jax.custom_jvp
def dense_layer(x: Array, kernel: Array, bias: Array | None) -> Array:
    """x f32[..., n] · kernel f32[n, m] + bias f32[m] -> f32[..., m].

    The kernel's gradient is xᵀ·dy. XLA folds that transpose into the product, and has no fast one for it on a CPU: of 128 rows
    of 64 features it takes 8 µs where the forward product takes 5, passed to another thread and back several times as long.
    Here xᵀ is made first, below a row of ones, so that the same product gives the bias's gradient, which is 1ᵀ·dy and else a
    reduction of its own. On other platforms the gradient is that of the plain expression.
    """
    y = jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))
    return y if bias is None else y + bias


@dense_layer.defjvp
def _change(primals: tuple[Array, Array, Array | None], tangents: tuple[Array, Array, Array | None]) -> tuple[Array, Array]:
    (x, kernel, bias), (dx, dkernel, dbias) = primals, tangents
    by_weights = jax.lax.platform_dependent(x, dkernel, dbias, cpu=_by_columns, default=dense_layer)
    return dense_layer(x, kernel, bias), dense_layer(dx, kernel, None) + by_weights


def _by_columns(x: Array, kernel: Array, bias: Array | None) -> Array:
    """``dense_layer``, by columns of x that are in memory one after the other."""
    columns = x.reshape(-1, x.shape[-1]).T
    if bias is not None:
        columns = jnp.concatenate([jnp.ones_like(columns[:1]), columns])
        # Flat, as parameters travel that are packed: so their gradient is one piece of what this product's is.
        flat = jnp.concatenate([bias, kernel.reshape(-1)])
        kernel = jax.lax.optimization_barrier(flat).reshape(-1, kernel.shape[-1])
    y = jax.lax.dot_general(jax.lax.optimization_barrier(columns), kernel, (((0,), (0,)), ((), ())))
    return y.reshape(*x.shape[:-1], -1)
