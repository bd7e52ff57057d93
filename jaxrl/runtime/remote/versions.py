"""Versions that the two ends of a remote object must agree on. Does not import jax."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping

from jaxrl.version import __version__


def short_versions() -> dict[str, str]:
    """Return the versions that must be equal: of jaxrl, and the minor version of Python."""
    return {"jaxrl": __version__, "Python": f"{sys.version_info.major}.{sys.version_info.minor}"}


def full_versions() -> dict[str, str]:
    """Return those of ``short_versions``, and those of NumPy and JAX, whose difference is worth a warning."""
    return short_versions() | {name: importlib.metadata.version(name) for name in ("numpy", "jax")}


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Describe the versions that differ, as in ``Python 3.11 here and 3.12 there``; empty if none does."""
    unequal = [name for name in ours if theirs.get(name) != ours[name]]
    return ", ".join(f"{name} {ours[name]} here and {theirs.get(name, 'none')} there" for name in unequal)
