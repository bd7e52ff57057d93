"""Files ``status.json`` of processes that tests choose."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from jaxrl.runtime.logs.live_status import StatusFile, _to_json
from jaxrl.runtime.system.process_identity import ProcessIdentity, _start_and_state, this_process

ELSEWHERE = this_process()._replace(host="elsewhere", boot="another", pid=7)


def identity_of(pid: int) -> ProcessIdentity:
    return this_process()._replace(pid=pid, started=_start_and_state(pid)[0])


def write_status(folder: Path, **changes: Any) -> Path:
    """Write the ``status.json`` of a run that this process began 100 s ago, with these changes, and return its path."""
    now = time.time()
    status = StatusFile(this_process(), now - 100, now - 3, now + 42.6, None, [], [])._replace(**changes)
    path = folder / "status.json"
    path.write_text(_to_json(status, folder))
    return path
