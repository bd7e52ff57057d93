"""Messages of the rendezvous: lines of JSON, bounded in size, depth and time, and signed with the group's secret.

The listening process first sends a nonce, and the connecting one sends its own nonce with its message. A signature covers the
nonce of the receiver, so the secret is never sent, and a recorded message cannot be replayed at another rendezvous.
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
"""Variables with the group's secret, or with the name of a file that holds it. ``jaxrl launch`` sets the first at each start."""

SHORTEST = 16
"""Minimum characters of a secret. A shorter one could be guessed from a recorded rendezvous."""

LONGEST = 65_536
"""Maximum bytes of a message of jaxrl."""

SHOWN = 100
"""Maximum characters of another process's text in an error message."""


class Forged(ValueError):
    """Error: a message is not signed with this group's secret."""


def find_secret(variables: Mapping[str, str]) -> bytes:
    """Return the secret of the group; empty if none is set. Raise an error if it is too short, or its file cannot be read."""
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
        raise ValueError(
            f"{name} holds {len(text)} characters, and a secret needs {SHORTEST}: make one with 'openssl rand -hex 32'"
        )
    return text.encode(errors="surrogateescape")


def new_nonce() -> str:
    return os.urandom(16).hex()


def sealed(data: Mapping[str, Any], secret: bytes, nonce: str) -> bytes:
    """Return a signed message to the sender of the nonce."""
    body = json.dumps(data)
    return json.dumps({"body": body, "signature": _signature(secret, nonce, body)}).encode() + b"\n"


def opened(line: bytes, secret: bytes, nonce: str) -> dict[str, Any]:
    """Return the data of a signed message. Raise Forged for another secret or nonce, ValueError for other lines."""
    message = parsed(line)
    body, signature = message.get("body"), message.get("signature")
    if not (isinstance(body, str) and isinstance(signature, str)):
        raise ValueError("it is not a message")
    if not hmac.compare_digest(_signature(secret, nonce, body).encode(), signature.encode(errors="replace")):
        raise Forged("it is signed with another secret")
    return parsed(body.encode(errors="replace"))


def parsed(line: bytes) -> dict[str, Any]:
    """Parse a JSON object, or raise ValueError."""
    if not isinstance(data := parse_json(line), dict):
        raise ValueError("it is not a message")
    return data


def read_line(connection: socket.socket, late: float) -> bytes:
    """Read a line until ``late`` (``time.monotonic``). Raise OSError if it does not come, or ValueError if it is too long."""
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
    """Return text of another process, shortened, with unprintable characters such as terminal escapes replaced."""
    shown = "".join(char if char.isprintable() else "?" for char in str(text)[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[:longest]}…"


def _signature(secret: bytes, nonce: str, body: str) -> str:
    return hmac.new(secret, f"jaxrl {nonce} {body}".encode(errors="replace"), "sha256").hexdigest()
