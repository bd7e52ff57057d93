"""Messages of another process, in any chunks."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
import pytest

from jaxrl.envs.subprocess.inbox import Garbled, Inbox


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    here, there = Pipe()
    with here, there:
        yield here, there


def test_messages_are_those_that_were_sent(ends: Any) -> None:
    here, there = ends
    inbox, sent = Inbox(here), [("given", None), {"a": 1}, np.arange(1000), b"x" * 40_000]
    for message in sent:
        there.send(message)
    came = []
    while len(came) < len(sent):
        came += inbox.read()
    np.testing.assert_equal(came, sent)
    assert not here.poll()


def test_a_part_of_one_is_not_waited_for(ends: Any) -> None:
    here, there = ends
    inbox, text = Inbox(here), pickle.dumps("whole")
    message = struct.pack("!i", len(text)) + text
    for byte in message[:-1]:
        os.write(there.fileno(), bytes([byte]))
        assert inbox.read() == []
    os.write(there.fileno(), message[-1:] + message)
    assert inbox.read() == ["whole", "whole"]
    os.write(there.fileno(), struct.pack("!iQ", -1, len(text)) + text)  # the format of messages of 2 GiB and more
    assert inbox.read() == ["whole"]
    os.write(there.fileno(), message[:7])
    assert inbox.read() == []
    there.close()
    with pytest.raises(EOFError):
        inbox.read()


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage",
        b"garb\x80",  # a size of 1.6 GiB, without the data
        b"\xff\xff\xff\x00none",
        b"\0\0\0\0",
        b"\0\0\0\x09printed\n\n",
        struct.pack("!i", 12) + b"\x80\x04no pickle!",
        struct.pack("!i", 19) + b"\x80\x04cjaxrl\nno_such_1\n.",
        b"\n" + struct.pack("!i", 5) + pickle.dumps(1),  # followed by a valid message
    ],
)
def test_what_is_no_message_is_found(garbage: bytes, ends: Any) -> None:
    here, there = ends
    os.write(there.fileno(), garbage)
    inbox = Inbox(here)
    if garbage == b"garb\x80":
        assert inbox.read() == []  # the rest may still arrive
        return
    with pytest.raises(Garbled):
        inbox.read()
