"""Restrictions on imports named by data, so that a run folder, checkpoint or sweep file from someone else cannot run code.

A part may be a component of jaxrl (``jaxrl.settings.loadable``), may come from a package that the user names (``trust``), or may
have been passed to a builder in this process before. Everything else is refused before it is imported.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from jaxrl.settings.loadable import RETURNS, Kind, kind_of

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_OURS: set[tuple[str, str]] = set()
"""(role, ``module:name``) of objects that code of this process has used; roles are "builder", "env" and "part"."""


class Untrusted(ValueError):
    """Data names something to import that is not trusted."""


def remember(path: str, role: str = "part") -> None:
    """Record that code of this process uses ``module:name``. Data may then name it, so that a script can resume its own runs."""
    _OURS.add((role, path))


def check_trust(trust: str | Iterable[str]) -> tuple[str, ...]:
    """Return ``trust`` as a tuple of package or module names.

    Raises:
      TypeError: an entry is not a string.
      ValueError: an entry is not the name of a package or module.
    """
    names = (trust,) if isinstance(trust, str) else tuple(trust)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"trust={trust!r} must name packages or modules, such as trust=('my_package',)")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"trust={name!r} must name a package or module, such as 'my_package' or 'my_package.nets'")
    return names


def is_trusted(path: str, trust: Sequence[str], role: str = "part") -> bool:
    """Return whether this process uses ``module:name`` itself, or its package is trusted; jaxrl cannot be trusted as a whole."""
    module = path.partition(":")[0]
    return (role, path) in _OURS or (_in(module, trust) and not _in(module, ("jaxrl",)))


def check_trusted(path: str, where: str, trust: Sequence[str], role: str = "part") -> None:
    """Raise Untrusted if ``module:name`` is not trusted; ``where`` names its place in the data, for the error."""
    if is_trusted(path, trust, role):
        return
    module = path.partition(":")[0]
    package = module.partition(".")[0]
    if package == "jaxrl":
        raise Untrusted(
            f"{where} is {path!r}, which is not a part that an agent can have, so it does not come from a run of jaxrl"
        )
    raise Untrusted(
        f"{where} is {path!r}, and that can run code of {module!r}, which is outside jaxrl. If you know and trust it, say "
        f"so: trust=({package!r},), or --trust {package} on the command line"
    )


def import_object(path: str) -> Any:
    """Import the object at ``module:qualified.name``."""
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def import_part(path: Any, where: str, trust: Sequence[str] = (), kind: Kind | None = None, role: str = "part") -> Any:
    """Import the function or class at ``module:qualified.name``, if that is allowed.

    Args:
      where: name of the agent's part, for errors.
      trust: packages that the user trusts.
      kind: kind that a component of jaxrl must have; None allows all kinds.
      role: "part", "builder" or "env"; components of jaxrl are parts.

    Raises:
      Untrusted: the import is not allowed. Nothing was imported, except possibly a module that may be imported.
      ValueError: the object does not exist, or is a component of another kind.
    """
    if not isinstance(path, str) or not PATH.fullmatch(path):
        raise ValueError(f"{where} cannot be rebuilt: {path!r} must have the form 'module:function'")
    if role == "part" and (found_kind := kind_of(path)):
        if kind is not None and kind != found_kind:
            returned = RETURNS.get(kind, kind)
            raise ValueError(f"{where} is {path!r}, which does not return {returned}, so it does not come from a run of jaxrl")
        return import_object(path)
    check_trusted(path, where, trust, role)
    module, _, name = path.partition(":")
    try:
        if (role, path) in _OURS:
            return import_object(path)
        found = importlib.import_module(module)
        *classes, last = name.split(".")
        for name_part in classes:
            found = getattr(found, name_part)
            if not isinstance(found, type):  # an imported module, or an attribute of a function
                raise Untrusted(f"{where} is {path!r}, which leads out of {module!r}: {name_part} is not a class")
        found = getattr(found, last)
    except (ImportError, AttributeError) as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        fix = ": work in the folder that holds it, or put that folder on PYTHONPATH" if is_missing else ""
        raise ValueError(f"{where} cannot be rebuilt: {path!r} cannot be imported here ({error}){fix}") from error
    # A partial has no __module__.
    home = module if isinstance(found, functools.partial) else getattr(found, "__module__", None)
    if not isinstance(home, str) or not (is_trusted(f"{home}:{last}", trust) or _is_component(found, home)):
        advice = "" if _in(str(home), ("jaxrl",)) else ", which you would have to trust too"
        raise Untrusted(f"{where} is {path!r}, which {module!r} does not define itself: it comes from {home!r}{advice}")
    return found


def _is_component(found: Any, home: str) -> bool:
    """Return whether an object that a trusted module has imported from ``home`` is a component of jaxrl."""
    path = f"{home}:{getattr(found, '__qualname__', '')}"
    return kind_of(path) is not None and import_object(path) is found


def _in(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)
