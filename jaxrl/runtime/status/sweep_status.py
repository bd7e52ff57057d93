"""``SweepStatus``: the jobs of a sweep and their states, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxrl.runtime.logs.live_status import StatusFile, read_status_file
from jaxrl.runtime.logs.run_folder import CONFIG, STATUS, damaged
from jaxrl.runtime.search.sweep import JOBS, MANIFEST, job_folder
from jaxrl.runtime.status.process_state import judge
from jaxrl.runtime.status.run_status import RunStatus, noting, read_run_status
from jaxrl.runtime.system.disk import parse_json, read_end

MAX_BYTES = 2**22
WAITING = "waiting"


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A job, and the state of its run; None before it begins."""

    job: str
    state: str
    """State of its run, or ``WAITING``."""
    run: RunStatus | None


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """State of a sweep. The fields are the keys of ``jaxrl status --json``."""

    kind: str = "sweep"
    folder: str
    state: str
    reason: str
    algorithm: str
    environment: str
    done: int
    """Number of jobs that are done."""
    jobs: list[JobStatus]
    written: float | None = None
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        jobs = [{"job": each.job, "state": each.state, "run": each.run and each.run.as_json()} for each in self.jobs]
        return vars(self) | {"jobs": jobs}


def read_sweep_status(folder: Path, shown: str, now: float) -> SweepStatus:
    """Read the state of the sweep in a folder; arguments as for ``read_run_status``. Raise ValueError if ``sweep.json`` is
    damaged."""
    sweep, names, done = _read_manifest(folder, shown)
    live: StatusFile | None = None
    problems: list[str] = []
    with noting(STATUS, problems):
        live = read_status_file(folder / STATUS)
    jobs = [_read_job(folder, shown, name, now, problems) for name in names]
    complete = "all its jobs are done" * (set(names) <= set(done))
    found = judge(live, complete=complete, is_new=False, changed=None, now=now)
    return SweepStatus(
        folder=shown,
        state=found.state,
        reason=found.reason,
        algorithm=str(sweep.get("algorithm")),
        environment=str(sweep.get("env")),
        done=len(set(names) & set(done)),
        jobs=jobs,
        written=max(filter(None, [found.written, *(each.run.written for each in jobs if each.run)]), default=None),
        problems=problems,
    )


def _read_manifest(folder: Path, shown: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the contents of ``sweep.json``: settings, names of jobs, names of finished jobs."""
    try:
        body = parse_json(read_end(folder / MANIFEST, MAX_BYTES))
        sweep, done = body["sweep"], body["done"]
        names = body.get("jobs") or _found(folder, done)  # jaxrl 0.2 listed finished jobs only
        if not (isinstance(sweep, dict) and all(map(_is_name, [*names, *done]))):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(shown, MANIFEST) from None
    return sweep, names, done


def _found(folder: Path, done: list[str]) -> list[str]:
    """Return the names of the jobs that are done, and the folders of the others that have begun."""
    known = {job_folder(folder, name).name for name in done}
    begun = [path.parent.name for path in sorted((folder / JOBS).glob(f"*/{CONFIG}"))]
    return [*done, *(name for name in begun if name not in known)]


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isprintable() and name not in ("", ".", "..")


def _read_job(folder: Path, shown: str, name: str, now: float, problems: list[str]) -> JobStatus:
    path = job_folder(folder, name)
    try:
        run = read_run_status(path, str(job_folder(Path(shown), name)), now)
    except FileNotFoundError:
        return JobStatus(job=name, state=WAITING, run=None)
    except (OSError, ValueError) as error:
        problems.append(str(error))
        return JobStatus(job=name, state="unknown", run=None)
    return JobStatus(job=name, state=run.state, run=run)
