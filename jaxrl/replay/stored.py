"""Convert the rows of a buffer to plain arrays in order of time, and such arrays to rollouts for filling another buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.replay.hindsight import NumberedRow
from jaxrl.replay.transitions import ReplayRow
from jaxrl.replay.uniform import ReplayState
from jaxrl.spaces.action_masks import is_allowed
from jaxrl.spaces.trees import bounds
from jaxrl.types import Env, HostEnv, PyTree, Rollout, StepInput


def stored_rows(state: Any) -> ReplayRow:
    """Return the rows of one seed's buffer as NumPy arrays, [N, B, ...], oldest first; N is the same for all environments.

    Args:
      state: state of ``uniform_replay``, or of a replay that contains such a ring: prioritised, sequence or hindsight replay.

    Raises:
      TypeError: the state contains no such ring.
      ValueError: the state holds several seeds.
    """
    ring = _ring(state)
    if ring is None:
        raise TypeError("state must be that of a replay with a ring as in uniform_replay, such as learner.replay of make_dqn")
    _check_one_seed(ring)
    length, size = ring.valid.shape[0], int(ring.size)
    order = (int(ring.position) - size + np.arange(size)) % length
    rows: Any = jax.device_get(jax.tree.map(lambda x: x[order], ring.records).unpack())
    if isinstance(rows, NumberedRow):  # mark_discontinuity marks only the numbered row
        return rows.row._replace(valid=rows.valid)
    return rows


def ring_length(state: Any) -> int | None:
    """Return the number of rows per environment that one seed's buffer can hold; None if it has no ring as in
    ``uniform_replay``."""
    if (ring := _ring(state)) is None:
        return None
    _check_one_seed(ring)
    return ring.valid.shape[0]


def ring_rows(state: Any) -> Any:
    """Return the rows of one seed's buffer in the ring's order, [ring_length, B, ...], or None without a ring. ``jit`` works."""
    if (ring := _ring(state)) is None:
        return None
    rows: Any = ring.records.unpack()
    return getattr(rows, "row", rows)


def _ring(state: Any) -> ReplayState | None:
    for _ in range(8):  # buffers may be nested
        if isinstance(state, ReplayState):
            return state
        state = next((inner for name in ("ring", "rows", "replay") if (inner := getattr(state, name, None)) is not None), None)
    return None


def _check_one_seed(ring: ReplayState) -> None:
    if np.ndim(ring.position):
        raise ValueError(
            f"state holds buffers of {np.shape(ring.position)} seeds: pass one, as in jax.tree.map(lambda x: x[0], states)"
        )


def check_rows(rows: ReplayRow, env: Env | HostEnv, reached: np.ndarray, first: int = 0) -> np.ndarray:
    """Check that an environment can have produced these rows, because learning from a wrong row would ruin the parameters.

    Checked are the actions and rewards of valid rows, their observations, masks of actions, and the observations that they
    reached without terminating. Other values do not enter the loss.

    Args:
      rows: NumPy arrays, [T, B, ...].
      env: the environment.
      reached: bool[B]: the row before these reached their first observation without terminating, so its value is used.
      first: number of the first row, for errors.

    Returns:
      ``reached`` for the rows that follow.

    Raises:
      ValueError: a row is wrong. The message names the row and the problem.
    """
    goes_on: Any = rows.valid & ~rows.terminated
    seen = rows.valid | np.concatenate([reached[None], goes_on[:-1]])
    wrong: dict[str, Any] = {f"an action outside {env.action_space}": rows.valid & ~_possible(env.action_space, rows.action)}
    if (allowed := is_allowed(rows.action, rows.obs, env.action_space)) is not None:
        wrong["an action that its action_mask forbids"] = rows.valid & ~allowed
    wrong["a reward that is not finite"] = rows.valid & ~np.isfinite(rows.reward)
    for where, x in jax.tree.leaves_with_path(rows.obs):
        if np.issubdtype(x.dtype, np.floating):
            name = "obs" + jax.tree_util.keystr(where)
            wrong[f"{name} that is not finite"] = seen & ~np.isfinite(x).reshape((*seen.shape, -1)).all(-1)
    for name, space, x in _choices(env.observation_space, rows.obs):
        wrong[f"{name} outside {space}"] = seen & ~_possible(space, x - np.asarray(space.start))
    for problem, where in wrong.items():
        if where.any():
            row, lane = np.argwhere(where)[0]
            raise ValueError(f"row {first + row} of environment {lane} has {problem}")
    return goes_on[-1]


def _choices(space: spaces.Space, obs: Any, name: str = "obs") -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the space and the values of each Discrete or MultiDiscrete part of observations."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
            yield from _choices(part, obs[key], f"{name}[{key!r}]")
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        yield name, space, obs


def _possible(space: spaces.Space, action: Any) -> Any:
    """Return bool[T, B], true for actions in the space, up to rounding. Discrete ones count from 0."""
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
    """Return rows [T, B, ...] as a rollout, for ``Algorithm.observe``.

    Its fields that replay does not store (see ``replay_rows``) are zero.

    Args:
      carry: the rollout's carry, [B, ...].
    """
    lanes: Any = np.arange(rows.valid.shape[1], dtype=np.int32)
    # Replay uses neither the observation after the last row nor the input before the first: neighbours are in the buffer.
    once_more = (rows.obs, rows.action, rows.reward, rows.terminated)
    obs, action, reward, flag = jax.tree.map(lambda x: np.concatenate([x, x[-1:]]), once_more)
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
