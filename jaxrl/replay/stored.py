"""What a buffer holds, as plain arrays in the order of time, and such arrays as rollouts, to fill another buffer with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxrl.replay.transitions import ReplayRow
from jaxrl.replay.uniform import ReplayState
from jaxrl.types import PyTree, Rollout, StepInput


def stored_rows(state: Any) -> ReplayRow:
    """The rows of one seed's buffer in NumPy, [N, B, ...], oldest first; the same N of each environment.

    Args:
      state: of ``uniform_replay``, or of one that is around such a ring: prioritised, of sequences, in hindsight.
    """
    ring = _ring(state)
    if np.ndim(ring.position):
        raise ValueError(
            f"state holds buffers of {np.shape(ring.position)} seeds: give one, as in jax.tree.map(lambda x: x[0], states)"
        )
    length, size = ring.valid.shape[0], int(ring.size)
    order = (int(ring.position) - size + np.arange(size)) % length
    rows: Any = jax.device_get(jax.tree.map(lambda x: x[order], ring.records).unpack())
    return getattr(rows, "row", rows)


def _ring(state: Any) -> ReplayState:
    for _ in range(8):  # buffers around buffers
        if isinstance(state, ReplayState):
            return state
        state = next((inner for name in ("ring", "rows", "replay") if (inner := getattr(state, name, None)) is not None), None)
    raise TypeError("state must be that of a replay with a ring as uniform_replay's: learner.replay of make_dqn, say")


def as_rollouts(rows: ReplayRow, length: int, carry: PyTree = ()) -> Iterator[Rollout]:
    """Rows [N, B, ...] as rollouts of ``length`` rows, for ``Algorithm.observe``; without the oldest N modulo ``length``.

    They hold what replay stores of a rollout (``replay_rows``), and zeros elsewhere; and this carry, [B], each of them.
    """
    count, num_envs = rows.valid.shape
    lanes: Any = np.arange(num_envs, dtype=np.int32)
    for start in range(count % length, count, length):
        part = jax.tree.map(lambda x, start=start: x[start : start + length], rows)
        # Replay looks at neither what the last row reached nor what came before the first: a row's successor is in the buffer.
        obs, action, reward, flag = jax.tree.map(lambda x: np.concatenate([x, x[-1:]]), part[:-1])
        yield Rollout(
            inputs=StepInput(obs, np.zeros_like(action), np.zeros_like(reward), np.zeros_like(flag)),
            action=part.action,
            reward=part.reward,
            terminated=part.terminated,
            truncated=part.terminated & False,
            extras={},
            valid=part.valid,
            carry=carry,
            env_id=lanes,
            version=0 * lanes,
        )
