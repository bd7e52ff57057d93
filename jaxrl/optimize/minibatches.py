"""Shuffled minibatches, random subsets, and explained variance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl.metrics import masked_mean
from jaxrl.optimize.gradients import pmean, valid_mean
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.types import Array, Key, Mean, PyTree
from jaxrl.xla import fast_random


def minibatches(key: Key, size: int, num_envs: int, num_epochs: int, num_minibatches: int, axis_name: str | None = None) -> Array:
    """Return the items of each gradient step, i32[num_epochs, num_minibatches, size / num_minibatches]; each once per epoch.

    Blocks of environments are shuffled separately, and each minibatch takes the same number of items from each block. The number
    of blocks is the largest power of two that the sizes allow. With that number of devices, or a smaller power of two, each
    device shuffles its own blocks, and a minibatch consists of the same items as on one device.

    Args:
      size: number of items on this device: its rows [T, B], flattened, or its environments, [B].
      num_envs: number of environments on this device, which divides ``size``.
      axis_name: device axis.

    Raises:
      ValueError: ``num_minibatches`` does not divide ``size``.
    """
    if size % num_minibatches:  # checked here, because a builder does not know the number of devices
        raise ValueError(f"num_minibatches={num_minibatches} must divide the {size} items on each device")
    blocks = num_blocks(size, num_envs, num_minibatches)
    block, envs = jnp.arange(blocks, dtype=jnp.int32), num_envs // blocks
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * blocks
    stream = (first + block) * num_epochs + jnp.arange(num_epochs, dtype=jnp.int32)[:, None]  # one stream per block and epoch
    shuffle = lambda stream: shuffled_rows(fast_random.fold_in(key, stream), size // blocks)  # noqa: E731
    item = jax.vmap(jax.vmap(shuffle))(stream)
    order = item // envs * num_envs + item % envs + (block * envs)[:, None]
    parts = order.reshape(num_epochs, blocks, num_minibatches, -1).swapaxes(1, 2)
    return parts.reshape(num_epochs, num_minibatches, size // num_minibatches)


def num_blocks(size: int, num_envs: int, num_minibatches: int) -> int:
    """Return the largest power of two that divides ``num_envs`` and leaves blocks whose size ``num_minibatches`` divides."""
    blocks = num_envs & -num_envs
    while size // blocks % num_minibatches:
        blocks //= 2
    return blocks


def shuffled_rows(key: Key, size: int) -> Array:
    """Return a random permutation of ``range(size)``, i32[size].

    It sorts one array with random high bits and the row number in the low bits, which on a CPU is several times as fast as
    sorting keys with values. Rows with equal random bits keep their order.
    """
    index_bits = max(size - 1, 1).bit_length()
    if index_bits > 16:  # too few random bits would remain
        return fast_random.permutation(key, size)
    bits = fast_random.bits(key, (size,), jnp.uint32)
    mask = jnp.uint32(2**index_bits - 1)
    return (jnp.sort((bits & ~mask) | jnp.arange(size, dtype=jnp.uint32)) & mask).astype(jnp.int32)


def random_subsets(key: Key, shape: tuple[int, int], size: int) -> Array:
    """Choose ``size`` elements of each row at random, without replacement: bool[*shape]."""
    score = fast_random.bits(key, shape)
    return (score[:, :, None] > score[:, None, :]).sum(-1) < size


def shuffled(batch: Any, order: Array, standardize: bool, axis_name: str | None = None) -> Any:
    """Gather the minibatches of an epoch, leaves [num_minibatches, size, ...]. All at once needs fewer kernels than one by one.

    Args:
      batch: NamedTuple of leaves [N, ...], with fields ``valid``, ``advantage`` and ``carry``.
      order: i32[num_minibatches, size].
      standardize: standardise advantages within each minibatch.
    """
    parts = jax.tree.map(lambda x: x[order], batch)
    parts = zero_invalid(parts._replace(carry=()), parts.valid)._replace(carry=parts.carry)
    if not standardize:
        return parts
    return parts._replace(advantage=jax.vmap(lambda x, valid: standardized(x, valid, axis_name))(parts.advantage, parts.valid))


def over_epochs(
    step: Callable[[Any, Any], tuple[Any, Any]],
    start: Any,
    batch: Any,
    order: Array,
    standardize: bool = False,
    axis_name: str | None = None,
) -> tuple[Any, Any]:
    """Take a gradient step for each minibatch of each epoch.

    Args:
      step: (carry, minibatch) -> (carry, what it logs).
      start: carry of the first step.
      order: ``minibatches``; other arguments are those of ``shuffled``.

    Returns:
      The last carry, and what the steps logged, leaves [num_epochs, num_minibatches, ...].
    """

    def epoch(carry: Any, order: Array) -> tuple[Any, Any]:
        return jax.lax.scan(step, carry, shuffled(batch, order, standardize, axis_name))

    return jax.lax.scan(epoch, start, order)


def check_minibatches(config: Any, steps: int, *, recurrent: bool, accumulation_steps: int = 1) -> None:
    """Check that ``config.num_minibatches`` and ``accumulation_steps`` divide the rows of an iteration, or with memory its
    sequences.

    Args:
      steps: rows of an iteration.
    """
    items, noun, why = steps, "num_envs * rollout_length", ""
    if recurrent:
        items, noun, why = steps // config.rollout_length, "num_envs", " (a recurrent model learns from whole sequences)"
    if items % config.num_minibatches:
        raise ValueError(f"num_minibatches={config.num_minibatches} must divide {noun}={items}{why}")
    if (size := items // config.num_minibatches) % accumulation_steps:
        raise ValueError(f"accumulation_steps={accumulation_steps} must divide {noun} / num_minibatches = {size}{why}")


def stop_on_kl(
    limit: float, metrics: Mapping[str, Array], going: Array | None, new: PyTree, old: PyTree, axis_name: str | None = None
) -> tuple[Array | None, PyTree]:
    """Stop gradient steps at a KL limit: return ``(going, new or old)`` after a step from ``old`` to ``new``.

    ``metrics`` hold ``losses/approx_kl`` from before the step. The first step with a value above the limit is discarded, as are
    all steps after it. There is no limit if ``going`` is None.
    """
    if going is None:
        return None, new
    going &= ~(pmean(metrics["losses/approx_kl"], axis_name) > limit)  # NaN continues, so that it shows
    return going, jax.tree.map(lambda x, y: jnp.where(going, x, y), new, old)


def mean_over_taken_steps(logged: Mapping[str, Array], going: Array | None) -> dict[str, Array | Mean]:
    """Average the logs of [num_epochs, num_minibatches] gradient steps over the steps taken, and add ``charts/num_epochs``."""
    if going is None:
        return {**logged}
    taken = {name: masked_mean(value, going) for name, value in logged.items()}
    return {**taken, "charts/num_epochs": going.sum() / going.shape[1]}


def standardized(x: Array, valid: Array, axis_name: str | None = None) -> Array:
    """Standardise ``x`` to mean 0 and standard deviation 1 over the valid rows of all devices."""
    chex.assert_equal_shape([x, valid])
    mean = valid_mean(valid, axis_name)
    centred = x - pmean(mean(x), axis_name)
    return centred * jax.lax.rsqrt(pmean(mean(centred**2), axis_name) + 1e-8)


def explained_variance(target: Array, error: Array, valid: Array, axis_name: str | None = None) -> Array:
    """Return 1 − Var(error) / Var(target) over valid rows, with error = target − value: 1 if perfect, ≤ 0 if useless."""
    chex.assert_equal_shape([target, error, valid])
    mean = valid_mean(valid, axis_name)

    def variance(x: Array) -> Array:
        return pmean(mean((x - pmean(mean(x), axis_name)) ** 2), axis_name)

    return 1 - variance(error) / (variance(target) + 1e-8)
