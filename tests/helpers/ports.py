"""A free port of this machine."""

from __future__ import annotations

import socket


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
