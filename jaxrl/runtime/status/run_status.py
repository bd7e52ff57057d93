"""``RunStatus``: state and progress of a run, read from its folder. The folder may be untrusted, and change meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.builder.spec import algorithm_name, brief, packages_outside
from jaxrl.runtime.logs.live_status import Message, StatusFile, WorkerState, read_status_file
from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN, Record
from jaxrl.runtime.logs.run_folder import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    CURVE,
    PROGRESS,
    RECORDS,
    STATUS,
    TENSORBOARD,
    WORKERS,
    learns_offline,
    plain,
    read_config,
    without_nan,
)
from jaxrl.runtime.logs.schema import PER_SEED, check_record
from jaxrl.runtime.status.process_state import judge
from jaxrl.runtime.system.disk import parse_json, read_end

MANIFEST = "manifest.json"
"""File that a complete checkpoint has; ``checkpoint.manifest`` has it too, and imports JAX."""

MAX_BYTES, MAX_LINES = 2**23, 400
"""Most bytes and lines at the end of ``records.jsonl`` that are searched for the last returns."""

MAX_TEXT = 200

MAX_STEPS = 10_000
"""Most entries of a folder of checkpoints that are looked at."""

LOGS = (RECORDS, PROGRESS, TENSORBOARD, CURVE, WORKERS)


class Returns(NamedTuple):
    """Returns in the last record that has any, over the seeds that have one."""

    mean: float
    std: float
    seeds: int
    rows: int
    """Rows per seed up to that record."""


class Checkpoint(NamedTuple):
    iteration: int
    time: float


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """State of a run. The fields are the keys of ``jaxrl status --json``; times are seconds since 1970, None is unknown."""

    kind: str = "run"
    folder: str
    state: str
    """One of ``process_state.STATES``."""
    reason: str
    """Why, in words."""
    algorithm: str
    environment: str
    seeds: list[int]
    diverged: list[int]
    """The seeds that diverged."""
    trust: list[str] = field(default_factory=list)
    """Packages that a command which resumes the run names with --trust."""
    offline: bool = False
    """True if it learns from a dataset alone: all steps and rows are then updates."""
    rows: int | None = None
    """Rows per seed so far."""
    total_steps: int | None = None
    """Rows per seed at the end."""
    iteration: int | None = None
    iterations: int | None = None
    """Iterations at the end, warm-up included like in ``iteration``."""
    progress: float | None = None
    """Share of ``total_steps``, 0 to 1."""
    env_steps: int | None = None
    """Valid rows of all seeds so far."""
    seconds: float | None = None
    """Time since the start of the run, without pauses, at the last record."""
    steps_per_second: float | None = None
    """Environment steps of all seeds per second of training, in the last chunk."""
    eta_seconds: float | None = None
    training_return: Returns | None = None
    evaluation_return: Returns | None = None
    checkpoint: Checkpoint | None = None
    best: Checkpoint | None = None
    host: str | None = None
    pid: int | None = None
    begun: float | None = None
    """When the last process began or resumed the run."""
    written: float | None = None
    """Time of the last sign of life."""
    workers: list[WorkerState] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Files that could not be read, and why."""

    def as_json(self) -> dict[str, Any]:
        nested = ("training_return", "evaluation_return", "checkpoint", "best")
        tuples = {name: value and value._asdict() for name in nested for value in [getattr(self, name)]}
        lists = {name: [each._asdict() for each in getattr(self, name)] for name in ("workers", "messages")}
        return without_nan(plain(asdict(self) | tuples | lists))


def read_run_status(folder: Path, shown: str, now: float) -> RunStatus:
    """Read the state of the run in a folder.

    Args:
      shown: path of the folder for display.
      now: the time.

    Raises:
      FileNotFoundError: the folder is not that of a run.
      OSError, ValueError: its ``config.json`` cannot be read.
    """
    if (folder / CONFIG).is_symlink():
        raise ValueError(
            f"{shown!r} cannot be read: {CONFIG} in it is a link, which is not followed. Name the folder it leads to"
        )
    config, problems = read_config(folder), list[str]()
    run, agent, env = config["run"], config["agent"], config["agent"].get("env")
    live: StatusFile | None = None
    with noting(STATUS, problems):
        live = read_status_file(folder / STATUS)
    records = last_records(folder, len(run["seeds"]), problems)
    last = records[0] if records else {}
    total, iterations = _count(run.get("total_steps")), _total_iterations(run)
    checkpoint = _last_step(folder / CHECKPOINTS)
    is_complete = checkpoint is not None and iterations is not None and checkpoint.iteration >= iterations
    complete = "it has a checkpoint of its last iteration" * is_complete
    found = judge(live, complete=complete, is_new=not records, changed=_changed(folder / RECORDS), now=now)
    rows = last.get("rows")
    return RunStatus(
        folder=shown,
        state=found.state,
        reason=found.reason,
        algorithm=_described(lambda: algorithm_name(agent)),
        environment=_described(lambda: env if isinstance(env, str) else brief(env)),
        seeds=run["seeds"],
        diverged=[seed for seed, lost in zip(run["seeds"], last.get("diverged", ()), strict=False) if lost],
        trust=_packages(agent),
        offline=learns_offline(config),
        rows=rows,
        total_steps=total,
        iteration=last.get("iteration"),
        iterations=iterations,
        progress=min(rows / total, 1.0) if rows is not None and total else None,
        env_steps=int(np.sum(last["env_steps"])) if records else None,
        seconds=_number(last.get("seconds")),
        steps_per_second=_number(last.get("sps")),
        eta_seconds=max(0.0, live.eta - now) if live and live.eta is not None and found.state == "running" else None,
        training_return=_last_returns(records, TRAINING_RETURN),
        evaluation_return=_last_returns(records, EVALUATION_RETURN),
        checkpoint=checkpoint,
        best=_last_step(folder / BEST),
        written=found.written,
        **(_of_process(live, shown) if live else {}),
        logs=[os.path.join(shown, name) for name in LOGS if (folder / name).exists()],
        problems=problems,
    )


def _of_process(live: StatusFile, shown: str) -> dict[str, Any]:
    """Return the fields that ``status.json`` provides."""
    workers = [each._replace(log=each.log and os.path.join(shown, each.log)) for each in live.workers]
    return {
        "host": live.process.host,
        "pid": live.process.pid,
        "begun": live.begun,
        "workers": workers,
        "messages": live.messages,
    }


@contextlib.contextmanager
def noting(name: str, problems: list[str]) -> Iterator[None]:
    """Note that a file cannot be read, and why; a file that is absent is not a problem."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        problems.append(f"{name}: {getattr(error, 'strerror', None) or error}")


def last_records(folder: Path, num_seeds: int, problems: list[str]) -> list[Record]:
    """Return the last records, newest first, back to the last evaluation and the last training return."""
    lines: list[bytes] = []
    with noting(RECORDS, problems):
        lines = read_end(folder / RECORDS, MAX_BYTES).split(b"\n")[:-1]  # text after the last newline is incomplete
    records: list[Record] = []
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(PER_SEED, (num_seeds,))
    wanted = {EVALUATION_RETURN, TRAINING_RETURN}
    for line in reversed(lines[-MAX_LINES:]):
        try:
            records.append(check_record(parse_json(line), shapes))
        except ValueError:
            if line is not lines[0]:  # which may begin in the middle
                problems.append(f"{RECORDS}: a line near its end is damaged, and was skipped")
            break
        wanted -= {key for key in wanted if not np.isnan(records[-1].get(key, np.nan)).all()}
        if not wanted:
            break
    return records


def _last_returns(records: Sequence[Record], key: str) -> Returns | None:
    """Return the returns of the last record that has any."""
    for record in records:
        values = np.atleast_1d(np.asarray(record.get(key, np.nan), np.float64))
        values = values[~np.isnan(values)]
        if values.size:
            return Returns(float(values.mean()), float(values.std()), values.size, record["rows"])
    return None


def _last_step(folder: Path) -> Checkpoint | None:
    """Return the last checkpoint in a folder that has a manifest."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, MAX_STEPS)]
        for step in sorted((int(name) for name in names if re.fullmatch(r"0|[1-9]\d{0,18}", name)), reverse=True):
            with contextlib.suppress(OSError):
                return Checkpoint(step, (folder / str(step) / MANIFEST).stat().st_mtime)
    return None


def _total_iterations(run: Mapping[str, Any]) -> int | None:
    parts = _count(run.get("warmup_iterations")), _count(run.get("iterations"))
    return None if parts[1] is None else (parts[0] or 0) + parts[1]


def _number(value: Any) -> float | None:
    return float(value) if np.ndim(value) == 0 and value is not None and np.isfinite(value) else None


def _described(describe: Callable[[], str]) -> str:
    """Return a text about a part of the agent, cut to a reasonable length."""
    try:
        text = describe()
    except RecursionError:
        return "?"
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _packages(agent: Any) -> list[str]:
    try:
        return packages_outside(agent)
    except (RecursionError, TypeError, ValueError):  # it was not written by jaxrl
        return []


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _changed(path: Path) -> float | None:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return None
