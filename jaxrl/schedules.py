"""Schedules that look like values and are taken as factors: a learning rate times the learning rate is its square."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LEAST = 0.05
"""A factor that never exceeds this is taken for a mistake."""


class ScheduleWarning(UserWarning):
    """A schedule looks like the value of a hyperparameter, and is a factor on it."""


def doubtful(schedules: Mapping[str, Any], hyperparams: Any, iterations: int | None = None) -> Iterator[str]:
    """A sentence on each schedule whose factor never exceeds ``LEAST``. Computes, so a backend starts.

    Args:
      schedules: name of a hyperparameter -> function of the iteration.
      hyperparams: those that they are factors on.
      iterations: of the run, the warm-up's included; None: not known.
    """
    grid = np.linspace(0, iterations, 101) if iterations else np.array([0, *(2**k for k in range(31))])
    for name, schedule in schedules.items():
        with jax.ensure_compile_time_eval():
            most = float(np.max(jax.vmap(schedule)(jnp.asarray(grid, jnp.int32))))
        if most <= LEAST:
            value = float(getattr(hyperparams, name))
            yield (
                f"schedules[{name!r}] gives at most {most:.3g}, as a factor on {name}={value:.3g}, which is then at most "
                f"{most * value:.3g}. If it is meant as the value itself, divide by that: lambda i: schedule(i) / {value:.3g}"
            )
