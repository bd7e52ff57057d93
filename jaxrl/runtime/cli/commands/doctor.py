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
from jaxrl.runtime.doctor.ray.hops import diagnose_cluster
from jaxrl.settings.aliases import nearest

FLAGS = ("--quick", "--json", "--ray", "--shared", "--help")
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
python -m pip check.

With --ray only a cluster of Ray is checked, hop by hop: its address, its port,
its token, and each node: versions, ports in both directions, the transfer of a
value, clocks, /dev/shm, and the folder that machines share. Run it on a machine
of the cluster."""

EPILOG = """\
The exit code is 0 if there are no problems, else 1. Notes do not count.

try:
  jaxrl doctor --quick
  jaxrl doctor --json > doctor.json     for programs and bug reports
  jaxrl doctor --ray 10.0.0.1:6379 --shared /mnt/runs
"""


def main(args: Sequence[str]) -> int:
    """Print the findings; return 0 if there are no problems, else 1."""
    parser = argparse.ArgumentParser(
        "jaxrl doctor", None, DESCRIPTION, EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only train for one iteration; do not save and restore")
    parser.add_argument("--json", action="store_true", help="print all findings as one JSON object")
    parser.add_argument("--ray", metavar="ADDRESS", help="check the cluster of Ray at HOST:PORT, and nothing else")
    parser.add_argument("--shared", metavar="FOLDER", help="with --ray: check that all nodes share this folder")
    options, others = parser.parse_known_args(list(args))
    for other in others:
        raise ValueError(f"unknown argument {other!r}.{nearest(other, FLAGS)} See jaxrl doctor --help")
    if options.quick and options.ray is not None:
        raise ValueError("--quick is for the check of this machine, which --ray replaces: leave one of them out")
    if options.shared is not None and options.ray is None:
        raise ValueError("--shared needs --ray ADDRESS: nodes of a cluster share the folder")
    console = terminal()
    doing = "training for one iteration" if options.ray is None else "visiting the cluster"
    with console.status(f"checking, and {doing} …") if console else contextlib.nullcontext():
        found = diagnose(quick=options.quick) if options.ray is None else diagnose_cluster(options.ray, options.shared)
    if options.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        show(found, quick=options.quick)
        if options.ray is None:
            print(f"to check whether the versions of packages fit each other: {pip('check')}")
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
