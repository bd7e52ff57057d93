"""``jaxrl es``: evolve parameters that other programs test, from a log of their rewards."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from jaxrl.runtime.cli.flags import Flag, read_flags
from jaxrl.runtime.console.tables import show_table
from jaxrl.runtime.system.disk import check_writable, replacing
from jaxrl.settings.aliases import unknown
from jaxrl.settings.validation import check_count

HELP = """\
usage: jaxrl es COMMAND …

Evolve the parameters of a product: other programs, in any language, test members and log their
rewards.

commands:
  init FILE --out FOLDER   make the folder of a new evolution, from a file of settings
  ask FOLDER               reserve members to test, and print what defines them
  tell FOLDER              learn from the rewards in FOLDER/logs, and write the next version
  export FOLDER FILE       write the parameters of a version
  status FOLDER            show the version, and the numbers of rewards and refused records

A file of settings:

  theta = "theta.npy"      # initial parameters, .npy or .npz; or size = 4610, which begins at 0
  sigma = 0.05
  learning_rate = 0.03
  staleness = "within"

A record is a line of JSON in any file FOLDER/logs/*.jsonl, with what ask printed and a unique id:

  {"run": "3f2a9c01", "version": 17, "member": 402, "fitness": 12.5, "id": "shop-7/1043"}

Write each line with one call, to a file opened for appending. Rewards of the same member are
averaged. A line that is delivered again, comes from another run, or is too old is refused and
counted. jaxrl es COMMAND --help shows all options.
"""


@dataclasses.dataclass(frozen=True)
class InitOptions:
    file: Annotated[Path, tyro.conf.Positional]
    """File of settings (TOML)."""
    out: Path
    """Folder of the evolution."""


@dataclasses.dataclass(frozen=True)
class AskOptions:
    folder: Annotated[str, tyro.conf.Positional]
    """Folder of the evolution."""
    members: int = 2
    """Number of members to reserve; an even number keeps pairs together."""
    owner: str | None = None
    """Name of the caller, which is recorded."""
    format: Literal["npz", "f32"] | None = None
    """Also write the members' parameters, for programs that do not draw noise: npz, an array per member, or f32, one after the
    other."""
    out: Path | None = None
    """File for these parameters."""


@dataclasses.dataclass(frozen=True)
class TellOptions:
    folder: Annotated[str, tyro.conf.Positional]
    """Folder of the evolution."""
    at_least: int = 1
    """Members with rewards that a new version needs; fewer are left for the next time."""
    every: float | None = None
    """Repeat after this number of seconds, until Ctrl-C."""
    json: Flag = False
    """Print JSON."""


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    folder: Annotated[str, tyro.conf.Positional]
    """Folder of the evolution."""
    file: Annotated[Path, tyro.conf.Positional]
    """File to write: .npy (one vector), .npz (arrays by name), .f32 (little-endian)."""
    version: int | None = None
    """Version to write; default: the present one."""


@dataclasses.dataclass(frozen=True)
class StatusOfEvolution:
    folder: Annotated[str, tyro.conf.Positional]
    """Folder of the evolution."""
    json: Flag = False
    """Print JSON."""


def main(args: Sequence[str]) -> int:
    """Run a subcommand; return the exit code."""
    if not args or args[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0 if args else 2
    if args[0] not in SUBCOMMANDS:
        raise unknown("command", args[0], list(SUBCOMMANDS))
    options, run = SUBCOMMANDS[args[0]]
    return run(read_flags(options, args[1:], prog=f"jaxrl es {args[0]}", description=str(run.__doc__)))


def init(options: InitOptions) -> int:
    """Make the folder of a new evolution, from a file of settings; print its run id."""
    from jaxrl.runtime.evolution import product
    from jaxrl.runtime.search.settings_file import read_toml

    settings = read_toml(options.file, "settings")
    theta, size = settings.pop("theta", None), settings.pop("size", None)
    if (theta is None) == (size is None):
        raise ValueError(f"{options.file} must have either theta, a file of initial parameters, or size, their number")
    if not isinstance(theta, str | None):
        raise TypeError(f"{options.file}: theta={theta!r} must be the name of a file of initial parameters, .npy or .npz")
    initial: Any = np.zeros(check_count("size", size)) if theta is None else read_parameters(options.file.parent / theta)
    print(product.init(options.out, initial, **settings))
    return 0


def read_parameters(path: Path) -> Any:
    """Read an array (.npy), or arrays by name (.npz). Raise ValueError for other files."""
    try:
        with open(path, "rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return dict(loaded) if path.suffix == ".npz" else loaded
    except (ValueError, EOFError, zipfile.BadZipFile):  # NumPy's message advises to execute the file
        raise ValueError(f"{path} holds no parameters: theta must be an array (.npy), or arrays by name (.npz)") from None


def ask(options: AskOptions) -> int:
    """Reserve members of the present version, which no other caller gets, and print what defines them as JSON."""
    from jaxrl.runtime.evolution import product

    if (options.format is None) != (options.out is None):
        raise ValueError("--format and --out belong together: give both, or neither")
    file = options.out and check_writable(options.out, "out")
    asked = product.ask(options.folder, options.members, owner=options.owner)
    if file is not None:
        numbers = range(asked.first, asked.first + asked.number)
        rows = product.member_parameters(options.folder, asked.version, list(numbers))
        with replacing(file) as opened:
            if options.format == "npz":
                np.savez(opened, **{str(number): row for number, row in zip(numbers, rows, strict=True)})
            else:
                opened.write(rows.astype("<f4").tobytes())
    print(json.dumps(asked._asdict()))
    return 0


def tell(options: TellOptions) -> int:
    """Learn from the rewards that were logged since the last time, and write the next version of the parameters."""
    from jaxrl.runtime.evolution import product

    while True:
        told = product.tell(options.folder, at_least=options.at_least)
        if options.json:
            print(json.dumps(told._asdict()), flush=True)
        elif told.updated or told.refused or options.every is None:
            print(in_words(told), flush=True)
        if options.every is None:
            return 0
        time.sleep(options.every)


def in_words(told: Any) -> str:
    """Describe the result of ``tell`` in one line."""
    refused = ", ".join(f"{number} {reason}" for reason, number in sorted(told.refused.items()))
    refused = f"; refused: {refused}" if refused else ""
    if not told.updated:
        return f"version {told.version}: too few members with rewards for a new version{refused}"
    return f"version {told.version}: {told.accepted} rewards, mean {told.fitness:g}{refused}"


def export(options: ExportOptions) -> int:
    """Write the parameters of a version."""
    from jaxrl.runtime.evolution import product

    number = product.export(options.folder, options.file, version=options.version)
    print(f"version {number} is in {os.fspath(options.file)}")
    return 0


def status(options: StatusOfEvolution) -> int:
    """Show the version of the parameters, the records so far, and those that were refused."""
    from jaxrl.runtime.evolution import product

    found = product.status(options.folder)
    if options.json:
        print(json.dumps(found._asdict()))
        return 0
    owners = ", ".join(f"{name}: {number}" for name, number in sorted(found.asked["owners"].items()))
    rows = [
        ("run", found.run),
        ("version", f"{found.version}, kept: {found.kept[0]} to {found.kept[-1]}"),
        ("parameters", f"{found.size:,}, sigma {found.sigma:g}"),
        ("accepted", f"{found.accepted:,} rewards"),
        ("refused", ", ".join(f"{number:,} {reason}" for reason, number in sorted(found.refused.items())) or "none"),
        ("waiting", f"{found.waiting:,} bytes of logs"),
        ("reserved", f"{found.asked['members']:,} members" + (f" ({owners})" if owners else "")),
    ]
    show_table(("", "value"), rows, fixed=(0,))
    return 0


SUBCOMMANDS: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "init": (InitOptions, init),
    "ask": (AskOptions, ask),
    "tell": (TellOptions, tell),
    "export": (ExportOptions, export),
    "status": (StatusOfEvolution, status),
}
