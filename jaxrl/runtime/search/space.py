"""Search spaces: which values a setting may have, and their places in the unit interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.search.settings_file import checked_setting, grid_names, refuse_unknown
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

    def from_line(self, place: float) -> float:
        """Invert ``to_line``."""
        value = 1 - math.exp(-place) if self.log == COMPLEMENT else math.exp(place) if self.log else place
        return min(max(value, self.low), self.high)

    @property
    def line(self) -> tuple[float, float]:
        """Ends of the range on that line."""
        return self.to_line(self.low), self.to_line(self.high)

    def at(self, place: float) -> Any:
        """Return the value at a place of the unit interval [0, 1)."""
        if self.choices:
            return self.choices[int(place * len(self.choices))]
        begin, end = self.line
        return self.from_line(begin + place * (end - begin))


Space = tuple[Dimension, ...]


def read_space(where: str, algorithm: str, table: Any) -> Space:
    """Return the dimensions of a file's table ``[space]``.

    Raises:
      ValueError: a name, a range or a value is not allowed; the message begins with ``where``.
    """
    if not isinstance(table, Mapping) or not table:
        raise ValueError(
            f"{where} must have a setting to search, such as learning_rate = {{ low = 1e-5, high = 1e-2, log = true }}"
        )
    structural, data = grid_names(algorithm)
    refuse_unknown(where, table, [*structural, *data])
    dimensions = []
    for name, values in table.items():
        try:
            dimensions.append(_read_dimension(algorithm, name, values, data.get(name)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
    return tuple(dimensions)


def _read_dimension(algorithm: str, name: str, values: Any, hyperparam: str | None) -> Dimension:
    if isinstance(values, Sequence) and not isinstance(values, str):
        return _read_choices(algorithm, name, values, hyperparam)
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} = {values!r} must be a list of values, or a range {{ low = …, high = … }}")
    if hyperparam is None:
        raise ValueError(
            f"{name} is structure, and each of its values needs a program: give a list of values in place of a range"
        )
    refuse_unknown(name, values, KEYS)
    if missing := [key for key in ("low", "high") if key not in values]:
        raise ValueError(f"{name} lacks {' and '.join(missing)}")
    low, high, log = values["low"], values["high"], values.get("log", False)
    for key, bound in (("low", low), ("high", high)):
        check_number(f"{name}.{key}", bound)
        _check_hyperparam(algorithm, name, hyperparam, bound)
    if log != COMPLEMENT:
        check_switches(**{f"{name}.log": log})
    if not low < high:
        raise ValueError(f"{name} has low={low:g}, which must be below high={high:g}")
    if log is True and low <= 0:
        raise ValueError(f"{name} has low={low:g}, which has no logarithm: give a positive low, or leave out log")
    if log == COMPLEMENT and high >= 1:
        raise ValueError(f"{name} has high={high:g}, and 1 − high has no logarithm: give a high below 1")
    return Dimension(name, float(low), float(high), log, hyperparam=hyperparam)


def _read_choices(algorithm: str, name: str, values: Sequence[Any], hyperparam: str | None) -> Dimension:
    if not values:
        raise ValueError(f"{name} = [] must have at least one value")
    if hyperparam is not None:
        for value in values:
            _check_hyperparam(algorithm, name, hyperparam, value)
    choices = [checked_setting(algorithm, name, value) for value in values]
    if repeated := [each for each in choices if choices.count(each) > 1]:
        raise ValueError(f"{name} = {values!r} has {repeated[0]!r} twice")
    return Dimension(name, choices=tuple(choices), hyperparam=hyperparam)


def _check_hyperparam(algorithm: str, name: str, hyperparam: str, value: Any) -> None:
    from jaxrl.settings.validation import checked, setting_types

    checked(name, value, setting_types(ALGORITHMS[algorithm].load().hyperparams)[hyperparam])


def hyperparams_of(space: Space, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the hyperparameters of a trial, by their names in the algorithm."""
    return {d.hyperparam: float(settings[d.name]) for d in space if d.hyperparam is not None}


def structure_of(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the structural settings of a trial."""
    return {d.name: settings[d.name] for d in space if d.is_structure}


def all_structures(space: Space) -> list[dict[str, Any]]:
    """Return all structures of a space. Each needs a program."""
    dimensions = [d for d in space if d.is_structure]
    names, values = [d.name for d in dimensions], [d.choices for d in dimensions]
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*values)]
