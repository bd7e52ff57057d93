"""What may be imported while data becomes objects: a run folder, a checkpoint or a sweep file of somebody else must not run code.

A part comes from the rooms of jaxrl that hold parts and nothing else, from a package that the user names (``trust``), or is one
that code of this process has given to a builder before. Everything else is refused before it is imported.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

ROOMS = ("jaxrl.distributions", "jaxrl.intrinsic", "jaxrl.models", "jaxrl.optimize", "jaxrl.replay")
"""Nothing in them reads, writes, starts or imports anything, whatever it is called with. The rest of jaxrl is not to be named by
data: ``jaxrl.envs:make_env`` and the like would import anything."""

RESULTS = {"intrinsic": "Intrinsic", "model": "Model", "optimizer": "GradientTransformation", "replay": "Replay"}
"""Keyword of a builder -> how the type ends that a function of jaxrl's must promise there before it is called."""

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_OURS: set[tuple[str, str]] = set()
"""(role, ``module:name``) of what code of this process has used; roles are "builder", "env" and "part"."""


class Untrusted(ValueError):
    """Data names something to import that nobody vouches for."""


def remember(path: str, role: str = "part") -> None:
    """Code of this process uses ``module:name``: data may name it too, so that a script can go on with its own runs."""
    _OURS.add((role, path))


def check_trust(trust: str | Iterable[str]) -> tuple[str, ...]:
    """``trust`` as names of packages.

    Raises:
      TypeError, ValueError: it is something else.
    """
    names = (trust,) if isinstance(trust, str) else tuple(trust)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"trust={trust!r} must name packages or modules, such as trust=('my_package',)")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"trust={name!r} is no name of a package or module, such as 'my_package' or 'my_package.nets'")
    return names


def is_trusted(path: str, trust: Sequence[str], role: str = "part") -> bool:
    """Whether ``module:name`` is the user's own, or of a trusted package; jaxrl cannot be trusted as a whole."""
    module = path.partition(":")[0]
    return (role, path) in _OURS or (_in(module, trust) and not _in(module, ("jaxrl",)))


def check_trusted(path: str, where: str, trust: Sequence[str], role: str = "part") -> None:
    """Refuse ``module:name`` of a module that is not trusted; ``where`` says what of the data it is."""
    if is_trusted(path, trust, role):
        return
    module = path.partition(":")[0]
    package = module.partition(".")[0]
    if package == "jaxrl":
        raise Untrusted(f"{where} is {path!r}, which is no part that an agent can have: it does not come from a run of jaxrl's")
    raise Untrusted(
        f"{where} is {path!r}, and that can run code of {module!r}, which is outside jaxrl. If you know and trust it, say "
        f"so: trust=({package!r},), or --trust {package} on the command line"
    )


def import_object(path: str) -> Any:
    """The object at ``module:qualified.name``."""
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def import_part(path: Any, where: str, trust: Sequence[str] = (), result: str | None = None, role: str = "part") -> Any:
    """The function or class at ``module:qualified.name``, if that may be imported.

    Args:
      where: which part of an agent it is, for errors.
      trust: packages that the user trusts.
      result: how the type ends that a function of jaxrl's must promise to return.
      role: "part", "builder" or "env"; rooms hold parts alone.

    Raises:
      Untrusted: it may not. Nothing was imported, or only the module that may be.
      ValueError: there is no such thing.
    """
    if not isinstance(path, str) or not PATH.fullmatch(path):
        raise ValueError(f"{where} cannot be rebuilt: {path!r} is no 'module:function'")
    module, _, name = path.partition(":")
    from_room = role == "part" and _in(module, ROOMS)
    if not from_room:
        check_trusted(path, where, trust, role)
    try:
        if not from_room and (role, path) in _OURS:
            return import_object(path)
        found = importlib.import_module(module)
        *classes, last = name.split(".")
        for each in classes:
            found = getattr(found, each)
            if not isinstance(found, type):  # a module that it imports, or what hangs on a function
                raise Untrusted(f"{where} is {path!r}, which leads out of {module!r}: {each} is no class")
        found = getattr(found, last)
    except (ImportError, AttributeError) as error:
        lost = isinstance(error, ModuleNotFoundError)
        fix = ": work in the folder that holds it, or put that folder on PYTHONPATH" if lost else ""
        raise ValueError(f"{where} cannot be rebuilt: {path!r} cannot be imported here ({error}){fix}") from error
    # A partial does not tell where it was made.
    home = module if isinstance(found, functools.partial) else getattr(found, "__module__", None)
    if not isinstance(home, str) or not (_in(home, ROOMS) or (not from_room and is_trusted(f"{home}:{last}", trust))):
        too = "" if _in(str(home), ("jaxrl",)) else ", which you would have to trust too"
        raise Untrusted(f"{where} is {path!r}, which {module!r} does not define itself: it comes from {home!r}{too}")
    if from_room and result and not _promises(found, result):
        raise ValueError(f"{where} is {path!r}, which gives no {result}: it does not come from a run of jaxrl's")
    return found


def _promises(function: Any, result: str) -> bool:
    annotation = getattr(function, "__annotations__", {}).get("return")
    return str(getattr(annotation, "__name__", annotation)).endswith(result)


def _in(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)
