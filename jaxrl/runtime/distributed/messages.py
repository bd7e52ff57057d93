"""Messages by which processes meet: a line of JSON each, bounded in size, depth and time, and signed with the group's secret.

Whoever listens sends a nonce first, and who comes sends one back with its message. A signature covers the nonce of its reader, so
the secret does not travel, and a message that was recorded is of no use at another meeting.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.runtime.system.disk import parse_json, read_regular

SECRET, SECRET_FILE = "JAXRL_SECRET", "JAXRL_SECRET_FILE"
"""Variables that hold the secret of a group, or the name of a file with it: ``jaxrl launch`` sets the first at each start."""

SHORTEST = 16
"""Characters of a secret; one that is shorter can be guessed from a recorded meeting."""

LONGEST = 65_536
"""Bytes of a message; a longer one does not come from jaxrl."""

SHOWN = 100
"""Characters of a word of another process in a message to people."""


class Forged(ValueError):
    """A message whose signature is not of this group's secret."""


def find_secret(variables: Mapping[str, str]) -> bytes:
    """The secret of the group; empty where there is none.

    Raises:
      ValueError: it is too short.
      OSError: its file cannot be read.
    """
    name, text = SECRET, variables.get(SECRET)
    if text is None:
        if (path := variables.get(SECRET_FILE)) is None:
            return b""
        name = f"{SECRET_FILE}={path!r}"
        try:
            text = read_regular(Path(path)).decode(errors="surrogateescape")
        except OSError as error:
            raise OSError(error.errno, f"{name} cannot be read: {error.strerror}") from None
    if len(text := text.strip()) < SHORTEST:
        raise ValueError(f"{name} holds {len(text)} characters, and a secret needs {SHORTEST}: make one by openssl rand -hex 32")
    return text.encode(errors="surrogateescape")


def new_nonce() -> str:
    return os.urandom(16).hex()


def sealed(data: Mapping[str, Any], secret: bytes, nonce: str) -> bytes:
    """A message for who has sent the nonce."""
    body = json.dumps(data)
    return json.dumps({"body": body, "signature": _signature(secret, nonce, body)}).encode() + b"\n"


def opened(line: bytes, secret: bytes, nonce: str) -> dict[str, Any]:
    """The data of a message.

    Raises:
      Forged: it is signed with another secret, or for another nonce.
      ValueError: it is not a message.
    """
    message = parsed(line)
    body, signature = message.get("body"), message.get("signature")
    if not (isinstance(body, str) and isinstance(signature, str)):
        raise ValueError("it is not a message")
    if not hmac.compare_digest(_signature(secret, nonce, body).encode(), signature.encode(errors="replace")):
        raise Forged("it is signed with another secret")
    return parsed(body.encode(errors="replace"))


def parsed(line: bytes) -> dict[str, Any]:
    """An object of JSON.

    Raises:
      ValueError: it is something else.
    """
    if not isinstance(data := parse_json(line), dict):
        raise ValueError("it is not a message")
    return data


def read_line(connection: socket.socket, late: float) -> bytes:
    """All that comes up to the end of a line.

    Args:
      late: when it must all have come, by ``time.monotonic``.

    Raises:
      OSError: it has not, or the connection has ended.
      ValueError: it is too long.
    """
    text = b""
    while not text.endswith(b"\n"):
        if (left := late - time.monotonic()) <= 0:
            raise TimeoutError("it takes too long")
        connection.settimeout(left)
        if not (part := connection.recv(LONGEST)):
            raise ConnectionError("the connection ended")
        text += part
        if len(text) > LONGEST:
            raise ValueError("it is too long")
    return text


def clean(text: object, longest: int = SHOWN) -> str:
    """What another process says of itself, without what moves a terminal's cursor or cannot be printed."""
    shown = "".join(char if char.isprintable() else "?" for char in str(text)[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[:longest]}…"


def _signature(secret: bytes, nonce: str, body: str) -> str:
    return hmac.new(secret, f"jaxrl {nonce} {body}".encode(errors="replace"), "sha256").hexdigest()
