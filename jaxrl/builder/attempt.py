"""Calls of a user's functions on shapes alone, and texts about them for errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax


def show(part: Any) -> str:
    """Return a short text for a component, for error messages."""
    if isinstance(part, functools.partial):
        return f"partial({show(part.func)}, …)"
    if name := getattr(part, "__qualname__", None):
        return str(name).rpartition("<locals>.")[2]
    text = repr(part)
    return f"{type(part).__name__}(…)" if "\n" in text or " at 0x" in text or len(text) > 60 else text


def reason(error: Exception) -> str:
    """Return the type and first line of an exception's message, at most 240 characters of it."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines[0]) <= 240 else f"{lines[0][:240]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def attempt(description: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return the output shapes of a user's function for ``args`` (or their shapes); nothing is computed.

    Raises:
      TypeError: the function fails. The message starts with the given description of the function.
    """
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        raise TypeError(f"{description} fails with {reason(error)}") from error


def accepts(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether the function's signature accepts these arguments. True if it has no signature."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # no signature, or a partial with arguments that do not fit: the call itself will fail
        return True
    return True
