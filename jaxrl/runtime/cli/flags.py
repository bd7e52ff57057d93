"""What the flags of several commands have in common."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from jaxrl.names import called_here
from jaxrl.presets import words


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


def parse_arguments(written: Sequence[str]) -> dict[str, Any]:
    """``core=gru hidden_sizes=64,64`` as a mapping."""
    found: dict[str, Any] = {}
    for word in written:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise ValueError(f"{word!r} must be NAME=VALUE, as in core=gru or hidden_sizes=64,64")
        if name in found:
            raise ValueError(f"{name} is given twice")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):  # a word, and no number
            found[name] = text
    return found


ModelWords = Annotated[
    dict[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE …",
        instance_from_str=parse_arguments,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=words,
    ),
]
"""Arguments of a network."""

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""False, unless it is given: there is no --no-… beside it."""


def shown_as(metavar: str, default: str = "") -> Any:
    """How help shows a flag whose default is worked out, or none."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=default and f"(default: {default})")


Trust = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, shown_as("PACKAGE", "none")]
"""Packages or modules outside jaxrl that what is loaded may import; the flag may be given several times."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """How saved policies play."""

    episodes: Count = 1
    max_steps: Count | None = None
    which: Literal["best", "last"] = "best"
    """Policies of the best evaluation of a run (by the mean over its seeds), or of its last checkpoint."""
    explore: Flag = False
    """Act as in training, drawing actions, instead of greedily."""
    env: Annotated[str | None, shown_as("ENV", "the run's own")] = None
    """Play in this environment; it must have the same observations and actions."""
    trust: Trust = ()
    """A package or module of yours that a run uses, such as its environment's: its code may run. Again for more of them."""
    eval_seed: Count = 0
    """Another number gives other episodes."""

    def check(self) -> None:
        """Refuse what cannot be done before anything is loaded."""
        from jaxrl.config import check_count

        check_count("episodes", self.episodes)
        if self.max_steps is not None:
            check_count("max_steps", self.max_steps)
        if not 0 <= self.eval_seed < 2**32:
            raise ValueError(f"eval_seed={self.eval_seed} is outside 0 … 2**32 - 1")


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
