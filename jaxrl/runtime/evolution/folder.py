"""Folder of an evolution whose members are tested by other programs: settings, versions of the parameters, logs of rewards.

``run.json`` holds the settings and never changes. ``versions/000017/`` holds the mean of a version, ``theta.f32`` (little-endian
f32[D]), the optimiser's state, and ``manifest.json``, from which any program can draw the members. ``state.json`` names the
present version and how far the logs have been read; a new one replaces it in one step, so a ``tell`` that is killed has either
happened or not. ``logs/`` holds rewards in JSON Lines, in files of any names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.runtime.evolution.settings import EvolutionSettings
from jaxrl.runtime.system.disk import absolute, lock_file, replacing, sync_folder, temporary, write_atomically

RUN, STATE, ASKED, VERSIONS, LOGS, COMMITS = "run.json", "state.json", "asked.json", "versions", "logs", "commits"
FORMAT = 1
"""Version of the format of records and manifests."""
PATIENCE = 30.0
"""Seconds to wait for another ``ask`` or ``tell``."""


class Version(NamedTuple):
    """A version of the parameters."""

    theta: np.ndarray
    """f32[D]"""
    opt_state: Any


class EvolutionFolder:
    """An evolution's folder: ``open`` an existing one, or ``create`` one."""

    def __init__(self, path: str | os.PathLike[str], run: Mapping[str, Any]) -> None:
        """``run`` is the contents of ``run.json``."""
        self.path = Path(path)
        self.run: str = run["run"]
        self.layout: dict[str, list[int]] | None = run["layout"]
        self.settings = EvolutionSettings.read(run["settings"])

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open an existing folder.

        Raises:
          FileNotFoundError: the folder holds no evolution.
        """
        folder = absolute(path)
        try:
            run = json.loads((folder / RUN).read_text())
        except FileNotFoundError:
            raise FileNotFoundError(f"{os.fspath(path)!r} has no {RUN}: jaxrl es init makes such a folder") from None
        if run["format"] != FORMAT:
            raise ValueError(f"{folder / RUN} has format {run['format']}, and this version of jaxrl reads {FORMAT}")
        return cls(folder, run)

    @classmethod
    def create(cls, path: str | os.PathLike[str], theta: Any, settings: EvolutionSettings) -> Self:
        """Make the folder of a new evolution.

        Args:
          theta: initial parameters: an array, or a mapping of names to arrays, which are joined in the order of their names.

        Raises:
          FileExistsError: the folder holds one already, or something else.
          ValueError: ``theta`` is empty, or not finite.
        """
        folder, flat, layout = absolute(path), *flattened(theta)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RUN).exists():
            raise FileExistsError(f"{os.fspath(path)!r} holds an evolution already: use another folder")
        leftovers = {VERSIONS, LOGS, COMMITS, *(temporary(folder / name).name for name in (RUN, STATE)), STATE}
        if {*os.listdir(folder)} - leftovers:  # a call that was killed leaves these
            raise FileExistsError(f"{os.fspath(path)!r} is not empty, and holds no evolution: use another folder")
        for name in (VERSIONS, LOGS, COMMITS):
            (folder / name).mkdir(exist_ok=True)
        run = {"format": FORMAT, "run": secrets.token_hex(4), "layout": layout, "settings": settings.as_plain()}
        made = cls(folder, run)
        made.write_version(0, Version(flat, settings.optimizer.init(jnp.asarray(flat))))
        made.write_state({"version": 0, "consumed": {}, "accepted": 0, "rejected": {}})
        write_atomically(folder / RUN, json.dumps(run, indent=1))  # makes it an evolution's folder
        return made

    # --------------------------------------------------------------------------------------------------------------- versions

    def place(self, version: int) -> Path:
        return self.path / VERSIONS / f"{version:06d}"

    def manifest(self, version: int) -> dict[str, Any]:
        return json.loads((self.place(version) / "manifest.json").read_text())

    def write_version(self, number: int, version: Version) -> None:
        """Write a version; one that a killed ``tell`` left is replaced."""
        place, theta = self.place(number), np.ascontiguousarray(version.theta, "<f4")
        unfinished = place.with_name(f"{place.name}.tmp")
        for leftover in (unfinished, place):
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished.mkdir()
        key = np.asarray(jax.random.key_data(self.settings.key_of(number))).tolist()
        digest = hashlib.sha256(theta.tobytes()).hexdigest()
        manifest = {
            "format": FORMAT, "run": self.run, "version": number, "size": theta.size, "sigma": self.settings.sigma_of(number),
            "noise": self.settings.noise.name, "key": key, "sha256": digest,
        }  # fmt: skip
        leaves = {f"{i:03d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(version.opt_state))}
        with replacing(unfinished / "theta.f32") as file:
            file.write(theta.tobytes())
        with replacing(unfinished / "optimizer.npz") as file:
            np.savez(file, **leaves)  # type: ignore[arg-type]
        write_atomically(unfinished / "manifest.json", json.dumps(manifest))
        os.replace(unfinished, place)
        sync_folder(place.parent)

    def theta(self, version: int) -> np.ndarray:
        """Return the parameters of a version, f32[D].

        Raises:
          ValueError: they are not those that were written.
        """
        data = (self.place(version) / "theta.f32").read_bytes()
        if hashlib.sha256(data).hexdigest() != self.manifest(version)["sha256"]:
            raise ValueError(f"{self.place(version) / 'theta.f32'} is damaged: restore the folder from a copy")
        return np.frombuffer(data, "<f4").astype(np.float32)

    def read_version(self, version: int) -> Version:
        theta = self.theta(version)
        structure = jax.tree.structure(self.settings.optimizer.init(jnp.asarray(theta)))
        with np.load(self.place(version) / "optimizer.npz") as stored:
            return Version(theta, structure.unflatten([stored[name] for name in sorted(stored)]))

    def versions(self) -> list[int]:
        """Return the versions that are kept, oldest first: those from which rewards are accepted."""
        newest = self.state()["version"]
        return list(range(max(0, newest - self.settings.max_to_keep + 1), newest + 1))

    def forget(self) -> None:
        """Delete the versions before the last ``max_to_keep``, and the ids of their records."""
        oldest = self.versions()[0]
        for top in (VERSIONS, COMMITS):
            for place in (self.path / top).iterdir():
                if place.name.isdecimal() and int(place.name) < oldest:
                    shutil.rmtree(place, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        return json.loads((self.path / STATE).read_text())

    def write_state(self, state: Mapping[str, Any]) -> None:
        write_atomically(self.path / STATE, json.dumps(state))
        sync_folder(self.path)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Exclude other processes that do the same, as long as this one lives.

        Raises:
          TimeoutError: another one takes longer than ``PATIENCE``.
        """
        with open(self.path / f".{name}.lock", "w") as file:
            deadline = time.monotonic() + PATIENCE
            while not lock_file(file):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another jaxrl es {name} holds {os.fspath(self.path)!r} for {PATIENCE:g} s")
                time.sleep(0.05)
            yield


def flattened(theta: Any) -> tuple[np.ndarray, dict[str, list[int]] | None]:
    """Return parameters as one vector, f32[D], and the shapes of the arrays by name; None for a single array."""
    layout = None
    if isinstance(theta, Mapping):
        arrays = {str(name): np.asarray(theta[name], np.float32) for name in sorted(theta)}
        layout = {name: list(x.shape) for name, x in arrays.items()}
        theta = np.concatenate([x.ravel() for x in arrays.values()]) if arrays else np.zeros(0)
    flat = np.asarray(theta, np.float32).ravel()
    if not flat.size or not np.isfinite(flat).all():
        raise ValueError("theta must be an array of finite numbers, or a mapping of names to such arrays, and not empty")
    return flat, layout


def shaped(flat: np.ndarray, layout: Mapping[str, list[int]] | None) -> Any:
    """Invert ``flattened``: return the vector, or a mapping of names to arrays."""
    if layout is None:
        return flat
    ends = np.cumsum([int(np.prod(shape)) for shape in layout.values()])
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(layout.items(), parts, strict=True)}
