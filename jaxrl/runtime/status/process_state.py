"""Judgement whether a run is running, from what its process wrote and whether that process is there."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl.runtime.console.progress import duration
from jaxrl.runtime.logs.live_status import BEAT, ENDS, StatusFile
from jaxrl.runtime.logs.run_folder import STATUS
from jaxrl.runtime.system.process_identity import look_for

SILENCE = 6 * BEAT
"""Seconds without a sign of life after which a process that cannot be looked for counts as silent."""

STATES = {
    "running": "its process runs; on another machine: it wrote less than a minute ago",
    "suspended": "its process is stopped (SIGSTOP)",
    "silent": "on another machine, and has not written for a minute",
    "finished": "everything is done",
    "stopped": "a signal stopped it",
    "diverged": "the losses or parameters of its seeds became NaN or infinite",
    "failed": "an error ended it",
    "gone": "its process has ended without saying so: killed, or its machine went down",
    "unknown": "its process left no name, as those of jaxrl 0.2 and before",
}
"""State of a run -> its meaning."""

LIVE = ("running", "suspended", "silent")
WELL = ("running", "finished")


class Judgement(NamedTuple):
    state: str
    reason: str
    written: float | None
    """Time of the last sign of life."""


def judge(live: StatusFile | None, *, complete: str, is_new: bool, changed: float | None, now: float) -> Judgement:
    """Return the state of a run, a sweep or a search.

    Args:
      live: its status file, if it can be read.
      complete: what shows that it is complete, in words; empty if it is not.
      is_new: it has no records.
      changed: time at which its records changed.
      now: the time.
    """
    if live is None:
        if complete:
            return Judgement("finished", complete, changed)
        return Judgement("unknown", f"it has no {STATUS}, which would name its process", changed)
    written = max(live.written, changed or 0.0) if live.end is None else live.end.time
    if live.end is not None:
        return Judgement(live.end.state, live.end.reason, written)
    where = f"process {live.process.pid} on {live.process.host}"
    sight = look_for(live.process)
    if sight == "gone" and complete:
        return Judgement("finished", f"{complete}; its process ended before it said so", written)
    if sight == "gone":
        return Judgement("gone", f"{where} was killed, or its machine went down", written)
    if sight == "suspended":
        return Judgement("suspended", f"{where} is stopped (SIGSTOP)", written)
    silence = now - written
    if sight == "out of sight" and silence > SILENCE:
        reason = f"{where} has not written for {duration(silence)}, and cannot be seen from this machine"
        return Judgement("silent", reason, written)
    late = f"; it has not written for {duration(silence)}: its machine is overloaded, or the folder cannot be written to"
    doing = "no record yet: it compiles, or trains its first chunk" if is_new else ""
    return Judgement("running", "; ".join(filter(None, [where, doing])) + late * (silence > SILENCE), written)


assert set(ENDS) < set(STATES)
