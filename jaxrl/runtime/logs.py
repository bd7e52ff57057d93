"""What a run leaves behind: its history in memory, and ``config.json`` and ``progress.csv`` in its folder."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from jaxrl.runtime.devices import usable_cores
from jaxrl.runtime.manifest import installed_versions
from jaxrl.types import Max, Mean, Metrics, Min, PyTree

CONFIG, PROGRESS, CURVE, CHECKPOINTS = "config.json", "progress.csv", "learning_curve.png", "checkpoints"
EVALUATION_RETURN, EVALUATION_LENGTH = "evaluation/episodic_return", "evaluation/episodic_length"
TRAINING_RETURN = "charts/episodic_return"
FIRST_COLUMNS = ("seed", "iteration", "total_steps", "env_steps", "seconds", "sps")

Record = dict[str, Any]
"""One chunk: scalars of the whole run, and arrays [num_seeds]; NaN where nothing was counted."""


def close_per_seed(metrics: Metrics) -> dict[str, np.ndarray]:
    """Metrics [num_seeds] as numbers, f64[num_seeds]; NaN where nothing was counted, or nothing finite."""

    def close(metric: Mean | Min | Max) -> np.ndarray:
        if isinstance(metric, Mean):
            total, count = np.asarray(metric.sum, np.float64), np.asarray(metric.count, np.float64)
            value = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
        else:
            value = np.asarray(metric.value, np.float64)
        return np.where(np.isfinite(value), value, np.nan)

    return {name: close(metric) for name, metric in metrics.items()}


def diverged_seeds(metrics: Metrics) -> np.ndarray:
    """bool[num_seeds]: seeds of which some loss is no longer a finite number."""
    losses = [metric for name, metric in metrics.items() if name.startswith("losses/") and isinstance(metric, Mean)]
    broken = np.zeros(np.shape(jax.tree.leaves(metrics)[0]), bool)
    return np.any([broken, *(~np.isfinite(np.asarray(metric.sum)) for metric in losses)], axis=0)


def env_steps(metrics: Metrics, num_rows: int) -> np.ndarray:
    """i64[num_seeds]: the valid rows among ``num_rows``; all of them for a rule that does not count."""
    if (counted := metrics.get("charts/valid_rows")) is not None and isinstance(counted, Mean):
        return np.rint(np.asarray(counted.sum, np.float64)).astype(np.int64)
    return np.full(np.shape(jax.tree.leaves(metrics)[0]), num_rows)


class History:
    """Records of all chunks, given out as arrays."""

    def __init__(self) -> None:
        self._records: list[Record] = []

    def append(self, record: Record) -> None:
        self._records.append(record)

    def __len__(self) -> int:
        return len(self._records)

    def arrays(self) -> dict[str, np.ndarray]:
        """``{key: [num_chunks] or [num_chunks, num_seeds]}``."""
        keys = self._records[0] if self._records else {}
        return {key: np.stack([np.asarray(record[key]) for record in self._records]) for key in keys}


def write_rows(file: TextIO, record: Record, seeds: Sequence[int], columns: Sequence[str]) -> None:
    """One row per seed; blank where there is no number. On the disk when it returns, as far as Python can tell."""
    writer = csv.writer(file)
    for row, seed in enumerate(seeds):
        values = [np.asarray(seed if key == "seed" else record[key]) for key in columns]
        writer.writerow([_cell(x[row] if x.ndim else x) for x in values])
    file.flush()


def _cell(value: Any) -> str:
    number = float(value)
    if not np.isfinite(number):
        return ""
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else f"{number:.9g}"


# ---------------------------------------------------------------------------------------------------------------------- folder


def new_folder(out: str | os.PathLike[str]) -> Path:
    """The run's folder, made; it must not hold anything yet.

    Raises:
      FileExistsError: there are files in it already.
      OSError: it cannot be made or written to.
    """
    folder = Path(out).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileExistsError(f"out={os.fspath(out)!r} is not empty: name another folder, or delete this one first")
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if error.strerror is None:
            raise
        reason = (
            "it, or a folder above it, is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        )
        raise OSError(f"out={os.fspath(out)!r} cannot be written to: {reason}. Name a folder that can") from None
    return folder


def plain(data: Any) -> Any:
    """``data`` as JSON can hold it: NumPy and JAX numbers become Python's, and NaN does not occur."""
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, np.generic | np.ndarray | jax.Array):
        return np.asarray(data).tolist()
    return data


class RunFiles:
    """The files of a run. Nothing is written before the first record, so that a run that cannot start leaves its folder empty."""

    def __init__(self, folder: Path, spec: Mapping[str, Any], run: Mapping[str, Any], devices: Sequence[jax.Device]) -> None:
        self._folder, self._spec, self._run = folder, plain(spec), plain(run)
        self._devices = devices
        self._csv: TextIO | None = None
        self._columns: list[str] = []

    @property
    def shown_folder(self) -> Path:
        """Relative to the current folder, if it is in there."""
        here = Path.cwd()
        return self._folder.relative_to(here) if self._folder.is_relative_to(here) else self._folder

    def log(self, record: Record) -> None:
        """One row of ``progress.csv`` per seed."""
        if self._csv is None:
            config = {
                "agent": self._spec,
                "run": self._run,
                "versions": installed_versions(),
                "hardware": hardware(self._devices),
            }
            (self._folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            self._columns = [*FIRST_COLUMNS, *(key for key in record if key not in FIRST_COLUMNS)]
            self._csv = open(self._folder / PROGRESS, "w", newline="", encoding="utf-8")  # noqa: SIM115 - closed by close()
            csv.writer(self._csv).writerow(self._columns)
        write_rows(self._csv, record, self._run["seeds"], self._columns)

    def finish(self, states: PyTree, step: int, history: Mapping[str, np.ndarray], *, title: str, subtitle: str) -> None:
        """The checkpoint, ``step`` counting iterations, and the learning curve."""
        from jaxrl.runtime.checkpoint import save
        from jaxrl.runtime.plots import learning_curve

        save(self._folder / CHECKPOINTS, states, step, spec=self._spec)
        learning_curve(history, self._folder / CURVE, title=title, subtitle=subtitle)

    def close(self) -> None:
        if self._csv:
            self._csv.close()


def hardware(devices: Sequence[jax.Device]) -> dict[str, Any]:
    return {
        "platform": devices[0].platform,
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in devices],
        "cores": usable_cores(),
        "machine": platform.machine(),
        "system": platform.system(),
    }
