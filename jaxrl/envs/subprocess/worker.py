"""What a worker process of ``Processes`` runs: it opens a part of the environments and does what it is told."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.envs.subprocess.child import attend
from jaxrl.envs.subprocess.shared_rows import SharedRows, put

SHARE, CLOSE = "share", "close"
"""What a worker is told besides the methods of environments: where rows go from now on; and to end."""

GIVEN, SHARED, FAILED = "given", "shared", "failed"
"""What an answer is: a result; that the result lies in the memory for rows; (message, traceback), the last one of all."""


def serve(connection: Connection) -> None:
    """Open what is received; then answer each (method, arguments) by (kind, value), until ``CLOSE``.

    Rows are pickled until there is memory for them (``SHARE``), and wherever they do not fit that. An action that is not among
    the arguments is there as well.
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
        pass  # whoever asked is gone
    except Exception as error:
        text = str(error) if isinstance(error, EnvironmentFailed) else f"{type(error).__name__}: {error}"
        connection.send((FAILED, (" ".join(text.split()), traceback.format_exc())))


if __name__ == "__main__":
    attend(serve)
