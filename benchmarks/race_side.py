"""jaxrl's side of a race: a run that stops at a score, compiled from nothing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import jaxrl
from benchmarks.experiments import EXPERIMENTS
from benchmarks.protocol import serve
from benchmarks.race_cases import EPISODES, EVALUATIONS
from benchmarks.scores import build_agent
from jaxrl.runtime.logs.records import EVALUATION_RETURN
from jaxrl.training import num_iterations


def race(how: dict[str, str], score: float, total_steps: int, num_seeds: int, first_seed: int) -> dict[str, Any]:
    """Train until the mean over seeds reaches ``score``. Return the seconds from the builder to the end, steps and returns."""
    begin = time.perf_counter()
    agent = build_agent(EXPERIMENTS[how["preset"]])
    _, history = jaxrl.run(
        agent,
        total_steps,
        seeds=range(first_seed, first_seed + num_seeds),
        eval_every=max(1, num_iterations(agent, total_steps) // EVALUATIONS),
        eval_episodes=EPISODES,
        stop_at=score,
        quiet=True,
    )
    reached = float(np.nanmean(history[EVALUATION_RETURN][-1]))
    return {"seconds": time.perf_counter() - begin, "steps": int(history["rows"][-1]), "reached": reached}


if __name__ == "__main__":
    serve({"race": race})
