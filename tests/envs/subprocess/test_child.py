"""Child processes: all processes that they start are ended, and their logs are written only to their files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl.envs.subprocess import descendants
from jaxrl.envs.subprocess.child import Child, end_all
from jaxrl.envs.subprocess.inbox import Garbled
from tests.helpers.paths import ROOT
from tests.helpers.processes.children import runs, soon


@contextlib.contextmanager
def child(**options: Any) -> Iterator[Child]:
    started = Child("tests.helpers.processes.obedient_child", **options)
    try:
        yield started
    finally:
        started.release()


def answer(to: Child, code: str) -> Any:
    to.send(code)
    messages: list[Any] = []
    while not messages:
        messages = to.receive()
    return messages[0]


# ------------------------------------------------------------------------------------------------------------------ descendants


@pytest.mark.parametrize("new_session", [False, True])
@pytest.mark.parametrize("how", ["release", "farewell", "own end"])
def test_what_it_has_started_ends_with_it(how: str, new_session: bool) -> None:
    """Also in a separate session, with init as its parent."""
    with child() as one:
        game = answer(one, f"answer = in_background({new_session})")
        assert runs(game)
        if how == "own end":
            one.send("os._exit(3)")
            with pytest.raises(EOFError):
                one.receive()
            assert one.how_it_ended() == "ended with exit code 3"
        elif how == "farewell":
            end_all([one], "sys.exit()")
        else:
            one.release()
        assert soon(lambda: not runs(game)) and not runs(one.process.pid)


def test_what_is_started_in_a_child_of_a_child_ends_too() -> None:
    with child() as one:
        answer(one, "from jaxrl.envs.subprocess.child import Child; inner = Child('tests.helpers.processes.obedient_child')")
        inner, game = answer(one, "inner.send('answer = in_background(True)'); answer = [inner.process.pid, *inner.receive()]")
        assert runs(inner) and runs(game)
        one.release()
        assert soon(lambda: not runs(inner) and not runs(game))


OWNER = """
from jaxrl.envs.subprocess.child import Child
one = Child("tests.helpers.processes.obedient_child")
one.send({code!r})
print(one.process.pid, *one.receive(), flush=True)
one.receive()
"""


@pytest.mark.parametrize("new_session", [False, True])
def test_all_ends_with_the_owner(new_session: bool) -> None:
    code = OWNER.format(code=f"answer = in_background({new_session})")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 2 and all(map(runs, pids))
        owner.kill()
    assert soon(lambda: not any(map(runs, pids)))


def test_others_are_left_alone() -> None:
    """Those that were started before, and those of another child."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        with child() as one, child() as two:
            game = answer(two, "answer = in_background(True)")
            one.release()
            assert runs(game) and runs(two.process.pid) and other.poll() is None
    finally:
        other.kill()
        other.wait()


LEAVE = "os.setpgid(0, os.getpgid(os.getppid())); answer = os.getpgid(0)"


@pytest.mark.parametrize("seen", [True, False])
def test_one_that_has_left_its_group_is_ended(seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is also waited for, which would take forever if it lived. Also if the system does not show processes."""
    if not seen:
        monkeypatch.setattr(descendants, "PROCESSES", tmp_path)
    with child() as one:
        assert answer(one, LEAVE) == os.getpgid(0)
        one.send("import time; time.sleep(600)")
        one.kill()
        assert soon(lambda: not runs(one.process.pid))


def test_a_program_that_is_just_starting_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system shows its environment a moment after it runs."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    shown = tmp_path / str(program.pid)
    shown.mkdir()
    state, fields = "S", ["0"] * 49
    fields[19] = "4096"  # bytes of memory; the begin of its environment stays 0
    (shown / "stat").write_text(f"{program.pid} (a program) {state} {' '.join(fields)}")
    (shown / "environ").write_bytes(b"")
    scans = list[float]()

    def sleep(seconds: float) -> None:
        scans.append(seconds)
        (shown / "environ").write_bytes(f"A=1\0{descendants.VARIABLE}=mark\0".encode())
        if len(scans) > 1:
            (shown / "environ").unlink()

    try:
        with monkeypatch.context() as patch:
            patch.setattr(descendants, "PROCESSES", tmp_path)
            patch.setattr(descendants.time, "sleep", sleep)
            descendants.end_marked(["mark"])
        assert program.wait(60) == -signal.SIGKILL and len(scans) == 2
    finally:
        program.kill()


def test_one_that_has_joined_the_group_of_others_spares_them() -> None:
    """When it ends with its owner."""
    code = OWNER.format(code=LEAVE)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, process_group=other.pid
    )
    try:
        assert owner.stdout is not None
        worker, group = (int(word) for word in owner.stdout.readline().split())
        assert group == other.pid
        owner.kill()
        assert soon(lambda: not runs(worker)) and other.poll() is None
    finally:
        for process in (owner, other):
            process.kill()
            process.communicate()


# ------------------------------------------------------------------------------------------------------------------- connection


def test_a_program_that_it_has_started_does_not_hold_its_connection() -> None:
    with child() as one:
        one.send("os.system('sleep 600 &'); os._exit(4)")
        assert soon(lambda: one.has_said)
        with pytest.raises(EOFError):
            one.receive()
        assert one.how_it_ended() == "ended with exit code 4"


def test_its_end_is_seen_though_a_copy_of_it_holds_its_connection() -> None:
    with child() as one:
        one.send("import time\nif os.fork(): os._exit(5)\ntime.sleep(600)")
        assert soon(lambda: bool(one.has_ended)) and not one.has_said
        assert one.how_it_ended() == "ended with exit code 5"


def test_what_is_no_message_is_found(tmp_path: Path) -> None:
    with child() as one:
        one.send("os.write(connection.fileno(), b'garbage')")
        with pytest.raises(Garbled, match="wrote something that is not a message"):
            answer(one, "pass")
    with child() as one:
        one.send("os.write(connection.fileno(), b'garbage'); sys.exit()")
        end_all([one], None)  # reads its last messages
        assert not runs(one.process.pid)


# -------------------------------------------------------------------------------------------------------------------------- log


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe"])
def test_a_log_is_a_file_of_its_own(kind: str, tmp_path: Path) -> None:
    """Files that another user placed there are not followed, and not waited for."""
    log, other = tmp_path / "worker-0.log", tmp_path / "other"
    if kind != "dangling link":
        other.write_text("mine\n")
    if kind == "pipe":
        os.mkfifo(log)
    else:
        (log.hardlink_to if kind == "hard link" else log.symlink_to)(other)
    with child(log=log) as one:
        answer(one, "print('said', flush=True)")
        one.write_log("told\n")
    assert log.read_text() == "said\ntold\n" and not log.is_symlink()
    assert other.read_text() == "mine\n" if kind != "dangling link" else not other.exists()
    with child(log=log) as one:
        answer(one, "print('again', flush=True)")
    assert log.read_text() == "said\ntold\nagain\n"


def test_signals_reach_it_alone() -> None:
    with child() as one:
        os.kill(one.process.pid, signal.SIGSTOP)
        assert soon(lambda: one.is_stopped)
        one.release()
        assert not runs(one.process.pid)
