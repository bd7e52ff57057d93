"""Search spaces: which values a setting may have, and their places in the unit interval."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.search.settings_file import checked_setting, grid_names, refuse_unknown
from jaxrl.settings.space import Dimension, read_range
from jaxrl.settings.validation import checked, setting_types

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
    low, high, log = read_range(name, values, lambda value: _check_hyperparam(algorithm, name, hyperparam, value))
    return Dimension(name, low, high, log, hyperparam=hyperparam)


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
    checked(name, value, setting_types(ALGORITHMS[algorithm].load().hyperparams)[hyperparam])


def hyperparams_of(space: Space, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the hyperparameters of a trial, by their names in the algorithm."""
    return {d.hyperparam: float(settings[d.name]) for d in space if d.hyperparam is not None}


def structure_of(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the structural settings of a trial."""
    return {d.name: settings[d.name] for d in space if d.is_structure}


def all_structures(space: Space) -> list[dict[str, Any]]:
    """Return all structures of a space. Each needs a program."""
    return combinations([d for d in space if d.is_structure])


def combinations(dimensions: Sequence[Dimension]) -> list[dict[str, Any]]:
    """Return all combinations of the choices of dimensions."""
    names, choices = [d.name for d in dimensions], [d.choices for d in dimensions]
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*choices)]
