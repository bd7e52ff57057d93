"""Clusters for the tests of remote objects, one for each test file and engine."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxrl import remote
from tests.helpers.processes.remote_objects import ENGINES, Counter


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def notes() -> list[str]:
    return []


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def cluster(engine: str, notes: list[str], logs: Path) -> Iterator[remote.Cluster]:
    opened = remote.open(engine, cpus=16, log_folder=logs, note=notes.append)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def counter(cluster: remote.Cluster) -> remote.RemoteObject:
    return cluster.start(Counter)


@pytest.fixture(autouse=True)
def _no_objects_in_tracebacks() -> Iterator[None]:
    """The traceback of an expected error refers to objects, which would keep their CPUs."""
    yield
    gc.collect()
