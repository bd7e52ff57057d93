"""What every backend needs: ids with options, typed option values, optional packages."""

from __future__ import annotations

import ast
import importlib
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from jaxrl.settings.aliases import nearest, shortened

DEFAULT_BACKEND = "gymnax"
MOST_CHARACTERS, MOST_IN_NAME, MOST_WRAPPERS = 10_000, 300, 100
"""Of an id: more would take Python's parser and its stack to their limits, and name nothing."""


class Call(NamedTuple):
    """A wrapper in an id, and its arguments."""

    name: str
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = MappingProxyType({})


class EnvId(NamedTuple):
    """``backend:name?option=value&option=value|wrapper(argument)|wrapper``, taken apart."""

    backend: str
    name: str
    options: dict[str, Any]
    wrappers: tuple[Call, ...] = ()
    """The innermost first."""


# ----------------------------------------------------------------------------------------------------------------- reading ids


def parse_id(text: str) -> EnvId:
    """Take an id apart. A bare name is gymnax's; values are Python literals, and whatever is none is a string."""
    if not isinstance(text, str):
        raise TypeError(f"an environment id must be a string, not {shortened(text)}")
    base, *wrappers = text.split("|")
    address, _, query = base.partition("?")
    if len(text) > MOST_CHARACTERS or len(address) > MOST_IN_NAME or len(wrappers) > MOST_WRAPPERS:
        raise ValueError(
            f"environment id {shortened(text)} has {len(text):,} characters, {len(address):,} of them in its name, and "
            f"{len(wrappers):,} wrappers: at most {MOST_CHARACTERS:,}, {MOST_IN_NAME} and {MOST_WRAPPERS} are allowed"
        )
    backend, colon, name = address.partition(":")
    if not colon:
        backend, name = DEFAULT_BACKEND, address
    if not backend or not name:
        raise ValueError(f"environment id {shortened(text)} is incomplete: write 'name', 'backend:name' or 'module:function'")
    options: dict[str, Any] = {}
    for part in query.split("&") if query else ():
        option, equals, value = part.partition("=")
        if not equals or not option.isidentifier():
            raise ValueError(
                f"environment id {shortened(text)}: {shortened(part)} is not an option; after '?' write option=value, joined by "
                "'&'"
            )
        if option in options:
            raise ValueError(f"environment id {shortened(text)} gives the option {option!r} twice")
        options[option] = _parse_literal(unquote(value))
    return EnvId(backend, name, options, tuple(_parse_call(text, call) for call in wrappers))


def _parse_call(env_id: str, text: str) -> Call:
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
        f"environment id {shortened(env_id)}: {shortened(text)} is not a wrapper; after '|' write its name and arguments, as in "
        f"time_limit(200){fix}"
    )


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def format_id(env_id: EnvId) -> str:
    """The canonical text of an id: options sorted, values as Python literals. ``parse_id`` gives back the same id."""
    options = [_escape(f"{name}={_literal(name, value)}") for name, value in sorted(env_id.options.items())]
    base = f"{env_id.backend}:{env_id.name}" + ("?" + "&".join(options) if options else "")
    return "|".join([base, *map(format_call, env_id.wrappers)])


def format_call(call: Call) -> str:
    """The text of a wrapper in an id."""
    arguments = [_literal(call.name, value) for value in call.args]
    arguments += [f"{name}={_literal(name, value)}" for name, value in call.keywords.items()]
    return _escape(f"{call.name}({','.join(arguments)})" if arguments else call.name)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("&", "%26").replace("|", "%7C")


def shortest(env_id: str) -> str:
    """Without the backend that a bare name has."""
    return env_id.removeprefix(f"{DEFAULT_BACKEND}:")


def _parse_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text
    except (RecursionError, MemoryError):  # what Python says of one that is nested too deep
        raise ValueError(f"the value {shortened(text)} in an environment id is nested too deep") from None


def _literal(name: str, value: Any) -> str:
    """``value`` as a literal that reads back as an equal value; NumPy and JAX numbers become Python's."""
    if isinstance(getattr(value, "dtype", None), np.dtype):  # JAX's too, but for keys, whose type is none of NumPy's
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
        f"environment option {name}={' '.join(repr(value).split())} is not plain data, so no id can hold it: "
        "use numbers, strings, lists, tuples or dicts, or build the Env yourself and pass it instead of an id"
    )


# --------------------------------------------------------------------------------------------------------------------- options


def check_known(env: str, options: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse options that ``env`` does not take, naming the nearest one that it does."""
    allowed = sorted(allowed)
    for name in options:
        if name not in allowed:
            known = f"It takes: {', '.join(allowed)}." if allowed else "It takes none."
            raise ValueError(f"{env} has no option {name!r}.{nearest(name, allowed)} {known}")


def check_option(env: str, name: str, value: Any, default: Any, *, at_least: int | None = None) -> None:
    """Refuse a scalar option whose type is not its default's. Defaults of other types tell nothing, and any value passes."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, bool | np.bool_):
        fits, wanted = isinstance(value, bool), "True or False"
    elif isinstance(default, int | np.integer):
        lowest = -(2**31) if at_least is None else at_least
        fits = is_number and isinstance(value, int) and lowest <= value < 2**31
        wanted = "an integer of 32 bits" if at_least is None else f"an integer >= {at_least}"
    elif isinstance(default, float | np.floating):
        fits, wanted = is_number, "a number"
    elif isinstance(default, str):
        fits, wanted = isinstance(value, str), "a string"
    else:
        return
    if not fits:
        raise ValueError(f"{env}: option {name}={shortened(value)} must be {wanted} (its default is {default!s})")


def smallest(default: Any) -> int | None:
    """The least value of an integer option that counts something; None when its default does not look like a count."""
    return min(default, 1) if isinstance(default, int) and not isinstance(default, bool) and default >= 0 else None


def import_package(package: str, env: str, *, extra: str | None = None) -> ModuleType:
    """Import an optional package, or say which ``pip install`` brings it: by itself, or as an ``extra`` of jaxrl."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        source = f'"jaxrl[{extra}]"' if extra else package
        message = f"{env} needs the package {package}, which is not installed: pip install {source}"
        raise ModuleNotFoundError(message, name=package) from None


class Version(NamedTuple):
    """A name as ``Pong-v5`` taken apart, however a library writes it."""

    stem: str
    number: int
    """-1 where it says none."""
    skips: bool
    """Whether the name says how frames are skipped, as Gym's old names of Atari's games do."""


def version_of(name: str) -> Version:
    """("pong", 4, True) of PongNoFrameskip-v4, ("pong", 5, False) of ALE/Pong-v5."""
    stem, _, number = name.rpartition("/")[2].rpartition("-v")
    if not (stem and number.isdecimal()):
        stem, number = name.rpartition("/")[2], "-1"
    plain = stem.removesuffix("NoFrameskip").removesuffix("Deterministic")
    of_minatar = "-minatar" * name.startswith("MinAtar/")
    return Version(plain.lower() + of_minatar, int(number), plain != stem)


class UnknownName(ValueError):
    """A backend has no environment of a name, but the ``known`` ones."""

    def __init__(self, message: str, known: Iterable[str]) -> None:
        super().__init__(message)
        self.known = [*known]


def check_name(backend: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that the backend does not have, suggesting the nearest."""
    known = list(known)
    if name not in known:
        raise UnknownName(
            f"{backend} has no environment {name!r}.{nearest(name, known)} jaxrl.list_envs({backend!r}) lists all {len(known)}.",
            known,
        )
