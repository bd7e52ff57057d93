"""``jaxrl doctor``: report what is missing or broken, its consequences, and the command that fixes it.

It must work in broken installations, so its flags are parsed with the standard library only.
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
Look for missing or broken parts, and report each problem in one line, with its
consequences and the command that fixes it.

Packages that jaxrl requires: is the version supported, can it be imported?
Devices: are seeds sharded over all cores, is an NVIDIA GPU used? Folders: can
results, temporary files and compiled programs be written, is there free disk
space? Finally, PPO trains for one compiled iteration, on two devices if
available, and the state is saved and restored."""

EPILOG = """\
The exit code is 0 if there are no problems, else 1. Notes do not count.

try:
  jaxrl doctor --quick
  jaxrl doctor --json > doctor.json     for programs and bug reports
"""


def main(args: Sequence[str]) -> int:
    """Print the findings; return 0 if there are no problems, else 1."""
    parser = argparse.ArgumentParser(
        "jaxrl doctor", None, DESCRIPTION, EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only train for one iteration; do not save and restore")
    parser.add_argument("--json", action="store_true", help="print all findings as one JSON object")
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
    """Yield a function that shows the current step, if stdout is a terminal."""
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
        print(f"{len(lines)} problem{'s' if len(lines) > 1 else ''}; to fix, run the commands after 'Fix:'")
    else:
        print(f"no problems{' (saving and restoring was not checked)' if quick else ''}")


def print_red(line: str) -> None:
    """Print a problem on one line, however long, so that its command can be copied."""
    console = terminal()
    if console is None:
        print(line)
        return
    from rich.text import Text

    head, fix, command = line.rpartition("Fix: ")
    console.print(Text.assemble((head, "red"), fix, (command, "bold")), soft_wrap=True)
