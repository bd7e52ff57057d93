"""Jobs of a sweep on a cluster of Ray, several at once. A job whose machine is lost is resumed on another one.

All machines must share the folder of the sweep: jobs save their checkpoints there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.envs.subprocess.child import open_log
from jaxrl.interpreter import python_command
from jaxrl.runtime.remote.cluster import Cluster, RemoteObject, open_cluster
from jaxrl.runtime.remote.errors import RemoteError, WorkerLost
from jaxrl.runtime.remote.ray.beside import call_beside
from jaxrl.runtime.remote.resources import Resources, number_that_fit
from jaxrl.runtime.system.cores import cpu_devices
from jaxrl.runtime.system.disk import read_regular, write_atomically
from jaxrl.runtime.training_loop.signals import SIGNALS, Interrupted, handled

LOGS = "logs"
"""Folder of a sweep for the output of its jobs, one file each."""

LOSSES = 3
"""Number of times that a job may lose its machine before it counts as failed."""

LOOK = 0.5
"""Seconds between two looks at signals."""

FOUND = 10.0
"""Seconds after which a file of another machine must be visible here."""


class RayJobs(NamedTuple):
    """Settings of a sweep on Ray."""

    at_once: int | None = None
    """Number of jobs at once; None: as many as the cluster has room for."""
    cpus: int = 1
    """CPUs of each job, and CPU devices if it has no GPU."""
    gpus: float = 0
    """GPUs of each job."""
    insecure: bool = False
    """Join a cluster that asks for no token."""


class JobRunner:
    """Remote object that runs jobs of a sweep one after the other, each in another process."""

    def __init__(self, folder: str, secret: str, cpus: int, gpus: float) -> None:
        """
        Args:
          folder: folder of the sweep, which this machine must share with the owner's.
          secret: name of a file in it that the owner has written. The answer is a file beside it.

        Raises:
          FileNotFoundError: the machine does not share the folder.
        """
        self._folder, self._is_stopped = Path(folder), False
        self._process: subprocess.Popen[bytes] | None = None
        self._variables = {} if gpus else cpu_devices(cpus) | {"PJRT_NPROC": str(cpus)}
        self.host = socket.gethostname()
        if not (self._folder / secret).exists():
            raise FileNotFoundError(f"{folder} on {self.host} is not the folder of the sweep: all machines must share it")
        self.answer = f"{secret}.{uuid.uuid4().hex}"
        (self._folder / self.answer).write_text(self.host)

    def hello(self) -> tuple[str, str]:
        """Return the name of this machine, and that of the file with which it answers."""
        return self.host, self.answer

    def run(self, name: str, *trust: str) -> int:
        """Run a job, which resumes from its last checkpoint. Return the exit code of its process, 128 and more after a signal."""
        command = python_command("jaxrl.runtime.cli.sweep_job", str(self._folder), name, *trust)
        with open_log(log_of(self._folder, name)) as log:
            environment = {**os.environ, **self._variables}
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self._process = process
        if self._is_stopped:
            process.terminate()
        code = process.wait()
        return 128 - code if code < 0 else code

    def stop(self) -> None:
        """Send SIGTERM to the job, upon which it saves its state and ends. Processes on Ray ignore SIGINT."""
        self._is_stopped = True
        if self._process is not None:
            self._process.terminate()


def log_of(folder: Path, name: str) -> Path:
    """Return the file for the output of a job."""
    return folder / LOGS / f"{file_name(name)}.log"


def file_name(name: str) -> str:
    """Return the name of a job as that of a file or folder."""
    return name.replace(" ", ",").replace("/", "-")


def run_jobs_on_ray(
    names: Sequence[str],
    finish: Callable[[str], None],
    out: Path,
    trust: Sequence[str],
    say: Callable[[str], None],
    settings: RayJobs,
) -> None:
    """Run jobs of a sweep on the cluster that RAY_ADDRESS names, or on one that is started here.

    Args:
      names: names of the jobs.
      finish: called with the name of each job that has succeeded.
      out: folder of the sweep.

    Raises:
      ChildProcessError: jobs failed; the others have finished.
      FileNotFoundError: a machine does not share the folder.
      NotEnough: not even one job fits.
      Interrupted: Ctrl-C, SIGTERM or SIGHUP. The jobs saved their states.
    """
    folder, received = out.resolve(), list[int]()
    (folder / LOGS).mkdir(exist_ok=True)
    with (
        handled(lambda number, _: received.append(number)),
        open_cluster("ray", insecure=settings.insecure, note=say) as cluster,
        shared_secret(folder) as secret,
    ):
        runners = start_runners(cluster, folder, secret, len(names), settings)
        say(f"{len(runners)} of {len(names)} jobs at once, with {Resources(settings.cpus, settings.gpus, 0)} each, on Ray")
        Schedule(names, finish, folder, trust, say).run(runners, received)


@contextlib.contextmanager
def shared_secret(folder: Path) -> Iterator[str]:
    """Write a file to find out who shares a folder. Yield its name. The file and the answers to it are removed in the end."""
    secret = f".shared-{uuid.uuid4().hex}"
    write_atomically(folder / secret, "")
    try:
        yield secret
    finally:
        for path in folder.glob(f"{secret}*"):
            path.unlink(missing_ok=True)


def start_runners(cluster: Cluster, folder: Path, secret: str, number: int, settings: RayJobs) -> list[RemoteObject]:
    """Start the remote objects that run jobs, and check that their machines share the folder with this one."""
    wanted = Resources(settings.cpus, settings.gpus, 0)
    fitting = max(1, number_that_fit(wanted, cluster.resources, number))  # at least one, whose start reports what is missing
    arguments = str(folder), secret, settings.cpus, settings.gpus
    runners = [
        cluster.start(JobRunner, *arguments, cpus=settings.cpus, gpus=settings.gpus, restarts=LOSSES * number, placement="spread")
        for _ in range(min(settings.at_once or number, fitting))
    ]
    for hello in [runner.call("hello") for runner in runners]:
        try:
            host, answer = hello.result()
        except RemoteError as error:
            raise (FileNotFoundError(error.message) if error.type_name == FileNotFoundError.__name__ else error) from error
        if not becomes_visible(folder / answer):
            raise FileNotFoundError(f"what {host} writes to {folder} does not arrive here: all machines must share the folder")
    return runners


def becomes_visible(path: Path) -> bool:
    """Return whether a file that another machine has written can be read here, perhaps after some seconds."""
    late = time.monotonic() + FOUND
    while time.monotonic() < late:
        with contextlib.suppress(OSError):
            return bool(read_regular(path))
        time.sleep(0.1)
    return False


class Schedule:
    """Jobs that wait, run and have failed."""

    def __init__(
        self, names: Sequence[str], finish: Callable[[str], None], folder: Path, trust: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self.waiting, self.finish, self.folder, self.trust, self.say = deque(names), finish, folder, trust, say
        self.running: dict[Future[Any], tuple[str, RemoteObject]] = {}
        self.losses, self.failed, self.stopped = Counter[str](), list[str](), 0

    def run(self, runners: Sequence[RemoteObject], received: Sequence[int]) -> None:
        """Run all jobs, until a signal is received; see ``run_jobs_on_ray``."""
        for runner in runners:
            self.next(runner)
        while self.running:
            done, _ = wait(self.running, LOOK, FIRST_COMPLETED)
            if received and not self.stopped:
                self.stop(received[0])
            for future in done:
                name, runner = self.running.pop(future)
                self.ended(name, future)
                self.next(runner)
        if self.stopped:
            raise Interrupted(number=self.stopped)
        if self.failed:
            raise ChildProcessError(f"{'; '.join(self.failed)}. Fix this and repeat the same command")

    def next(self, runner: RemoteObject) -> None:
        """Give a runner its next job."""
        if self.waiting and not self.stopped:
            name = self.waiting.popleft()
            self.running[runner.call("run", name, *self.trust)] = name, runner
            self.say(f"started: {name}")

    def ended(self, name: str, future: Future[Any]) -> None:
        """Handle the end of a job, or of its machine."""
        log = log_of(self.folder, name)
        try:
            code = future.result()
        except WorkerLost as error:
            self.losses[name] += 1
            if self.losses[name] <= LOSSES:
                self.say(f"lost: {name} ({error}); it is resumed from its last checkpoint")
                self.waiting.appendleft(name)
            else:
                self.fail(f"job {name!r} lost its process {LOSSES + 1} times, the last time because {error}: see {log}")
            return
        if code == 0:
            self.finish(name)
            self.say(f"done: {name}")
        elif code - 128 in SIGNALS:
            self.stopped = self.stopped or code - 128
        else:
            self.fail(f"job {name!r} failed with exit code {code}: see {log}")

    def fail(self, text: str) -> None:
        self.failed.append(text)
        self.say(text)

    def stop(self, number: int) -> None:
        """Tell all jobs to save their states and to end."""
        self.stopped = number
        self.say(f"stopping: {len(self.running)} jobs save their states")
        for _, runner in self.running.values():
            call_beside(runner, "stop")
