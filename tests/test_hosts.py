"""Processes that train together, as far as no program of JAX's is needed: their places, their roll call, what they tell."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import jaxrl.parallel
from jaxrl.runtime.hosts import start
from jaxrl.runtime.hosts.group import Group, ProcessFailed, current
from jaxrl.runtime.hosts.place import Place, find_place, first_node
from jaxrl.runtime.hosts.roll_call import bind_address, roll_call
from jaxrl.runtime.loop.interrupt import Interrupt
from jaxrl.runtime.loop.session import Session
from tests.test_several_processes import free_port

SLURM = {"SLURM_JOB_ID": "70001", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "gpu[07-12,15],login"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}


# ---------------------------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize(
    ("variables", "given", "expected"),
    [
        ({}, (None, 2, 1), Place("127.0.0.1:14270", 2, 1)),
        ({}, ("10.0.0.1:99", 2, 0), Place("10.0.0.1:99", 2, 0)),
        ({}, ("[fe80::1]:99", 2, 0), Place("[fe80::1]:99", 2, 0)),
        ({}, (None, 1, None), Place("127.0.0.1:14270", 1, 0)),
        (
            {"JAXRL_COORDINATOR": "a:1", "JAXRL_NUM_PROCESSES": "3", "JAXRL_PROCESS_ID": "2"},
            (None, None, None),
            Place("a:1", 3, 2),
        ),
        ({"JAXRL_COORDINATOR": "a:1", "JAXRL_NUM_PROCESSES": "3", "JOB_COMPLETION_INDEX": "1"}, (None,) * 3, Place("a:1", 3, 1)),
        ({"JAXRL_NUM_PROCESSES": "3", "JAXRL_PROCESS_ID": "2"}, ("b:2", None, 1), Place("b:2", 3, 1)),
        ({"JAXRL_COORDINATOR": "h:1"}, (None, 2, 1), Place("h:1", 2, 1)),
        (SLURM, (None,) * 3, Place(f"gpu07:{61_440 + 70_001 % 4_096}", 8, 3)),
        (SLURM | {"JAXRL_NUM_PROCESSES": "2", "JAXRL_PROCESS_ID": "0"}, (None,) * 3, Place("127.0.0.1:14270", 2, 0)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (None,) * 3, Place("127.0.0.1:14270", 4, 1)),
        (
            OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"},
            (None,) * 3,
            Place(f"10.96.0.1:{61_440 + 1_531_576_320 % 4_096}", 4, 1),
        ),
        (OPEN_MPI, ("c:3", None, None), Place("c:3", 4, 1)),
    ],
)
def test_a_process_finds_its_place(variables: dict[str, str], given: tuple[Any, ...], expected: Place) -> None:
    assert find_place(variables, *given) == expected


@pytest.mark.parametrize(
    ("variables", "given", "message"),
    [
        ({}, (None, None, None), "in no group: give num_processes=, .* or start it with jaxrl launch, srun or mpirun"),
        ({}, (None, 2, None), "nothing says which of them this is: give process_id=0 … 1"),
        ({}, (None, 2, 2), r"process_id=2 must be 0 … 1"),
        ({}, (None, 0, 0), "num_processes='0' must be a whole number from 1 up"),
        ({}, (None, 2, -1), "process_id='-1' must be a whole number from 0 up"),
        ({}, ("10.0.0.1", 2, 1), "coordinator='10.0.0.1' must be 'host:port'"),
        ({}, ("a:70000", 2, 1), "must be 'host:port'"),
        ({}, ("::1:80", 2, 1), "must be 'host:port'"),
        ({"JAXRL_NUM_PROCESSES": "two"}, (None,) * 3, "num_processes='two' must be a whole number"),
        ({"JAXRL_COORDINATOR": "a:1"}, (None,) * 3, "JAXRL_COORDINATOR is set and JAXRL_NUM_PROCESSES is not"),
        (OPEN_MPI, (None,) * 3, "mpirun does not say where process 0 is: set JAXRL_COORDINATOR"),
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


def test_where_process_0_listens() -> None:
    assert bind_address(Place("10.0.0.1:99", 2, 0)) == ("10.0.0.1", 99)
    assert bind_address(Place("[::1]:99", 2, 0)) == ("::1", 99)
    assert bind_address(Place("localhost:99", 2, 0)) == ("127.0.0.1", 99)
    assert bind_address(Place("node7:99", 2, 0)) == ("0.0.0.0", 99)  # which may call itself otherwise


# ------------------------------------------------------------------------------------------------------------------- roll call


def outcomes(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each gives or raises, all at the same time."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(outcome, calls))


def called(*processes: tuple[int, int], about: Any = (), timeout: float = 5.0) -> list[Any]:
    """How a roll call goes for processes (count, number), each with versions of its own."""
    at = f"127.0.0.1:{free_port()}"
    versions = about or [{"jax": "1"}] * len(processes)
    return outcomes(
        [
            lambda count=count, number=number, own=own: roll_call(Place(at, count, number), own, timeout)  # type: ignore[misc]
            for (count, number), own in zip(processes, versions, strict=True)
        ]
    )


def test_all_come() -> None:
    assert called((3, 2), (3, 0), (3, 1)) == [None, None, None]


@pytest.mark.parametrize(
    ("processes", "about", "message"),
    [
        (((3, 0), (3, 1), (3, 1)), (), "two processes say that they are number 1: .*: give each a process_id of its own, 0 … 2"),
        (((2, 0), (3, 2)), (), r"process 2 .* says that there are 3 processes, and process 0 .* there are 2: .* num_processes"),
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
    begin = time.monotonic()
    errors = called((4, 0), (4, 2), timeout=0.5)
    assert {str(error) for error in errors} == {str(errors[0])} and all(isinstance(error, TimeoutError) for error in errors)
    assert "2 of 4 processes did not come" in str(errors[0]) and "number 1, 3" in str(errors[0])
    assert time.monotonic() - begin < 30


def test_no_process_0() -> None:
    (error,) = called((2, 1), timeout=0.2)
    assert isinstance(error, TimeoutError) and "process 1 found no process 0 at coordinator='127.0.0.1:" in str(error)


def test_an_address_that_is_taken_or_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = [Place(f"127.0.0.1:{taken.getsockname()[1]}", 2, 0), Place("192.0.2.1:14270", 2, 0)]
        for place in places:
            with pytest.raises(OSError, match=r"cannot meet the others .* address of this machine, and a port that is free"):
                roll_call(place, {}, 0.2)


def test_a_stranger_at_the_port_is_sent_away() -> None:
    at = Place(f"127.0.0.1:{free_port()}", 2, 0)
    errors: list[Any] = []
    first = threading.Thread(target=lambda: errors.extend(outcomes([lambda: roll_call(at, {}, 10.0)])))
    first.start()
    for nonsense in (b"GET / HTTP/1.1\n", b"[]\n", b'{"process_id": "1"}\n', b""):
        late = time.monotonic() + 5
        while True:
            try:
                with socket.create_connection(at.address, 5) as stranger:
                    stranger.sendall(nonsense)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < late
    roll_call(at._replace(process_id=1), {}, 10.0)
    first.join()
    assert errors == [None]


def test_what_answers_may_be_no_process_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=lambda: other.accept()[0].sendall(b"220 mail\n"), daemon=True).start()
        with pytest.raises(TimeoutError, match=r"process 0 did not answer: .* or another program has that port"):
            roll_call(Place(f"127.0.0.1:{other.getsockname()[1]}", 2, 1), {}, 1.0)


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
        ({"num_processes": 2}, "nothing says which of them this is"),
    ],
)
def test_initialize_refuses(given: dict[str, Any], message: str) -> None:
    jax.devices()
    with pytest.raises(ValueError, match=message):
        jaxrl.parallel.initialize(**given)


def test_a_group_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.distributed.global_state, "client", object())
    with pytest.raises(ValueError, match="has joined a group before"):
        jaxrl.parallel.initialize(num_processes=2, process_id=0)


def test_a_heartbeat_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_HEARTBEAT", "often")
    with pytest.raises(ValueError, match="JAXRL_HEARTBEAT='often' must be a number of seconds"):
        jaxrl.parallel.initialize(num_processes=2, process_id=0)


def test_a_machine_whose_name_leads_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(ValueError, match=r"leads to 127\.0\.1\.1 here \(see /etc/hosts\)"):
        start._check_own_name(Place("10.0.0.1:99", 2, 0))
    start._check_own_name(Place("127.0.0.1:99", 2, 0))
    monkeypatch.setattr(start.socket, "gethostbyname", lambda name: "10.0.0.1")
    start._check_own_name(Place("10.0.0.1:99", 2, 0))


# ----------------------------------------------------------------------------------------------------------- what they tell


class Store:
    """What JAX's processes share, for threads."""

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


def groups(number: int) -> list[Group]:
    store, made = Store(), []
    for process_id in range(number):
        group = Group()
        group._store, group.process_id, group.num_processes = store, process_id, number
        made.append(group)
    return made


def test_all_hear_what_each_says() -> None:
    made = groups(3)

    def talk(group: Group) -> list[Any]:
        return [group.gather([group.process_id, turn, None, 0.1]) for turn in range(20)]

    heard = outcomes([lambda group=group: talk(group) for group in made])  # type: ignore[misc]
    assert heard == [[[[i, turn, None, 0.1] for i in range(3)] for turn in range(20)]] * 3
    left = made[0]._store.texts
    assert {key.split("/")[1] for key in left} == {"20"} and json.loads(left["jaxrl/20/all"]) == heard[0][-1]


def test_what_fails_in_one_fails_in_all() -> None:
    def make(group: Group) -> int:
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
    """Those that wait for it hear of it: the first, and by way of the first also others."""
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
    first.fail("")  # and it waits no more: all have told
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
    with pytest.raises(TimeoutError, match="process 1 did not come so far in time"):
        first.gather(0, timeout=0.0)


def test_one_process_waits_for_nobody() -> None:
    alone = Group()
    assert alone.gather({"a": (1,)}) == [{"a": (1,)}]
    with pytest.raises(ZeroDivisionError):
        alone.together(lambda: 1 / 0)
    alone.part()
