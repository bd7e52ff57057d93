"""Files of a search's results: ``results.csv``, ``best.toml`` and ``search.png``."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.runtime.search.log import BEST
from jaxrl.runtime.search.results.comparison import Comparison
from jaxrl.runtime.search.results.pictures import draw
from jaxrl.runtime.search.search_file import SearchFile
from jaxrl.runtime.search.sweep import in_a_word
from jaxrl.runtime.search.trials import Trial, Trials
from jaxrl.runtime.system.disk import write_atomically

RESULTS, PICTURE = "results.csv", "search.png"


def write_report(search: SearchFile, trials: Trials, best: Trial, comparison: Comparison | None, folder: Path) -> None:
    """Write the files into the folder."""
    write_atomically(folder / RESULTS, table(search, trials, comparison))
    write_atomically(folder / BEST, best_file(search, trials, best, comparison))
    draw(search, trials, folder / PICTURE)


def ordered(trials: Trials) -> list[Trial]:
    """Return all trials, the best first: those that trained longer before others, then by score."""

    def key(trial: Trial) -> tuple[float, float, int]:
        score = trials.score(trial)
        return -trials.last_age(trial), math.inf if math.isnan(score) else -score, trial.number

    return sorted(trials.all, key=key)


def table(search: SearchFile, trials: Trials, comparison: Comparison | None) -> str:
    """Return a line for each trial, with its last score, the returns of its seeds, and those of the comparison."""
    text, rungs = io.StringIO(), trials.rungs
    writer, compared = csv.writer(text), {each.trial: each for each in comparison.best} if comparison else {}
    names = [d.name for d in search.space]
    test = ["test_iqm", "test_low", "test_high"] if comparison else []
    writer.writerow(["trial", "end", "share", *names, "score", *(f"return_{seed}" for seed in search.seeds), *test])

    def numbers(values: Sequence[float]) -> list[str]:
        return ["" if math.isnan(x) else f"{x:.9g}" for x in values]

    for trial in ordered(trials):
        age, intervals = trials.last_age(trial), compared.get(trial.number)
        returns = trial.tests.get(age, [math.nan] * len(search.seeds))
        settings = [in_a_word(trial.settings[name]) for name in names]
        last = numbers(intervals.tested) if intervals else [""] * len(test)
        writer.writerow(
            [trial.number, trial.end, f"{age / rungs.parts:g}", *settings, *numbers([trials.score(trial), *returns]), *last]
        )
    if comparison:
        blank = [""] * (2 + len(names) + 1 + len(search.seeds))
        writer.writerow(["default", *blank, *numbers(comparison.default.tested)])
    return text.getvalue()


def best_file(search: SearchFile, trials: Trials, best: Trial, comparison: Comparison | None) -> str:
    """Return the best settings as a file for ``jaxrl train --preset FILE``."""
    about = [f"Trial {best.number} of {len(trials.all)}: score {trials.score(best):.6g} on the seeds that chose it."]
    about += [f"{comparison.in_words()}.".capitalize()] if comparison else []
    lines = [f"# {line}" for line in about]
    entries = {"algorithm": search.algorithm, "env": search.env, "total_steps": search.total_steps, "seeds": len(search.seeds)}
    lines += [f"{name} = {in_toml(value)}" for name, value in entries.items()]
    settings = {**search.settings, **best.settings}
    lines += [
        f"# {name} = None: TOML has no such value, so give it by hand." for name, value in settings.items() if value is None
    ]
    lines += ["", "[settings]", *(f"{_key(name)} = {in_toml(value)}" for name, value in _present(settings).items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)


def _present(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if value is not None}


def in_toml(value: Any) -> str:
    """Write a setting as a value of TOML. Entries of tables that are None, which TOML does not have, are left out."""
    if isinstance(value, Mapping):
        entries = [f"{_key(str(name))} = {in_toml(each)}" for name, each in _present(value).items()]
        return "{ " + ", ".join(entries) + " }" if entries else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan, where JSON has Infinity and NaN
    return json.dumps(value)
