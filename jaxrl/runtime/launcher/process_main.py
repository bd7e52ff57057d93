"""Main function of a process of a group: run ``jaxrl train`` or a script.

If that fails, the process ends at once: Python's shutdown would wait for the other processes, which wait for this one.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from jaxrl.envs.subprocess.child import attend
from jaxrl.runtime.distributed.cluster import PORT_TAKEN
from jaxrl.runtime.distributed.rendezvous import PortTaken


def serve(connection: Connection) -> None:
    """Run the command that is received."""
    try:
        command = connection.recv()
    except EOFError:  # the launcher has ended
        return
    code = run(command)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code:
        os._exit(code)


def run(command: Sequence[str]) -> int:
    """Run a script (a file and its arguments) or a jaxrl command, and return the exit code."""
    sys.argv = ["jaxrl", *command]
    try:
        if is_script(command[0]):
            sys.argv = [*command]
            sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))  # as Python does
            runpy.run_path(command[0], run_name="__main__")
        else:
            runpy.run_module("jaxrl", run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != command[0]:  # leave out jaxrl's frames above the script
            trace = trace.tb_next
        shown = error.with_traceback(trace or error.__traceback__)
        sys.excepthook(type(error), shown, shown.__traceback__)
        return PORT_TAKEN if isinstance(error, PortTaken) else 1
    return 0


def is_script(word: str) -> bool:
    return word.endswith(".py")


if __name__ == "__main__":
    attend(serve)
