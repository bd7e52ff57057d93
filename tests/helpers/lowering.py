"""Programs for platforms that this machine may not have. JAX lowers them on any machine; nothing is compiled or run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax

ACCELERATORS = ("cuda", "tpu")


def lowered(function: Callable[..., Any], *args: Any, platforms: Sequence[str] = ACCELERATORS) -> str:
    """Return the program for all of these platforms, without the parts that `platform_dependent` chooses for others."""
    return str(jax.jit(function).trace(*args).lower(lowering_platforms=tuple(platforms)).as_text())


def operations(program: str) -> Counter[str]:
    """Count a program's operations by name, except constants and choices of platforms."""
    found = re.findall(r"(?<=stablehlo\.)\w+", program)
    return Counter(name for name in found if name not in ("case", "constant", "return"))
