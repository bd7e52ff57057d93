"""Public names defined in a higher layer than the module that exports or describes them, which need not import that layer."""

from __future__ import annotations

import importlib
from typing import Any

DOORS: dict[str, str] = {}
"""Full public name -> module that defines it. ``jaxrl/__init__.py`` adds the entries."""


def open_door(module: str, name: str) -> Any:
    """Return ``module.name``, for a module's ``__getattr__``. Raise AttributeError if the module has no such name."""
    if (home := DOORS.get(f"{module}.{name}")) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
