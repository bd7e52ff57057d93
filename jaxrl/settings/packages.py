"""Import of modules that may be absent, with errors that say what to install."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def import_named(module: str) -> ModuleType | None:
    """Import a module. Return None if it does not exist; if it exists and imports one that does not, the error is raised."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        return None


def not_found(module: str, folder: str | None = None) -> str:
    """Return the message for a module that does not exist in ``folder``, by default the one from which Python imports first."""
    return (
        f"no module {module!r} was found in {folder or sys.path[0] or 'the current folder'!r} or among the installed packages: "
        "work in the folder that holds it, or put that folder on PYTHONPATH"
    )


def import_package(package: str, needed_by: str, *, extra: str | None = None) -> ModuleType:
    """Import an optional package. An error names the ``pip install`` for it, or for an ``extra`` of jaxrl."""
    if (module := import_named(package)) is not None:
        return module
    source = f'"jaxrl[{extra}]"' if extra else package.partition(".")[0]
    message = f"{needed_by} needs the package {package.partition('.')[0]}, which is not installed: pip install {source}"
    raise ModuleNotFoundError(message, name=package)
