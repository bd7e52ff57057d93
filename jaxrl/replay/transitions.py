"""Batches of transitions with one-step or n-step returns, from stored rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.replay import Draw, Replay
from jaxrl.rollout.autoreset import expand_mask, next_input
from jaxrl.rollout.inputs import example_input
from jaxrl.spaces.entries import turn_sign
from jaxrl.types import Array, PyTree, Rollout, StepInput


class ReplayRow(NamedTuple):
    """Fields of a row that replay stores; the previous action and reward, and is_first, come from the previous row."""

    obs: PyTree
    action: Array
    reward: Array
    terminated: Array
    valid: Array
    extras: PyTree = ()
    """Further values that an algorithm stores, such as a policy."""


def replay_rows(rollout: Rollout, extras: PyTree = ()) -> ReplayRow:
    """Return the fields of a rollout that replay stores, [T, B], raw, with further ``extras``.

    Each observation is stored once, because the next row holds the observation that a row reached.
    """
    obs = jax.tree.map(lambda x: x[:-1], rollout.inputs.obs)
    return ReplayRow(obs, rollout.action, rollout.reward, rollout.terminated, rollout.valid, extras)


def example_row(observation_space: spaces.Space, action_space: spaces.Space, extras: PyTree = ()) -> ReplayRow:
    """Return a row of zeros, unbatched."""
    obs, action, reward, flag = jax.tree.map(lambda x: x[0], tuple(example_input(observation_space, action_space)))
    return ReplayRow(obs, action, reward, flag, flag, extras)


class Transitions(NamedTuple):
    """A batch for the loss, [N]: returns of m = n_step rewards, or fewer if the episode ends earlier."""

    inputs: StepInput
    next_inputs: StepInput
    """Input of the policy after the last of these rows."""
    action: Array
    reward: Array
    """r₀ + γ·r₁ + … + γᵐ⁻¹·rₘ₋₁."""
    discount: Array
    """Factor on the value of ``next_inputs``: γᵐ, or 0 after a termination; negative where it is the other player's."""
    weight: Array
    """Weight of each row in the loss: ``Draw.weight``."""
    valid: Array
    next_action: Any = ()
    """Action that was taken at ``next_inputs``, if it was asked for."""
    next_valid: Any = ()
    """bool[N]: there is such an action, for the episode did not end before it."""


def transitions(
    replay: Replay, state: Any, draw: Draw, gamma: Array | float, n_step: int = 1, *, next_action: bool = False
) -> Transitions:
    """Return the drawn rows with their n-step returns (Sutton & Barto 2018, eq. 7.1) and the inputs that these reached.

    A return stops at the end of its episode. The value beyond is 0 after a termination; after a truncation, and at a
    discontinuity, it is the value of the observation reached. Actions after the first are those of the collecting policies,
    without correction, as in Rainbow (Hessel et al. 2018).

    Args:
      replay: a replay built with ``before=1`` and ``after=n_step``.
      state: the replay's state.
      draw: [N].
      gamma: f32[], discount per step.
      n_step: number of rewards in a return.
      next_action: return ``Transitions.next_action`` too.
    """
    rows = [replay.take(state, draw, offset) for offset in range(n_step)]
    first = rows[0]
    reward, terminated, discount = first.reward, first.terminated, jnp.full_like(first.reward, gamma)
    alive, count = ~first.terminated, jnp.ones_like(draw.row)
    for row in rows[1:]:
        # The row after an end, and the last row before a discontinuity, are not valid.
        alive &= row.valid
        reward += jnp.where(alive, discount * turn_sign(first.obs, row.obs) * row.reward, 0.0)
        discount = jnp.where(alive, discount * gamma, discount)
        count += alive
        terminated |= alive & row.terminated
        alive &= ~row.terminated

    if n_step == 1:
        last, reached = first, replay.take(state, draw, 1)
    else:
        last, reached = (replay.take(state, draw, count + offset) for offset in (-1, 0))
    discount = jnp.where(terminated, 0.0, discount * turn_sign(first.obs, reached.obs))
    before = replay.take(state, draw, -1)
    return Transitions(
        inputs=next_input(first.obs, before.action, before.reward, before.valid),
        next_inputs=next_input(reached.obs, last.action, last.reward, last.valid),
        action=first.action,
        reward=reward,
        discount=discount,
        weight=draw.weight,
        valid=draw.valid,
        **({"next_action": reached.action, "next_valid": reached.valid} if next_action else {}),
    )


def bootstrapped(batch: Transitions, value: Array) -> Array:
    """Return the targets r + γ·(1 − terminated)·V(s′) for the returns of ``transitions``, with gradients stopped.

    Args:
      value: V(s′), f32[N], or f32[N, M] for M values per row.
    """
    reward, discount = (expand_mask(x, value) for x in (batch.reward, batch.discount))
    beyond = jnp.where(discount == 0, 0.0, discount * value)  # values that are not finite after an end do not enter
    return jax.lax.stop_gradient(reward + beyond)
