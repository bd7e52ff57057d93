"""What jaxrl requires, as its metadata says, and what is installed. Standard library only: it works where nothing else does."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[(?P<parts>[^]]*)])?\s*\(?(?P<versions>[^;)]*)\)?\s*(?:;(?P<marker>.*))?")
EXTRA = re.compile(r"\s*extra\s*==\s*['\"]([\w.-]+)['\"]\s*")
CLAUSE = re.compile(r"(>=|<=|==|!=|~=|>|<)\s*([\w.+!*-]+)")
VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(.*)")
PRE_RELEASE = re.compile(r"[-_.]?(a|b|c|rc|alpha|beta|pre|preview|dev)")


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
    """Requirements as metadata holds them. Those that are for some systems or Pythons only are left out."""
    found = []
    for line in lines:
        match = REQUIREMENT.fullmatch(line.strip())
        if match is None:
            continue
        extra = EXTRA.fullmatch(match["marker"] or "")
        if match["marker"] and not extra:
            continue
        clauses = sorted((operator + version for operator, version in CLAUSE.findall(match["versions"])), reverse=True)
        name = re.sub(r"[-_.]+", "-", match["name"]).lower()
        found.append(Requirement(name, ",".join(clauses), match["parts"] or "", extra[1] if extra else None))
    return found


def installed_version(name: str) -> str | None:
    """None: not installed, or not by an installer."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def satisfies(version: str, versions: str) -> bool:
    """Whether a version is one of those that clauses such as ``>=1.1,<1.4`` allow. What cannot be read is allowed."""
    return all(_allows(version, operator, bound) for operator, bound in CLAUSE.findall(versions))


def _allows(version: str, operator: str, bound: str) -> bool:
    here, there = VERSION.fullmatch(version), VERSION.fullmatch(bound.removesuffix(".*"))
    if here is None or there is None:
        return True
    a, b = _release(here), _release(there)
    if operator == "~=" or bound.endswith(".*"):
        length = there[1].count(".") + (1 if bound.endswith(".*") else 0)
        same = (*a, *[0] * length)[:length] == (*b, *[0] * length)[:length]
        return same and a >= b if operator == "~=" else same == (operator == "==")
    if operator == "<":  # a pre-release of the bound is not below it, says PEP 440
        return a < b
    key, limit = (a, not PRE_RELEASE.match(here[2])), (b, not PRE_RELEASE.match(there[2]))
    return {">=": key >= limit, ">": key > limit, "<=": key <= limit, "==": key == limit, "!=": key != limit}[operator]


def _release(match: re.Match[str]) -> tuple[int, ...]:
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
