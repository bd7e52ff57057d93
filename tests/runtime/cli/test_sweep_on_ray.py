"""Sweeps on Ray: several jobs at once, lost machines, failures, Ctrl-C, and folders that are not shared."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl import remote
from jaxrl.runtime.cli.commands.search.sweep import ray_jobs
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.search import sweep_on_ray
from jaxrl.runtime.search.sweep import Manifest, expand, job_folder, read_sweep
from jaxrl.runtime.search.sweep_on_ray import RayJobs, run_jobs_on_ray
from tests.helpers.paths import ROOT
from tests.helpers.processes.actor_pools import parent_of, ray_workers
from tests.helpers.processes.children import soon
from tests.helpers.processes.ray_nodes import joined_nodes

TEXT = """
algorithm = "ppo"
env = "CartPole-v1"
total_steps = {steps}
seeds = 2
eval_episodes = 2
[settings]
rollout_length = 8
num_minibatches = 1
model = {{ hidden_sizes = [8] }}
[grid]
learning_rate = [1e-3, 1e-2]
num_epochs = [1, 2, 3]
"""


def written(folder: Path, steps: int) -> Path:
    path = folder / "sweep.toml"
    path.write_text(TEXT.format(steps=steps))
    return path


def returns(out: Path) -> list[list[str]]:
    with (out / "results.csv").open() as file:
        return sorted(csv.reader(file))


def job_processes(out: Path) -> list[int]:
    """Return the processes of the jobs that run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if b"sweep_job" in line and str(out).encode() in line:
                found.append(int(folder.name))
    return found


@pytest.mark.ray
@pytest.mark.expensive(120)
def test_jobs_are_resumed_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is that of a sweep on this machine, although a machine was lost with a job that it ran."""
    file, out = written(tmp_path, 40_000), tmp_path / "ray"
    with monkeypatch.context() as patch:
        patch.setenv("JAX_NUM_CPU_DEVICES", "1")  # as in jobs of one CPU
        assert main(["sweep", str(file), "--out", str(tmp_path / "local")]) == 0
    with joined_nodes([1, 1]) as nodes:

        def lose_a_machine() -> None:
            jobs: list[int] = []
            assert soon(lambda: bool(jobs.extend(pid for pid in job_processes(out) if hosts(pid) == nodes.raylets[1]) or jobs))
            assert soon(lambda: any(out.glob("jobs/*/checkpoints/*")))
            nodes.signal(1, signal.SIGKILL)
            nodes.add()

        with in_thread(lose_a_machine):
            assert main(["sweep", str(file), "--out", str(out), "--engine", "ray", "--jobs", "2"]) == 0
        assert soon(lambda: not ray_workers() and not job_processes(out))
    said = capsys.readouterr().out
    assert "2 of 3 jobs at once, with 1 CPU each, on Ray" in said and said.count("it is resumed from its last checkpoint") == 1
    assert returns(out) == returns(tmp_path / "local")


def hosts(pid: int) -> int:
    """Return the raylet on whose machine a job runs."""
    try:
        return parent_of(parent_of(pid))
    except OSError:
        return 0


@contextlib.contextmanager
def in_thread(function: Any) -> Iterator[None]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(function)
        yield
        future.result(60)


@pytest.mark.ray
def test_a_job_that_fails_leaves_the_others(tmp_path: Path) -> None:
    """The error names it and its log. So does one for a job whose process is lost again and again."""
    sweep = read_sweep(written(tmp_path, 1000))
    finished, said = list[str](), list[str]()
    Manifest(tmp_path / "out", sweep)
    names = ["no such job", "num_epochs=1"]
    with pytest.raises(ChildProcessError, match=r"^job 'no such job' failed with exit code 1: see .*no,such,job\.log\. Fix"):
        run_jobs_on_ray(names, finished.append, tmp_path / "out", (), said.append, RayJobs(2))
    assert finished == ["num_epochs=1"] and (job_folder(tmp_path / "out", "num_epochs=1") / "progress.csv").exists()
    assert "StopIteration" in (tmp_path / "out" / "logs" / "no,such,job.log").read_text()
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


@pytest.mark.ray
def test_a_job_that_loses_each_machine_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_on_ray, "LOSSES", 1)
    sweep = read_sweep(written(tmp_path, 10**8))
    Manifest(tmp_path / "out", sweep)

    def kill() -> None:
        for _ in range(2):
            found: list[int] = []
            assert soon(lambda found=found: bool(found.extend(map(parent_of, job_processes(tmp_path / "out"))) or found))  # type: ignore[misc]
            os.kill(found[0], signal.SIGKILL)
            assert soon(lambda: not job_processes(tmp_path / "out"))

    with in_thread(kill), pytest.raises(ChildProcessError, match=r"job 'num_epochs=1' lost its process 2 times, the last"):
        run_jobs_on_ray(["num_epochs=1"], lambda name: None, tmp_path / "out", (), lambda text: None, RayJobs())


@pytest.mark.ray
def test_ctrl_c_saves_all_jobs_and_the_same_command_resumes(tmp_path: Path) -> None:
    file, out = written(tmp_path, 400_000), tmp_path / "out"
    command = [sys.executable, "-m", "jaxrl", "sweep", str(file), "--out", str(out), "--engine", "ray"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert soon(lambda: len(list(out.glob("jobs/*/progress.csv"))) == 2, 180.0)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130 and "stopping: 2 jobs save their states" in said
    assert len(list(out.glob("jobs/*/checkpoints/*"))) >= 2
    assert soon(lambda: not job_processes(out) and not ray_workers())
    stopped = logs_in(out).count("stopped at step")  # on a busy machine one may have ended before the other began
    again = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    assert again.returncode == 0 and "results in" in again.stdout
    assert 1 <= stopped <= 2 and logs_in(out).count("resumed") == stopped


def logs_in(out: Path) -> str:
    """Return the logs of all jobs."""
    return "".join(log.read_text() for log in (out / "logs").iterdir())


@pytest.mark.ray
def test_machines_that_do_not_share_the_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: Any = (["a"], lambda name: None, tmp_path, (), lambda text: None, RayJobs(1))
    with remote.open("ray"):
        with monkeypatch.context() as patch:
            patch.setattr(sweep_on_ray, "shared_secret", lambda folder: contextlib.nullcontext(".no-file"))
            with pytest.raises(FileNotFoundError, match="is not the folder of the sweep: all machines must share it"):
                run_jobs_on_ray(*arguments)
        monkeypatch.setattr(sweep_on_ray, "becomes_visible", lambda path: False)
        with pytest.raises(FileNotFoundError, match="does not arrive here: all machines must share the folder"):
            run_jobs_on_ray(*arguments)
        with pytest.raises(remote.NotEnough, match="JobRunner 0 asks for 64 CPUs, and there are"):
            run_jobs_on_ray(*arguments[:-1], RayJobs(1, cpus=64))


@pytest.mark.parametrize("flags", [("--jobs", "2"), ("--cpus", "2"), ("--gpus", "1"), ("--insecure",)])
def test_flags_of_ray_are_refused_without_it(flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(written(tmp_path, 100)), *flags]) == 2
    assert "are for --engine ray: here each job has the whole machine" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "value"), [("--jobs", "0"), ("--cpus", "0"), ("--gpus", "-1")])
def test_impossible_numbers_are_refused(flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(written(tmp_path, 100)), "--engine", "ray", flag, value]) == 2
    assert f"{flag}={value}" in capsys.readouterr().err


def test_a_sweep_on_this_machine_has_no_settings_of_ray(tmp_path: Path) -> None:
    from jaxrl.runtime.cli.commands.search.sweep import SweepOptions

    assert ray_jobs(SweepOptions(tmp_path)) is None
    assert ray_jobs(SweepOptions(tmp_path, engine="ray", jobs=3, cpus=2)) == RayJobs(3, 2)
    assert len(expand(read_sweep(written(tmp_path, 100)))) == 3
