"""Description of an algorithm."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from jaxrl.settings.aliases import listed


class Paper(NamedTuple):
    authors: str
    year: int
    source: str
    """arXiv number or DOI."""

    def __str__(self) -> str:
        return f"{self.authors} {self.year}"


class Entry(NamedTuple):
    """Description of an algorithm. Its module defines the ``builder``, ``config`` and ``hyperparams`` that are named here."""

    name: str
    """Name on the command line, ``jaxrl train NAME``; the builder is ``make_NAME``."""
    title: str
    """Name in text. Its letters and digits are the prefix of the class names, as in PPOConfig and PPOHyperparams."""
    line: str
    """Description in one line."""
    actions: tuple[str, ...]
    """Kinds of action spaces that the algorithm supports."""
    family: str
    """``on-policy``, ``replay``, ``dataset``, ``evolution``, or ``planning`` with the environment itself or a model of it."""
    memory: bool
    """Recurrent models are supported."""
    paper: Paper | None
    module: str
    network: str | None = None
    """Function of ``jaxrl.models`` that makes the default network. On the command line its arguments are ``--model``."""
    memoryless: bool = True
    """Models without memory are supported."""

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
        """Kinds of models that the algorithm supports, as text."""
        kinds = {"memoryless": self.memoryless, "recurrent": self.memory}
        return listed([kind for kind, takes in kinds.items() if takes])

    @property
    def help(self) -> str:
        return f"{self.line}; {self.takes} actions"

    def load(self) -> Loaded:
        """Import the algorithm's module.

        Raises:
          ValueError: the module lacks an object that is named by this entry.
        """
        module, names = importlib.import_module(self.module), (self.builder, self.config, self.hyperparams)
        if lacking := [name for name in names if not hasattr(module, name)]:
            raise ValueError(
                f"{self.module} lacks {', '.join(lacking)}, as named by name={self.name!r} and title={self.title!r} of its "
                "Entry: define it, or correct the Entry"
            )
        return Loaded(*(getattr(module, name) for name in names))


class Loaded(NamedTuple):
    """Objects of an algorithm's module: the builder and the classes of its settings."""

    make: Any
    config: Any
    hyperparams: Any
