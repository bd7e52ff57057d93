"""Safe file access in shared folders: writes are atomic and never follow links; reads accept regular files only."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

UNSAVABLE = "[]*?\\"
"""Characters that orbax treats as wildcards in a path (a backslash as a slash). It saves without an error, but the data are
lost."""

URL_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` once it is on disk.

    After a kill or a power cut, and for readers at any time, ``path`` is either the old or the new file. A file that is not
    ``durable`` is not flushed to disk, which takes less time; a power cut may then damage it.
    """
    unfinished = temporary(path)
    try:
        with new_file(unfinished) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def temporary(path: Path) -> Path:
    """Return the path to which ``replacing`` writes first. A kill may leave that file behind."""
    return path.with_name(f"{path.name}.tmp")


def write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a file by this text atomically; see ``replacing``."""
    with replacing(path, durable=durable) as file:
        file.write(text.encode())


def move_damaged(path: Path) -> Path:
    """Rename an unusable file or folder to ``NAME.damaged``, or to ``NAME.damaged-2``, … if that exists."""
    return move_to_free_name(path, f"{path.name}.damaged")


def move_to_free_name(path: Path, name: str, suffix: str = "") -> Path:
    """Rename ``path``, in its folder, to the first of ``name``, ``name-2``, ``name-3``, … (and ``suffix``) that is free."""
    marks = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (path.with_name(f"{name}{mark}{suffix}") for mark in marks)
    free = next(each for each in names if not os.path.lexists(each))
    os.replace(path, free)
    return free


def new_file(path: Path) -> BinaryIO:
    """Open an empty file for writing. Leftovers of a kill are removed first, and so are links, which might lead anywhere."""
    path.unlink(missing_ok=True)
    return open(path, "xb", opener=without_links)


def without_links(path: str, flags: int) -> int:
    """Open a file without following links and without waiting for the other end of a pipe. For use as an opener."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; raise OSError unless it is regular: a device may never end, and a pipe waits for a writer."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - the caller closes it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def read_regular(path: Path, at_most: int | None = None) -> bytes:
    """Read a whole file; see ``open_regular``. Raise ValueError if it has more than ``at_most`` bytes."""
    with open_regular(path) as file:
        content = file.read(-1 if at_most is None else at_most + 1)
    if at_most is not None and len(content) > at_most:
        raise ValueError(f"it has more than {at_most:,} bytes")
    return content


def read_end(path: Path, at_most: int) -> bytes:
    """Read the last bytes of a regular file, at most this many. Raise OSError for a link, which may lead anywhere."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, which is not followed", os.fspath(path))
    with open(path, "rb", opener=without_links) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        file.seek(max(0, os.fstat(file.fileno()).st_size - at_most))
        return file.read(at_most)


def at_home(path: str | os.PathLike[str]) -> Path:
    """Expand ``~`` in a path; raise FileNotFoundError for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(f"{os.fspath(path)!r} cannot be expanded: {str(error).rstrip('.')}. Give the full path") from None


def check_here() -> None:
    """Raise FileNotFoundError if the working directory was deleted. Relative paths would fail, and envpool kills the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError("the current folder was deleted: change to an existing one (cd)") from None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError if it is invalid or nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path, with ``~`` expanded.

    Raises:
      TypeError, ValueError: ``path`` is not a path, or is empty.
      FileNotFoundError: it names an unknown user, or the working directory was deleted.
    """
    if not isinstance(path, str | os.PathLike):
        shown = repr(path) if len(repr(path)) < 60 else f"a {type(path).__name__}"
        raise TypeError(f"{shown} is not a path of a folder or file: give a string, such as 'runs/cartpole', or a pathlib.Path")
    if not os.fspath(path):
        raise ValueError("'' is not a path of a folder or file: write '.' for the current folder")
    path = at_home(path)
    if not path.is_absolute():
        check_here()
    return path.absolute()


def check_writable(path: str | os.PathLike[str], name: str, *, make_folder: bool = False) -> Path:
    """Return the absolute path of a file, if it can be written. Call it before the work whose results the file is for.

    Args:
      name: what the path is called in errors.
      make_folder: create its folder.

    Raises:
      OSError: it is a folder, or it, or its folder, is missing or not writable.
    """
    file = absolute(path)
    with contextlib.suppress(OSError):  # the folder is then missing
        if make_folder:
            file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir() or not file.parent.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        reason = "it is a folder" if file.is_dir() else "it, or its folder, does not exist or is not writable"
        raise OSError(f"{name}={os.fspath(path)!r} cannot be written to: {reason}. Name a writable file")
    return file


def savable(path: str | os.PathLike[str], name: str = "folder") -> Path:
    """Return the absolute path of a folder, or raise ValueError, with the argument's ``name``, if orbax cannot save below it."""
    folder = absolute(path)
    if any(URL_SCHEME.fullmatch(part) for part in folder.parts):  # `gs://bucket` is the folder `gs:/bucket` to the system
        raise ValueError(
            f"{name}={os.fspath(path)!r} is a URL, but results can only be written to folders of this machine: name one, such as"
            " the mount point of that storage"
        )
    misread = next((char for char in folder.as_posix() if char in UNSAVABLE or "\ud800" <= char <= "\udfff"), None)
    if misread is not None:
        shown = "" if os.fspath(path) == str(folder) else f" ({str(folder)!r})"
        char = misread if misread in UNSAVABLE else "a byte that is not UTF-8"
        raise ValueError(
            f"{name}={os.fspath(path)!r}{shown} cannot hold checkpoints: orbax-checkpoint misreads {char} in a path, and what it"
            f" saves there is lost. Rename that folder, or name one without any of {' '.join(UNSAVABLE)}"
        )
    return folder


def lock_file(file: TextIO) -> bool:
    """Lock an open file until it is closed. Return False if another process has locked it."""
    with contextlib.suppress(ImportError, OSError):  # without locks, users must avoid two processes in one folder
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that a rename survives a power failure. Errors are ignored."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
