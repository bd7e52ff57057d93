"""``jaxrl doctor``: components are really broken here, for processes that it starts. It must name them, with a fix."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from jaxrl.runtime.cli.main import main
from jaxrl.runtime.doctor import diagnose, machine, packages, probe, problems
from jaxrl.runtime.doctor.finding import Finding, pip
from jaxrl.runtime.doctor.probe import Answer, ask
from tests.helpers.paths import ROOT
from tests.helpers.processes.children import runs, soon

pytestmark = pytest.mark.expensive(40)

NO_FILES_HERE = "/proc"
"""A folder in which not even root can make files."""


def doctor(*flags: str, cwd: Path | str, before: Path = ROOT, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a folder of modules ``before`` all others."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(before), str(ROOT)]), "JAX_PLATFORMS": "cpu"} | settings
    command = [sys.executable, "-P", "-m", "jaxrl", "doctor", *flags]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_broken_folders_are_named_with_what_mends_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    cache = {"JAXRL_CACHE_DIR": str(tmp_path / "file" / "cache"), "JAX_COMPILATION_CACHE_DIR": ""}
    done = doctor("--json", cwd=NO_FILES_HERE, **cache)
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    found = {finding["check"]: finding for finding in told["checks"]}
    broken = {name: finding for name, finding in found.items() if finding["level"] == "problem"}
    expected = {
        "current folder": (NO_FILES_HERE, "cd "),
        "compilation cache": (str(tmp_path / "file"), "export JAX_COMPILATION_CACHE_DIR="),
    }
    assert broken.keys() == expected.keys() and not told["healthy"]
    for name, (word, fix) in expected.items():
        assert word in broken[name]["found"] and fix in broken[name]["fix"], name
    for finding, line in zip(broken.values(), told["problems"], strict=True):
        assert all(finding[part] in line for part in ("check", "found", "breaks", "fix"))
    assert found["training"]["level"] == "ok"

    mended = doctor(cwd=tmp_path, JAX_NUM_CPU_DEVICES="2")
    assert (mended.returncode, mended.stderr) == (0, "") and "no problems" in mended.stdout and "pip check" in mended.stdout
    assert "PPO on CartPole-v1 on 2 devices, saved and restored bit for bit" in mended.stdout
    assert not list(tmp_path.glob(".jaxrl*"))


@pytest.mark.slow
@pytest.mark.parametrize("broken", [True, False])
def test_the_quick_look_trains_as_a_run_does(broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jaxlib 0.11.2 refused each program of a run because of one option, although all imports and devices worked."""
    refuse = "def refuse(*_, **__): raise ValueError('No such compile option: x')"
    if broken:
        (tmp_path / "sitecustomize.py").write_text(f"import jax\n{refuse}\njax.stages.Lowered.compile = refuse")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    found = {finding.check: finding for finding in diagnose(quick=True)}
    assert problems(found.values()) == ({"training"} if broken else set())
    assert (found["training"].found == "it failed: ValueError: No such compile option: x") == broken


def test_it_runs_where_nothing_else_does(tmp_path: Path) -> None:
    """JAX raises, tyro ends the process, rich is incomplete."""
    for package, code in {
        "jax": "raise RuntimeError('half of it is missing')",
        "tyro": "import os; os._exit(3)",
        "rich": "",
    }.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code)
    done = doctor(cwd=tmp_path, before=tmp_path)
    assert (done.returncode, done.stderr) == (1, "") and "Traceback" not in done.stdout
    lines = {line.partition(": ")[0]: line for line in done.stdout.splitlines() if ". Breaks " in line}
    assert lines.keys() == {"devices"}
    assert "JAX finds none (RuntimeError: half of it is missing). Breaks everything. Fix: " in lines["devices"]
    assert "skipped, because there are no devices" in done.stdout


def test_its_flags_need_the_standard_library_only() -> None:
    run = "from jaxrl.runtime.cli.main import main; main(['doctor', '--help'])"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {run}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "--quick" in done.stdout and "exit code" in done.stdout


def test_what_ends_the_command_early(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(packages, "installed_version", lambda name: None if name == "optax" else "1.0")
    missing = "optax: not installed. Breaks all optimisers, so all training. Fix: "
    for flag, code, words in (("--quik", 2, "mean '--quick'?"), ("x", 2, "unknown argument 'x'"), ("--quick", 1, missing)):
        assert main(["doctor", flag]) == code and words in (said := "".join(capsys.readouterr()))
    assert "skipped, because optax cannot be used" in said


def test_the_packages_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    assert {*map(canonicalize_name, packages.REQUIRED)} == required | {"jaxlib"}
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name not in ("dev", "docs", "peers")}
    optional = {canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines}
    assert {*map(canonicalize_name, packages.OPTIONAL)} == optional - {"jax"}
    found = {finding.check: finding for finding in packages.check_packages()}
    assert found["jax"].found == importlib.metadata.version("jax") and found["gymnax"].level == "ok"


def test_commands_for_pythons_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", {"uv": "/usr/bin/uv", "python": sys.executable}.get)
    assert pip("install", "six>=1.16") == 'uv pip install --python python "six>=1.16"'
    monkeypatch.setattr(shutil, "which", {}.get)
    assert pip("check") == f"{sys.executable} -m pip check"


# ----------------------------------------------------------------------------------------------------------------------- machine


def test_a_process_that_hangs_or_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for code, end in (
        ("import time; time.sleep(1000)", "timed out after 3 s"),
        ("import faulthandler; faulthandler._sigsegv()", "killed by SIGSEGV"),
        ("import os; os._exit(3)", "exit code 3"),
    ):
        (tmp_path / "crashing.py").write_text(f"print('{{\"cores\": 1}}', flush=True); {code}")
        monkeypatch.setattr(probe, "python_command", lambda _: [sys.executable, str(tmp_path / "crashing.py")])
        assert ask(timeout=3.0) == Answer({"cores": 1}, end)


def test_what_a_process_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = "import subprocess; print('{\"pid\": %d}' % subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    monkeypatch.setattr(probe, "python_command", lambda _: [sys.executable, str(tmp_path / "starting.py")])
    (tmp_path / "starting.py").write_text(start)
    found = ask(timeout=3.0)
    assert found.end == "timed out after 3 s" and soon(lambda: not runs(found.facts["pid"]))  # it has the pipes open until then


def devices(**facts: Any) -> Answer:
    return Answer({"cache": None, "cores": 8, "platform": "cpu", "kind": "cpu", "devices": 8} | facts, None)


def test_devices() -> None:
    assert "sharded over all cores" in machine.check_devices(devices()).found
    gpu = machine.check_devices(devices(platform="gpu", kind="NVIDIA H200", devices=2))
    few = machine.check_devices(devices(devices=1))
    assert (gpu.level, gpu.found, few.level) == ("ok", "2 × NVIDIA H200, 8 CPU cores", "note")
    assert few.found.startswith("1 CPU device on 8 cores") and "unset JAX_NUM_CPU_DEVICES" in few.found


def test_a_wrong_flag_of_xla_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    monkeypatch.delenv("JAX_PLATFORMS")
    found = machine.check_devices(ask(""))
    assert found.level == "problem" and "xla_no_such_flag" in found.found and found.fix == "unset XLA_FLAGS"


def test_a_gpu_that_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**facts: Any) -> Finding:
        return machine.check_gpu(devices(**facts), tmp_path)

    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(machine, "installed_version", {"jax": "0.10.2"}.get)
    assert found().found == "no NVIDIA GPU here"
    (tmp_path / "nvidia0").touch()
    assert found().level == "problem" and "CUDA plugin is not installed" in found().found
    assert found().fix.endswith('pip install "jax[cuda12]==0.10.2"') and found(platform="gpu", devices=1).level == "ok"
    monkeypatch.setattr(machine, "installed_version", {"jax": "0.10.2", "jax-cuda12-plugin": "0.10.1"}.get)
    assert "cannot use it with jax-cuda12-plugin 0.10.1" in found().found
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert found().level == "note"


def test_folders_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Because they are files, or the system, or the disk is read-only, or they were deleted."""

    def check(folder: Path | str) -> Finding:
        return machine.check_folder("folder", lambda: str(folder), "saving", "cd")

    (tmp_path / "file").touch()
    assert check(tmp_path / "not" / "yet" / "there").level == "ok"
    file = check(tmp_path / "file" / "a" / "b")
    assert file.level == "problem" and f"{tmp_path}/file/a/b cannot be written to: {os.strerror(errno.ENOTDIR)}" == file.found
    assert check(NO_FILES_HERE).level == "problem"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    here, temporary = machine.check_folders()
    assert (here.level, temporary.level) == ("problem", "ok")
    assert os.strerror(errno.ENOENT) in here.found
    *_, cache = machine.check_folders(str(tmp_path / "file"))
    assert cache.level == "problem" and cache.fix.startswith("export JAX_COMPILATION_CACHE_DIR=")

    def refuse(*args: Any, **settings: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(machine.tempfile, "NamedTemporaryFile", refuse)
    assert check(tmp_path).found.endswith(os.strerror(errno.EROFS))


@pytest.mark.parametrize(("free", "level"), [(2**33, "ok"), (2**29, "note")])
def test_room_on_the_disk(free: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(2**40, 0, free))
    assert machine.check_folder("folder", lambda: str(tmp_path), "saving", "cd").level == level
