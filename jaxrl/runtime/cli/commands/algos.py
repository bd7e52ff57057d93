"""``jaxrl algos``: list the algorithms, or all settings of one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import tyro

from jaxrl.algorithms.presets import PRESETS
from jaxrl.registry import ALGORITHMS, Entry, setting_names, unknown_algorithm
from jaxrl.runtime.cli.flags import field_docs, read_flags, shown_as
from jaxrl.runtime.cli.user_code import import_algorithm
from jaxrl.runtime.console.tables import show_table
from jaxrl.settings.docstrings import entries

HELP = """\
List the algorithms, or all settings of one: their defaults, allowed values and
meaning.

try:
  jaxrl algos ppo
"""


@dataclasses.dataclass(frozen=True)
class Options:
    name: Annotated[tyro.conf.Positional[str | None], shown_as("[NAME]")] = None
    """Show the settings of this algorithm."""


def main(args: Sequence[str]) -> int:
    name = read_flags(Options, args, prog="jaxrl algos", description=HELP).name
    if name is None:
        list_algorithms()
        return 0
    import_algorithm(name)
    if name not in ALGORITHMS:
        raise unknown_algorithm(name)
    show_algorithm(name, ALGORITHMS[name])
    return 0


def file_of(entry: Entry) -> str:
    return f"{entry.module.replace('.', '/')}.py"


def list_algorithms() -> None:
    columns = ("name", "what", "actions", "family", "paper", "builder", "file")
    rows = [
        (name, entry.line, entry.takes, entry.family, str(entry.paper or ""), entry.builder, file_of(entry))
        for name, entry in ALGORITHMS.items()
    ]
    show_table(columns, rows, fixed=(0, 5, 6))
    print(f"\n{len(ALGORITHMS)} algorithms. jaxrl algos NAME shows the settings of one.")


def show_algorithm(name: str, entry: Entry) -> None:
    algorithm, paper = entry.load(), entry.paper
    presets = [preset for preset in PRESETS.values() if preset.algorithm == name]
    home = "jaxrl" if entry.module.startswith("jaxrl.") else entry.module
    print(f"{entry.title}: {entry.line}\n")
    show_table(
        None,
        [
            ("actions", entry.takes),
            ("family", f"{entry.family}, {entry.models} models"),
            *([("paper", f"{paper}, {paper.source}")] if paper else []),
            ("file", file_of(entry)),
            ("Python", f"{home}.{entry.builder}{_signature(algorithm.make)}"),
            ("command", f"jaxrl train {name} --env ENV"),
            ("presets", ", ".join(preset.name + " (not measured)" * (not preset.score) for preset in presets) or "none"),
        ],
    )
    structure, data = setting_names(name)
    for heading, rows in (
        ("Config: structure; changing a value recompiles the program", settings(algorithm.config, structure)),
        (
            "Hyperparameters: data in the state; can be vmapped over and changed during a run",
            settings(algorithm.hyperparams, (*data, "total_steps")),
        ),
        ("Options: settings that belong together, as in make_dqn(env, head=C51(v_max=200))", options(algorithm.config)),
    ):
        if rows:
            print(f"\n{heading}")
            show_table(("setting", "default", "allowed", "what"), rows)
    from jaxrl.builder.networks import own_network  # which imports jax

    if (network := own_network(entry)) is not None:
        print(f"\nNetwork: arguments of jaxrl.models.{entry.network}; model={{name: value}}, or --model NAME=VALUE …")
        show_table(("argument", "default", "what"), arguments(network))


def _signature(builder: Any) -> inspect.Signature:
    """Return the parameters of the builder itself, without annotations."""
    parameters = inspect.signature(builder).parameters.values()
    return inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters])


def arguments(network: Any) -> list[tuple[str, str, str]]:
    """Return ``(name, default, description)`` of every argument of a network."""
    texts = {name: " ".join(text.replace("``", "").split()) for name, text in entries("Args", network).items()}
    parameters = [p for p in inspect.signature(network).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return [(p.name, str(p.default), texts[p.name]) for p in parameters]


def settings(source: type, names: Collection[str], defaults: Any = None) -> list[tuple[str, str, str, str]]:
    """Return ``(name, default, allowed values, description)`` of these fields of a Config, Hyperparams or option."""
    from jaxrl.settings.validation import in_words, setting_types

    defaults, texts, types = defaults or source(), field_docs(source), setting_types(source)
    return [(name, str(getattr(defaults, name)), in_words(types[name]), texts.get(name, "")) for name in names]


def options(config: type) -> list[tuple[str, str, str, str]]:
    """Return the same of the options of a Config, each followed by its fields."""
    from jaxrl.settings.options import dotted_names, option_fields

    rows, texts, defaults = [], field_docs(config), config()
    for name, kinds in option_fields(config).items():
        words = [kind.name if kind else "none" for kind in kinds]
        default = getattr(defaults, name)
        rows.append((name, default.name if default else "none", f"one of {', '.join(words)}", texts.get(name, "")))
        for dotted, having in dotted_names(config).items():
            if dotted.startswith(f"{name}."):
                shown = default if type(default) in having else having[0]()
                ((_, value, allowed, text),) = settings(having[0], [dotted.partition(".")[2]], shown)
                rows.append((dotted, value, allowed, f"{', '.join(kind.__name__ for kind in having)}: {text}"))
    return rows
