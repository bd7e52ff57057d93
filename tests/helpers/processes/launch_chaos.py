"""Disturb the processes of ``jaxrl launch``, and compare the run with an undisturbed one.

``python -m tests.helpers.processes.launch_chaos`` prints each fault and exits with 1 if the two runs differ.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from jaxrl.runtime.checkpoint.manifest import steps
from tests.helpers.paths import ROOT
from tests.helpers.processes.actor_pools import workers_of
from tests.helpers.processes.chaos import differences, is_saving
from tests.helpers.processes.children import runs, soon

HEARTBEAT = 5
MODULE = """
import ctypes, os, threading, time
from pathlib import Path
import jaxrl

ORDER = Path("fail-" + os.environ["JAXRL_PROCESS_ID"])

def obey():
    while not ORDER.exists():
        time.sleep(0.02)
    ORDER.unlink()
    main = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(ZeroDivisionError))

threading.Thread(target=obey, daemon=True).start()

def cartpole():
    return jaxrl.make_env("CartPole-v1")
"""
"""A user's environment that fails once, when a file orders it."""

FAULTS = (
    *("kill 0", "early-kill 1", "kill 1", "stop 1", "raise 1", "save-kill 0", "save-kill 1", "term 1"),
    *("early-kill 0", "stop 0", "raise 0", "term 0"),
)
"""Faults, each with the process that it is done to. save-kill: during a save. early-kill: while processes load and connect."""
REPORTS = {
    "early-kill": "was killed by SIGKILL",
    "kill": "was killed by SIGKILL",
    "save-kill": "was killed by SIGKILL",
    "stop": "was stopped (SIGSTOP)",
    "raise": "ended with exit code 1",
    "term": "ended with exit code 143 (as after SIGTERM to any of them, which lets all save)",
}


class Launch:
    """A run of several processes, observed from outside."""

    def __init__(self, folder: Path, processes: int, total_steps: int, restarts: int) -> None:
        self.folder, self.processes, self.lines, self.pids = folder, processes, list[str](), set[int]()
        folder.parent.mkdir(exist_ok=True)
        (folder.parent / "disturbed_env.py").write_text(MODULE)
        flags = f"--processes {processes} --max-restarts {restarts} --heartbeat {HEARTBEAT}"
        train = (
            f"train ppo --env disturbed_env:cartpole --num-envs 8 --seeds 2 --total-steps {total_steps} --checkpoint-every 0.5 "
            f"--eval-every 0 --no-tensorboard --out {folder.name}"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jaxrl", "launch", *flags.split(), "--", *train.split()],
            cwd=folder.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    @property
    def reports(self) -> list[str]:
        """Messages about faults."""
        return [line.removeprefix("launch: ") for line in self.lines if line.startswith("launch: rank")]

    def ranks(self) -> dict[int, int]:
        """Return number -> pid of the processes that are running."""
        found = {}
        for child in workers_of(self.process.pid):
            try:
                variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            number = next((value[17:] for value in variables if value.startswith(b"JAXRL_PROCESS_ID=")), None)
            if number is not None and runs(child):
                found[int(number)] = child
        self.pids.update(found.values())
        return found

    @property
    def last(self) -> int:
        """The step of the last checkpoint."""
        return max(steps(self.folder / "checkpoints"), default=-1)

    def wait(self, condition: Callable[[], bool], deadline: float, pause: float = 0.01) -> None:
        while not condition():
            said = "\n".join(self.lines[-30:])
            if self.process.poll() is not None:
                raise RuntimeError(f"the run ended with exit code {self.process.returncode}; increase --steps?\n{said}")
            if time.monotonic() > deadline:
                raise TimeoutError(said)
            time.sleep(pause)

    def disturb(self, fault: str, deadline: float) -> str:
        """Wait for the run to advance, then cause a fault. Return where the run was and the launcher's message."""
        how, number = fault.split()
        before, num_reports, known = self.last, len(self.reports), set(self.pids)
        if how == "early-kill":
            self.wait(lambda: len(self.ranks()) == self.processes and not known & {*self.ranks().values()}, deadline)
            time.sleep(1.0)
        else:
            self.wait(lambda: self.last > before, deadline)
            time.sleep(0.3)
        if how == "save-kill":
            self.wait(lambda: is_saving(self.folder), deadline, 0.0005)
        pid, at, began = self.ranks()[int(number)], self.last, time.monotonic()
        if how == "raise":
            (self.folder.parent / f"fail-{number}").touch()
        else:
            os.kill(pid, {"stop": signal.SIGSTOP, "term": signal.SIGTERM}.get(how, signal.SIGKILL))
        saving = ", while saving" * is_saving(self.folder)
        self.wait(lambda: len(self.reports) > num_reports, deadline)
        return f"{fault}: at checkpoint {at}{saving}; after {time.monotonic() - began:.1f} s: {self.reports[-1]}"


def end(launch: Launch, timeout: float) -> list[str]:
    """Return the errors at the end of a run."""
    code, wrong = launch.process.wait(timeout), []
    if code:
        wrong.append(f"exit code {code}: {launch.lines[-3:]}")
    if not soon(lambda: not any(map(runs, launch.pids))):
        wrong.append("processes still run")
    return wrong


def disturbed(
    folder: Path, processes: int, total_steps: int, faults: Sequence[str], timeout: float
) -> tuple[list[str], list[str]]:
    """Run through all faults, one after the other. Return ``(descriptions of the faults, errors)``."""
    launch, done, wrong = Launch(folder, processes, total_steps, len(faults)), [], []
    deadline = time.monotonic() + timeout
    try:
        for count, fault in enumerate(faults, 1):
            done.append(launch.disturb(fault, deadline))
            how, number = fault.split()
            ended = [f"rank {each} {REPORTS[how]}" for each in (range(processes) if how == "term" else [number])]
            if not launch.reports[-1].startswith(tuple(ended)) or f"(restart {count} of {len(faults)})" not in launch.reports[-1]:
                wrong.append(f"after {fault!r} it reported: {launch.reports[-1]}")
        wrong += end(launch, deadline - time.monotonic())
    finally:
        launch.process.kill()
    if len(launch.reports) != len(faults):
        wrong.append(f"{len(launch.reports)} faults were reported")
    return done, wrong


def compare(folder: Path, processes: int, total_steps: int, faults: Sequence[str], timeout: float) -> tuple[list[str], list[str]]:
    """Compare a disturbed run with an undisturbed one, bit for bit. Return ``(descriptions of the faults, errors)``."""
    alone = Launch(folder / "a" / "undisturbed", processes, total_steps, 0)
    try:
        wrong = end(alone, timeout)
    finally:
        alone.process.kill()
    done, more = disturbed(folder / "b" / "disturbed", processes, total_steps, faults, timeout)
    wrong += more
    return done, wrong + differences(alone.folder, folder / "b" / "disturbed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1_000_000, help="rows per seed")
    parser.add_argument("--faults", nargs="*", default=FAULTS)
    parser.add_argument("--timeout", type=float, default=1800)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        done, wrong = compare(Path(name), args.processes, args.steps, args.faults, args.timeout)
    print("\n".join(done))
    verdict = "; ".join(wrong) if wrong else "bit-equal, logs too"
    print(f"after {len(args.faults)} faults in {args.processes} processes: {verdict} (jax {jax.__version__})")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
