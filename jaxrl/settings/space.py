"""Ranges of settings that a search or a population tries, and their places in the unit interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.settings.aliases import hint_or, nearest
from jaxrl.settings.validation import check_number, check_switches

COMPLEMENT = "complement"
KEYS = ("low", "high", "log")


class Dimension(NamedTuple):
    """Values that a search tries for a setting."""

    name: str
    """Setting, in the words of the file."""
    low: float = 0.0
    high: float = 1.0
    log: bool | str = False
    """True: the logarithm is uniform. "complement": that of 1 − value is."""
    choices: tuple[Any, ...] = ()
    """Values of a choice, which has no range."""
    hyperparam: str | None = None
    """Hyperparameter that it is. None: it is structure, and each value needs a program."""

    @property
    def is_structure(self) -> bool:
        return self.hyperparam is None

    def to_line(self, value: float) -> float:
        """Return the place of a value on the line on which it is uniform."""
        return -math.log(1 - value) if self.log == COMPLEMENT else math.log(value) if self.log else value

    def from_line(self, place: Any, xp: Any = np) -> Any:
        """Invert ``to_line``. ``xp`` is ``jax.numpy`` in compiled programs."""
        value = 1 - xp.exp(-place) if self.log == COMPLEMENT else xp.exp(place) if self.log else place
        return xp.clip(value, self.low, self.high)

    @property
    def line(self) -> tuple[float, float]:
        """Ends of the range on that line."""
        return self.to_line(self.low), self.to_line(self.high)

    def at(self, place: float) -> Any:
        """Return the value at a place of the unit interval [0, 1)."""
        if self.choices:
            return self.choices[int(place * len(self.choices))]
        begin, end = self.line
        return float(self.from_line(begin + place * (end - begin)))


def read_range(name: str, values: Mapping[str, Any], check: Callable[[Any], object]) -> tuple[float, float, bool | str]:
    """Return ``(low, high, log)`` of a range, ``{"low": …, "high": …, "log": …}``, after checking it.

    Args:
      check: called with both ends; raises if the setting may not have this value.

    Raises:
      TypeError, ValueError: the range is not allowed.
    """
    for key in values:
        if key not in KEYS:
            raise ValueError(f"{name}: {key!r} is unknown.{hint_or(nearest(key, KEYS), 'Allowed: low, high, log')}")
    if missing := [key for key in ("low", "high") if key not in values]:
        raise ValueError(f"{name} lacks {' and '.join(missing)}")
    low, high, log = values["low"], values["high"], values.get("log", False)
    for key, bound in (("low", low), ("high", high)):
        check_number(f"{name}.{key}", bound)
        check(bound)
    if log != COMPLEMENT:
        check_switches(**{f"{name}.log": log})
    if not low < high:
        raise ValueError(f"{name} has low={low:g}, which must be below high={high:g}")
    if log is True and low <= 0:
        raise ValueError(f"{name} has low={low:g}, which has no logarithm: give a positive low, or leave out log")
    if log == COMPLEMENT and high >= 1:
        raise ValueError(f"{name} has high={high:g}, and 1 − high has no logarithm: give a high below 1")
    return float(low), float(high), log
