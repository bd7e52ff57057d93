"""Registry of algorithms. It is data: the module of an algorithm is imported when it is first needed.

The package, the command line, sweeps, the documentation, the benchmarks and the tests read ``ALGORITHMS``, so a new algorithm
needs one entry in it: see ``docs/howto/algorithm.md``.
"""

from __future__ import annotations

from jaxrl.registry.algorithms import ALGORITHMS
from jaxrl.registry.elsewhere import known_as
from jaxrl.registry.entry import Entry, Loaded, Paper
from jaxrl.settings.aliases import unknown

__all__ = [
    "ALGORITHMS",
    "OTHER_NETWORKS",
    "Entry",
    "Loaded",
    "Paper",
    "known_as",
    "setting_names",
    "title_of",
    "unknown_algorithm",
]

OTHER_NETWORKS = {"critic": "action_value", "dynamics": "latent_dynamics", "prediction": "latent_prediction"}
"""Keyword of builders for a network other than ``model`` -> the function of ``jaxrl.models`` that makes it by default."""


def unknown_algorithm(name: str) -> ValueError | TypeError:
    """Return the error for a name that is not in ``ALGORITHMS``."""
    if (plain := name.lower()) in ALGORITHMS:
        return ValueError(f"unknown algorithm {name!r}: write {plain}")
    if found := known_as(name):
        algorithm, flags = found
        return ValueError(f"{name} is {ALGORITHMS[algorithm].title} here: jaxrl train {algorithm} --env ENV {flags}".rstrip())
    return unknown("algorithm", name, list(ALGORITHMS))


def setting_names(algorithm: str) -> tuple[list[str], list[str]]:
    """Return the names of an algorithm's structural settings and of its hyperparameters, except options, their fields, and
    ``total_steps``."""
    from jaxrl.settings.options import held_by_options, option_fields  # which import numpy

    _, config, hyperparams = ALGORITHMS[algorithm].load()
    options, held = option_fields(config), {*held_by_options(config), "total_steps"}
    structure = [name for name in config.__dataclass_fields__ if name not in options]
    return structure, [name for name in hyperparams._fields if name not in held]


def title_of(builder: str) -> str:
    """Return the title for a builder's name, "PPO" for ``make_ppo``; for a custom builder, its name."""
    titles = {entry.builder: entry.title for entry in ALGORITHMS.values()}
    return titles.get(builder, builder.removeprefix("make_"))
