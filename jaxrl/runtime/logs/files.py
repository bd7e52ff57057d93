"""Files that store the records of a run: ``records.jsonl`` and ``progress.csv``.

``records.jsonl`` is exact (a line per chunk, with all digits): a resumed run reads it and rewrites the other files up to its
checkpoint, so that each row appears once.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from jaxrl.runtime.logs.records import FIRST_COLUMNS, Record
from jaxrl.runtime.logs.run_folder import PROGRESS, RECORDS, plain, without_nan
from jaxrl.runtime.logs.schema import PER_SEED, check_record
from jaxrl.runtime.system.disk import parse_json, read_regular, write_atomically
from jaxrl.runtime.system.warn import warn


class Sink(Protocol):
    """A destination of records."""

    def log(self, record: Record) -> None: ...

    def flush(self) -> None:
        """Write everything so far to disk before returning."""
        ...

    def close(self) -> None: ...


class BestEffort:
    """Wrapper of an optional sink: if its file or folder cannot be written to, it warns once, and the run continues."""

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
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
            with contextlib.suppress(OSError):  # flushed data is safe, and failures to flush were reported
                self._sink.close()

    def _attempt(self, method: str, *args: Any) -> None:
        if (sink := self._sink) is not None:
            self._sink = None
            with best_effort(self._name):
                getattr(sink, method)(*args)
                self._sink = sink


@contextlib.contextmanager
def best_effort(name: str) -> Iterator[None]:
    """Warn instead of failing if a file that only repeats the records cannot be written."""
    try:
        yield
    except OSError as error:
        warn(f"{name} cannot be written ({error.strerror or error}) and is skipped; {RECORDS} has the same data")


def _growing(path: Path, text: str) -> TextIO:
    """Create a file with this text and open it for appending; each line is written at once."""
    write_atomically(path, text)
    return path.open("a", buffering=1, newline="", encoding="utf-8")


class JsonLines:
    """Sink for ``records.jsonl``."""

    def __init__(self, folder: Path, records: Sequence[Record]) -> None:
        self._file = _growing(folder / RECORDS, "".join(map(_json_line, records)))
        self.close = self._file.close

    def log(self, record: Record) -> None:
        self._file.write(_json_line(record))

    def flush(self) -> None:
        os.fsync(self._file.fileno())


def _json_line(record: Record) -> str:
    return json.dumps(without_nan(plain(record))) + "\n"


def read_records(folder: Path, last_iteration: int, num_seeds: int | None = None) -> list[Record]:
    """Read the records up to an iteration, without an incomplete last line; ValueError if one is damaged or of another run."""
    path, records = folder / RECORDS, []
    if not os.path.lexists(path):
        return []
    shapes: dict[str, tuple[int, ...]] = {} if num_seeds is None else dict.fromkeys(PER_SEED, (num_seeds,))
    lines = read_regular(path).split(b"\n")
    for number, line in enumerate(lines[:-1], 1):  # text after the last newline is incomplete
        try:
            data = parse_json(line)
            if isinstance(data, dict) and isinstance(after := data.get("iteration"), int) and after > last_iteration:
                break  # it is cut off, and not read
            record = check_record(data, shapes)
        except ValueError as error:
            reason = "" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else f" ({error})"
            raise ValueError(
                f"{path}, line {number} is damaged{reason}. Restore the file from a copy, or move it away: the run then resumes "
                "with logs that begin at its checkpoint"
            ) from None
        records.append(record)
    return records


class Csv:
    """Sink for ``progress.csv``, with one row per chunk and seed. A record with new keys adds columns."""

    def __init__(self, folder: Path, seeds: Sequence[int], records: Sequence[Record]) -> None:
        self._path, self._seeds, self._records = folder / PROGRESS, seeds, list(records)
        self._begin()

    def log(self, record: Record) -> None:
        self._records.append(record)
        if set(record) <= set(self._columns):
            self._file.write(self._rows(record))
        else:
            self.close()
            self._begin()

    def flush(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _begin(self) -> None:
        """Rewrite the file with a header of all keys so far."""
        self._columns = list(dict.fromkeys(itertools.chain(FIRST_COLUMNS, *self._records)))
        header = ",".join(self._columns) + "\r\n"
        self._file = _growing(self._path, header + "".join(map(self._rows, self._records)))

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
