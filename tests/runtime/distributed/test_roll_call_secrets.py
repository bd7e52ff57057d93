"""Secrets of a roll call, and what is shown of answers that others send."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from jaxrl.runtime.distributed.cluster import ProcessPlace
from jaxrl.runtime.distributed.messages import clean, find_secret, new_nonce, opened, read_line, sealed
from jaxrl.runtime.distributed.rendezvous import PortTaken, roll_call
from tests.helpers.roll_calls import Meeting, called, report


def test_who_has_another_secret_is_a_stranger() -> None:
    """Both get a message, and process 0 waits for the one that has its secret."""
    meeting = Meeting(b"one")
    with pytest.raises(ValueError, match=r"process 0 at .* has another secret than process 1: give all the same JAXRL_SEC"):
        roll_call(meeting.at._replace(process_id=1), {}, 30.0, b"other")
    assert meeting.end() == ["127.0.0.1"]
    first, _ = called((2, 0), (2, 1), secrets=(b"one", b""), timeout=1.0)
    assert isinstance(first, TimeoutError) and "(1 had another JAXRL_SECRET)" in str(first)


def test_a_recorded_report_is_of_no_use() -> None:
    meeting = Meeting(b"secret")
    _, nonce = meeting.come()
    other, new = meeting.come()
    assert nonce != new
    other.sendall(report(nonce, b"secret"))
    assert b"signature" in other.recv(4096) and other.recv(4096) == b""
    assert meeting.end() == ["127.0.0.1"]


def test_a_secret_does_not_travel() -> None:
    secret, nonce = b"a secret of the group's", new_nonce()
    line = sealed({"a": 1}, secret, nonce)
    assert secret not in line and opened(line, secret, nonce) == {"a": 1}
    for other in ((b"", nonce), (secret, new_nonce())):
        with pytest.raises(ValueError, match="signed with another secret"):
            opened(line, *other)
    with pytest.raises(ValueError, match="signed with another secret"):
        opened(line.replace(b"1", b"2", 1), secret, nonce)


def test_where_a_secret_is_found(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    assert find_secret({}) == b""
    assert find_secret({"JAXRL_SECRET_FILE": str(file)}) == b"0123456789abcdef"
    assert find_secret({"JAXRL_SECRET_FILE": str(file), "JAXRL_SECRET": "fedcba9876543210"}) == b"fedcba9876543210"
    with pytest.raises(OSError, match=r"JAXRL_SECRET_FILE='.*none' cannot be read: No such file"):
        find_secret({"JAXRL_SECRET_FILE": str(tmp_path / "none")})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"JAXRL_SECRET_FILE='.*pipe' cannot be read"):
        find_secret({"JAXRL_SECRET_FILE": str(tmp_path / "pipe")})
    for variables in ({"JAXRL_SECRET": ""}, {"JAXRL_SECRET": "guess"}):
        with pytest.raises(ValueError, match=r"JAXRL_SECRET holds \d characters, and a secret needs 16: make one with 'openssl"):
            find_secret(variables)


def test_what_others_say_is_shown_without_signs_for_terminals() -> None:
    assert clean("gpu-7.local, pid 3") == "gpu-7.local, pid 3"
    assert clean("a\x1b[2J\r\n\x9b\u202eb\ud800") == "a?[2J????b?"
    assert clean("x" * 1000) == "x" * 100 + "…" and clean({"a": "\x1b"}) == "{'a': '\\x1b'}"
    errors = called((2, 0), (2, 1), about=({"jax": "1"}, {"jax": "\x1b[31m"}))
    for error in errors:
        assert "has jax ?[31m, and process 0" in str(error)


def test_the_answer_of_a_false_process_0_is_shown_so_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection = other.accept()[0]
            connection.sendall(b'{"nonce": "theirs"}\n')
            nonce = opened(read_line(connection, time.monotonic() + 30), b"", "theirs")["nonce"]
            connection.sendall(sealed({"problem": "\x1b[2Jnothing"}, b"", nonce))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ValueError, match=r"^\?\[2Jnothing$"):
            roll_call(ProcessPlace(f"127.0.0.1:{other.getsockname()[1]}", 2, 1), {}, 30.0)


@pytest.mark.parametrize("answer", [b"220 mail\n", b"{}\n", b"[" * 60_000 + b"\n", b""])
def test_what_answers_may_be_no_process_0(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            with other.accept()[0] as connection:
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(PortTaken, match=r"the answer is not from process 0: another program uses that port"):
            roll_call(ProcessPlace(f"127.0.0.1:{other.getsockname()[1]}", 2, 1), {}, 30.0)
