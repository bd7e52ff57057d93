"""Checkpoints: save a state through orbax so that a kill at any moment loses nothing, and restore it bit for bit.

``folder/`` holds one folder per step, as orbax writes it, with a ``manifest.json`` beside orbax's files. A step is made in
``folder/unfinished`` (each save in a folder of its own there) and moved to its place when everything is on the disk, so every
step in place is whole, unless the disk or somebody altered it; the digests in the manifest show that, and ``restore`` goes back
to the step before, and says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.config import check_count
from jaxrl.runtime.checkpoint import leaves, manifest
from jaxrl.runtime.checkpoint.manifest import CheckpointError, Damage, Manifest, step_folders
from jaxrl.runtime.system.disk import absolute, savable
from jaxrl.types import PyTree

UNFINISHED = "unfinished"


class CheckpointWarning(UserWarning):
    """A step that could not be used, or was written by another version of jaxrl."""


class CheckpointInfo(NamedTuple):
    """What is known of a checkpoint besides its state."""

    step: int
    spec: Any
    """As ``save`` got it, through JSON (tuples come back as lists); None if it got none."""
    versions: dict[str, str]
    """Of jaxrl, Python and the libraries that wrote it."""


# ---------------------------------------------------------------------------------------------------------------------- saving


class PendingSave(NamedTuple):
    """A save under way: ``finish_save`` completes it."""

    manager: Any
    folder: Path
    unfinished: Path
    """Where orbax writes, in ``folder``."""
    step: int
    spec: Any
    run: str | None
    request: Any
    structure: list[leaves.LeafSpec]
    keep: int
    resources: contextlib.ExitStack
    quiet: _Quiet
    check: Callable[[], None]


def save(
    folder: str | os.PathLike[str], state: PyTree, step: int, *, spec: Any = None, keep: int = 3, run: str | None = None
) -> Path:
    """Save a state as ``folder/<step>`` and delete all but the last ``keep`` steps.

    Args:
      folder: made if it is missing. One process at a time writes to it; others may read meanwhile.
      state: any pytree of arrays (on one device or sharded over several), typed PRNG keys and Python or NumPy numbers.
      step: at least 0, and above every whole step in the folder. Steps from here on that are not whole are set aside as
        ``<step>.damaged``.
      spec: plain JSON data to keep with it, such as ``agent.spec``.
      keep: how many steps to keep, at least 1.
      run: the id of the run that saves, by which ``restore`` tells its steps from those of another one.

    Returns:
      The folder of the step.

    Raises:
      TypeError: a leaf of the state is not data, or ``spec`` is not plain JSON; the message names it.
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
    spec, request = _plain("spec", spec), _plain("request", request)
    structure, arrays = leaves.encode(state)
    folder = savable(folder)
    check()
    _make_way(folder, int(step), run)
    unfinished = _open_for_writing(folder)
    resources = contextlib.ExitStack()
    quiet = resources.enter_context(_Quiet())
    pending = PendingSave(None, folder, unfinished, int(step), spec, run, request, structure, int(keep), resources, quiet, check)
    try:
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
        manager = ocp.CheckpointManager(unfinished, options=options)
        resources.callback(manager.close)
        if not manager.save(int(step), args=ocp.args.StandardSave(arrays), force=True):
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
        manifest.write(unfinished / str(step), step, pending.spec, pending.structure, pending.run, pending.request)
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
    aside = path.with_name(f"{step}.damaged")
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
    os.replace(path, aside)
    _warn(f"step {step} ({path}) {problem}. It is set aside as {aside.name}", stacklevel=6)


# ------------------------------------------------------------------------------------------------------------------- restoring


def restore(
    folder: str | os.PathLike[str], target: PyTree, *, step: int | None = None, run: str | None = None
) -> tuple[PyTree, CheckpointInfo]:
    """Restore the newest whole step, or ``step``, bit for bit.

    A newer step that was cut short, truncated or altered, or that another run than ``run`` wrote, is named in a
    CheckpointWarning, and the step before it is used.

    Args:
      folder: as given to ``save``.
      target: what the state looks like: a state, or ``jax.eval_shape(agent.init, key)``. A leaf comes back as the target has it
        (jax, NumPy or Python) and on the target's sharding; where the target is abstract without a sharding, as it was saved and
        on the default device. Weak types come back strong.
      step: this step and no other.
      run: the id that was given to ``save``; None: that of any.

    Returns:
      (state, info).

    Raises:
      FileNotFoundError: the folder, or ``step``, is not there; or nothing was saved in it.
      CheckpointError: no step is whole, or the format is another version's.
      ValueError: the checkpoint does not fit the target; the message names the first leaf that differs.
    """
    found = newest_whole(absolute(folder), step, run)
    return read_state(absolute(folder), found, target), _info(found)


def read_state(folder: Path, found: Manifest, target: PyTree) -> PyTree:
    """The state of a step that ``newest_whole`` found; arguments and errors as in ``restore``."""
    wanted = leaves.describe(target)
    if difference := leaves.first_difference(found.structure, wanted):
        raise ValueError(
            f"step {found.step} in {folder} does not fit the agent: {difference}. Another algorithm, network or setting saved it:"
            " build the agent from the checkpoint's own spec, which jaxrl.runtime.checkpoint.store.read_info gives."
        )
    here = manifest.installed_versions()
    if found.versions["jaxrl"] != here["jaxrl"]:
        _warn(
            f"step {found.step} in {folder} was saved by jaxrl {found.versions['jaxrl']}, and this is jaxrl {here['jaxrl']}: the"
            " state fits, but the run need not go on bit for bit"
        )
    arrays = _read_arrays(folder, found, leaves.restore_targets(found.structure, target))
    return leaves.decode(found.structure, arrays, target)


def read_arrays(
    folder: str | os.PathLike[str], *, step: int | None = None, run: str | None = None
) -> tuple[dict[str, np.ndarray], CheckpointInfo]:
    """The arrays of a checkpoint without a target, by their paths in the state (``.learner.params['params']…``), and its info.

    Keys come as their data; Python numbers as arrays. Errors and warnings as in ``restore``.
    """
    folder = absolute(folder)
    found = newest_whole(folder, step, run)
    arrays = _read_arrays(folder, found, leaves.host_targets(found.structure))
    return {spec.path: np.asarray(arrays[name]) for name, spec in leaves.stored(found.structure)}, _info(found)


def _read_arrays(folder: Path, found: Manifest, targets: dict[str, Any]) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    try:
        with _Quiet():
            options = ocp.CheckpointManagerOptions(read_only=True, lightweight_initialize=True)  # not a glance at other steps
            with ocp.CheckpointManager(folder, options=options) as manager:
                return dict(manager.restore(found.step, args=ocp.args.StandardRestore(targets)))
    except Exception as error:
        name, here = "orbax-checkpoint", manifest.installed_versions()
        raise CheckpointError(
            f"step {found.step} in {folder} is whole, but {name} {here[name]} cannot read it ({name} {found.versions[name]} wrote"
            f" it): {error}"
        ) from error


def read_info(folder: str | os.PathLike[str], *, step: int | None = None) -> CheckpointInfo:
    """Step, spec and versions of the newest step, or of ``step``, without its state; errors and warnings as in ``restore``."""
    return _info(newest_whole(absolute(folder), step))


def steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps in a folder, going up, by their manifests; their files are not checked. Empty if there is no such folder."""
    return sorted(step for step, path in step_folders(absolute(folder)) if (path / manifest.NAME).is_file())


def latest_step(folder: str | os.PathLike[str]) -> int | None:
    """The last of ``steps``, or None."""
    return max(steps(folder), default=None)


def _info(found: Manifest) -> CheckpointInfo:
    return CheckpointInfo(found.step, found.spec, found.versions)


def why_unusable(folder: str | os.PathLike[str], run: str | None = None) -> str | None:
    """Why there is nothing to restore; None where there is, though it may not be the newest step."""
    try:
        with warnings.catch_warnings(action="ignore", category=CheckpointWarning):
            newest_whole(absolute(folder), None, run)
    except (CheckpointError, FileNotFoundError) as error:
        return str(error)
    return None


def newest_whole(folder: Path, step: int | None = None, run: str | None = None) -> Manifest:
    """The manifest of the step to use, after a warning for every newer one that is not whole."""
    problems = []
    for number, path in _candidates(folder, step):
        try:
            if path.parent != folder:
                raise Damage("its save was cut short, or is still going on")
            found = manifest.read_whole(path, number, run)
        except Damage as damage:
            problems.append(f"step {number} ({path}) {damage}")
            continue
        for problem in problems:
            _warn(f"{problem}. Using step {number} instead", stacklevel=4)
        return found
    hint = "Put the files back from a copy" + (", or leave step out to use another step." if step is not None else ".")
    raise CheckpointError(f"no whole checkpoint: {'; '.join(problems)}. {hint}")


def _candidates(folder: Path, step: int | None) -> list[tuple[int, Path]]:
    """The steps to try, best first."""
    if not os.path.isdir(folder):
        what = "is a file" if os.path.isfile(folder) else "does not exist or is out of reach"
        raise FileNotFoundError(f"no checkpoint to restore: folder={str(folder)!r} {what}")
    found = sorted(step_folders(folder) + _cut_short(folder / UNFINISHED), key=lambda entry: entry[0], reverse=True)
    if not found:
        raise FileNotFoundError(f"no checkpoint to restore: folder={str(folder)!r} holds no step")
    if step is None:
        return found
    chosen = [entry for entry in found if entry[0] == step]
    if not chosen:
        raise FileNotFoundError(f"no checkpoint of step={step} in {folder}, which holds the steps {steps(folder)}")
    return chosen


def _cut_short(unfinished: Path) -> list[tuple[int, Path]]:
    """Steps that are still being saved, or were when a process was killed."""
    return [entry for save in (unfinished, *unfinished.glob("save-*")) for entry in step_folders(save)]


# --------------------------------------------------------------------------------------------------------------------- talking


def _warn(message: str, stacklevel: int = 3) -> None:
    warnings.warn(message, CheckpointWarning, stacklevel=stacklevel)


class _Quiet:
    """Without what orbax and tensorstore print: every error several times over, and it is raised anyway.

    Threads of theirs are still at work when a save has failed, so after that it stays quiet.
    """

    def __init__(self) -> None:
        self.stays = False

    def __enter__(self) -> _Quiet:
        self._before = sys.unraisablehook
        # Of writes that orbax gave up: told whenever the garbage collector finds them, as late as the end of the process.
        warnings.filterwarnings("ignore", r"coroutine '.*serialize.*' was never awaited", RuntimeWarning)
        logging.getLogger("absl").addFilter(self._is_not_from_orbax)
        sys.unraisablehook = self._hook
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stays:
            logging.getLogger("absl").removeFilter(self._is_not_from_orbax)
            if sys.unraisablehook == self._hook:
                sys.unraisablehook = self._before

    def _is_not_from_orbax(self, record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    def _hook(self, unraisable: Any) -> None:
        """tensorstore tells an event loop of each write that fails, and orbax has closed that loop after the first."""
        error = unraisable.exc_value
        if not (unraisable.object is None and isinstance(error, RuntimeError) and "Event loop is closed" in str(error)):
            self._before(unraisable)
