"""Remote objects: failures, bad input, and ends, the same on each engine."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import remote
from jaxrl.runtime.remote import calls
from jaxrl.runtime.remote.decorator import RemoteProxy
from jaxrl.runtime.remote.local.wire import Mailbox
from jaxrl.runtime.remote.parallel_map import SharedCalls
from tests.helpers.processes.children import soon
from tests.helpers.processes.remote_objects import (
    WAIT,
    Counter,
    ended,
    fails,
    square,
)

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_an_exception_arrives_with_its_traceback(counter: remote.RemoteObject, logs: Path) -> None:
    error = fails(counter.call("raises"))
    assert isinstance(error, remote.RemoteError)
    assert re.match(r"Counter \d+\.raises raised KeyError: 'this went\\nwrong': its output is in ", str(error))
    assert (error.type_name, error.message) == ("KeyError", repr("this went\nwrong"))
    assert isinstance(error.__cause__, remote.RemoteTraceback)
    assert "in raises\n    raise KeyError(text)" in str(error.__cause__) and "holder.py" not in str(error.__cause__)
    assert isinstance(counter.call("add").result(WAIT), int)  # and the object lives


FAULTS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "of a class that cannot be loaded": ("raises_what_cannot_be_loaded", (), r"raised Local: of a local class"),
    "result that cannot be sent": ("lock", (), r"it returned something that cannot be sent: cannot pickle '_thread.lock'"),
    "method that does not exist": ("ad", (), r"raised AttributeError: Counter has no method 'ad'\. Did you mean 'add'\?"),
    "no method like it": ("zzz", (), r"has no method 'zzz'\. It has add, "),
    "attribute": ("count", (), r"Counter\.count is not a method"),
    "wrong arguments": ("add", (1, 2, 3), r"raised TypeError: .*add\(\) takes from 1 to 2 positional arguments but 4 were given"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_method_does_wrong_is_one_error_and_the_object_lives(counter: remote.RemoteObject, fault: str) -> None:
    method, args, text = FAULTS[fault]
    error = fails(counter.call(method, *args))
    assert isinstance(error, remote.RemoteError) and re.search(text, str(error)) and "\n" not in str(error)
    assert isinstance(counter.call("add").result(WAIT), int)


ENDS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "killed": ("die", (), r"was killed by SIGKILL .* during die"),
    "exit": ("exit", (4,), r"ended with exit code 4 during exit"),
    "closed its pipes": ("close_everything", (), r"closed its connection during close_everything"),
    "stopped": ("stop", (), r"was stopped \(SIGSTOP\) during stop"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_lost_worker_fails_its_call_and_those_behind_it(cluster: remote.Cluster, engine: str, end: str) -> None:
    one = cluster.start(Counter)
    pid = one.call("pid").result(WAIT)
    method, args, text = ENDS[end]
    text = text if engine == "local" else rf"was lost \(.*\) during {method}"  # Ray does not say how it ended
    one.call("slow_add", 0.5)  # so that the next two are called before the worker ends
    first, second = one.call(method, *args), one.call("add")
    for error in (fails(first), fails(second)):
        assert isinstance(error, remote.WorkerLost) and re.search(text, str(error)), error
    with pytest.raises(remote.WorkerLost, match=text):
        one.call("add")
    assert ended(pid)


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_lost_worker_is_replaced_and_no_call_is_executed_twice(
    cluster: remote.Cluster, notes: list[str], tmp_path: Path, end: str
) -> None:
    one, marks = cluster.start(Counter, 100, restarts=1), tmp_path / "marks"
    before = one.call("mark", str(marks))
    lost = one.call(ENDS[end][0])
    behind = [one.call("mark", str(marks)) for _ in range(5)]
    assert before.result(WAIT) == 101
    assert isinstance(fails(lost), remote.WorkerLost)
    assert [each.result(WAIT) for each in behind] == [101, 102, 103, 104, 105]  # of the new object
    assert marks.read_text() == "x" * 6 and one.restarts == 1
    assert re.search(r"the worker of Counter \d+ .* during (die|stop); replaced \(restart 1 of 1\)$", notes[-1])
    assert isinstance(fails(one.call("die")), remote.WorkerLost)  # the last one
    with pytest.raises(remote.WorkerLost, match="after 1 restart: its output"):
        one.call("add")


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSTOP"])
def test_an_object_that_is_lost_while_idle_is_replaced(cluster: remote.Cluster, signal_name: str) -> None:
    one = cluster.start(Counter, 7, restarts=1)
    os.kill(one.call("pid").result(WAIT), getattr(signal, signal_name))
    assert soon(lambda: one.restarts == 1)
    assert one.call("add").result(WAIT) == 8


@pytest.mark.ray
def test_a_process_on_ray_that_is_stopped_before_its_guard_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its CPU, so it does not wait for one."""
    from jaxrl.runtime.remote.ray import actor, engine

    stopped, notes = tmp_path / "stopped", list[str]()

    class Stopped(actor.RayHolder):
        def __init__(self, log: Any) -> None:
            if not stopped.exists():
                stopped.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
            super().__init__(log)

    monkeypatch.setattr(engine, "RayHolder", Stopped)
    with remote.open("ray", cpus=1, note=notes.append) as cluster:
        one = cluster.start(Counter, restarts=1)
        assert soon(stopped.exists)
        monkeypatch.setattr(cluster._engine, "patience", 1.0)
        assert soon(lambda: one.restarts == 1 or one.ready.done())
        monkeypatch.undo()
        assert one.call("add").result(WAIT) == 1
        assert ended(int(stopped.read_text()))
    text = "did not run within 1 s of having a place, and was killed at its start; replaced (restart 1 of 1)"
    assert notes == [f"the worker of Counter 0 {text}"]


def test_a_call_that_takes_too_long_is_a_timeout(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter, timeout=3.0, restarts=1)
    pid = one.call("pid").result(WAIT)
    error = fails(one.call("slow_add", 600.0))
    assert isinstance(error, TimeoutError) and "did not finish in 3 s, and was killed" in str(error)
    assert ended(pid) and one.call("add").result(WAIT) == 1


def test_the_start_of_a_process_does_not_count_for_the_timeout(cluster: remote.Cluster) -> None:
    assert list(cluster.map(square, [1, 2, 3], cpus=8, timeout=0.3)) == [1, 4, 9]


def test_an_object_ends_when_it_is_lost_at_three_starts_in_a_row(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter, 1, "exit", restarts=1000)
    pending = one.call("add")
    for each in (one.ready, pending):
        error = fails(each)
        assert isinstance(error, remote.WorkerLost) and "at its start, which is the loss of 3 starts in a row" in str(error)
    assert one.restarts == 2


class Stub:
    """Object that answers at once, or has ended."""

    def __init__(self, has_ended: bool) -> None:
        self.has_ended = has_ended

    def call(self, method: str, number: int) -> Future[int]:
        if self.has_ended:
            raise remote.WorkerLost("it could not be started")
        future: Future[int] = Future()
        future.set_result(number)
        return future


def test_calls_of_an_object_that_has_ended_go_to_the_others() -> None:
    shared = SharedCalls([Stub(True), Stub(False), Stub(True)], [("add", number) for number in range(9)], 0)
    assert [each.result(0) for each in shared.futures] == [*range(9)]
    shared = SharedCalls([Stub(True), Stub(True)], [("add", number) for number in range(9)], 0)
    assert all(isinstance(each.exception(0), remote.WorkerLost) for each in shared.futures)


def test_waiting_for_a_result_has_a_timeout_of_its_own(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter)
    pending = one.call("slow_add", 600.0)
    with pytest.raises(TimeoutError):
        pending.result(0.1)
    with pytest.raises(TimeoutError):
        list(remote.as_completed([pending], timeout=0.1))
    one.close()


CONSTRUCTORS: dict[str, tuple[type[Exception], str]] = {
    "raise": (remote.RemoteError, r"Counter \d+ raised ValueError: cannot start at 1"),
    "exit": (remote.WorkerLost, r"the worker of Counter \d+ ended with exit code 5 at its start"),
    "sleep": (TimeoutError, r"did not finish in 2 s, and was killed.*at its start"),
}


@pytest.mark.parametrize("fault", CONSTRUCTORS)
def test_an_object_that_cannot_be_made_fails_all_calls(
    cluster: remote.Cluster, engine: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "START_TIMEOUT", 2.0)
    kind, text = CONSTRUCTORS[fault]
    text = text if engine == "local" else text.replace("ended with exit code 5", r"was lost \(.*\)")
    one = cluster.start(Counter, 1, fault, timeout=0.5 if fault == "sleep" else None)
    pending = one.call("add")
    assert isinstance(fails(one.ready), kind) and re.search(text, str(fails(one.ready)))
    assert re.search(text, str(fails(pending)))
    with pytest.raises(RuntimeError, match=text):
        one.call("add")


def test_a_call_that_was_answered_behind_a_failed_start(cluster: remote.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mailbox.read

    def read_late(mailbox: Mailbox) -> list[Any]:
        time.sleep(0.3)  # until the answers to both have arrived
        return read(mailbox)

    monkeypatch.setattr(Mailbox, "read", read_late)
    one = cluster.start(Counter, 1, "raise")
    reason = "raised ValueError: cannot start at 1"
    for future in (one.ready, one.call("add")):
        assert re.search(reason, str(fails(future)))
    with pytest.raises(RuntimeError, match=reason):
        one.call("add")


def test_an_object_whose_process_dies_at_its_start_is_made_again(cluster: remote.Cluster, tmp_path: Path) -> None:
    one = cluster.start(Counter, 1, str(tmp_path / "died"), restarts=1)
    assert one.call("add").result(WAIT) == 2 and one.restarts == 1 and one.ready.result() is None


def test_memory_beyond_the_limit_ends_the_object(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter, memory="150MB")
    assert one.call("add").result(WAIT) == 1
    error = fails(one.call("fill_memory", 400))
    assert isinstance(error, remote.WorkerLost)
    assert re.search(
        r"used \d+\.\d MiB of memory, more than its limit of 143\.1 MiB, and was killed during fill_memory", str(error)
    )


def test_a_fork_that_returns_is_ended(counter: remote.RemoteObject) -> None:
    child = counter.call("fork").result(WAIT)
    assert child > 0 and ended(child)
    assert isinstance(counter.call("add").result(WAIT), int)


def test_output_is_in_the_log(cluster: remote.Cluster, logs: Path) -> None:
    one = cluster.start(Counter)
    assert one.call("print_megabytes").result(WAIT) == 4000
    error = fails(one.call("exit"))
    found = re.search(r"its output is in (\S+)$", str(error))
    assert found and Path(found[1]).parent == logs and Path(found[1]).stat().st_size > 4_000_000


def test_values_that_memory_cannot_hold_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with remote.open() as cluster:
        one = cluster.start(Counter)
        one.call("is_short_of_memory").result(WAIT)
        error = fails(one.call("ones", 300_000))
        assert re.search(r"its result is too large: 293\.0 KiB of shared memory are needed, and 10 bytes", str(error))
        assert one.call("add").result(WAIT) == 1
        monkeypatch.setattr("jaxrl.runtime.remote.local.wire.available_on_host", lambda: 10)
        for send in (cluster.put, lambda value: one.call("total", value)):
            with pytest.raises(MemoryError, match=r"293\.0 KiB of shared memory are needed"):
                send(np.ones(300_000, np.uint8))


# ------------------------------------------------------------------------------------------------------------------ bad input


BAD: dict[str, tuple[Callable[[remote.Cluster], object], type[Exception], str]] = {
    "not a function": (lambda c: c.start(5), TypeError, r"start\(5\) must begin with a class"),  # type: ignore[arg-type]
    "too many CPUs": (
        lambda c: c.start(Counter, cpus=64),
        remote.NotEnough,
        r"Counter \d+ asks for 64 CPUs, and there are 16.*ask for less",
    ),
    "no GPU": (lambda c: c.start(Counter, gpus=1), remote.NotEnough, r"asks for 1 GPU, and there are 0: ask for less"),
    "more memory than there is": (
        lambda c: c.start(Counter, memory="900TB"),
        remote.NotEnough,
        r"asks for \d+\.\d GiB of memory, and",
    ),
    "negative CPUs": (
        lambda c: c.start(Counter, cpus=-1),
        ValueError,
        r"cpus=-1 is not allowed: it must be .* >= 0",
    ),
    "CPUs as text": (lambda c: c.start(Counter, cpus="2"), TypeError, r"cpus='2' must be a finite number"),  # type: ignore[arg-type]
    "memory as nonsense": (lambda c: c.start(Counter, memory="much"), ValueError, r"memory='much' must be .* such as \"2GB\""),
    "half a restart": (lambda c: c.start(Counter, restarts=0.5), ValueError, r"restarts"),  # type: ignore[arg-type]
    "no time": (lambda c: c.start(Counter, timeout=0), ValueError, r"timeout=0 is not allowed: it must be a finite number > 0"),
    "a lock for the constructor": (
        lambda c: c.start(Counter, threading.Lock()),  # type: ignore[arg-type]
        TypeError,
        r"Counter.* and its arguments cannot be sent to another process: cannot pickle",
    ),
    "a lock for a method": (
        lambda c: c.start(Counter).call("same", threading.Lock()),
        TypeError,
        r"the arguments of Counter \d+\.same cannot be sent to another process: cannot pickle",
    ),
    "a lock to share": (lambda c: c.put(threading.Lock()), TypeError, r"the value cannot be sent to other processes"),
    "no name of a method": (lambda c: c.start(Counter).call(5), TypeError, r"must begin with the name of a method"),  # type: ignore[arg-type]
    "an attribute": (lambda c: c.start(Counter).count, AttributeError, r"has no attribute 'count': methods are called by call"),
    "an object for an object": (
        lambda c: c.start(Counter).call("same", c.start(Counter)),
        TypeError,
        r"belongs to the process that started it",
    ),
    "a misspelt setting of a decorator": (
        lambda c: remote.remote_class(gpu=1),
        TypeError,
        r"unknown setting 'gpu'\. Did you mean 'gpus'\?",
    ),
    "a decorator without a class": (lambda c: remote.remote_class(5), TypeError, r"remote_class\(5\) decorates a class"),  # type: ignore[arg-type]
    "an attribute of a decorated class": (
        lambda c: RemoteProxy(Counter, c.start(Counter), False).count,
        AttributeError,
        r"Counter has no method 'count'",
    ),
    "retries below zero": (lambda c: c.map(square, [1], retries=-1), ValueError, r"retries"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(cluster: remote.Cluster, case: str) -> None:
    call, kind, text = BAD[case]
    with pytest.raises(kind, match=text) as caught:
        call(cluster)
    assert "\n" not in str(caught.value)


def test_resources_are_counted(engine: str) -> None:
    with remote.open(engine, cpus=16) as cluster:
        assert cluster.resources.cpus == 16
        objects = [cluster.start(Counter, cpus=4) for _ in range(3)]
        with pytest.raises(remote.NotEnough, match=r"asks for 4\.5 CPUs, and there are 16, and other objects use 12"):
            cluster.start(Counter, cpus=4.5)
        objects.pop().close()
        assert cluster.start(Counter, cpus=4.5).restarts == 0


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown engine 'locale'"):
        remote.open("locale")


# ------------------------------------------------------------------------------------------------------------------------ ends


def test_closing_an_object_ends_its_process(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter)
    pid = one.call("pid").result(WAIT)
    one.close()
    assert ended(pid)
    with pytest.raises(RuntimeError, match=r"Counter \d+ cannot be called: it was closed"):
        one.call("add")
    one.close()


def test_closing_cuts_a_call_off(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter)
    pid, pending = one.call("pid").result(WAIT), one.call("slow_add", 600.0)
    one.close()
    assert "it was closed" in str(fails(pending)) and ended(pid)


def test_an_object_ends_when_nothing_refers_to_it_after_its_calls(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter)
    pid, pending = one.call("pid").result(WAIT), one.call("slow_add", 0.5)
    del one
    gc.collect()
    assert pending.result(WAIT) == 1 and ended(pid)


@pytest.mark.parametrize("pending", [False, True])
def test_the_context_ends_what_it_began(engine: str, pending: bool) -> None:
    with remote.open(engine) as cluster:
        one = cluster.start(Counter)
        pids = [one.call("pid").result(WAIT), one.call("start_program").result(WAIT)]
        future = one.call("slow_add", 600.0) if pending else None
    assert all(map(ended, pids))
    if future is not None:
        assert "its cluster was closed" in str(fails(future))
    with pytest.raises(RuntimeError, match="its cluster was closed"):
        one.call("add")
    with pytest.raises(RuntimeError, match=r"this cluster is closed: remote.open\(\) opens another one"):
        cluster.start(Counter)
    cluster.close()


def test_calls_of_an_object_that_was_closed_leave_nothing_behind(cluster: remote.Cluster) -> None:
    one, large = cluster.start(Counter), np.ones(100_000)
    one.close()

    def refused() -> int:
        for _ in range(5):
            with pytest.raises(RuntimeError, match="it was closed"):
                one.call("add", large)
        return len(os.listdir("/proc/self/fd"))

    first = refused()
    assert refused() - first < 3


@pytest.mark.slow
def test_many_objects_leave_nothing_behind(engine: str) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with remote.open(engine) as cluster:
        counts = []
        for _ in range(4):
            for _ in range(3):
                one = cluster.start(Counter)
                one.call("ones", 500_000).result(WAIT)
                one.close()
            shared = cluster.put(np.ones(100_000))
            del shared, one
            gc.collect()
            counts.append(descriptors())
        assert max(counts[1:]) - counts[0] < 3  # one descriptor for each object would be more
