"""``jaxrl doctor --ray`` up to the port of a cluster, and what it says about nodes. ``test_doctor_ray_faults`` has clusters."""

from __future__ import annotations

import ast
import json
import socket
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl.runtime.cli.main import main
from jaxrl.runtime.doctor.finding import Finding
from jaxrl.runtime.doctor.probe import Answer
from jaxrl.runtime.doctor.ray import hops, nodes, ports, visitor
from jaxrl.runtime.remote.versions import full_versions
from tests.helpers.paths import ROOT


@pytest.fixture(autouse=True)
def _short_limits_and_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these tests needs Ray."""
    monkeypatch.setattr(ports, "HOP", 0.3)
    monkeypatch.setattr(hops, "installed_version", lambda name: "2.60.0")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port of which connections are accepted by the system, and answered by no process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def last_of(address: str) -> Finding:
    return [finding for finding in hops.diagnose_cluster(address) if finding.check != "further hops"][-1]


@pytest.mark.parametrize(
    ("address", "parts"),
    [("10.0.0.1:6379", ("10.0.0.1", 6379)), ("head.cluster:1", ("head.cluster", 1)), ("[fd00::1]:6379", ("fd00::1", 6379))],
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert ports.split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "head", "head:", ":6379", "head:ray", "head:0", "head:65536", "fd00::1:6379", "http://x:1"]
)
def test_what_is_not_an_address(address: str) -> None:
    found = last_of(address)
    assert (found.check, found.level, found.found) == (
        "address",
        "problem",
        f"{address!r} is not HOST:PORT, such as 10.0.0.1:6379",
    )


def test_an_address_of_ray_client() -> None:
    assert "an address of Ray Client, which remote objects do not use" in last_of("ray://head:10001").found


def test_a_name_that_is_unknown_and_a_name_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert last_of("nowhere:6379").found == "this machine does not know the name nowhere (Name or service not known)"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(2) or [(0, 0, 0, "", ("10.0.0.1", 0))])
    assert last_of("nowhere:6379").found.endswith("the name nowhere (no answer within 0.3 s)")


def test_a_port_that_nothing_listens_to_and_one_whose_process_is_stopped(listener: socket.socket) -> None:
    refused, silent = (last_of(f"127.0.0.1:{port}") for port in (unused_port(), listener.getsockname()[1]))
    assert refused.check == silent.check == "GCS port"
    assert refused.found.endswith("refuses connections: no head of Ray listens there") and "ray start --head" in refused.fix
    assert "accepts connections, but its process does not answer" in silent.found and "kill -CONT" in silent.fix


def test_how_ports_fail(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: OSError) -> str:
        def raises(*_: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_connection", raises)
            return ports.fault_of("10.0.0.1", 1)

    assert fails(TimeoutError()) == ports.NO_ANSWER and fails(OSError("No route to host")) == ports.UNREACHABLE
    assert ports.faults_of([("127.0.0.1", unused_port()), listener.getsockname()]) == [ports.REFUSED, ports.SILENT]
    assert ports.faults_of([]) == [] and {*ports.TEXTS} == {ports.REFUSED, ports.NO_ANSWER, ports.SILENT, ports.UNREACHABLE}
    for fault in ports.TEXTS:
        assert nodes.remedy(fault, "here", "there", 1)
        monkeypatch.setattr(hops, "fault_of", lambda *_, fault=fault: fault)
        assert ports.TEXTS[fault] in hops.check_gcs("10.0.0.1:6379").found


def test_ray_here(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["ray"] == [hops.REQUIREMENT] == ["ray>=2.59,<3"] and hops.ALLOWED == ((2, 59), (3,))
    for version, said in (("2.58.9", "2.58.9 is not ray>=2.59,<3"), ("3.0.0", "3.0.0 is not"), (None, "not installed here")):
        monkeypatch.setattr(hops, "installed_version", lambda name, version=version: version)
        found = hops.diagnose_cluster("127.0.0.1:1")
        assert [each.check for each in found] == ["package ray", "further hops"] and said in found[0].found and found[0].fix
    for version in ("2.59.0", "2.100.1rc1"):
        monkeypatch.setattr(hops, "installed_version", lambda name, version=version: version)
        assert hops.check_package().level == "ok"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{unused_port()}"
    assert main(["doctor", "--ray", address, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["check"] for finding in report["checks"]] == ["package ray", "address", "GCS port", "further hops"]
    assert report["problems"][0].startswith(f"GCS port: {address} refuses connections") and not report["healthy"]
    for flags, words in ((["--shared", "/"], "--shared needs --ray"), (["--ray", address, "--quick"], "--ray replaces")):
        assert main(["doctor", *flags]) == 2 and words in "".join(capsys.readouterr())


def test_a_shared_folder_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(hops, "check_gcs", lambda address: Finding("Ray cluster", "GCS port", "ok", ""))
    monkeypatch.setattr(hops, "ask_driver", lambda *each: asked.append(each) or Answer({"clusters here": []}, None))
    found = hops.diagnose_cluster("127.0.0.1:1", "/proc/nothing")
    assert [each.check for each in found if each.level == "problem"] == ["shared folder", "joining"]
    assert asked == [("127.0.0.1:1", None)]


def test_a_shared_folder_whose_file_system_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hops.check_shared_here(str(tmp_path)).level == "ok" and not [*tmp_path.iterdir()]
    monkeypatch.setattr(hops, "check_folder", lambda *_: time.sleep(2))
    found = hops.check_shared_here(str(tmp_path))
    assert found.level == "problem" and "no answer within 0.3 s: its file system hangs" in found.found


def test_what_is_sent_to_nodes_needs_the_standard_library_only() -> None:
    for module in (ports, visitor):
        for line in ast.parse(Path(str(module.__file__)).read_text()).body:
            if isinstance(line, ast.Import | ast.ImportFrom):
                names = [line.module or ""] if isinstance(line, ast.ImportFrom) else [each.name for each in line.names]
                assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names or names == [ports.__name__]


# ------------------------------------------------------------------------------------------------------ what the driver has found

HERE = {
    "id": "here",
    "alive": True,
    "address": "10.0.0.1",
    "host": "head",
    "raylet": 8077,
    "objects": 8076,
    "death": [0, ""],
    "store size": 1e9,
    "faults": ["", ""],
    "look": {
        "python": "/python",
        "versions": {"ray": "2.60.0", **full_versions()},
        "faults": ["", "", ""],
        "shm": 1,
        "store": None,
    },
    "clock": [0.0, 0.001],
}
NODE = HERE | {"id": "there", "address": "10.0.0.2", "host": "node", "rate": 1e8}


def look(**changes: Any) -> dict[str, Any]:
    return {"look": HERE["look"] | changes}  # type: ignore[operator]


def versions(**others: str) -> dict[str, Any]:
    return look(versions=HERE["look"]["versions"] | others)  # type: ignore[index]


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "raylet": ({"faults": ["no answer", ""]}, "the port of its raylet, 10.0.0.2:8077, does not answer"),
    "stopped": (
        {"faults": ["", "silent"]},
        "object manager, 10.0.0.2:8076, accepts connections, but its process does not answer",
    ),
    "no visit": ({"look": None, "look error": "no answer in 30 s"}, "no process there did its task (no answer in 30 s)"),
    "no jaxrl": (look(broken="ModuleNotFoundError: x"), "jaxrl does not work with its Python, /python (ModuleNotFoundError: x)"),
    "python": (versions(Python="3.10"), "it has other versions: Python "),
    "ray": (versions(ray="2.59.0"), "it has other versions: ray 2.60.0 here and 2.59.0 there"),
    "back": (
        look(faults=["", "refused", ""]),
        "this machine's object manager, 10.0.0.1:8076, refuses connections, asked from there",
    ),
    "to the head": (look(faults=["", "", "unreachable"]), "the cluster's head, 10.0.0.1:6379, cannot be reached"),
    "transfer": ({"measure error": "late"}, "a value of 4 MiB did not come here from its object store (late)"),
    "not read": ({"read": "No such file"}, "a file written here to /shared cannot be read there: No such file"),
    "not written": ({"read": "", "write": "Permission denied"}, "/shared cannot be written to there: Permission denied"),
    "not seen": ({"read": "", "write": "", "seen": "No such file"}, "a file written there to /shared cannot be read here"),
    "hangs": ({"shared error": "no answer in 20 s"}, "/shared did not answer there (no answer in 20 s)"),
    "clock": ({"clock": [-90.0, 0.01]}, "its clock is 90 s behind this machine's"),
    "died": ({"alive": False, "death": [2, "health check failed."]}, "the cluster has lost it: health check failed"),
}


def check(node: dict[str, Any], shared: str = "") -> list[Finding]:
    node = {name: value for name, value in node.items() if value is not None}
    return [*nodes.check_nodes([HERE, node], HERE, "10.0.0.1:6379", "2.60.0", shared)][1:]


@pytest.mark.parametrize("fault", PROBLEMS)
def test_the_fault_of_a_node_is_its_only_finding(fault: str) -> None:
    changes, text = PROBLEMS[fault]
    in_order = {"read": "", "write": "", "seen": ""} if not {"read", "shared error"} & {*changes} else {}
    (found,) = check(NODE | in_order | changes, "/shared")
    assert (
        (found.check, found.level) == ("node 10.0.0.2 (node)", "problem") and text in found.found and found.breaks and found.fix
    )


def test_notes_of_a_node() -> None:
    changes = versions(numpy="1.0")
    changes["look"] |= {"shm": 2**26, "store": "/tmp"}
    fine, *notes = check(NODE | changes | {"clock": [5.0, 0.5]})
    assert fine.level == "ok" and "95.4 MiB per second from there, clock +5.00 ± 0.50 s" in fine.found
    assert {note.level for note in notes} == {"note"} and len(notes) == 3
    assert "numpy" in notes[0].found and "jax " not in notes[0].found and "its clock is 5 s ahead" in notes[1].found
    assert "953.7 MiB is in /tmp, as /dev/shm has 64.0 MiB: slow; faster: docker run --shm-size=1049m" in notes[2].found


def test_nodes_that_have_left_are_not_missed() -> None:
    assert check(NODE | {"alive": False, "death": [1, "asked to"]}) == []
    restarted = HERE | {"id": "before", "alive": False, "death": [2, "died"]}
    assert check(restarted) == []


@pytest.mark.parametrize(
    ("facts", "end", "check", "text"),
    [
        ({}, "exit code 3", "token", "no check was possible: exit code 3"),
        ({"refused": "no token", "reason": "…"}, None, "token", "asks for no token"),
        (
            {"refused": "wrong token", "reason": "refused: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH (why)"},
            None,
            "token",
            "refused (why)",
        ),
        ({"refused": "other version", "reason": "it has Ray 2.60.0: pip install x"}, None, "version of Ray", "it has Ray 2.60.0"),
        ({"refused": "no answer", "reason": "no cluster answers"}, None, "token", "no cluster answers"),
        ({"clusters here": []}, None, "joining", "no process of Ray runs on this machine"),
        ({"clusters here": ["x:1"], "join error": "why"}, None, "joining", "why; Ray on this machine belongs to x:1"),
        ({"clusters here": ["h:1"]}, "killed by SIGALRM", "joining", "this process cannot join: killed by SIGALRM"),
        ({"clusters here": ["h:1"], "joined": True}, "timed out", "nodes", "the visit ended early (timed out)"),
    ],
)
def test_what_the_driver_could_not_do(facts: dict[str, Any], end: str | None, check: str, text: str) -> None:
    found = [each for each in hops.check_answer(Answer(facts, end), "h:1", "") if each.level == "problem"]
    assert [each.check for each in found] == [check] and text in found[0].found and found[0].fix
