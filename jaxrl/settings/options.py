"""Options: settings that belong together, as one value, such as ``head=C51(num_atoms=51, v_max=200)``.

An option is a frozen dataclass that checks itself. A field of a Config accepts the options in its type, as in ``head: Scalar |
C51 = Scalar()``. In data an option is a mapping, ``{"name": "c51", "v_max": 200}``, or its name alone. Without a name, or with
that of the default, it changes fields of the default. The dotted name of a field, ``head.v_max``, changes it. Flags and sweep
files use the same names.

A number of an option that may be vmapped or scheduled is a hyperparameter. ``hyperparameter`` declares the field with its name
there, and the option gives its initial value. With the default ``ABSENT`` in the Hyperparams it is part of the state only if the
option is chosen.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

from jaxrl.settings.aliases import hint_or, listed, nearest, shortened
from jaxrl.settings.validation import checked, kinds_of, setting_types

ABSENT: Any = None
"""Default of a hyperparameter that exists only with the option that holds it."""


class Option:
    """Base class of options."""

    is_option: ClassVar[bool] = True
    name: ClassVar[str]
    """Name in data, such as "c51"."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        try:
            for field, type_ in setting_types(kind).items():
                object.__setattr__(self, field, checked(field, getattr(self, field), type_))
            self.check()
        except (TypeError, ValueError) as error:
            raise type(error)(f"{kind.__name__}: {error}") from None

    def check(self) -> None:
        """Check that the fields fit together; each is in its own range already.

        Raises:
          ValueError: they do not.
        """


O = TypeVar("O", bound=type[Option])


@dataclass_transform(frozen_default=True)
def option(name: str) -> Callable[[O], O]:
    """Return a decorator for a subclass of ``Option``: a frozen dataclass with this name in data, whose errors suggest fields."""

    def decorate(kind: O) -> O:
        made: Any = dataclasses.dataclass(frozen=True)(kind)
        init = made.__init__

        @functools.wraps(init)
        def checked_init(self: Option, *args: Any, **fields: Any) -> None:
            for field in fields:
                if field not in made.__dataclass_fields__:
                    raise TypeError(unknown_field(made, field))
            init(self, *args, **fields)

        made.__init__, made.name = checked_init, name
        return made

    return decorate


def hyperparameter(name: str, default: float) -> Any:
    """Declare a field of an option that is the hyperparameter ``name`` of its algorithms."""
    return dataclasses.field(default=default, metadata={"hyperparameter": name})


def unknown_field(kind: Any, field: str) -> str:
    """Return the error for a field that this kind of option lacks."""
    fields = list(setting_types(kind))
    said = hint_or(nearest(field, fields), f"Its fields: {', '.join(fields)}." if fields else "It has none.")
    return f"{kind.__name__} has no field {field!r}.{said}"


@functools.cache
def option_fields(config: Any) -> dict[str, tuple[Any, ...]]:
    """Return the settings of a Config that are options, with the kinds that each accepts; None if it may be left out."""
    kinds = {name: kinds_of(type_) for name, type_ in setting_types(config).items()}
    return {name: found for name, found in kinds.items() if found}


def dotted_names(config: type) -> dict[str, tuple[Any, ...]]:
    """Return ``option.field`` -> the kinds of the option that have the field, for all options of a Config."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, kinds in option_fields(config).items():
        for kind in filter(None, kinds):
            for field in setting_types(kind):
                found[f"{name}.{field}"] = (*found.get(f"{name}.{field}", ()), kind)
    return found


def held_by_options(config: type) -> dict[str, str]:
    """Return the hyperparameters that are fields of options of a Config: name -> ``option.field``."""
    return {
        field.metadata["hyperparameter"]: dotted
        for dotted, kinds in dotted_names(config).items()
        for kind in kinds
        for field in dataclasses.fields(kind)
        if field.name == dotted.partition(".")[2] and "hyperparameter" in field.metadata
    }


def hyperparameters_of(config: Any) -> Iterator[tuple[str, float]]:
    """Yield ``(name, value)`` of the hyperparameters that the options of a Config instance hold."""
    kind: Any = type(config)
    for name in option_fields(kind):
        chosen = getattr(config, name)
        for field in dataclasses.fields(chosen) if chosen is not None else ():
            if "hyperparameter" in field.metadata:
                yield field.metadata["hyperparameter"], getattr(chosen, field.name)


def as_data(value: Option | None) -> dict[str, Any] | None:
    """Return an option as plain data."""
    if value is None:
        return None
    kind: Any = type(value)
    fields = {name: getattr(value, name) for name in setting_types(kind)}
    return {"name": value.name, **{name: dict(x) if isinstance(x, tuple) else x for name, x in fields.items()}}


def described_option(config: Any, name: str, value: Option | None) -> dict[str, Any]:
    """Return the entry of an option in a spec: nothing if it was ``added`` later and has its default."""
    field = config.__dataclass_fields__[name]
    return {} if "added" in field.metadata and value == field.default else {name: as_data(value) or "none"}


def resolve_option(setting: str, value: Any, kinds: tuple[Any, ...], default: Option | None) -> Option | None:
    """Return the option that ``value`` says: an option, its name, or a mapping of its fields with its name.

    Args:
      setting: name of the setting, for errors.
      kinds: the kinds that are allowed, from ``option_fields``.
      default: the option whose fields a mapping without a name changes.

    Raises:
      TypeError: it is something else, or a field is unknown.
      ValueError: there is no such name, or a field is out of range.
    """
    if (value is None and None in kinds) or any(type(value) is kind for kind in kinds):
        return value
    by_name = {"none" if kind is None else kind.name: kind for kind in kinds}
    names, fields = listed([repr(name) for name in by_name], "or"), {}
    if isinstance(value, Mapping):
        fields = dict(value)
        value = fields.pop("name", None if default is None else default.name)
        if value is None:
            raise ValueError(f"{setting}={shortened(fields)} must have a name: {names}")
    if any(value is kind for kind in kinds):
        raise TypeError(f"{setting}={value.__name__} is a class: write {setting}={value.__name__}()")
    if not isinstance(value, str):
        allowed = ["None" if kind is None else f"{kind.__name__}(…)" for kind in kinds]
        raise TypeError(f"{setting}={shortened(value)} must be {listed(allowed, 'or')}, or its name: {names}")
    if value not in by_name:
        raise ValueError(f"{setting}={value!r} is unknown.{hint_or(nearest(value, by_name), f'Allowed: {names}.')}")
    kind = by_name[value]
    if default is not None and value == default.name:
        fields = {**dataclasses.asdict(default), **fields}  # type: ignore[call-overload]
    if kind is None:
        if fields:
            raise TypeError(f"{setting}='none' has no field {next(iter(fields))!r}")
        return None
    for field in fields:
        if field not in setting_types(kind):
            others = [other for other in kinds if other and field in setting_types(other)]
            hint = f" It is a field of {others[0].__name__}: choose {setting}={others[0].name!r} too." if others else ""
            raise TypeError(
                f"{setting}: {unknown_field(kind, field)}" if not hint else f"{setting}={value!r} has no field {field!r}.{hint}"
            )
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{setting}={error}") from None


def with_dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge dotted names, ``head.v_max``, into the mappings of their options."""
    merged = {name: value for name, value in settings.items() if "." not in name}
    for dotted, value in settings.items():
        name, dot, field = dotted.partition(".")
        if dot:
            base = merged.get(name, {})
            if isinstance(base, Option):
                base = as_data(base)
            elif isinstance(base, str):
                base = {"name": base}
            elif not isinstance(base, Mapping):
                raise TypeError(f"{dotted}={shortened(value)} has no effect with {name}={shortened(base)}")
            merged[name] = {**base, field: value}
    return merged


def written(config: type, dotted: str) -> str:
    """Return how a field of an option is written in Python: ``head=C51(v_max=…)``."""
    name, _, field = dotted.partition(".")
    kinds = dotted_names(config)[dotted]
    return listed([f"{name}={kind.__name__}({field}=…)" for kind in kinds], "or")
