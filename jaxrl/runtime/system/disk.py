"""Files in folders that may be somebody else's: written whole or not at all, never through a link; read where they are files."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

UNSAVABLE = "[]*?\\"
"""In a path, orbax takes these for patterns of names (and a backslash for a slash), and saves without an error what is lost."""

URL_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

MAX_DEPTH = 100
"""Of data inside data. No run writes half as deep, and Python walks a few times this."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when all is on the disk: a reader, a kill or a power cut meets one or the other."""
    unfinished = temporary(path)
    try:
        with new_file(unfinished) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def temporary(path: Path) -> Path:
    """Where ``replacing`` writes: what a kill leaves there."""
    return path.with_name(f"{path.name}.tmp")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by this text."""
    with replacing(path) as file:
        file.write(text.encode())


def move_damaged(path: Path) -> Path:
    """Rename what cannot be used to ``NAME.damaged``, or to ``NAME.damaged-2`` where there is an earlier one."""
    return move_to_free_name(path, f"{path.name}.damaged")


def move_to_free_name(path: Path, name: str, suffix: str = "") -> Path:
    """Rename ``path``, in its folder, to the first of ``name``, ``name-2``, ``name-3``, … (and ``suffix``) that is free."""
    marks = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (path.with_name(f"{name}{mark}{suffix}") for mark in marks)
    free = next(each for each in names if not os.path.lexists(each))
    os.replace(path, free)
    return free


def new_file(path: Path) -> BinaryIO:
    """An empty file, open for writing. What a kill left in its place makes way, and so does a link, which might lead anywhere."""
    path.unlink(missing_ok=True)
    return open(path, "xb", opener=without_links)


def without_links(path: str, flags: int) -> int:
    """An opener that refuses a link, and does not wait for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def open_regular(path: Path) -> io.BufferedReader:
    """A file to read.

    Raises:
      OSError: it is none: a device may have no end, and a pipe waits for somebody to write into it.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_regular(path: Path) -> bytes:
    """All of a file; see ``open_regular``."""
    with open_regular(path) as file:
        return file.read()


def at_home(path: str | os.PathLike[str]) -> Path:
    """A path whose ``~`` is a folder.

    Raises:
      FileNotFoundError: the user that it names is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(f"{os.fspath(path)!r} is nowhere: {str(error).rstrip('.')}. Give the whole path") from None


def check_here() -> None:
    """A FileNotFoundError where the working folder is gone: no relative path leads anywhere, and envpool ends the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError("the folder that this was started in was deleted: change to one that is there (cd)") from None


def parse_json(text: str | bytes) -> Any:
    """JSON that can be walked.

    Raises:
      ValueError: it is none, or too deep.
    """
    return walkable(lambda: json.loads(text))


def walkable(parse: Callable[[], Any]) -> Any:
    """What a parser finds, if neither the parser nor who walks it runs out of stack.

    Raises:
      ValueError: it is too deep.
    """
    with contextlib.suppress(RecursionError):
        if _depth(data := parse()) <= MAX_DEPTH:
            return data
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def _depth(data: Any) -> int:
    children = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return 1 + max(map(_depth, children), default=0)


def absolute(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        shown = repr(path) if len(repr(path)) < 60 else f"a {type(path).__name__}"
        raise TypeError(f"{shown} is not a path of a folder or file: give a string, such as 'runs/cartpole', or a pathlib.Path")
    if not os.fspath(path):
        raise ValueError("'' is not a path of a folder or file: write '.' for the current folder")
    path = at_home(path)
    if not path.is_absolute():
        check_here()
    return path.absolute()


def savable(path: str | os.PathLike[str], name: str = "folder") -> Path:
    """``path`` made absolute, if orbax can save below it. ``name``: the argument that it is.

    Raises:
      ValueError: it is a URL; or it holds a character that orbax misreads, maybe in the path of the current folder.
    """
    place = absolute(path)
    if any(URL_SCHEME.fullmatch(part) for part in place.parts):  # `gs://bucket` is the folder `gs:/bucket` to the system
        raise ValueError(
            f"{name}={os.fspath(path)!r} is a URL, and results are written to folders of this machine only: name one, such as"
            " where that storage is mounted"
        )
    misread = next((char for char in place.as_posix() if char in UNSAVABLE or "\ud800" <= char <= "\udfff"), None)
    if misread is not None:
        given = "" if os.fspath(path) == str(place) else f" ({str(place)!r})"
        char = misread if misread in UNSAVABLE else "a byte that is no UTF-8"
        raise ValueError(
            f"{name}={os.fspath(path)!r}{given} cannot hold checkpoints: orbax-checkpoint misreads {char} in a path, and what it"
            f" saves there is lost. Rename that folder, or name one without any of {' '.join(UNSAVABLE)}"
        )
    return place
