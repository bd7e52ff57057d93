"""One measurement of a search or a population, in a new process: ``python -m benchmarks.search_side KIND JSON``."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np


def measured_search(entries: dict[str, Any]) -> dict[str, Any]:
    """Search, and return times and counts, compilation included in ``seconds``."""
    from jaxrl.runtime.search.progress import SearchProgress
    from jaxrl.runtime.search.search_file import read_search
    from jaxrl.runtime.search.session import SearchSession
    from jaxrl.runtime.system.devices import request_cpu_devices

    request_cpu_devices()
    start, read = time.perf_counter(), read_search(entries)
    session = SearchSession(read, None, SearchProgress("", read.options.trials, quiet=True), lambda: False)
    session.go()
    seconds, trials = time.perf_counter() - start, session.trials
    return {
        "seconds": seconds,
        "compile_seconds": session.compile_seconds,
        "env_steps": trials.env_steps,
        "busy": trials.busy(read.options.batch),
        "trials": len(trials.all),
        "complete": len(trials.complete),
        "best": trials.score(trials.complete[0]),
    }


def measured_ask(entries: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds in which a batch is asked for after 1,000 trials with random scores."""
    from jaxrl.runtime.search.advisers import ADVISERS
    from jaxrl.runtime.search.halving import Rungs
    from jaxrl.runtime.search.search_file import read_search
    from jaxrl.runtime.search.trials import Trials, asked_event, ended_event, returns_event

    read, rng = read_search(entries), np.random.default_rng(0)
    trials = Trials(Rungs((1,), 1), "final")
    for number, settings in enumerate(ADVISERS["random"](read.space, 1).ask(trials, 1000, None)):
        trials.apply(asked_event(number, number, 0, 0, settings))
        trials.apply(returns_event(number + 1, trials.all[-1], 1, rng.normal(size=len(read.seeds)).tolist()))
        trials.apply(ended_event(number + 1, trials.all[-1], "complete"))
    adviser, seconds = ADVISERS[read.options.method](read.space, 0), []
    for _ in range(3):
        start = time.perf_counter()
        adviser.ask(trials, read.options.batch, None)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


def measured_population(case: dict[str, Any]) -> dict[str, Any]:
    """Train populations, or as many plain agents with ``members`` None; return times and the median scores of members."""
    import jax

    import jaxrl
    from jaxrl import pbt
    from jaxrl.runtime.system.devices import request_cpu_devices

    request_cpu_devices()
    agent, members = jaxrl.make_ppo("CartPole-v1", anneal=False, **case["settings"]), case["members"] or 1
    if case["members"]:
        agent = pbt.make(agent, case["space"], members=members, ready=case["ready"])
    seeds = case["populations"] * (1 if case["members"] else case["plain_members"])
    states, history = jaxrl.run(agent, members * case["total_steps"], seeds=seeds, eval_every=0, quiet=True)
    scores = np.asarray(jax.vmap(pbt.mean_scores)(states.learner)) if case["members"] else np.zeros((0, 1))
    return {
        "seconds": float(history["seconds"][-1]),
        "env_steps": int(history["env_steps"][-1].sum()),
        "sps": float(np.median(history["sps"][1:])),
        "medians": np.nanmedian(scores, -1).tolist(),
    }


KINDS = {"search": measured_search, "ask": measured_ask, "population": measured_population}

if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](json.loads(sys.argv[2]))))
