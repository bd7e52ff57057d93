"""Sweeps: a grid over settings and seeds, read from a file, run as few programs as possible, resumable.

Hyperparameters are data: all their combinations, times seeds, train in one program. Structural settings (sizes and switches)
need one program per combination: each combination is a job, a run in its own process with its own checkpoints and logs.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.algorithms.presets import words
from jaxrl.interpreter import python_command
from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.logs.live_status import live_status
from jaxrl.runtime.logs.run_folder import contents, damaged, plain
from jaxrl.runtime.search.settings_file import (
    check_algorithm,
    check_data_of,
    check_structure,
    checked_env,
    checked_setting,
    grid_names,
    read_toml,
    refuse_unknown,
    with_flat_names,
)
from jaxrl.runtime.search.sweep_on_ray import RayJobs, file_name, run_jobs_on_ray
from jaxrl.runtime.system.disk import parse_json, read_regular, savable, write_atomically
from jaxrl.runtime.training_loop.signals import SIGNALS, Interrupted, handled
from jaxrl.settings.options import dotted_names
from jaxrl.settings.validation import check_count, check_seeds, check_switches

MANIFEST, JOBS = "sweep.json", "jobs"


@dataclass(frozen=True)
class SweepFile:
    """Contents of a sweep file (TOML)."""

    algorithm: str
    env: str
    total_steps: int
    seeds: Any = 1
    """A number of seeds, or a list."""
    eval_episodes: int = 128
    eval_explore: bool = False
    data: str | None = None
    """Dataset to learn from in place of rollouts, as ``jaxrl.load_dataset`` reads it."""
    settings: Mapping[str, Any] = ()  # type: ignore[assignment]
    """Settings of the algorithm that all jobs share."""
    grid: Mapping[str, Sequence[Any]] = ()  # type: ignore[assignment]
    """Setting -> values to try; the sweep runs all combinations."""


class SweepJob(NamedTuple):
    """One program: a combination of structural settings, with every combination of hyperparameters for every seed."""

    name: str
    settings: dict[str, Any]
    members: list[dict[str, float]]
    """Combinations of hyperparameters."""


def read_sweep(path: str | os.PathLike[str], import_rule: Callable[[str], None] = lambda algorithm: None) -> SweepFile:
    """Read and check a sweep file. ``import_rule`` is called with the name of the algorithm, to register a custom one."""
    shown, entries = os.fspath(path), read_toml(path, "sweep")
    refuse_unknown(shown, entries, [field.name for field in fields(SweepFile)])
    check_algorithm(shown, entries, ("algorithm", "env", "total_steps", "grid"), import_rule)
    structural, data = grid_names(entries["algorithm"])
    entries["grid"] = with_flat_names(entries["algorithm"], entries["grid"])
    for table in ("settings", "grid"):
        refuse_unknown(f"{shown}, [{table}]", entries.get(table, {}), [*structural, *data])
    if in_both := set(entries.get("settings", {})) & set(entries["grid"]):
        raise ValueError(f"{shown}: {sorted(in_both)[0]} is in [settings] and in [grid]: keep it in only one of them")
    for name, values in entries["grid"].items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{shown}, [grid]: {name} = {values!r} must be a list of values, such as [1, 2]")
    try:
        return _checked(SweepFile(**{"settings": {}, **entries}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{shown}: {error}") from error


def _checked(sweep: SweepFile) -> SweepFile:
    """Return the sweep with whole numbers as integers, after checking that every combination can be built in any environment."""
    from jaxrl.runtime.training_loop.members import check_members

    algorithm = sweep.algorithm
    config = ALGORITHMS[algorithm].load().config
    settings = {name: checked_setting(algorithm, name, setting) for name, setting in sweep.settings.items()}
    grid = {name: [checked_setting(algorithm, name, each) for each in values] for name, values in sweep.grid.items()}
    for name, values in grid.items():
        if repeated := [each for each in values if values.count(each) > 1]:
            raise ValueError(f"[grid] {name} = {values!r} holds {repeated[0]!r} twice")
    check_members(check_seeds(sweep.seeds))
    check_switches(eval_explore=sweep.eval_explore)
    checked_env(sweep.env)
    check_data_of(sweep.algorithm, sweep.data)
    total_steps, episodes = check_count("total_steps", sweep.total_steps), check_count("eval_episodes", sweep.eval_episodes)
    plain = replace(sweep, total_steps=total_steps, eval_episodes=episodes, settings=settings, grid=grid)
    for job in expand(plain):
        dotted = [{name: each} for name, values in grid.items() if name in dotted_names(config) for each in values]
        try:
            for field in [{}, *(each for each in dotted if not each.keys() & job.settings.keys())]:
                check_structure(algorithm, {**settings, **job.settings, **field}, with_data=bool(sweep.data))
        except (TypeError, ValueError) as error:
            raise ValueError(f"job {job.name!r} cannot be built: {error}") from error
    return plain


def expand(sweep: SweepFile) -> list[SweepJob]:
    """Return the jobs of a sweep."""
    structural, data = grid_names(sweep.algorithm)

    def combinations(names: Collection[str]) -> list[dict[str, Any]]:
        chosen = [name for name in sweep.grid if name in names]
        return [dict(zip(chosen, values, strict=True)) for values in itertools.product(*(sweep.grid[name] for name in chosen))]

    members = [{data[name]: value for name, value in member.items()} for member in combinations(data)]
    return [
        SweepJob(" ".join(f"{name}={in_a_word(value)}" for name, value in settings.items()) or "all", settings, members)
        for settings in combinations(structural)
    ]


def in_a_word(value: Any) -> str:
    """Format a value of the grid for names and tables; a network as its arguments."""
    return (",".join(words(value)) or "default") if isinstance(value, Mapping) else str(value)


class Manifest:
    """Lists of all jobs and of finished jobs in ``sweep.json``, rewritten after each job. It refuses a folder that holds
    something else."""

    def __init__(self, folder: Path, sweep: SweepFile) -> None:
        savable(folder, "out")
        self.folder, self.path = folder, folder / MANIFEST
        self.sweep = plain({field.name: getattr(sweep, field.name) for field in fields(SweepFile)})
        self.jobs, self.done = [job.name for job in expand(sweep)], list[str]()
        if self.path.exists():
            older = {"eval_explore": False, "data": None}  # manifests from before these entries
            try:
                found = parse_json(read_regular(self.path))
                recorded, self.done = {**older, **found["sweep"]}, [*found["done"]]
            except (ValueError, KeyError, TypeError):
                raise damaged(str(folder), MANIFEST) from None
            has_begun = bool(self.done) or (folder / JOBS).exists()  # a file corrected before anything ran is accepted
            if recorded != self.sweep and has_begun:
                raise FileExistsError(f"out={str(folder)!r} holds another sweep: name another folder, or use that sweep's file")
        elif folder.exists() and contents(folder, MANIFEST):
            raise FileExistsError(f"out={str(folder)!r} is not empty, and holds no sweep: name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.write()

    def finish(self, name: str) -> None:
        self.done.append(name)
        self.write()

    def write(self) -> None:
        write_atomically(self.path, json.dumps({"sweep": self.sweep, "jobs": self.jobs, "done": self.done}, indent=2) + "\n")


def job_folder(folder: Path, name: str) -> Path:
    """Return the folder of a job, by its name."""
    return folder / JOBS / file_name(name)


def run_sweep(
    sweep: SweepFile, out: Path, *, trust: Sequence[str] = (), say: Callable[[str], None], on_ray: RayJobs | None = None
) -> list[SweepJob]:
    """Run the unfinished jobs: one after the other, each in a process that uses all devices, or several at once on Ray.

    Args:
      trust: packages whose ``module:function`` the environment may be.
      say: called with one line per event.
      on_ray: settings of a sweep on Ray.

    Raises:
      ChildProcessError: a job failed; finished jobs stay finished.
      Interrupted: Ctrl-C, SIGTERM or SIGHUP. The jobs saved their states, and the same call resumes the sweep.
      FileNotFoundError, NotEnough: see ``run_jobs_on_ray``.
    """
    jobs, manifest = expand(sweep), Manifest(out, sweep)
    with live_status(out):
        if on_ray is None:
            _run_jobs(jobs, manifest, out, trust, say)
        elif left := [job.name for job in jobs if job.name not in manifest.done]:
            if len(left) < len(jobs):
                say(f"{len(jobs) - len(left)} of {len(jobs)} jobs were done before")
            run_jobs_on_ray(left, manifest.finish, out, trust, say, on_ray)
    return jobs


def _run_jobs(jobs: Sequence[SweepJob], manifest: Manifest, out: Path, trust: Sequence[str], say: Callable[[str], None]) -> None:
    for place, job in enumerate(jobs, 1):
        title = f"job {place} of {len(jobs)}: {job.name}"
        if job.name in manifest.done:
            say(f"{title}: done before")
            continue
        say(title)
        code, number = run_job(python_command("jaxrl.runtime.cli.sweep_job", str(out), job.name, *trust))
        if not code:
            manifest.finish(job.name)
        if number:
            raise Interrupted(number=number)
        if code:
            raise ChildProcessError(
                f"{title} failed with exit code {code}; see the message above. Fix this and repeat the same command"
            )


WATCHES_INPUT = "JAXRL_JOB_WATCHES_INPUT"
"""Environment variable of a job whose standard input is held open by the process that started it."""


def stop_with_parent() -> None:
    """Let this process stop and save, as on SIGTERM, when its standard input ends, if ``run_job`` started it."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if os.environ.pop(WATCHES_INPUT, None):
        threading.Thread(target=watch, daemon=True).start()


def run_job(command: Sequence[str]) -> tuple[int, int]:
    """Run a process and wait until it ends by itself. Signals are forwarded to it, since it has to save before it exits. If this
    process is killed, its standard input ends; see ``stop_with_parent``.

    Return its exit code as a shell reports it (128 and more after a signal), and the signal that stopped either, 0 for none.
    """
    received: list[int] = []

    def forward(number: int, _: Any) -> None:
        received.append(number)
        if process:  # it may get the signal from the terminal or a batch system too, and ignores this echo
            process.send_signal(number)

    process: subprocess.Popen[bytes] | None = None
    with handled(forward):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, WATCHES_INPUT: "1"})
        for number in list(received):  # signals from before the process existed
            process.send_signal(number)
        code = process.wait()
    code = 128 - code if code < 0 else code
    return code, received[0] if received else code - 128 if code - 128 in SIGNALS else 0
