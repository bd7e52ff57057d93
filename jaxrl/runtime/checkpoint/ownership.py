"""What is ours in a folder of checkpoints, which may hold other things too: nothing else is moved, renamed or deleted.

A step is ours where its manifest is sealed, names that step and the run that saves, and lists all that is in there. The folder of
a save under way holds a sealed file that names the run, written before anything else and deleted after it.
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
"""In the folder of each save under way: whose it is."""

SAVE_NAME = re.compile(r"save-[0-9a-f]{12}")


def own_steps(folder: Path, run: str | None) -> list[int]:
    """The steps of a run in a folder, going up; None: those that were saved without the id of a run."""
    return sorted(step for step, path in step_folders(folder) if path.name == str(step) and is_own(path, step, run))


def is_own(path: Path, step: int, run: str | None) -> bool:
    """Whether a step is of this run, all that is in there included; its files may be damaged."""
    if path.is_symlink() or not path.is_dir():
        return False
    with contextlib.suppress(OSError, Damage, CheckpointError):
        info = manifest.read(path, step)
        found = {entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.is_symlink() or not entry.is_dir()}
        return info.run == run and found <= {*info.files, NAME}
    return False


def check_unfinished(*folders: Path) -> None:
    """Refuse, by a FileExistsError, to save in a folder where that of unfinished saves is a link or a file.

    A folder may be a stranger's, and a link in it might lead anywhere.
    """
    for folder in folders:
        unfinished = folder / UNFINISHED
        if os.path.lexists(unfinished) and (unfinished.is_symlink() or not unfinished.is_dir()):
            what = "a link" if unfinished.is_symlink() else "not a folder"
            raise FileExistsError(
                f"cannot save checkpoints in folder={str(folder)!r}: {UNFINISHED} in it is {what}, and saves are made in a "
                "folder of that name. Move it away"
            )


class Workspace:
    """A new folder in ``UNFINISHED`` for one save; only what earlier saves of the same run left there is deleted.

    Its name is no other save's: should the folder be deleted and become another run's while orbax writes, the two stay apart.
    """

    def __init__(self, folder: Path, run: str | None) -> None:
        """
        Raises:
          OSError: it cannot be made.
        """
        check_unfinished(folder)
        self._parent = folder / UNFINISHED
        self._made_parent = not self._parent.exists()
        if not self._made_parent:
            for path in self._parent.iterdir():
                if _is_left_over(path, run):
                    _remove(path)
                    self._made_parent = True  # an earlier save did
        self.path = self._parent / f"save-{os.urandom(6).hex()}"
        self.path.mkdir(parents=True)
        try:
            write_atomically(self.path / OWNER, manifest.render({"run": run}).decode())
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Delete it, as far as that can be done."""
        _remove(self.path)
        if self._made_parent:
            with contextlib.suppress(OSError):  # something else is in there
                self._parent.rmdir()


def _is_left_over(path: Path, run: str | None) -> bool:
    """Whether a save of this run was cut short here; before it said whose it is, it may have been any run's."""
    if not SAVE_NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    with contextlib.suppress(OSError):
        return read_regular(path / OWNER) == manifest.render({"run": run})
    return all(entry == temporary(path / OWNER) for entry in path.iterdir())


def _remove(path: Path) -> None:
    """Delete the folder of a save; what says whose it is goes last, so that a kill meanwhile leaves no stranger."""
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            if entry.name != OWNER:
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        (path / OWNER).unlink(missing_ok=True)
        path.rmdir()
