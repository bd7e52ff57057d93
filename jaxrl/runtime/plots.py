"""Learning curves: statistics over seeds, and figures of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.runtime.logs import EVALUATION_RETURN, TRAINING_RETURN

LINE, PALE, FAINT, INK, GRID = "#1f6feb", "#8db7f5", "#8c959f", "#24292f", "#d8dee4"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart, without their yellow, which is too pale for a line."""
DASHES = ("-", "--", ":", "-.")
"""Of the first seven curves, the next seven, and so on."""

FORMATS = ("png", "pdf", "svg")
AXIS_NAMES = {EVALUATION_RETURN: "greedy evaluation return", TRAINING_RETURN: "return of training episodes"}
SHADE = 0.18
"""Opacity of a band."""
X_NAME = "environment steps per seed"
MAX_COLUMNS = 3

METRICS = {"iqm": 0.25, "mean": 0.0}
"""The share of the seeds that is cut off at either end before the rest is averaged."""
METRIC_NAMES = {"iqm": "interquartile mean", "mean": "mean"}


# ------------------------------------------------------------------------------------------------------------------ statistics


def trimmed_mean(values: np.ndarray, cut: float) -> np.ndarray:
    """Mean along the last axis without the ``int(cut · n)`` lowest and highest of its n values that are not NaN.

    ``cut=0.25`` is the interquartile mean of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice": less noisy than the median, less moved by one lucky seed than the mean. Of fewer than 4 values it is the mean.

    Returns:
      One axis less; NaN where nothing is known.
    """
    ordered = np.sort(values, axis=-1)  # NaN comes last
    number = (~np.isnan(values)).sum(-1, keepdims=True)
    dropped, rank = (cut * number).astype(int), np.arange(values.shape[-1])
    kept = (rank >= dropped) & (rank < number - dropped)
    total, count = np.where(kept, ordered, 0).sum(-1), kept.sum(-1)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def seed_interval(
    values: np.ndarray,
    *,
    metric: str = "iqm",
    strata: np.ndarray | None = None,
    resamples: int = 2000,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A statistic over seeds and its percentile bootstrap interval, per point.

    A resample draws whole seeds with replacement, the same ones at every point, and from each stratum as many as it has: the
    stratified bootstrap of Agarwal et al. 2021, section 4.1, in which strata are tasks. The draws are the same in every call.

    Args:
      values: f64[num_points, num_seeds]; NaN where a seed has no value. Every point needs one seed that has.
      metric: a key of ``METRICS``.
      strata: i64[num_seeds], which stratum each seed is of; None: all are of one.

    Returns:
      (statistic, low, high), f64[num_points] each.
    """
    drawn = _resample(np.zeros(values.shape[1], int) if strata is None else strata, resamples)
    bounds = []
    for row in values:
        estimates = trimmed_mean(row[drawn], METRICS[metric])
        known = estimates[~np.isnan(estimates)]
        bounds.append(np.quantile(known, [(1 - level) / 2, (1 + level) / 2]))
    low, high = np.transpose(bounds)
    return trimmed_mean(values, METRICS[metric]), low, high


def _resample(strata: np.ndarray, resamples: int) -> np.ndarray:
    """Which seeds each resample holds, i64[resamples, num_seeds]: every place is filled from its own stratum."""
    rng = np.random.default_rng(0)
    drawn = np.empty((resamples, len(strata)), int)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        drawn[:, members] = members[rng.integers(len(members), size=(resamples, len(members)))]
    return drawn


def mean_interval(values: np.ndarray, *, resamples: int = 2000, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``seed_interval`` of the mean."""
    return seed_interval(values, metric="mean", resamples=resamples, level=level)


# ------------------------------------------------------------------------------------------------------------------- one run


def curve(history: Mapping[str, np.ndarray]) -> tuple[str, np.ndarray, np.ndarray] | None:
    """What to draw: ``(key, env_steps, returns)``, [points, num_seeds]: evaluation, or else training, or else None."""
    for key in (EVALUATION_RETURN, TRAINING_RETURN):
        if key in history:
            known = ~np.isnan(history[key]).all(axis=1)
            if known.any():
                return key, history["env_steps"][known], history[key][known]
    return None


def learning_curve(history: Mapping[str, np.ndarray], path: Path, *, title: str, subtitle: str = "") -> bool:
    """Draw return against environment steps per seed: a thin line per seed, their mean, and its 95 % bootstrap interval.

    Evaluations where there are any, with the mean of the training episodes beside them; else training episodes.

    Returns:
      Whether there was anything to draw.
    """
    if (drawn := curve(history)) is None:
        return False
    key, steps, returns = drawn
    num_seeds = returns.shape[1]
    figure = _figure(7.2, 4.4)
    axes = figure.add_subplot()
    if key == EVALUATION_RETURN:
        _training_line(axes, history)
    if num_seeds > 1:
        marker = "o" if len(returns) == 1 else None
        axes.plot(steps, returns, color=PALE, linewidth=0.8, alpha=0.7, marker=marker, markersize=3)
        _draw(axes, steps.mean(axis=1), mean_interval(returns), LINE)
        axes.fill_between([], [], color=LINE, alpha=SHADE, linewidth=0, label="95 % interval of the mean")
        axes.plot([], [], color=LINE, linewidth=2.0, label=f"mean of {num_seeds} seeds")
        axes.plot([], [], color=PALE, linewidth=0.8, label="each seed")
    else:
        _draw(axes, steps[:, 0], (returns[:, 0],), LINE)
        axes.plot([], [], color=LINE, linewidth=2.0, label="evaluation")
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(loc="best", frameon=False, fontsize=9)
    _dress(axes, steps.max(), xlabel=X_NAME, ylabel=AXIS_NAMES[key])
    _title(figure, title)
    if subtitle:
        axes.set_title(subtitle, loc="left", fontsize=9, color=INK)
    save(figure, path)
    return True


def _training_line(axes: Any, history: Mapping[str, np.ndarray]) -> None:
    """The mean return of training episodes, which start earlier than evaluations and explore."""
    if (training := history.get(TRAINING_RETURN)) is not None:
        known = ~np.isnan(training).all(axis=1)
        mean = np.nanmean(training[known], axis=1)
        axes.plot(
            history["env_steps"][known].mean(axis=1), mean, color=FAINT, linewidth=1.2, linestyle="--", label="training episodes"
        )


# ---------------------------------------------------------------------------------------------------------------- several runs


class Curve(NamedTuple):
    """One line of a figure, before its seeds are summed up."""

    panel: str
    """The axes that it is drawn in, by title: the environment."""
    label: str
    """The same label has the same colour in every panel."""
    steps: np.ndarray
    """f64[points]: environment steps per seed."""
    values: np.ndarray
    """f64[points, num_seeds]; NaN where a seed has no value."""
    strata: np.ndarray
    """i64[num_seeds]: for ``seed_interval``."""
    is_lost: bool = False
    """All of its seeds diverged, so that it ends before its time: with a cross."""


class Band(NamedTuple):
    """A curve, and its statistic with the bounds of its interval, f64[points] each."""

    curve: Curve
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def summarise(curve: Curve, *, metric: str = "iqm", level: float = 0.95) -> Band:
    return Band(curve, *seed_interval(curve.values, metric=metric, strata=curve.strata, level=level))


def draw_curves(bands: Sequence[Band], path: Path, *, ylabel: str, caption: str, title: str = "") -> None:
    """Draw one panel per environment, a line with its band per curve (one seed: a line), and a legend for all.

    Args:
      path: its ending is one of ``FORMATS``.
      caption: what lines and bands are, in one line.

    Raises:
      OSError: the file cannot be written.
    """
    panels = list(dict.fromkeys(band.curve.panel for band in bands))
    labels = list(dict.fromkeys(band.curve.label for band in bands))
    columns = 2 if len(panels) == 4 else min(len(panels), MAX_COLUMNS)
    rows = -(-len(panels) // columns)
    width, height = (7.2, 4.4) if len(panels) == 1 else (3.6 * columns, 2.8 * rows + 0.6)
    legend_columns = _legend_columns(labels, width)
    figure = _figure(width, height + 0.2 * -(-len(labels) // legend_columns))
    styles: dict[str, tuple[str, Any]] = {
        label: (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]) for i, label in enumerate(labels)
    }
    shade = SHADE if len(labels) <= 3 else 0.6 * SHADE
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1)
        shown = [band for band in bands if band.curve.panel == panel]
        for band in shown:
            drawn = band[1:] if band.curve.values.shape[1] > 1 else band[1:2]
            colour, dashes = styles[band.curve.label]
            _draw(axes, band.curve.steps, drawn, colour, dashes, shade=shade)
            if band.curve.is_lost:
                axes.plot(band.curve.steps[-1], band.middle[-1], "x", color=colour, markersize=9, markeredgewidth=2.0)
        _dress(
            axes,
            max(band.curve.steps[-1] for band in shown),
            xlabel=X_NAME if place + columns >= len(panels) else "",
            ylabel=ylabel if place % columns == 0 else "",
        )
        if len(panels) > 1:
            axes.set_title(panel, loc="left", fontsize=10, color=INK, parse_math=False)
    if title:
        _title(figure, title)
    _legend(figure, styles if len(labels) > 1 else {}, legend_columns, caption)
    save(figure, path)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """How many entries fit beside each other in ``width`` inches; a letter takes about 0.075."""
    return max(1, min(len(labels), int(width / (0.075 * max(map(len, labels)) + 0.6))))


def _legend(figure: Any, styles: Mapping[str, tuple[str, Any]], columns: int, caption: str) -> None:
    """Below the panels, where it hides nothing, under a caption."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        (Patch(color=colour, alpha=SHADE, linewidth=0), Line2D([], [], color=colour, linestyle=dashes, linewidth=2.0))
        for colour, dashes in styles.values()
    ]
    legend = figure.legend(
        handles,
        list(styles),
        loc="outside lower center",
        ncols=columns,
        title=caption,
        frameon=False,
        fontsize=9,
        title_fontsize=9,
        labelcolor=INK,
    )
    legend.get_title().set_color(INK)
    for text in legend.get_texts():
        text.set_parse_math(False)


# ---------------------------------------------------------------------------------------------------------------------- styling


def _figure(width: float, height: float) -> Any:
    """A figure of its own rather than pyplot's, which would choose a backend for the whole process."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw(axes: Any, x: np.ndarray, drawn: Sequence[np.ndarray], colour: str, dashes: str = "-", *, shade: float = SHADE) -> None:
    """A line, and a band where ``drawn`` has bounds besides the middle. A single point is a dot with a bar."""
    middle, *bounds = drawn
    if bounds and len(x) > 1:
        axes.fill_between(x, *bounds, color=colour, alpha=shade, linewidth=0)
    elif bounds:
        axes.vlines(x, *bounds, color=colour, linewidth=1.5)
    axes.plot(x, middle, color=colour, linestyle=dashes, linewidth=2.0, marker="o" if len(x) == 1 else None)


def _title(figure: Any, title: str) -> None:
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK)


def _dress(axes: Any, last_step: float, *, xlabel: str, ylabel: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(xlabel, color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.set_xlim(0, last_step * 1.04)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)


def save(figure: Any, path: Path) -> None:
    """Write a figure, in the format of the file's ending; the file is whole or not there, and the same for the same data."""
    from matplotlib import rc_context

    kind = path.suffix[1:].lower()
    undated: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "jaxrl"}):  # publishers refuse the fonts that a PDF has otherwise
            figure.savefig(temporary, format=kind, metadata=undated.get(kind))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
