"""Main program of a guard: it waits for the end of its parent process, and then ends all that the parent started.

Workers of Ray end in ways that leave them no time for this. Does not import jax.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from jaxrl.envs.subprocess.descendants import VARIABLE, end_marked, is_stopped
from jaxrl.interpreter import python_command
from jaxrl.runtime.system.clock import LOOK, STANDSTILL


def start_guard() -> None:
    """Start a guard of this process, whose environment variables had a mark when it began."""
    mark = os.environ[VARIABLE]
    subprocess.Popen(
        python_command("jaxrl.runtime.remote.ray.guard", str(os.getpid()), mark),
        stdin=subprocess.PIPE,  # closed by the system when this process ends
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != VARIABLE},
    )


def guard(parent: int, mark: str) -> None:
    """Wait for the end of the parent, and kill it if it is stopped.

    Its pipe to this process then closes, unless a process that it forked has the pipe too.
    """
    os.set_blocking(0, False)
    stopped = 0.0
    while os.getppid() == parent:
        try:
            if not os.read(0, 1):
                break
        except BlockingIOError:
            pass
        stopped = (stopped or time.monotonic()) if is_stopped(parent) else 0.0
        if stopped and time.monotonic() - stopped > STANDSTILL:
            break
        time.sleep(LOOK)
    if os.getppid() == parent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent, signal.SIGKILL)
    end_marked([mark])


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2])
