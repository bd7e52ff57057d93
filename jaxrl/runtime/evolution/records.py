"""Records of rewards: JSON Lines, such as ``{"run": "3f2a9c01", "version": 17, "member": 402, "fitness": 12.5, "id": "c0ffee"}``.

Any number of programs append lines to any number of files in ``logs/``. A line that was torn by a crash loses itself alone, also
where the next record was appended to it.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FIELDS = {"run", "version", "member", "fitness"}
"""Fields that a record must have. ``id`` marks lines that are delivered more than once, ``sha256`` the parameters (or its first
digits), ``v`` the format. Others are ignored."""
MOST_MEMBERS = 2**31
MOST_NESTED = 16
"""Objects of a torn line that are tried as the begin of another record."""
KEPT_LINE = 300
"""Characters of a refused line that are kept."""

decode = json.JSONDecoder().decode


class Refused(Exception):
    """A record is refused; the message is the reason, one word for the counts."""


class Known(NamedTuple):
    """Facts that records are checked against."""

    run: str
    digests: Mapping[int, str]
    """Version that is kept -> digest of its parameters."""
    newest: int
    oldest: int
    """Records of earlier versions are refused as stale."""
    ids: set[str]
    """Ids of records that were accepted before; ``read`` adds those that it accepts."""


class Read(NamedTuple):
    """Records of some lines."""

    fitness: dict[int, dict[int, list[float]]]
    """Version -> member -> rewards."""
    accepted: int
    refused: Counter[str]
    """Reason -> number."""
    lines: list[dict[str, str]]
    """Refused lines, with their reasons and files."""
    ids: list[str]
    """Ids of the accepted records."""


def new_lines(folder: Path, consumed: Mapping[str, int]) -> tuple[list[tuple[str, bytes]], dict[str, int]]:
    """Return the complete lines of all logs beyond the offsets, with the names of their files, and the new offsets.

    A last line without an end is still being written, and is left for the next time.
    """
    found, offsets = [], dict(consumed)
    for path in sorted(folder.glob("*.jsonl")):
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < offsets.get(path.name, 0):  # another file took its name
                offsets[path.name] = 0
            file.seek(offsets.get(path.name, 0))
            data = file.read()
        end = data.rfind(b"\n") + 1
        if end:
            found += [(path.name, line) for line in data[:end].splitlines() if line.strip()]
            offsets[path.name] = offsets.get(path.name, 0) + end
    return found, offsets


def read(lines: Iterable[tuple[str, bytes]], known: Known) -> Read:
    """Read lines; those that are wrong are refused and counted."""
    result = Read({}, 0, Counter(), [], [])
    accepted, waiting = 0, deque(lines)
    while waiting:
        name, line = waiting.popleft()
        try:
            version, member, fitness, identity = _record(line, known)
        except Refused as error:
            reason = str(error)
            if reason == "torn" and (start := _appended_at(line)):
                waiting.appendleft((name, line[start:]))
                line = line[:start]
            result.refused[reason] += 1
            result.lines.append({"reason": reason, "file": name, "line": line[:KEPT_LINE].decode(errors="replace")})
            continue
        if identity is not None:
            known.ids.add(identity)
            result.ids.append(identity)
        result.fitness.setdefault(version, {}).setdefault(member, []).append(fitness)
        accepted += 1
    return result._replace(accepted=accepted)


def _appended_at(line: bytes) -> int:
    """Return where a whole record begins that follows a torn one on its line; 0 if there is none."""
    start = len(line)
    for _ in range(MOST_NESTED):
        if (start := line.rfind(b'{"', 0, start)) <= 0:
            break
        try:
            decode(line[start:].decode())
        except (ValueError, RecursionError):
            continue
        return start
    return 0


def _record(line: bytes, known: Known) -> tuple[int, int, float, str | None]:
    try:
        record: Any = decode(line.decode())  # without json.loads, which guesses the encoding of each line
    except (ValueError, RecursionError):  # the second: brackets nested by the thousand
        raise Refused("torn") from None
    if not isinstance(record, dict) or not record.keys() >= FIELDS:
        raise Refused("torn" if not isinstance(record, dict) else "incomplete")
    if record.get("v", 1) != 1:
        raise Refused("format")
    if record["run"] != known.run:
        raise Refused("foreign")
    version, member, fitness, identity = record["version"], record["member"], record["fitness"], record.get("id")
    if not _is_count(version) or version > known.newest:
        raise Refused("unknown version")
    if version not in known.digests:
        raise Refused("expired")
    if version < known.oldest:
        raise Refused("stale")
    digest = record.get("sha256", "")
    if not isinstance(digest, str) or not known.digests[version].startswith(digest):
        raise Refused("digest")
    if not _is_count(member) or member >= MOST_MEMBERS:
        raise Refused("member")
    if isinstance(fitness, bool) or not isinstance(fitness, int | float) or not _is_finite(fitness):
        raise Refused("fitness")
    if identity is not None and not isinstance(identity, str):
        raise Refused("id")
    if identity in known.ids:
        raise Refused("duplicate")
    return version, member, float(fitness), identity


def _is_count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _is_finite(x: float) -> bool:
    try:
        return math.isfinite(x) and abs(float(x)) < 3e38
    except OverflowError:
        return False
