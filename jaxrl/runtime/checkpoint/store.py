"""Checkpoints, saved: through orbax, so that a kill at any moment loses nothing.

``folder/`` holds one folder per step, as orbax writes it, with a ``manifest.json`` beside orbax's files. A step is made in
``folder/unfinished`` (each save in a folder of its own there) and moved to its place when everything is on the disk, so every
step in place is whole, unless the disk or somebody altered it; the digests in the manifest show that, and ``restore`` goes back
to the step before, and says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.config import check_count
from jaxrl.runtime.checkpoint import leaves, manifest
from jaxrl.runtime.checkpoint.manifest import UNFINISHED, CheckpointError, CheckpointWarning, Damage, step_folders, steps
from jaxrl.runtime.checkpoint.quiet import Quiet
from jaxrl.runtime.system.disk import move_damaged, savable
from jaxrl.runtime.system.warn import warn
from jaxrl.types import PyTree


class PendingSave(NamedTuple):
    """A save under way: ``finish_save`` completes it."""

    manager: Any
    folder: Path
    unfinished: Path
    """Where orbax writes, in ``folder``."""
    step: int
    keep: int
    about: dict[str, Any]
    """What else the manifest will say."""
    resources: contextlib.ExitStack
    quiet: Quiet
    check: Callable[[], None]


def save(
    folder: str | os.PathLike[str], state: PyTree, step: int, *, spec: Any = None, keep: int = 3, run: str | None = None
) -> Path:
    """Save a state as ``folder/<step>`` and delete all but the last ``keep`` steps.

    Args:
      folder: made if it is missing. One process at a time writes to it; others may read meanwhile.
      state: any pytree of arrays (NumPy's, or JAX's on one device or sharded over several) and typed PRNG keys.
      step: at least 0, and above every whole step in the folder. Steps from here on that are not whole are set aside as
        ``<step>.damaged``.
      spec: plain JSON data to keep with it, such as ``agent.spec``.
      keep: how many steps to keep, at least 1.
      run: the id of the run that saves, by which ``restore`` tells its steps from those of another one.

    Returns:
      The folder of the step.

    Raises:
      TypeError: a leaf of the state is no array, or ``spec`` is not plain JSON; the message names it.
      ValueError: ``step`` or ``keep`` is not allowed, or the path of the folder has one of the characters ``[ ] * ? \\``.
      OSError: the folder cannot be written to.
      CheckpointError: writing failed, say on a full disk. Earlier steps are untouched.
    """
    return finish_save(begin_save(folder, state, step, spec=spec, keep=keep, run=run))


def begin_save(
    folder: str | os.PathLike[str],
    state: PyTree,
    step: int,
    *,
    spec: Any = None,
    keep: int = 3,
    run: str | None = None,
    request: Any = None,
    check: Callable[[], None] = lambda: None,
) -> PendingSave:
    """The first half of ``save``: check everything and hand the state to orbax, which goes on writing in the background.

    Nothing counts as saved before ``finish_save``, and the next save in this folder must not begin before it.

    Args:
      request: plain JSON data, what the run was asked for.
      check: called before anything in the folder is changed, moved or deleted. What it raises, say because the folder has become
        somebody else's, ends the save there.
    """
    import orbax.checkpoint as ocp

    step, keep = check_count("step", step, at_least=0), check_count("keep", keep)
    about = {"spec": _plain("spec", spec), "run": run, "request": _plain("request", request)}
    about["structure"], arrays = leaves.encode(state)
    folder = savable(folder)
    check()
    _make_way(folder, step, run)
    unfinished = _open_for_writing(folder)
    resources = contextlib.ExitStack()
    quiet = resources.enter_context(Quiet())
    pending = PendingSave(None, folder, unfinished, step, keep, about, resources, quiet, check)
    try:
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
        manager = ocp.CheckpointManager(unfinished, options=options)
        resources.callback(manager.close)
        if not manager.save(step, args=ocp.args.StandardSave(arrays), force=True):
            raise RuntimeError("orbax-checkpoint refused to save it")
    except Exception as error:
        raise _give_up(pending, error) from error
    return pending._replace(manager=manager)


def finish_save(pending: PendingSave) -> Path:
    """The second half of ``save``: wait for orbax, seal the step with its manifest, move it to its place, delete old steps."""
    folder, unfinished, step = pending.folder, pending.unfinished, pending.step
    try:
        pending.manager.wait_until_finished()
        pending.check()
        manifest.write(unfinished / str(step), step, **pending.about)
        os.replace(unfinished / str(step), folder / str(step))
        manifest.sync_folder(folder)
    except Exception as error:  # orbax's threads report here, in exceptions of any type
        raise _give_up(pending, error) from error
    pending.resources.close()
    pending.check()
    for old in steps(folder)[: -pending.keep]:
        os.replace(folder / str(old), unfinished / f"{old}.old")  # at once: a reader never meets a step that is half gone
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    return folder / str(step)


def _give_up(pending: PendingSave, error: Exception) -> CheckpointError:
    """Clear away what a save left, so that a full disk is no fuller for it, and say what happened."""
    pending.quiet.stays = True
    with contextlib.suppress(Exception):  # closing reports the same failure again
        pending.resources.close()
    for _ in range(20):  # threads that are still writing may put a file where others were just cleared away
        shutil.rmtree(pending.unfinished, ignore_errors=True)
        if not os.path.lexists(pending.unfinished):
            break
        time.sleep(0.05)
    with contextlib.suppress(OSError):
        pending.unfinished.parent.rmdir()
    pending.check()
    reason = " ".join(str(error).split()) or type(error).__name__
    if len(reason) > 300:
        reason = f"{reason[:140]} ... {reason[-140:]}"  # orbax nests its reasons: what first, why last
    return CheckpointError(f"saving step {pending.step} in {pending.folder} failed: {reason}. The steps before it are untouched.")


def _plain(name: str, data: Any) -> Any:
    try:
        return json.loads(json.dumps(data))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be plain JSON data (dicts, lists, strings, numbers, booleans, None): {error}") from None


def _open_for_writing(folder: Path) -> Path:
    """Make the folder, and in it an empty one for the save to come; this also shows whether the folder can be written to.

    Its name is no other save's: should the folder be deleted and become another run's while orbax writes, the two stay apart.
    """
    unfinished = folder / UNFINISHED / f"save-{os.urandom(6).hex()}"
    try:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        unfinished.mkdir(parents=True)
    except OSError as error:
        reason = "it is a file" if os.path.isfile(folder) else error.strerror
        raise OSError(
            error.errno, f"cannot save checkpoints in folder={str(folder)!r}: {reason}. Give a folder that can be written to"
        ) from None
    return unfinished


def _make_way(folder: Path, step: int, run: str | None) -> None:
    """Refuse to go back behind a whole step; set aside what is not whole, or another run's, from ``step`` on."""
    place = folder / str(step)
    if os.path.lexists(place) and not place.is_dir():
        _set_aside(place, step, "is no folder")
    for found, path in step_folders(folder):
        if found < step:
            break
        try:
            manifest.read_whole(path, found, run)
        except Damage as damage:
            _set_aside(path, found, str(damage))
        else:
            raise CheckpointError(
                f"step={step} cannot be saved in {folder}, which holds step {found}: steps go up. Save to another folder, or move"
                f" {path} away to go on from an earlier step."
            )


def _set_aside(path: Path, step: int, problem: str) -> None:
    aside = move_damaged(path)
    warn(f"step {step} ({path}) {problem}. It is set aside as {aside.name}", CheckpointWarning)
