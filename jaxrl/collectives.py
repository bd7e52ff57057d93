"""The collectives of a program in one order, the same on every device.

XLA starts what does not depend on each other in any order, and jaxlib 0.10.2 tells the collectives of a program on a CPU apart by
nothing: two devices that are at different ones add what does not belong together, wait for ever, or end the process. So each
collective here carries one number, a zero, that came out of the one before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun, jaxprs_in_params
from jax.flatten_util import ravel_pytree

from jaxrl.types import Array, PyTree

REDUCTIONS = ("psum", "psum_invariant", "pmax", "pmin")
"""Primitives whose result for a zero on every device is zero."""
_Values = Sequence[Any]


def in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with each of its reductions over mapped axes (psum, pmean, pmax, pmin) waiting for the one before it.

    Its values are the same. Those in loops, conditions and jitted functions are ordered with the others; those of ``remat`` and of
    rules of differentiation of one's own are left as they are, and so are gathers and permutations.

    Args:
      function: of arrays, called under the axes that it names (pmap, shard_map, or vmap with an ``axis_name``).
    """

    @functools.wraps(function)
    def ordered(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        traced, shapes = jax.make_jaxpr(lambda *leaves: function(*tree.unflatten(leaves)), return_shape=True)(*leaves)
        _, values = _evaluate(traced, _everywhere(jnp.zeros(())), leaves)
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    return ordered


def together(reduction: Callable[[Array, str], Array], tree: PyTree, axis_name: str) -> PyTree:
    """``reduction`` (psum, pmax, …) over a mapped axis of all leaves: one collective for each of their types, not for each of them."""
    leaves, structure = jax.tree.flatten(tree)
    results = list(leaves)
    for dtype in sorted({x.dtype for x in leaves}, key=str):
        places = [i for i, x in enumerate(leaves) if x.dtype == dtype]
        packed, unpack = ravel_pytree([leaves[i] for i in places])
        for i, x in zip(places, unpack(reduction(packed, axis_name)), strict=True):
            results[i] = x
    return structure.unflatten(results)


def _evaluate(closed: ClosedJaxpr, token: Array, args: _Values) -> tuple[Array, list[Any]]:
    """``(token, results)`` of a traced function."""
    jaxpr = closed.jaxpr
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else known[atom]
    for eqn in jaxpr.eqns:
        values = [read(atom) for atom in eqn.invars]
        rule = RULES.get(eqn.primitive.name) if _communicates(eqn) else None
        with jax.named_scope(str(eqn.source_info.name_stack)):
            token, results = rule(eqn, token, values) if rule else (token, _bind(eqn, values))
        known |= zip(eqn.outvars, results, strict=True)
    return token, [read(atom) for atom in jaxpr.outvars]


def _bind(eqn: JaxprEqn, values: _Values) -> list[Any]:
    functions, params = eqn.primitive.get_bind_params(eqn.params)
    results = eqn.primitive.bind(*functions, *values, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def _communicates(eqn: JaxprEqn) -> bool:
    """Whether a reduction is in it, at any depth."""
    inner = (eqn for jaxpr in jaxprs_in_params(eqn.params) for eqn in jaxpr.eqns)
    return eqn.primitive.name in REDUCTIONS or any(map(_communicates, inner))


def _reduce(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    results = []
    for x in values:
        carrier = jnp.concatenate([jnp.ravel(x), token.astype(x.dtype)[None]])
        (reduced,) = _bind(eqn, [carrier])
        results.append(reduced[:-1].reshape(jnp.shape(x)))
        token = _everywhere(reduced[-1].astype(token.dtype))
    return token, results


def _everywhere(token: Array) -> Array:
    """The token, typed as different on each device of every axis of a ``shard_map``, so that loops can carry it."""
    axes = set(jax.sharding.get_abstract_mesh().manual_axes) - jax.typeof(token).vma
    return jax.lax.pcast(token, tuple(axes), to="varying") if axes else token


def _call(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    return _evaluate(eqn.params["jaxpr"], token, values)


def _scan(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    params, body = eqn.params, eqn.params["jaxpr"]
    num_consts, num_carried = params["num_consts"], params["num_carry"]
    consts, start, xs = values[:num_consts], values[num_consts : num_consts + num_carried], values[num_consts + num_carried :]

    def one(carried: Any, x: _Values) -> Any:
        token, results = _evaluate(body, carried[0], [*consts, *carried[1], *x])
        return (token, results[:num_carried]), results[num_carried:]

    how = {name: params[name] for name in ("length", "reverse", "unroll")}
    (token, last), stacked = jax.lax.scan(one, (token, list(start)), list(xs), **how)
    return token, [*last, *stacked]


def _while(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    params, split = eqn.params, eqn.params["cond_nconsts"]
    of_condition, of_body, start = values[:split], values[split : split + params["body_nconsts"]], values[split + params["body_nconsts"] :]
    goes_on = jaxpr_as_fun(params["cond_jaxpr"])
    token, results = jax.lax.while_loop(
        lambda carried: goes_on(*of_condition, *carried[1])[0],
        lambda carried: _evaluate(params["body_jaxpr"], carried[0], [*of_body, *carried[1]]),
        (token, list(start)),
    )
    return token, results


def _switch(eqn: JaxprEqn, token: Array, values: _Values) -> tuple[Array, list[Any]]:
    branches = [functools.partial(_evaluate, branch) for branch in eqn.params["branches"]]
    return jax.lax.switch(values[0], branches, token, values[1:])


RULES: dict[str, Callable[[JaxprEqn, Array, _Values], tuple[Array, list[Any]]]] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    "jit": _call,
    "closed_call": _call,
    "scan": _scan,
    "while": _while,
    "cond": _switch,
}
