"""Rollouts in random parts, and how well the values in them foretell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl.metrics import masked_mean
from jaxrl.optimize.gradients import pmean, valid_mean
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.types import Array, Key, Mean, PyTree
from jaxrl.xla.fast_random import unrolled


def minibatches(key: Key, size: int, num_envs: int, num_epochs: int, num_minibatches: int, axis_name: str | None = None) -> Array:
    """i32[num_epochs, num_minibatches, size / num_minibatches]: which items each gradient step takes; each once per epoch.

    Blocks of environments are shuffled each by itself, and a minibatch takes as many items of one as of another. There are as
    many blocks as the sizes allow, a power of two: so many devices, or half of them, then shuffle their own, and all together
    fill a minibatch with the items that it has on one.

    Args:
      size: items of this device: its rows [T, B], one after the other, or its environments, [B].
      num_envs: of this device, which divides ``size``.
      axis_name: the device axis.

    Raises:
      ValueError: ``num_minibatches`` does not divide ``size``.
    """
    if size % num_minibatches:  # a builder knows no devices; this is one's share
        raise ValueError(f"num_minibatches={num_minibatches} must divide the {size} items on each device")
    blocks = num_blocks(size, num_envs, num_minibatches)
    block, envs = jnp.arange(blocks, dtype=jnp.int32), num_envs // blocks
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * blocks
    stream = (first + block) * num_epochs + jnp.arange(num_epochs, dtype=jnp.int32)[:, None]  # another for each block and epoch
    shuffle = lambda stream: shuffled_rows(jax.random.fold_in(unrolled(key), stream), size // blocks)  # noqa: E731
    item = jax.vmap(jax.vmap(shuffle))(stream)
    order = item // envs * num_envs + item % envs + (block * envs)[:, None]
    parts = order.reshape(num_epochs, blocks, num_minibatches, -1).swapaxes(1, 2)
    return parts.reshape(num_epochs, num_minibatches, size // num_minibatches)


def num_blocks(size: int, num_envs: int, num_minibatches: int) -> int:
    """The largest power of two that divides the environments, and leaves blocks whose items the minibatches divide."""
    blocks = num_envs & -num_envs
    while size // blocks % num_minibatches:
        blocks //= 2
    return blocks


def shuffled_rows(key: Key, size: int) -> Array:
    """i32[size]: a random order of ``range(size)``.

    Random high bits over the row number, sorted as one array: several times as fast on a CPU as sorting keys with their values.
    Rows whose random bits are equal keep their order.
    """
    index_bits = max(size - 1, 1).bit_length()
    if index_bits > 16:  # too few random bits would remain
        return jax.random.permutation(key, size)
    bits = jax.random.bits(key, (size,), jnp.uint32)
    mask = jnp.uint32(2**index_bits - 1)
    return (jnp.sort((bits & ~mask) | jnp.arange(size, dtype=jnp.uint32)) & mask).astype(jnp.int32)


def shuffled(batch: Any, order: Array, standardize: bool, axis_name: str | None = None) -> Any:
    """The minibatches of an epoch, leaves [num_minibatches, size, ...]: all at once is fewer kernels than one by one.

    Args:
      batch: a NamedTuple of leaves [N, ...], among them ``valid``, ``advantage`` and ``carry``.
      order: i32[num_minibatches, size].
      standardize: advantages, in each minibatch by itself.
    """
    parts = jax.tree.map(lambda x: x[order], batch)
    parts = zero_invalid(parts._replace(carry=()), parts.valid)._replace(carry=parts.carry)
    if not standardize:
        return parts
    return parts._replace(advantage=jax.vmap(lambda x, valid: standardized(x, valid, axis_name))(parts.advantage, parts.valid))


def check_minibatches(num_minibatches: int, accumulation_steps: int, items: int, what: str, why: str = "") -> None:
    """Refuse numbers of parts that do not divide the ``items`` to learn from, which are called ``what``."""
    if items % num_minibatches:
        raise ValueError(f"num_minibatches={num_minibatches} must divide {what}={items}{why}")
    if (size := items // num_minibatches) % accumulation_steps:
        raise ValueError(f"accumulation_steps={accumulation_steps} must divide {what} / num_minibatches = {size}{why}")


def stop_on_kl(
    limit: float, metrics: Mapping[str, Array], going: Array | None, new: PyTree, old: PyTree, axis_name: str | None = None
) -> tuple[Array | None, PyTree]:
    """``(going on, new or old)`` after a gradient step from ``old`` to ``new``, which logs the ``losses/approx_kl`` before it.

    The first step with one above the limit is not taken, and none after it. Where ``going`` is None there is no limit.
    """
    if going is None:
        return None, new
    going &= ~(pmean(metrics["losses/approx_kl"], axis_name) > limit)  # what is NaN goes on, and is seen
    return going, jax.tree.map(lambda x, y: jnp.where(going, x, y), new, old)


def mean_over_taken_steps(logged: Mapping[str, Array], going: Array | None) -> dict[str, Array | Mean]:
    """What [num_epochs, num_minibatches] gradient steps logged, of those only that were taken, and how many epochs they make."""
    if going is None:
        return {**logged}
    taken = {name: masked_mean(value, going) for name, value in logged.items()}
    return {**taken, "charts/num_epochs": going.sum() / going.shape[1]}


def standardized(x: Array, valid: Array, axis_name: str | None = None) -> Array:
    """``x`` with mean 0 and deviation 1 over the valid rows of all devices."""
    chex.assert_equal_shape([x, valid])
    mean = valid_mean(valid, axis_name)
    centred = x - pmean(mean(x), axis_name)
    return centred * jax.lax.rsqrt(pmean(mean(centred**2), axis_name) + 1e-8)


def explained_variance(target: Array, error: Array, valid: Array, axis_name: str | None = None) -> Array:
    """1 − Var(error) / Var(target) over valid rows, error = target − value; 1 is a perfect value, ≤ 0 a useless one."""
    chex.assert_equal_shape([target, error, valid])
    mean = valid_mean(valid, axis_name)

    def variance(x: Array) -> Array:
        return pmean(mean((x - pmean(mean(x), axis_name)) ** 2), axis_name)

    return 1 - variance(error) / (variance(target) + 1e-8)
