"""``SearchStatus``: how far a search is, read from its folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxrl.runtime.logs.live_status import StatusFile, read_status_file
from jaxrl.runtime.logs.run_folder import STATUS, damaged
from jaxrl.runtime.search.halving import Rungs
from jaxrl.runtime.search.log import BEST, MANIFEST, TRIALS, TrialLog
from jaxrl.runtime.search.trials import Trials
from jaxrl.runtime.status.process_state import judge
from jaxrl.runtime.status.run_status import noting
from jaxrl.runtime.status.sweep_status import MAX_BYTES
from jaxrl.runtime.system.disk import parse_json, read_end


@dataclass(frozen=True, kw_only=True)
class SearchStatus:
    """State of a search. The fields are the keys of ``jaxrl status --json``."""

    kind: str = "search"
    folder: str
    state: str
    reason: str
    algorithm: str
    environment: str
    trials: int
    """Number of trials that have begun."""
    ended: int
    """Number of those that have ended."""
    complete: int
    """Number of those that trained to the end."""
    env_steps: int
    best_trial: int | None = None
    best_score: float | None = None
    written: float | None = None
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def read_search_status(folder: Path, shown: str, now: float) -> SearchStatus:
    """Read the state of the search in a folder; arguments as for ``read_run_status``. Raise ValueError if ``search.json`` is
    damaged."""
    try:
        entries = parse_json(read_end(folder / MANIFEST, MAX_BYTES))["search"]
        options = entries.get("search", {})
        rungs, objective = Rungs.from_shares(options.get("rungs", [1.0])), options.get("objective", "final")
        algorithm, environment = str(entries["algorithm"]), str(entries["env"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(shown, MANIFEST) from None
    live: StatusFile | None = None
    problems: list[str] = []
    with noting(STATUS, problems):
        live = read_status_file(folder / STATUS)
    events: list[dict[str, Any]] = []
    with noting(TRIALS, problems):
        events = TrialLog(folder).read()
    trials = Trials(rungs, objective, events)
    found = judge(live, complete="it has its best settings" * (folder / BEST).exists(), is_new=not events, changed=None, now=now)
    best = trials.complete[0] if trials.complete else None
    score = math.nan if best is None else trials.score(best)
    return SearchStatus(
        folder=shown,
        state=found.state,
        reason=found.reason,
        algorithm=algorithm,
        environment=environment,
        trials=len(trials.all),
        ended=sum(trial.end is not None for trial in trials.all),
        complete=len(trials.complete),
        env_steps=trials.env_steps,
        best_trial=None if best is None or math.isnan(score) else best.number,
        best_score=None if math.isnan(score) else score,
        written=found.written,
        problems=problems,
    )
