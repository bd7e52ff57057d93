"""Choice between code for CPUs and code for other devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from jaxrl.xla.private_jax import backends_started

T = TypeVar("T")


def may_run_on_cpu() -> bool:
    """Return False if JAX's default device is an accelerator."""
    return not backends_started() or jax.default_backend() == "cpu"


def on_cpu(*args: Any, cpu: Callable[..., T], default: Callable[..., T]) -> T:
    """Return ``cpu(*args)`` in programs for CPUs, and ``default(*args)`` in others.

    This is for code that is fast on a CPU. If JAX's default device is an accelerator, ``cpu`` is not traced, so programs that run
    on the CPU of such a machine have the default too.
    """
    return jax.lax.platform_dependent(*args, cpu=cpu, default=default) if may_run_on_cpu() else default(*args)
