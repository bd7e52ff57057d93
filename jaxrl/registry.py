"""The registry of algorithms, as data: an algorithm's file is imported when it is asked for.

The package's face, the command line, sweeps, the documentation, the benchmarks and the tests read ``ALGORITHMS``, so a new
algorithm is one entry here: ``docs/howto/algorithm.md``.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from jaxrl.settings.aliases import listed, unknown


class Paper(NamedTuple):
    authors: str
    year: int
    source: str
    """Its arXiv number or DOI."""

    def __str__(self) -> str:
        return f"{self.authors} {self.year}"


class Entry(NamedTuple):
    """What is known of an algorithm without importing its file, which defines ``builder``, ``config`` and ``hyperparams``."""

    name: str
    """As ``jaxrl train`` has it; the builder is ``make_NAME``."""
    title: str
    """As people write it; its letters and digits begin the names of the classes, PPOConfig and PPOHyperparams."""
    line: str
    """What it is, in a line."""
    actions: tuple[str, ...]
    """Kinds of action spaces that it takes."""
    family: str
    """``on-policy`` or ``replay``."""
    memory: bool
    """Whether it trains recurrent models."""
    paper: Paper | None
    module: str
    network: str | None = None
    """Function of ``jaxrl.models`` that makes its own network: the command line and sweeps take its arguments as ``model``."""
    memoryless: bool = True
    """Whether it trains models without memory."""

    @property
    def builder(self) -> str:
        return f"make_{self.name}"

    @property
    def config(self) -> str:
        return f"{self._stem}Config"

    @property
    def hyperparams(self) -> str:
        return f"{self._stem}Hyperparams"

    @property
    def _stem(self) -> str:
        return "".join(filter(str.isalnum, self.title))

    @property
    def takes(self) -> str:
        return listed(self.actions)

    @property
    def models(self) -> str:
        """The kinds of models that it trains."""
        kinds = {"memoryless": self.memoryless, "recurrent": self.memory}
        return listed([kind for kind, takes in kinds.items() if takes])

    @property
    def help(self) -> str:
        return f"{self.line}; {self.takes} actions"

    def load(self) -> Loaded:
        """Import the file.

        Raises:
          ValueError: it lacks what this entry's name and title stand for.
        """
        module, names = importlib.import_module(self.module), (self.builder, self.config, self.hyperparams)
        if lacking := [name for name in names if not hasattr(module, name)]:
            raise ValueError(
                f"{self.module} lacks {', '.join(lacking)}: so name={self.name!r} and title={self.title!r} of its Entry have it"
            )
        return Loaded(*(getattr(module, name) for name in names))


class Loaded(NamedTuple):
    """What the file of an algorithm offers to whoever has only its name."""

    make: Any
    config: Any
    hyperparams: Any


ALGORITHMS = {
    entry.name: entry
    for entry in (
        Entry(
            "ppo",
            "PPO",
            "proximal policy optimisation",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Schulman et al.", 2017, "arXiv:1707.06347"),
            module="jaxrl.algorithms.ppo",
            network="actor_critic",
        ),
        Entry(
            "a2c",
            "A2C",
            "advantage actor-critic, synchronous",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Mnih et al.", 2016, "arXiv:1602.01783"),
            module="jaxrl.algorithms.a2c",
            network="actor_critic",
        ),
        Entry(
            "impala",
            "IMPALA",
            "actor-critic by V-trace, from rollouts of older policies too",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Espeholt et al.", 2018, "arXiv:1802.01561"),
            module="jaxrl.algorithms.impala",
            network="actor_critic",
        ),
        Entry(
            "reinforce",
            "REINFORCE",
            "policy gradient by the returns of whole episodes",
            actions=("Discrete", "MultiDiscrete", "Box"),
            family="on-policy",
            memory=True,
            paper=Paper("Williams", 1992, "doi:10.1007/BF00992696"),
            module="jaxrl.algorithms.reinforce",
            network="actor_critic",
        ),
        Entry(
            "dqn",
            "DQN",
            "deep Q-learning with uniform replay",
            actions=("Discrete",),
            family="replay",
            memory=False,
            paper=Paper("Mnih et al.", 2015, "doi:10.1038/nature14236"),
            module="jaxrl.algorithms.dqn",
            network="q_network",
        ),
        Entry(
            "pqn",
            "PQN",
            "parallelised Q-learning by λ-returns, without replay",
            actions=("Discrete",),
            family="on-policy",
            memory=False,
            paper=Paper("Gallici et al.", 2024, "arXiv:2407.04811"),
            module="jaxrl.algorithms.pqn",
            network="q_network",
        ),
        Entry(
            "r2d2",
            "R2D2",
            "recurrent Q-learning from prioritised sequences",
            actions=("Discrete",),
            family="replay",
            memory=True,
            paper=Paper("Kapturowski et al.", 2019, "openreview:r1lyTjAqYX"),
            module="jaxrl.algorithms.r2d2",
            network="q_network",
            memoryless=False,
        ),
        Entry(
            "sac",
            "SAC",
            "soft actor-critic, with an ensemble of critics",
            actions=("Box", "Discrete"),
            family="replay",
            memory=False,
            paper=Paper("Haarnoja et al.", 2018, "arXiv:1812.05905"),
            module="jaxrl.algorithms.sac",
            network="policy_network",
        ),
        Entry(
            "td3",
            "TD3",
            "twin delayed deep deterministic policy gradient",
            actions=("Box",),
            family="replay",
            memory=False,
            paper=Paper("Fujimoto et al.", 2018, "arXiv:1802.09477"),
            module="jaxrl.algorithms.td3",
            network="deterministic_policy",
        ),
        Entry(
            "ddpg",
            "DDPG",
            "deep deterministic policy gradient",
            actions=("Box",),
            family="replay",
            memory=False,
            paper=Paper("Lillicrap et al.", 2016, "arXiv:1509.02971"),
            module="jaxrl.algorithms.ddpg",
            network="deterministic_policy",
        ),
    )
}


_ELSEWHERE: dict[str, tuple[str, str]] = {
    "rainbow": (
        "dqn",
        "--head c51 --dueling --noisy --epsilon-start 0 --epsilon-end 0 --n-step 3 --prioritized --priority-exponent 0.5 "
        "--learning-rate 1e-3 --adam-eps 1.5e-4",
    ),
    "c51": ("dqn", "--head c51"),
    "qrdqn": ("dqn", "--head qr"),
    "iqn": ("dqn", "--head iqn"),
    "ddqn": ("dqn", "--double"),
    "duelingdqn": ("dqn", "--dueling"),
    "noisydqn": ("dqn", "--noisy"),
    "per": ("dqn", "--prioritized"),
    "apex": ("dqn", "--prioritized --scheme apex"),
    "apexdqn": ("dqn", "--prioritized --scheme apex"),
    "drqn": ("r2d2", ""),
    "ppo2": ("ppo", ""),
    "ppocontinuous": ("ppo", ""),
    "recurrentppo": ("ppo", "--model core=lstm"),
    "ppolstm": ("ppo", "--model core=lstm"),
    "ddppo": ("ppo", "--scheme ddppo"),
    "a3c": ("a2c", "--scheme a3c"),
    "ga3c": ("a2c", "--scheme ga3c"),
    "vpg": ("reinforce", ""),
    "policygradient": ("reinforce", ""),
    "her": ("sac", "--hindsight future"),
    "tqc": ("sac", "--num-critics 5 --num-quantiles 25 --dropped-quantiles 2 --actor-value mean"),
    "redq": ("sac", "--num-critics 10 --num-target-critics 2 --actor-value mean --replay-ratio 5120 --policy-delay 20"),
    "droq": (
        "sac",
        "--critic-dropout 0.01 --critic-layer-norm --actor-value mean --replay-ratio 5120 --policy-delay 20",
    ),
}
"""Algorithms of other libraries that are settings here: name, without dashes -> algorithm, and the flags that make it."""


def known_as(name: str) -> tuple[str, str] | None:
    """``(algorithm, flags)`` of what other libraries call ``name``; None where it is nothing of the kind."""
    return _ELSEWHERE.get("".join(filter(str.isalnum, name.lower())))


def unknown_algorithm(name: str) -> ValueError | TypeError:
    """The error for a name that ``ALGORITHMS`` lacks."""
    if (plain := name.lower()) in ALGORITHMS:
        return ValueError(f"unknown algorithm {name!r}: write {plain}")
    if found := known_as(name):
        algorithm, flags = found
        return ValueError(f"{name} is {ALGORITHMS[algorithm].title} here: jaxrl train {algorithm} --env ENV {flags}".rstrip())
    return unknown("algorithm", name, list(ALGORITHMS))


def setting_names(algorithm: str) -> tuple[list[str], list[str]]:
    """The names of an algorithm's structural settings, and of its hyperparameters; without ``total_steps``, which a run sets."""
    rule = ALGORITHMS[algorithm].load()
    return list(rule.config.__dataclass_fields__), [name for name in rule.hyperparams._fields if name != "total_steps"]


def title_of(builder: str) -> str:
    """PPO for ``make_ppo``; for a builder of the user's own, its name."""
    titles = {entry.builder: entry.title for entry in ALGORITHMS.values()}
    return titles.get(builder, builder.removeprefix("make_"))
