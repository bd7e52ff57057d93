"""Messages of a run: its title, notes at its beginning, diverged seeds, values left blank, elapsed time, and the gap between
greedy evaluations and training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.builder.spec import algorithm_name, unimportable_parts
from jaxrl.optimize.schedules import ScheduleWarning, doubtful
from jaxrl.runtime.console.progress import Progress, duration, number, spread
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.dip import dip
from jaxrl.runtime.logs.greedy_gap import greedy_gap
from jaxrl.runtime.logs.records import EVALUATION_RETURN, known_rows
from jaxrl.runtime.system.warn import warn
from jaxrl.runtime.trainers.device_layout import learns_alike
from jaxrl.runtime.trainers.non_finite import Suspects
from jaxrl.types import Agent


def names(seeds: Sequence[int], chosen: np.ndarray) -> str:
    """Return the chosen seeds as text."""
    return ", ".join(map(str, np.array(seeds)[chosen]))


def divergence(seeds: Sequence[int], new: np.ndarray, suspects: Suspects | None, rows: int, num_agents: int = 0) -> Iterator[str]:
    """Yield a line for each seed that diverged because of an environment, and a line for all other seeds that diverged.

    Args:
      new: bool[num_seeds], seeds that diverged now.
      suspects: [num_seeds, B]; None if unknown.
      rows: rows per seed so far.
    """
    frozen = "frozen in its state from before, and excluded from here on"
    unknown = new.copy()
    for i in map(int, np.flatnonzero(new)) if suspects else ():
        assert suspects is not None
        if said := Suspects(suspects.obs[i], suspects.reward[i]).in_words(num_agents):
            unknown[i] = False
            yield (
                f"seed {seeds[i]}: {said} by step {rows:,}, and so are its losses or parameters: {frozen}; fix the environment, "
                "which jaxrl.check_env can check"
            )
    if unknown.any():
        yield (
            f"seed {names(seeds, unknown)}: losses or parameters are NaN or infinite by step {rows:,}: {frozen}; a smaller "
            "learning_rate may help"
        )


@dataclass(eq=False)
class Blanks:
    """Values that are left out of logs, since infinite values cannot be drawn or averaged. The first are reported."""

    seeds: Sequence[int]
    note: Callable[[str], Any]
    reported: bool = False

    def leave_out(self, key: str, value: Any, lost: Any, rows: int) -> Any:
        """Replace the values of a log key by NaN where ``lost``."""
        if not np.any(lost):
            return value
        if not self.reported:
            self.reported = True
            which = f" of seed {names(self.seeds, lost)}" if np.shape(lost) == (len(self.seeds),) else ""
            self.note(f"{key}{which} is not finite at step {rows:,}: such values are left blank and excluded from means")
        return np.where(lost, np.nan, value)


def spent(seconds: Mapping[str, float]) -> str:
    """Format the time that a run did not spend on training: `` (compilation 12 s, evaluation 31 s)``."""
    parts = ", ".join(f"{activity} {duration(each)}" for activity, each in seconds.items() if each)
    return f" ({parts})" if parts else ""


def gap_in_words(history: Mapping[str, np.ndarray], eval_explore: bool) -> str | None:
    """Return advice if greedy evaluations, which select the best policies, are far below training returns; else None."""
    gap = None if eval_explore else greedy_gap(history)
    if gap is None:
        return None
    size = max(map(abs, gap))
    greedy, training = (number(x, size) for x in gap)
    return (
        f"greedy evaluations return {greedy} where training, which explores, returned {training}, and best/ was chosen by the "
        "greedy ones: 'jaxrl eval RUN --which last --explore' acts as in training, and with --eval-explore (eval_explore=True) "
        "evaluations during a run do"
    )


def evaluations_in_words(history: Mapping[str, np.ndarray], total_steps: int, *, online: bool) -> Iterator[str]:
    """Yield the last evaluation as text for the summary of a run, and the dip of one that began with a dataset."""
    if known := known_rows(history, EVALUATION_RETURN):
        yield f"evaluation return {spread({EVALUATION_RETURN: known[-1]}, EVALUATION_RETURN)}"
        if online:
            yield dip_in_words(history, total_steps)


def dip_in_words(history: Mapping[str, np.ndarray], total_steps: int) -> str:
    """Return the dip as text, for the summary of a run."""
    if (found := dip(history, total_steps)) is None:
        return "dip unknown, for no evaluation was made in the first tenth (eval_every)"
    size = max(map(abs, found))
    before, lowest = (number(x, size) for x in found)
    return f"dip in the first tenth from {before} to {lowest}"


def title_of(agent: Agent, num_seeds: int, num_devices: int) -> str:
    """Return the title of the panel and the learning curve."""
    title = f"{algorithm_name(agent.spec)} · {agent.env.name} · {num_seeds} seed{'s' * (num_seeds > 1)}"
    title += f" on {num_devices} devices" * (num_devices > 1)
    return title if current().is_alone else f"{title} in {current().num_processes} processes"


def first_notes(
    agent: Agent, asked: int, total_steps: int, devices_per_seed: int, advice: str | None, out: str | os.PathLike[str] | None
) -> Iterator[str]:
    """Yield the notes that the user should read before the run begins."""
    if total_steps != asked:
        rows = f"{agent.num_envs} × {agent.rollout_length}"
        yield f"total_steps={asked} rounded up to {total_steps}: whole iterations of {rows} rows"
    if devices_per_seed > 1:
        share = agent.num_envs // devices_per_seed
        sharing = f"{devices_per_seed} devices share a seed's environments, {share} each"
        if agent.algorithm.learn:
            yield f"{sharing}, and draw a share of each batch from them: results differ from those of one device"
        elif learns_alike(agent) and devices_per_seed.bit_count() == 1:
            yield f"{sharing}, and learn the same as one device, up to rounding"
        else:
            yield sharing
    if advice:
        yield advice
    if out is not None:
        for name, part in unimportable_parts(agent.spec).items():
            yield (
                f"no other process can import {name}={part}: to resume or load this run there, pass it again, as in "
                f"jaxrl.load_policy({os.fspath(out)!r}, {name}=…), or define it at the top level of a separate module"
            )


def warn_of_schedules(agent: Agent, iterations: int) -> None:
    """Warn about schedules that look like values where factors are expected."""
    if current().is_first:
        for doubt in doubtful(agent.schedules, agent.hyperparams, iterations):
            warn(doubt, ScheduleWarning)


def tell(text: str, progress: Progress, quiet: bool) -> None:
    """Report an event of the workers: the first process has a display, the others write to stderr."""
    if current().is_first:
        progress.note(text)
    elif not quiet:
        warn(text)
