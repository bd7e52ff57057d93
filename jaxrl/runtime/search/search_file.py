"""``SearchFile``: what to search, as a file (TOML) or a mapping."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.logs.run_folder import plain
from jaxrl.runtime.search.advisers import ADVISERS
from jaxrl.runtime.search.halving import Rungs
from jaxrl.runtime.search.settings_file import (
    check_algorithm,
    check_structure,
    checked_env,
    checked_setting,
    grid_names,
    read_toml,
    refuse_unknown,
)
from jaxrl.runtime.search.space import Space, all_structures, combinations, read_space
from jaxrl.runtime.search.trials import OBJECTIVES
from jaxrl.runtime.training_loop.members import check_members
from jaxrl.settings.aliases import nearest
from jaxrl.settings.validation import Range, check_count, check_number, check_seeds

AUC_PARTS = 10
"""Tests of a trial, at least, whose mean is the objective "auc"."""


@dataclass(frozen=True)
class SearchOptions:
    """Table ``[search]`` of a file."""

    method: str = "tpe"
    """grid, random, sobol, tpe, cmaes, gp or nsga2."""
    trials: int = 128
    """Number of trials, at least. A grid has one for each combination."""
    batch: int = 16
    """Trials that train at a time, in one program."""
    rungs: Sequence[float] = (1.0,)
    """Shares of a training after which trials are tested, and only the best continue. [1.0]: all train to the end."""
    keep: float = 0.33
    """Share of the trials at a rung that continue."""
    objective: str = "final"
    """final: the return at the end. auc: the mean of the returns during training."""
    eval_episodes: int = 128
    """Greedy episodes of each seed at the end of a trial."""
    rung_episodes: int = 8
    """Greedy episodes of each seed at an earlier rung."""
    top: int = 5
    """Best trials that are trained again, with the default settings beside them; 0: none."""
    test_seeds: int = 16
    """Seeds of that comparison, which no trial has used."""
    seed: int = 0
    """Seed of the adviser."""
    groups: int | None = None
    """Groups in which the trials of a batch are computed. A search with groups finds the same, to the bit, with each number of
    devices and processes that divides their number. None: a device computes all its trials at once."""


@dataclass(frozen=True)
class SearchFile:
    """Contents of a search file, checked."""

    algorithm: str
    env: str
    total_steps: int
    seeds: tuple[int, ...]
    """Of each trial, the same for all."""
    settings: Mapping[str, Any]
    """Settings that all trials share, unless they are in the space; the result is compared with them."""
    space: Space
    options: SearchOptions
    plain: Mapping[str, Any]
    """The entries as they were given."""

    @property
    def rungs(self) -> Rungs:
        return Rungs.from_shares(self.options.rungs, AUC_PARTS if self.options.objective == "auc" else 1)

    @property
    def test_seeds(self) -> list[int]:
        """Return the seeds of the final comparison: those that follow the largest of the trials."""
        first = max(self.seeds) + 1
        return list(range(first, first + self.options.test_seeds))


ENTRIES = ("algorithm", "env", "total_steps", "seeds", "settings", "space", "search")


def read_search(
    source: str | os.PathLike[str] | Mapping[str, Any], import_rule: Callable[[str], None] = lambda algorithm: None
) -> SearchFile:
    """Read and check a search file, or a mapping with the same entries.

    Args:
      import_rule: called with the name of the algorithm, to register a custom one.

    Raises:
      FileNotFoundError: the file does not exist.
      TypeError, ValueError: an entry is missing, unknown or not allowed.
    """
    shown = "the search" if isinstance(source, Mapping) else os.fspath(source)
    entries = plain(source) if isinstance(source, Mapping) else read_toml(source, "search")  # as the log will have them
    refuse_unknown(shown, entries, ENTRIES)
    check_algorithm(shown, entries, ("algorithm", "env", "total_steps", "space"), import_rule)
    algorithm = str(entries["algorithm"])
    settings, structural = entries.get("settings", {}), grid_names(algorithm)
    refuse_unknown(f"{shown}, [settings]", settings, [*structural[0], *structural[1]])
    space = read_space(f"{shown}, [space]", algorithm, entries["space"])
    try:
        search = SearchFile(
            algorithm,
            checked_env(entries["env"]),
            check_count("total_steps", entries["total_steps"]),
            _checked_seeds(entries.get("seeds", 4)),
            {name: checked_setting(algorithm, name, value) for name, value in settings.items()},
            space,
            _read_options(entries.get("search", {}), space),
            entries,
        )
        if search.options.top:
            _check_test_seeds(search)
        return search
    except (TypeError, ValueError) as error:
        raise type(error)(f"{shown}: {error}") from error


def _check_test_seeds(search: SearchFile) -> None:
    """Raise ValueError if the seeds of the final comparison are larger than seeds may be."""
    if (last := search.test_seeds[-1]) >= 2**32:
        raise ValueError(
            f"seeds = {[*search.seeds]}: the comparison at the end uses the seeds that follow the largest, up to {last}, and "
            "seeds are at most 2**32 - 1: give smaller ones, or top = 0"
        )


def _checked_seeds(seeds: Any) -> tuple[int, ...]:
    checked = check_seeds(seeds)
    check_members(checked)
    return tuple(checked)


def _read_options(table: Any, space: Space) -> SearchOptions:
    names = [field.name for field in fields(SearchOptions)]
    if not isinstance(table, Mapping):
        raise TypeError(f"[search] must be a table with {', '.join(names)}")
    refuse_unknown("[search]", table, names)
    options = SearchOptions(**(_of_grid(table, space) if table.get("method") == "grid" else table))
    for name, value, allowed in (("method", options.method, [*ADVISERS]), ("objective", options.objective, [*OBJECTIVES])):
        if value not in allowed:
            raise ValueError(
                f"{name} = {value!r} must be one of {', '.join(allowed)}.{nearest(str(value), allowed)}".removesuffix(".")
            )
    counts = {name: check_count(name, getattr(options, name)) for name in ("trials", "batch", "eval_episodes", "rung_episodes")}
    counts |= {name: check_count(name, getattr(options, name), at_least=0) for name in ("top", "seed")}
    counts["test_seeds"] = check_count("test_seeds", options.test_seeds)
    if options.groups is not None:
        counts["groups"] = check_count("groups", options.groups)
        if options.batch % options.groups:
            raise ValueError(f"batch = {options.batch} must be a multiple of groups = {options.groups}, which are of equal size")
    if not isinstance(options.rungs, Sequence) or isinstance(options.rungs, str):
        raise TypeError(f"rungs = {options.rungs!r} must be a list of shares, such as [0.1, 0.3, 1.0]")
    for share in options.rungs:
        check_number("rungs", share, Range(0, 1, open_low=True))
    Rungs.from_shares(options.rungs)
    check_number("keep", options.keep, Range(0, 1, open_low=True))
    return SearchOptions(**{**vars(options), **counts, "rungs": tuple(map(float, options.rungs))})


def _of_grid(table: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return the options of a grid, with its number of trials and a batch that is not larger than it needs to be."""
    if ranges := [d.name for d in space if not d.choices]:
        raise ValueError(f"a grid needs lists of values, and {ranges[0]} is a range")
    if "trials" in table:
        raise ValueError("the trials of a grid are all combinations: leave out trials")
    if table.get("groups") is not None:
        check_count("groups", table["groups"])
    trials, structures = len(combinations(space)), len(all_structures(space))
    most, given = trials // structures, check_count("batch", table.get("batch", SearchOptions.batch))
    batch, groups = min(given, most), table.get("groups")
    if groups is not None:
        if groups > most:
            raise ValueError(f"groups = {groups} must be at most {most}, the number of this grid's trials with one structure")
        is_refused = "batch" in table and given % groups  # with the number that was given
        batch = given if is_refused else max(batch // groups, 1) * groups
    return {**table, "trials": trials, "batch": batch}


def check_built(search: SearchFile, structure: Mapping[str, Any]) -> None:
    """Raise an error that names the structure unless it fits the other settings."""
    entry = ALGORITHMS[search.algorithm]
    if entry.family == "dataset":
        raise ValueError(f"{entry.title} cannot be searched: trials are lanes of agents that learn from rollouts")
    try:
        check_structure(search.algorithm, {**search.settings, **structure})
    except (TypeError, ValueError) as error:
        named = ", ".join(f"{name} = {value!r}" for name, value in structure.items())
        raise ValueError(f"trials with {named or 'these settings'} cannot be built: {error}") from error
