"""Program of a ``Child`` in tests. It executes the code it receives and answers with the variable ``answer``."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

from jaxrl.envs.subprocess.child import attend


def in_background(new_session: bool) -> int:
    """Start a program that outlives this process, and return its pid. In a new session it also has another parent."""
    sleep = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    if not new_session:
        return int(eval(f"subprocess.Popen({sleep}).pid"))
    script = f"import subprocess, sys; print(subprocess.Popen({sleep}, start_new_session=True, stdout=2).pid)"
    return int(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout)


def serve(connection: Connection) -> None:
    known: dict[str, Any] = {"os": os, "sys": sys, "in_background": in_background, "connection": connection}
    try:
        while True:
            known["answer"] = None
            exec(connection.recv(), known)
            connection.send(known["answer"])
    except EOFError:
        pass


if __name__ == "__main__":
    attend(serve)
