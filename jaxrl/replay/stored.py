"""The rows of a buffer as plain arrays in the order of time, and such arrays as rollouts, to fill another buffer with."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.replay.hindsight import NumberedRow
from jaxrl.replay.transitions import ReplayRow
from jaxrl.replay.uniform import ReplayState
from jaxrl.spaces.trees import bounds
from jaxrl.types import Env, HostEnv, PyTree, Rollout, StepInput


def stored_rows(state: Any) -> ReplayRow:
    """The rows of one seed's buffer in NumPy, [N, B, ...], oldest first; the same N of each environment.

    Args:
      state: of ``uniform_replay``, or of one that is around such a ring: prioritised, of sequences, in hindsight.
    """
    ring = _ring(state)
    if ring is None:
        raise TypeError("state must be that of a replay with a ring as uniform_replay's: learner.replay of make_dqn, say")
    _check_one_seed(ring)
    length, size = ring.valid.shape[0], int(ring.size)
    order = (int(ring.position) - size + np.arange(size)) % length
    rows: Any = jax.device_get(jax.tree.map(lambda x: x[order], ring.records).unpack())
    if isinstance(rows, NumberedRow):  # a seal marks the numbered row, and leaves the row within as it was
        return rows.row._replace(valid=rows.valid)
    return rows


def ring_length(state: Any) -> int | None:
    """Rows of each environment that a buffer of one seed has room for; None where it has no ring as ``uniform_replay``'s."""
    if (ring := _ring(state)) is None:
        return None
    _check_one_seed(ring)
    return ring.valid.shape[0]


def ring_rows(state: Any) -> Any:
    """The rows of one seed's buffer as they lie in its ring, [ring_length, B, ...], also inside ``jit``; None without a ring."""
    if (ring := _ring(state)) is None:
        return None
    rows: Any = ring.records.unpack()
    return getattr(rows, "row", rows)


def _ring(state: Any) -> ReplayState | None:
    for _ in range(8):  # buffers around buffers
        if isinstance(state, ReplayState):
            return state
        state = next((inner for name in ("ring", "rows", "replay") if (inner := getattr(state, name, None)) is not None), None)
    return None


def _check_one_seed(ring: ReplayState) -> None:
    if np.ndim(ring.position):
        raise ValueError(
            f"state holds buffers of {np.shape(ring.position)} seeds: give one, as in jax.tree.map(lambda x: x[0], states)"
        )


def check_rows(rows: ReplayRow, env: Env | HostEnv, reached: np.ndarray, first: int = 0) -> np.ndarray:
    """Refuse rows that an environment cannot have given: learnt from, one of them would spoil all that comes after.

    Looked at are actions and rewards of valid rows, and the observations of these and of what they reached, unless that was a
    termination. The others enter no loss.

    Args:
      rows: of NumPy, [T, B, ...].
      reached: bool[B]: whether the row before these reached their first observation, and its value counts.
      first: the number of the first row, for errors.

    Returns:
      ``reached`` of the rows behind these.

    Raises:
      ValueError: there is one; the message says which.
    """
    goes_on: Any = rows.valid & ~rows.terminated
    seen = rows.valid | np.concatenate([reached[None], goes_on[:-1]])
    wrong: dict[str, Any] = {f"an action outside {env.action_space}": rows.valid & ~_possible(env.action_space, rows.action)}
    wrong["a reward that is not finite"] = rows.valid & ~np.isfinite(rows.reward)
    for where, x in jax.tree.leaves_with_path(rows.obs):
        if np.issubdtype(x.dtype, np.floating):
            name = "obs" + jax.tree_util.keystr(where)
            wrong[f"{name} that is not finite"] = seen & ~np.isfinite(x).reshape((*seen.shape, -1)).all(-1)
    for what, where in wrong.items():
        if where.any():
            row, lane = np.argwhere(where)[0]
            raise ValueError(f"row {first + row} of environment {lane} has {what}")
    return goes_on[-1]


def _possible(space: spaces.Space, action: Any) -> Any:
    """bool[T, B]: actions of a space, up to rounding."""
    if isinstance(space, spaces.Discrete):
        return (action >= 0) & (action < space.n)
    if isinstance(space, spaces.MultiDiscrete):
        within = (action >= 0) & (action < space.nvec)
    elif isinstance(space, spaces.Box):
        low, high = bounds(space)
        slack = np.nan_to_num(1e-5 * high - 1e-5 * low, posinf=0.0)
        within = (action >= low - slack) & (action <= high + slack)
    else:
        return np.ones(action.shape[:2], bool)
    return within.reshape((*action.shape[:2], -1)).all(-1)


def as_rollout(rows: ReplayRow, carry: PyTree = ()) -> Rollout:
    """Rows [T, B, ...] as a rollout, for ``Algorithm.observe``.

    It holds what replay stores of a rollout (``replay_rows``), and zeros elsewhere; and this carry, [B].
    """
    lanes: Any = np.arange(rows.valid.shape[1], dtype=np.int32)
    # Replay looks at neither what the last row reached nor what came before the first: a row's successor is in the buffer.
    obs, action, reward, flag = jax.tree.map(lambda x: np.concatenate([x, x[-1:]]), rows[:-1])
    return Rollout(
        inputs=StepInput(obs, np.zeros_like(action), np.zeros_like(reward), np.zeros_like(flag)),
        action=rows.action,
        reward=rows.reward,
        terminated=rows.terminated,
        truncated=rows.terminated & False,
        extras={},
        valid=rows.valid,
        carry=carry,
        env_id=lanes,
        version=0 * lanes,
    )
