"""``jaxrl train --resume FOLDER``: resume a run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.cli.flags import Count, Flag, Trust, read_flags, shown_as
from jaxrl.runtime.cli.group import join_group
from jaxrl.runtime.cli.user_code import import_trusted


@dataclasses.dataclass(frozen=True)
class ResumeOptions:
    """Resume a run that was stopped or killed, from its last checkpoint. Settings are read from its config.json."""

    resume: Annotated[str, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the run."""
    total_steps: Annotated[Count | None, shown_as("INT", "as before")] = None
    """Total rows per seed. A larger number than before extends the run, even if it has ended."""
    trust: Trust = ()
    """Package or module that the run may import and execute, such as that of your environment. Can be repeated."""
    devices_per_seed: Annotated[Count | None, shown_as("INT", "as before, if available")] = None
    """Number of devices over which the environments of each seed are sharded."""
    quiet: Flag = False
    """Print only errors."""
    distributed: Flag = False
    """Train together with the other tasks of this job."""


def refuse_other_settings(args: Sequence[str]) -> None:
    """Raise ValueError for settings that cannot change when a run is resumed; only its length and resources can."""
    allowed = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(ResumeOptions)]
    words = [arg.partition("=")[0] for arg in args if arg.startswith("--") or arg in ALGORITHMS]
    folders = [after for arg, after in itertools.pairwise(args) if arg == "--resume"]
    for word in words:
        if word.replace("_", "-") not in [*allowed, "--help", *folders]:
            raise ValueError(
                f"{word} cannot be combined with --resume, which reads the settings from the run's folder. Allowed are "
                f"{', '.join(allowed[1:])}. To train its parameters with other settings: jaxrl train ALGORITHM --env ENV … "
                "--init-from FOLDER"
            )


def parse_resume(args: Sequence[str]) -> ResumeOptions:
    if {"-h", "--help"} & {*args}:
        args = ["--help"]  # also without a folder
    refuse_other_settings(args)
    return read_flags(ResumeOptions, args, prog="jaxrl train")


def resume(args: Sequence[str]) -> int:
    options = parse_resume(args)
    join_group(options.distributed, options.resume)
    from jaxrl.runtime.logs.run_folder import read_config
    from jaxrl.runtime.run import resume as go_on
    from jaxrl.runtime.system.devices import request_devices_for

    spec = read_config(options.resume)["agent"]
    request_devices_for([str(spec.get("env"))])
    import_trusted(spec, options.trust)
    go_on(
        options.resume,
        total_steps=options.total_steps,
        devices_per_seed=options.devices_per_seed,
        trust=options.trust,
        quiet=options.quiet,
    )
    return 0
