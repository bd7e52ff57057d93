"""The manifest of a checkpoint step: what it holds, and a digest of every file, because orbax restores flipped bytes silently."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from jaxrl.runtime.checkpoint.leaves import LeafSpec, is_dtype
from jaxrl.runtime.logs.provenance import installed_versions
from jaxrl.runtime.system.disk import absolute, open_regular, parse_json, read_regular, replacing

FORMAT, READABLE = 2, (1, 2)
"""The layout of a step folder; a reader refuses others. ``render`` and the keys ``format`` and ``versions`` stay as they are in
every format, so that each version can tell another's checkpoint from a damaged one.

Format 1 has ``asked`` for ``request``, and with each leaf the ``kind`` that it was; all of them are arrays today."""

NAME = "manifest.json"
UNFINISHED = "unfinished"
"""The folder of the steps that are being saved."""

STEP_NAME = re.compile(r"(0|[1-9]\d*)(\.orbax-checkpoint-tmp.*)?")
ARRAYS = "default/manifest.ocdbt"
"""The file of a step folder without which orbax finds none of its arrays."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: the message says which one, why, and what helps."""


class Damage(Exception):
    """Why a step cannot be used: ``is not whole: …``. It never leaves this room, which goes back to the step before."""


class CheckpointWarning(UserWarning):
    """A step that could not be used, or was written by another version of jaxrl."""


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known of a checkpoint besides its state."""

    step: int
    spec: Any
    """As ``save`` got it, through JSON (tuples come back as lists); None if it got none."""
    versions: dict[str, str]
    """Of jaxrl, Python and the libraries that wrote it."""
    run: str | None
    """The id of the run that wrote it, if one did."""
    request: Any = field(repr=False)
    """What that run was asked for, as its ``config.json`` has it; None where nothing was said."""
    structure: list[LeafSpec] = field(repr=False)
    """One entry per leaf of the state, in flatten order."""
    files: dict[str, tuple[int, str]] = field(repr=False)
    """Path inside the step folder -> (size in bytes, sha256)."""


def write(folder: Path, step: int, spec: Any, structure: list[LeafSpec], run: str | None = None, request: Any = None) -> None:
    """Digest the files of a step folder and describe them in ``manifest.json``; both are on the disk when this returns.

    Raises:
      FileNotFoundError: orbax put no arrays there; the folder stays without a manifest, and so is no whole step.
    """
    if not (folder / ARRAYS).is_file():
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
    """What the manifest of a step folder says, if it is sealed; the other files are not looked at.

    Raises:
      Damage, CheckpointError: as ``read_whole``.
      OSError: it cannot be read.
    """
    return _parse(folder, step, read_regular(folder / NAME))


def read_whole(folder: Path, step: int, run: str | None = None) -> CheckpointInfo:
    """What the manifest of a step folder says, after checking every file against it.

    Raises:
      Damage: another run than ``run`` wrote it, or something is missing, cut or altered; the text names the file.
      CheckpointError: the step has a format that this version does not read.
    """
    name = NAME
    try:
        info = read(folder, step)
        if run is not None and info.run != run:
            raise Damage("was written by another run")
        for name, (size, digest) in info.files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
                raise Damage(f"is not whole: its {NAME} lists {name!r}, which is not in its folder")
            found, digest_found = _digest_file(folder / name)  # through a link: large files may be kept elsewhere
            if found != size:
                raise Damage(f"is not whole: the file {name} has {found} bytes where {size} were written")
            if digest_found != digest:
                raise Damage(f"is not whole: the file {name} was altered: its digest differs")
    except FileNotFoundError:
        raise Damage(f"is not whole: the file {name} is missing") from None
    except OSError as error:
        raise Damage(f"is not whole: the file {name} cannot be read ({error.strerror})") from None
    if ARRAYS not in info.files:
        raise Damage(f"is not whole: it was saved without the file {ARRAYS}")
    return info


def step_folders(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every folder that is named like a step or like orbax's temporary folder of one, newest first."""
    if not os.path.isdir(folder):
        return []
    matches = ((STEP_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps in a folder, going up, by their manifests; their files are not checked. Empty if there is no such folder."""
    return sorted(step for step, path in step_folders(absolute(folder)) if (path / NAME).is_file())


def latest_step(folder: str | os.PathLike[str]) -> int | None:
    """The last of ``steps``, or None."""
    return max(steps(folder), default=None)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, so that a rename survives a power cut; some file systems refuse."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(folder: Path, step: int, raw: bytes) -> CheckpointInfo:
    try:
        body = parse_json(raw)
        if raw != render(body):
            raise Damage(f"is not whole: the file {NAME} was altered: its digest differs")
        version, writer = body["format"], body["versions"]["jaxrl"]
        if version not in READABLE:
            raise CheckpointError(
                f"the checkpoint {folder} has format {version}, written by jaxrl {writer}; this jaxrl"
                f" {installed_versions()['jaxrl']} reads formats {' and '.join(map(str, READABLE))} only. Use jaxrl {writer} (pip"
                f" install jaxrl=={writer}) or another version that reads format {version}."
            )
        if body["step"] != step:
            raise Damage(f"is not whole: the file {NAME} belongs to step {body['step']}")
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
        raise Damage(f"is not whole: the file {NAME} was altered: it cannot be parsed") from None


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
    """The one way to write ``body``, sealed by its own digest: a reader that renders what it parsed must get the same bytes."""
    body = {key: value for key, value in body.items() if key != "digest"}
    seal = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**body, "digest": seal}, sort_keys=True, indent=1) + "\n").encode()
