"""Result files: the measured values with the command, date, hardware and versions."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.thin import write_thin
from jaxrl.runtime.logs.provenance import installed_versions


def write_result(out: Path, name: str, *packages: str, **measured: Any) -> dict[str, Any]:
    """Write ``NAME.json``.

    Args:
      packages: Packages whose versions are recorded, in addition to those that jaxrl always records.

    Returns:
      The contents of the file.
    """
    result = {
        "command": machine.command(),
        "date": machine.timestamp(),
        "hardware": machine.hardware(),
        "versions": installed_versions() | {package: version(package) for package in packages},
        **measured,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_thin(out / f"{name}.json", result)
    return result
