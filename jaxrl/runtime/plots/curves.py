"""Curves that compare runs: grouping of seeds, panels and labels."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.builder.spec import algorithm_name, brief
from jaxrl.envs.ids import DEFAULT_BACKEND, format_id, parse_id
from jaxrl.runtime.logs.read_runs import Run
from jaxrl.runtime.logs.run_folder import changed_hyperparams, learns_offline
from jaxrl.runtime.plots.draw import UPDATES_NAME, X_NAME, Curve
from jaxrl.runtime.plots.statistics import mean_steps

ALGORITHM, ENV, RUN = "algorithm", "environment", "run"
"""Properties of every curve in addition to its settings. RUN is only present if nothing else distinguishes two curves."""

Facts = dict[str, str]
"""Properties common to the seeds of a curve: algorithm, environment and each setting, as text."""


class RunCurve(NamedTuple):
    """A subset of the seeds of a run."""

    run: Run
    columns: list[int]

    @property
    def env(self) -> str:
        return env_name(self.run.config["agent"].get("env"))

    def values(self, key: str) -> np.ndarray:
        """f64[num_chunks, columns]"""
        return self.run.history[key][:, self.columns]

    def known(self, key: str) -> np.ndarray:
        """bool[num_chunks]: True for chunks in which at least one seed has a value."""
        return ~np.isnan(self.values(key)).all(axis=1)

    @property
    def steps(self) -> np.ndarray:
        """f64[num_chunks]: mean environment steps of the seeds that did not diverge, or of the last ones that did."""
        return mean_steps(*(self.run.history[key][:, self.columns] for key in ("env_steps", "diverged")))

    @property
    def num_diverged(self) -> int:
        return int(self.run.history["diverged"][-1, self.columns].sum())

    @property
    def is_lost(self) -> bool:
        return self.num_diverged == len(self.columns)


class CurveGroup(NamedTuple):
    """The seeds of one curve."""

    facts: Facts
    members: list[RunCurve]

    @property
    def num_seeds(self) -> int:
        return sum(len(member.columns) for member in self.members)

    @property
    def num_diverged(self) -> int:
        return sum(member.num_diverged for member in self.members)

    @property
    def envs(self) -> list[str]:
        return sorted({member.env for member in self.members})

    def has(self, key: str) -> bool:
        return any(member.known(key).any() for member in self.members)


def group_runs(runs: Sequence[Run], *, pool: bool = False) -> list[CurveGroup]:
    """Group seeds with the same algorithm, environment and settings, across runs.

    Runs that repeat each other's seeds are not combined, because their samples would not be independent. They differ in something
    that is not a setting (a version, a machine), so each forms a separate group, named after its folder. With ``pool``, different
    environments are combined too.
    """
    groups: dict[tuple[tuple[str, str], ...], CurveGroup] = {}
    for run in runs:
        for column in range(len(run.seeds)):
            facts = facts_of(run.config, column) | ({ENV: ""} if pool else {})
            group = groups.setdefault(tuple(sorted(facts.items())), CurveGroup(facts, []))
            if group.members and group.members[-1].run is run:
                group.members[-1].columns.append(column)
            else:
                group.members.append(RunCurve(run, [column]))
    return [part for group in groups.values() for part in _without_repeated_seeds(group)]


def _without_repeated_seeds(group: CurveGroup) -> list[CurveGroup]:
    samples = [(member.env, member.run.seeds[column]) for member in group.members for column in member.columns]
    if len(set(samples)) == len(samples) or len(group.members) == 1:
        return [group]
    folders = [member.run.folder.absolute() for member in group.members]
    names = [os.path.relpath(folder, os.path.commonpath(folders)) for folder in folders]
    return [CurveGroup({**group.facts, RUN: name}, [member]) for name, member in zip(names, group.members, strict=True)]


def facts_of(config: Mapping[str, Any], column: int) -> Facts:
    """Return the properties in ``config.json`` of the seed in a column of the records."""
    agent = config["agent"]
    settings = {**agent.get("settings", {}), **changed_hyperparams(config, column)}
    return {
        ALGORITHM: algorithm_name(agent),
        ENV: env_name(agent.get("env")),
        **{name: text for part in (settings, agent.get("parts", {})) for name, text in flatten(part).items()},
    }


def x_axis_name(groups: Sequence[CurveGroup]) -> str:
    """Return the unit of the curves' steps."""
    offline = {learns_offline(member.run.config) for group in groups for member in group.members}
    names = [name for name, wanted in ((X_NAME, False), (UPDATES_NAME, True)) if wanted in offline]
    return " or ".join(names)


def env_name(env: Any) -> str:
    """Return the id of an environment, without the name of the default backend."""
    try:
        return format_id(parse_id(env)).removeprefix(f"{DEFAULT_BACKEND}:")
    except (ValueError, TypeError, AttributeError):  # an environment that has no id
        return env if isinstance(env, str) else brief(env)


def flatten(data: Mapping[str, Any], prefix: str = "") -> Facts:
    """Return settings and parts by dotted name; arguments of a part follow its name, as in ``model.hidden_sizes``."""
    facts: Facts = {}
    for name, value in data.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and "partial" in value:
            arguments = {**{str(i): x for i, x in enumerate(value.get("args") or ())}, **(value.get("kwargs") or {})}
            facts |= {path: brief(value["partial"]), **flatten(arguments, f"{path}.")}
        elif isinstance(value, Mapping) and not {"import", "unimportable"} & set(value):
            facts |= flatten(value, f"{path}.")
        else:
            facts[path] = brief(value)
    return facts


def label_groups(groups: Sequence[CurveGroup]) -> list[str]:
    """Label the groups within an environment: by the algorithm if there are several, and by the settings that differ between
    groups of the same algorithm and environment."""
    several = len({group.facts[ALGORITHM] for group in groups}) > 1
    differing: dict[str, dict[str, None]] = {}
    for group in groups:
        algorithm = group.facts[ALGORITHM]
        peers = [other.facts for other in groups if all(other.facts[name] == group.facts[name] for name in (ALGORITHM, ENV))]
        names = dict.fromkeys(name for facts in peers for name in facts)
        differ = (name for name in names if len({facts.get(name) for facts in peers}) > 1)
        differing.setdefault(algorithm, {}).update(dict.fromkeys(differ))
    labels = []
    for group in groups:
        algorithm, facts = group.facts[ALGORITHM], group.facts
        shown = [name for name in differing[algorithm] if name in facts and name != RUN]
        # "model hidden sizes" of model.hidden_sizes
        descriptions = [f"{re.sub('[_.]', ' ', name)} {facts[name]}" for name in shown]
        descriptions += [facts[RUN]] if RUN in facts else []
        labels.append(" · ".join([algorithm] * (several or not descriptions) + descriptions))
    return labels


def rename(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names of the curves instead of their labels; they are in the order of the legend, and must all differ."""
    distinct = list(dict.fromkeys(labels))
    if len(names) != len(distinct) or len(set(names)) != len(names):
        shown = "; ".join(distinct)
        raise ValueError(f"--labels needs a different name for each of {len(distinct)} curves, in this order: {shown}")
    return [names[distinct.index(label)] for label in labels]


class Scale(NamedTuple):
    """Returns that correspond to normalised returns of 0 and 1."""

    low: float
    high: float


def make_curve(group: CurveGroup, key: str, label: str, scales: Mapping[str, Scale] | None = None) -> Curve:
    """Compute the values of a group's seeds at common numbers of environment steps.

    A chunk of a run is placed at the mean environment steps of its seeds (``mean_steps``). A curve of several runs spans the
    steps that all of them have (the end of a run whose seeds all diverged is ignored), at the points of the run that has the
    fewest there; the others are interpolated linearly between their points. A seed that lacks values in between (no episode
    ended) is interpolated too; before its first and after its last value (it diverged) it is omitted. Nothing is extrapolated.

    Args:
      key: a log key for which at least one seed of the group has a value.
      scales: by environment, for normalised returns.

    Returns:
      A curve whose strata are the environments.

    Raises:
      ValueError: the runs have no steps in common.
    """
    drawn = [(member, member.steps[member.known(key)]) for member in group.members if member.known(key).any()]
    late, starting = max(drawn, key=lambda pair: pair[1][0])
    whole = [pair for pair in drawn if not pair[0].is_lost] or [max(drawn, key=lambda pair: pair[1][-1])]
    early, ending = min(whole, key=lambda pair: pair[1][-1])
    first, last = starting[0], ending[-1]
    if first > last:
        raise ValueError(
            f"{label}: its {len(drawn)} runs have no steps in common, since {os.fspath(early.run.folder)!r} ends at step "
            f"{last:,.0f} and {os.fspath(late.run.folder)!r} begins at {first:,.0f}: leave one of them out"
        )
    grid = min((np.unique(np.clip(steps, first, last)) for _, steps in whole), key=len)
    columns = [column for member in group.members for column in _interpolated(member, key, grid, scales)]
    values, envs = np.stack(columns, axis=1), [member.env for member in group.members for _ in member.columns]
    known = ~np.isnan(values).all(axis=1)
    strata = np.unique(envs, return_inverse=True)[1]
    return Curve(group.facts[ENV], label, grid[known], values[known], strata, is_lost=group.num_diverged == group.num_seeds)


def _interpolated(member: RunCurve, key: str, grid: np.ndarray, scales: Mapping[str, Scale] | None) -> list[np.ndarray]:
    """Return each seed's values at ``grid``, NaN before its first and after its last."""
    values, steps = member.values(key), member.steps
    if scales is not None:
        low, high = scales[member.env]
        values = (values - low) / (high - low)
    columns = []
    for column in values.T:
        known = ~np.isnan(column)
        inside = np.interp(grid, steps[known], column[known], left=np.nan, right=np.nan) if known.any() else np.nan
        columns.append(np.broadcast_to(inside, grid.shape))
    return columns
