"""``jaxrl train --resume FOLDER``: a run goes on."""

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
    """Go on with a run that was stopped or killed, from its last checkpoint. Its settings are in its config.json."""

    resume: Annotated[str, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the run."""
    total_steps: Annotated[Count | None, shown_as("INT", "the run's own")] = None
    """More than the run's own make it longer, also when it has ended: rows per seed in all."""
    trust: Trust = ()
    """A package or module of yours that the run uses, such as its environment's: its code may run. Again for more of them."""
    devices_per_seed: Annotated[Count | None, shown_as("INT", "the run's own, if there are as many")] = None
    """Devices that share out the environments of each seed."""
    quiet: Flag = False
    """Show nothing but errors."""
    distributed: Flag = False
    """Train together with the other tasks of this job."""


def refuse_other_settings(args: Sequence[str]) -> None:
    """Say what can be changed where a run goes on: its length, and nothing that it learns with."""
    allowed = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(ResumeOptions)]
    given = [arg.partition("=")[0] for arg in args if arg.startswith("--") or arg in ALGORITHMS]
    folders = [after for arg, after in itertools.pairwise(args) if arg == "--resume"]
    for word in given:
        if word.replace("_", "-") not in [*allowed, "--help", *folders]:
            raise ValueError(
                f"{word} cannot be given where a run goes on, which takes its settings from its folder: --resume goes with "
                f"{', '.join(allowed[1:])}. To train with other settings from what it learnt: jaxrl train ALGORITHM --env ENV … "
                "--init-from FOLDER"
            )


def parse_resume(args: Sequence[str]) -> ResumeOptions:
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
