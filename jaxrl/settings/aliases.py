"""Hints for unknown names: the most similar name, and names of jaxrl's settings in other libraries (``aliases.toml``)."""

from __future__ import annotations

import difflib
import functools
import inspect
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from jaxrl.settings.doors import open_door

F = TypeVar("F", bound=Callable[..., Any])


def listed(words: Sequence[str], last: str = "and") -> str:
    """Join words as in ``a, b and c``."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


@functools.cache
def alias_table() -> dict[str, Any]:
    """Return the contents of ``aliases.toml``, which describes its columns."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def translate_alias(name: str, allowed: Collection[str]) -> tuple[str, str] | None:
    """Return ``(allowed name, note)`` for a ``name`` from another library, in any case and with dashes, or None if unknown."""
    plain = name.lower().replace("-", "_")
    if plain in allowed:
        return plain, ""
    table = alias_table()["settings"]
    for column in ("names", "otherwise"):
        for here, entry in table.items():
            if (like := entry.get("like")) is not None:
                entry = {**table[like], column: f"{like} {table[like].get(column, '')}"}
            if here in allowed and plain in entry.get(column, "").lower().split():
                return here, "" if plain in entry.get("same_units", "").split() else entry.get("note", "")
    return None


def instead_of(name: str, allowed: Collection[str]) -> str | None:
    """Return what jaxrl has instead of a setting of other libraries, or None."""
    plain = name.lower().replace("-", "_")
    for entry in alias_table()["instead"]:
        if plain in entry["names"].split() and entry.get("needs", plain) in (plain, *allowed):
            return str(entry["text"])
    return None


def run_arguments() -> list[str]:
    """Return the arguments of ``jaxrl.run`` that a builder does not take, from its signature."""
    parameters = inspect.signature(open_door("jaxrl", "run")).parameters
    return [name for name in parameters if name not in ("agent", "total_steps", "hyperparams")]


def belongs_to_run(name: str) -> str:
    """Return a sentence to append to a builder's error if the keyword belongs to ``jaxrl.run``, else an empty string."""
    found = translate_alias(name, run_arguments())
    return f" {found[0]} is an argument of jaxrl.run, not of the builder." if found else ""


def nearest(name: Any, allowed: Iterable[str]) -> str:
    """Return a hint to append to an error: `` It is called 'x' here.``, `` Did you mean 'x'?`` or an empty string.

    ``name`` may be of any type.
    """
    if not isinstance(name, str):
        return ""
    allowed = list(allowed)
    if known := translate_alias(name, allowed):
        here, note = known
        return f" It is called {here!r} here{note and f' ({note})'}."
    if replacement := instead_of(name, allowed):
        return f" There is no such setting: {replacement}."
    return similar(name, allowed, 0.5)


def similar(name: str, allowed: Sequence[str], cutoff: float) -> str:
    """Return `` Did you mean 'x'?``, or an empty string if no allowed name is similar."""
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def shortened(name: Any, most: int = 200) -> str:
    """Return ``repr(name)`` for an error, without its middle if it is longer than ``most`` characters."""
    shown = repr(name)
    return shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[-most // 2 :]}"


def unknown(kind: str, name: Any, allowed: Sequence[str]) -> ValueError | TypeError:
    """Return the error for a name that is not among those allowed, or is not a string."""
    if not isinstance(name, str):
        return TypeError(f"{kind} {shortened(name)} must be a string. Available: {', '.join(allowed)}.")
    return ValueError(f"unknown {kind} {shortened(name)}.{similar(name[:100], allowed, 0.4)} Available: {', '.join(allowed)}.")


def hint_or(hint: str, listing: str) -> str:
    """Return the hint if there is one, else the listing of allowed names: next to a long listing, a hint would be missed."""
    return hint or f" {listing}"


def suggest_arguments(builder: F) -> F:
    """Wrap ``builder`` with errors for a policy's name, as in ``PPO("MlpPolicy", env)``, and for positional settings."""

    @functools.wraps(builder)
    def checked(*args: Any, **keywords: Any) -> Any:
        name = builder.__name__
        policies = [x for x in (*args, *keywords.values()) if isinstance(x, str) and x.isidentifier() and x.endswith("Policy")]
        if policies:
            raise TypeError(
                f"{name}() takes no {policies[0]!r}: leave it out, {name}(env). The network follows from the observations; "
                "change it with model={'hidden_sizes': (256, 256)}"
            )
        if len(args) > 1:
            raise TypeError(f"{name}() takes only the environment by position; name the settings: {name}(env, learning_rate=…)")
        return builder(*args, **keywords)

    return cast(F, checked)


def suggest_keywords(function: F) -> F:
    """Wrap ``function`` with an error for unknown keywords that names the right keyword, or where the keyword belongs."""
    allowed = list(inspect.signature(function).parameters)

    def hint(name: str, agent: Any) -> str:
        setting = translate_alias(name, getattr(getattr(agent, "hyperparams", None), "_fields", ()))
        if setting and not translate_alias(name, allowed):
            here = setting[0]
            return f" {here} is a setting of the algorithm: pass it to the builder, or in hyperparams={{{here!r}: …}}."
        elsewhere = f" Pass settings of the algorithm to its builder. Allowed: {', '.join(allowed)}."
        return nearest(name, allowed) or elsewhere * ("hyperparams" in allowed)

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in allowed:
                agent = args[0] if args else keywords.get("agent")
                said = hint_or(hint(name, agent), f"Allowed: {', '.join(allowed)}.")
                raise TypeError(f"{function.__name__}() got an unknown keyword {name!r}.{said}")
        return function(*args, **keywords)

    return cast(F, checked)
