"""Backend ``jaxrl``: small pure environments of this library, goal-conditioned tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl.envs.builtin.bit_flip import bit_flip
from jaxrl.envs.builtin.reach import reach
from jaxrl.envs.ids import check_name, check_options, defaults_of
from jaxrl.types import Env

MAKERS: dict[str, Callable[..., Env]] = {"BitFlip": bit_flip, "Reach": reach}
"""Functions that make the environments, by name. The options of an environment are the function's arguments."""


def list_names() -> list[str]:
    return [*MAKERS]


def family(name: str) -> str:
    return "goals"


def make(name: str, options: dict[str, Any]) -> Env:
    """Make an environment of this library. Its function in ``MAKERS`` documents it."""
    check_name("jaxrl", name, MAKERS)
    check_options(f"jaxrl:{name}", options, defaults_of(MAKERS[name]))
    return MAKERS[name](**options)
