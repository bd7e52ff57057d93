"""Provenance of a run: versions, commit, hardware."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.runtime.system.cores import usable_cores
from jaxrl.version import __version__

if TYPE_CHECKING:
    import jax

PACKAGES = ("jax", "jaxlib", "numpy", "orbax-checkpoint", "optax", "flax")


def installed_versions() -> dict[str, str]:
    """Return the versions of jaxrl, Python and the libraries that process states."""
    versions = {"jaxrl": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def source_digest() -> str:
    """Return a digest of jaxrl's source files: during development, two copies with the same version may differ."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:12]


def commit() -> str | None:
    """Return the git commit of the current folder, with ``+changes`` if files differ from it; None outside a repository.

    A repository can configure programs that git starts when it looks for changes. An untrusted repository must not: monitors and
    hooks are disabled, and if the repository configures filters, changes are not checked.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if head := _git("rev-parse", "HEAD"):
            scopes = (_git("config", "--show-scope", "--name-only", "--get-regexp", r"^filter\.") or "").split()
            if {"local", "worktree"} & set(scopes):
                return head
            return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules") else "")
    return None


def _git(*args: str) -> str | None:
    """Run git in the current folder and return its output; None if it fails."""
    safe = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    done = subprocess.run([*safe, *args], capture_output=True, text=True, timeout=5, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def hardware(devices: Sequence[jax.Device]) -> dict[str, Any]:
    from jaxrl.xla.cache_blocking import cached_bytes

    return {
        "platform": devices[0].platform,
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in devices],
        "cores": usable_cores(),
        "cached_bytes": cached_bytes(),
        "machine": platform.machine(),
        "system": platform.system(),
    }
