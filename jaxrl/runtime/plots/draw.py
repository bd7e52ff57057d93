"""Learning curves of one run, and comparisons of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN
from jaxrl.runtime.plots.statistics import mean_steps, seed_interval
from jaxrl.runtime.plots.style import (
    COLOURS,
    DASHES,
    FAINT,
    INK,
    LINE,
    PALE,
    SHADE,
    draw_line,
    dress,
    new_figure,
    save,
    set_title,
)

AXIS_NAMES = {EVALUATION_RETURN: "evaluation return", TRAINING_RETURN: "return of training episodes"}
X_NAME, UPDATES_NAME = "environment steps per seed", "updates per seed"
MAX_COLUMNS = 3


def curve(history: Mapping[str, np.ndarray]) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Return ``(key, env_steps, returns)``, [points, num_seeds], of evaluations or else of training; None without either."""
    for key in (EVALUATION_RETURN, TRAINING_RETURN):
        if key in history:
            known = ~np.isnan(history[key]).all(axis=1)
            if known.any():
                return key, history["env_steps"][known], history[key][known]
    return None


def learning_curve(
    history: Mapping[str, np.ndarray], path: Path, *, title: str, subtitle: str = "", x_name: str = X_NAME
) -> None:
    """Draw return against environment steps per seed, or what ``x_name`` says: a thin line per seed, their mean, and its 95 %
    bootstrap interval.

    Evaluations are drawn if there are any, together with the mean of the training episodes; else training episodes. If there is
    nothing to draw, no file is written.
    """
    if (drawn := curve(history)) is None:
        return
    key, steps, returns = drawn
    num_seeds = returns.shape[1]
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    if key == EVALUATION_RETURN:
        _training_line(axes, history)
    if num_seeds > 1:
        marker = "o" if len(returns) == 1 else None
        axes.plot(steps, returns, color=PALE, linewidth=0.8, alpha=0.7, marker=marker, markersize=3)
        draw_line(axes, _shared_steps(history, key), seed_interval(returns, metric="mean"), LINE)
        axes.fill_between([], [], color=LINE, alpha=SHADE, linewidth=0, label="95 % interval of the mean")
        axes.plot([], [], color=LINE, linewidth=2.0, label=f"mean of {num_seeds} seeds")
        axes.plot([], [], color=PALE, linewidth=0.8, label="each seed")
    else:
        draw_line(axes, steps[:, 0], (returns[:, 0],), LINE)
        axes.plot([], [], color=LINE, linewidth=2.0, label="evaluation")
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(loc="best", frameon=False, fontsize=9)
    dress(axes, steps.max(), xlabel=x_name, ylabel=AXIS_NAMES[key])
    heading = set_title(figure, title)
    if subtitle:
        axes.set_title(subtitle, loc="left", fontsize=9, color=INK)
        figure.draw_without_rendering()  # this places the axes
        heading.set_x(axes.get_position().x0)
    save(figure, path)


def _training_line(axes: Any, history: Mapping[str, np.ndarray]) -> None:
    """Draw the mean return of training episodes, which begin earlier than evaluations and explore."""
    if (training := history.get(TRAINING_RETURN)) is not None:
        mean = np.nanmean(training[~np.isnan(training).all(axis=1)], axis=1)
        steps = _shared_steps(history, TRAINING_RETURN)
        axes.plot(steps, mean, color=FAINT, linewidth=1.2, linestyle="--", label="training episodes")


def _shared_steps(history: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    """Return the steps of a line for all seeds, f64[points], where a seed has a value of ``key``."""
    steps = history["env_steps"]
    known = ~np.isnan(history[key]).all(axis=1)
    return mean_steps(steps, history.get("diverged", np.zeros(steps.shape, bool)))[known]


class Curve(NamedTuple):
    """One line of a figure, with the values of its seeds."""

    panel: str
    """Title of the axes that it is drawn in: the environment."""
    label: str
    """Name in the legend; a label has the same colour in every panel."""
    steps: np.ndarray
    """f64[points]: environment steps per seed."""
    values: np.ndarray
    """f64[points, num_seeds]; NaN where a seed has no value."""
    strata: np.ndarray
    """i64[num_seeds]: for ``seed_interval``."""
    is_lost: bool = False
    """True if all of its seeds diverged: the curve ends early, with a cross."""


class Band(NamedTuple):
    """A curve with its statistic and the bounds of its interval, f64[points] each."""

    curve: Curve
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def summarise(curve: Curve, *, metric: str = "iqm", level: float = 0.95) -> Band:
    return Band(curve, *seed_interval(curve.values, metric=metric, strata=curve.strata, level=level))


def draw_curves(bands: Sequence[Band], path: Path, *, ylabel: str, caption: str, title: str = "", xlabel: str = X_NAME) -> None:
    """Draw one panel per environment, a line with its band per curve (one seed: a line), and a legend for all.

    The file has an extension from ``FORMATS``; the caption describes lines and bands, in one line.
    """
    panels = list(dict.fromkeys(band.curve.panel for band in bands))
    labels = list(dict.fromkeys(band.curve.label for band in bands))
    columns = 2 if len(panels) == 4 else min(len(panels), MAX_COLUMNS)
    rows = -(-len(panels) // columns)
    width, height = (7.2, 4.4) if len(panels) == 1 else (3.6 * columns, 2.8 * rows + 0.6)
    longest = 0.075 * max(map(len, labels)) + 0.6  # inches of a label in the legend
    legend_columns = max(1, min(len(labels), int(width / longest)))
    figure = new_figure(width, height + 0.2 * -(-len(labels) // legend_columns))
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
            draw_line(axes, band.curve.steps, drawn, colour, dashes, shade=shade)
            if band.curve.is_lost:
                axes.plot(band.curve.steps[-1], band.middle[-1], "x", color=colour, markersize=9, markeredgewidth=2.0)
        dress(
            axes,
            max(band.curve.steps[-1] for band in shown),
            xlabel=xlabel if place + columns >= len(panels) else "",
            ylabel=ylabel if place % columns == 0 else "",
        )
        if len(panels) > 1:
            axes.set_title(panel, loc="left", fontsize=10, color=INK, parse_math=False)
    if title:
        set_title(figure, title)
    _legend(figure, styles if len(labels) > 1 else {}, legend_columns, caption)
    save(figure, path)


def _legend(figure: Any, styles: Mapping[str, tuple[str, Any]], columns: int, caption: str) -> None:
    """Add a legend with a caption below the panels, where it covers no data."""
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
