"""Where processes that train together meet, as variables of schedulers and arguments say."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from jaxrl.runtime.distributed import rendezvous as roll_call_module
from jaxrl.runtime.distributed.cluster import ProcessPlace, find_place, first_node
from jaxrl.runtime.distributed.rendezvous import addresses, roll_call
from tests.helpers.ports import free_port
from tests.helpers.roll_calls import outcomes

SLURM = {"SLURM_JOB_ID": "70001", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "gpu[07-12,15],login"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}


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
