"""``jaxrl doctor``: components are really broken here, for processes that it starts. It must name them, with a fix."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from jaxrl.runtime.cli.main import main
from jaxrl.runtime.doctor import diagnose, machine, packages, problems
from jaxrl.runtime.doctor.finding import Finding, pip_install
from jaxrl.runtime.doctor.packages import Requirement, declared, read_all, satisfies
from jaxrl.runtime.doctor.process import Answer, ask
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(40)

NO_FILES_HERE = "/proc"
"""A folder in which not even root can make files."""


def doctor(*flags: str, cwd: Path | str, before: Path = ROOT, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a folder of modules ``before`` all others."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(before), str(ROOT)]), "JAX_PLATFORMS": "cpu"} | settings
    command = [sys.executable, "-P", "-m", "jaxrl", "doctor", *flags]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)


def add_metadata(folder: Path, name: str, version: str, more: str = "") -> None:
    (folder / f"{name}-{version}.dist-info").mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(text)


@pytest.mark.slow
def test_four_things_are_broken_and_named_with_what_mends_them(tmp_path: Path) -> None:
    add_metadata(tmp_path, "gymnasium", "1.4.0")
    (tmp_path / "six.py").write_text("raise ModuleNotFoundError('six', name='six')")
    (tmp_path / "file").write_text("no folder")
    cache = {"JAXRL_CACHE_DIR": str(tmp_path / "file" / "cache"), "JAX_COMPILATION_CACHE_DIR": ""}
    done = doctor("--json", cwd=NO_FILES_HERE, before=tmp_path, **cache)
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    found = {finding["check"]: finding for finding in told["checks"]}
    broken = {name: finding for name, finding in found.items() if finding["level"] == "problem"}
    expected = {
        "six": ("its files are missing", 'pip install --force-reinstall --no-deps "six=='),
        "gymnasium": ("1.4.0 is installed, but jaxrl needs >=1.1,<1.4", 'pip install "gymnasium>=1.1,<1.4"'),
        "current folder": (NO_FILES_HERE, "cd "),
        "compilation cache": (f"{tmp_path / 'file'} is a file", "export JAXRL_CACHE_DIR="),
    }
    assert broken.keys() == expected.keys()
    for name, (word, fix) in expected.items():
        assert word in broken[name]["found"] and fix in broken[name]["fix"], name
    for finding, line in zip(broken.values(), told["problems"], strict=True):
        assert all(finding[part] in line for part in ("check", "found", "breaks", "fix"))
    assert found["gymnax"]["level"] == "note" and "before six is fixed" in found["gymnax"]["found"]
    assert found["training"]["level"] == "note" and "because gymnasium, six cannot be used" in found["training"]["found"]

    mended = doctor(cwd=tmp_path, JAX_NUM_CPU_DEVICES="2")
    assert (mended.returncode, mended.stderr) == (0, "") and "no problems" in mended.stdout
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
    monkeypatch.setattr("jaxrl.runtime.doctor.check_packages", lambda asked: [])  # this check takes the longest
    found = {finding.check: finding for finding in diagnose(quick=True)}
    assert problems(found.values()) == ({"training"} if broken else set())
    assert (found["training"].found == "it failed: ValueError: No such compile option: x") == broken


@pytest.mark.slow
def test_it_runs_where_nothing_else_does(tmp_path: Path) -> None:
    """JAX raises, envpool crashes, tyro ends the process, rich is incomplete."""
    for package, code in {
        "jax": "raise RuntimeError('half of it is missing')",
        "envpool": "import os; os.abort()",
        "tyro": "import os; os._exit(3)",
        "rich": "",
    }.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code)
    done = doctor(cwd=tmp_path, before=tmp_path)
    assert (done.returncode, done.stderr) == (1, "") and "Traceback" not in done.stdout
    lines = {line.partition(": ")[0]: line for line in done.stdout.splitlines() if ". Breaks " in line}
    assert lines.keys() >= {"jax", "envpool", "tyro"}
    assert "cannot be imported: RuntimeError: half of it is missing. Breaks everything. Fix: " in lines["jax"]
    assert lines["jax"].endswith(f'--force-reinstall --no-deps "jax=={importlib.metadata.version("jax")}"')
    assert "killed by SIGABRT" in lines["envpool"] and "exit code 3" in lines["tyro"]
    assert not {"flax", "optax", "chex", "gymnax", "orbax-checkpoint"} & lines.keys()
    assert "cannot be imported before jax is fixed" in done.stdout


def test_its_flags_need_the_standard_library_only() -> None:
    run = "from jaxrl.runtime.cli.main import main; main(['doctor', '--help'])"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {run}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "--quick" in done.stdout and "exit code" in done.stdout


def test_what_ends_the_command_early(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "packaging", None)
    missing = "packaging: not installed. Breaks jaxrl doctor. Fix: "
    for flag, code, words in (("--quik", 2, "mean '--quick'?"), ("x", 2, "unknown argument 'x'"), ("--quick", 1, missing)):
        assert main(["doctor", flag]) == code and words in "".join(capsys.readouterr())


# ------------------------------------------------------------------------------------------------------------------ requirements


def test_requirements_are_those_of_pyproject_or_of_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = declared()
    assert checkout.source == f"the checkout {ROOT}" and checkout.python == ">=3.11"
    required = {found.name: found.text for found in checkout.requirements if found.extra is None}
    assert required["gymnasium"] == "gymnasium>=1.1,<1.4" and packages.BREAKS.keys() >= required.keys() - {"dm-tree"}
    assert Requirement("jax", "", "cuda12", "cuda") in checkout.requirements

    add_metadata(tmp_path, "jaxrl", "9", "Requires-Python: >=3.99\nRequires-Dist: six>=7\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert declared(tmp_path) == (f"installed in {tmp_path}", ">=3.99", [Requirement("six", ">=7")])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing")])
    with pytest.raises(FileNotFoundError, match="install it with pip"):
        declared(tmp_path)


def test_requirements_as_metadata_words_them() -> None:
    lines = ["Gymnasium <1.4,>=1.1", 'a_b>=2; extra == "x"', "jax[cuda12] ; extra == 'cuda'", "c; python_version < '3'", "d; x"]
    assert read_all(lines) == [
        Requirement("gymnasium", ">=1.1,<1.4"),
        Requirement("a-b", ">=2", extra="x"),
        Requirement("jax", "", "cuda12", "cuda"),
    ]
    fitting = (("1.10", ">=1.9,<2"), ("2.0.dev3", ">=1.0"), ("1.0", ""), ("main-branch", ">=1.0"))
    assert all(satisfies(*each) for each in fitting) and not satisfies("1.4", ">=1.1,<1.4")


# ---------------------------------------------------------------------------------------------------------------------- packages


def test_imports_go_on_behind_what_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    modules = {
        "crashes": "import faulthandler; faulthandler._sigsegv()",
        "exits": "raise SystemExit(3)",
        "lacks": "import no_such_module",
        "hidden": "from exits_not import no_such_name",
        "exits_not": "print('noise')",
    }
    for name, code in modules.items():
        (tmp_path / f"{name}.py").write_text(code)
    tried = packages.try_imports([*modules])
    assert "killed by SIGSEGV" in tried["crashes"]["error"] and tried["exits"]["error"] == "SystemExit: 3"
    assert tried["lacks"]["missing"] == "no_such_module" and tried["exits_not"]["error"] is None
    assert tried["hidden"]["missing"] is None and "cannot import name 'no_such_name'" in tried["hidden"]["error"]
    (tmp_path / "hangs.py").write_text("import time; time.sleep(1000)")
    assert packages.try_imports(["hangs"], timeout=0.3)["hangs"]["error"] == "timed out after 0.3 s"


def tried(module: str, error: str | None = None, missing: str | None = None, origin: str | None = None) -> dict[str, Any]:
    return {"module": module, "error": error, "missing": missing, "origin": origin}


def test_a_cause_explains_the_failures_of_what_requires_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"gymnax": "1.0.1", "gymnasium": "1.4.0", "six": "1.17", "flax": "0.12.8"}
    monkeypatch.setattr(packages, "installed_version", installed.get)
    wanted = [Requirement("gymnasium", "<1.4"), *(Requirement(name, "") for name in ("gymnax", "six", "flax", "optax"))]
    results = [tried("gymnasium"), tried("gymnax", "AttributeError: x", origin="gymnax"), tried("six")]
    results.append(tried("flax", "ModuleNotFoundError: No module named 'msgpack'", "msgpack", "flax"))
    results.append(tried("optax", "ModuleNotFoundError", "optax", "optax"))
    found = {one.check: one for one in packages.judge(wanted, {result["module"]: result for result in results})}
    assert [one.level for one in found.values()] == ["problem", "note", "ok", "problem", "problem"]
    assert "before gymnasium is fixed" in found["gymnax"].found and found["optax"].found == "not installed"
    assert "it needs msgpack, which is not installed" in found["flax"].found and found["flax"].fix == pip_install("msgpack")


def test_commands_for_pythons_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", {"uv": "/usr/bin/uv", "python": sys.executable}.get)
    assert pip_install("six>=1.16") == 'uv pip install --python python "six>=1.16"'
    monkeypatch.setattr(shutil, "which", {}.get)
    assert f'-m ensurepip && {sys.executable} -m pip install --force-reinstall --no-deps "six"' in pip_install("six", again=True)


# ----------------------------------------------------------------------------------------------------------------------- machine


def devices(**facts: Any) -> Answer:
    return Answer([{"cache": None, "cores": 8}, {"platform": "cpu", "kind": "cpu", "devices": 8} | facts], None)


def test_devices() -> None:
    assert "sharded over all cores" in machine.check_devices(devices()).found
    gpu = machine.check_devices(devices(platform="gpu", kind="NVIDIA H200", devices=2))
    few = machine.check_devices(devices(devices=1))
    assert (gpu.level, gpu.found, few.level) == ("ok", "2 × NVIDIA H200, 8 CPU cores", "note")
    assert few.found.startswith("1 CPU device on 8 cores") and "unset JAX_NUM_CPU_DEVICES" in few.found


def test_a_wrong_flag_of_xla_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    monkeypatch.delenv("JAX_PLATFORMS")
    found = machine.check_devices(ask("devices", timeout=300))
    assert found.level == "problem" and "xla_no_such_flag" in found.found and found.fix == "unset XLA_FLAGS"


def test_a_gpu_that_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**facts: Any) -> Finding:
        return machine.check_gpu(devices(**facts), [Requirement("jax", "", "cuda12", "cuda")], tmp_path)

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
    (tmp_path / "file").touch()
    assert machine.why_not_writable(tmp_path / "not" / "yet" / "there") is None
    assert machine.why_not_writable(tmp_path / "file" / "a" / "b") == f"{tmp_path / 'file'} is a file"
    assert machine.why_not_writable(Path(NO_FILES_HERE)) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "file"))
    found, _ = machine.check_cache(str(tmp_path / "file"))
    assert found.level == "problem" and found.fix.startswith("export JAX_COMPILATION_CACHE_DIR=")
    assert machine.check_cache(None)[0].level == "ok"
    monkeypatch.setenv("TMPDIR", str(tmp_path / "not_there"))
    found, folder = machine.check_temporary_folder()
    assert found.level == "problem" and "there is no such folder" in found.found and "export TMPDIR=" in found.fix
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    found, folder = machine.check_current_folder()
    assert (found.level, found.found, folder) == ("problem", "it was deleted", None)

    def refuse(*args: Any, **settings: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(machine.tempfile, "mkstemp", refuse)
    assert machine.why_not_writable(tmp_path) == "read-only file system"


@pytest.mark.parametrize(("free", "level"), [(2**33, "ok"), (2**29, "note"), (2**20, "problem")])
def test_room_on_the_disk(free: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(2**40, 0, free))
    assert [found.level for found in machine.check_room([tmp_path])] == [level]
