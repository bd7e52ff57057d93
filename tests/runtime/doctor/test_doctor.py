"""``jaxrl doctor``: components are really broken here, in separate environments. It must name them, with a fix."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
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

pytestmark = pytest.mark.expensive(55)

NO_FILES_HERE = "/proc"
"""A folder in which not even root can make files."""


def doctor(python: Path | str, *flags: str, cwd: Path | str, **settings: Any) -> subprocess.CompletedProcess[str]:
    path = settings.pop("PYTHONPATH", str(ROOT))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | settings
    command = [str(python), "-P", "-m", "jaxrl", "doctor", *flags]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)


class Environment:
    """A separate Python environment that shares the packages of this one through links."""

    def __init__(self, home: Path) -> None:
        venv.create(home, symlinks=True)
        paths = sysconfig.get_paths(scheme="venv", vars={"base": str(home), "platbase": str(home)})
        self.python, self.packages = Path(paths["scripts"], "python"), Path(paths["purelib"])
        for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(folder).iterdir():
                if not (self.packages / entry.name).exists():
                    (self.packages / entry.name).symlink_to(entry)

    def remove(self, package: str) -> list[tuple[Path, Path]]:
        """Remove a package. Return the links and their targets, which restore it."""
        gone = [(path, path.readlink()) for path in self.packages.iterdir() if path.name.split("-")[0].split(".")[0] == package]
        for path, _ in gone:
            path.unlink()
        return gone


@pytest.mark.slow
def test_three_things_are_broken_and_named_with_what_mends_them(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    six = environment.remove("six")
    assert {path.name for path, _ in six} >= {"six.py"} and any(path.suffix == ".dist-info" for path, _ in six)
    (gymnasium,) = environment.packages.glob("gymnasium-*.dist-info")
    real_gymnasium = gymnasium.readlink()
    gymnasium.unlink()
    wrong = environment.packages / "gymnasium-1.4.0.dist-info"
    wrong.mkdir()
    (wrong / "METADATA").write_text("Metadata-Version: 2.1\nName: gymnasium\nVersion: 1.4.0\n")
    (tmp_path / "file").write_text("no folder")
    cache = {"JAXRL_CACHE_DIR": str(tmp_path / "file" / "cache"), "JAX_COMPILATION_CACHE_DIR": ""}

    done = doctor(environment.python, "--json", cwd=NO_FILES_HERE, **cache)
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    assert told["healthy"] is False
    found = {finding["check"]: finding for finding in told["checks"]}
    broken = {name: finding for name, finding in found.items() if finding["level"] == "problem"}
    assert broken.keys() == {"six", "gymnasium", "current folder", "compilation cache"}
    assert broken["six"]["found"] == "not installed" and "CartPole-v1" in broken["six"]["breaks"]
    assert broken["six"]["fix"].startswith(str(environment.python)) and broken["six"]["fix"].endswith('pip install "six>=1.16"')
    assert "1.4.0 is installed, but jaxrl needs >=1.1,<1.4" in broken["gymnasium"]["found"]
    assert broken["gymnasium"]["fix"].endswith('pip install "gymnasium>=1.1,<1.4"')
    assert NO_FILES_HERE in broken["current folder"]["found"] and broken["current folder"]["fix"].startswith("cd ")
    assert f"{tmp_path / 'file'} is a file" in broken["compilation cache"]["found"]
    assert broken["compilation cache"]["fix"].startswith("export JAXRL_CACHE_DIR=")
    for finding, line in zip(broken.values(), told["problems"], strict=True):
        assert "\n" not in line and all(finding[part] in line for part in ("check", "found", "breaks", "fix"))
    assert found["gymnax"]["level"] == "note" and "before six is fixed" in found["gymnax"]["found"]
    assert found["training"]["level"] == "note" and "because gymnasium, six cannot be used" in found["training"]["found"]

    for path, target in six:
        path.symlink_to(target)
    shutil.rmtree(wrong)
    gymnasium.symlink_to(real_gymnasium)
    refuge = broken["current folder"]["fix"].removeprefix("cd ")
    assert os.access(refuge, os.W_OK)
    mended = doctor(environment.python, cwd=tmp_path)
    assert (mended.returncode, mended.stderr) == (0, "")
    assert "no problems" in mended.stdout and "PROBLEM" not in mended.stdout
    assert "saved and restored bit for bit" in mended.stdout
    assert not list(tmp_path.glob(".jaxrl*")) and not list(Path(refuge).glob(".jaxrl-doctor-*"))


@pytest.mark.slow
@pytest.mark.parametrize("works", [False, True])
def test_the_quick_look_trains_as_a_run_does(works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jaxlib 0.11.2 refused each program of a run because of one option, although all imports and devices worked."""
    if not works:
        refuse = "def refuse(*_, **__): raise ValueError('No such compile option: x')"
        (tmp_path / "sitecustomize.py").write_text(f"import jax\n{refuse}\njax.stages.Lowered.compile = refuse")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.setattr("jaxrl.runtime.doctor.check_packages", lambda asked: [])  # this check takes the longest
    found = {finding.check: finding for finding in diagnose(quick=True)}
    assert problems(found.values()) == (set() if works else {"training"})
    if works:
        assert found["training"].found.startswith("one compiled iteration of PPO on CartPole-v1 on 2 devices, in ")
    else:
        assert found["training"].found == "it failed: ValueError: No such compile option: x"


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
    done = doctor(sys.executable, cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
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


@pytest.mark.parametrize(("flag", "words"), [("--quik", "Did you mean '--quick'?"), ("x", "unknown argument 'x'")])
def test_unknown_flags(flag: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", flag]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


# ------------------------------------------------------------------------------------------------------------------ requirements


def test_requirements_are_those_of_pyproject_or_of_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = declared()
    assert checkout.source == f"the checkout {ROOT}" and checkout.python == ">=3.11"
    required = {found.name: found for found in checkout.requirements if found.extra is None}
    assert required["gymnasium"].text == "gymnasium>=1.1,<1.4" and required["six"].text == "six>=1.16"
    assert Requirement("jax", "", "cuda12", "cuda") in checkout.requirements
    assert packages.BREAKS.keys() >= required.keys() - {"dm-tree"}
    assert packages.module_of("tensorboardx") == "tensorboardX" and packages.module_of("gymnax") == "gymnax"

    (tmp_path / "jaxrl-9.dist-info").mkdir()
    lines = "Metadata-Version: 2.1\nName: jaxrl\nVersion: 9\nRequires-Python: >=3.99\nRequires-Dist: six>=7\n"
    (tmp_path / "jaxrl-9.dist-info" / "METADATA").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    assert declared(tmp_path) == (f"installed in {tmp_path}", ">=3.99", [Requirement("six", ">=7")])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing")])
    with pytest.raises(FileNotFoundError, match="install it with pip"):
        declared(tmp_path)


def test_requirements_as_metadata_words_them() -> None:
    lines = [
        "gymnasium<1.4,>=1.1",
        'wandb>=0.19; extra == "wandb"',
        "jax[cuda12] ; extra == 'cuda'",
        "Some_Numpy",
        "a (>=1)",
        "b; x < '3'",
        "c; python_version < '3'",
        "d>=2; python_version >= '3'",
    ]
    assert read_all(lines) == [
        Requirement("gymnasium", ">=1.1,<1.4"),
        Requirement("wandb", ">=0.19", extra="wandb"),
        Requirement("jax", "", "cuda12", "cuda"),
        Requirement("some-numpy", ""),
        Requirement("a", ">=1"),
        Requirement("d", ">=2"),
    ]


@pytest.mark.parametrize(
    ("version", "clauses", "fits"),
    [
        ("1.4", ">=1.1,<1.4", False),
        ("1.3.9", ">=1.1,<1.4", True),
        ("1.10", ">=1.9", True),
        ("1.4.0rc1", "<1.4", False),
        ("2.0.dev3", ">=1.0", True),
        ("1.4+cuda", "==1.4", True),
        ("1.0", "", True),
    ],
)
def test_versions_that_fit(version: str, clauses: str, fits: bool) -> None:
    assert satisfies(version, clauses) == fits


def test_without_packaging_there_is_one_problem(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "packaging", None)
    assert main(["doctor", "--quick"]) == 1
    assert "packaging: not installed. Breaks jaxrl doctor. Fix: " in capsys.readouterr().out


def test_versions_that_nobody_can_read_pass() -> None:
    assert satisfies("main-branch", ">=1.0")


# ---------------------------------------------------------------------------------------------------------------------- packages


def test_imports_go_on_behind_what_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    modules = {
        "first_of_us": "print('noise')",
        "crashes": "import faulthandler; faulthandler._sigsegv()",
        "exits": "raise SystemExit(3)",
        "lacks": "import no_such_module",
        "hidden": "from first_of_us import no_such_name",
        "last_of_us": "",
    }
    for name, code in modules.items():
        (tmp_path / f"{name}.py").write_text(code)
    tried = packages.try_imports([*modules, "no_such_module"])
    assert {name for name in tried if tried[name]["error"] is None} == {"first_of_us", "last_of_us"}
    assert "killed by SIGSEGV" in tried["crashes"]["error"] and tried["exits"]["error"] == "SystemExit: 3"
    assert tried["lacks"]["missing"] == tried["no_such_module"]["missing"] == "no_such_module"
    assert tried["hidden"]["missing"] is None and "cannot import name 'no_such_name'" in tried["hidden"]["error"]


@pytest.mark.slow
def test_imports_do_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hangs.py").write_text("import time; time.sleep(1000)")
    assert packages.try_imports(["hangs"], timeout=2)["hangs"]["error"] == "timed out after 2 s"


def tried(module: str, error: str | None = None, missing: str | None = None, origin: str | None = None) -> dict[str, Any]:
    return {"module": module, "error": error, "missing": missing, "origin": origin}


def test_a_wrong_version_explains_the_failures_of_what_requires_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "installed_version", {"gymnax": "1.0.1", "gymnasium": "1.4.0", "six": "1.17"}.get)
    wanted = [Requirement("gymnasium", "<1.4"), Requirement("gymnax", ">=1.0.1"), Requirement("six", "")]
    results = [tried("gymnasium"), tried("gymnax", "AttributeError: x", origin="gymnax"), tried("six")]
    found = {one.check: one for one in packages.judge(wanted, {result["module"]: result for result in results})}
    assert [found[name].level for name in ("gymnasium", "gymnax", "six")] == ["problem", "note", "ok"]
    assert "before gymnasium is fixed" in found["gymnax"].found


def test_a_package_that_lacks_another_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "installed_version", {"flax": "0.12.8"}.get)
    results = {"flax": tried("flax", "ModuleNotFoundError: No module named 'msgpack'", "msgpack", "flax")}
    (found,) = packages.judge([Requirement("flax", ">=0.12.6")], results)
    assert "it needs msgpack, which is not installed" in found.found and found.fix == pip_install("msgpack")


def test_commands_for_pythons_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", {"uv": "/usr/bin/uv", "python": sys.executable}.get)
    assert pip_install("six>=1.16") == 'uv pip install --python python "six>=1.16"'
    monkeypatch.setattr(shutil, "which", {}.get)
    python = sys.executable
    assert pip_install("six", again=True) == f'{python} -m ensurepip && {python} -m pip install --force-reinstall --no-deps "six"'


# ----------------------------------------------------------------------------------------------------------------------- machine


def devices(**facts: Any) -> Answer:
    return Answer([{"cache": None, "cores": 8}, {"platform": "cpu", "kind": "cpu", "devices": 8} | facts], None)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sharded over all cores" in machine.check_devices(devices()).found
    gpu = machine.check_devices(devices(platform="gpu", kind="NVIDIA H200", devices=2))
    assert (gpu.level, gpu.found) == ("ok", "2 × NVIDIA H200, 8 CPU cores")
    few = machine.check_devices(devices(devices=1))
    assert few.level == "note" and few.found.startswith("1 CPU device on 8 cores") and "unset JAX_NUM_CPU_DEVICES" in few.found


def test_a_wrong_flag_of_xla_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    monkeypatch.delenv("JAX_PLATFORMS")
    found = machine.check_devices(ask("devices", timeout=300))
    assert found.level == "problem" and "xla_no_such_flag" in found.found and found.fix == "unset XLA_FLAGS"


def test_a_gpu_that_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(machine, "installed_version", {"jax": "0.10.2"}.get)
    cuda = [Requirement("jax", "", "cuda12", "cuda")]
    assert machine.check_gpu(devices(), cuda, tmp_path).found == "no NVIDIA GPU here"
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    missing = machine.check_gpu(devices(), cuda, tmp_path)
    assert missing.level == "problem" and missing.found == "1 NVIDIA GPU, but JAX's CUDA plugin is not installed"
    assert missing.fix.endswith('pip install "jax[cuda12]==0.10.2"')
    assert machine.check_gpu(devices(platform="gpu", devices=1), cuda, tmp_path).level == "ok"
    monkeypatch.setattr(machine, "installed_version", {"jax": "0.10.2", "jax-cuda12-plugin": "0.10.1"}.get)
    assert "cannot use it with jax-cuda12-plugin 0.10.1" in machine.check_gpu(devices(), cuda, tmp_path).found
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert machine.check_gpu(devices(), cuda, tmp_path).level == "note"


def test_folders_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert machine.why_not_writable(tmp_path) is None
    assert machine.why_not_writable(tmp_path / "not" / "yet" / "there") is None
    assert machine.why_not_writable(tmp_path / "file") == "it is a file"
    assert machine.why_not_writable(tmp_path / "file" / "a" / "b") == f"{tmp_path / 'file'} is a file"
    assert machine.why_not_writable(Path(NO_FILES_HERE)) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_read_only_disk_is_named_by_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **settings: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(machine.tempfile, "mkstemp", refuse)
    assert machine.why_not_writable(tmp_path) == "read-only file system"


def test_a_current_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    found, folder = machine.check_current_folder()
    assert (found.level, found.found, folder) == ("problem", "it was deleted", None)


def test_a_temporary_folder_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "not_there"))
    found, folder = machine.check_temporary_folder()
    assert (
        found.level == "problem" and "there is no such folder" in found.found and "export TMPDIR=" in found.fix and folder is None
    )


def test_compiled_programs_kept_nowhere_or_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "file"))
    found, _ = machine.check_cache(str(tmp_path / "file"))
    assert found.level == "problem" and found.fix.startswith("export JAX_COMPILATION_CACHE_DIR=")
    assert machine.check_cache(None)[0].level == "ok"


@pytest.mark.parametrize(("free", "level"), [(2**33, "ok"), (2**29, "note"), (2**20, "problem")])
def test_room_on_the_disk(free: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(2**40, 0, free))
    (found,) = machine.check_room([tmp_path])
    assert isinstance(found, Finding) and found.level == level
