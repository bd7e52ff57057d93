"""Where the records of a run are drawn while it goes on: TensorBoard, Weights & Biases."""

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
"""TensorBoard draws every seed up to this number, and only their mean beyond."""

SECONDS_UNSEEN = 10.0
"""TensorBoard sees what is older than this."""

RENAMED = {"sps": "charts/SPS", "env_steps": "charts/env_steps", "seconds": "charts/seconds", "diverged": "charts/diverged"}
"""Log keys of TensorBoard and W&B, CleanRL's, where they differ from the columns of the files."""

NOT_DRAWN = ("iteration", "rows")


def scalars(record: Record) -> dict[str, np.ndarray]:
    """What is drawn over ``rows``: key -> f64[num_seeds] or f64[], NaN for what is not finite, without what is all NaN."""
    drawn = {RENAMED.get(key, key): np.asarray(value, np.float64) for key, value in record.items() if key not in NOT_DRAWN}
    drawn = {key: np.where(np.isfinite(value), value, np.nan) for key, value in drawn.items()}
    return {key: value for key, value in drawn.items() if not np.isnan(value).all()}


def member_names(seeds: Sequence[int]) -> list[str]:
    """What the members of a run are called where each is drawn for itself; none where they are too many, or one."""
    if not 1 < len(seeds) <= MAX_SEEDS_SHOWN:
        return []
    if len(set(seeds)) == len(seeds):
        return [f"seed_{seed}" for seed in seeds]
    return [f"member_{row}_seed_{seed}" for row, seed in enumerate(seeds)]


class TensorBoard:
    """Event files under ``tensorboard/``: the mean over seeds, each of up to 16 seeds, histograms of returns over seeds, and the
    settings for its table of hyperparameters.

    They are written in the caller's thread. tensorboardX's SummaryWriter does it in one of its own, which ends without a word
    when the disk is full, and then its queue blocks whoever logs.
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
        """A row of the table of hyperparameters for the mean, or for each member where they differ in more than the seed."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import hparams

        shared = dict(set.intersection(*(set(each.items()) for each in settings))) if settings else {}
        differ = any(dict(each) != shared for each in settings)
        rows = zip(self._each, settings, strict=True) if differ and self._each else [(self._mean, shared)]
        for writer, row in rows:
            # Without the summary of a whole experiment: TensorBoard would take the columns of the first run for those of all.
            _, start, _ = hparams({name: _typed(text) for name, text in sorted(row.items())}, {})
            writer.write_event(Event(wall_time=time.time(), step=0, summary=start))

    def log(self, record: Record) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import histogram

        def scalar_values(values: Mapping[str, float]) -> list[Any]:
            return [Summary.Value(tag=key, simple_value=x) for key, x in values.items() if not np.isnan(x)]

        def write(writer: Any, values: Sequence[Any]) -> None:  # one event for all: one for each takes ten times as long
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
    """A setting as a number or a switch, where it is one: TensorBoard then has axes and filters for it."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def _event_writer(folder: Path, last_step: int | None) -> Any:
    """A new event file. TensorBoard drops what an earlier process wrote beyond ``last_step``."""
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}.{last_step or 0}")
    if last_step is not None:
        writer.write_event(Event(wall_time=time.time(), step=int(last_step) + 1, session_log=SessionLog(status=SessionLog.START)))
    return writer


class WeightsAndBiases:
    """One W&B run, continued after a resume: the mean over seeds, and each of up to 16 seeds."""

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any], seeds: Sequence[int]) -> None:
        wandb = import_wandb()
        self._names = member_names(seeds)
        try:
            self._run = wandb.init(
                project=project,
                id=run_id(folder),
                name=folder.name,
                dir=str(folder),
                config=dict(config),
                resume="allow",
            )
        except Exception as error:  # wandb raises errors of its own, and the network's
            raise OSError(
                f"wandb={project!r}: W&B could not start ({' '.join(str(error).split())[:200]}). Log in with `wandb login`, or "
                "set WANDB_MODE=offline to keep its files here and send them later with `wandb sync`"
            ) from error
        self._run.define_metric("*", step_metric="rows")

    def log(self, record: Record) -> None:
        if int(record["rows"]) < self._run.step:  # W&B has it from before a kill, and cannot be cut back
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
    """W&B's module, or an error that says how to get it."""
    try:
        import wandb
    except ImportError:
        raise ImportError('wandb=… needs the package wandb: pip install "jaxrl[wandb]", or leave wandb out') from None
    return wandb


def run_id(folder: Path) -> str:
    """W&B's name for the run in this folder: the same after a resume."""
    path = folder / "wandb-id.txt"
    if not path.exists():
        write_atomically(path, os.urandom(6).hex())
    return read_regular(path).decode().strip()
