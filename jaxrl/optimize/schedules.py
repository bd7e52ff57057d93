"""Schedules: factors on hyperparameters, indexed by iteration; and a warning for one that looks like a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.settings.aliases import hint_or, nearest
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Array

Schedule: TypeAlias = Callable[[Array], Array]
"""iteration (i32[], the warm-up's included) -> a factor on a hyperparameter."""

H = TypeVar("H")

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


def check_schedules(schedules: Mapping[str, Schedule] | None, fields: tuple[str, ...]) -> dict[str, Schedule]:
    """Refuse schedules for hyperparameters that the rule does not have, or that give no number."""
    if not isinstance(schedules, Mapping | None):
        raise TypeError(f"schedules={schedules!r} must map names of hyperparameters to functions: {{'learning_rate': …}}")
    for name, schedule in (schedules or {}).items():
        if name not in fields:
            said = hint_or(nearest(name, fields), f"Allowed: {sorted(fields)}.")
            raise ValueError(f"schedules[{name!r}] names no hyperparameter.{said}")
        if not callable(schedule):
            raise TypeError(f"schedules[{name!r}]={schedule!r} must be a function of the iteration that gives a factor")
        _check_schedule(f"schedules[{name!r}]", schedule)
    return dict(schedules or {})


def _check_schedule(what: str, schedule: Schedule) -> None:
    must = "it must give one number, a factor on the hyperparameter, for an iteration (i32[], traced)"
    try:
        factor = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise TypeError(f"{what} fails with {type(error).__name__}: {lines[0]}. {must[0].upper()}{must[1:]}") from error
    if getattr(factor, "shape", None) != () or factor.dtype.kind not in "iuf":
        raise TypeError(f"{what} gives {show_shapes(factor)}: {must}")


def scheduled(hyperparams: H, schedules: Mapping[str, Schedule], iteration: Array, *, annealed_rows: int = 0) -> H:
    """``hyperparams`` with each scheduled one multiplied by its factor.

    Args:
      iteration: i32[], how many were collected before this one, the warm-up included: so a schedule over
        total_steps / steps_per_iteration iterations ends with the run.
      annealed_rows: the rows of an iteration, where learning rates are annealed, those without a schedule; 0 where they are not.
    """
    now = {name: getattr(hyperparams, name) * schedule(iteration) for name, schedule in schedules.items()}
    if annealed_rows:
        rates: Any = hyperparams
        left = remaining(iteration, annealed_rows, rates.total_steps)
        now |= {name: getattr(rates, name) * left for name in rates._fields if name.endswith("learning_rate") and name not in now}
    return hyperparams._replace(**now)  # type: ignore[attr-defined]


def remaining(iteration: Array, rows: int, total_steps: Array) -> Array:
    """f32[]: the share of a run that lies ahead of an iteration of so many rows; 1 where the run's length is not known (0)."""
    share = 1.0 - jnp.asarray(iteration, jnp.float32) * rows / jnp.maximum(total_steps, 1.0)
    return jnp.where(jnp.asarray(total_steps) > 0, jnp.maximum(share, 0.0), 1.0)
