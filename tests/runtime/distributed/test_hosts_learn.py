"""Several processes, and several hosts with separate addresses, solve CartPole together."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.paths import ROOT
from tests.helpers.ports import free_port

pytestmark = pytest.mark.learning

SHARED = "ppo --env CartPole-v1 --num-envs 16 --total-steps 300000"
ON_HOSTS = "ppo --env envpool:CartPole-v1 --num-envs 16 --total-steps 300000"
SOLVED = 475.0
"""CartPole's threshold: mean return of 128 greedy episodes per seed, at the end of training."""


def score(folder: Path) -> float:
    last = json.loads((folder / "records.jsonl").read_text().splitlines()[-1])
    assert last["rows"] >= 300_000
    return float(np.mean(last["evaluation/episodic_return"]))


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (2, f"{SHARED} --seeds 1"),
        (4, f"{SHARED} --seeds 2"),
        (2, f"{ON_HOSTS} --seeds 2 --scheme a2c --num-workers 1"),
        (4, f"{ON_HOSTS} --seeds 1 --scheme a2c --num-workers 1"),
    ],
)
def test_processes_on_loopback(processes: int, words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxrl", "launch", "--processes", str(processes), "--", "train", *words.split()]
    subprocess.run([*command, "--out", str(tmp_path / "run")], cwd=ROOT, timeout=900, check=True)
    assert score(tmp_path / "run") >= SOLVED


@contextlib.contextmanager
def two_hosts(tmp_path: Path) -> Iterator[list[list[str]]]:
    """Return prefixes that run a command on one host or the other.

    Hosts are network namespaces, each with a name and an address, joined by a virtual cable.
    """
    names = [f"jaxrl{os.getpid()}{side}" for side in "ab"]
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"10.77.0.{i + 1} {names[i]}\n" for i in range(2)))

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)

    with contextlib.ExitStack() as resources:
        for name in names:
            ip(f"netns add {name}")
            resources.callback(ip, f"netns delete {name}")
        ends = [f"jx{os.getpid()}{side}" for side in "ab"]
        ip(f"link add {ends[0]} netns {names[0]} type veth peer name {ends[1]} netns {names[1]}")
        for i, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip(f"-n {name} addr add 10.77.0.{i + 1}/24 dev {end}")
            ip(f"-n {name} link set {end} up")
            ip(f"-n {name} link set lo up")
        named = 'mount --bind "$0" /etc/hosts; hostname "$1"; shift; exec "$@"'
        yield [
            ["ip", "netns", "exec", name, "unshare", "-m", "-u", "sh", "-ec", named, str(tmp_path / "hosts"), name]
            for name in names
        ]


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's to make")
@pytest.mark.parametrize("words", [f"{SHARED} --seeds 1", f"{ON_HOSTS} --seeds 2 --scheme a2c --num-workers 1"])
def test_two_hosts(words: str, tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        group = {"JAXRL_COORDINATOR": f"{hosts[0][-1]}:{free_port()}", "JAXRL_NUM_PROCESSES": "2", "JAX_NUM_CPU_DEVICES": "1"}
        command = [sys.executable, "-m", "jaxrl", "train", *words.split(), "--out", str(tmp_path / "run")]
        started = [
            subprocess.Popen([*host, *command], cwd=ROOT, env={**os.environ, **group, "JAXRL_PROCESS_ID": str(i)})
            for i, host in enumerate(hosts)
        ]
        try:
            assert [process.wait(timeout=900) for process in started] == [0, 0]
        finally:
            for process in started:
                process.kill()
    assert score(tmp_path / "run") >= SOLVED
