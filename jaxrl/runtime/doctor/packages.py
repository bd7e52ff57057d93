"""Checks of jaxrl's requirements: installed, with a supported version, and importable."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.runtime.doctor.finding import PACKAGES, Finding, pip_install, shortened
from jaxrl.runtime.doctor.process import ask
from jaxrl.version import __version__

MODULES = {
    "box2d": "Box2D",
    "dm-tree": "tree",
    "orbax-checkpoint": "orbax.checkpoint",
    "pillow": "PIL",
    "pygame-ce": "pygame",
    "tensorboardx": "tensorboardX",
}
"""Names of modules that differ from the name of the package."""

BREAKS = {
    "jax": "everything",
    "jaxlib": "everything",
    "numpy": "everything",
    "flax": "all networks",
    "optax": "all optimisers, so all training",
    "chex": "returns and advantages, so all training",
    "gymnasium": "the spaces of all environments, and environments by gymnasium:name",
    "gymnax": "environments by bare name, such as CartPole-v1",
    "six": "gymnax, which imports it without requiring it, so environments by bare name, such as CartPole-v1",
    "envpool": "environments by envpool:name",
    "orbax-checkpoint": "checkpoints: saving, resuming, loading policies",
    "matplotlib": "learning curves",
    "packaging": "jaxrl doctor",
    "flatbuffers": "exporting policies",
    "pillow": "pictures of environments: jaxrl record",
    "rich": "the display of runs",
    "tensorboardx": "TensorBoard logs, so every run without --no-tensorboard",
    "tyro": "the flags of most commands",
    "wandb": "--wandb",
    "imageio-ffmpeg": "jaxrl record --out x.mp4",
    "craftax": "environments by craftax:name",
    "jumanji": "environments by jumanji:name",
    "xminigrid": "environments by xminigrid:name",
    "box2d": "gymnasium:LunarLander-v3, BipedalWalker-v3 and CarRacing-v3",
    "pygame-ce": "pictures of gymnasium's environments, and Box2D",
}

FOR_DEVELOPERS = {"dev", "docs"}
"""Extras that running jaxrl does not need."""

IMPORT_SECONDS = 180.0
"""Time limit for importing all packages together."""

Tried = Mapping[str, Mapping[str, Any]]


def check_packages(asked: Declared) -> Iterator[Finding]:
    """Check jaxrl itself, Python, the requirements, and the optional packages."""
    yield Finding(PACKAGES, "jaxrl", "ok", f"{__version__}, {asked.source}")
    yield check_python(platform.python_version(), asked.python)
    required = [found for found in asked.requirements if found.extra is None]
    if jaxlib := of_package("jax", "jaxlib"):  # jax determines its version
        required.append(jaxlib)
    optional = [found for found in asked.requirements if found.extra not in (None, *FOR_DEVELOPERS) and not found.parts]
    present = [found for found in optional if installed_version(found.name)]
    tried = try_imports([module_of(found.name) for found in (*required, *present)])
    yield from judge([*required, *present], tried)
    for found in optional:
        if found not in present:
            purpose = BREAKS.get(found.name, f"the extra {found.extra}")
            yield Finding(PACKAGES, found.name, "absent", f"optional, for {purpose}: {pip_install(found.text)}")


def check_python(version: str, allowed: str) -> Finding:
    if satisfies(version, allowed):
        return Finding(PACKAGES, "python", "ok", f"{version} ({allowed})")
    fix = "make install PYTHON=python3.12"
    return Finding(PACKAGES, "python", "problem", f"this is {version}, but jaxrl needs {allowed}", "everything", fix)


def module_of(package: str) -> str:
    return MODULES.get(package, package.replace("-", "_"))


def try_imports(modules: Sequence[str], timeout: float = IMPORT_SECONDS) -> dict[str, dict[str, Any]]:
    """Import all modules in one process, and return results by module. After a crash or hang, continue in another process."""
    tried: dict[str, dict[str, Any]] = {}
    while left := [name for name in modules if name not in tried]:
        answer = ask("imports", *left, timeout=timeout)
        tried |= {result["module"]: result for result in answer.results}
        if answer.end is not None and (unfinished := [name for name in left if name not in tried]):
            victim = unfinished[0]
            tried[victim] = {"module": victim, "error": answer.end, "missing": None, "origin": None}
    return tried


def judge(requirements: Sequence[Requirement], tried: Tried) -> Iterator[Finding]:
    """Yield one finding per requirement. A failure caused by another requirement is a note; the other one is the problem."""
    names = {module_of(found.name).partition(".")[0]: found.name for found in requirements}
    failing = {module: name for module, name in names.items() if tried[module_of(name)]["error"]}
    misfits = [found.name for found in requirements if not satisfies(installed_version(found.name) or "", found.versions)]
    for wanted in requirements:
        result = tried[module_of(wanted.name)]
        culprits = [misfit for misfit in misfits if of_package(wanted.name, misfit)]
        if result["error"] and (culprit := failing.get(result["missing"] or result["origin"])):
            culprits.insert(0, culprit)
        yield judge_one(wanted, result, next((name for name in culprits if name != wanted.name), None))


def judge_one(wanted: Requirement, result: Mapping[str, Any], culprit: str | None) -> Finding:
    """Return the finding for an attempt to import one package; ``culprit`` is another package that causes the failure."""
    name, version = wanted.name, installed_version(wanted.name)
    shown = f"{version or 'of unknown version'}{f' ({wanted.versions})' if wanted.versions else ''}"
    repair = pip_install(f"{name}=={version}" if version else wanted.text, again=version is not None)

    def problem(found: str, fix: str) -> Finding:
        return Finding(PACKAGES, name, "problem", found, BREAKS.get(name, "what imports it"), fix)

    if version and not satisfies(version, wanted.versions):
        return problem(f"{version} is installed, but jaxrl needs {wanted.versions}", pip_install(wanted.text))
    if not result["error"]:
        return Finding(PACKAGES, name, "ok", shown)
    missing = result["missing"]
    if missing == module_of(name).partition(".")[0]:
        return problem(f"{version} is installed, but its files are missing" if version else "not installed", repair)
    if culprit:
        return Finding(PACKAGES, name, "note", f"{shown}; cannot be imported before {culprit} is fixed")
    if missing:
        return problem(f"{shown} cannot be imported: it needs {missing}, which is not installed", pip_install(missing))
    return problem(f"{shown} cannot be imported: {shortened(result['error'])}", repair)


# ------------------------------------------------------------------------------------------------------------- what is declared


EXTRA = re.compile(r"extra == \"([\w.-]+)\"")


class Requirement(NamedTuple):
    """``name[parts]versions``, of the package itself or of one of its extras."""

    name: str
    """Normalised name: lower case, with dashes."""
    versions: str
    """Comma-separated clauses, lowest first, as in ``>=1.1,<1.4``; may be empty."""
    parts: str = ""
    extra: str | None = None

    @property
    def text(self) -> str:
        """The requirement in pip's format."""
        return f"{self.name}{f'[{self.parts}]' if self.parts else ''}{self.versions}"


class Declared(NamedTuple):
    """Requirements declared by jaxrl."""

    source: str
    """Where they are declared."""
    python: str
    requirements: list[Requirement]


CHECKOUT = Path(__file__).resolve().parents[3]
"""Folder of pyproject.toml if jaxrl is used from a checkout."""


def declared(checkout: Path = CHECKOUT) -> Declared:
    """Return jaxrl's requirements: in a checkout from ``pyproject.toml``, as installed metadata may be older; else from metadata.

    Raises:
      FileNotFoundError: there is neither.
    """
    try:
        project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        project = {}
    if project.get("name") == "jaxrl":  # not that of another project next to an installed jaxrl
        found = read_all(project["dependencies"])
        for extra, lines in project.get("optional-dependencies", {}).items():
            found += [requirement._replace(extra=extra) for requirement in read_all(lines)]
        return Declared(f"the checkout {checkout}", project["requires-python"], found)
    try:
        metadata = importlib.metadata.metadata("jaxrl")
        lines = importlib.metadata.requires("jaxrl") or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"the requirements of jaxrl in {checkout} are unknown: it is not installed, and has no pyproject.toml:"
            " install it with pip"
        ) from None
    return Declared(f"installed in {checkout}", metadata["Requires-Python"], read_all(lines))


def of_package(name: str, wanted: str) -> Requirement | None:
    """Return the requirement of an installed package on another; None if it is not installed or has no such requirement."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((found for found in read_all(lines) if found.name == wanted and found.extra is None), None)


def read_all(lines: Iterable[str]) -> list[Requirement]:
    """Parse requirements from metadata. Those for other systems or Python versions, and invalid lines, are omitted."""
    from packaging import requirements, utils

    found = []
    for line in lines:
        try:
            read = requirements.Requirement(line)
        except requirements.InvalidRequirement:
            continue
        extra = match[1] if (match := EXTRA.search(str(read.marker))) else None
        if read.marker is None or read.marker.evaluate({"extra": extra or ""}):
            versions = ",".join(sorted(map(str, read.specifier), reverse=True))
            found.append(Requirement(utils.canonicalize_name(read.name), versions, ",".join(sorted(read.extras)), extra))
    return found


def installed_version(name: str) -> str | None:
    """Return the installed version; None if the package is not installed, or has no metadata."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def satisfies(version: str, versions: str) -> bool:
    """Return whether clauses such as ``>=1.1,<1.4`` allow a version. Invalid versions are allowed."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True
