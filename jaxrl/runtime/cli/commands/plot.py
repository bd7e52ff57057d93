"""``jaxrl plot``: compare runs in one figure."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from jaxrl.runtime.cli.flags import Flag, read_flags, shown_as
from jaxrl.runtime.logs.read_runs import choose_key, read_runs
from jaxrl.runtime.plots.curves import ALGORITHM, CurveGroup, Scale, group_runs, label_groups, make_curve, rename, x_axis_name
from jaxrl.runtime.plots.draw import AXIS_NAMES, UPDATES_NAME, Band, draw_curves, summarise
from jaxrl.runtime.plots.statistics import METRIC_NAMES
from jaxrl.runtime.plots.style import COLOURS, DASHES, FORMATS
from jaxrl.runtime.system.disk import at_home
from jaxrl.settings.aliases import unknown

HELP = """\
Draw learning curves: an aggregate over seeds and its bootstrap interval, against environment steps per seed.

A RUN is the folder of a run, or a folder with runs anywhere below it. Seeds with the same algorithm, environment and settings,
also from different runs, form one curve; a run that varies a hyperparameter over its seeds forms several. Each environment has a
panel, and curves are named after their differences. The values at the end of each curve are printed.

try:
  jaxrl plot runs/quickstart
  jaxrl plot runs/ppo-* runs/dqn-* --out comparison.pdf
  jaxrl plot runs/small runs/large --labels "64 units" "256 units"
  jaxrl plot runs --key losses/entropy --metric mean
  jaxrl plot runs --pool --normalize CartPole-v1=22,500 Acrobot-v1=-500,-70

The interquartile mean averages the middle half of the seeds; the bootstrap resamples seeds, stratified by environment if several
are pooled (Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice). A seed that diverged is
excluded from then on, which the table reports; if all seeds diverged, the curve ends in a cross. A curve of several runs ends
with the shortest of them, and is interpolated linearly between their points; nothing is smoothed or extrapolated.
"""


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Options of ``jaxrl plot``."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN …]", help_behavior_hint="(required)")]
    """Folders of runs, or folders that contain runs."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE")] = "curves.png"
    """Output file: .png, .pdf or .svg. An existing file is replaced."""
    key: Annotated[str | None, shown_as("LOGKEY", "evaluation return, or else training return")] = None
    """Column of progress.csv to draw. It must have a value per seed, such as losses/entropy."""
    metric: Literal["iqm", "mean"] = "iqm"
    """Aggregate over seeds: interquartile mean, or mean. With fewer than 4 seeds they are the same."""
    level: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 0.95
    """Confidence level of the bands."""
    title: Annotated[str | None, shown_as("TEXT", "what all runs share")] = None
    """Title of the figure; '' for none."""
    labels: Annotated[tuple[str, ...], shown_as("TEXT …", "what differs")] = ()
    """Names of the curves, one for each, in the order in which the default names are printed."""
    pool: Flag = False
    """Draw one curve for all environments together, instead of a panel for each."""
    normalize: Annotated[tuple[str, ...], shown_as("ENV=LOW,HIGH …", "none")] = ()
    """Draw (value - LOW) / (HIGH - LOW), e.g. with the returns of a random and an expert policy, for each environment."""


def main(args: Sequence[str]) -> int:
    """Draw the figure, and print its path and the final values of the curves."""
    options = read_flags(PlotOptions, args, prog="jaxrl plot", description=HELP)
    path = check_options(options)
    runs = read_runs(options.runs, note)
    key = choose_key(runs, options.key, note)
    groups = group_runs(runs, pool=options.pool)
    labels = label_groups(groups)
    labelled = list(zip(groups, rename(labels, options.labels) if options.labels else labels, strict=True))
    for group, label in labelled:
        if not group.has(key):
            note(f"no values of {key} for {label} ({count(group.num_seeds)})")
    groups = [group for group in groups if group.has(key)]
    scales = parse_scales(options.normalize, sorted({env for group in groups for env in group.envs}))
    curves = [make_curve(group, key, label, scales) for group, label in labelled if group.has(key)]
    if (number := len({curve.label for curve in curves})) > len(COLOURS) * len(DASHES):
        note(f"{number} curves are too many to distinguish: name fewer runs")
    bands = [summarise(curve, metric=options.metric, level=options.level) for curve in curves]
    name = ("normalised " if scales else "") + AXIS_NAMES.get(key, key)
    title = common_title(groups) if options.title is None else options.title
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_curves(bands, path, ylabel=name, caption=caption(bands, options), title=title, xlabel=x_axis_name(groups))
    except OSError as error:
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a folder above it is a file" if in_the_way else error.strerror or error
        raise OSError(f"--out {options.out!r} cannot be written to: {reason}. Name a writable file") from None
    print("\n".join([f"{path}: {name}", *table(groups, bands)]))
    return 0


def note(text: str) -> None:
    """Print a note about something that the figure does not show."""
    print(f"note: {text}", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------------------- options


def check_options(options: PlotOptions) -> Path:
    """Check the options and return the path of the output file."""
    if not options.runs:
        raise ValueError("name at least one folder of a run: jaxrl plot RUN")
    path = at_home(options.out)
    if path.suffix[1:].lower() not in FORMATS:
        allowed = ", ".join(f".{kind}" for kind in FORMATS)
        raise ValueError(f"--out {options.out!r} has the unknown file extension {path.suffix!r}: choose one of {allowed}")
    if not 0 < options.level < 1:
        raise ValueError(f"--level {options.level:g} must be between 0 and 1, such as 0.95")
    return path


def parse_scales(texts: Sequence[str], envs: Sequence[str]) -> dict[str, Scale] | None:
    """Parse ``ENV=LOW,HIGH`` for each environment; None if there are none."""
    scales = {}
    for text in texts:
        env, _, bounds = text.rpartition("=")
        try:
            low, high = (float(bound) for bound in bounds.split(","))
        except ValueError:
            low = high = 0.0
        if not (env and abs(high - low) > 0 and abs(high - low) < float("inf")):
            raise ValueError(f"--normalize {text!r} must be ENV=LOW,HIGH with two different numbers, such as CartPole-v1=22,500")
        if env not in envs:
            raise unknown("environment", env, envs)
        scales[env] = Scale(low, high)
    if scales and (missing := [env for env in envs if env not in scales]):
        raise ValueError(f"--normalize lacks {missing[0]!r}: give ENV=LOW,HIGH for each of {', '.join(envs)}")
    return scales or None


# ------------------------------------------------------------------------------------------------------------------------- words


def common_title(groups: Sequence[CurveGroup]) -> str:
    """Return the algorithm and the environment, each only if common to all groups."""
    algorithms = {group.facts[ALGORITHM] for group in groups}
    envs = {env for group in groups for env in group.envs}
    return " · ".join(next(iter(names)) for names in (algorithms, envs) if len(names) == 1)


def caption(bands: Sequence[Band], options: PlotOptions) -> str:
    """Describe the lines and bands."""
    counts = {band.curve.values.shape[1] for band in bands}
    cross = "; × all seeds diverged" if any(band.curve.is_lost for band in bands) else ""
    if counts == {1}:
        return ("one seed" if len(bands) == 1 else "one seed each") + cross
    seeds = count(counts.pop()) if len(counts) == 1 else f"{min(counts)} to {max(counts)} seeds"
    strata = ", stratified by environment" if any(band.curve.strata.any() for band in bands) else ""
    return f"{METRIC_NAMES[options.metric]} of {seeds}, {100 * options.level:.4g} % bootstrap interval{strata}{cross}"


def count(seeds: int) -> str:
    return f"{seeds} seed{'s' * (seeds != 1)}"


def table(groups: Sequence[CurveGroup], bands: Sequence[Band]) -> list[str]:
    """Return a line per curve with its final values. Curves of one environment have the same number of decimals."""
    ends = np.array([(band.middle[-1], band.low[-1], band.high[-1]) for band in bands])
    largest: dict[str, float] = {}
    for band, end in zip(bands, ends, strict=True):
        largest[band.curve.panel] = max(largest.get(band.curve.panel, 0.0), np.abs(end).max())
    rows = [
        _row(group, band, end, decimals(largest[band.curve.panel])) for group, band, end in zip(groups, bands, ends, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [False, False, True, True, False]
    cells = [[x.rjust(n) if r else x.ljust(n) for x, n, r in zip(row, widths, right, strict=True)] for row in rows]
    return ["  ".join(["", *row]).rstrip() for row in cells]


def decimals(largest: float) -> int:
    """Return the number of decimals that shows four digits of the largest value."""
    return min(6, max(0, 3 - math.floor(math.log10(largest)))) if largest > 0 else 1


def _row(group: CurveGroup, band: Band, end: np.ndarray, digits: int) -> list[str]:
    curve, (middle, low, high) = band.curve, (f"{x:,.{digits}f}" for x in end)
    total, known = group.num_seeds, int((~np.isnan(curve.values[-1])).sum())
    seeds = count(total) if known == total else f"{known} of {count(total)}"
    seeds += f" in {len(group.members)} runs" * (len(group.members) > 1)
    seeds += f", {group.num_diverged} diverged" * (group.num_diverged > 0)
    name = " · ".join(part for part in (curve.panel, curve.label) if part)
    unit = "updates" if x_axis_name([group]) == UPDATES_NAME else "steps"
    return [name, seeds, f"at {curve.steps[-1]:,.0f} {unit}", middle, f"[{low}, {high}]" if total > 1 else ""]
