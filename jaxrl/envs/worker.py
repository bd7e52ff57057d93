"""What a worker process of ``jaxrl.envs.processes`` runs: it opens a part of the environments and does what it is told."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection
from typing import Any

from jaxrl.envs.child import attend
from jaxrl.envs.host import EnvironmentFailed


def serve(connection: Connection) -> None:
    """Open what is received; then answer each (method, arguments), until ``close``.

    An answer is (True, result), or, the last one of all, (False, (message, traceback)).
    """
    envs: Any = None
    try:
        envs = connection.recv()()
        connection.send((True, None))
        while (call := connection.recv())[0] != "close":
            connection.send((True, getattr(envs, call[0])(*call[1])))
        envs.close()
    except EOFError:
        pass  # whoever asked is gone
    except Exception as error:
        text = str(error) if isinstance(error, EnvironmentFailed) else f"{type(error).__name__}: {error}"
        connection.send((False, (" ".join(text.split()), traceback.format_exc())))


if __name__ == "__main__":
    attend(serve)
