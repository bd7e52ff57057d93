"""Flags of options: ``--head c51 --head.num-atoms 51``; and the docstrings of fields, for helps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_origin

import tyro

from jaxrl.runtime.cli.flags import Count, field_docs
from jaxrl.settings.options import Option, as_data, dotted_names, option_fields, resolve_option
from jaxrl.settings.validation import Numbers, in_words, setting_types

METAVARS = {Count: "INT", bool: "{True,False}", str: "NAME=NUMBER,…"}


def option_flags(config: type, measured: Mapping[str, Any]) -> type:
    """Make a dataclass for tyro with a flag for each option of a Config, and one for each of its fields.

    Args:
      measured: settings of a preset, as defaults.
    """
    texts, fields = field_docs(config), list[tuple[str, Any, Any]]()
    for name, kinds in option_fields(config).items():
        default, names = base_option(config, name, measured), tuple(kind.name if kind else "none" for kind in kinds)
        shown = tyro.conf.arg(name=_dashed(name), help=texts.get(name, ""))
        fields.append((name, Annotated[Literal[names], shown], dataclasses.field(default=default.name if default else "none")))
        fields += [
            (
                _identifier(dotted),
                Annotated[_read_as(of[0], dotted) | None, _shown(dotted, of, default)],
                dataclasses.field(default=None),
            )
            for dotted, of in dotted_names(config).items()
            if dotted.startswith(f"{name}.")
        ]
    flags = dataclasses.make_dataclass("Options", fields, frozen=True)
    flags.__doc__ = "Settings that belong together. A field of an option is set by its dotted name."
    return flags


def base_option(config: type, name: str, measured: Mapping[str, Any]) -> Option | None:
    """Return an option's default: that of the preset, or of the Config."""
    default = getattr(config(), name)
    return resolve_option(name, measured[name], option_fields(config)[name], default) if name in measured else default


def chosen_options(config: type, measured: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from the Config's, as mappings, from the values of ``option_flags``."""
    found: dict[str, Any] = {}
    for name in option_fields(config):
        base = base_option(config, name, measured)
        given = {d.partition(".")[2]: flags[_identifier(d)] for d in dotted_names(config) if d.startswith(f"{name}.")}
        given = {field: value for field, value in given.items() if value is not None}
        same = base is not None and flags[name] == base.name
        value = {**((as_data(base) or {}) if same else {"name": flags[name]}), **given}
        if value != as_data(getattr(config(), name)) and (value != {"name": "none"} or getattr(config(), name) is not None):
            found[name] = value
    return found


def _identifier(dotted: str) -> str:
    return dotted.replace(".", "__")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _read_as(kind: Any, dotted: str) -> Any:
    type_ = setting_types(kind)[dotted.partition(".")[2]]
    return Count if getattr(type_, "__origin__", None) is int else str if type_ == Numbers else type_


def _shown(dotted: str, kinds: tuple[Any, ...], default: Option | None) -> Any:
    """Configure the help of a field's flag: its kinds, text, allowed values and default."""
    field = dotted.partition(".")[2]
    text = " ".join(dict.fromkeys(field_docs(kind).get(field, "") for kind in kinds))
    source = default if type(default) in kinds else kinds[0]()
    read_as = _read_as(kinds[0], dotted)
    return tyro.conf.arg(
        name=_dashed(dotted),
        metavar="NAME" if get_origin(read_as) is Literal else METAVARS.get(read_as, "FLOAT"),
        help=f"{', '.join(kind.name for kind in kinds)}: {text} [{in_words(setting_types(kinds[0])[field])}]",
        help_behavior_hint=f"(default: {getattr(source, field)})",
    )
