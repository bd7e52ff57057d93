"""A preset: environment, settings and length of training, with the measured score or the publication they are from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl.registry import OTHER_NETWORKS


class Score(NamedTuple):
    """Score of the final parameters: mean greedy return over 128 episodes per seed (``eval_episodes``), or share of games."""

    mean: float
    low: float
    """Lower end of the 95 % bootstrap interval of the mean over seeds; ``high`` is the upper end."""
    high: float
    train_seconds: int
    """Training time of all seeds together, without compilation."""
    hardware: str

    def __str__(self) -> str:
        return interval_text(self.mean, self.low, self.high)


def interval_text(mean: float, low: float, high: float) -> str:
    """Format a mean return with its interval, as in "498.4 [495.1, 500.0]"; returns below 10 have two decimals."""
    return f"{shown(mean, mean)} [{shown(low, mean)}, {shown(high, mean)}]"


def shown(value: float, mean: float) -> str:
    """Format a return with the number of decimals used for the mean."""
    return f"{value:.{1 if abs(mean) >= 10 else 2}f}"


class Preset(NamedTuple):
    """Settings for an algorithm and an environment, with the score reached. ``benchmarks`` trains with the same settings."""

    name: str
    algorithm: str
    """Name of the algorithm in ``jaxrl train``."""
    env: str
    settings: dict[str, Any]
    """Builder keywords that differ from the defaults, as plain data: an option is its name, or a mapping of its fields."""
    total_steps: int
    """Environment steps per seed, or updates with ``dataset``."""
    num_seeds: int
    score: Score | None = None
    """None if it was not measured here."""
    threshold: float | None = None
    """Score that a measurement must reach: by the mean over seeds, or by ``passing_seeds`` of the seeds. None if unknown."""
    passing_seeds: int | None = None
    published: str = ""
    """Source of the settings, if they were not measured here."""
    dataset: str = ""
    """Dataset to learn from, of those that ``python -m benchmarks datasets`` makes in jaxrl's repository. Steps are updates then.
    Empty: the agent collects its rows."""
    run: dict[str, Any] = {}  # noqa: RUF012
    """Further flags of ``jaxrl train``, such as ``eval_episodes``, over which the score is a mean too."""
    against: str = ""
    """Player of ``jaxrl.arena``: the score is the share of the games against it that are not lost, half of them from each side.
    Empty: it is the greedy return."""

    @property
    def result(self) -> str:
        """The score as text."""
        games = f" not lost to {self.against}" if self.against else ""
        return "not measured" if self.score is None else f"{self.score}{games}"

    @property
    def kind(self) -> str:
        """Kind of score, in words."""
        return f"share of games not lost to {self.against}" if self.against else "mean greedy return"

    @property
    def source(self) -> str:
        """Path of the measurement in jaxrl's repository: all seeds' scores, settings, versions, hardware and learning curve."""
        return f"benchmarks/results/scores/{self.name}.json"

    @property
    def data(self) -> str | None:
        """Path of the dataset where it was made; None without one."""
        return f"datasets/{self.dataset}.npz" if self.dataset else None

    @property
    def unit(self) -> str:
        """Unit of ``total_steps``."""
        return "updates" if self.dataset else "steps"

    def command(self) -> str:
        """Return the ``jaxrl train`` command with these settings as flags."""
        run: dict[str, Any] = {"env": self.env, "seeds": self.num_seeds, "total_steps": self.total_steps, **self.run}
        run |= {"data": self.data} if self.data else {}
        flags = [flag for name, value in (run | self.settings).items() for flag in _flags(name, value)]
        return " ".join([f"jaxrl train {self.algorithm}", *flags])


def _flags(name: str, value: Any) -> list[str]:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    if name in NETWORKS and isinstance(value, Mapping) and "name" not in value:  # MPC's dynamics are an option
        return [shlex.join([f"--{dashed}", *words(value)])]
    if isinstance(value, Mapping):  # an option
        fields = {f"{name}.{field}": x for field, x in value.items() if field != "name"}
        kind = {name: value["name"]} if "name" in value else {}
        return [shlex.join([f"--{each.replace('_', '-')}", str(x)]) for each, x in (kind | fields).items()]
    return [shlex.join([f"--{dashed}", str(value)])]


NETWORKS = ("model", *OTHER_NETWORKS)
"""Settings that are arguments of networks."""


def words(arguments: Mapping[str, Any]) -> list[str]:
    """Format each argument as ``NAME=VALUE``, as ``--model`` takes them."""
    return [f"{name}={_word(value)}" for name, value in arguments.items()]


def _word(value: Any) -> str:
    """Format a value; a sequence becomes ``64,64``, or ``64,`` with one entry."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) + "," * (len(value) == 1) or "()"
    return str(value)
