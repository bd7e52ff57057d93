"""From the source tree to a user's environment: sdist, wheel from that sdist, clean environment. Needs no network."""

import email
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.paths import ROOT


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{command} failed in {cwd}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


class Built(NamedTuple):
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build sdist and wheel. `python -m build` makes the wheel from the unpacked sdist, never from the tree."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def clean_bin(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the scripts folder of a new environment with the wheel, which uses the dependencies of the running one."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, symlinks=True)
    paths = sysconfig.get_paths(scheme="venv", vars={"base": str(home), "platbase": str(home)})
    scripts, packages = Path(paths["scripts"]), Path(paths["purelib"])
    run(sys.executable, "-m", "pip", "--python", scripts / "python", "install", "--no-deps", "--no-index", built.wheel, cwd=home)
    # A folder in a .pth file is searched, but its .pth files are not read. So the checkout, which an editable install names in
    # one, is not found.
    (packages / "dependencies.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return scripts


def source_files(folder: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}


def test_sdist_and_wheel_hold_the_package(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert source_files("jaxrl") | source_files("tests") <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "jaxrl/py.typed"} <= names
    assert not {name for name in names if name.split("/")[0] in ("algorithms", "envs", "runs")}  # links of the root

    with zipfile.ZipFile(built.wheel) as archive:
        names = {*archive.namelist()}
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert source_files("jaxrl") | {"jaxrl/py.typed", "jaxrl/settings/aliases.toml", f"{info}/licenses/LICENSE"} <= names
    assert {name.split("/")[0] for name in names} == {"jaxrl", info}
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert "jaxrl = jaxrl.runtime.cli.main:run_and_exit" in entry_points


def test_root_links_lead_into_the_package() -> None:
    for room in ("algorithms", "envs"):
        link = ROOT / room
        assert link.readlink() == Path("jaxrl", room) if link.is_symlink() else not link.exists()  # an sdist has none


@pytest.mark.slow
def test_clean_environment_imports_the_wheel(clean_bin: Path, built: Built, tmp_path: Path) -> None:
    program = "import jaxrl, jaxrl.algorithms.ppo as ppo; print(jaxrl.__version__); print(ppo.__file__)"
    # -I: the checkout must not be found through PYTHONPATH or the working folder.
    version, file = run(clean_bin / "python", "-I", "-c", program, cwd=tmp_path).split("\n")[:2]
    assert Path(file).is_relative_to(clean_bin.parent)
    assert built.wheel.name.startswith(f"jaxrl-{version}-")


def test_clean_environment_runs_the_console_script(clean_bin: Path, tmp_path: Path) -> None:
    assert "train" in run(clean_bin / "jaxrl", "--help", cwd=tmp_path)
