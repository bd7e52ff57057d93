"""``jaxrl search``: search for settings, as a file describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxrl.builder.spec import check_env_id
from jaxrl.runtime.cli.flags import Flag, Trust, read_flags
from jaxrl.runtime.cli.user_code import import_algorithm, import_env_module

HELP = """\
Search for the settings with the highest return.

Trials that differ in hyperparameters train in one program, several at a time, each over the same seeds. With rungs, trials are
tested on the way, the best continue, and others begin in the place of those that were stopped. At the end the best trials and the
default settings train on other seeds, and the report compares them. The same command resumes a search that was stopped or killed.

A search file:

  algorithm = "ppo"
  env = "CartPole-v1"
  total_steps = 100_000
  seeds = 4

  [settings]                       # common to all
  rollout_length = 64

  [space]
  learning_rate = { low = 1e-5, high = 1e-2, log = true }
  gamma = { low = 0.9, high = 0.9999, log = "complement" }   # log-uniform is 1 - gamma
  num_envs = [8, 16]               # structure: a program for each value

  [search]
  method = "tpe"                   # random, sobol, grid; with jaxrl[search]: tpe, cmaes, gp, nsga2
  trials = 128
  rungs = [0.1, 0.3, 1.0]
"""


@dataclass(frozen=True)
class SearchFlags:
    file: Annotated[Path, tyro.conf.Positional]
    """The search file (TOML)."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: runs/NAME OF THE FILE)")] = None
    """Folder for trials.jsonl, results.csv, best.toml and search.png."""
    jobs: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: this process has all trials)")] = None
    """Number of processes that share the trials."""
    engine: Literal["local", "ray"] = "local"
    """With --jobs: where they are, on this machine or on a cluster of Ray, which RAY_ADDRESS names, or else one that is started
    here. All machines must share the folder --out."""
    cpus: int = 1
    """With --jobs: CPUs of each."""
    gpus: float = 0.0
    """With --jobs: GPUs of each."""
    insecure: Flag = False
    """With --engine ray: join a cluster that asks for no token, where anyone who reaches it can run programs."""
    storage: Annotated[str | None, tyro.conf.arg(metavar="FILE.log|URL")] = None
    """Copy each trial that has ended to a study of Optuna's, for its dashboard."""
    quiet: Flag = False
    """Print only errors."""
    trust: Trust = ()
    """Package or module of the file's environment or algorithm ('module:name'), whose code may run. Can be repeated."""


def main(args: Sequence[str]) -> int:
    flags = read_flags(SearchFlags, args, prog="jaxrl search", description=HELP, config=(tyro.conf.OmitArgPrefixes,))
    from jaxrl.runtime.search.search import search
    from jaxrl.runtime.search.search_file import read_search

    read = read_search(flags.file, lambda algorithm: import_algorithm(algorithm, flags.trust))
    import_env_module(check_env_id(read.env, flags.trust))
    out = flags.out or Path("runs") / flags.file.stem
    where: dict[str, Any] = {name: getattr(flags, name) for name in ("jobs", "engine", "cpus", "gpus", "insecure", "storage")}
    search(flags.file, out=out, trust=flags.trust, quiet=flags.quiet, **where)
    if not flags.quiet:
        print(f"results in {out}; train with the best settings: jaxrl train {read.algorithm} --preset {out}/best.toml")
    return 0
