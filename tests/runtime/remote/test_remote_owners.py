"""Owners of remote objects: scripts, ends of the owner, other versions, clusters that are not there or not safe."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl import remote
from jaxrl.runtime.remote.ray.connect import check_same
from tests.helpers.fresh_python import in_fresh_python
from tests.helpers.paths import ROOT
from tests.helpers.processes.children import runs, soon
from tests.helpers.processes.remote_objects import ENGINES, Counter

on_each_engine = pytest.mark.parametrize("engine", ENGINES)

SCRIPT = """
import dataclasses, os, sys
from jaxrl import remote

@dataclasses.dataclass
class Point:
    x: int

class Mover:
    def __init__(self, point):
        self.point = point
    def move(self, by):
        self.point = Point(self.point.x + by)
        return self.point
    def pid(self):
        return os.getpid()
    def program(self):
        import subprocess
        return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

def double(point):
    return Point(2 * point.x)

@remote.remote_class(wait=True)
class Decorated:
    def point(self):
        return Point(9)

cluster = remote.open(sys.argv[1], cpus=4)
mover = cluster.start(Mover, Point(1))
assert mover.call("move", 2).result(60) == Point(3)
assert list(cluster.map(double, [Point(1), Point(2)])) == [Point(2), Point(4)]
with cluster:
    assert Decorated().point() == Point(9)
    if len(sys.argv) > 2:
        print(mover.call("pid").result(60), mover.call("program").result(60), flush=True)
        mover.call(sys.argv[2]) if sys.argv[2] == "move" else sys.stdin.readline()
print("end")
"""


def script(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the script, which has no ``__main__`` guard."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@on_each_engine
def test_what_a_script_defines_is_sent_and_the_script_is_not_run_again(tmp_path: Path, engine: str) -> None:
    out, errors = script(tmp_path, engine).communicate(timeout=120)
    assert out == "end\n", errors


@on_each_engine
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_end_of_the_owner_ends_all_that_it_started(tmp_path: Path, engine: str, number: int) -> None:
    with script(tmp_path, engine, "wait") as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 2 and all(map(runs, pids))
        owner.send_signal(number)
        owner.wait(60)
        assert soon(lambda: not any(map(runs, pids)))
        owner.communicate()


@on_each_engine
def test_a_fork_of_the_owner_leaves_the_cluster_alone(engine: str) -> None:
    with remote.open(engine) as cluster:
        one = cluster.start(Counter, cpus=0.1)
        assert one.call("add").result(60) == 1
        if not (child := os.fork()):
            try:
                cluster.start(Counter)
            except RuntimeError as error:
                cluster.close()
                os._exit(7 if "is a fork of the one" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert one.call("add").result(60) == 2


def test_jax_is_not_imported() -> None:
    code = """
from jaxrl import remote
from tests.helpers.processes.remote_objects import ENGINES, Counter
with remote.open() as cluster:
    added = cluster.start(Counter, timeout=60, memory="1GB").call("add").result(60)
result = [added, "jax" in sys.modules]
"""
    assert in_fresh_python(code) == [1, False]


@on_each_engine
def test_other_versions_are_refused(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"jaxrl": "99.0.0", "Python": "3.99"}
    home = {"local": "local.engine", "ray": "ray.worker"}[engine]
    monkeypatch.setattr(f"jaxrl.runtime.remote.{home}.short_versions", lambda: versions)
    with remote.open(engine) as cluster:
        error = cluster.start(Counter, cpus=0.1).call("add").exception(60)
        assert isinstance(error, RuntimeError)
        assert re.search(r"has other versions: jaxrl 99.0.0 here and \S+ there, Python 3.99 here and 3\.\d+ there$", str(error))


def test_addresses_are_for_ray() -> None:
    with pytest.raises(ValueError, match="address and insecure are for"):
        remote.open(address="127.0.0.1:6379")


def test_a_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'engine "ray" needs the package ray: pip install "jaxrl\[ray\]"'):
        remote.open("ray")


# --------------------------------------------------------------------------------------------------------------- security on Ray


HEAD = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(
    initialize_head=True,
    head_node_args=dict(node_ip_address="127.0.0.1", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20),
)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.shutdown()
"""

JOIN = """
import os, time
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # reach a cluster that listens on loopback alone
from jaxrl import remote
from tests.helpers.processes.remote_objects import ENGINES, Counter
notes, start = [], time.monotonic()
try:
    with remote.open("ray", address={address!r}, insecure={insecure}, note=notes.append) as cluster:
        result = ["joined", cluster.start(Counter, 4).call("add").result(60), notes]
except Exception as error:
    result = [type(error).__name__, str(error), notes]
result.append(time.monotonic() - start)
"""


def joined(address: str, insecure: bool = False) -> list[Any]:
    found = in_fresh_python(JOIN.format(address=address, insecure=insecure))
    assert isinstance(found, list)
    return found


@pytest.fixture
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A cluster on loopback in another process; yields its address."""
    (tmp_path / "token").write_text("0123456789abcdef" * 4)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": request.param}
    environment |= {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HEAD], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.communicate("\n", timeout=60)


@pytest.mark.ray
@pytest.mark.parametrize("head", ["disabled"], indirect=True)
def test_a_cluster_without_a_token_is_refused_unless_insecure(head: str) -> None:
    kind, text, _, _ = joined(head)
    assert kind == "NoToken" and "runs what anyone sends to it: start it with RAY_AUTH_MODE=token" in text
    verdict, result, notes, _ = joined(head, insecure=True)
    assert (verdict, result) == ("joined", 5) and "asks for no token: anyone who reaches it" in notes[0]


@pytest.mark.ray
@pytest.mark.parametrize("head", ["token"], indirect=True)
def test_a_token_opens_the_cluster_and_another_does_not(head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert joined(head)[:2] == ["joined", 5]
    (tmp_path / "wrong").write_text("fedcba9876543210" * 4)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "wrong"))
    kind, text, _, _ = joined(head)
    assert kind == "PermissionError" and "refuses this process's token: set RAY_AUTH_TOKEN" in text and "\n" not in text


@pytest.mark.ray
def test_an_address_where_no_cluster_answers() -> None:
    kind, text, _, seconds = joined("127.0.0.1:9")
    assert kind == "ConnectionError" and text.startswith("no cluster answers at 127.0.0.1:9") and "\n" not in text
    assert seconds < 60 and time.monotonic() > 0


def listening() -> set[int]:
    """Return the TCP ports of this machine on which something listens."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(path).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A":
                found.add(int(local.rpartition(":")[2], 16))
    return found


class Harmful:
    """Touches a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_the_local_engine_listens_on_no_port() -> None:
    before = listening()
    with remote.open("local") as another:
        assert another.start(Counter, 4).call("add").result(60) == 5
        assert listening() <= before


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:6379", "localhost:6379"])
def test_a_process_joins_its_cluster_once_more(address: str | None) -> None:
    check_same("127.0.0.1:6379", address)


@pytest.mark.parametrize("address", ["127.0.0.1:6380", "10.0.0.1:6379"])
def test_a_process_in_one_cluster_cannot_join_another(address: str) -> None:
    with pytest.raises(ValueError, match=rf"in the cluster at 127\.0\.0\.1:6379, and can join the one at {address} only after"):
        check_same("127.0.0.1:6379", address)


@pytest.mark.ray
def test_a_pickle_that_is_sent_to_an_open_port_is_not_loaded(tmp_path: Path) -> None:
    """The ports are Ray's, which has a token."""
    before = listening()
    with remote.open("ray", cpus=2) as cluster:
        assert cluster.start(Counter, 4).call("add").result(60) == 5
        opened = listening() - before
        assert opened
        for port in opened:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as connection:
                connection.sendall(pickle.dumps(Harmful(tmp_path / "harm")))
        assert cluster.start(Counter, 5).call("add").result(60) == 6
    assert not (tmp_path / "harm").exists()
    pickle.loads(pickle.dumps(Harmful(tmp_path / "harm")))
    assert (tmp_path / "harm").exists()
