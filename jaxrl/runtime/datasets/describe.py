"""Description of a dataset, for ``jaxrl data``."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.replay.dataset import Dataset
from jaxrl.replay.dataset_replay import WithData, dataset_replay
from jaxrl.replay.transitions import transitions
from jaxrl.types import Array, Key

BARS, WIDTH = 10, 40
"""Bars of the histogram, and the length of the longest."""
BATCH, BATCHES = 256, 200
"""Rows of a batch, and batches that are drawn to measure the speed."""


def description(data: Dataset) -> dict[str, Any]:
    """Return the description as plain data."""
    info, rows = data.info, data.rows()
    valid, ended = np.asarray(rows.valid), np.asarray(rows.terminated & rows.valid)
    starts = np.asarray(data.starts)
    returns, ends = np.asarray(data.returns_to_go)[starts], np.append(starts[1:], len(valid)) - 2
    lengths = ends - starts + 1
    counts, edges = np.histogram(returns, bins=BARS if np.ptp(returns) > 0 else 1)
    return {
        "file": info.path,
        "sha256": info.digest,
        "rows": info.rows,
        "episodes": info.episodes,
        "terminated": int(ended[ends].sum()),
        "returns": {"mean": float(returns.mean()), "std": float(returns.std()), "min": info.returns[0], "max": info.returns[1]},
        "histogram": [[float(low), float(high), int(count)] for low, high, count in zip(edges, edges[1:], counts, strict=False)],
        "lengths": {"mean": float(lengths.mean()), "min": int(lengths.min()), "max": int(lengths.max())},
        "observation_space": str(info.observation_space),
        "action_space": str(info.action_space),
        "rows_per_second": draw_speed(data),
        "hints": hints(data),
    }


def draw_speed(data: Dataset) -> float:
    """Return how many transitions per second one program draws, in batches of ``BATCH``."""
    replay = dataset_replay(before=1, after=1)

    @jax.jit
    def draws(key: Key, data: Dataset) -> Array:
        def one(total: Array, key: Key) -> tuple[Array, None]:
            state = WithData((), data)
            batch = transitions(replay, state, replay.draw(state, key, BATCH), 0.99)
            leaves = jax.tree.leaves((batch.inputs.obs, batch.next_inputs.obs, batch.reward))
            return total + sum(x.astype(jnp.float32).sum() for x in leaves), None

        return jax.lax.scan(one, jnp.zeros(()), jax.random.split(key, BATCHES))[0]

    jax.block_until_ready(draws(jax.random.key(0), data))  # compiles
    start = time.perf_counter()
    jax.block_until_ready(draws(jax.random.key(1), data))
    return BATCH * BATCHES / (time.perf_counter() - start)


SPARSE = 0.05
"""Largest share of rows whose reward differs from the most frequent one, for rewards that count as sparse."""
SMALL, LARGE = 1e-3, 100.0
"""Standard deviations of rewards outside of these bounds are unusual for the networks and step sizes of this library."""


def hints(data: Dataset) -> list[str]:
    """Return advice on rewards that are hard to learn from as they are."""
    rows = data.rows()
    reward = np.asarray(rows.reward)[np.asarray(rows.valid)]
    values, counts = np.unique(reward, return_counts=True)
    usual, share = float(values[counts.argmax()]), float(1 - counts.max() / len(reward))
    if share == 0:
        return [f"all rewards are {usual:g}: values differ by the lengths of episodes alone"]
    if share < SPARSE and usual == 0:
        return [
            f"rewards are 0 but in {share:.1%} of the rows: learning is often faster from reward − 1 (Kostrikov et al. 2022, on "
            "antmaze), where reaching a reward earlier is worth more"
        ]
    spread = float(reward.std())
    if not SMALL <= spread <= LARGE:
        return [
            f"the standard deviation of rewards is {spread:g}: scale them to about 1. Only IQL does so itself (scale_rewards)"
        ]
    return []


def in_lines(found: dict[str, Any]) -> list[str]:
    """Return the description as lines of text."""
    returns, lengths, most = found["returns"], found["lengths"], max(count for *_, count in found["histogram"])
    cut = found["episodes"] - found["terminated"]
    lines = [
        f"{found['file'] or 'a dataset in memory'}",
        f"rows          {found['rows']:,}",
        f"episodes      {found['episodes']:,}: {found['terminated']:,} terminated, {cut:,} cut off by a limit or by the end",
        f"length        {lengths['mean']:.1f} on average, {lengths['min']:,} to {lengths['max']:,}",
        f"return        {returns['mean']:.1f} ± {returns['std']:.1f}, {returns['min']:.1f} to {returns['max']:.1f}",
    ]
    for low, high, count in found["histogram"]:
        lines.append(f"  {low:10.1f} to {high:10.1f}  {'█' * round(WIDTH * count / most)} {count:,}")
    return [
        *lines,
        f"observations  {found['observation_space']}",
        f"actions       {found['action_space']}",
        f"speed         {found['rows_per_second']:,.0f} transitions/s drawn in batches of {BATCH}",
        f"sha256        {found['sha256']}",
        *(f"hint          {hint}" for hint in found["hints"]),
    ]
