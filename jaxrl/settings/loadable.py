"""Parts of jaxrl that data, such as a run folder, may name as ``module:name``.

``component`` adds a function or class to this list. Everything else of jaxrl is refused (``jaxrl.builder.trusted_imports``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

T = TypeVar("T", bound=Callable[..., Any])

Kind = Literal["model", "optimizer", "replay", "intrinsic", "value"]
"""Kind of a part, by what it returns (``RETURNS``). A "value" can only be an argument of another part, as of a network."""

RETURNS = {"model": "Model", "optimizer": "GradientTransformation", "replay": "Replay", "intrinsic": "Intrinsic"}
"""Kind -> type that its parts return, for errors."""

KINDS: dict[str, Kind] = {
    "model": "model",
    "critic": "model",
    "dynamics": "model",
    "prediction": "model",
    "optimizer": "optimizer",
    "replay": "replay",
    "intrinsic": "intrinsic",
}
"""Keyword of a builder -> kind of part that it takes from jaxrl."""

MODULES = (
    "jaxrl.distributions",
    "jaxrl.intrinsic",
    "jaxrl.models",
    "jaxrl.models.cores",
    "jaxrl.models.encoders",
    "jaxrl.models.heads",
    "jaxrl.models.images",
    "jaxrl.models.initialisers",
    "jaxrl.models.values",
    "jaxrl.optimize",
    "jaxrl.replay.frames",
    "jaxrl.replay.hindsight",
    "jaxrl.replay.prioritised",
    "jaxrl.replay.sequence",
    "jaxrl.replay.uniform",
)
"""Modules that data may name. Only these are imported to look for a part."""

_KIND_OF: dict[str, Kind] = {}
"""``module:name`` of each part -> its kind."""


def component(kind: Kind, *, home: str | None = None) -> Callable[[T], T]:
    """Return a decorator for a function or class of jaxrl that data may name.

    An untrusted source may then call it with any arguments. So with any arguments, it must never read or write files, start
    processes or import modules by name.

    Args:
      kind: kind of the part.
      home: module under which specs store it, if it is defined in another file. This name stays when the file moves.

    Raises:
      ValueError: the kind is unknown, or the module is not one of ``MODULES``.
    """

    def add(part: T) -> T:
        module = home or part.__module__
        if kind not in get_args(Kind) or module not in MODULES:
            raise ValueError(f"{module}:{part.__qualname__} cannot be a component of kind {kind!r}: see jaxrl.settings.loadable")
        part.__module__ = module
        _KIND_OF[f"{module}:{part.__qualname__}"] = kind
        return part

    return add


def kind_of(path: str) -> Kind | None:
    """Return the kind of the part that ``module:name`` names; None if it is not a part of jaxrl that data may name."""
    module = path.partition(":")[0]
    if module not in MODULES:
        return None
    importlib.import_module(module)
    return _KIND_OF.get(path)


def components() -> dict[str, Kind]:
    """Return ``module:name`` -> kind of all parts of jaxrl that data may name."""
    for module in MODULES:
        importlib.import_module(module)
    return dict(_KIND_OF)
