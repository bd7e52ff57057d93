"""Docstrings whose entries several functions share: each text is written once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any


def entries(part: str, *sources: Any) -> dict[str, str]:
    """Return the entries, by name, of a part of docstrings, "Args" or "Raises". Later sources replace entries of earlier ones."""
    found: dict[str, str] = {}
    for source in sources:
        block = re.search(rf"^{part}:\n((?:  .*\n?|\n)+)", inspect.getdoc(source) or "", re.MULTILINE)
        found |= re.findall(r"^  (\w+): (.*(?:\n    .*)*)", block[1] if block else "", re.MULTILINE)
    return found


def with_entries(function: Any, **parts: Mapping[str, str]) -> str:
    """Return a function's docstring in which these parts, ``Args=`` and ``Raises=``, replace those that it has."""
    about = re.split(r"^(?:Args|Raises):$", inspect.getdoc(function) or "", maxsplit=1, flags=re.MULTILINE)[0].rstrip()
    sections = (f"{part}:\n" + "\n".join(f"  {name}: {text}" for name, text in texts.items()) for part, texts in parts.items())
    return "\n\n".join((about, *sections))
