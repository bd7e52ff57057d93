"""``jaxrl data FILE``: describe a dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxrl.runtime.cli.flags import Flag, read_flags, shown_as

HELP = """\
Describe a dataset: rows, episodes, their returns as a histogram, spaces, and how many rows per second are drawn from it.

try:
  jaxrl data expert.npz
  jaxrl data replays/ --env Pendulum-v1       a folder of files of jaxrl.save_replay, which hold no spaces
  jaxrl data minari:mujoco/hopper/expert-v0   a dataset of Minari on this machine
  jaxrl data halfcheetah-medium.hdf5          a file in D4RL's layout
  jaxrl data expert.npz --json
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of ``jaxrl data``."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """File, folder or minari:ID."""
    env: Annotated[str | None, shown_as("ENV", "the spaces in the file")] = None
    """Environment whose spaces the rows have."""
    json: Flag = False
    """Print the description as JSON."""


def main(args: Sequence[str]) -> int:
    """Print the description of a dataset."""
    options = read_flags(DataOptions, args or ["--help"], prog="jaxrl data", description=HELP)
    from jaxrl.runtime.cli.user_code import import_env_module
    from jaxrl.runtime.datasets.describe import description, in_lines
    from jaxrl.runtime.datasets.files import load_dataset

    import_env_module(options.env)
    found = description(load_dataset(options.file, options.env))
    if options.json:
        import json

        print(json.dumps(found))
    else:
        print("\n".join(in_lines(found)))
    return 0
