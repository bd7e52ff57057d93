"""``jaxrl algos``: the algorithms, and all settings of one."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from jaxrl.algorithms import ALGORITHMS, Entry
from jaxrl.names import unknown
from jaxrl.runtime.cli.train import field_docs
from jaxrl.runtime.presets import PRESETS
from jaxrl.runtime.screen.tables import show_table

CITATION = re.compile(r"\(([^()]*\b(?:19|20)\d\d)\)")


HELP = """\
List the algorithms; or, of one, all settings: their defaults, the values that
they may have, and what they do.

try:
  jaxrl algos ppo
"""


@dataclasses.dataclass(frozen=True)
class Options:
    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[NAME]", help_behavior_hint="")] = None
    """Show the settings of this algorithm."""


def main(args: Sequence[str]) -> int:
    name = tyro.cli(Options, prog="jaxrl algos", description=HELP, args=list(args)).name
    if name is None:
        list_algorithms()
    elif name in ALGORITHMS:
        show_algorithm(name, ALGORITHMS[name])
    else:
        raise unknown("algorithm", name, list(ALGORITHMS))
    return 0


class About(NamedTuple):
    """What an algorithm's own file and entry say of it."""

    what: str
    actions: str
    paper: str
    file: str
    text: str
    """The first paragraph of the file's docstring."""


def about(entry: Entry) -> About:
    """Read without importing the algorithm, and so without JAX."""
    spec = importlib.util.find_spec(entry.module)
    assert spec is not None and spec.origin is not None, f"{entry.module} is part of jaxrl"
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    text = " ".join(docstring.partition("\n\n")[0].split())
    what, _, actions = entry.help.partition(";")
    paper = CITATION.search(text)
    return About(
        what, actions.strip().removesuffix(" actions"), paper[1] if paper else "", f"{entry.module.replace('.', '/')}.py", text
    )


def list_algorithms() -> None:
    columns = ("name", "what", "actions", "paper", "builder", "file")
    rows = []
    for name, entry in ALGORITHMS.items():
        known = about(entry)
        rows.append((name, known.what, known.actions, known.paper, entry.builder, known.file))
    show_table(columns, rows, fixed=(0, 4, 5))
    print(f"\n{len(ALGORITHMS)} algorithms. jaxrl algos NAME shows the settings of one.")


def show_algorithm(name: str, entry: Entry) -> None:
    module, known = importlib.import_module(entry.module), about(entry)
    builder = getattr(module, entry.builder)
    print(f"{known.text}\n")
    show_table(
        None,
        [
            ("actions", known.actions),
            ("file", known.file),
            ("Python", f"jaxrl.{entry.builder}({', '.join(_parts(builder))}, **settings)"),
            ("command", f"jaxrl train {name} --env ENV"),
            ("presets", ", ".join(preset.name for preset in PRESETS.values() if preset.algorithm == name) or "none"),
        ],
    )
    for heading, source in (
        ("Config: structure; another value compiles another program", getattr(module, entry.config)),
        ("Hyperparameters: data in the state; vmap over them, change them mid-run", getattr(module, entry.hyperparams)),
    ):
        print(f"\n{heading}")
        show_table(("setting", "default", "allowed", "what"), settings(source))


def _parts(builder: Any) -> list[str]:
    """The builder's own parameters, without annotations."""
    parameters = inspect.signature(builder).parameters.values()
    shown = [
        str(parameter.replace(annotation=parameter.empty))
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    first = next((i for i, parameter in enumerate(parameters) if parameter.kind is parameter.KEYWORD_ONLY), len(shown))
    return [*shown[:first], *(["*"] if first < len(shown) else []), *shown[first:]]


def settings(source: type) -> list[tuple[str, str, str, str]]:
    """``(name, default, allowed, what)`` of every field of a Config or Hyperparams."""
    from jaxrl.config import in_words, setting_types

    types, texts = setting_types(source), field_docs(source)
    if dataclasses.is_dataclass(source):
        defaults = {field.name: field.default for field in dataclasses.fields(source)}
    else:
        defaults = dict(source._field_defaults)  # type: ignore[attr-defined]
    return [(field, str(default), in_words(types[field]), texts.get(field, "")) for field, default in defaults.items()]
