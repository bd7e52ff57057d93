"""Stored rows to what a loss of one-step or n-step returns learns from."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.replay import Draw, Replay
from jaxrl.rollout.autoreset import expand_mask, next_input
from jaxrl.rollout.inputs import example_input
from jaxrl.types import Array, PyTree, Rollout, StepInput


class ReplayRow(NamedTuple):
    """What replay keeps of a row; the previous action and reward, and is_first, are those of the row before."""

    obs: PyTree
    action: Array
    reward: Array
    terminated: Array
    valid: Array


def replay_rows(rollout: Rollout) -> ReplayRow:
    """What replay keeps of a rollout, [T, B]: raw, and each observation once, because a row's successor holds what it reached."""
    obs = jax.tree.map(lambda x: x[:-1], rollout.inputs.obs)
    return ReplayRow(obs, rollout.action, rollout.reward, rollout.terminated, rollout.valid)


def example_row(observation_space: spaces.Space, action_space: spaces.Space) -> ReplayRow:
    """One row, unbatched, all zeros."""
    obs, action, reward, flag = jax.tree.map(lambda x: x[0], tuple(example_input(observation_space, action_space)))
    return ReplayRow(obs, action, reward, flag, flag)


class Transitions(NamedTuple):
    """A batch for the loss, [N]: returns of m = n_step rewards, fewer where an end comes before."""

    inputs: StepInput
    next_inputs: StepInput
    """What the last of those rows reached, as the policy saw it."""
    action: Array
    reward: Array
    """r₀ + γ·r₁ + … + γᵐ⁻¹·rₘ₋₁."""
    discount: Array
    """What the value of ``next_inputs`` counts: γᵐ, and 0 after a termination."""
    weight: Array
    """What the loss counts each row: ``Draw.weight``."""
    valid: Array


def transitions(replay: Replay, state: Any, draw: Draw, gamma: Array | float, n_step: int = 1) -> Transitions:
    """The drawn rows with the n-step return that follows them (Sutton & Barto 2018, eq. 7.1), and what it reached.

    A return stops at the end of its episode: after a termination nothing is beyond; after a truncation, and at a seam, the value
    of the observation reached is. Actions after the first are those of the policies that collected, uncorrected, as in Rainbow
    (Hessel et al. 2018).

    Args:
      replay: built with ``before=1`` and ``after=n_step``.
      draw: [N].
      gamma: f32[], discount per step.
    """
    rows = [replay.take(state, draw, offset) for offset in range(n_step)]
    first = rows[0]
    reward, terminated, discount = first.reward, first.terminated, jnp.full_like(first.reward, gamma)
    alive, count = ~first.terminated, jnp.ones_like(draw.row)
    for row in rows[1:]:
        # The row after an end, and one whose successor is not its own, are not valid.
        alive &= row.valid
        reward += jnp.where(alive, discount * row.reward, 0.0)
        discount = jnp.where(alive, discount * gamma, discount)
        count += alive
        terminated |= alive & row.terminated
        alive &= ~row.terminated
    discount = jnp.where(terminated, 0.0, discount)

    if n_step == 1:
        last, reached = first, replay.take(state, draw, 1)
    else:
        last, reached = (replay.take(state, draw, count + offset) for offset in (-1, 0))
    before = replay.take(state, draw, -1)
    return Transitions(
        inputs=next_input(first.obs, before.action, before.reward, before.valid),
        next_inputs=next_input(reached.obs, last.action, last.reward, last.valid),
        action=first.action,
        reward=reward,
        discount=discount,
        weight=draw.weight,
        valid=draw.valid,
    )


def bootstrapped(batch: Transitions, value: Array) -> Array:
    """r + γ·(1 − terminated)·V(s′), through which no gradient flows, with the returns of ``transitions``: f32[N], or f32[N, M] of
    M values for each row."""
    reward, discount = (expand_mask(x, value) for x in (batch.reward, batch.discount))
    beyond = jnp.where(discount == 0, 0.0, discount * value)  # what is not finite after an end counts for nothing
    return jax.lax.stop_gradient(reward + beyond)
