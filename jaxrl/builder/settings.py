"""The keywords of a builder that are settings: sorted into its Config, with its options, and its Hyperparams."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jaxrl.settings.aliases import belongs_to_run, hint_or, nearest, translate_alias
from jaxrl.settings.options import (
    dotted_names,
    held_by_options,
    hyperparameters_of,
    option_fields,
    resolve_option,
    with_dotted,
    written,
)
from jaxrl.settings.validation import checked, setting_types

C = TypeVar("C")
H = TypeVar("H")


def split_settings(
    builder: str, config: type[C], hyperparams: type[H], settings: Mapping[str, Any], parts: Iterable[str] = ()
) -> tuple[C, H]:
    """Sort a builder's keywords into its Config and its Hyperparams, as options and plain Python numbers.

    Hyperparameters that are fields of options get their values from there.

    Args:
      settings: keywords, also dotted ones, such as ``head.v_max``.
      parts: other keywords of the builder, which an error may suggest.

    Raises:
      TypeError: a keyword is unknown. The message suggests the right one.
      ValueError: a value is not allowed.
    """
    kind: Any = config
    settings, options = with_dotted(settings), option_fields(kind)
    structure, data = setting_types(kind), free_hyperparams(kind, hyperparams)
    for name in settings:
        if name not in structure | data:
            raise TypeError(f"{builder}() got an unknown keyword {name!r}.{hint_for(config, name, [*structure, *data, *parts])}")
    plain = {
        name: resolve_option(name, value, options[name], getattr(config(), name))
        if name in options
        else checked(name, value, (data | structure)[name])
        for name, value in settings.items()
    }
    chosen = config(**{name: value for name, value in plain.items() if name in structure})
    for name, dotted in held_by_options(kind).items():
        if name not in hyperparams._fields:  # type: ignore[attr-defined]
            raise TypeError(
                f"{written(kind, dotted)} is the hyperparameter {name!r}, which {hyperparams.__name__} lacks: add the field"
            )
    numbers = {name: value for name, value in plain.items() if name not in structure}
    return chosen, hyperparams(**numbers, **dict(hyperparameters_of(chosen)))


def free_hyperparams(config: Any, hyperparams: Any) -> dict[str, Any]:
    """Return the types of the hyperparameters that are settings by themselves: those that no option of the Config holds."""
    held = held_by_options(config)
    return {name: type_ for name, type_ in setting_types(hyperparams).items() if name not in held}


def check_scheduled(config: Any, names: Iterable[str]) -> None:
    """Raise ValueError for schedules of hyperparameters that only options have which the Config does not choose."""
    held, chosen = held_by_options(type(config)), dict(hyperparameters_of(config))
    for name in names:
        if name in held and name not in chosen:
            option = held[name].partition(".")[0]
            value = getattr(config, option)
            raise ValueError(
                f"schedules[{name!r}] has no effect with {option}={value.name if value else 'none'!r}: it is for "
                f"{written(type(config), held[name])}"
            )


def hint_for(config: type, name: str, allowed: Sequence[str]) -> str:
    """Return the hint for an unknown keyword: the nearest setting, or the option whose field it is."""
    dotted = dotted_names(config)
    fields = {each.partition(".")[2]: each for each in dotted}
    known = translate_alias(name, [*allowed, *dotted]) or ("", "")
    if (found := fields.get(name, known[0])) in dotted:
        note = f" ({known[1]})" if known[0] == found and known[1] else ""
        return f" It is a field of an option: {written(config, found)}{note}."
    close = difflib.get_close_matches(name, {*allowed, *fields}, 1, 0.8)
    if close and not known[0] and close[0] not in allowed:
        return f" Did you mean {written(config, fields[close[0]])}?"
    hint = belongs_to_run(name) or nearest(name, sorted(allowed))
    return hint_or(hint, f"Settings: {sorted({*allowed})}.")
