"""The loop of a product: ``init`` a folder, ``ask`` for members, log their rewards, ``tell``, and ``export`` the parameters."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl.evolution.gradient import VersionFitness, stale_gradient
from jaxrl.runtime.evolution.folder import ASKED, COMMITS, LOGS, EvolutionFolder, Version, shaped
from jaxrl.runtime.evolution.records import MOST_MEMBERS, Known, Read, new_lines, read
from jaxrl.runtime.evolution.settings import EvolutionSettings
from jaxrl.runtime.system.disk import absolute, replacing, write_atomically
from jaxrl.settings.validation import check_count

Folder = str | os.PathLike[str]


def init(folder: Folder, theta: Any, **settings: Any) -> str:
    """Make the folder of a new evolution, and return its run id.

    Args:
      theta: initial parameters: an array, or a mapping of names to arrays.
      settings: fields of ``EvolutionSettings``.

    Raises:
      FileExistsError: the folder holds one already.
      TypeError, ValueError: a setting or ``theta`` is not allowed.
    """
    return EvolutionFolder.create(folder, theta, EvolutionSettings.read(settings)).run


class Asked(NamedTuple):
    """Members for a program to test: numbers ``first``, ``first`` + 1, …"""

    run: str
    version: int
    first: int
    number: int
    sigma: float
    noise: str
    key: list[int]
    """Two words, u32, of the version's key."""
    size: int
    """Number of parameters, D."""
    sha256: str
    """Digest of the version's parameters."""
    theta: str
    """Path of the mean, little-endian f32[D]."""
    owner: str | None


def ask(folder: Folder, members: int = 2, *, owner: str | None = None) -> Asked:
    """Reserve members of the present version, which no other caller gets.

    Args:
      members: their number; an even one keeps pairs together.
      owner: name of the caller, which is recorded.

    Raises:
      FileNotFoundError: the folder holds no evolution.
      TimeoutError: another call holds the folder.
    """
    run, number = EvolutionFolder.open(folder), check_count("members", members)
    with run.locked("ask"):
        version = run.state()["version"]
        path = run.path / ASKED
        asked = json.loads(path.read_text()) if path.exists() else {}
        if asked.get("version") != version:
            asked = {"version": version, "next": 0, "owners": {}}
        first = asked["next"]
        if first + number > MOST_MEMBERS:
            raise ValueError(f"members={number}: version {version} has only {MOST_MEMBERS - first} members left")
        asked["next"] = first + number
        if owner is not None:
            asked["owners"][owner] = asked["owners"].get(owner, 0) + number
        write_atomically(path, json.dumps(asked))
    manifest = run.manifest(version)
    told = {name: manifest[name] for name in ("sigma", "noise", "key", "size", "sha256")}
    return Asked(run.run, version, first, number, theta=os.fspath(run.place(version) / "theta.f32"), owner=owner, **told)


def member_parameters(folder: Folder, version: int, members: list[int] | np.ndarray) -> np.ndarray:
    """Return the parameters of members of a version that is kept, f32[n, D]."""
    run = EvolutionFolder.open(folder)
    settings, theta = run.settings, jnp.asarray(run.theta(version))
    key, sigma = settings.key_of(version), jnp.float32(settings.sigma_of(version))
    one = jax.jit(lambda member: settings.noise.member(key, member, theta, sigma))
    return np.stack([np.asarray(one(jnp.int32(member))) for member in members])


class Told(NamedTuple):
    """Result of ``tell``."""

    version: int
    """The present version."""
    accepted: int
    """Records that it was learnt from."""
    refused: dict[str, int]
    """Reason -> number of records."""
    updated: bool
    """True if there is a new version."""
    fitness: float | None
    """Mean fitness of the members."""
    logged: dict[str, float]


def tell(folder: Folder, *, at_least: int = 1) -> Told:
    """Learn from the records that were logged since the last time, and write the next version.

    It happens as a whole or not at all: killed at any moment and called again, it gives the same parameters to the bit. Records
    that are wrong are refused, counted and kept with their reasons.

    Args:
      at_least: number of members, with one reward or several, for a new version; fewer are left for the next time.

    Raises:
      FileNotFoundError: the folder holds no evolution.
      TimeoutError: another call holds the folder.
    """
    run, at_least = EvolutionFolder.open(folder), check_count("at_least", at_least)
    with run.locked("tell"):
        state, kept = run.state(), run.versions()
        lines, consumed = new_lines(run.path / LOGS, state["consumed"])
        digests, newest = {v: run.manifest(v)["sha256"] for v in kept}, state["version"]
        known = Known(run.run, digests, newest, newest if run.settings.staleness == "drop" else 0, _ids(run, kept))
        found = read(lines, known)
        number = sum(map(len, found.fitness.values()))
        if number < at_least:
            return Told(state["version"], 0, dict(found.refused), False, None, {})
        version, logged = _learn(run, state["version"], found)
        following = state["version"] + 1
        run.write_version(following, version)
        _write_commit(run, following, found)
        refused = Counter(state["rejected"]) + found.refused
        run.write_state(
            {
                "version": following,
                "consumed": consumed,
                "accepted": state["accepted"] + found.accepted,
                "rejected": dict(refused),
            }
        )
        run.forget()
    rewards = [x for members in found.fitness.values() for each in members.values() for x in each]
    return Told(following, found.accepted, dict(found.refused), True, float(np.mean(rewards)), logged)


def _learn(run: EvolutionFolder, newest: int, found: Read) -> tuple[Version, dict[str, float]]:
    """Return the next version, from the mean fitness of each member."""
    settings, current = run.settings, run.read_version(newest)
    theta, tested = jnp.asarray(current.theta), []
    for number, members in sorted(found.fitness.items()):
        order = sorted(members)
        fitness = jnp.array([np.mean(sorted(members[m])) for m in order], jnp.float32)
        own = theta if number == newest else jnp.asarray(run.theta(number))
        key, sigma = settings.key_of(number), settings.sigma_of(number)
        tested.append(VersionFitness(key, sigma, own, newest - number, jnp.array(order, jnp.int32), fitness))
    shaping, sigma = settings.strategy.weights, settings.sigma_of(newest)
    ascent, logged = stale_gradient(settings.staleness, settings.noise, shaping, theta, sigma, tested, settings.age_discount)
    gradient = settings.weight_decay * theta - ascent
    updates, opt_state = settings.optimizer.update(gradient, current.opt_state, theta)
    return Version(np.asarray(optax.apply_updates(theta, updates)), opt_state), logged


def _ids(run: EvolutionFolder, kept: list[int]) -> set[str]:
    """Return the ids of all records of versions that are kept."""
    found: set[str] = set()
    for number in range(kept[0] + 1, kept[-1] + 1):  # records of version v are learnt from in v + 1 or later
        found |= set(json.loads((run.path / COMMITS / f"{number:06d}" / "ids.json").read_text()))
    return found


def _write_commit(run: EvolutionFolder, number: int, found: Read) -> None:
    """Write what the step to a version consumed; a killed one's is replaced."""
    place = run.path / COMMITS / f"{number:06d}"
    place.mkdir(exist_ok=True)
    write_atomically(place / "ids.json", json.dumps(found.ids))
    write_atomically(place / "rejected.jsonl", "".join(json.dumps(line) + "\n" for line in found.lines))


def export(folder: Folder, path: Folder, *, version: int | None = None) -> int:
    """Write the parameters of a version, the present one by default, and return its number.

    Args:
      path: file that ends with .npy (one vector), .npz (the arrays by name, as ``init`` got them) or .f32 (little-endian).

    Raises:
      ValueError: the file's ending is unknown, or the version is not kept.
    """
    run, place = EvolutionFolder.open(folder), absolute(path)
    number = run.state()["version"] if version is None else check_count("version", version, at_least=0)
    if number not in run.versions():
        raise ValueError(f"version={number} is not kept: choose one of {', '.join(map(str, run.versions()))}")
    flat = run.theta(number)
    if place.suffix not in (".f32", ".npy", ".npz"):
        raise ValueError(f"{os.fspath(path)!r} must end with .npy, .npz or .f32")
    with replacing(place) as file:
        if place.suffix == ".f32":
            file.write(flat.astype("<f4").tobytes())
        elif place.suffix == ".npy":
            np.save(file, flat)
        else:
            arrays = shaped(flat, run.layout)
            np.savez(file, **(arrays if isinstance(arrays, dict) else {"theta": arrays}))
    return number


class EvolutionStatus(NamedTuple):
    """State of an evolution."""

    run: str
    version: int
    kept: list[int]
    size: int
    sigma: float
    accepted: int
    """Records so far."""
    refused: dict[str, int]
    """Reason -> number of records so far."""
    waiting: int
    """Bytes in the logs that were not read."""
    asked: dict[str, Any]
    """Members of the present version that were reserved: by all, and by owner."""


def status(folder: Folder) -> EvolutionStatus:
    """Return the state of an evolution.

    Raises:
      FileNotFoundError: the folder holds no evolution.
    """
    run = EvolutionFolder.open(folder)
    state, manifest = run.state(), run.manifest(run.state()["version"])
    sizes = {path.name: path.stat().st_size for path in (run.path / LOGS).glob("*.jsonl")}
    path = run.path / ASKED
    asked = json.loads(path.read_text()) if path.exists() else {}
    reserved = asked if asked.get("version") == state["version"] else {"next": 0, "owners": {}}
    return EvolutionStatus(
        run.run, state["version"], run.versions(), manifest["size"], manifest["sigma"], state["accepted"], state["rejected"],
        sum(size - state["consumed"].get(name, 0) for name, size in sizes.items()),
        {"members": reserved["next"], "owners": reserved["owners"]},
    )  # fmt: skip
