"""Datasets of transitions: rows that were collected before, as a pytree that all seeds share.

Rows are in one lane, one episode after another, as in a ``Rollout``: a row that is not valid follows the last row of each episode
and holds its true last observation. So an episode that was cut off bootstraps from that observation, and one that terminated
does not. A dataset travels beside a state, ``agent.step(state, data)``: it is neither in the state, where each seed would have a
copy, nor a constant of the program.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Space

from jaxrl.replay.row_layout import Records, layout_of, pack
from jaxrl.replay.stored import check_rows
from jaxrl.replay.transitions import ReplayRow, example_row
from jaxrl.rollout.running_statistics import RunningMoments
from jaxrl.settings.aliases import shortened
from jaxrl.spaces.trees import describe_space, realize_space, show_shapes, space_text
from jaxrl.types import Array, Env, HostEnv

MOST_ROWS = 2**31 - 1
Moments: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of the numbers of a leaf."""


@dataclass(frozen=True)
class DatasetInfo:
    """Description of a dataset, as plain data: all that a builder needs, and what a run records."""

    digest: str
    """SHA-256 of the rows, as hexadecimal digits."""
    rows: int
    """Number of transitions."""
    episodes: int
    spaces: Mapping[str, Any]
    """Observation and action space, as ``jaxrl.spaces.trees.describe_space`` gives them."""
    returns: tuple[float, float]
    """Lowest and highest undiscounted return of an episode."""
    moments: Mapping[str, Moments]
    """Mean and standard deviation of the observations of valid rows, by leaf, for leaves of floats."""
    path: str | None = None
    """File that the dataset was read from; None if it was made in memory."""

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatasetInfo) and self.digest == other.digest

    @cached_property
    def observation_space(self) -> Space:
        return realize_space(self.spaces["observation"])

    @cached_property
    def action_space(self) -> Space:
        return realize_space(self.spaces["action"])

    def as_plain(self) -> dict[str, Any]:
        """Return data of a spec, as JSON holds it."""
        return {"dataset": json.loads(json.dumps(dataclasses.asdict(self)))}  # lists in place of tuples

    @classmethod
    def read(cls, plain: Any) -> DatasetInfo:
        """Return the description that data of a spec is. Raise ValueError for other data."""
        try:
            fields = dict(plain["dataset"])
            moments = {str(name): (tuple(mean), tuple(std)) for name, (mean, std) in fields.pop("moments").items()}
            returns = tuple(map(float, fields.pop("returns")))
            return cls(**fields, moments=moments, returns=returns)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(
                f"{shortened(plain)} does not describe a dataset: give data=…, as jaxrl.load_dataset reads it"
            ) from None

    def running_moments(self) -> RunningMoments:
        """Return the moments of observations as statistics that an algorithm may normalise with, and keeps as they are. Leaves
        that are not floats have None in their place, and stay as they are."""
        example = example_row(self.observation_space, self.action_space).obs

        def of(i: int) -> Any:
            def leaf(path: Any, x: Any) -> Array | None:
                found = self.moments.get(leaf_name(path))
                return None if found is None else jnp.asarray(found[i], jnp.float32).reshape(x.shape)

            return jax.tree.map_with_path(leaf, example)

        return RunningMoments(jnp.float32(self.rows), of(0), jax.tree.map(jnp.square, of(1)))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["records", "origins", "rows_of_best", "starts", "returns_to_go"],
    meta_fields=["info"],
)
@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows, and what is computed from them once. Read one with ``jaxrl.load_dataset``, or make one with ``make_dataset``."""

    records: Records
    """[N, 1]: packed ``ReplayRow``s; those after the ends of episodes are not valid."""
    origins: Array
    """i32[rows]: positions of the valid rows, those of episodes with higher returns first."""
    rows_of_best: Array
    """i32[episodes]: number of rows of the best 1, 2, … episodes by return. They are the first ``origins``."""
    starts: Array
    """i32[episodes]: positions of the first rows of episodes."""
    returns_to_go: Array
    """f32[N]: sum of the rewards from a row to the end of its episode, undiscounted; 0 where a row is not valid."""
    info: DatasetInfo

    def __repr__(self) -> str:
        return f"Dataset({self.info.rows:,} rows of {self.info.episodes:,} episodes, from {self.info.path or 'memory'})"

    def as_plain(self) -> dict[str, Any]:
        """Return data of a spec: the description."""
        return self.info.as_plain()

    def rows(self) -> ReplayRow:
        """Return all rows, those that are not valid too, [N, ...]."""
        unpacked: Any = self.records[:, 0].unpack()
        return unpacked


def make_dataset(rows: ReplayRow, env: Env | HostEnv | DatasetInfo, path: str | None = None) -> Dataset:
    """Make a dataset of rows in order of time.

    Args:
      rows: NumPy arrays [N, ...] of one environment, or [N, B, ...] of several. An episode may be cut off by the end of an array.
        Its last row then only gives the observation that the row before it reached.
      env: environment of the same spaces, or any object that has both.
      path: file that they come from.

    Raises:
      ValueError: the rows hold no transition, or one of them is outside of the spaces or not finite.
    """
    lanes = rows if np.ndim(rows.valid) == 2 else jax.tree.map(lambda x: np.asarray(x)[:, None], rows)
    lanes = jax.tree.map(np.asarray, lanes)
    _check_shapes(lanes, env)
    check_rows(lanes, env, np.zeros(lanes.valid.shape[1], bool))  # type: ignore[arg-type]
    flat = _in_one_lane(lanes)
    if not flat.valid.any():
        raise ValueError("a dataset needs at least one transition: two rows, where the second holds the observation reached")
    if len(flat.valid) > MOST_ROWS:
        raise ValueError(f"a dataset may have at most {MOST_ROWS:,} rows, and this one has {len(flat.valid):,}")
    ends = np.flatnonzero(~flat.valid)
    starts = np.concatenate([[0], ends[:-1] + 1])
    rewards = np.where(flat.valid, flat.reward, 0.0).astype(np.float64)
    total = np.cumsum(rewards[::-1])[::-1]  # to the end of the data
    after = np.repeat(np.append(total[ends[:-1]], 0.0), np.diff(np.append(starts, len(rewards))))
    returns_to_go = np.where(flat.valid, total - after, 0.0).astype(np.float32)
    returns = returns_to_go[starts]
    info = DatasetInfo(
        digest=digest_of(flat),
        rows=int(flat.valid.sum()),
        episodes=len(starts),
        spaces={"observation": describe_space(env.observation_space), "action": describe_space(env.action_space)},
        returns=(float(returns.min()), float(returns.max())),
        moments=_moments(flat),
        path=path,
    )
    records = pack(layout_of(example_row(env.observation_space, env.action_space)), jax.tree.map(jnp.asarray, flat))
    best = np.argsort(-returns, kind="stable")
    lengths = ends - starts
    origins = np.concatenate([np.arange(starts[i], ends[i]) for i in best])
    as_positions = partial(jnp.asarray, dtype=jnp.int32)
    return Dataset(
        records=jax.tree.map(lambda x: x[:, None], records),
        origins=as_positions(origins),
        rows_of_best=as_positions(np.cumsum(lengths[best])),
        starts=as_positions(starts),
        returns_to_go=jnp.asarray(returns_to_go),
        info=info,
    )


def digest_of(rows: ReplayRow) -> str:
    """Return the SHA-256 of rows, with the names, types and shapes of their arrays."""
    hashed = hashlib.sha256()
    for where, x in jax.tree.leaves_with_path(rows):
        hashed.update(f"{leaf_name(where)} {x.dtype.str} {x.shape};".encode())
        hashed.update(np.ascontiguousarray(x).data)
    return hashed.hexdigest()


def _check_shapes(rows: ReplayRow, env: Any) -> None:
    lead = rows.valid.shape
    for (where, x), (_, wanted) in zip(
        jax.tree.leaves_with_path(rows),
        jax.tree.leaves_with_path(example_row(env.observation_space, env.action_space)),
        strict=True,
    ):
        expected = jax.ShapeDtypeStruct((*lead, *wanted.shape), wanted.dtype)
        if (x.shape, x.dtype) != (expected.shape, expected.dtype):
            name = getattr(env, "name", "these spaces")
            raise ValueError(f"{leaf_name(where)} is {show_shapes(x)}, but for {name} it must be {show_shapes(expected)}")


def one_after_another(rows: ReplayRow) -> ReplayRow:
    """Return rows [N, B, ...] as one lane, where the last row of each environment is not valid."""
    rows = rows._replace(valid=rows.valid & (np.arange(len(rows.valid)) < len(rows.valid) - 1)[:, None])
    flat: Any = jax.tree.map(lambda x: np.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), rows)
    return flat


def _in_one_lane(rows: ReplayRow) -> ReplayRow:
    """Return rows [N, B, ...] as one lane, in which each episode is followed by one row that is not valid. Such a row holds an
    observation, and zeros."""
    flat: Any = one_after_another(rows)
    # Of successive rows that are not valid the first holds the last observation, and the others nothing.
    follows = np.concatenate([[False], flat.valid[:-1]])
    first_of_lane = np.arange(len(flat.valid)) % len(rows.valid) == 0
    keep = flat.valid | (follows & ~first_of_lane)
    if (unended := np.flatnonzero(flat.valid[:-1] & flat.terminated[:-1] & flat.valid[1:])).size:
        raise ValueError(
            f"row {unended[0]} terminates an episode, so the next row must not be valid, and holds the last observation"
        )
    kept = jax.tree.map(lambda x: x[keep], flat)

    def without_invalid(x: np.ndarray) -> np.ndarray:
        return np.where(kept.valid.reshape(-1, *[1] * (x.ndim - 1)), x, np.zeros((), x.dtype))

    return kept._replace(**{name: without_invalid(getattr(kept, name)) for name in ("action", "reward", "terminated")})


def _moments(rows: ReplayRow) -> dict[str, Moments]:
    found = dict[str, Moments]()
    for where, x in jax.tree.leaves_with_path(rows.obs):
        if np.issubdtype(x.dtype, np.floating):
            valid = x[rows.valid].reshape(int(rows.valid.sum()), -1).astype(np.float64)
            mean, std = (tuple(x.astype(np.float32).tolist()) for x in (valid.mean(0), valid.std(0)))
            found[leaf_name(where)] = mean, std
    return found


def check_data(data: Any, described: Dataset | DatasetInfo | None) -> None:
    """Raise an error unless ``data`` is the described dataset, or one that is traced like it; or () where none is described."""
    if described is None:
        if data != ():
            raise TypeError("this agent was built without data=…, so its step takes the state alone")
        return
    if not isinstance(data, Dataset):
        fix = "step(state, agent.data), or jax.vmap(agent.step, in_axes=(0, None))(states, agent.data)"
        raise TypeError(f"this agent learns from data=…, so its step takes the Dataset: {fix}")
    if data.info != info_of(described):
        raise ValueError(
            f"this is another dataset than the agent's: {data.info.digest[:12]}… is not {info_of(described).digest[:12]}…"
        )


def info_of(data: Dataset | DatasetInfo) -> DatasetInfo:
    return data.info if isinstance(data, Dataset) else data


def check_spaces(info: DatasetInfo, env: Env | HostEnv) -> None:
    """Raise ValueError unless the environment has the spaces of the dataset; bounds of observations may differ."""
    pairs = (("observations", info.observation_space, env.observation_space), ("actions", info.action_space, env.action_space))
    for what, of_data, of_env in pairs:
        there, here = (space_text(space, bounds=what == "actions") for space in (of_data, of_env))
        if there != here:
            raise ValueError(
                f"the dataset has {what} {there}, and {env.name} has {here}: use the environment that the data come from"
            )


def leaf_name(path: Any) -> str:
    """Return the name of a leaf of a row, such as ``obs.speed``; of a lone observation ``obs``."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "obs"
