"""Modules of the user's, imported from the folder that a command runs in."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from jaxrl.interpreter import FolderFinder
from jaxrl.registry import ALGORITHMS, Entry


def import_env_module(env_id: str | None) -> None:
    """Import the module of a ``module:function`` that the user wrote, or of ``gymnasium:module:name``; nothing for other ids."""
    from jaxrl.envs import factory_of, imported_by, unknown_module

    if env_id is not None and (found := imported_by(env_id)):
        module, _, function = found.partition(":")
        if not all(part.isidentifier() for part in module.split(".")):
            return  # make_env says what is wrong with it
        import_modules([module])
        if module not in sys.modules and function.isidentifier() and factory_of(env_id):
            raise unknown_module(module, function, os.getcwd())


def import_rule(algorithm: str, trust: Iterable[str] | None = None) -> None:
    """Register the rule behind ``module:ENTRY`` of the user's, under this very name; nothing for a rule of jaxrl's.

    A name that the user has typed is trusted; for one from a file, ``trust`` says which packages are.
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
        raise ValueError(f"algorithm {algorithm!r}: {module!r} has no jaxrl.algorithms.Entry {name!r}, or is not found from here")
    ALGORITHMS[algorithm] = entry


def import_trusted(spec: Mapping[str, Any], trust: Iterable[str]) -> None:
    """Import the modules that an agent's spec names, as far as the user trusts them."""
    from jaxrl.builder.spec import modules_outside
    from jaxrl.builder.trusted_imports import check_trust, is_trusted

    trust = check_trust(trust)
    import_modules(module for module in modules_outside(spec) if is_trusted(module, trust))


def import_modules(modules: Iterable[str]) -> None:
    """Import modules, from the current folder too; one that is not there is left to whoever uses it to tell of."""
    for module in modules:
        _look_in_current_folder()
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports something that is not


def _look_in_current_folder() -> None:
    """After everywhere else."""
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        return
    if not any(isinstance(finder, FolderFinder) and finder.folder == here for finder in sys.meta_path):
        sys.meta_path.append(FolderFinder(here, importers=[__name__]))
