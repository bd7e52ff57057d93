"""Schedules: factors on hyperparameters by iteration, and a warning if a schedule looks like a value instead of a factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.settings.aliases import hint_or, nearest
from jaxrl.settings.validation import check_hyperparam
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Array

Schedule: TypeAlias = Callable[[Array], Array]
"""iteration (i32[], including the warm-up) -> factor on a hyperparameter."""

H = TypeVar("H")

LEAST = 0.05
"""A schedule that never exceeds this factor is assumed to be a mistake."""


class ScheduleWarning(UserWarning):
    """Warning: a schedule looks like the value of a hyperparameter, but is used as a factor on it."""


def doubtful(schedules: Mapping[str, Any], hyperparams: Any, iterations: int | None = None) -> Iterator[str]:
    """Yield a warning for each schedule whose factor never exceeds ``LEAST``, and for each that leaves the hyperparameter's range
    within the run. This computes, so it starts a JAX backend.

    Args:
      schedules: name of a hyperparameter -> function of the iteration.
      hyperparams: base values of the hyperparameters.
      iterations: of the run, including the warm-up; None if unknown.
    """
    grid = np.linspace(0, iterations, 101) if iterations else np.array([0, *(2**k for k in range(31))])
    for name, schedule in schedules.items():
        with jax.ensure_compile_time_eval():
            factors = np.asarray(jax.vmap(schedule)(jnp.asarray(grid, jnp.int32)))
        value, most = float(getattr(hyperparams, name)), float(factors.max())
        if iterations:
            yield from _outside(name, hyperparams, value, factors)
        if most <= LEAST:
            yield (
                f"schedules[{name!r}] is at most {most:.3g}, as a factor on {name}={value:.3g}, so the product is at most "
                f"{most * value:.3g}. If the schedule returns the value itself, divide it: lambda i: schedule(i) / {value:.3g}"
            )


def _outside(name: str, hyperparams: Any, value: float, factors: np.ndarray) -> Iterator[str]:
    for factor in (float(factors.min()), float(factors.max())):
        try:
            check_hyperparam(hyperparams, name, round(factor, 6) * value)  # −1e-9 at the end of a cosine is rounding
        except ValueError as error:
            yield f"schedules[{name!r}], as a factor on {name}={value:.3g}, leaves its range during the run: {error}"


def check_schedules(schedules: Mapping[str, Schedule] | None, fields: tuple[str, ...]) -> dict[str, Schedule]:
    """Check that schedules name hyperparameters of the algorithm and return one number each."""
    if not isinstance(schedules, Mapping | None):
        raise TypeError(f"schedules={schedules!r} must map names of hyperparameters to functions: {{'learning_rate': …}}")
    for name, schedule in (schedules or {}).items():
        if name not in fields:
            said = hint_or(nearest(name, fields), f"Allowed: {sorted(fields)}.")
            raise ValueError(f"schedules[{name!r}] does not name a hyperparameter.{said}")
        if not callable(schedule):
            raise TypeError(f"schedules[{name!r}]={schedule!r} must be a function of the iteration that returns a factor")
        _check_schedule(f"schedules[{name!r}]", schedule)
    return dict(schedules or {})


def _check_schedule(subject: str, schedule: Schedule) -> None:
    must = "it must return one number, a factor on the hyperparameter, for an iteration (i32[], traced)"
    try:
        factor = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise TypeError(f"{subject} fails with {type(error).__name__}: {lines[0]}. {must[0].upper()}{must[1:]}") from error
    if getattr(factor, "shape", None) != () or factor.dtype.kind not in "iuf":
        raise TypeError(f"{subject} returns {show_shapes(factor)}: {must}")


def scheduled(hyperparams: H, schedules: Mapping[str, Schedule], iteration: Array, *, annealed_rows: int = 0) -> H:
    """Multiply each scheduled hyperparameter by its factor.

    Args:
      iteration: i32[], number of iterations before this one, including the warm-up. A schedule over
        total_steps / steps_per_iteration iterations therefore ends with the run.
      annealed_rows: rows per iteration if learning rates without a schedule are annealed linearly to 0; 0 if not.
    """
    scaled = {name: getattr(hyperparams, name) * schedule(iteration) for name, schedule in schedules.items()}
    if annealed_rows:
        rates: Any = hyperparams
        left = remaining(iteration, annealed_rows, rates.total_steps)
        scaled |= {
            name: getattr(rates, name) * left for name in rates._fields if name.endswith("learning_rate") and name not in scaled
        }
    return hyperparams._replace(**scaled)  # type: ignore[attr-defined]


def remaining(iteration: Array, rows: int, total_steps: Array) -> Array:
    """Return the remaining fraction of a run before an iteration of ``rows`` rows, f32[]; 1 if ``total_steps`` is 0 (unknown)."""
    share = 1.0 - jnp.asarray(iteration, jnp.float32) * rows / jnp.maximum(total_steps, 1.0)
    return jnp.where(jnp.asarray(total_steps) > 0, jnp.maximum(share, 0.0), 1.0)
