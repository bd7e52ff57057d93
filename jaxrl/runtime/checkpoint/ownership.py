"""Ownership of the contents of a checkpoint folder: only files of the saving run are moved, renamed or deleted.

A step belongs to the run if its manifest has a valid digest, names that step and that run, and lists all files in the folder. The
folder of a save in progress holds a file with a digest that names the run; it is written before all other files and deleted last.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from jaxrl.runtime.checkpoint import manifest
from jaxrl.runtime.checkpoint.manifest import NAME, UNFINISHED, CheckpointError, Damage, step_folders
from jaxrl.runtime.system.disk import read_regular, temporary, write_atomically

OWNER = "save.json"
"""File in the folder of a save in progress that names the run it belongs to."""

SAVE_NAME = re.compile(r"save-[0-9a-f]{12}")


def own_steps(folder: Path, run: str | None) -> list[int]:
    """Return the steps of a run in a folder, in ascending order; ``run=None`` selects those saved without a run id."""
    return sorted(step for step, path in step_folders(folder) if path.name == str(step) and is_own(path, step, run))


def is_own(path: Path, step: int, run: str | None) -> bool:
    """Return whether a step and all files in it belong to this run; the files may be damaged."""
    if path.is_symlink() or not path.is_dir():
        return False
    with contextlib.suppress(OSError, Damage, CheckpointError):
        info = manifest.read(path, step)
        found = {entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.is_symlink() or not entry.is_dir()}
        return info.run == run and found <= {*info.files, NAME}
    return False


def check_unfinished(*folders: Path) -> None:
    """Raise FileExistsError if the folder of unfinished saves is a link or a file.

    The folder may come from an untrusted source, and a link in it could lead anywhere.
    """
    for folder in folders:
        unfinished = folder / UNFINISHED
        if os.path.lexists(unfinished) and (unfinished.is_symlink() or not unfinished.is_dir()):
            problem = "a link" if unfinished.is_symlink() else "not a folder"
            raise FileExistsError(
                f"cannot save checkpoints in folder={str(folder)!r}: {UNFINISHED} in it is {problem}, but must be a folder, "
                "because saves are written there. Move it away"
            )


class Workspace:
    """A new folder in ``UNFINISHED`` for one save. Leftovers of earlier saves of the same run are deleted; nothing else is.

    Its name is unique: if the checkpoint folder is deleted and reused by another run while orbax writes, the saves stay separate.
    """

    def __init__(self, folder: Path, run: str | None) -> None:
        check_unfinished(folder)
        self._parent = folder / UNFINISHED
        self._made_parent = not self._parent.exists()
        if not self._made_parent:
            for path in self._parent.iterdir():
                if _is_left_over(path, run):
                    _remove(path)
                    self._made_parent = True  # an earlier save of this run created it
        self.path = self._parent / f"save-{os.urandom(6).hex()}"
        self.path.mkdir(parents=True)
        try:
            write_atomically(self.path / OWNER, manifest.render({"run": run}).decode())
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Delete the folder as far as possible; errors are ignored."""
        _remove(self.path)
        if self._made_parent:
            with contextlib.suppress(OSError):  # not empty
                self._parent.rmdir()


def _is_left_over(path: Path, run: str | None) -> bool:
    """Return whether this is an interrupted save of this run, or of any run if it stopped before its owner file was written."""
    if not SAVE_NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    with contextlib.suppress(OSError):
        return read_regular(path / OWNER) == manifest.render({"run": run})
    return all(entry == temporary(path / OWNER) for entry in path.iterdir())


def _remove(path: Path) -> None:
    """Delete the folder of a save. The owner file is deleted last, so that the folder stays identifiable after a kill."""
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            if entry.name != OWNER:
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        (path / OWNER).unlink(missing_ok=True)
        path.rmdir()
