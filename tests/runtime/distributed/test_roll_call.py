"""The roll call of processes that train together: who comes, what does not fit, and strangers at the port."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from typing import Any

import pytest

from jaxrl.runtime.distributed import listener, messages
from jaxrl.runtime.distributed import rendezvous as roll_call_module
from jaxrl.runtime.distributed.cluster import ProcessPlace
from jaxrl.runtime.distributed.messages import LONGEST
from jaxrl.runtime.distributed.rendezvous import PortTaken, roll_call
from tests.helpers.roll_calls import Meeting, called, report


def test_all_come() -> None:
    for secret in (b"", b"a secret of theirs"):
        assert called((3, 2), (3, 0), (3, 1), secrets=(secret,) * 3) == [None, "127.0.0.1", None]


@pytest.mark.parametrize(
    ("processes", "about", "message"),
    [
        (((3, 0), (3, 1), (3, 1)), (), "two processes have process_id=1: .*: give each its own process_id, 0 … 2"),
        (((2, 0), (3, 2)), (), r"process 2 .* has num_processes=3, and process 0 .* has num_processes=2: .* same number"),
        (((2, 0), (2, 1)), ({"jax": "1"}, {"jax": "2"}), r"process 1 .* has jax 2, and process 0 .* has 1: install the same"),
    ],
)
def test_all_are_told_what_does_not_fit(processes: Any, about: Any, message: str) -> None:
    errors = called(*processes, about=about)
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        with pytest.raises(ValueError, match=message):
            raise error


def test_all_are_told_who_is_missing() -> None:
    errors = called((4, 0), (4, 2), timeout=0.5)
    assert {str(error) for error in errors} == {str(errors[0])} and all(isinstance(error, TimeoutError) for error in errors)
    assert "2 of 4 processes did not reach" in str(errors[0]) and "number 1, 3" in str(errors[0])


def test_no_process_0() -> None:
    (error,) = called((2, 1), timeout=0.2)
    assert isinstance(error, TimeoutError) and "process 1 found no process 0 at coordinator='127.0.0.1:" in str(error)


def test_an_address_that_is_taken_or_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = [ProcessPlace(f"127.0.0.1:{taken.getsockname()[1]}", 2, 0), ProcessPlace("192.0.2.1:14270", 2, 0)]
        for place, kind in zip(places, (PortTaken, OSError), strict=True):
            with pytest.raises(kind, match=r"cannot meet the others .* address of this machine, and a port that is free"):
                roll_call(place, {}, 0.2)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\n",
        b"[]\n",
        b'{"process_id": "1"}\n',
        b"",
        b"[" * 60_000 + b"\n",
        b'{"body": ' + b"[" * 60_000 + b"\n",
        b"\xff\xfe\n",
        b"9" * (LONGEST + 1),
        json.dumps({"body": "[" * 60_000, "signature": "0"}).encode() + b"\n",
    ],
    ids=lambda nonsense: repr(nonsense[:12]),
)
def test_a_stranger_at_the_port_is_sent_away(nonsense: bytes) -> None:
    meeting = Meeting()
    stranger, _ = meeting.come()
    stranger.sendall(nonsense)
    if not nonsense:
        stranger.close()
    else:
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    assert meeting.end() == ["127.0.0.1"]


@pytest.mark.parametrize(
    "changes",
    [
        {"process_id": 7},
        {"process_id": 2},
        {"process_id": -1},
        {"process_id": True},
        {"process_id": 1.0},
        {"num_processes": True},
        {"num_processes": 0},
        {"about": []},
        {"name": 1},
        {"nonce": None},
    ],
    ids=str,
)
def test_a_rank_that_cannot_be_is_a_strangers(changes: dict[str, Any]) -> None:
    meeting = Meeting()
    stranger, nonce = meeting.come()
    stranger.sendall(report(nonce, **changes))
    assert stranger.recv(4096) == b""
    assert meeting.end() == ["127.0.0.1"]


def test_a_report_of_nothing_but_brackets_is_a_strangers() -> None:
    """Without a secret such a report has a valid signature."""
    meeting = Meeting()
    stranger, nonce = meeting.come()
    body = '{"about": ' + "[" * 60_000
    stranger.sendall(json.dumps({"body": body, "signature": messages._signature(b"", nonce, body)}).encode() + b"\n")
    assert stranger.recv(4096) == b""
    assert meeting.end() == ["127.0.0.1"]


def test_those_that_say_nothing_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have separate timeouts, at the same time. If there are too many, the first ones are disconnected."""
    monkeypatch.setattr(listener, "PATIENCE", 3600.0)
    monkeypatch.setattr(listener, "MAX_SILENT", 20)
    meeting = Meeting()
    for _ in range(30):
        meeting.come()
    assert meeting.strangers[0].recv(1) == b""
    assert meeting.end() == ["127.0.0.1"]


def test_a_byte_now_and_then_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is for the whole report."""
    monkeypatch.setattr(listener, "PATIENCE", 0.3)
    meeting = Meeting()
    stranger, _ = meeting.come()
    with pytest.raises(OSError):
        for _ in range(1000):
            stranger.sendall(b" ")
            time.sleep(0.02)
    assert meeting.end() == ["127.0.0.1"]


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call_module, "GRACE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:

        def drip() -> None:
            connection = other.accept()[0]
            with contextlib.suppress(OSError), connection:
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.02)

        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(TimeoutError, match="nothing answers there: another program uses that port, or process 0 hangs"):
            roll_call(ProcessPlace(f"127.0.0.1:{other.getsockname()[1]}", 2, 1), {}, 0.2)
