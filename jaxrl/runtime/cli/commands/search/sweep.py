"""``jaxrl sweep``: run a grid from a file, and write a table and a figure."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TextIO, cast

import numpy as np
import tyro

from jaxrl.builder.spec import brief, check_env_id
from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.cli.flags import Flag, Trust, read_flags
from jaxrl.runtime.cli.user_code import import_algorithm
from jaxrl.runtime.console.streams import screen
from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN, mean_over_seeds
from jaxrl.runtime.search.sweep import SweepFile, SweepJob, expand, in_a_word, job_folder, read_sweep, run_sweep
from jaxrl.runtime.search.sweep_on_ray import RayJobs
from jaxrl.runtime.system.disk import write_atomically
from jaxrl.settings.validation import Range, check_count, check_number

HELP = """\
Run a grid over settings and seeds.

Hyperparameters (learning_rate, gamma, …) are data: all their combinations, with all seeds, train in one program. Structural
settings (num_envs, num_epochs, …) need a program each: their combinations run one after the other, or several at once on a
cluster of Ray, each in a separate process with separate checkpoints. The same command resumes a sweep that was stopped.

A sweep file:

  algorithm = "ppo"
  env = "CartPole-v1"
  total_steps = 100_000
  seeds = 4

  [settings]                       # common to all
  rollout_length = 64

  [grid]
  learning_rate = [3e-4, 1e-3, 3e-3]
  num_envs = [8, 16]
"""


@dataclass(frozen=True)
class SweepOptions:
    file: Annotated[Path, tyro.conf.Positional]
    """The sweep file (TOML)."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: runs/NAME OF THE FILE)")] = None
    """Folder for the jobs, results.csv and results.png."""
    show: Flag = False
    """Only list the jobs, without running them."""
    engine: Literal["local", "ray"] = "local"
    """local: one job after the other, with all devices of this machine. ray: several jobs at once on a cluster of Ray, which the
    environment variable RAY_ADDRESS names, or else one that is started here. All machines must share the folder --out."""
    jobs: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: as many as fit)")] = None
    """With --engine ray: number of jobs at once."""
    cpus: int = 1
    """With --engine ray: CPUs of each job."""
    gpus: float = 0.0
    """With --engine ray: GPUs of each job."""
    insecure: Flag = False
    """With --engine ray: join a cluster that asks for no token, where anyone who reaches it can run programs."""
    trust: Trust = ()
    """Package or module of the file's environment or algorithm ('module:name'), whose code may run. Can be repeated."""


class SweepResult(NamedTuple):
    """Result of one combination of settings."""

    settings: dict[str, Any]
    returns: np.ndarray
    """f64[num_seeds], return at the end of training; NaN for a seed that diverged."""


def main(args: Sequence[str]) -> int:
    options = read_flags(SweepOptions, args, prog="jaxrl sweep", description=HELP, config=(tyro.conf.OmitArgPrefixes,))
    with contextlib.redirect_stdout(cast(TextIO, screen())):
        return run(options)


def run(options: SweepOptions) -> int:
    sweep = read_sweep(options.file, lambda algorithm: import_algorithm(algorithm, options.trust))
    out = options.out or Path("runs") / options.file.stem
    if options.show:
        for job in expand(sweep):
            print(f"{job.name}: {len(job.members)} combinations of hyperparameters in one program")
        return 0
    check_env_id(sweep.env, options.trust)
    jobs = run_sweep(sweep, out, trust=options.trust, say=lambda text: print(text, flush=True), on_ray=ray_jobs(options))
    results = sorted(collect(jobs, out), key=lambda result: -mean_over_seeds(result.returns))
    write_table(results, out / "results.csv")
    draw(results, sweep, out / "results.png")
    show(results)
    print(f"results in {out / 'results.csv'} and {out / 'results.png'}")
    return 0


def ray_jobs(options: SweepOptions) -> RayJobs | None:
    """Return the settings of a sweep on Ray; None for one on this machine."""
    if options.engine == "local":
        if (options.jobs, options.cpus, options.gpus, options.insecure) != (None, 1, 0, False):
            raise ValueError("--jobs, --cpus, --gpus and --insecure are for --engine ray: here each job has the whole machine")
        return None
    if options.jobs is not None:
        check_count("--jobs", options.jobs)
    check_count("--cpus", options.cpus)
    check_number("--gpus", options.gpus, Range(0))
    return RayJobs(options.jobs, options.cpus, options.gpus, options.insecure)


def collect(jobs: Sequence[SweepJob], out: Path) -> list[SweepResult]:
    """Return the last evaluation return of every combination, or the last training return if there were no evaluations."""
    from jaxrl.runtime.logs.read_runs import read_run

    results = []
    for job in jobs:
        run = read_run(job_folder(out, job.name))
        last = np.full(len(run.seeds), np.nan)
        for key in (TRAINING_RETURN, EVALUATION_RETURN):
            for value in run.history.get(key, ()):
                last = np.where(np.isnan(value), last, value)
        last = np.where(run.history["diverged"][-1], np.nan, last)
        each = last.reshape(len(job.members), -1)
        results += [SweepResult({**job.settings, **member}, row) for member, row in zip(job.members, each, strict=True)]
    return results


def write_table(results: Sequence[SweepResult], path: Path) -> None:
    """Write ``results.csv``: the settings, then mean, standard deviation and each seed."""
    text = io.StringIO()
    writer = csv.writer(text)
    num_seeds = len(results[0].returns)
    writer.writerow([*results[0].settings, "mean_return", "std_return", "diverged", *(f"return_{i}" for i in range(num_seeds))])
    for settings, returns in results:
        known = returns[~np.isnan(returns)]
        spread = [f"{known.mean():.9g}", f"{known.std():.9g}"] if len(known) else ["", ""]
        each = ["" if np.isnan(x) else f"{x:.9g}" for x in returns]
        writer.writerow([*map(in_a_word, settings.values()), *spread, num_seeds - len(known), *each])
    write_atomically(path, text.getvalue())


def in_short(value: Any) -> str:
    """Format a setting for display, with numbers at the precision of float32."""
    return in_a_word(value) if isinstance(value, Mapping) else brief(value)


def show(results: Sequence[SweepResult]) -> None:
    """Print the table, best first."""
    from jaxrl.runtime.console.progress import spread
    from jaxrl.runtime.console.tables import show_table

    columns = [*results[0].settings, "return ± std over seeds", "diverged"]
    rows = [
        [*map(in_short, settings.values()), spread({"return": returns}, "return"), str(int(np.isnan(returns).sum()))]
        for settings, returns in results
    ]
    show_table(columns, rows)


def draw(results: Sequence[SweepResult], sweep: SweepFile, path: Path) -> None:
    """Draw ``results.png``: a row for each combination, with a dot for each seed and a bar for the mean."""
    from jaxrl.runtime.plots.style import GRID, INK, LINE, PALE, new_figure, save, set_title

    figure = new_figure(7.2, 1.4 + 0.32 * len(results))
    axes = figure.add_subplot()
    rows = np.arange(len(results))[::-1]
    axes.barh(rows, [np.nan_to_num(mean_over_seeds(r.returns), neginf=0.0) for r in results], color=PALE, height=0.6)
    for row, result in zip(rows, results, strict=True):
        axes.plot(result.returns, np.full(len(result.returns), row), "o", color=LINE, markersize=3.5, alpha=0.8)
    labels = [", ".join(f"{name}={in_short(value)}" for name, value in result.settings.items()) for result in results]
    axes.set_yticks(rows, labels, fontsize=8, color=INK)
    axes.set_xlabel("return at the end: mean (bar) and each seed (dot)", color=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    set_title(figure, f"{ALGORITHMS[sweep.algorithm].title} · {sweep.env} · {sweep.total_steps:,} steps per seed")
    save(figure, path)
