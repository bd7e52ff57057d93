"""Layouts of datasets in other libraries, converted to rows: D4RL's arrays and Minari's episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.replay.dataset import leaf_name
from jaxrl.replay.transitions import ReplayRow, example_row
from jaxrl.types import PyTree

D4RL = ("observations", "actions", "rewards", "terminals")
"""Arrays that a file of D4RL has; ``timeouts`` and ``next_observations`` may follow."""


class Spaces(NamedTuple):
    """Spaces of a dataset whose environment is not at hand."""

    observation_space: spaces.Space
    action_space: spaces.Space
    name: str


def rows_of(steps: PyTree, action: Any, reward: Any, terminated: Any, ends: Any, last: PyTree) -> ReplayRow:
    """Return rows with a row that is not valid after each episode.

    Args:
      steps: observation before each step, leaves [N, ...].
      ends: bool[N], the last steps of episodes.
      last: observation after the last step of each episode, leaves [E, ...].
    """
    ends = np.asarray(ends, bool)
    at = np.arange(len(ends)) + np.cumsum(ends) - ends
    after = at[ends] + 1

    def spread(values: Any, at_ends: Any = 0) -> Any:
        values = np.asarray(values)
        out = np.zeros((len(ends) + len(after), *values.shape[1:]), values.dtype)
        out[at], out[after] = values, at_ends
        return out

    obs = jax.tree.map(spread, steps, last)
    valid = spread(np.ones(len(ends), bool), False)
    return ReplayRow(obs, spread(action), spread(np.asarray(reward, np.float32)), spread(np.asarray(terminated, bool)), valid)


def from_d4rl(arrays: Mapping[str, Any]) -> ReplayRow:
    """Return the rows of D4RL's arrays (Fu et al. 2020), [N, ...].

    Without ``next_observations`` the last step of an episode that was cut off is left out, since the observation that it reached
    is unknown; its own observation is the last one. Where both flags are set, the episode terminated. With
    ``next_observations``, an episode is also cut off where the following row has another observation, so transitions may be in
    any order.

    Raises:
      ValueError: an array is missing, or has another length.
    """
    if missing := [name for name in D4RL if name not in arrays]:
        raise ValueError(f"a dataset in D4RL's layout has the arrays {', '.join(D4RL)}: {', '.join(missing)} is missing")
    obs, action, reward, terminated = map(np.asarray, (arrays[name] for name in D4RL))
    terminated, reward = terminated.reshape(-1).astype(bool), reward.reshape(-1)
    timeouts = np.asarray(arrays["timeouts"]).reshape(-1).astype(bool) if "timeouts" in arrays else np.zeros_like(terminated)
    lengths = {name: len(x) for name, x in zip(D4RL, (obs, action, reward, terminated), strict=True)} | {
        "timeouts": len(timeouts)
    }
    if len({*lengths.values()}) > 1 or not len(obs):
        raise ValueError(f"the arrays must have the same length, at least 1, and have {lengths}")
    ends = terminated | timeouts
    ends[-1] = True
    if "next_observations" in arrays:
        reached = np.asarray(arrays["next_observations"])
        if reached.shape != obs.shape:
            raise ValueError(f"next_observations is {list(reached.shape)}, and observations {list(obs.shape)}: they must agree")
        ends[:-1] |= ~_alike(reached[:-1], obs[1:])
        return rows_of(obs, action, reward, terminated, ends, reached[ends])
    columns: Any = (obs, action, reward.astype(np.float32), terminated, ~(ends & ~terminated))
    # A step that terminated is followed by the next episode: a row in between is missing, whose observation is not used.
    return _with_ends(ReplayRow(*columns), terminated)


def _alike(reached: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Return bool[N], true where two observations are the same up to rounding; values that are not numbers are."""
    same = reached == following
    if np.issubdtype(reached.dtype, np.floating):
        same |= np.isclose(reached, following, rtol=1e-5, atol=1e-6, equal_nan=True)
    return same.reshape(len(same), -1).all(1)


def _with_ends(rows: ReplayRow, after: np.ndarray) -> ReplayRow:
    """Insert a row that is not valid after these rows, with the same observation."""
    index = np.sort(np.concatenate([np.arange(len(after)), np.flatnonzero(after)]), kind="stable")
    inserted = np.concatenate([[False], index[1:] == index[:-1]])
    out: Any = jax.tree.map(lambda x: x[index], rows)
    return out._replace(valid=out.valid & ~inserted, terminated=out.terminated & ~inserted)


def from_episodes(episodes: Iterable[Any], tree: Callable[[Any], PyTree]) -> ReplayRow:
    """Return the rows of Minari's episodes: observations [T + 1], and T actions, rewards, terminations and truncations.

    Args:
      tree: converts the observations or actions of an episode, as Minari gives them, to a tree of arrays.

    Raises:
      ValueError: an episode has no steps, or not one observation more than steps.
    """
    parts = list(_parts(episodes, tree))
    if not parts:
        raise ValueError("the dataset has no episodes")
    joined: Any = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    return joined


def _parts(episodes: Iterable[Any], tree: Callable[[Any], PyTree]) -> Iterator[ReplayRow]:
    for number, episode in enumerate(episodes):
        obs, action = tree(episode.observations), tree(episode.actions)
        length = len(episode.rewards)
        counts = {len(x) for x in jax.tree.leaves(obs)}
        if not length or counts != {length + 1}:
            raise ValueError(f"episode {number} has {length} steps and {sorted(counts)} observations: T steps need T + 1 of them")
        ends = np.arange(length) == length - 1
        terminated = np.asarray(episode.terminations, bool) & ends
        steps, last = (jax.tree.map(lambda x, part=part: x[part], obs) for part in (slice(None, -1), slice(-1, None)))
        yield rows_of(steps, action, episode.rewards, terminated, ends, last)


def cast_to_spaces(rows: ReplayRow, env: Any) -> ReplayRow:
    """Return rows with the types of the spaces: a file may hold float64 for float32, or int64 for int32, and axes of length 1.

    Raises:
      ValueError: the observations have another structure, or a value is not one of the type, such as 0.5 for an integer.
    """
    example = example_row(env.observation_space, env.action_space)
    wanted = jax.tree.structure(example)
    if jax.tree.structure(rows) != wanted:
        raise ValueError(
            f"the file's observations are {jax.tree.structure(rows.obs)}, and must be {jax.tree.structure(example.obs)}"
        )
    out: Any = jax.tree.map_with_path(_cast, rows, example)
    return out


def _cast(where: Any, x: Any, like: Any) -> np.ndarray:
    x = np.asarray(x)
    if [size for size in x.shape[1:] if size != 1] == [size for size in like.shape if size != 1]:
        x = x.reshape(len(x), *like.shape)
    if x.dtype == like.dtype:
        return x
    with np.errstate(invalid="ignore", over="ignore"):
        cast = x.astype(like.dtype)
    if not np.issubdtype(like.dtype, np.floating) and (wrong := cast != x).any():
        first = tuple(np.argwhere(wrong)[0])
        raise ValueError(
            f"{leaf_name(where)} of row {first[0]} holds {x[first]}, and must hold {like.dtype}: convert the file's values, or "
            "give spaces that have them"
        )
    return cast
