"""Live trackers of a run: TensorBoard and Weights & Biases."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN, Record
from jaxrl.runtime.logs.run_folder import TENSORBOARD
from jaxrl.runtime.system.disk import read_regular, write_atomically

MAX_SEEDS_SHOWN = 16
"""Maximum number of seeds that are drawn separately; above it, only their mean is drawn."""

SECONDS_UNSEEN = 10.0
"""Seconds after which events are flushed, so that TensorBoard shows them."""

RENAMED = {"sps": "charts/SPS", "env_steps": "charts/env_steps", "seconds": "charts/seconds", "diverged": "charts/diverged"}
"""Log keys of TensorBoard and W&B (those of CleanRL) that differ from the columns of the files."""

NOT_DRAWN = ("iteration", "rows")


def scalars(record: Record) -> dict[str, np.ndarray]:
    """Return the values to draw over ``rows``: key -> f64[num_seeds] or f64[], NaN if not finite; all-NaN keys are omitted."""
    drawn = {RENAMED.get(key, key): np.asarray(value, np.float64) for key, value in record.items() if key not in NOT_DRAWN}
    drawn = {key: np.where(np.isfinite(value), value, np.nan) for key, value in drawn.items()}
    return {key: value for key, value in drawn.items() if not np.isnan(value).all()}


def member_names(seeds: Sequence[int]) -> list[str]:
    """Return names for the members of a run, if each is drawn separately; empty for one member or too many."""
    if not 1 < len(seeds) <= MAX_SEEDS_SHOWN:
        return []
    if len(set(seeds)) == len(seeds):
        return [f"seed_{seed}" for seed in seeds]
    return [f"member_{row}_seed_{seed}" for row, seed in enumerate(seeds)]


class TensorBoard:
    """Event files under ``tensorboard/``: the mean over seeds, each of up to 16 seeds, histograms of returns over seeds, and the
    settings for the table of hyperparameters.

    They are written in the caller's thread. tensorboardX's SummaryWriter uses a separate thread, which ends silently when the
    disk is full; its queue then blocks the caller.
    """

    def __init__(
        self, folder: Path, seeds: Sequence[int], records: Sequence[Record], settings: Sequence[Mapping[str, str]] = ()
    ) -> None:
        """``settings``: of each member, as text."""
        last = records[-1]["rows"] if records else None
        writers = [_event_writer(folder / TENSORBOARD / name, last) for name in ("mean", *member_names(seeds))]
        self._mean, *self._each = writers
        self._num_seeds = len(seeds)
        self._flushed = time.monotonic()
        self._describe(settings)

    def _describe(self, settings: Sequence[Mapping[str, str]]) -> None:
        """Add a row to the table of hyperparameters: for the mean, or for each member if they differ in more than the seed."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import hparams

        shared = dict(set.intersection(*(set(each.items()) for each in settings))) if settings else {}
        differ = any(dict(each) != shared for each in settings)
        rows = zip(self._each, settings, strict=True) if differ and self._each else [(self._mean, shared)]
        for writer, row in rows:
            # The experiment summary is omitted: with it, TensorBoard would use the columns of the first run for all runs.
            _, start, _ = hparams({name: _typed(text) for name, text in sorted(row.items())}, {})
            writer.write_event(Event(wall_time=time.time(), step=0, summary=start))

    def log(self, record: Record) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import histogram

        def scalar_values(values: Mapping[str, float]) -> list[Any]:
            return [Summary.Value(tag=key, simple_value=x) for key, x in values.items() if not np.isnan(x)]

        def write(writer: Any, values: Sequence[Any]) -> None:  # a single event: one per value takes ten times as long
            writer.write_event(Event(wall_time=time.time(), step=int(record["rows"]), summary=Summary(value=values)))

        drawn = scalars(record)
        shown = scalar_values({key: float(np.nanmean(value)) for key, value in drawn.items()})
        for key in (TRAINING_RETURN, EVALUATION_RETURN):
            if key in drawn and self._num_seeds > 1:
                with contextlib.suppress(ValueError), np.errstate(all="ignore"):  # no bins fit between 1e30 and 1e30
                    shown += histogram(f"seeds/{key}", drawn[key][~np.isnan(drawn[key])], bins="auto").value
        write(self._mean, shown)
        for row, writer in enumerate(self._each):
            write(writer, scalar_values({key: float(value[row]) for key, value in drawn.items() if value.ndim}))
        if time.monotonic() - self._flushed > SECONDS_UNSEEN:
            self.flush()

    def flush(self) -> None:
        for writer in (self._mean, *self._each):
            writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        for writer in (self._mean, *self._each):
            writer.close()


def _typed(text: str) -> bool | float | str:
    """Convert a setting to a number or bool if it is one, for which TensorBoard has axes and filters."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def _event_writer(folder: Path, last_step: int | None) -> Any:
    """Create an event file. TensorBoard drops events of earlier processes beyond ``last_step``."""
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}.{last_step or 0}")
    if last_step is not None:
        writer.write_event(Event(wall_time=time.time(), step=int(last_step) + 1, session_log=SessionLog(status=SessionLog.START)))
    return writer


class WeightsAndBiases:
    """A W&B run, continued after a resume, with the mean over seeds and each of up to 16 seeds."""

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any], seeds: Sequence[int]) -> None:
        wandb = import_wandb()
        self._names = member_names(seeds)
        try:
            self._run = wandb.init(
                project=project, id=run_id(folder), name=folder.name, dir=str(folder), config=dict(config), resume="allow"
            )
        except Exception as error:  # wandb raises its own errors and those of the network
            raise OSError(
                f"wandb={project!r}: W&B could not start ({' '.join(str(error).split())[:200]}). Log in with `wandb login`, or "
                "set WANDB_MODE=offline to keep its files here and upload them later with `wandb sync`"
            ) from error
        self._run.define_metric("*", step_metric="rows")

    def log(self, record: Record) -> None:
        if int(record["rows"]) < self._run.step:  # W&B has it from before a kill, and cannot be truncated
            return
        row: dict[str, Any] = {"rows": int(record["rows"])}
        for key, value in scalars(record).items():
            row[key] = float(np.nanmean(value))
            if value.ndim:
                row |= {f"{name}/{key}": float(x) for name, x in zip(self._names, value, strict=False) if not np.isnan(x)}
        self._run.log(row, step=row["rows"])

    def flush(self) -> None: ...

    def close(self) -> None:
        self._run.finish()


def import_wandb() -> Any:
    """Return the module of W&B, or raise ImportError, which says how to install it."""
    try:
        import wandb
    except ImportError:
        raise ImportError('wandb=… needs the package wandb: pip install "jaxrl[wandb]", or leave wandb out') from None
    return wandb


def run_id(folder: Path) -> str:
    """Return the W&B id of the run in this folder, which stays the same after a resume."""
    path = folder / "wandb-id.txt"
    if not path.exists():
        write_atomically(path, os.urandom(6).hex())
    return read_regular(path).decode().strip()
