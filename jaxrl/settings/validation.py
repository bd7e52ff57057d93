"""Settings and their ranges, as annotated types of the fields."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from jaxrl.settings.aliases import hint_or, nearest, shortened
from jaxrl.types import PyTree


class Range(NamedTuple):
    """Allowed values of a number: low ≤ x ≤ high, or low < x ≤ high if ``open_low``."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    integral: bool = False
    """Only integers are allowed."""

    def contains(self, x: float) -> bool:
        finite = isinstance(x, int) or math.isfinite(x)  # an integer may be too large for a float
        in_range = finite and x <= self.high and (x > self.low if self.open_low else x >= self.low)
        return in_range and not (self.integral and x != int(x))

    def __str__(self) -> str:
        if self.high == math.inf:
            noun = "an integer" if self.integral else "a finite number"
            return noun if self.low == -math.inf else f"{noun} {'>' if self.open_low else '>='} {self.low:.9g}"
        return f"{'an integer' if self.integral else 'a number'} in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}]"


Count = Annotated[int, Range(1, integral=True)]
CountOrZero = Annotated[int, Range(0, integral=True)]
Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
Unit = Annotated[float, Range(0, 1)]
PositiveUnit = Annotated[float, Range(0, 1, open_low=True)]


class ByName:
    """Allowed values of finite numbers under names of the user's choice."""

    def __str__(self) -> str:
        return "numbers by name: {'a': 1, 'b': 0.5}, or 'a=1,b=0.5'"


Numbers = Annotated[tuple[tuple[str, float], ...] | Mapping[str, float] | str, ByName()]
"""``checked`` makes pairs of them, in the order of their names, which can be hashed and compared."""


@functools.cache
def setting_types(source: Any) -> dict[str, Any]:
    """Return the types of a Config's (dataclass) or Hyperparams' (NamedTuple) fields, which define the allowed values.

    Raises:
      TypeError: the type of a field does not define its allowed values.
    """
    hints = get_type_hints(source, include_extras=True)
    if dataclasses.is_dataclass(source):
        hints = {field.name: hints[field.name] for field in dataclasses.fields(source)}
    for name, type_ in hints.items():
        if kinds_of(type_):
            continue
        if _range_of(type_) is None and (not dataclasses.is_dataclass(source) or not in_words(type_)):
            raise TypeError(
                f"{source.__name__}.{name} has no range: give the allowed values in its type, as in {name}: Unit = … or "
                f"{name}: Annotated[float, Range(low, high)] = …; Unit, Positive, Count, Range and others are in "
                "jaxrl.settings.validation"
            )
    return hints


def kinds_of(type_: Any) -> tuple[Any, ...]:
    """Return the kinds of options (``jaxrl.settings.options``) that a type accepts, and None if the option may be left out.

    A plain setting has none.
    """
    members = get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)
    kinds = tuple(None if member is type(None) else member for member in members)
    return kinds if any(kinds) and all(kind is None or getattr(kind, "is_option", False) for kind in kinds) else ()


def _range_of(type_: Any) -> Range | None:
    return next((x for x in getattr(type_, "__metadata__", ()) if isinstance(x, Range)), None)


def in_words(type_: Any) -> str:
    """Describe the allowed values of a setting of this type, or return an empty string if the type does not define them."""
    if type_ is bool:
        return "True or False"
    if get_origin(type_) is Literal:
        return f"one of {', '.join(map(repr, get_args(type_)))}"
    return str(_range_of(type_) or (ByName() if type_ == Numbers else ""))


def checked(name: str, value: Any, type_: Any) -> Any:
    """Check a setting's value against its type, and return it as a plain Python value.

    Raises:
      TypeError, ValueError: the value is not allowed. The message says what is.
    """
    if type_ is bool:
        check_switches(**{name: value})
        return bool(value)
    if get_origin(type_) is Literal:
        if value not in get_args(type_):
            raise ValueError(
                f"{name}={shortened(value)} must be {in_words(type_)}.{nearest(value, get_args(type_))}".removesuffix(".")
            )
        return value
    if type_ == Numbers:
        return _check_numbers(name, value)
    if type_.__origin__ is int:
        return _check_whole(name, value, _range_of(type_))
    check_number(name, value, _range_of(type_))
    return float(value)


def _check_numbers(name: str, value: Any) -> tuple[tuple[str, float], ...]:
    if isinstance(value, str):
        pairs = [part.partition("=")[::2] for part in value.split(",") if part.strip()]
        try:
            value = [(key.strip(), float(number)) for key, number in pairs]
        except ValueError:
            raise ValueError(f"{name}={shortened(value)} must be {ByName()}") from None
    try:
        found = {str(key): number for key, number in (value.items() if isinstance(value, Mapping) else value)}
    except (TypeError, ValueError):
        raise TypeError(f"{name}={shortened(value)} must be {ByName()}") from None
    for key, number in found.items():
        check_number(f"{name}.{key}", number)
    return tuple(sorted((key, float(number)) for key, number in found.items()))


H = TypeVar("H")


def check_number(name: str, value: Any, allowed: Range | None = None) -> None:
    """Check that a concrete value is in the range, or finite if there is no range. Traced values are not checked."""
    from jaxrl.xla.private_jax import is_traced

    if is_traced(value):
        return
    allowed = allowed or Range()
    number = np.asarray(value)
    if callable(value):
        raise TypeError(
            f"{name}=… must be {allowed}, not a function: use anneal=True to anneal the learning rate to 0, or "
            f"schedules={{{name!r}: …}} with a function of the iteration that returns a factor"
        )
    if number.dtype.kind not in "iuf" or isinstance(value, str):
        raise TypeError(f"{name}={shortened(value)} must be {allowed}")
    if number.ndim:
        raise ValueError(
            f"{name}={shortened(value)} must be one number, {allowed}: for several values, vmap agent.init over a mapping of "
            "hyperparameters"
        )
    if not allowed.contains(float(number)):
        raise ValueError(f"{name}={float(number):g} is not allowed: it must be {allowed}")


def whole(value: Any) -> Any:
    """Convert a float without a fraction (1e5, 8.0) to an integer; return anything else unchanged."""
    return int(value) if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value) else value


def check_count(name: str, value: Any, *, at_least: int = 1, at_most: float = math.inf) -> int:
    """Check that ``value`` is an integer in [``at_least``, ``at_most``], and return it as a Python integer. 1e5 is allowed."""
    count = _check_whole(name, value, Range(at_least, integral=True))
    if count > at_most:
        raise ValueError(f"{name}={shortened(value)} must be at most {at_most:,}")
    return count


def _check_whole(name: str, value: Any, allowed: Range | None) -> int:
    count, allowed = whole(value), allowed or Range(integral=True)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not allowed.contains(int(count)):
        raise ValueError(f"{name}={shortened(value)} must be {allowed}")
    return int(count)


MAX_SEEDS = 1_000_000
"""Maximum number of seeds. A larger number is a mistake, and would exhaust memory before any other check."""


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return the list of seeds; ``n`` means 0 … n−1."""
    seeds = whole(seeds)
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        if seeds < 1:
            raise ValueError(f"seeds={seeds} must be at least 1 (a number of seeds), or a list of seeds")
        return list(range(check_count("seeds", seeds, at_most=MAX_SEEDS)))
    try:
        listed = np.asarray(seeds).tolist()
    except ValueError:  # a ragged list
        listed = None
    if not isinstance(listed, list) or not listed or not all(type(seed) is int for seed in listed):
        raise TypeError(f"seeds={seeds!r} must be a number of seeds or a list of integers")
    if outside := [seed for seed in listed if not 0 <= seed < 2**32]:
        raise ValueError(f"seeds={seeds!r}: {outside[0]} is outside 0 … 2**32 - 1")
    return listed


def check_seed(name: str, seed: Any) -> int:
    """Check that a seed is an integer in the range that ``jax.random.key`` distinguishes, and return it as a Python integer."""
    if not 0 <= (checked := _check_whole(name, seed, None)) < 2**32:
        raise ValueError(f"{name}={shortened(seed)} must be between 0 and 2**32 - 1")
    return checked


def check_switches(**switches: Any) -> None:
    """Check that all values are True or False."""
    for name, value in switches.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}={shortened(value)} must be True or False")


def check_hyperparam(defaults: Any, name: str, value: Any) -> None:
    """Check a value against the Hyperparams of an agent. Traced values are not checked."""
    types = setting_types(type(defaults))  # type: ignore[arg-type]
    if name not in types:
        hint = nearest(name, types)
        said = hint_or(hint, f"Sizes and switches belong to the builder. Allowed: {sorted(types)}.")
        raise TypeError(f"unknown hyperparameter {name!r}.{said}")
    if getattr(defaults, name) is None:
        raise ValueError(f"{name} has no effect, because the agent was built without the option that it belongs to: leave it out")
    check_number(name, value, _range_of(types[name]))


def present(hyperparams: Any) -> dict[str, Any]:
    """Return the hyperparameters of a NamedTuple, without those of options that the agent lacks, which are None."""
    return {name: value for name, value in hyperparams._asdict().items() if value is not None}


def merge_hyperparams(defaults: H, changes: Any) -> H:
    """Replace values of ``defaults`` (Python floats) by those of ``changes``, and convert to f32 arrays.

    Args:
      changes: None, a mapping of the hyperparameters to change, or a whole NamedTuple of the same type.
    """
    if changes is None:
        changes = {}
    elif isinstance(changes, type(defaults)):
        changes = present(changes)
    elif not isinstance(changes, Mapping):
        raise TypeError(f"hyperparams must be a mapping or a {type(defaults).__name__}, not {type(changes).__name__}")
    for name, value in changes.items():
        check_hyperparam(defaults, name, value)
    import jax.numpy as jnp

    merged: PyTree = {**defaults._asdict(), **changes}  # type: ignore[attr-defined]
    return type(defaults)(**{name: None if x is None else jnp.asarray(x, jnp.float32) for name, x in merged.items()})


def added(default: Any, *, compare: bool = True) -> Any:
    """Declare a field that was added to a Config after runs had been saved without it.

    The default must keep the earlier behaviour, and must never change. A spec omits the setting at its default, so that those
    runs can be resumed.
    """
    return dataclasses.field(default=default, compare=compare, metadata={"added": True})


def is_whole(number: float) -> bool:
    """Return whether a product of settings is a whole number, up to rounding: 0.07 · 100 is 7.000…1."""
    return abs(number - round(number)) < 1e-6


def refuse_unused(settings: Any, defaults: Any, names: Iterable[str], why: str) -> None:
    """Raise a ValueError for settings that differ from their defaults but are not used."""
    for name in names:
        if (value := getattr(settings, name)) != getattr(defaults, name):
            shown = value if isinstance(value, bool) else f"{value:g}"
            raise ValueError(f"{name}={shown} has no effect {why}")


def refuse_schedules(schedules: Container[str], names: Iterable[str], why: str) -> None:
    """Raise a ValueError for schedules of hyperparameters that are not used."""
    for name in names:
        if name in schedules:
            raise ValueError(f"schedules[{name!r}] has no effect {why}")
