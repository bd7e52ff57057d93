"""Run folders written without a run, or as an older version wrote them, for tests of code that reads them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime.checkpoint import manifest
from jaxrl.runtime.logs.files import JsonLines

EVALUATION, TRAINING = "evaluation/episodic_return", "charts/episodic_return"


def write_run(
    folder: Path,
    returns: Any,
    *,
    steps: Sequence[float] = (),
    seeds: Sequence[int] | None = None,
    algorithm: str = "ppo",
    env: Any = "CartPole-v1",
    hyperparams: dict[str, Any] | None = None,
    parts: dict[str, Any] | None = None,
    diverged: Any = None,
    key: str = EVALUATION,
    **settings: Any,
) -> Path:
    """Write a run folder with the files that learning curves need. ``returns``: [chunks, seeds]."""
    returns = np.asarray(returns, np.float64)
    num_chunks, num_seeds = returns.shape
    seeds, steps = list(seeds or range(num_seeds)), list(steps or 100 * np.arange(1, num_chunks + 1))
    agent = {
        "builder": {"import": f"jaxrl.algorithms.{algorithm}:make_{algorithm}"},
        "env": env,
        "settings": {"learning_rate": 0.001, **settings},
        "parts": parts or {},
    }
    folder.mkdir(parents=True)
    config = {"agent": agent, "run": {"seeds": seeds, "hyperparams": hyperparams}}
    (folder / "config.json").write_text(json.dumps(config))
    lost = np.zeros((num_chunks, num_seeds), bool) if diverged is None else np.asarray(diverged)
    records = [
        {
            "iteration": i + 1,
            "rows": int(np.max(steps[i])),
            "env_steps": np.broadcast_to(steps[i], num_seeds),
            "seconds": float(i),
            "sps": 1.0,
            "diverged": lost[i],
            key: returns[i],
        }
        for i in range(num_chunks)
    ]
    JsonLines(folder, records).close()
    return folder


def make_older(step: Path, kinds: Iterable[str] = itertools.repeat("jax")) -> None:
    """Rewrite a checkpoint's manifest in format 1."""
    file = step / manifest.NAME
    body = json.loads(file.read_text())
    structure = [{**leaf, "kind": kind} for leaf, kind in zip(body["structure"], kinds, strict=False)]
    body |= {"format": 1, "structure": structure, "asked": body.pop("request")}
    file.write_bytes(manifest.render(body))
