"""Constants of third-party environments, evaluated without a JAX backend, so that building an agent does not start one.

gymnax creates arrays with ``jnp`` on import and on construction. This module traces such code and evaluates the few operations on
constants in the trace with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.xla.private_jax import ClosedJaxpr, Literal, NotInThisJax, is_traced


class Table(np.ndarray):
    """NumPy array that accepts traced indices, as a JAX array does."""

    def __getitem__(self, index: Any) -> Any:
        return jnp.asarray(np.asarray(self))[index]


def constants(function: Callable[[], Any]) -> Any:
    """Return the pytree that ``function()`` returns, with JAX arrays converted to NumPy. Other leaves may be of any type.

    Raises:
      ConcretizationTypeError or a similar error: the function reads values of arrays, as in ``if array[0]:``.
    """
    leaves: list[Any] = []
    structure: Any = None

    def traced() -> list[Any]:
        nonlocal leaves, structure
        leaves, structure = jax.tree.flatten(function())
        return [leaf for leaf in leaves if is_traced(leaf)]

    closed = jax.make_jaxpr(traced)()
    try:
        values = iter(_evaluate(closed))
    except (NotImplementedError, NotInThisJax):  # fall back to a backend, which is always correct
        values = map(np.asarray, jax.jit(traced)())
    return structure.unflatten([next(values) if is_traced(leaf) else leaf for leaf in leaves])


def _evaluate(closed: ClosedJaxpr) -> list[np.ndarray]:
    """Evaluate a jaxpr without arguments. Only equations that an output needs are computed."""
    known = {variable: np.asarray(value) for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True)}
    equations = {variable: equation for equation in closed.jaxpr.eqns for variable in equation.outvars}

    def value(variable: Any) -> np.ndarray:
        if isinstance(variable, Literal):
            return np.asarray(variable.val, variable.aval.dtype)  # type: ignore[attr-defined]
        if variable not in known:
            equation = equations[variable]
            known[variable] = _apply(equation.primitive.name, [value(x) for x in equation.invars], equation.params)
        return known[variable]

    return [value(variable) for variable in closed.jaxpr.outvars]


def _apply(operation: str, inputs: Sequence[np.ndarray], params: dict[str, Any]) -> np.ndarray:
    match operation:
        case "neg":
            return np.negative(inputs[0])
        case "convert_element_type":
            return inputs[0].astype(params["new_dtype"])
        case "broadcast_in_dim" if inputs[0].ndim == 0:
            return np.broadcast_to(inputs[0], params["shape"])
        case "concatenate":
            return np.concatenate(inputs, params["dimension"])
        case "select_n" if inputs[0].ndim == 0:
            return inputs[1 + int(inputs[0])]
    raise NotImplementedError(operation)
