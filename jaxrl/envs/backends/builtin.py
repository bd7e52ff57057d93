"""The backend ``jaxrl``: small pure environments of our own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from jaxrl.envs.builtin.bit_flip import bit_flip
from jaxrl.envs.builtin.reach import reach
from jaxrl.envs.ids import check_known, check_name, check_option, smallest
from jaxrl.types import Env

MAKERS: dict[str, Callable[..., Env]] = {"BitFlip": bit_flip, "Reach": reach}
"""By name; an environment's options are the function's arguments."""


def list_names() -> list[str]:
    return [*MAKERS]


def family(name: str) -> str:
    return "goals"


def make(name: str, options: dict[str, Any]) -> Env:
    """An environment of our own, which its own function describes."""
    label = f"jaxrl:{name}"
    check_name("jaxrl", name, MAKERS)
    defaults = {option: parameter.default for option, parameter in inspect.signature(MAKERS[name]).parameters.items()}
    check_known(label, options, defaults)
    for option, value in options.items():
        check_option(label, option, value, defaults[option], at_least=smallest(defaults[option]))
    return MAKERS[name](**options)
