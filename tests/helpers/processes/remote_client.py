"""Main program of a user of remote objects on a cluster of Ray: it waits for a call whose object is being lost.

``python -m tests.helpers.processes.remote_client ADDRESS RESTARTS``; prints one JSON object per line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from jaxrl import remote
from tests.helpers.processes.remote_objects import WAIT, Counter


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main(address: str, restarts: int) -> None:
    with remote.open("ray", address=address, note=lambda text: say(note=text)) as cluster:
        one = cluster.start(Counter, restarts=restarts)
        start = time.monotonic()
        total = one.call("total", cluster.put(np.ones(10**6, np.uint8))).result(WAIT)
        say(
            host=one.call("host").result(WAIT),
            total=total,
            counts=[one.call("add").result(WAIT) for _ in range(5)],
            seconds=time.monotonic() - start,
        )
        lost, behind = one.call("slow_add", 600.0), one.call("add")
        say(waiting=True)
        start = time.monotonic()
        for future in (lost, behind):
            error = future.exception(2 * WAIT)
            result = None if error else future.result()
            say(error=type(error).__name__, text=str(error), result=result, seconds=time.monotonic() - start)
        if restarts:
            say(host=one.call("host").result(WAIT))
    say(closed=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
