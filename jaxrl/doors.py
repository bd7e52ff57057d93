"""Public names whose home is a room above the module that offers them, which need not know that room."""

from __future__ import annotations

import importlib
from typing import Any

DOORS: dict[str, str] = {}
"""Full public name -> module that defines it. The package's face fills it in."""


def open_door(module: str, name: str) -> Any:
    """The value of ``module.name``, for a module's ``__getattr__``.

    Raises:
      AttributeError: the module has no such name.
    """
    if (home := DOORS.get(f"{module}.{name}")) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
