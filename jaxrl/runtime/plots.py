"""Learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime.logs import EVALUATION_RETURN, TRAINING_RETURN

LINE, PALE, FAINT, INK, GRID = "#1f6feb", "#8db7f5", "#8c959f", "#24292f", "#d8dee4"


def mean_interval(values: np.ndarray, *, resamples: int = 2000, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over seeds and the bootstrap interval of that mean, per point.

    Args:
      values: f64[num_points, num_seeds]; NaN where a seed has no value. Every point needs one seed that has.

    Returns:
      (mean, low, high), f64[num_points] each.
    """
    drawn = np.random.default_rng(0).integers(values.shape[1], size=(resamples, values.shape[1]))
    bounds = []
    for row in values:
        known, filled = ~np.isnan(row), np.nan_to_num(row)
        number = known[drawn].sum(1)
        means = filled[drawn].sum(1)[number > 0] / number[number > 0]
        bounds.append(np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    low, high = np.transpose(bounds)
    return np.nanmean(values, axis=1), low, high


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    key, steps, returns = drawn
    num_seeds = returns.shape[1]
    # A figure of its own rather than pyplot's, which would choose a backend for the whole process.
    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if key == EVALUATION_RETURN:
        _training_line(axes, history)
    marker = "o" if len(returns) == 1 else None
    if num_seeds > 1:
        axes.plot(steps, returns, color=PALE, linewidth=0.8, alpha=0.7, marker=marker, markersize=3)
        mean, low, high = mean_interval(returns)
        x = steps.mean(axis=1)
        axes.fill_between(x, low, high, color=LINE, alpha=0.18, linewidth=0, label="95 % interval of the mean")
        axes.plot(x, mean, color=LINE, linewidth=2.2, marker=marker, label=f"mean of {num_seeds} seeds")
        axes.plot([], [], color=PALE, linewidth=0.8, label="each seed")
    else:
        axes.plot(steps, returns, color=LINE, linewidth=2.0, marker=marker, label="evaluation")
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(loc="best", frameon=False, fontsize=9)
    _dress(axes, steps, "greedy evaluation return" if key == EVALUATION_RETURN else "return of training episodes")
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK)
    if subtitle:
        axes.set_title(subtitle, loc="left", fontsize=9, color=INK)
    figure.savefig(path)
    return True


def _training_line(axes: Any, history: Mapping[str, np.ndarray]) -> None:
    """The mean return of training episodes, which start earlier than evaluations and explore."""
    if (training := history.get(TRAINING_RETURN)) is not None:
        known = ~np.isnan(training).all(axis=1)
        mean = np.nanmean(training[known], axis=1)
        axes.plot(
            history["env_steps"][known].mean(axis=1), mean, color=FAINT, linewidth=1.2, linestyle="--", label="training episodes"
        )


def _dress(axes: Any, steps: np.ndarray, ylabel: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel("environment steps per seed", color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.set_xlim(0, steps.max() * 1.04)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
