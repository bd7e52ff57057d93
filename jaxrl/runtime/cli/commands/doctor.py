"""``jaxrl doctor``: what is missing or broken, what that breaks, and the command that mends it.

It has to work where nothing else does, so its flags need the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence

from jaxrl.runtime.console.tables import show_table, terminal
from jaxrl.runtime.doctor import Finding, diagnose, problems
from jaxrl.settings.aliases import nearest
from jaxrl.version import __version__

WORDS = {"problem": "PROBLEM", "absent": "-"}
STYLES = {"ok": "green", "note": "yellow", "PROBLEM": "bold red"}

DESCRIPTION = """\
Look for what is missing or broken, and say of each problem in one line what it
breaks and which command mends it.

All packages that jaxrl requires: is the version one that fits, can it be
imported? Devices: are seeds sharded over all cores, is an NVIDIA GPU used?
Folders: can results, temporary files and compiled programs be written, is
there room on the disk? At the end PPO trains for one compiled iteration, on two
devices where there are, which is saved and restored."""

EPILOG = """\
The exit code is 0 if there is no problem, 1 if there are some. Notes do not count.

try:
  jaxrl doctor --quick
  jaxrl doctor --json > doctor.json     for programs, and for reports of bugs
"""


def main(args: Sequence[str]) -> int:
    """Print what was found; 0 when there is no problem."""
    parser = argparse.ArgumentParser(
        "jaxrl doctor", None, DESCRIPTION, EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="train for one iteration only; nothing is saved and restored")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    options, others = parser.parse_known_args(list(args))
    for other in others:
        raise ValueError(f"unknown argument {other!r}.{nearest(other, ('--quick', '--json', '--help'))} See jaxrl doctor --help")
    with waiting() as say:
        found = diagnose(quick=options.quick, say=say)
    if options.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        show(found, quick=options.quick)
    return 1 if problems(found) else 0


@contextlib.contextmanager
def waiting() -> Iterator[Callable[[str], None]]:
    """Yield what shows, on a terminal, what is going on now."""
    if not sys.stdout.isatty() or (console := terminal()) is None:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(f"{text} …")


def as_json(found: Sequence[Finding]) -> dict[str, object]:
    return {
        "healthy": not problems(found),
        "jaxrl": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "checks": [finding._asdict() for finding in found],
        "problems": [finding.line for finding in found if finding.level == "problem"],
    }


def show(found: Sequence[Finding], *, quick: bool) -> None:
    width = max(len(finding.check) for finding in found)
    for group in dict.fromkeys(finding.group for finding in found):
        rows = [
            (f"  {finding.check:<{width}}", WORDS.get(finding.level, finding.level), finding.found)
            for finding in found
            if finding.group == group
        ]
        print(group)
        show_table(None, rows, styles=STYLES, fixed=(0, 1))
        print()
    lines = [finding.line for finding in found if finding.level == "problem"]
    for line in lines:
        print_red(line)
    if lines:
        print(f"{len(lines)} problem{'s' if len(lines) > 1 else ''}; the commands after 'Fix:' mend them")
    else:
        print(f"no problems{' (nothing was saved and restored)' if quick else ''}")


def print_red(line: str) -> None:
    """On one line, however long, so that its command can be copied."""
    console = terminal()
    if console is None:
        print(line)
        return
    from rich.text import Text

    head, fix, command = line.rpartition("Fix: ")
    console.print(Text.assemble((head, "red"), fix, (command, "bold")), soft_wrap=True)
