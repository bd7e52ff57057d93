"""Modules of the user's, imported from the folder that a command runs in."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def import_env_module(env_id: str) -> None:
    """Import the module of a ``module:function`` that the user wrote; nothing for an environment of a backend's."""
    from jaxrl.envs import factory_of, unknown_module

    if factory := factory_of(env_id):
        module, _, function = factory.partition(":")
        if not all(part.isidentifier() for part in module.split(".")):
            return  # make_env says what is wrong with it
        import_modules([module])
        if module not in sys.modules and function.isidentifier():
            raise unknown_module(module, function, os.getcwd())


def import_trusted(spec: Mapping[str, Any], trust: Iterable[str]) -> None:
    """Import the modules that an agent's spec names, as far as the user trusts them."""
    from jaxrl.spec import trusted_modules

    import_modules(trusted_modules(spec, trust))


def import_modules(modules: Iterable[str]) -> None:
    """Import modules, from the current folder too; one that is not there is left to whoever uses it to tell of."""
    import jax  # noqa: F401 - it and what it looks for (jax_plugins) come from where packages are installed

    with current_folder():
        for module in modules:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise  # the module is there, and imports something that is not


@contextlib.contextmanager
def current_folder() -> Iterator[None]:
    """The current folder at the end of ``sys.path``, and off it again.

    Were it to stay, any library that looks for an optional package (boto3, say) would run a file of that name in there.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path[:] = [entry for entry in sys.path if entry is not here]  # not an equal one, which is the user's
