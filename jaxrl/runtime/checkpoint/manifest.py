"""Manifest of a checkpoint step: its contents and a digest of every file, because orbax restores flipped bytes silently."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from jaxrl.runtime.checkpoint.leaves import LeafSpec, is_dtype
from jaxrl.runtime.logs.provenance import installed_versions
from jaxrl.runtime.system.disk import absolute, open_regular, parse_json, read_regular, replacing, sync_folder

FORMAT, READABLE = 2, (1, 2)
"""Versions of the layout of a step folder: the one written, and those read. ``render`` and the keys ``format`` and ``versions``
never change, so that each version of jaxrl can distinguish another version's checkpoint from a damaged one.

Format 1 has ``asked`` instead of ``request``, and a ``kind`` with each leaf; all leaves are arrays today."""

NAME = "manifest.json"
UNFINISHED = "unfinished"
"""Folder of saves in progress."""

STEP_NAME = re.compile(r"(0|[1-9]\d*)(\.orbax-checkpoint-tmp.*)?")
ARRAYS = "default/manifest.ocdbt"
"""File of a step folder that orbax needs to find the arrays."""


class CheckpointError(ValueError):
    """Raised when a checkpoint cannot be used; the message says which one, why, and how to proceed."""


class Damage(Exception):
    """Raised within this package when a step cannot be used: ``is not intact: …``. The reader then tries the step before it."""


class CheckpointWarning(UserWarning):
    """Warns of a step that could not be used, or was written by another version of jaxrl."""


@dataclass(frozen=True)
class CheckpointInfo:
    """Metadata of a checkpoint."""

    step: int
    spec: Any
    """As passed to ``save``, after a round trip through JSON (tuples become lists); None if none was passed."""
    versions: dict[str, str]
    """Versions of jaxrl, Python and the libraries that wrote it."""
    run: str | None
    """Id of the run that wrote it, if any."""
    request: Any = field(repr=False)
    """Arguments of that run, as in its ``config.json``; None if none were passed."""
    structure: list[LeafSpec] = field(repr=False)
    """One entry per leaf of the state, in flatten order."""
    files: dict[str, tuple[int, str]] = field(repr=False)
    """Path relative to the step folder -> (size in bytes, sha256)."""


def write(folder: Path, step: int, spec: Any, structure: list[LeafSpec], run: str | None = None, request: Any = None) -> None:
    """Write ``manifest.json`` with the digests of all files of a step folder; all are flushed to disk when this returns."""
    if not (folder / ARRAYS).is_file():  # without a manifest, the folder does not count as a step
        raise FileNotFoundError(f"orbax-checkpoint wrote no {ARRAYS}")
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / NAME:
            size, digest = _digest_file(path, sync=True)
            files[path.relative_to(folder).as_posix()] = {"size": size, "sha256": digest}
    body = {
        "format": FORMAT,
        "step": step,
        "spec": spec,
        "run": run,
        "request": request,
        "versions": installed_versions(),
        "structure": [leaf._asdict() for leaf in structure],
        "files": files,
    }
    with replacing(folder / NAME) as file:
        file.write(render(body))
    sync_folder(folder)


def read(folder: Path, step: int) -> CheckpointInfo:
    """Read the manifest of a step folder and check only its own digest. Errors as in ``read_whole``, or OSError."""
    raw = read_regular(folder / NAME)
    try:
        body = parse_json(raw)
        if raw != render(body):
            raise Damage(f"is not intact: the file {NAME} was altered: its digest differs")
        version, writer = body["format"], body["versions"]["jaxrl"]
        if version not in READABLE:
            raise CheckpointError(
                f"the checkpoint {folder} has format {version}, written by jaxrl {writer}; this jaxrl"
                f" {installed_versions()['jaxrl']} reads formats {' and '.join(map(str, READABLE))} only. Use jaxrl {writer} (pip"
                f" install jaxrl=={writer}) or another version that reads format {version}."
            )
        if body["step"] != step:
            raise Damage(f"is not intact: the file {NAME} belongs to step {body['step']}")
        return CheckpointInfo(
            step=step,
            spec=body["spec"],
            versions=body["versions"],
            run=body.get("run"),
            request=body.get("asked" if version == 1 else "request"),
            structure=[_leaf(**leaf) for leaf in body["structure"]],
            files={name: (entry["size"], entry["sha256"]) for name, entry in body["files"].items()},
        )
    except CheckpointError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Damage(f"is not intact: the file {NAME} was altered: it cannot be parsed") from None


def read_whole(folder: Path, step: int, run: str | None = None) -> CheckpointInfo:
    """Read the manifest of a step folder and check every file against it.

    Raises:
      Damage: a run other than ``run`` wrote it, or a file is missing, truncated or altered; the message names the file.
      CheckpointError: this version does not read the format of the step.
    """
    name = NAME
    try:
        info = read(folder, step)
        if run is not None and info.run != run:
            raise Damage("was written by another run")
        for name, (size, digest) in info.files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
                raise Damage(f"is not intact: its {NAME} lists {name!r}, which is outside its folder")
            found, digest_found = _digest_file(folder / name)  # follows links: large files may be stored elsewhere
            if found != size:
                raise Damage(f"is not intact: the file {name} has {found} bytes, but {size} were written")
            if digest_found != digest:
                raise Damage(f"is not intact: the file {name} was altered: its digest differs")
    except FileNotFoundError:
        raise Damage(f"is not intact: the file {name} is missing") from None
    except OSError as error:
        raise Damage(f"is not intact: the file {name} cannot be read ({error.strerror})") from None
    if ARRAYS not in info.files:
        raise Damage(f"is not intact: it was saved without the file {ARRAYS}")
    return info


def step_folders(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every folder named like a step or like orbax's temporary folder of a step, newest first."""
    if not os.path.isdir(folder):
        return []
    matches = ((STEP_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def steps(folder: str | os.PathLike[str]) -> list[int]:
    """Return the steps in a folder that have a manifest, in ascending order. The other files are not checked."""
    return sorted(step for step, path in step_folders(absolute(folder)) if (path / NAME).is_file())


def latest_step(folder: str | os.PathLike[str]) -> int | None:
    """Return the last of ``steps``, or None."""
    return max(steps(folder), default=None)


def _leaf(path: str, shape: list[int], dtype: str, kind: str = "") -> LeafSpec:
    if not (isinstance(path, str) and is_dtype(dtype) and all(type(n) is int and n >= 0 for n in shape)):
        raise TypeError
    return LeafSpec(path, tuple(shape), dtype)


def _digest_file(path: Path, sync: bool = False) -> tuple[int, str]:
    with open_regular(path) as file:
        if sync:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def render(body: dict[str, Any]) -> bytes:
    """Serialise ``body`` with its own digest, in a unique way: a reader that renders the parsed body must get the same bytes."""
    body = {key: value for key, value in body.items() if key != "digest"}
    seal = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**body, "digest": seal}, sort_keys=True, indent=1) + "\n").encode()
