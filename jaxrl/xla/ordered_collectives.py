"""Collectives in the same order on every device, for CPUs.

XLA starts independent operations in any order, and jaxlib 0.10.2 does not distinguish the collectives of a program on a CPU. If
two devices are at different collectives, they add unrelated values, wait forever, or end the process. So on a CPU each collective
carries one number, a zero, from the result of the previous one. On other devices independent collectives overlap.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.types import Array
from jaxrl.xla.collectives import varying
from jaxrl.xla.private_jax import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    jaxpr_as_fun,
    jaxprs_in_params,
    parameter,
    scan_arguments,
    while_arguments,
)

REDUCTIONS = ("psum", "psum_invariant", "pmax", "pmin")
"""Primitives that map a zero on every device to zero."""
_Values = Sequence[Any]


def in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make each of a function's reductions over mapped axes (psum, pmean, pmax, pmin) wait for the previous one, on a CPU.

    The results are the same. Reductions in loops, branches and jitted functions are included. Those in ``remat`` and in the
    conditions of loops are not ordered, nor are gathers and permutations.

    Args:
      function: function of arrays, called under the axes that it names (pmap, shard_map, or vmap with an ``axis_name``).
    """

    @functools.wraps(function)
    def ordered(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        traced, shapes = jax.make_jaxpr(lambda *leaves: function(*tree.unflatten(leaves)), return_shape=True)(*leaves)

        def chained(*leaves: Any) -> list[Any]:
            return _evaluate(traced, _everywhere(jnp.zeros(())), leaves)[1]

        values = jax.lax.platform_dependent(*leaves, cpu=chained, default=jaxpr_as_fun(traced))
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    return ordered


def _evaluate(closed: ClosedJaxpr, token: Array, args: _Values) -> tuple[Array, list[Any]]:
    """Evaluate a traced function; return ``(token, results)``."""
    jaxpr = closed.jaxpr
    known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for ordered, eqns in itertools.groupby(jaxpr.eqns, _is_ordered):
        if not ordered:
            part = _part(jaxpr, list(eqns))
            known |= zip(part.outvars, jaxpr_as_fun(ClosedJaxpr(part, ()))(*map(read, part.invars)), strict=True)
            continue
        for eqn in eqns:
            with jax.named_scope(str(eqn.source_info.name_stack)):
                token, results = PRIMITIVE_HANDLERS[eqn.primitive.name](eqn, token, [*map(read, eqn.invars)])
            known |= zip(eqn.outvars, results, strict=True)
    return token, [read(atom) for atom in jaxpr.outvars]


def _part(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> Jaxpr:
    """Extract consecutive equations of a program as a program, from all variables that they need to all that they define."""
    outvars = [x for eqn in eqns for x in eqn.outvars]
    defined = set(outvars)
    read = dict.fromkeys(x for eqn in eqns for x in eqn.invars if not isinstance(x, Literal))
    return jaxpr.replace(constvars=[], invars=[x for x in read if x not in defined], outvars=outvars, eqns=eqns)


def _is_ordered(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in PRIMITIVE_HANDLERS and _communicates(eqn)


def _communicates(eqn: JaxprEqn) -> bool:
    """Return True if the equation contains a reduction, at any depth."""
    inner = (eqn for jaxpr in jaxprs_in_params(eqn.params) for eqn in jaxpr.eqns)
    return eqn.primitive.name in REDUCTIONS or any(map(_communicates, inner))


def _reduce(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    (x,) = values
    reduced = eqn.primitive.bind(jnp.concatenate([jnp.ravel(x), token.astype(x.dtype)[None]]), **eqn.params)
    return _everywhere(reduced[-1].astype(token.dtype)), [reduced[:-1].reshape(x.shape)]


def _everywhere(token: Array) -> Array:
    """Type the token as varying over all axes, so that its type is always the same and loops can carry it."""
    return varying(token, *jax.sharding.get_abstract_mesh().manual_axes)


def _call(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    return _evaluate(parameter(eqn, "jaxpr", "call_jaxpr"), token, values)


def _scan(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    body, (num_consts, num_carried) = parameter(eqn, "jaxpr"), scan_arguments(eqn)
    consts, start, xs = values[:num_consts], values[num_consts : num_consts + num_carried], values[num_consts + num_carried :]

    def step(carried: Any, x: _Values) -> Any:
        token, results = _evaluate(body, carried[0], [*consts, *carried[1], *x])
        return (token, results[:num_carried]), results[num_carried:]

    scan_options = {name: parameter(eqn, name) for name in ("length", "reverse", "unroll")}
    (token, last), stacked = jax.lax.scan(step, (token, list(start)), list(xs), **scan_options)
    return token, [*last, *stacked]


def _while(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    of_condition, of_body = while_arguments(eqn)
    condition_consts, body_consts = values[:of_condition], values[of_condition : of_condition + of_body]
    goes_on, body = jaxpr_as_fun(parameter(eqn, "cond_jaxpr")), parameter(eqn, "body_jaxpr")
    return jax.lax.while_loop(
        lambda carried: goes_on(*condition_consts, *carried[1])[0],
        lambda carried: _evaluate(body, carried[0], [*body_consts, *carried[1]]),
        (token, list(values[of_condition + of_body :])),
    )


def _switch(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    branches = [functools.partial(_evaluate, branch) for branch in parameter(eqn, "branches")]
    of_platforms = eqn.params.get("branches_platforms")
    if of_platforms is None:
        return jax.lax.switch(values[0], branches, token, values[1:])
    chosen = {name: branch for names, branch in zip(of_platforms, branches, strict=True) for name in names or ("default",)}
    return jax.lax.platform_dependent(token, values[1:], **chosen)


PRIMITIVE_HANDLERS: dict[str, Callable[[JaxprEqn, Array, _Values], tuple[Array, list[Any]]]] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    "jit": _call,
    "closed_call": _call,
    "eval_jaxpr": _call,  # ``closed_call`` in newer versions of JAX
    "scan": _scan,
    "while": _while,
    "cond": _switch,
}
