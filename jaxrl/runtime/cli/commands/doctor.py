"""``jaxrl doctor``: report what is missing or broken, its consequences, and the command that fixes it.

It must work in broken installations, so its flags are parsed with the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
from collections.abc import Sequence

from jaxrl.runtime.console.tables import show_table, terminal
from jaxrl.runtime.doctor import Finding, diagnose, problems
from jaxrl.runtime.doctor.finding import pip
from jaxrl.settings.aliases import nearest

WORDS = {"problem": "PROBLEM", "absent": "-"}
STYLES = {"ok": "green", "note": "yellow", "PROBLEM": "bold red"}

DESCRIPTION = """\
Look for missing or broken parts, and report each problem in one line, with its
consequences and the command that fixes it.

Packages that jaxrl requires: are they installed? Devices: are seeds sharded
over all cores, is an NVIDIA GPU used? Folders: can results, temporary files and
compiled programs be written, is there free disk space? Finally, PPO trains for
one compiled iteration, on two devices if available, and the state is saved and
restored. Whether the versions of packages fit each other is a question for
python -m pip check."""

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
    console = terminal()
    with console.status("checking, and training for one iteration …") if console else contextlib.nullcontext():
        found = diagnose(quick=options.quick)
    if options.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        show(found, quick=options.quick)
    return 1 if problems(found) else 0


def as_json(found: Sequence[Finding]) -> dict[str, object]:
    return {
        "healthy": not problems(found),
        "executable": sys.executable,
        "system": platform.platform(),
        "checks": [finding._asdict() for finding in found],
        "problems": [finding.line for finding in found if finding.level == "problem"],
    }


def show(found: Sequence[Finding], *, quick: bool) -> None:
    width = max(len(finding.check) for finding in found)
    for group in dict.fromkeys(finding.group for finding in found):
        shown = [finding for finding in found if finding.group == group]
        rows = [(f"  {check:<{width}}", WORDS.get(level, level), text) for _, check, level, text, *_ in shown]
        print(group)
        show_table(None, rows, styles=STYLES, fixed=(0, 1))
        print()
    lines = [finding.line for finding in found if finding.level == "problem"]
    for line in lines:
        print(line)
    if lines:
        print(f"{len(lines)} problem{'s' if len(lines) > 1 else ''}; to fix, run the commands after 'Fix:'")
    else:
        print(f"no problems{' (saving and restoring was not checked)' if quick else ''}")
    print(f"to check whether the versions of packages fit each other: {pip('check')}")
