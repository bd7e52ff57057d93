"""What jaxrl requires, as its metadata says, and what is installed."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

EXTRA = re.compile(r"extra == \"([\w.-]+)\"")


class Requirement(NamedTuple):
    """``name[parts]versions``, of the package itself or of one of its extras."""

    name: str
    """In small letters with dashes, as some tools that build packages write it, and all that install them read it."""
    versions: str
    """Comma-separated clauses, lowest first, as in ``>=1.1,<1.4``; may be empty."""
    parts: str = ""
    extra: str | None = None

    @property
    def text(self) -> str:
        """As pip takes it."""
        return f"{self.name}{f'[{self.parts}]' if self.parts else ''}{self.versions}"


class Declared(NamedTuple):
    """What jaxrl declares."""

    source: str
    """Where that is written."""
    python: str
    requirements: list[Requirement]


CHECKOUT = Path(__file__).resolve().parents[3]
"""Where pyproject.toml is when jaxrl is used from a checkout."""


def declared(checkout: Path = CHECKOUT) -> Declared:
    """What jaxrl requires: by ``pyproject.toml`` in a checkout, whose installed metadata may be older; else by its metadata.

    Raises:
      FileNotFoundError: there is neither.
    """
    if project := _project(checkout / "pyproject.toml"):
        found = read_all(project["dependencies"])
        for extra, lines in project.get("optional-dependencies", {}).items():
            found += [requirement._replace(extra=extra) for requirement in read_all(lines)]
        return Declared(f"the checkout {checkout}", project["requires-python"], found)
    try:
        metadata = importlib.metadata.metadata("jaxrl")
        lines = importlib.metadata.requires("jaxrl") or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"jaxrl in {checkout} is not installed, and no pyproject.toml is beside it, so nothing says what it requires:"
            " install it with pip"
        ) from None
    return Declared(f"installed in {checkout}", metadata["Requires-Python"], read_all(lines))


def _project(path: Path) -> dict[str, Any] | None:
    try:
        project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return project if project.get("name") == "jaxrl" else None


def of_package(name: str, wanted: str) -> Requirement | None:
    """What an installed package requires of another; None where it is not installed or requires nothing of it."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((found for found in read_all(lines) if found.name == wanted and found.extra is None), None)


def read_all(lines: Iterable[str]) -> list[Requirement]:
    """Requirements as metadata holds them. Those of other systems and Pythons, and lines that nobody can read, are left out."""
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
    """None: not installed, or not by an installer."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def satisfies(version: str, versions: str) -> bool:
    """Whether a version is one of those that clauses such as ``>=1.1,<1.4`` allow. What cannot be read is allowed."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True
