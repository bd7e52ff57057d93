"""A small search, and sessions of it that stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from jaxrl.runtime.search.lanes.divided_lanes import open_lanes
from jaxrl.runtime.search.progress import SearchProgress
from jaxrl.runtime.search.search_file import SearchFile
from jaxrl.runtime.search.session import SearchSession

SEARCH: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "Pendulum-v1",
    "total_steps": 512,
    "seeds": [3, 5],
    "settings": {"num_envs": 2, "rollout_length": 8, "num_epochs": 1, "num_minibatches": 1, "model": {"hidden_sizes": [8]}},
    "space": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}, "gamma": [0.9, 0.99]},
    "search": {"method": "random", "trials": 12, "batch": 4, "rungs": [0.25, 0.5, 1.0], "eval_episodes": 8, "top": 0},
}


def with_options(**options: Any) -> dict[str, Any]:
    return SEARCH | {"search": SEARCH["search"] | options}


def open_session(
    read: SearchFile, folder: Path | None = None, devices: int = 1, stop_at: int | None = None, every: int = 1
) -> SearchSession:
    """Return a session that writes a checkpoint at each ``every``-th boundary, and stops at one."""
    progress = SearchProgress("", 1, quiet=True)

    def open_on_devices(read: SearchFile, structure: Any) -> Any:
        return open_lanes(read, structure, read.options.batch, jax.devices()[:devices])

    session = SearchSession(
        read, folder, progress, lambda: stop_at is not None and session.trials.boundary >= stop_at, open_on_devices
    )
    if folder is not None:
        folder.mkdir(exist_ok=True)

    def save_sometimes() -> None:
        if session.trials.boundary % every == 0 and session.trials.running:
            session._save()

    session._save_if_due = save_sometimes  # type: ignore[method-assign]
    return session
