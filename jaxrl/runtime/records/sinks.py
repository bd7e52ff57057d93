"""Where the records of a run go: ``progress.csv``, ``records.jsonl``, TensorBoard, Weights & Biases.

``records.jsonl`` is the exact one (a line per chunk, with every digit): a resumed run reads it back and writes the others anew up
to its checkpoint, so that each row appears once.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxrl.runtime.records.folder import PROGRESS, RECORDS, TENSORBOARD, plain, without_nan
from jaxrl.runtime.records.record import EVALUATION_RETURN, FIRST_COLUMNS, TRAINING_RETURN, Record
from jaxrl.runtime.records.written import check_record, per_seed_shapes
from jaxrl.runtime.system.disk import parse_json, read_regular, write_atomically
from jaxrl.runtime.system.warn import warn

MAX_SEEDS_SHOWN = 16
"""TensorBoard draws every seed up to this number, and only their mean beyond."""

SECONDS_UNSEEN = 10.0
"""TensorBoard sees what is older than this."""

RENAMED = {"sps": "charts/SPS", "env_steps": "charts/env_steps", "seconds": "charts/seconds", "diverged": "charts/diverged"}
"""Log keys of TensorBoard and W&B, CleanRL's, where they differ from the columns of the files."""

NOT_DRAWN = ("iteration", "rows")


class Sink(Protocol):
    """One place for records."""

    def log(self, record: Record) -> None: ...

    def flush(self) -> None:
        """Everything so far is on the disk when it returns."""
        ...

    def close(self) -> None: ...


class BestEffort:
    """A sink that a run can do without: where it cannot be written to, that is said once, and the run goes on."""

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        """``name``: of its file or folder."""
        self._name = name
        self._sink: Sink | None = None
        with best_effort(name):
            self._sink = make()

    def log(self, record: Record) -> None:
        self._attempt("log", record)

    def flush(self) -> None:
        self._attempt("flush")

    def close(self) -> None:
        if self._sink:
            with contextlib.suppress(OSError):  # what was flushed is there, and what was not has been told of
                self._sink.close()

    def _attempt(self, method: str, *args: Any) -> None:
        if (sink := self._sink) is not None:
            self._sink = None
            with best_effort(self._name):
                getattr(sink, method)(*args)
                self._sink = sink


@contextlib.contextmanager
def best_effort(name: str) -> Iterator[None]:
    """Where a file that only shows what the records hold cannot be written, warn."""
    try:
        yield
    except OSError as error:
        warn(f"{name} cannot be written ({error.strerror or error}), and is left out; {RECORDS} has all that it would show")


# ----------------------------------------------------------------------------------------------------------------------- files


class _File:
    """A text file that grows by whole lines."""

    def __init__(self, path: Path, text: str) -> None:
        write_atomically(path, text)
        self._file = path.open("a", newline="", encoding="utf-8")

    def append(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class JsonLines:
    """``records.jsonl``."""

    def __init__(self, folder: Path, records: Sequence[Record]) -> None:
        self._file = _File(folder / RECORDS, "".join(_json_line(record) for record in records))
        self.flush, self.close = self._file.flush, self._file.close

    def log(self, record: Record) -> None:
        self._file.append(_json_line(record))


def _json_line(record: Record) -> str:
    return json.dumps(without_nan(plain(record))) + "\n"


def read_records(folder: Path, last_iteration: int, num_seeds: int | None = None) -> list[Record]:
    """The records up to an iteration. A last line that was cut short does not count.

    Args:
      num_seeds: of the run, if that is known.

    Raises:
      ValueError: a line before that is damaged, or of another run.
    """
    path, records = folder / RECORDS, []
    if not os.path.lexists(path):
        return []
    shapes = {} if num_seeds is None else per_seed_shapes(num_seeds)
    lines = read_regular(path).split(b"\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is not whole
        try:
            record = check_record(parse_json(line), shapes)
        except ValueError as error:
            reason = "" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else f" ({error})"
            raise ValueError(
                f"{path}, line {number} is damaged{reason}. Put the file back from a copy, or move it away: the run then resumes "
                "with logs that begin at its checkpoint"
            ) from None
        if record["iteration"] > last_iteration:
            break
        records.append(record)
    return records


class Csv:
    """``progress.csv``: one row per chunk and seed. A record with keys that are new adds columns."""

    def __init__(self, folder: Path, seeds: Sequence[int], records: Sequence[Record]) -> None:
        self._path, self._seeds, self._records = folder / PROGRESS, seeds, list(records)
        self._file: _File | None = None
        self._columns: list[str] = []
        if self._records:
            self._begin()

    def log(self, record: Record) -> None:
        self._records.append(record)
        if self._file is None or not set(record) <= set(self._columns):
            self._begin()
        else:
            self._file.append(self._rows(record))

    def flush(self) -> None:
        if self._file:
            self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _begin(self) -> None:
        """Write everything anew, under a header that names every key so far."""
        self.close()
        keys = dict.fromkeys(key for record in self._records for key in record)
        self._columns = [*FIRST_COLUMNS, *(key for key in keys if key not in FIRST_COLUMNS)]
        header = ",".join(self._columns) + "\r\n"
        self._file = _File(self._path, header + "".join(self._rows(record) for record in self._records))

    def _rows(self, record: Record) -> str:
        text = io.StringIO()
        writer = csv.writer(text)
        for row, seed in enumerate(self._seeds):
            values = [np.asarray(seed if key == "seed" else record.get(key, np.nan)) for key in self._columns]
            writer.writerow([_cell(x[row] if x.ndim else x) for x in values])
        return text.getvalue()


def _cell(value: Any) -> str:
    number = float(value)
    if not np.isfinite(number):
        return ""
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else f"{number:.9g}"


# ---------------------------------------------------------------------------------------------------------------------- services


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
    """Event files under ``tensorboard/``: the mean over seeds, each of up to 16 seeds, and histograms of returns over seeds.

    They are written in the caller's thread. tensorboardX's SummaryWriter does it in one of its own, which ends without a word
    when the disk is full, and then its queue blocks whoever logs.
    """

    def __init__(self, folder: Path, seeds: Sequence[int], records: Sequence[Record]) -> None:
        last = records[-1]["rows"] if records else None
        writers = [_event_writer(folder / TENSORBOARD / name, last) for name in ("mean", *member_names(seeds))]
        self._mean, *self._each = writers
        self._num_seeds = len(seeds)
        self._flushed = time.monotonic()

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
