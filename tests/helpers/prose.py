"""Lint of prose: counts turns of phrase that read as translated, and fails above a small number of each.

``python -m tests.helpers.prose [--list] [PATH ...]``; ``make lint`` runs it over what users read. CONTRIBUTING.md has the style.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.helpers.paths import ROOT

READ_BY_USERS = ("jaxrl", "docs", "examples", "benchmarks", "README.md", "CONTRIBUTING.md")


class Pattern(NamedTuple):
    instead: str
    regex: re.Pattern[str]
    at_most: int


def _pattern(instead: str, regex: str, at_most: int) -> Pattern:
    return Pattern(instead, re.compile(regex, re.IGNORECASE), at_most)


PATTERNS = (
    _pattern(
        "a docstring begins with a verb or a noun of the field, not with What/Who/Whether",
        r'"""(what|who|whether|whatever)\b',
        0,
    ),
    _pattern(
        "is not a ..., has no ...",
        r"(?<!there )\b(is|are|was|were) (?-i:no|none)\b(?! (longer|more|less|fewer|other))",
        0,
    ),
    _pattern("custom ..., a separate ..., your ...", r"\bof (its|our|your|their|his|one's) own\b", 0),
    _pattern("continue, resume", r"\b(go|goes|went|gone|going) on\b", 0),
    _pattern("no process, a user, any", r"\b(nobody|somebody|whoever|whomever|whatever|everybody)\b", 0),
    _pattern("a number, as many as", r"\bso (many|much)\b", 0),
    _pattern("two sentences", r"\bof which\b", 0),
    _pattern("also, apart from, and", r"\bbesides\b", 0),
    _pattern("hangs, is stalled, is idle", r"\b(stands?|stood|standing) still\b", 0),
    _pattern("report, inform", r"\b(tells?|told) of\b", 0),
    _pattern("algorithm", r"\b(learning )?rules?\b", 0),
)
"""With the number of uses that each may have in the files that users read."""


class Use(NamedTuple):
    file: str
    line: int
    text: str


def uses(pattern: Pattern, files: Sequence[Path]) -> Iterator[Use]:
    """Yield the lines of ``files`` that match."""
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for _ in pattern.regex.finditer(line):
                yield Use(str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file), number, line.strip())


def find_files(paths: Sequence[str]) -> list[Path]:
    """Return the Python and Markdown files at or under ``paths``, relative to the root of the project."""
    found = []
    for path in (ROOT / path for path in paths):
        found += [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.suffix in (".py", ".md")]
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the patterns above their limits, and five uses of each; with ``--list`` or paths, all. Return the exit status."""
    paths = [argument for argument in arguments if argument != "--list"]
    files, failed = find_files(paths or READ_BY_USERS), False
    for pattern in PATTERNS:
        found = list(uses(pattern, files))
        too_many = len(found) > pattern.at_most
        if too_many or paths or "--list" in arguments:
            print(f"{len(found)} of at most {pattern.at_most}: {pattern.regex.pattern}: write instead: {pattern.instead}")
            shown = found if paths or "--list" in arguments else found[-5:]
            print("".join(f"  {use.file}:{use.line}: {use.text}\n" for use in shown), end="")
        failed = failed or too_many
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
