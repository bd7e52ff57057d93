"""Helpers shared by all backends: ids with options, typed option values, optional packages."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from jaxrl.settings.aliases import nearest, shortened

DEFAULT_BACKEND = "gymnax"
MOST_CHARACTERS, MOST_IN_NAME, MOST_WRAPPERS = 10_000, 300, 100
"""Limits of an id. Longer ids could exhaust Python's parser and stack, and name no environment."""


class Call(NamedTuple):
    """Wrapper in an id, with its arguments."""

    name: str
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = MappingProxyType({})


class EnvId(NamedTuple):
    """Parts of ``backend:name?option=value&option=value|wrapper(argument)|wrapper``."""

    backend: str
    name: str
    options: dict[str, Any]
    wrappers: tuple[Call, ...] = ()
    """Innermost first."""


def parse_id(text: str) -> EnvId:
    """Parse an id. A bare name belongs to gymnax. Values are Python literals; any other text is a string."""
    if not isinstance(text, str):
        raise TypeError(f"an environment id must be a string, not {shortened(text)}")
    label = f"environment id {shortened(text)}"
    base, *wrappers = text.split("|")
    address, _, query = base.partition("?")
    if len(text) > MOST_CHARACTERS or len(address) > MOST_IN_NAME or len(wrappers) > MOST_WRAPPERS:
        raise ValueError(
            f"{label} has {len(text):,} characters, {len(address):,} of them in its name, and {len(wrappers):,} wrappers: at "
            f"most {MOST_CHARACTERS:,}, {MOST_IN_NAME} and {MOST_WRAPPERS} are allowed"
        )
    backend, colon, name = address.partition(":")
    if not colon:
        backend, name = DEFAULT_BACKEND, address
    if not backend or not name:
        raise ValueError(f"{label} is incomplete: write 'name', 'backend:name' or 'module:function'")
    options: dict[str, Any] = {}
    for part in query.split("&") if query else ():
        option, equals, value = part.partition("=")
        if not equals or not option.isidentifier():
            raise ValueError(f"{label}: {shortened(part)} is not an option; after '?' write option=value, joined by '&'")
        if option in options:
            raise ValueError(f"{label} gives the option {option!r} twice")
        options[option] = _parse_literal(unquote(value))
    return EnvId(backend, name, options, tuple(_parse_call(label, call) for call in wrappers))


def _parse_call(label: str, text: str) -> Call:
    try:
        node = ast.parse(unquote(text).strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return Call(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and all(each.arg for each in node.keywords):
            keywords = {each.arg: _value(each.value) for each in node.keywords if each.arg}
            return Call(node.func.id, tuple(map(_value, node.args)), keywords)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    fix = ": options come before the first '|'" if "?" in text else " (a '|' that is part of a value is written %7C)"
    raise ValueError(
        f"{label}: {shortened(text)} is not a wrapper; after '|' write its name and arguments, as in time_limit(200){fix}"
    )


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def format_id(env_id: EnvId) -> str:
    """Return the canonical text of an id: options sorted, values as Python literals. ``parse_id`` restores the same id."""
    options = [_escape(f"{name}={_literal(name, value)}") for name, value in sorted(env_id.options.items())]
    base = f"{env_id.backend}:{env_id.name}" + ("?" + "&".join(options) if options else "")
    return "|".join([base, *map(format_call, env_id.wrappers)])


def format_call(call: Call) -> str:
    """Return the text of a wrapper in an id."""
    arguments = [_literal(call.name, value) for value in call.args]
    arguments += [f"{name}={_literal(name, value)}" for name, value in call.keywords.items()]
    return _escape(f"{call.name}({','.join(arguments)})" if arguments else call.name)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("&", "%26").replace("|", "%7C")


def shortest(env_id: str) -> str:
    """Remove the prefix of the default backend."""
    return env_id.removeprefix(f"{DEFAULT_BACKEND}:")


def _parse_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text
    except (RecursionError, MemoryError):  # raised by Python's parser for deep nesting
        raise ValueError(f"the value {shortened(text)} in an environment id is nested too deep") from None


def _literal(name: str, value: Any) -> str:
    """Return ``value`` as a literal that parses to an equal value. NumPy and JAX numbers become Python numbers."""
    if isinstance(getattr(value, "dtype", None), np.dtype):  # includes JAX arrays, except typed keys
        value = np.asarray(value).tolist()
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and not math.isnan(value)):
        return repr(value)
    if isinstance(value, list):
        return "[" + ",".join(_literal(name, item) for item in value) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(_literal(name, item) + "," for item in value) + ")"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return "{" + ",".join(f"{key!r}:{_literal(name, item)}" for key, item in value.items()) + "}"
    raise TypeError(
        f"environment option {name}={' '.join(repr(value).split())} is not plain data, so an id cannot hold it: "
        "use numbers, strings, lists, tuples or dicts, or build the Env yourself and pass it instead of an id"
    )


def check_known(env: str, options: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise ValueError for options that ``env`` does not take. The message suggests the nearest allowed one."""
    allowed = sorted(allowed)
    for name in options:
        if name not in allowed:
            known = f"It takes: {', '.join(allowed)}." if allowed else "It takes none."
            raise ValueError(f"{env} has no option {name!r}.{nearest(name, allowed)} {known}")


def check_option(env: str, name: str, value: Any, default: Any, *, at_least: int | None = None) -> None:
    """Raise ValueError for a scalar option of another type than its default. A default that is not a scalar accepts any value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, bool | np.bool_):
        fits, wanted = isinstance(value, bool), "True or False"
    elif isinstance(default, int | np.integer):
        lowest = -(2**31) if at_least is None else at_least
        fits = is_number and isinstance(value, int) and lowest <= value < 2**31
        wanted = "a 32-bit integer" if at_least is None else f"an integer >= {at_least}"
    elif isinstance(default, float | np.floating):
        fits, wanted = is_number, "a number"
    elif isinstance(default, str):
        fits, wanted = isinstance(value, str), "a string"
    else:
        return
    if not fits:
        raise ValueError(f"{env}: option {name}={shortened(value)} must be {wanted} (its default is {default!s})")


def smallest(default: Any) -> int | None:
    """Return the smallest value of an integer option that is a count; None if its default does not look like a count."""
    return min(default, 1) if isinstance(default, int) and not isinstance(default, bool) and default >= 0 else None


def check_options(env: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ValueError for options that ``defaults`` lacks, or whose type differs from that of their default."""
    check_known(env, options, defaults)
    for name, value in options.items():
        check_option(env, name, value, defaults[name], at_least=smallest(defaults[name]))


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that a function or class takes by name, with their defaults, or ``inspect.Parameter.empty``."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if "VAR" not in each.kind.name}


def takes_any(function: Callable[..., Any]) -> bool:
    """Return whether a function takes arguments of any name."""
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())


class Version(NamedTuple):
    """Parts of a name such as ``Pong-v5``, in the spelling of any library."""

    stem: str
    number: int
    """-1 if the name has no version."""
    skips: bool
    """The name specifies how frames are skipped, as Gym's old names of Atari games do."""


def version_of(name: str) -> Version:
    """Parse a name: PongNoFrameskip-v4 gives ("pong", 4, True), ALE/Pong-v5 gives ("pong", 5, False)."""
    stem, _, number = name.rpartition("/")[2].rpartition("-v")
    if not (stem and number.isdecimal()):
        stem, number = name.rpartition("/")[2], "-1"
    plain = stem.removesuffix("NoFrameskip").removesuffix("Deterministic")
    suffix = "-minatar" * name.startswith("MinAtar/")
    return Version(plain.lower() + suffix, int(number), plain != stem)


class UnknownName(ValueError):
    """Error: a backend has no environment of this name. ``known`` lists the names that it has."""

    def __init__(self, message: str, known: Iterable[str]) -> None:
        super().__init__(message)
        self.known = [*known]


def check_name(backend: str, name: str, known: Iterable[str]) -> None:
    """Raise UnknownName for a name that the backend does not have. The message suggests the nearest name."""
    known = list(known)
    if name not in known:
        raise UnknownName(
            f"{backend} has no environment {name!r}.{nearest(name, known)} jaxrl.list_envs({backend!r}) lists all {len(known)}.",
            known,
        )
