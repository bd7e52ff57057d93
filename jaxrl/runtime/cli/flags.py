"""Parsing of flags, shared by all commands."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, TextIO, TypeVar, cast, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from jaxrl.algorithms.presets import words
from jaxrl.runtime.console.tables import folded
from jaxrl.settings.aliases import instead_of, translate_alias

T = TypeVar("T")


def read_flags(
    source: Callable[..., T], args: Sequence[str], *, prog: str, description: str | None = None, config: Sequence[Any] = ()
) -> T:
    """Parse the flags of a command as ``source`` expects them: a dataclass, or a function whose arguments are dataclasses.

    Raises:
      ValueError: a flag is wrong; the message, a single line, names the problem and the nearest flag.
      SystemExit: help was requested and printed.

    Args:
      description: of the command, for its help; default: the docstring of ``source``.
      config: tyro configuration for all flags.
    """
    with contextlib.redirect_stdout(cast(TextIO, _Folding())), contextlib.redirect_stderr(io.StringIO()) as framed:
        try:
            return tyro.cli(source, prog=prog, description=description, args=list(args), config=tuple(config))
        except SystemExit as end:
            if not end.code:
                raise
            raise ValueError(f"{in_a_line(framed.getvalue())}. See {prog} --help") from None


SEPARATORS, BULLET = "─-", "• "


def in_a_line(framed: str) -> str:
    """Extract the problem with the flags from the box that tyro prints: its first part, and the suggested flags of the second.

    The box has a title, a border column (blank if the terminal lacks the characters), an empty column, and horizontal lines.
    """
    rows = [text for row in framed.splitlines()[1:] if (text := row[2:].rstrip("│ "))]
    parts = [list(group) for is_separator, group in itertools.groupby(rows, key=_is_separator) if not is_separator]
    if not parts:
        return " ".join(framed.split())
    said = [parts[0], *(part for part in parts[1:] if part[0].startswith("Unrecognized"))]
    problem = "; ".join(map(_problem, said))
    hints = [row.split()[0] for part in parts[1:] if part[0].startswith("Perhaps") for row in part[1:] if _indent(row) == NAMED]
    return f"{problem} (did you mean {' or '.join(dict.fromkeys(hints))}?)" if hints else problem


def _problem(part: list[str]) -> str:
    rows = [row for row in part if _indent(row) <= NAMED] if part[0].startswith("Missing") else part
    text = " ".join(row.strip().removeprefix(BULLET) for row in rows)
    if "Got errors:" in text:  # one for each possible type; the last is that of a value
        text = f"{text.partition(':')[0]}: {re.split(r'(?:>|[)]]): ', text)[-1]}"
    return text.rstrip(" .")


NAMED = 4
"""Indent of names in a box; their descriptions are indented further."""


def _is_separator(row: str) -> bool:
    """Return whether a row is a line between two parts, or the bottom border."""
    return not row.strip(SEPARATORS + "╰╯ ")


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


class _Folding:
    """stdout that folds paragraphs: tyro folds the text in boxes, but prints each paragraph of the description as one line."""

    def __init__(self) -> None:
        self._stream = sys.stdout

    def write(self, text: str) -> int:
        return self._stream.write(folded(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def parse_count(text: str) -> int:
    """Parse an integer, including ``"1e5"`` and ``"100_000"``. Raise ValueError for anything else, such as ``"1.5"``."""
    from jaxrl.settings.validation import whole

    for read in (int, lambda text: whole(float(text))):
        with contextlib.suppress(ValueError):
            if isinstance(number := read(text), int):
                return number
    raise ValueError(f"{text!r} is not an integer")


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
"""An integer, written as 100000, 100_000 or 1e5."""


def parse_arguments(written: Sequence[str]) -> dict[str, Any]:
    """Parse ``core=gru hidden_sizes=64,64`` into a mapping."""
    found: dict[str, Any] = {}
    for word in written:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise ValueError(f"{word!r} must be NAME=VALUE, such as core=gru or hidden_sizes=64,64")
        if name in found:
            raise ValueError(f"{name} is given twice")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):  # a word, not a number
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
"""A flag without a --no-… form; False unless given."""


def shown_as(metavar: str, default: str = "") -> Any:
    """Configure the help of a flag whose default is computed or absent."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=default and f"(default: {default})")


Trust = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, shown_as("PACKAGE", "none")]
"""Packages or modules outside jaxrl that loaded files may import; the flag may be repeated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """Options for playing saved policies."""

    episodes: Count = 1
    max_steps: Count | None = None
    which: Literal["best", "last"] = "best"
    """Policies of the run's best evaluation (by the mean over its seeds), or of its last checkpoint."""
    explore: Flag = False
    """Sample actions as in training, instead of acting greedily."""
    env: Annotated[str | None, shown_as("ENV", "the run's environment")] = None
    """Play in this environment; it must have the same observations and actions."""
    trust: Trust = ()
    """Package or module that the run may import and execute, such as that of your environment. Can be repeated."""
    eval_seed: Count = 0
    """Seed of the episodes."""

    def check(self) -> None:
        """Raise ValueError for an option outside its range, before anything is loaded."""
        from jaxrl.settings.validation import check_count, check_seed

        check_count("episodes", self.episodes)
        if self.max_steps is not None:
            check_count("max_steps", self.max_steps)
        check_seed("eval_seed", self.eval_seed)


def refuse_switch_values(args: Sequence[str], switches: Collection[str]) -> None:
    """Raise ValueError for one of ``switches``, named as in Python, that is given a value, as in ``--anneal false``."""
    for arg, value in itertools.pairwise([*args, ""]):
        flag, equals, joined = arg.partition("=")
        if flag.startswith("--") and flag[2:].replace("-", "_").removeprefix("no_") in switches:
            received = (joined if equals else value).lower()
            if received in ("true", "false", "yes", "no", "1", "0", "on", "off") or equals:
                name = flag[2:].replace("_", "-").removeprefix("no-")
                raise ValueError(f"--{name} is a switch and takes no value, but got {received!r}: write --{name} or --no-{name}")


def refuse_foreign_flags(args: Sequence[str], allowed: Collection[str]) -> None:
    """Raise ValueError for a flag of another library, with its name in jaxrl, one of ``allowed``, or an alternative."""
    flags = [arg[2:].partition("=")[0] for arg in args if arg.startswith("--")]
    for flag in flags:
        name = flag.replace("-", "_").removeprefix("no_")
        if name not in allowed and (found := translate_alias(name, allowed)):
            here, note = found
            no = "no-" * flag.startswith(("no-", "no_"))
            raise ValueError(f"--{flag} is called --{no}{here.replace('_', '-')} here{note and f': {note}'}")
        if name not in allowed and (alternative := instead_of(name, allowed)):
            raise ValueError(f"there is no --{flag}: {alternative}")


@functools.cache
def field_docs(source: type) -> Mapping[str, str]:
    """Return the docstrings of the fields of a dataclass or NamedTuple: strings in their types or below them, also of bases."""
    types = get_type_hints(source, include_extras=True)
    docs = {name: text for name, type_ in types.items() for text in getattr(type_, "__metadata__", ()) if isinstance(text, str)}
    for base in source.__bases__:
        docs |= field_docs(base) if dataclasses.is_dataclass(base) else {}
    body = ast.parse(textwrap.dedent(inspect.getsource(source))).body[0].body  # type: ignore[attr-defined]
    for field, after in itertools.pairwise(body):
        text = after.value if isinstance(after, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Constant):
            docs[field.target.id] = str(text.value)
    return {name: " ".join(text.replace("``", "").split()) for name, text in docs.items()}
