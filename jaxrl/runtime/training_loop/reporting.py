"""Messages of a run: diverged seeds, elapsed time, and the gap between greedy evaluations and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxrl.runtime.console.progress import duration, number
from jaxrl.runtime.logs.greedy_gap import greedy_gap
from jaxrl.runtime.trainers.non_finite import Suspects


def names(seeds: Sequence[int], chosen: np.ndarray) -> str:
    """Return the chosen seeds as text."""
    return ", ".join(map(str, np.array(seeds)[chosen]))


def divergence(seeds: Sequence[int], new: np.ndarray, suspects: Suspects | None, rows: int) -> Iterator[str]:
    """Yield a line for each seed that diverged because of an environment, and a line for all other seeds that diverged.

    Args:
      new: bool[num_seeds], seeds that diverged now.
      suspects: [num_seeds, num_envs]; None if unknown.
      rows: rows per seed so far.
    """
    frozen = "frozen in its state from before, and excluded from here on"
    unknown = new.copy()
    for i in map(int, np.flatnonzero(new)) if suspects else ():
        assert suspects is not None
        if said := Suspects(suspects.obs[i], suspects.reward[i]).in_words():
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
