"""Import of user modules from the current folder."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from jaxrl.interpreter import FolderFinder
from jaxrl.registry import ALGORITHMS, Entry


def import_env_module(env_id: str | None) -> None:
    """Import the user's module named by ``module:function`` or ``gymnasium:module:name``; do nothing for other ids."""
    from jaxrl.envs import factory_of, imported_by, unknown_module

    if env_id is not None and (found := imported_by(env_id)):
        module, _, function = found.partition(":")
        if not all(part.isidentifier() for part in module.split(".")):
            return  # make_env raises an error for it
        import_modules([module])
        if module not in sys.modules and function.isidentifier() and factory_of(env_id):
            raise unknown_module(module, function, os.getcwd())


def import_algorithm(algorithm: str, trust: Iterable[str] | None = None) -> None:
    """Register the user's algorithm ``module:ENTRY`` under this name; do nothing for algorithms of jaxrl.

    A name typed by the user is trusted (``trust=None``); for a name from a file, ``trust`` lists the trusted packages.
    """
    from jaxrl.builder.trusted_imports import check_trust, check_trusted

    module, colon, name = algorithm.partition(":")
    if not colon:
        return
    if trust is not None:
        check_trusted(algorithm, "algorithm", check_trust(trust))
    if all(part.isidentifier() for part in module.split(".")):
        import_modules([module])
    entry = getattr(sys.modules.get(module), name, None)
    if not isinstance(entry, Entry):
        raise ValueError(
            f"algorithm {algorithm!r}: {module!r} has no jaxrl.algorithms.Entry named {name!r}, or cannot be found from here"
        )
    ALGORITHMS[algorithm] = entry


def import_trusted(spec: Mapping[str, Any], trust: Iterable[str]) -> None:
    """Import those modules named by an agent's spec that the user trusts."""
    from jaxrl.builder.spec import modules_outside
    from jaxrl.builder.trusted_imports import check_trust, is_trusted

    trust = check_trust(trust)
    import_modules(module for module in modules_outside(spec) if is_trusted(module, trust))


def import_modules(modules: Iterable[str]) -> None:
    """Import modules, also from the current folder. Missing modules are skipped; the code that uses them reports it."""
    for module in modules:
        with contextlib.suppress(OSError):  # the current folder was deleted
            here = os.getcwd()
            if not any(isinstance(finder, FolderFinder) and finder.folder == here for finder in sys.meta_path):
                sys.meta_path.append(FolderFinder(here, importers=[__name__]))  # the last place to look in
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module exists, but something that it imports does not
