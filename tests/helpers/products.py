"""Folders of a product's evolution: rewards in its log, and its present parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime.evolution.folder import EvolutionFolder


def log(folder: Path, lines: list[Any], name: str = "a") -> None:
    """Append records, or lines as they are, to a log of the folder."""
    with open(folder / "logs" / f"{name}.jsonl", "a") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def theta(folder: Path) -> np.ndarray:
    """Return the present parameters."""
    run = EvolutionFolder.open(folder)
    return run.theta(run.state()["version"])
