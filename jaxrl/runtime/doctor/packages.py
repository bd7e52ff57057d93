"""Every requirement: is it there, in a version that fits, and can it be imported?"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jaxrl
from jaxrl.runtime.doctor.finding import PACKAGES, Finding, pip_install, shortened
from jaxrl.runtime.doctor.process import ask
from jaxrl.runtime.doctor.requirements import Declared, Requirement, installed_version, of_package, satisfies

MODULES = {"dm-tree": "tree", "orbax-checkpoint": "orbax.checkpoint", "pillow": "PIL", "tensorboardx": "tensorboardX"}
"""Where the module is not named like the package."""

BREAKS = {
    "jax": "everything",
    "jaxlib": "everything",
    "numpy": "everything",
    "flax": "all networks",
    "optax": "all optimisers, so all training",
    "chex": "returns and advantages, so all training",
    "gymnasium": "the spaces of all environments",
    "gymnax": "environments by bare name, such as CartPole-v1",
    "six": "gymnax, which imports it without requiring it, so environments by bare name, such as CartPole-v1",
    "envpool": "environments by envpool:name",
    "orbax-checkpoint": "checkpoints: saving, resuming, loading policies",
    "matplotlib": "learning curves",
    "packaging": "jaxrl doctor",
    "pillow": "pictures of environments: jaxrl record",
    "rich": "the display of runs",
    "tensorboardx": "TensorBoard logs, so every run without --no-tensorboard",
    "tyro": "the flags of most commands",
    "wandb": "--wandb",
    "imageio-ffmpeg": "jaxrl record --out x.mp4",
}

FOR_DEVELOPERS = {"dev", "docs"}
"""Extras that running jaxrl does not need."""

IMPORT_SECONDS = 180.0
"""For all packages together."""

Tried = Mapping[str, Mapping[str, Any]]


def check_packages(asked: Declared) -> Iterator[Finding]:
    """jaxrl itself, Python, the requirements, and the optional packages."""
    yield Finding(PACKAGES, "jaxrl", "ok", f"{jaxrl.__version__}, {asked.source}")
    yield check_python(platform.python_version(), asked.python)
    required = with_jaxlib([found for found in asked.requirements if found.extra is None])
    optional = [found for found in asked.requirements if found.extra not in (None, *FOR_DEVELOPERS) and not found.parts]
    present = [found for found in optional if installed_version(found.name)]
    tried = try_imports([module_of(found.name) for found in (*required, *present)])
    yield from judge([*required, *present], tried)
    for found in optional:
        if found not in present:
            what = BREAKS.get(found.name, f"the extra {found.extra}")
            yield Finding(PACKAGES, found.name, "absent", f"optional, for {what}: {pip_install(found.text)}")


def check_python(version: str, allowed: str) -> Finding:
    if satisfies(version, allowed):
        return Finding(PACKAGES, "python", "ok", f"{version} ({allowed})")
    fix = "make install PYTHON=python3.12"
    return Finding(PACKAGES, "python", "problem", f"this is {version}, and jaxrl needs {allowed}", "everything", fix)


def with_jaxlib(required: list[Requirement]) -> list[Requirement]:
    """jaxlib goes with jax, which says the version."""
    jaxlib = of_package("jax", "jaxlib")
    place = 1 + next((i for i, found in enumerate(required) if found.name == "jax"), -1)
    return [*required[:place], *([jaxlib] if jaxlib else []), *required[place:]]


def module_of(package: str) -> str:
    return MODULES.get(package, package.replace("-", "_"))


def try_imports(modules: Sequence[str], timeout: float = IMPORT_SECONDS) -> dict[str, dict[str, Any]]:
    """Import all in one process; where one ends or hangs it, go on behind that one in another. What came of each, by module."""
    tried: dict[str, dict[str, Any]] = {}
    while left := [name for name in modules if name not in tried]:
        answer = ask("imports", *left, timeout=timeout)
        tried |= {result["module"]: result for result in answer.results if "module" in result}
        if answer.end is not None and (unfinished := [name for name in left if name not in tried]):
            victim = unfinished[0]
            tried[victim] = {"module": victim, "error": answer.end, "missing": None, "origin": None}
    return tried


def judge(requirements: Sequence[Requirement], tried: Tried) -> Iterator[Finding]:
    """One finding per requirement. What fails only because of another one is a note beside that one's problem."""
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
    """What an attempt to import one package shows.

    Args:
      culprit: another package, with a problem of its own, that explains a failure.
    """
    name, version = wanted.name, installed_version(wanted.name)
    shown = f"{version or 'of unknown version'}{f' ({wanted.versions})' if wanted.versions else ''}"
    repair = pip_install(f"{name}=={version}" if version else wanted.text, again=version is not None)

    def problem(found: str, fix: str) -> Finding:
        return Finding(PACKAGES, name, "problem", found, BREAKS.get(name, "what imports it"), fix)

    if version and not satisfies(version, wanted.versions):
        return problem(f"{version} is installed, and jaxrl needs {wanted.versions}", pip_install(wanted.text))
    if not result["error"]:
        return Finding(PACKAGES, name, "ok", shown)
    missing = result["missing"]
    if missing == module_of(name).partition(".")[0]:
        return problem(f"{version} is installed, but its files are gone" if version else "not installed", repair)
    if culprit:
        return Finding(PACKAGES, name, "note", f"{shown}; cannot be imported before {culprit} is mended")
    if missing:
        return problem(f"{shown} cannot be imported: it needs {missing}, which is not installed", pip_install(missing))
    return problem(f"{shown} cannot be imported: {shortened(result['error'])}", repair)
