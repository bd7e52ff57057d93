"""``jaxrl.parallel.initialize`` without programs of JAX: what it refuses, and what processes compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

import jaxrl.parallel
from jaxrl.runtime.distributed import start
from jaxrl.runtime.distributed.cluster import ProcessPlace
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs import provenance
from tests.helpers.roll_calls import called


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
        raise TimeoutError("no process joined")

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
        with pytest.raises(TimeoutError, match="no process joined"):
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
