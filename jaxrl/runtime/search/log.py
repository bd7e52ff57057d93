"""``trials.jsonl``: the events of a search, one line each, written by one process. It is all that a search is resumed from,
beside the states of the trials that train.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from jaxrl.runtime.search.trials import Event
from jaxrl.runtime.system.disk import parse_json, read_regular, write_atomically

MANIFEST, TRIALS, BEST = "search.json", "trials.jsonl", "best.toml"
"""Files of a search: its entries, its events, and the best settings, which are written last but one."""

KEYS: dict[str, frozenset[str]] = {
    "boundary": frozenset({"env_steps"}),
    "asked": frozenset({"trial", "round", "slot", "settings"}),
    "tested": frozenset({"trial", "age", "returns"}),
    "ended": frozenset({"trial", "how"}),
}
"""Kind of event -> its keys, beside ``event`` and ``at``."""


class TrialLog:
    """The log in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TRIALS

    def read(self) -> list[Event]:
        """Return the events up to the last boundary that is complete. A torn end is left out.

        Raises:
          ValueError: a line before it is damaged.
        """
        if not self.path.exists():
            return []
        events, complete, trials = list[Event](), 0, 0
        for number, line in enumerate(read_regular(self.path).split(b"\n")[:-1], 1):
            try:
                events.append(_checked(parse_json(line), trials))
            except ValueError as error:
                raise ValueError(f"{self.path}, line {number} is damaged: {error}. Restore the file from a copy") from None
            trials += events[-1]["event"] == "asked"
            if events[-1]["event"] == "boundary":
                complete = len(events)
        return events[:complete]

    def rewrite(self, events: Sequence[Event]) -> None:
        """Replace all events, atomically."""
        write_atomically(self.path, "".join(map(_line, events)))

    def append(self, events: Sequence[Event]) -> None:
        """Add the events of a boundary. They are on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(map(_line, events)))
            file.flush()
            os.fsync(file.fileno())


def _line(event: Event) -> str:
    return json.dumps(event) + "\n"


def _checked(event: object, trials: int) -> Event:
    """Return an event that follows ``trials`` trials. Raise ValueError if it lacks keys, or is of another trial."""
    if not isinstance(event, dict) or not {"event", "at"} <= event.keys():
        raise ValueError("an event of a search has the keys event and at")
    kind = str(event["event"])
    needed = KEYS.get(kind, frozenset())
    if lacking := needed - event.keys():
        raise ValueError(f"an event {kind!r} also has the keys {', '.join(sorted(lacking))}")
    if "trial" in needed and event["trial"] not in ([trials] if kind == "asked" else range(trials)):
        raise ValueError(f"an event {kind!r} of trial {event['trial']}, after {trials} trials")
    return event


def up_to(events: Sequence[Event], boundary: int) -> list[Event]:
    """Return the events up to a boundary."""
    return [event for event in events if event["at"] <= boundary]
