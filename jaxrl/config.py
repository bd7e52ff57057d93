"""Builder keywords: each belongs to exactly one of a rule's Config (structure) and Hyperparams (data)."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.names import called_here, home_of
from jaxrl.types import PyTree


class Range(NamedTuple):
    """Allowed values of a hyperparameter: low ≤ x ≤ high, the ends excluded where open."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    integral: bool = False
    """Without a fraction."""

    def contains(self, x: float) -> bool:
        in_range = math.isfinite(x) and x <= self.high and (x > self.low if self.open_low else x >= self.low)
        return in_range and not (self.integral and x != int(x))

    def __str__(self) -> str:
        if self.low == -math.inf:
            return "a finite number"
        if self.high == math.inf:
            return f"{'an integer' if self.integral else 'a finite number'} {'>' if self.open_low else '>='} {self.low:g}"
        return f"a number in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}]"


POSITIVE, NON_NEGATIVE, UNIT, HALF_OPEN_UNIT = Range(0, open_low=True), Range(0), Range(0, 1), Range(0, 1, open_low=True)

RANGES: dict[str, Range] = {
    "learning_rate": NON_NEGATIVE,
    "gamma": UNIT,
    "gae_lambda": UNIT,
    "clip_eps": POSITIVE,
    "ent_coef": NON_NEGATIVE,
    "vf_coef": NON_NEGATIVE,
    "max_grad_norm": POSITIVE,
    "adam_eps": POSITIVE,
    "tau": HALF_OPEN_UNIT,
    "epsilon_start": UNIT,
    "epsilon_end": UNIT,
    "exploration_steps": POSITIVE,
    "total_steps": Range(0, integral=True),
}
"""One range per name, for all algorithms: a name means the same everywhere."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """`` It is called 'x' here.``, `` Did you mean 'x'?`` or nothing, to append to an error."""
    allowed = list(allowed)
    if known := called_here(name, allowed):
        here, note = known
        return f" It is called {here!r} here{note and f' ({note})'}."
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H")


def split_settings(
    builder: str, config: type[C], hyperparams: type[H], settings: Mapping[str, Any], parts: Iterable[str] = ()
) -> tuple[C, H]:
    """Sort a builder's keywords into its Config and its Hyperparams, as plain Python numbers, or say which keyword is nearest.

    Args:
      parts: the builder's other keywords, which an error may suggest.
    """
    structure = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    data = set(hyperparams._fields)  # type: ignore[attr-defined]
    for name in settings:
        if name not in structure | data:
            hint = home_of(name) or nearest(name, sorted({*structure, *data, *parts}))
            raise TypeError(
                f"{builder}() got an unknown keyword {name!r}.{hint} Config: {sorted(structure)}."
                f" Hyperparameters: {sorted(data)}."
            )
    switches = [field.name for field in dataclasses.fields(config) if field.type in (bool, "bool")]  # type: ignore[arg-type]
    check_switches(**{name: settings[name] for name in switches if name in settings})
    for name, value in settings.items():
        if name in data:
            check_hyperparam(name, value)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    counts = {field.name for field in dataclasses.fields(config) if str(field.type).startswith("int")}  # type: ignore[arg-type]
    plain |= {name: whole(value) for name, value in plain.items() if name in counts}
    chosen = hyperparams(**{name: float(value) for name, value in plain.items() if name in data})
    return config(**{name: value for name, value in plain.items() if name in structure}), chosen


def says_keywords(function: F) -> F:
    """``function``, which says of a keyword that it does not know what it is called, or where it belongs."""
    allowed = list(inspect.signature(function).parameters)

    def hint(name: str) -> str:
        setting = called_here(name, RANGES)
        if setting and not called_here(name, allowed):
            return (
                f" {setting[0]} is a setting of the algorithm: give it to the builder, or in hyperparams={{{setting[0]!r}: …}}."
            )
        elsewhere = " Settings of the algorithm belong to its builder." if "hyperparams" in allowed else ""
        return nearest(name, allowed) or elsewhere

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in allowed:
                raise TypeError(
                    f"{function.__name__}() got an unknown keyword {name!r}.{hint(name)} It takes: {', '.join(allowed)}."
                )
        return function(*args, **keywords)

    return cast(F, checked)


def check_hyperparam(name: str, value: Any) -> None:
    """Refuse a concrete value outside the range of its name: any finite number where none is listed. Traced values pass."""
    if isinstance(value, jax.core.Tracer):
        return
    allowed = RANGES.get(name, Range())
    number = np.asarray(value)
    if number.dtype.kind not in "iuf" or isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be {allowed}")
    if number.ndim:
        raise ValueError(
            f"{name}={value!r} must be one number, {allowed}: for several, vmap agent.init over a mapping of hyperparameters"
        )
    if not allowed.contains(float(number)):
        raise ValueError(f"{name}={float(number):g} is not allowed: it must be {allowed}")


def whole(value: Any) -> Any:
    """A float without a fraction (1e5, 8.0) as the integer that it is; anything else unchanged."""
    return int(value) if isinstance(value, float | np.floating) and math.isfinite(value) and value == int(value) else value


def check_count(name: str, value: Any, *, at_least: int = 1) -> int:
    """``value`` as a Python integer ≥ ``at_least``; 1e5 is one too. Refuses anything else."""
    count = whole(value)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < at_least:
        raise ValueError(f"{name}={value!r} must be an integer >= {at_least}")
    return int(count)


def check_switches(**switches: Any) -> None:
    """Refuse anything but True and False."""
    for name, value in switches.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}={value!r} must be True or False")


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
    fields = defaults._fields  # type: ignore[attr-defined]
    for name, value in given.items():
        if name not in fields:
            hint = nearest(name, fields) or " Sizes and switches belong to the builder."
            raise TypeError(f"unknown hyperparameter {name!r}.{hint} Allowed: {sorted(fields)}.")
        check_hyperparam(name, value)
    merged: PyTree = {**defaults._asdict(), **given}  # type: ignore[attr-defined]
    return type(defaults)(**{name: jnp.asarray(value, jnp.float32) for name, value in merged.items()})
