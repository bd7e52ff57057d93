"""Main program of a worker process of ``Processes``: it opens a part of the environments and serves calls to them."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from jaxrl.envs.host import error_text
from jaxrl.envs.subprocess.child import attend
from jaxrl.envs.subprocess.shared_rows import SharedRows, put

SHARE, CLOSE = "share", "close"
"""Calls to a worker in addition to methods of environments: place further rows in shared memory; end."""

GIVEN, SHARED, FAILED = "given", "shared", "failed"
"""Kinds of answers: a result; a result in shared memory; (message, traceback) of an error, which is the last answer."""


def serve(connection: Connection) -> None:
    """Call the received function to open environments; then answer each (method, arguments) by (kind, value), until ``CLOSE``.

    Rows are pickled until there is shared memory for them (``SHARE``), and later if they do not fit it. A ``step`` without
    arguments takes its action from that memory.
    """
    envs: Any = None
    rows: SharedRows | None = None
    try:
        envs = connection.recv()()
        connection.send((GIVEN, None))
        while (call := connection.recv())[0] != CLOSE:
            method, arguments = call
            if method == SHARE:
                example, num_envs = arguments
                rows = SharedRows(example, num_envs, connection)
                continue
            if method == "step" and not arguments:
                assert rows is not None
                arguments = (np.array(rows.action),)
            result = getattr(envs, method)(*arguments)
            fits = rows is not None and put(rows.row if method == "step" else rows.row.obs, result)
            connection.send((SHARED, None) if fits else (GIVEN, result))
        envs.close()
    except EOFError:
        pass  # the parent process has ended
    except Exception as error:
        connection.send((FAILED, (error_text(error), traceback.format_exc())))


if __name__ == "__main__":
    attend(serve)
