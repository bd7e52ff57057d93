"""``jaxrl presets``: list settings with their scores, or print the command that trains with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxrl.algorithms.presets import PRESETS, Preset, find_preset
from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.cli.flags import read_flags, shown_as
from jaxrl.runtime.console.progress import short
from jaxrl.runtime.console.tables import show_table

HELP = """\
List presets with the scores that they reached, or print the full command of
one. The settings of a preset marked "not measured" are taken from a publication
and have not been trained with jaxrl.

jaxrl train ALGORITHM --preset NAME uses the environment, seeds, steps and
settings of a preset as defaults; other flags override them.

A score is the mean greedy return of each seed, or in a game of two players
the share of games that it does not lose, with the parameters at the end of
training, and its 95 % bootstrap interval over seeds. The measurements are in
the jaxrl repository, in benchmarks/results.

try:
  jaxrl presets ppo-cartpole
  jaxrl train ppo --preset ppo-cartpole --seeds 4
"""


@dataclasses.dataclass(frozen=True)
class Options:
    name: Annotated[tyro.conf.Positional[str | None], shown_as("[NAME]")] = None
    """Print the command of this preset, preceded by comments; the output can be piped to sh."""


def main(args: Sequence[str]) -> int:
    name = read_flags(Options, args, prog="jaxrl presets", description=HELP).name
    if name is None:
        list_presets()
    else:
        print_preset(find_preset(name))
    return 0


def list_presets() -> None:
    columns = ("preset", "algo", "environment", "steps", "seeds", "score [95 %]", "training")
    rows = [
        (
            preset.name,
            preset.algorithm,
            f"{preset.env}, {preset.dataset}" if preset.dataset else preset.env,
            short(preset.total_steps),
            str(preset.num_seeds),
            preset.result,
            f"{preset.score.train_seconds} s" if preset.score else "–",
        )
        for preset in PRESETS.values()
    ]
    show_table(columns, rows)
    print(f"\n{len(PRESETS)} presets; steps are per seed, and updates where a dataset is named.")
    print("jaxrl presets NAME prints the command of one.")


def print_preset(preset: Preset) -> None:
    score, title, seeds = preset.score, ALGORITHMS[preset.algorithm].title, "seeds" if preset.num_seeds > 1 else "seed"
    print(f"# {preset.name}: {title} on {preset.env}, {preset.num_seeds} {seeds} of {preset.total_steps:,} {preset.unit}")
    if preset.data:
        print(f"# needs {preset.data}, which python -m benchmarks datasets {preset.dataset} makes in jaxrl's repository")
    if score is None:
        print(f"# not measured; settings from {preset.published}")
    else:
        print(f"# score {preset.result} ({preset.kind} at the end, 95 % interval over seeds)")
        print(f"# trained in {score.train_seconds} s on {score.hardware}; {preset.source}")
    print(preset.command())
