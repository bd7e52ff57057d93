"""Batches of sequences for policies and critics with memory, with the fields of ``Transitions`` that their losses read."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.replay import Draw
from jaxrl.replay.sequence import sequence_priorities, sequences
from jaxrl.replay.transitions import Transitions, bootstrapped
from jaxrl.returns import bootstrap_mask, discounts, n_step_returns
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.outputs import Window
from jaxrl.types import Array, PyTree


class ReturnRows(NamedTuple):
    """Rows of sequences for n-step returns, f32[L, N]: arguments of ``n_step_returns``."""

    reward: Array
    discount: Array
    trace: Array
    valid: Array


class SequenceBatch(NamedTuple):
    """The training rows of sequences, one after the other: S rows of N sequences, [S · N]."""

    inputs: Window
    next_inputs: Window
    """Reaches all L = S + n − 1 rows of the returns."""
    action: Array
    weight: Array
    valid: Array
    returns: ReturnRows


def sequence_batch(setup: ReplaySetup[Any], learner: Any, replay: PyTree, draw: Draw, gamma: Array) -> SequenceBatch:
    """Return the drawn sequences, [N], with actions in the environment's units."""
    config = setup.config
    drawn = setup.weighted(sequences(setup.replay, replay, draw, config.rows_behind), learner)
    first, last = config.burn_in, config.burn_in + config.sequence_length
    rows = zero_invalid(drawn.inputs, bootstrap_mask(drawn))
    learnt: Any = drawn._replace(carry=(), weight=())
    learnt = jax.tree.map(lambda x: x[first:], learnt)
    flat = lambda x: x[: config.sequence_length].reshape(-1, *x.shape[2:])  # noqa: E731
    return SequenceBatch(
        Window(jax.tree.map(lambda x: x[:last], rows), drawn.carry, first),
        Window(rows, drawn.carry, first + 1),
        zero_invalid(flat(learnt.action), flat(learnt.valid)),
        jnp.tile(drawn.weight, config.sequence_length),
        flat(learnt.valid),
        ReturnRows(learnt.reward, *discounts(learnt, gamma), learnt.valid),
    )


def targets_of(batch: Transitions | SequenceBatch, value: Array) -> Array:
    """Return the targets of a batch's rows, with gradients stopped: their returns, and the value beyond these.

    Args:
      value: V of the rows of ``next_inputs``, f32[N], or f32[N, M] for M values per row.
    """
    if isinstance(batch, Transitions):
        return bootstrapped(batch, value)
    rows, (number, size) = batch.returns, batch.returns.valid.shape
    learnt = len(batch.valid) // size

    def returns(value: Array) -> Array:
        values = value.reshape(number, size)
        return n_step_returns(rows.reward, rows.discount, rows.trace, values, rows.valid, number + 1 - learnt)[:learnt].ravel()

    return jax.lax.stop_gradient(returns(value) if value.ndim == 1 else jax.vmap(returns, -1, -1)(value))


def priorities_of(batch: Transitions | SequenceBatch, priorities: Array) -> Array:
    """Return the priority of each draw, given those of a batch's rows: with sequences a mixture of their largest and mean
    (Kapturowski et al. 2019, section 2.3)."""
    if isinstance(batch, Transitions):
        return priorities
    size = batch.returns.valid.shape[1]
    return sequence_priorities(priorities.reshape(-1, size), batch.valid.reshape(-1, size))
