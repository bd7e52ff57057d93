"""Processes that train together, without programs of JAX: their addresses, their roll call, and their messages."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import jaxrl.parallel
from jaxrl.runtime.distributed import listener, messages, start
from jaxrl.runtime.distributed import rendezvous as roll_call_module
from jaxrl.runtime.distributed.cluster import ProcessPlace, find_place, first_node
from jaxrl.runtime.distributed.group import ProcessFailed, ProcessGroup, current
from jaxrl.runtime.distributed.messages import LONGEST, clean, find_secret, new_nonce, opened, parsed, read_line, sealed
from jaxrl.runtime.distributed.rendezvous import PortTaken, addresses, roll_call
from jaxrl.runtime.logs import provenance
from jaxrl.runtime.training_loop.session import Session
from jaxrl.runtime.training_loop.signals import Interrupt
from tests.helpers.ports import free_port
from tests.helpers.processes.children import soon

SLURM = {"SLURM_JOB_ID": "70001", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "gpu[07-12,15],login"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}


# ------------------------------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("variables", "given", "expected"),
    [
        ({}, (None, 2, 1), ProcessPlace("127.0.0.1:14270", 2, 1)),
        ({}, ("10.0.0.1:99", 2, 0), ProcessPlace("10.0.0.1:99", 2, 0)),
        ({}, ("[fe80::1]:99", 2, 0), ProcessPlace("[fe80::1]:99", 2, 0)),
        ({}, (None, 1, None), ProcessPlace("127.0.0.1:14270", 1, 0)),
        (
            {"JAXRL_COORDINATOR": "a:1", "JAXRL_NUM_PROCESSES": "3", "JAXRL_PROCESS_ID": "2"},
            (None, None, None),
            ProcessPlace("a:1", 3, 2),
        ),
        (
            {"JAXRL_COORDINATOR": "a:1", "JAXRL_NUM_PROCESSES": "3", "JOB_COMPLETION_INDEX": "1"},
            (None,) * 3,
            ProcessPlace("a:1", 3, 1),
        ),
        ({"JAXRL_NUM_PROCESSES": "3", "JAXRL_PROCESS_ID": "2"}, ("b:2", None, 1), ProcessPlace("b:2", 3, 1)),
        ({"JAXRL_COORDINATOR": "h:1"}, (None, 2, 1), ProcessPlace("h:1", 2, 1)),
        (SLURM, (None,) * 3, ProcessPlace(f"gpu07:{61_440 + 70_001 % 4_096}", 8, 3)),
        (SLURM | {"JAXRL_NUM_PROCESSES": "2", "JAXRL_PROCESS_ID": "0"}, (None,) * 3, ProcessPlace("127.0.0.1:14270", 2, 0)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (None,) * 3, ProcessPlace("127.0.0.1:14270", 4, 1)),
        (
            OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"},
            (None,) * 3,
            ProcessPlace(f"10.96.0.1:{61_440 + 1_531_576_320 % 4_096}", 4, 1),
        ),
        (OPEN_MPI, ("c:3", None, None), ProcessPlace("c:3", 4, 1)),
    ],
)
def test_a_process_finds_its_place(variables: dict[str, str], given: tuple[Any, ...], expected: ProcessPlace) -> None:
    assert find_place(variables, *given) == expected


@pytest.mark.parametrize(
    ("variables", "given", "message"),
    [
        ({}, (None, None, None), "not in a group: give num_processes=, .* or start it with jaxrl launch, srun or mpirun"),
        ({}, (None, 2, None), "num_processes=2, but the number of this process is missing: give process_id=0 … 1"),
        ({}, (None, 2, 2), r"process_id=2 must be 0 … 1"),
        ({}, (None, 0, 0), "num_processes='0' must be a whole number >= 1"),
        ({}, (None, 2, -1), "process_id='-1' must be a whole number >= 0"),
        ({}, ("10.0.0.1", 2, 1), "coordinator='10.0.0.1' must be 'host:port'"),
        ({}, ("a:70000", 2, 1), "must be 'host:port'"),
        ({}, ("::1:80", 2, 1), "must be 'host:port'"),
        ({"JAXRL_NUM_PROCESSES": "two"}, (None,) * 3, "num_processes='two' must be a whole number"),
        ({"JAXRL_COORDINATOR": "a:1"}, (None,) * 3, "JAXRL_COORDINATOR is set, but JAXRL_NUM_PROCESSES is not"),
        (OPEN_MPI, (None,) * 3, "mpirun does not provide the address of process 0: set JAXRL_COORDINATOR"),
    ],
)
def test_places_that_cannot_be(variables: dict[str, str], given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_place(variables, *given)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a1", "a1"), ("a1,b2", "a1"), ("gpu[07-12,15],x", "gpu07"), ("gpu[3,5]", "gpu3"), ("r[1-2]-n,x", "r1-n")],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def named(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    """Resolve every name to these addresses."""
    given = [(socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 99)) for each in found]
    monkeypatch.setattr(roll_call_module.socket, "getaddrinfo", lambda *_, **__: given)


def test_where_process_0_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only at the address of its name."""
    named(monkeypatch, "fd00::7", "127.0.1.1", "10.0.0.7", "10.0.0.7")
    assert addresses(ProcessPlace("10.0.0.1:99", 2, 0)) == ["10.0.0.1"]
    assert addresses(ProcessPlace("[::1]:99", 2, 0)) == ["::1"]
    assert addresses(ProcessPlace("localhost:99", 2, 0)) == ["127.0.0.1"]
    assert addresses(ProcessPlace("node7:99", 2, 0)) == ["10.0.0.7", "fd00::7"]
    named(monkeypatch, "127.0.1.1")
    with pytest.raises(ValueError, match=r"leads to 127\.0\.1\.1 on the machine of process 0 \(see /etc/hosts\), where other"):
        addresses(ProcessPlace("node7:99", 2, 0))


def test_all_meet_at_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is resolved a moment later, as in a cluster."""
    at, asked = ProcessPlace(f"node7:{free_port()}", 2, 0), 0
    look_up = socket.getaddrinfo

    def known(host: str, *rest: Any, **given: Any) -> Any:
        nonlocal asked
        asked += host == "node7"
        if asked == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up("127.0.0.1" if host == "node7" else host, *rest, **given)

    monkeypatch.setattr(roll_call_module.socket, "getaddrinfo", known)
    monkeypatch.setattr(roll_call_module, "is_loopback", lambda host: False)
    assert outcomes([lambda: roll_call(at, {}, 9.0), lambda: roll_call(at._replace(process_id=1), {}, 9.0)]) == [
        "127.0.0.1",
        None,
    ]
    monkeypatch.setattr(roll_call_module.socket, "getaddrinfo", lambda *_, **__: look_up("no-such-name.invalid", 1))
    with pytest.raises(OSError, match=r"process 0 cannot meet the others at .*: this machine does not know that name \("):
        roll_call(at, {}, 0.1)


def test_a_name_may_lead_to_the_machine_before_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is restarted on another machine waits until the name is updated."""
    at, asked = ProcessPlace(f"node7:{free_port()}", 2, 0), 0

    def known(place: ProcessPlace) -> list[str]:
        nonlocal asked
        asked += 1
        return ["192.0.2.1", "198.51.100.2"] if asked < 3 else ["192.0.2.1", "127.0.0.1"]

    monkeypatch.setattr(roll_call_module, "addresses", known)
    other = ProcessPlace(f"127.0.0.1:{at.address[1]}", 2, 1)
    assert outcomes([lambda: roll_call(at, {}, 30.0), lambda: roll_call(other, {}, 30.0)]) == ["127.0.0.1", None]
    monkeypatch.setattr(roll_call_module, "addresses", lambda place: ["192.0.2.1"])
    with pytest.raises(OSError, match="Cannot assign requested address"):
        roll_call(at, {}, 0.1)


# ------------------------------------------------------------------------------------------------------------------- roll call


def outcomes(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run all calls at the same time. Return the result or the error of each."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(outcome, calls))


def called(
    *processes: tuple[int, int], about: Any = (), timeout: float = 20.0, secrets: tuple[bytes, ...] = (b"",) * 9
) -> list[Any]:
    """Hold a roll call of processes (count, number), each with versions and a secret. Return the outcomes."""
    at = f"127.0.0.1:{free_port()}"
    versions = about or [{"jax": "1"}] * len(processes)
    return outcomes(
        [
            lambda count=count, number=number, own=own, secret=secret: roll_call(  # type: ignore[misc]
                ProcessPlace(at, count, number), own, timeout, secret
            )
            for (count, number), own, secret in zip(processes, versions, secrets, strict=False)
        ]
    )


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


class Meeting:
    """Process 0 of two, in a thread, and strangers that connect to it."""

    def __init__(self, secret: bytes = b"", timeout: float = 60.0) -> None:
        self.at, self.secret = ProcessPlace(f"127.0.0.1:{free_port()}", 2, 0), secret
        self.ends: list[Any] = []
        self.strangers: list[socket.socket] = []
        call = lambda: roll_call(self.at, {"jax": "1"}, timeout, secret)  # noqa: E731
        self.first = threading.Thread(target=lambda: self.ends.extend(outcomes([call])), daemon=True)
        self.first.start()

    def come(self) -> tuple[socket.socket, str]:
        """Return a connection, and the nonce that process 0 sends."""

        def listens() -> bool:
            with contextlib.suppress(ConnectionRefusedError):
                self.strangers.append(socket.create_connection(self.at.address, 30))
                return True
            return False

        assert soon(listens)
        stranger = self.strangers[-1]
        return stranger, str(parsed(read_line(stranger, time.monotonic() + 30))["nonce"])

    def end(self) -> Any:
        """Let process 1 join. Return process 0's result."""
        assert self.ends == []
        roll_call(self.at._replace(process_id=1), {"jax": "1"}, 60.0, self.secret)
        self.first.join(60)
        for stranger in self.strangers:
            stranger.close()
        return self.ends


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


def report(theirs: str, secret: bytes = b"", **changes: Any) -> bytes:
    mine = {"process_id": 1, "num_processes": 2, "name": "a", "about": {"jax": "1"}, "nonce": "mine"}
    return sealed({**mine, **changes}, secret, theirs)


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
    """It is signed correctly where there is no secret."""
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


# ---------------------------------------------------------------------------------------------------------------------- secrets


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


# ------------------------------------------------------------------------------------------------------------------ initialize


def test_a_group_of_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_NUM_PROCESSES", "1")
    jaxrl.parallel.initialize()
    assert current().is_alone and current().is_first and jax.process_count() == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_processes": 2, "process_id": 0}, "JAX was used before jaxrl.parallel.initialize"),
        ({"num_processes": 2, "process_id": 0, "timeout": 0}, "timeout"),
        ({"num_processes": 2, "process_id": 0, "heartbeat": 0.5}, "heartbeat"),
        ({"num_processes": 2}, "the number of this process is missing"),
    ],
)
def test_initialize_refuses(given: dict[str, Any], message: str) -> None:
    jax.devices()
    with pytest.raises(ValueError, match=message):
        jaxrl.parallel.initialize(**given)


def test_copies_of_jaxrl_that_differ_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the same version: processes exchange a digest of jaxrl's files."""
    given: list[Any] = []

    def meet(*arguments: Any) -> None:
        given.append(arguments)
        raise TimeoutError("nobody came")

    monkeypatch.setattr(start, "_check_unused", lambda: None)
    monkeypatch.setattr(start, "roll_call", meet)
    monkeypatch.setenv("JAXRL_SECRET", "0123456789abcdef")
    (tmp_path / "room").mkdir()
    (tmp_path / "__init__.py").write_text("a = 1\n")
    (tmp_path / "room" / "file.py").write_text("")
    for change in (
        lambda: None,
        lambda: monkeypatch.setattr(provenance, "__file__", str(tmp_path / "runtime" / "logs" / "provenance.py")),
        lambda: (tmp_path / "__init__.py").write_text("a = 2\n"),
        lambda: (tmp_path / "room" / "file.py").rename(tmp_path / "file.py"),
        lambda: (tmp_path / "notes.txt").write_text("a"),
    ):
        change()
        with pytest.raises(TimeoutError, match="nobody came"):
            jaxrl.parallel.initialize(num_processes=2, process_id=1)
    assert {secret for *_, secret in given} == {b"0123456789abcdef"}
    digests = [about["source of jaxrl"] for _, about, *_ in given]
    assert len(set(digests)) == 4 and digests[-1] == digests[-2]
    errors = called((2, 0), (2, 1), about=(given[0][1], given[1][1]))
    for error in errors:
        assert f"has source of jaxrl {digests[1]}, and process 0" in str(error)


def test_a_group_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: True)
    with pytest.raises(ValueError, match="has joined a group before"):
        jaxrl.parallel.initialize(num_processes=2, process_id=0)


def test_a_heartbeat_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_HEARTBEAT", "often")
    with pytest.raises(ValueError, match="JAXRL_HEARTBEAT='often' must be a number of seconds"):
        jaxrl.parallel.initialize(num_processes=2, process_id=0)


def test_a_machine_whose_name_leads_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(ValueError, match=r"leads to 127\.0\.1\.1 here \(see /etc/hosts\)"):
        start._check_own_name(ProcessPlace("10.0.0.1:99", 2, 0))
    start._check_own_name(ProcessPlace("127.0.0.1:99", 2, 0))
    monkeypatch.setattr(start.socket, "gethostbyname", lambda name: "10.0.0.1")
    start._check_own_name(ProcessPlace("10.0.0.1:99", 2, 0))


# ----------------------------------------------------------------------------------------------------------------- messages


class Store:
    """A store shared by threads, in place of the one that JAX's processes share."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.changed = threading.Condition()

    def key_value_set(self, key: str, value: str) -> None:
        with self.changed:
            assert key not in self.texts
            self.texts[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.texts, timeout_in_ms / 1000):
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.texts[key]

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        with self.changed:
            return [(name, text) for name, text in self.texts.items() if name.startswith(key)]

    def key_value_delete(self, key: str) -> None:
        with self.changed:
            self.texts = {name: text for name, text in self.texts.items() if not name.startswith(key)}


def groups(number: int) -> list[ProcessGroup]:
    store, made = Store(), []
    for process_id in range(number):
        group = ProcessGroup()
        group._store, group.process_id, group.num_processes = store, process_id, number
        made.append(group)
    return made


def test_all_hear_what_each_says() -> None:
    made = groups(3)

    def talk(group: ProcessGroup) -> list[Any]:
        return [group.gather([group.process_id, turn, None, 0.1]) for turn in range(20)]

    heard = outcomes([lambda group=group: talk(group) for group in made])  # type: ignore[misc]
    assert heard == [[[[i, turn, None, 0.1] for i in range(3)] for turn in range(20)]] * 3
    left = made[0]._store.texts
    assert {key.split("/")[1] for key in left} == {"20"} and json.loads(left["jaxrl/20/all"]) == heard[0][-1]


def test_what_fails_in_one_fails_in_all() -> None:
    def make(group: ProcessGroup) -> int:
        if group.process_id == 1:
            raise OSError("the disk\nis full")
        return group.process_id

    first, second, third = outcomes([lambda group=group: group.together(lambda: make(group)) for group in groups(3)])  # type: ignore[misc]
    assert isinstance(second, OSError)
    for error in (first, third):
        assert isinstance(error, ProcessFailed) and str(error) == "process 1: the disk is full"


def test_the_first_decides() -> None:
    asked: list[int] = []
    made = groups(2)
    given = outcomes([lambda group=group: group.of_first(lambda: asked.append(group.process_id) or "so") for group in made])  # type: ignore[misc,func-returns-value]
    assert given == ["so", "so"] and asked == [0]
    for turn in (1, 2):
        for group in made:
            group._turn += turn
        assert outcomes([lambda group=group: group.part() for group in made]) == [None, None]  # type: ignore[misc]


def test_who_ends_before_its_time_says_why() -> None:
    """Processes that wait for it get the reason: the first one directly, and others through the first."""
    first, second, third = groups(3)
    errors = outcomes([lambda: first.gather(0), lambda: second.fail("no\nroom"), lambda: third.gather(0)])
    assert errors[1] is None
    for error in (errors[0], errors[2]):
        assert isinstance(error, ProcessFailed) and str(error) == "process 1 has ended: no room"


def test_who_has_only_heard_of_a_failure_is_not_its_cause() -> None:
    first, second, third = groups(3)
    second.fail("no room")
    third.fail("")
    with pytest.raises(ProcessFailed, match="process 1 has ended: no room"):
        first.gather(0)
    first.fail("")  # does not wait, since all have reported
    assert len(first._failures()) == 3


def test_a_signal_that_comes_while_others_are_waited_for_is_not_lost() -> None:
    interrupt = Interrupt()

    def gather(mine: int) -> list[int]:
        interrupt.requested = signal.SIGTERM
        return [mine, 0]

    session: Any = SimpleNamespace(group=SimpleNamespace(gather=gather), interrupt=interrupt, stopped_by=0)
    assert [Session.asked_to_stop(session), Session.asked_to_stop(session)] == [False, True]
    assert session.stopped_by == interrupt.requested == signal.SIGTERM


def test_who_says_nothing_is_named() -> None:
    first, _ = groups(2)
    with pytest.raises(TimeoutError, match="timed out waiting for process 1"):
        first.gather(0, timeout=0.0)


def test_one_process_waits_for_nobody() -> None:
    alone = ProcessGroup()
    assert alone.gather({"a": (1,)}) == [{"a": (1,)}]
    with pytest.raises(ZeroDivisionError):
        alone.together(lambda: 1 / 0)
    alone.part()
