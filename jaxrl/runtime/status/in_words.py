"""Words for the state of a run or a sweep: rows of labels and texts, tables, and a line for logs.

Texts come from files that may be untrusted, so characters that could control a terminal are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl.runtime.console.progress import duration, number, short
from jaxrl.runtime.logs.run_folder import resume_command
from jaxrl.runtime.status.folder_status import AnyStatus, FolderStatus, OneStatus
from jaxrl.runtime.status.process_state import LIVE, WELL
from jaxrl.runtime.status.run_status import Checkpoint, Returns, RunStatus
from jaxrl.runtime.status.search_status import SearchStatus
from jaxrl.runtime.status.sweep_status import WAITING, JobStatus, SweepStatus

RESUMABLE = ("stopped", "failed", "gone")

DAY = 24 * 3600

SHOWN_SEEDS, SHOWN_MESSAGES = 8, 5


class Section(NamedTuple):
    """A table; the first of a report has no columns: its rows are labels and texts."""

    columns: tuple[str, ...] | None
    rows: list[tuple[str, ...]]


class Report(NamedTuple):
    title: str
    progress: float | None
    sections: list[Section]


def report(status: AnyStatus, now: float) -> Report:
    """Return all that is known, for people."""
    if isinstance(status, FolderStatus):
        return _of_folder(status)
    if isinstance(status, SearchStatus):
        return _of_search(status, now)
    return _of_run(status, now) if isinstance(status, RunStatus) else _of_sweep(status, now)


def _of_folder(folder: FolderStatus) -> Report:
    columns = ("run", "algorithm", "environment", "state", "progress", "return", "ETA")
    rows = [
        tuple(map(printable, (os.path.relpath(each.folder, folder.folder), each.algorithm, each.environment, *_summary(each))))
        for each in folder.runs
    ]
    running = sum(each.state == "running" for each in folder.runs)
    title = printable(f"{folder.folder}: {running} of {len(rows)} running")
    problems = Section(None, [("problem", printable(problem)) for problem in folder.problems])
    return Report(title, None, [problems, Section(columns, rows)])


def _summary(status: OneStatus) -> tuple[str, str, str, str]:
    """Return state, progress, return and time to the end."""
    if isinstance(status, RunStatus):
        eta = "–" if status.eta_seconds is None else duration(status.eta_seconds)
        return status.state, _percent(status.progress) or "–", _spread(_latest(status)), eta
    if isinstance(status, SweepStatus):
        return status.state, f"{status.done} of {len(status.jobs)} jobs", "–", "–"
    best = "–" if status.best_score is None else number(status.best_score, status.best_score)
    return status.state, f"{status.ended} of {status.trials} trials", best, "–"


def _of_search(search: SearchStatus, now: float) -> Report:
    last = "" if search.written is None else f"; last sign of life {ago(search.written, now)}"
    best = "" if search.best_score is None else f"{number(search.best_score, search.best_score)} of trial {search.best_trial}"
    rows = [
        ("state", f"{search.state}{_because(search.reason)}{last}"),
        ("trials", f"{search.trials} have begun, {search.ended} have ended, {search.complete} of them trained to the end"),
        ("env steps", f"{search.env_steps:,}"),
        ("best", best),
        *(("problem", problem) for problem in search.problems),
    ]
    title = f"{search.folder}: search of {search.algorithm} · {search.environment}"
    return Report(printable(title), None, [Section(None, [(label, printable(text)) for label, text in rows if text])])


def _of_run(run: RunStatus, now: float) -> Report:
    rows = [
        ("state", state_in_words(run, now)),
        ("progress", progress_in_words(run)),
        ("speed", speed_in_words(run)),
        ("returns", returns_in_words(run)),
        ("checkpoint", checkpoint_in_words(run.checkpoint, run.best, now)),
        ("resume", resume_command(run.folder, run.trust) if run.state in RESUMABLE else ""),
        *(("problem", problem) for problem in run.problems),
        *(
            ("" if index else "messages", f"{ago(message.time, now)}: {_last_line(message.text)}")
            for index, message in enumerate(run.messages[-SHOWN_MESSAGES:])
        ),
        *(("" if index else "logs", path) for index, path in enumerate(run.logs)),
    ]
    sections = [Section(None, [(label, printable(text)) for label, text in rows if text])]
    if run.workers:
        columns = ("worker", "envs", "steps/s", "lag", "restarts", "log")
        sections.append(Section(columns, [_worker_row(number, *worker) for number, worker in enumerate(run.workers)]))
    seeds = f"{len(run.seeds)} seed{'s' * (len(run.seeds) > 1)}"
    if len(run.seeds) <= SHOWN_SEEDS:
        seeds += f" ({', '.join(map(str, run.seeds))})"
    return Report(printable(f"{run.folder}: {run.algorithm} · {run.environment} · {seeds}"), run.progress, sections)


def _worker_row(
    worker: int, rate: float | None, lag: float | None, restarts: int, envs: Sequence[int] | None, log: str | None
) -> tuple[str, ...]:
    first_to_last = " to ".join(map(str, dict.fromkeys(envs or ())))
    rates = ("–" if each is None else short(each) for each in (rate, lag))
    return (str(worker), first_to_last or "–", *rates, str(restarts), printable(log or "–"))


def _of_sweep(sweep: SweepStatus, now: float) -> Report:
    rows = [("state", f"{sweep.state}{_because(sweep.reason)}"), *(("problem", problem) for problem in sweep.problems)]
    for job in sweep.jobs:
        if job.run and job.state not in (*WELL, WAITING):
            rows.append(("job", f"{job.job}: {state_in_words(job.run, now)}"))
    columns = ("job", "state", "progress", "step", "return", "steps/s", "ETA")
    jobs = [_job_row(job) for job in sweep.jobs]
    title = f"{sweep.folder}: sweep of {sweep.algorithm} · {sweep.environment}: {sweep.done} of {len(sweep.jobs)} jobs are done"
    share = [(job.run.progress or 0.0) if job.run else 0.0 for job in sweep.jobs]
    sections = [Section(None, [(label, printable(text)) for label, text in rows]), Section(columns, jobs)]
    return Report(printable(title), sum(share) / len(share) if share else None, sections)


def _job_row(job: JobStatus) -> tuple[str, ...]:
    run = job.run
    if run is None:
        return (printable(job.job), job.state, *["–"] * 5)
    steps = "–" if run.rows is None else f"{run.rows:,}"
    speed = "–" if run.steps_per_second is None or job.state not in LIVE else short(run.steps_per_second)
    eta = "–" if run.eta_seconds is None else duration(run.eta_seconds)
    return (printable(job.job), job.state, _percent(run.progress) or "–", steps, _spread(_latest(run)), speed, eta)


def state_in_words(run: RunStatus, now: float) -> str:
    parts = [f"{run.state}{_because(run.reason)}"]
    if run.diverged and run.state != "diverged":
        parts.append(f"{len(run.diverged)} of {len(run.seeds)} seeds diverged")
    if run.written is not None:
        parts.append(f"{'last written' if run.state in LIVE else 'last sign of life'} {ago(run.written, now)}")
    return "; ".join(parts)


def progress_in_words(run: RunStatus) -> str:
    if run.rows is None:
        return ""
    of = f" of {run.total_steps:,}" if run.total_steps else ""
    steps = f"{run.rows:,}{of} {'updates' if run.offline else 'steps'} per seed"
    iterations = f"iteration {run.iteration:,}" + (f" of {run.iterations:,}" if run.iterations else "")
    after = "" if run.seconds is None else f" after {duration(run.seconds)}"
    return ", ".join(filter(None, [_percent(run.progress), steps, iterations])) + after


def unit_of(run: RunStatus) -> str:
    return "updates" if run.offline else "env steps"


def speed_in_words(run: RunStatus) -> str:
    speed = "" if run.steps_per_second is None else f"{short(run.steps_per_second)} {unit_of(run)}/s"
    eta = "" if run.eta_seconds is None else f"ETA {duration(run.eta_seconds)}"
    return ", ".join(filter(None, [speed, eta]))


def returns_in_words(run: RunStatus) -> str:
    known = {"training": run.training_return, "evaluation": run.evaluation_return}
    return ", ".join(f"{name} {_spread(each)} at step {each.rows:,}" for name, each in known.items() if each)


def checkpoint_in_words(last: Checkpoint | None, best: Checkpoint | None, now: float) -> str:
    if last is None:
        return "none yet"
    said = f"iteration {last.iteration:,}, {ago(last.time, now)}"
    return f"{said}; best policies: iteration {best.iteration:,}" if best else said


def lines(status: AnyStatus) -> list[str]:
    """Return a line for a run, or one for each job and one for the sweep, which change only when they do."""
    if isinstance(status, FolderStatus):
        return [f"{printable(each.folder)}: {line}" for each in status.runs for line in lines(each)]
    if isinstance(status, RunStatus):
        return [_line(status)]
    if isinstance(status, SearchStatus):
        best = "" if status.best_score is None else f"  best {number(status.best_score, status.best_score)}"
        return [f"search: {status.state}  {status.ended} of {status.trials} trials have ended{best}"]
    of_sweep = f"sweep: {status.state}  {status.done} of {len(status.jobs)} jobs are done"
    return [*(f"{printable(job.job)}: {_line(job.run) if job.run else job.state}" for job in status.jobs), of_sweep]


def _line(run: RunStatus) -> str:
    of = f"/{run.total_steps:,}" if run.total_steps else ""
    parts = [
        run.state,
        "" if run.rows is None else f"step {run.rows:,}{of}",
        f"return {_spread(run.training_return)}" if run.training_return else "",
        f"evaluation {_spread(run.evaluation_return)}" if run.evaluation_return else "",
        f"{short(run.steps_per_second)} {unit_of(run)}/s" if run.steps_per_second is not None and run.state in LIVE else "",
        f"{sum(worker.restarts for worker in run.workers)} restarts" if run.workers else "",
        "" if run.state in LIVE else run.reason,
    ]
    return "  ".join(map(printable, filter(None, parts)))


def ago(time: float, now: float) -> str:
    """Return how long ago a time was. Clocks of two machines differ, so it is never negative."""
    seconds = round(max(0.0, now - time))
    if seconds >= 2 * DAY:
        return f"{seconds // DAY} days ago"
    return f"{seconds} s ago" if seconds < 60 else f"{duration(seconds)} ago"


def printable(text: str) -> str:
    """Replace line breaks by spaces, and other characters that a terminal may obey by question marks."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _latest(run: RunStatus) -> Returns | None:
    """Return the later of the returns in training and in evaluations; of the same record, those of evaluations."""
    known = [returns for returns in (run.evaluation_return, run.training_return) if returns]
    return max(known, key=lambda returns: returns.rows, default=None)


def _spread(returns: Returns | None) -> str:
    if returns is None:
        return "–"
    size = max(abs(returns.mean), returns.std)
    mean = number(returns.mean, size)
    return mean if returns.seeds == 1 else f"{mean} ± {number(returns.std, size)}"
