"""Restoring of checkpoints: the newest intact step, bit for bit, on the target's devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime.checkpoint import leaves, manifest
from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointInfo, CheckpointWarning, Damage, step_folders, steps
from jaxrl.runtime.checkpoint.silence_orbax import Quiet
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.provenance import installed_versions
from jaxrl.runtime.logs.run_folder import CHECKPOINTS
from jaxrl.runtime.system.disk import absolute
from jaxrl.runtime.system.warn import warn
from jaxrl.types import PyTree


def restore(
    folder: str | os.PathLike[str], target: PyTree, *, step: int | None = None, run: str | None = None
) -> tuple[PyTree, CheckpointInfo]:
    """Restore the newest intact step, or ``step``, bit for bit.

    A newer step that was interrupted, truncated or altered, or that was written by a run other than ``run``, is reported in a
    CheckpointWarning and skipped.

    Args:
      folder: as passed to ``save``, or the run folder that contains the checkpoints.
      target: a pytree with the structure of the state: a state, or ``jax.eval_shape(agent.init, key)``. A leaf is restored as a
        NumPy array if the target's leaf is one, else as a JAX array with the target's sharding, or on the default device if the
        target has none. Weak types become strong.
      step: restore only this step.
      run: the id that was passed to ``save``; None accepts any.

    Returns:
      (state, info).

    Raises:
      FileNotFoundError: the folder or ``step`` does not exist, or nothing was saved in the folder.
      CheckpointError: no step is intact, or another version of jaxrl wrote it in a different format.
      ValueError: the checkpoint does not fit the target; the message names the first leaf that differs.
    """
    found = read_info(folder, step=step, run=run)
    return read_state(checkpoint_folder(folder), found, target), found


def read_state(folder: Path, found: CheckpointInfo, target: PyTree) -> PyTree:
    """Read the state of a step found by ``read_info``; arguments and errors as in ``restore``."""
    wanted = leaves.describe(target)
    if seeds := leaves.other_seeds(found.structure, wanted):
        raise ValueError(f"step {found.step} in {folder} {seeds}")
    if difference := leaves.first_difference(found.structure, wanted):
        raise ValueError(
            f"step {found.step} in {folder} does not fit the agent: {difference}. It was saved with another algorithm, network or"
            " setting: build the agent from the checkpoint's spec, which jaxrl.runtime.checkpoint.restore.read_info returns."
        )
    here = installed_versions()
    if found.versions["jaxrl"] != here["jaxrl"]:
        warn(
            f"step {found.step} in {folder} was saved by jaxrl {found.versions['jaxrl']}, but this is jaxrl {here['jaxrl']}: the"
            " state fits, but the run may not continue bit for bit",
            CheckpointWarning,
        )
    arrays = _read_arrays(folder, found, leaves.restore_targets(found.structure, target))
    return leaves.decode(found.structure, arrays, target)


def read_arrays(folder: str | os.PathLike[str], *, run: str | None = None) -> tuple[dict[str, np.ndarray], CheckpointInfo]:
    """Read the arrays of a checkpoint, by their paths in the state (``.learner.params['params']…``), and its metadata.

    No target is needed. PRNG keys are returned as their data. Errors and warnings as in ``restore``.
    """
    found = read_info(folder, run=run)
    arrays = _read_arrays(checkpoint_folder(folder), found, leaves.restore_targets(found.structure))
    return {spec.path: np.asarray(arrays[name]) for name, spec in leaves.stored(found.structure)}, found


def _read_arrays(folder: Path, found: CheckpointInfo, targets: dict[str, Any]) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    try:
        with Quiet():
            options = ocp.CheckpointManagerOptions(read_only=True, lightweight_initialize=True)  # do not scan other steps
            with ocp.CheckpointManager(folder, options=options) as manager:
                return dict(manager.restore(found.step, args=ocp.args.StandardRestore(targets)))
    except Exception as error:
        name, here = "orbax-checkpoint", installed_versions()
        raise CheckpointError(
            f"step {found.step} in {folder} is intact, but {name} {here[name]} cannot read it (it was written by {name}"
            f" {found.versions[name]}): {error}"
        ) from error


def read_info(folder: str | os.PathLike[str], *, step: int | None = None, run: str | None = None) -> CheckpointInfo:
    """Read the metadata of the step that ``restore`` would use; arguments, errors and warnings as in ``restore``."""
    folder = checkpoint_folder(folder)
    problems: list[str] = []
    for number, path in _candidates(folder, step):
        try:
            if path.parent != folder:
                raise Damage("is not intact: its save was cut short, or is still in progress")
            found = manifest.read_whole(path, number, run)
        except Damage as damage:
            problems.append(f"step {number} ({path}) {damage}")
            continue
        for problem in problems:
            warn(f"{problem}. Using step {number} instead", CheckpointWarning)
        return found
    hint = "Restore the files from a copy" + (", or leave step out to use another step." if step is not None else ".")
    raise CheckpointError(f"no intact checkpoint: {'; '.join(problems)}. {hint}")


def checkpoint_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder that holds the steps: ``folder`` itself, or the checkpoint folder inside it if it is a run folder."""
    folder = absolute(folder)
    inside = folder / CHECKPOINTS
    return inside if inside.is_dir() and not step_folders(folder) else folder


def read_agreed_info(folder: Path, *, run: str | None = None) -> CheckpointInfo:
    """Agree on the step that all processes of the group restore: the first process selects an intact step, the others read it."""
    found: list[CheckpointInfo] = []

    def newest() -> int:
        found.append(read_info(folder, run=run))
        return found[0].step

    step = current().of_first(newest)
    return found[0] if found else read_info(folder, step=step, run=run)


def _candidates(folder: Path, step: int | None) -> list[tuple[int, Path]]:
    """Return the steps to try, newest first."""
    if not os.path.isdir(folder):
        problem = "is a file" if os.path.isfile(folder) else "does not exist or is not accessible"
        raise FileNotFoundError(f"no checkpoint to restore: folder={str(folder)!r} {problem}")
    unfinished = folder / manifest.UNFINISHED  # saves in progress, or interrupted by a kill
    places = (folder,) if unfinished.is_symlink() else (folder, unfinished, *unfinished.glob("save-*"))
    found = sorted((entry for place in places for entry in step_folders(place)), key=lambda entry: entry[0], reverse=True)
    if not found:
        raise FileNotFoundError(f"no checkpoint to restore: folder={str(folder)!r} holds no step")
    if step is None:
        return found
    chosen = [entry for entry in found if entry[0] == step]
    if not chosen:
        raise FileNotFoundError(f"no checkpoint of step={step} in {folder}, which holds the steps {steps(folder)}")
    return chosen
