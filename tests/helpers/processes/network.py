"""Several hosts in this machine, each with its own network, processes, name and mounts, and a switch between them.

Hosts are namespaces of Linux, which only root can make. Traffic stays inside this machine: no host has a way out. All of it ends
with the context, and with the process that made it, since each namespace belongs to a process that ends with its stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT
from tests.helpers.processes.children import runs, soon

TOOLS = ("ip", "unshare", "nsenter", "mount")

OWNER = "trap '' CHLD; hostname \"$0\"; mount -t tmpfs -o size=512m tmpfs /dev/shm; echo ready; exec cat"
"""Process 1 of a host: the kernel reaps its children for it, and kills all processes of the host when it ends."""


def why_not() -> str:
    """Return the reason that this machine cannot have such hosts; empty if it can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not installed (iproute2, util-linux)"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"namespaces are not allowed here: {tried.stderr.strip()}"


class Host:
    """One of the machines. ``address`` is its IP address."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number, self.address = name, number, f"10.99.0.{number + 1}"
        self.owner = own("--mount", "--pid", "--uts", "--mount-proc", "sh", "-c", OWNER, name)
        (self.pid,) = children(self.owner.pid)

    def command(self, *command: str) -> list[str]:
        """Return a command that runs another one on this host."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--uts", *command]

    def popen(self, *command: str, env: Mapping[str, str] | None = None, **settings: Any) -> subprocess.Popen[str]:
        """Start a command there, in the repository. Killing it would only kill ``nsenter``: it ends with its host."""
        there = self.command("env", f"--chdir={ROOT}", *command)
        return subprocess.Popen(there, env=env, text=True, **settings)

    def run(self, *command: str, timeout: float = 60, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command there, for at most ``timeout`` seconds."""
        there = self.command("env", f"--chdir={ROOT}", "timeout", "--signal=KILL", f"{timeout}", *command)
        return subprocess.run(there, env=env, capture_output=True, text=True, check=False)

    def check(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def mount(self, folder: Path | str, megabytes: int) -> None:
        """Give this host a private, empty folder of this size in place of one that it shared with others."""
        self.check("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))

    def processes(self, *words: str) -> list[int]:
        """Return the processes of this host whose command has all these words."""
        found, mine = [], os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                if (
                    os.stat(folder / "ns" / "pid").st_ino == mine
                    and all(word in command for word in words)
                    and runs(int(folder.name))
                ):
                    found.append(int(folder.name))
        return found


class Network:
    """Hosts on one switch. All links are without delay, limits and faults at first."""

    def __init__(self, hosts: Sequence[Host], switch: subprocess.Popen[str]) -> None:
        self.hosts, self._switch, self._blocked = [*hosts], switch, set[tuple[str, str, int]]()

    def slow(self, delay: float, rate: float) -> None:
        """Delay everything that a host sends by ``delay`` seconds, and limit it to ``rate`` bytes per second."""
        self._change(delay=delay, rate=rate)

    def cut(self, host: Host) -> None:
        """Cut the link of a host: whatever it sends, or is sent, is lost without a word."""
        self._change(port=host.number, is_cut=True)

    def mend(self, host: Host) -> None:
        self._change(port=host.number, is_cut=False)

    def block(self, source: Host, target: Host, *ports: int) -> None:
        """Drop TCP packets from ``source`` to these ports of ``target``, as a firewall does. The other direction works."""
        self._blocked |= {(source.address, target.address, port) for port in ports}
        self._change(blocked=sorted(self._blocked))

    def unblock(self) -> None:
        self._blocked.clear()
        self._change(blocked=[])

    def _change(self, **settings: Any) -> None:
        assert self._switch.stdin and self._switch.stdout
        print(json.dumps(settings), file=self._switch.stdin, flush=True)
        assert self._switch.stdout.readline() == "changed\n"


@contextlib.contextmanager
def network(*names: str) -> Iterator[Network]:
    """Make hosts of these names, which reach each other."""
    with contextlib.ExitStack() as stack:
        core = own("sh", "-c", "echo ready; exec cat")
        stack.callback(end, core)
        (middle,) = children(core.pid)
        hosts = []
        for number, name in enumerate(names):
            hosts.append(host := Host(name, number))
            stack.callback(end, host.owner)
            connect(host, middle)
        command = [
            "nsenter",
            f"--target={middle}",
            "--net",
            "--pid",
            sys.executable,
            "-P",
            str(Path(__file__).with_name("switch.py")),
        ]
        interfaces = [f"host{host.number}" for host in hosts]
        switch = subprocess.Popen([*command, *interfaces], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(end, switch)
        assert switch.stdout and switch.stdout.readline() == "ready\n"
        yield Network(hosts, switch)


def connect(host: Host, middle: int) -> None:
    """Lay a cable from a host to the namespace of the switch."""
    inside = ["nsenter", f"--target={middle}", "--net"]
    name = f"host{host.number}"
    # IPv6 would send frames by itself.
    quiet = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6"
    for command in (
        [*inside, "sh", "-c", quiet],
        [*inside, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)],
        [*inside, "ip", "link", "set", name, "up"],
        host.command("ip", "address", "add", f"{host.address}/24", "dev", "eth0"),
        host.command("ip", "link", "set", "eth0", "up"),
        host.command("ip", "link", "set", "lo", "up"),
    ):
        subprocess.run(command, check=True, capture_output=True)


def own(*command: str) -> subprocess.Popen[str]:
    """Start the owner of a new network namespace, and of others that the command begins with."""
    start = ["unshare", "--net", "--pid", "--fork", "--kill-child", *command]
    owner = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout and owner.stdout.readline() == "ready\n"
    return owner


def end(process: subprocess.Popen[str]) -> None:
    """End a process whose stdin is its lifeline, and wait for it."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    assert soon(lambda: bool(listed.read_text().split()), 10)
    return [*map(int, listed.read_text().split())]
