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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl.evolution.noise import NormalNoise, SignNoise
from jaxrl.evolution.strategies import ARS, OpenAI
from jaxrl.runtime.system.disk import write_atomically
from jaxrl.settings.aliases import hint_or, nearest
from jaxrl.settings.options import option_fields, resolve_option
from jaxrl.settings.validation import Count, CountOrZero, NonNegative, Positive, PositiveUnit, checked, setting_types

RUN, STATE, ASKED, VERSIONS, LOGS, COMMITS = "run.json", "state.json", "asked.json", "versions", "logs", "commits"
FORMAT = 1
"""Version of the format of records and manifests."""
PATIENCE = 30.0
"""Seconds to wait for another ``ask`` or ``tell``."""


@dataclass(frozen=True)
class EvolutionSettings:
    """Settings of an evolution, as its file or keywords of ``init`` give them."""

    sigma: Positive = 0.05
    """Standard deviation of the members' parameters."""
    sigma_decay: PositiveUnit = 1.0
    """Factor on ``sigma`` after each version."""
    learning_rate: NonNegative = 0.03
    """Step size of Adam, or of gradient ascent with ``ARS``."""
    weight_decay: NonNegative = 0.0
    """Weight of ½‖θ‖² in the loss."""
    noise: NormalNoise | SignNoise = SignNoise()
    """Distribution of the members. Other languages reproduce ``SignNoise`` to the bit."""
    strategy: OpenAI | ARS = OpenAI()
    """How fitness becomes a step."""
    staleness: Literal["within", "shift", "importance", "drop"] = "within"
    """How members of older versions count; see ``jaxrl.evolution.gradient.stale_gradient``."""
    age_discount: PositiveUnit = 1.0
    """With "within": weight of a version's members per version of age."""
    max_to_keep: Count = 5
    """Versions that are kept, and whose rewards are accepted."""
    seed: CountOrZero = 0
    """Seed of all noise."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Return settings from plain data. Raise TypeError or ValueError, naming the setting, for a wrong one."""
        kind: Any = cls
        types, options = setting_types(kind), option_fields(kind)
        for name in given:
            if name not in types:
                raise TypeError(f"{name!r} is not a setting.{hint_or(nearest(name, types), f'Settings: {sorted(types)}.')}")

        def value(name: str, x: Any) -> Any:
            if name in options:
                return resolve_option(name, x, options[name], getattr(cls(), name))
            return checked(name, x, types[name])

        return cls(**{name: value(name, x) for name, x in given.items()})

    def as_plain(self) -> dict[str, Any]:
        """Return plain data for ``read``."""
        kind: Any = type(self)
        options = option_fields(kind)
        return {
            name: {"name": x.name, **asdict(x)} if name in options else x
            for name, x in ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        }

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(self.learning_rate) if isinstance(self.strategy, ARS) else optax.adam(self.learning_rate)

    def sigma_of(self, version: int) -> float:
        return self.sigma * self.sigma_decay**version

    def key_of(self, version: int) -> Any:
        return jax.random.fold_in(jax.random.key(self.seed), version)


class Version(NamedTuple):
    """A version of the parameters."""

    theta: np.ndarray
    """f32[D]"""
    opt_state: Any


class EvolutionFolder:
    """An evolution's folder; ``create`` makes one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """
        Raises:
          FileNotFoundError: there is no evolution in the folder.
        """
        self.path = Path(path)
        try:
            run = json.loads((self.path / RUN).read_text())
        except FileNotFoundError:
            raise FileNotFoundError(f"{os.fspath(path)!r} has no {RUN}: jaxrl es init makes such a folder") from None
        if run["format"] != FORMAT:
            raise ValueError(f"{self.path / RUN} has format {run['format']}, and this version of jaxrl reads {FORMAT}")
        self.run: str = run["run"]
        self.layout: dict[str, list[int]] | None = run["layout"]
        self.settings = EvolutionSettings.read(run["settings"])

    @classmethod
    def create(cls, path: str | os.PathLike[str], theta: Any, settings: EvolutionSettings) -> EvolutionFolder:
        """Make the folder of a new evolution.

        Args:
          theta: initial parameters: an array, or a mapping of names to arrays, which are joined in the order of their names.

        Raises:
          FileExistsError: the folder holds one already.
          ValueError: ``theta`` is empty, or not finite.
        """
        folder, flat, layout = Path(path), *flattened(theta)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RUN).exists():
            raise FileExistsError(f"{os.fspath(path)!r} holds an evolution already: use another folder")
        for name in (VERSIONS, LOGS, COMMITS):
            (folder / name).mkdir(exist_ok=True)
        run: dict[str, Any] = {"format": FORMAT, "run": secrets.token_hex(4), "layout": layout, "settings": settings.as_plain()}
        # The last file makes it an evolution's folder.
        made = cls.__new__(cls)
        made.path, made.run, made.layout, made.settings = folder, run["run"], layout, settings
        made.write_version(0, Version(flat, settings.optimizer.init(jnp.asarray(flat))))
        made.write_state({"version": 0, "consumed": {}, "accepted": 0, "rejected": {}})
        write_atomically(folder / RUN, json.dumps(run, indent=1))
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
        (unfinished / "theta.f32").write_bytes(theta.tobytes())
        leaves = {f"{i:03d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(version.opt_state))}
        np.savez(unfinished / "optimizer.npz", **leaves)  # type: ignore[arg-type]
        (unfinished / "manifest.json").write_text(json.dumps(manifest))
        for file in unfinished.iterdir():
            _to_disk(file)
        os.replace(unfinished, place)
        _to_disk(place.parent)

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
        """Remove versions, and what is known of their records, that are no longer kept."""
        oldest = self.versions()[0]
        for top, first in ((VERSIONS, oldest), (COMMITS, oldest)):
            for place in (self.path / top).iterdir():
                if place.name.isdecimal() and int(place.name) < first:
                    shutil.rmtree(place, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        return json.loads((self.path / STATE).read_text())

    def write_state(self, state: Mapping[str, Any]) -> None:
        write_atomically(self.path / STATE, json.dumps(state))
        _to_disk(self.path)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Exclude other processes that do the same, as long as this one lives.

        Raises:
          TimeoutError: another one takes longer than ``PATIENCE``.
        """
        import fcntl

        with open(self.path / f".{name}.lock", "w") as file:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"another jaxrl es {name} holds {os.fspath(self.path)!r} for {PATIENCE:g} s") from None
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


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
