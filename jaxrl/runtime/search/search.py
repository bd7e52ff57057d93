"""``jaxrl.search``: search for settings, report the best, and compare them with the defaults."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.builder.spec import check_env_id
from jaxrl.runtime.logs.live_status import live_status
from jaxrl.runtime.logs.run_folder import LOCK, contents, damaged, first_difference, plain
from jaxrl.runtime.search.lanes.lanes import build
from jaxrl.runtime.search.lanes.remote_lanes import Jobs, open_remote_lanes
from jaxrl.runtime.search.log import MANIFEST
from jaxrl.runtime.search.optuna_adviser import Mirror
from jaxrl.runtime.search.progress import SearchProgress
from jaxrl.runtime.search.results.comparison import Comparison, compare
from jaxrl.runtime.search.results.report import write_report
from jaxrl.runtime.search.search_file import SearchFile, check_built, read_search
from jaxrl.runtime.search.session import SearchSession
from jaxrl.runtime.search.space import all_structures
from jaxrl.runtime.search.trials import Trials
from jaxrl.runtime.system.devices import enable_compilation_cache, request_devices_for
from jaxrl.runtime.system.disk import lock_file, parse_json, read_regular, savable, write_atomically
from jaxrl.runtime.training_loop.signals import Interrupt, Interrupted, end_in_a_line, handled
from jaxrl.training import num_iterations

LOGS = "logs"


class SearchResult(NamedTuple):
    """Result of a search."""

    settings: dict[str, Any]
    """The best settings, those that all trials share included."""
    score: float
    """Score of their trial on its own seeds, which is too good if it is the best of many."""
    comparison: Comparison | None
    """The best trials and the default settings on other seeds; None with ``top = 0``."""
    trials: Trials


def search(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    engine: str = "local",
    cpus: int = 1,
    gpus: float = 0.0,
    insecure: bool = False,
    storage: str | None = None,
    trust: str | Iterable[str] = (),
    quiet: bool = False,
) -> SearchResult:
    """Search for the settings with the highest return: trials are lanes of one program.

    Trials that differ in hyperparameters train together, ``batch`` at a time, each with the same seeds. With ``rungs``, trials
    are tested on the way and only the best ``keep`` continue (asynchronous successive halving: Li et al. 2020, "A System for
    Massively Parallel Hyperparameter Tuning"). Another trial begins in the place of one that ends, so no lane is idle, and
    nothing compiles again; more trials than asked for keep the lanes busy until the last of those has ended. Each structure needs
    a program, and is chosen for several batches at a time. The objective is the interquartile mean over seeds of the returns of
    greedy episodes. At the end the best trials and the default settings train on other seeds.

    A search that was killed resumes when it is called again with the same arguments; it then asks for the same trials, and finds
    the same scores.

    Args:
      source: a file (TOML), or a mapping with the same entries: ``algorithm, env, total_steps, space``, and optionally ``seeds``
        (default: 4), ``settings`` and ``search``; see ``jaxrl.runtime.search.search_file.SearchOptions``.
      out: folder for ``trials.jsonl``, ``results.csv``, ``best.toml`` and pictures; None keeps nothing.
      jobs: number of processes that share the slots evenly; None: all are in this process, which uses all devices. A search
        whose process is lost resumes from its last checkpoint, up to three times.
      engine: where these processes are: "local", or "ray", a cluster of Ray. All machines must share ``out``.
      cpus: cores of each process.
      gpus: GPUs of each process.
      insecure: join a cluster that asks for no token, where anyone who reaches it can run programs.
      storage: a file that ends in ``.log``, or the address of a database, in which a study of Optuna's gets a copy of each trial
        that has ended, for its dashboard.
      trust: packages of the file's environment ('module:function'), whose code may run.
      quiet: show nothing.

    Raises:
      TypeError, ValueError: an entry is not allowed, the environment is not pure, the search was begun with another number of
        jobs, or all trials diverged.
      FileExistsError: ``out`` holds something else, or another search is running there.
      ImportError: the method needs a package that is not installed.
      NotEnough: the machine or the cluster has too few CPUs or GPUs for the processes.
      Interrupted: Ctrl-C, SIGTERM or SIGHUP. The states are saved, and the same call resumes the search.
    """
    read = read_search(source)
    check_env_id(read.env, [trust] if isinstance(trust, str) else [*trust])
    request_devices_for([read.env])
    enable_compilation_cache()
    shared = None if jobs is None else Jobs(jobs, engine, cpus, gpus, insecure).check(read)
    if shared is None and (engine, cpus, gpus, insecure) != ("local", 1, 0.0, False):
        raise ValueError("engine, cpus, gpus and insecure are for a number of jobs: without one, all trials are in this process")
    if shared is not None and out is None:
        raise ValueError("jobs need a folder that they share: give out")
    _check_structures(read)  # errors come before any output
    with _opened(out, read) as folder:
        name = "jaxrl" if folder is None else folder.name
        mirror = None if storage is None else Mirror(storage, name, read.space, plain(read.plain))
        return _search(read, folder, shared, mirror, quiet=quiet)


def _search(read: SearchFile, folder: Path | None, jobs: Jobs | None, mirror: Mirror | None, *, quiet: bool) -> SearchResult:
    options, interrupt = read.options, Interrupt()
    title = f"{options.method} search of {read.algorithm} on {read.env}: {options.trials} trials × {len(read.seeds)} seeds"
    with ExitStack() as resources:
        progress = resources.enter_context(closing(SearchProgress(title, options.trials, quiet=quiet)))
        resources.enter_context(handled(interrupt.handle))
        place: dict[str, Any] = {} if mirror is None else {"mirror": mirror.update}
        if jobs is not None and folder is not None:
            cluster = resources.enter_context(jobs.open(folder / LOGS, progress.note))
            place |= {"open_lanes": partial(open_remote_lanes, cluster, jobs), "jobs": jobs.number}
        session = SearchSession(read, folder, progress, lambda: bool(interrupt.requested), **place)
        resources.callback(session.close)
        is_over = session.go()
        if not is_over:
            end_in_a_line()
            where = "" if folder is None else f"; repeat the call to resume it from {folder}"
            raise Interrupted(f"the search stopped after {len(session.trials.all)} trials{where}", interrupt.requested)
    trials = session.trials
    if not (found := trials.complete) or trials.score(found[0]) != trials.score(found[0]):
        raise ValueError(f"all {len(trials.all)} trials diverged: narrow the ranges in [space]")
    comparison = compare(read, trials, folder, quiet=quiet) if options.top else None
    if comparison:
        progress.note(comparison.in_words())
    best = found[0] if comparison is None else trials.all[comparison.best[0].trial or 0]
    result = SearchResult({**read.settings, **best.settings}, trials.score(best), comparison, trials)
    if folder is not None:
        write_report(read, trials, best, comparison, folder)
    progress.note(f"best: trial {best.number}, score {result.score:.6g}")
    return result


def _check_structures(read: SearchFile) -> None:
    """Raise an error unless the agents of all structures can be built, and have an iteration for each part of a training."""
    structures = all_structures(read.space)
    for structure in structures:  # the quick checks first
        check_built(read, structure)
    for structure in structures:
        of = num_iterations(build(read, structure), read.total_steps)
        try:
            read.rungs.check_iterations(of)
        except ValueError as error:
            named = ", ".join(f"{name} = {value!r}" for name, value in structure.items())
            raise ValueError(f"trials with {named or 'these settings'}: {error}") from None


@contextmanager
def _opened(out: str | os.PathLike[str] | None, read: SearchFile) -> Iterator[Path | None]:
    """Create or open the folder of a search, and lock it."""
    if out is None:
        yield None
        return
    folder, shown = savable(out, "out"), os.fspath(out)
    if folder.exists() and contents(folder, MANIFEST) and not (folder / MANIFEST).exists():
        raise FileExistsError(f"out={shown!r} is not empty, and holds no search: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a", encoding="utf-8") as lock:
        if not lock_file(lock):
            raise FileExistsError(f"out={shown!r} is in use by another process. Wait until it ends, or name another folder")
        _check_same(folder, shown, plain(read.plain))
        with live_status(folder):
            yield folder


def _check_same(folder: Path, shown: str, entries: Any) -> None:
    """Write the search's entries into the folder, or compare them with those that are there."""
    path = folder / MANIFEST
    if not path.exists():
        write_atomically(path, json.dumps({"search": entries}, indent=2) + "\n")
        return
    try:
        there = parse_json(read_regular(path))["search"]
    except (ValueError, KeyError, TypeError):
        raise damaged(shown, MANIFEST) from None
    if difference := first_difference(there, entries):
        raise FileExistsError(
            f"out={shown!r} holds another search: {difference} here. Name another folder, or use that search's file"
        )
