"""What the flags of several commands have in common."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Sequence
from typing import Annotated

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from jaxrl.names import called_here


def parse_count(text: str) -> int:
    """``"1e5"`` and ``"100_000"`` are integers too; ``"1.5"`` is none."""
    from jaxrl.config import whole

    for read in (int, lambda text: whole(float(text))):
        with contextlib.suppress(ValueError):
            if isinstance(number := read(text), int):
                return number
    raise ValueError(f"{text!r} is no integer")


Count = Annotated[
    int,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: parse_count(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""An integer, however it is written: 100000, 100_000 or 1e5."""

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""False, unless it is given: there is no --no-… beside it."""

Trust = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PACKAGE", help_behavior_hint="(default: none)")
]
"""Packages or modules outside jaxrl that what is loaded may import; the flag may be given several times."""


def check_eval_seed(eval_seed: int) -> None:
    """Refuse what is no seed of episodes."""
    if not 0 <= eval_seed < 2**32:
        raise ValueError(f"eval_seed={eval_seed} is outside 0 … 2**32 - 1")


def refuse_switch_values(args: Sequence[str], switches: Collection[str]) -> None:
    """Say how a switch is given, where it has a value, as in ``--anneal false``; ``switches`` are names as in Python."""
    for arg, value in itertools.pairwise([*args, ""]):
        flag, equals, joined = arg.partition("=")
        if flag.startswith("--") and flag[2:].replace("-", "_").removeprefix("no_") in switches:
            given = (joined if equals else value).lower()
            if given in ("true", "false", "yes", "no", "1", "0", "on", "off") or equals:
                name = flag[2:].replace("_", "-").removeprefix("no-")
                raise ValueError(f"--{name} is a switch, and takes no {given!r}: write --{name} or --no-{name}")


def refuse_foreign_flags(args: Sequence[str], allowed: Collection[str]) -> None:
    """Say what a flag of another library is called here; ``allowed`` are names as in Python."""
    flags = [arg[2:].partition("=")[0] for arg in args if arg.startswith("--")]
    for flag in flags:
        name = flag.replace("-", "_").removeprefix("no_")
        if name not in allowed and (found := called_here(name, allowed)):
            here, note = found
            no = "no-" * flag.startswith(("no-", "no_"))
            raise ValueError(f"--{flag} is called --{no}{here.replace('_', '-')} here{note and f': {note}'}")
