"""Settings and their ranges: each range stands at its field, as an annotated type."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from jaxrl.settings.aliases import belongs_to_run, hint_or, nearest, shortened
from jaxrl.types import PyTree


class Range(NamedTuple):
    """Allowed values of a number: low ≤ x ≤ high, the ends excluded where open."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    integral: bool = False
    """Without a fraction."""

    def contains(self, x: float) -> bool:
        finite = isinstance(x, int) or math.isfinite(x)  # an integer may be beyond all floats
        in_range = finite and x <= self.high and (x > self.low if self.open_low else x >= self.low)
        return in_range and not (self.integral and x != int(x))

    def __str__(self) -> str:
        if self.high == math.inf:
            what = "an integer" if self.integral else "a finite number"
            return what if self.low == -math.inf else f"{what} {'>' if self.open_low else '>='} {self.low:.9g}"
        return f"{'an integer' if self.integral else 'a number'} in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}]"


Count = Annotated[int, Range(1, integral=True)]
CountOrZero = Annotated[int, Range(0, integral=True)]
Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
Unit = Annotated[float, Range(0, 1)]
PositiveUnit = Annotated[float, Range(0, 1, open_low=True)]

# What a hyperparameter is may stand in its type, beside its range: for those that are the same in every rule.
LearningRate = Annotated[float, Range(0), "Adam's step size; 0 learns nothing, as a control."]
TotalSteps = Annotated[
    float,
    Range(0, integral=True),
    "Rows per seed of the whole run, for ``anneal``; 0: not known yet. ``run`` and ``make_train`` set it to their own length.",
]


@functools.cache
def setting_types(source: type) -> dict[str, Any]:
    """Field of a Config (dataclass) or Hyperparams (NamedTuple) -> its type, which says what is allowed.

    Raises:
      TypeError: a field does not say it.
    """
    types = get_type_hints(source, include_extras=True)
    for name, type_ in types.items():
        if _range_of(type_) is None and (not dataclasses.is_dataclass(source) or not in_words(type_)):
            raise TypeError(
                f"{source.__name__}.{name} has no range: say with its type what it may be, as {name}: Unit = … does, or "
                f"{name}: Annotated[float, Range(low, high)] = …; Unit, Positive, Count, Range and others are in "
                "jaxrl.settings.validation"
            )
    return types


def _range_of(type_: Any) -> Range | None:
    return next((x for x in getattr(type_, "__metadata__", ()) if isinstance(x, Range)), None)


def in_words(type_: Any) -> str:
    """What a setting of this type may be, in words; nothing where the type does not say it."""
    if type_ is bool:
        return "True or False"
    if get_origin(type_) is Literal:
        return f"one of {', '.join(map(repr, get_args(type_)))}"
    return str(_range_of(type_) or "")


def checked(name: str, value: Any, type_: Any) -> Any:
    """``value`` as plain Python, if a setting of this type may have it.

    Raises:
      TypeError, ValueError: it may not; the message says what is allowed.
    """
    if type_ is bool:
        check_switches(**{name: value})
        return bool(value)
    if get_origin(type_) is Literal:
        if value not in get_args(type_):
            raise ValueError(f"{name}={shortened(value)} must be {in_words(type_)}")
        return value
    if type_.__origin__ is int:
        return _check_whole(name, value, _range_of(type_))
    check_number(name, value, _range_of(type_))
    return float(value)


C = TypeVar("C")
H = TypeVar("H")


def split_settings(
    builder: str, config: type[C], hyperparams: type[H], settings: Mapping[str, Any], parts: Iterable[str] = ()
) -> tuple[C, H]:
    """Sort a builder's keywords into its Config and its Hyperparams, as plain Python numbers, or say which keyword is nearest.

    Args:
      parts: the builder's other keywords, which an error may suggest.
    """
    structure, data = setting_types(config), setting_types(hyperparams)  # type: ignore[arg-type]
    for name in settings:
        if name not in structure | data:
            hint = belongs_to_run(name) or nearest(name, sorted({*structure, *data, *parts}))
            said = hint_or(hint, f"Config: {sorted(structure)}. Hyperparameters: {sorted(data)}.")
            raise TypeError(f"{builder}() got an unknown keyword {name!r}.{said}")
    plain = {name: checked(name, value, (structure | data)[name]) for name, value in settings.items()}
    chosen = hyperparams(**{name: value for name, value in plain.items() if name in data})
    return config(**{name: value for name, value in plain.items() if name in structure}), chosen


def check_number(name: str, value: Any, allowed: Range | None = None) -> None:
    """Refuse a concrete value outside the range; without one, any finite number is allowed. Traced values pass."""
    from jaxrl.xla.private_jax import is_traced

    if is_traced(value):
        return
    allowed = allowed or Range()
    number = np.asarray(value)
    if callable(value):
        raise TypeError(
            f"{name}=… must be {allowed}, not a function: anneal=True lets the learning rate fall to 0, and "
            f"schedules={{{name!r}: …}} takes a function of the iteration that gives a factor"
        )
    if number.dtype.kind not in "iuf" or isinstance(value, str):
        raise TypeError(f"{name}={shortened(value)} must be {allowed}")
    if number.ndim:
        raise ValueError(
            f"{name}={shortened(value)} must be one number, {allowed}: for several, vmap agent.init over a mapping of "
            "hyperparameters"
        )
    if not allowed.contains(float(number)):
        raise ValueError(f"{name}={float(number):g} is not allowed: it must be {allowed}")


def whole(value: Any) -> Any:
    """A float without a fraction (1e5, 8.0) as the integer that it is; anything else unchanged."""
    return int(value) if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value) else value


def check_count(name: str, value: Any, *, at_least: int = 1, at_most: float = math.inf) -> int:
    """``value`` as a Python integer in [``at_least``, ``at_most``]; 1e5 is one too. Refuses anything else."""
    count = _check_whole(name, value, Range(at_least, integral=True))
    if count > at_most:
        raise ValueError(f"{name}={shortened(value)} must be at most {at_most:,}")
    return count


def _check_whole(name: str, value: Any, allowed: Range | None) -> int:
    count, allowed = whole(value), allowed or Range(integral=True)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not allowed.contains(int(count)):
        raise ValueError(f"{name}={shortened(value)} must be {allowed}")
    return int(count)


def check_switches(**switches: Any) -> None:
    """Refuse anything but True and False."""
    for name, value in switches.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}={shortened(value)} must be True or False")


def check_hyperparam(rule: type, name: str, value: Any) -> None:
    """Refuse a value that the Hyperparams of a rule do not allow. Traced values pass."""
    types = setting_types(rule)
    if name not in types:
        hint = nearest(name, types)
        said = hint_or(hint, f"Sizes and switches belong to the builder. Allowed: {sorted(types)}.")
        raise TypeError(f"unknown hyperparameter {name!r}.{said}")
    check_number(name, value, _range_of(types[name]))


def merge_hyperparams(defaults: H, given: Any) -> H:
    """``defaults`` (Python floats) with ``given`` on top, as f32 arrays.

    Args:
      given: None; a mapping of the hyperparameters to change; or a whole NamedTuple of the same type.
    """
    if given is None:
        given = {}
    elif isinstance(given, type(defaults)):
        given = given._asdict()  # type: ignore[attr-defined]
    elif not isinstance(given, Mapping):
        raise TypeError(f"hyperparams must be a mapping or a {type(defaults).__name__}, not {type(given).__name__}")
    for name, value in given.items():
        check_hyperparam(type(defaults), name, value)
    import jax.numpy as jnp

    merged: PyTree = {**defaults._asdict(), **given}  # type: ignore[attr-defined]
    return type(defaults)(**{name: jnp.asarray(value, jnp.float32) for name, value in merged.items()})


# ----------------------------------------------------------------------------------------------- what the Configs of rules share


def added(default: Any) -> Any:
    """A field of a Config that came after runs had been written without it. At this default, which can never be another, the rule
    does what it did before; a spec leaves the setting out there, so that those runs go on."""
    return dataclasses.field(default=default, metadata={"added": True})


def refuse_unused(given: Any, defaults: Any, names: Iterable[str], why: str) -> None:
    """Refuse settings that were given, as they are not the default, and that nothing looks at."""
    for name in names:
        if (value := getattr(given, name)) != getattr(defaults, name):
            shown = value if isinstance(value, bool) else f"{value:g}"
            raise ValueError(f"{name}={shown} has no effect {why}")
