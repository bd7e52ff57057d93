"""Flags of a run. The settings of ``RunConfig`` are flags with their defaults and docstrings; the others are listed here."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from jaxrl.runtime.cli.flags import Count, Flag, field_docs, shown_as

IN_WORDS = {
    "eval_every": "about 20 evaluations per run, in a quarter of the rows",
    "chunk_iterations": "about 50 chunks per run",
    "num_workers": "none, or with a scheme one less than cores",
    "devices_per_seed": "1, or more if devices would be idle",
}
"""Defaults that a run computes."""

CHOSEN = {"engine": "{local,ray}", "placement": "{pack,spread}"}
"""Choices that a scheme makes unless the flag is given."""


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Environment, length, logging and output of the run."""

    env: str
    """Environment: 'name' (gymnax), 'backend:name', or 'module:function'; options and wrappers may follow, as in
    'CartPole-v1?gravity=5.0|time_limit(200)'."""
    seeds: Annotated[str, tyro.conf.arg(metavar="N|S,S,…")] = "1"
    """Number of seeds (8 means 0 to 7), or the seeds themselves, separated by commas: 3,5,7 (a single one: 3,)."""
    total_steps: Count = 500_000
    """Environment rows per seed, rounded up to full iterations."""
    out: Annotated[str | None, shown_as("FOLDER", "runs/ALGORITHM-ENV, numbered if it exists")] = None
    """Folder for the results: new, empty, or that of the same run, which is then resumed."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Take environment, seeds, steps and settings from a preset (jaxrl presets), or from a file such as the best.toml of a
    search; other flags override it."""
    exact_steps: Flag = False
    """Raise an error if total_steps is not a multiple of the rows of an iteration, instead of rounding it up."""
    init_from: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Start with those parameters of another run that fit."""
    init_which: Literal["best", "last"] = "best"
    """For --init-from: the policies of the best evaluation, or the last checkpoint."""
    quiet: Flag = False
    """Print only errors."""
    distributed: Flag = False
    """Train together with the other tasks of this job, started by srun or mpirun. Not needed with jaxrl launch."""


@functools.cache
def run_flags() -> type[RunOptions]:
    """Return ``RunOptions`` with the settings of ``RunConfig`` as further fields, for tyro."""
    from jaxrl.runtime.actors.scheme import SCHEMES
    from jaxrl.runtime.remote.cluster import ENGINES, PLACEMENTS
    from jaxrl.runtime.samplers.by_name import SAMPLERS
    from jaxrl.runtime.training_loop.run_config import ON_NAN, RunConfig, setting_fields

    choices: dict[str, Iterable[str]] = {"on_nan": ON_NAN, "sampler": SAMPLERS, "scheme": SCHEMES}
    choices |= {"engine": ENGINES, "placement": PLACEMENTS}
    listed = {field.name for field in dataclasses.fields(RunOptions)}
    flags = []
    for name, (group, field) in setting_fields(RunConfig).items():
        if name not in listed and name != "hyperparams":
            type_ = Literal[tuple(choices[name])] if name in choices else get_type_hints(group)[name]
            text = field_docs(group)  # type: ignore[arg-type] # a class is hashable
            flags.append((name, _flag(name, type_, field.default, text), dataclasses.field(default=field.default)))
    made = dataclasses.make_dataclass("RunFlags", flags, bases=(RunOptions,), frozen=True)
    made.__doc__ = RunOptions.__doc__
    return made


def _flag(name: str, type_: Any, default: Any, texts: Mapping[str, str]) -> Any:
    """Return the type of a flag for tyro, with its help."""
    shown: dict[str, Any] = {"help": texts[name]}
    if name in IN_WORDS:
        shown |= {"metavar": "INT", "help_behavior_hint": f"(default: {IN_WORDS[name]})"}
    if name in CHOSEN:
        shown |= {"metavar": CHOSEN[name], "help_behavior_hint": "(default: the first, or the scheme's)"}
    if type_ is bool and not default:
        type_ = Flag
    elif type_ in (int, int | None):
        type_ = Count
    elif name == "wandb":
        shown["metavar"] = "PROJECT"
    return Annotated[type_ | None if default is None else type_, tyro.conf.arg(**shown)]
