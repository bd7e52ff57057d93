"""Record of the random numbers that a program draws: each block of Threefry, with its key and its counter.

Random numbers are drawn from a key, or other keys are derived from it. The counter is a position from 0, or the number folded in:
``jax.random.split(key, 3)`` and ``fold_in(key, 2)`` use the same block. Numbers that share a block are not independent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import Agent
from jaxrl.xla.private_jax import ClosedJaxpr, Literal, jaxpr_as_fun, jaxprs_in_params, parameter, scan_arguments

DRAWN, MADE = "drawn from", "made of"


class Use(NamedTuple):
    """A use of an array of keys."""

    how: str
    key: Any
    """u32[..., 2]"""
    counters: Any
    """i32[...] or i32[..., n]: the counters of each key."""


def counting(function: Callable[..., Any], *args: Any) -> Callable[..., tuple[list[Use], Any]]:
    """Return a function of such arguments that returns ``(all uses, function(*args))``.

    Only keys and integer scalars of the result are computed; everything else is zeros. So it compiles quickly.
    """
    names: list[str] = []
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)

    def traced(*leaves: Any) -> Any:
        results, found = _run(closed, leaves)
        names[:] = [use.how for use in found]
        kept = [x for x in results if _is_kept(x)]
        return [use[1:] for use in found], kept

    walked, out = jax.make_jaxpr(traced, return_shape=True)(*jax.tree.leaves(args))
    program = jax.jit(jaxpr_as_fun(walked))  # JAX leaves out unused computations

    def counted(*args: Any) -> tuple[list[Use], Any]:
        found, kept = jax.tree.unflatten(jax.tree.structure(out), program(*jax.tree.leaves(args)))
        left = iter(kept)
        result = jax.tree.map(lambda x: next(left) if _is_kept(x) else jnp.zeros(x.shape, x.dtype), shapes)
        return [Use(how, *map(np.asarray, use)) for how, use in zip(names, found, strict=True)], result

    return counted


def _is_kept(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key) or (x.shape == () and jnp.issubdtype(x.dtype, jnp.integer))


def uses_of(agent: Agent, iterations: int = 2) -> list[Use]:
    """Return the uses of ``agent.init`` and of ``iterations`` steps after it."""
    key = jax.random.key(7)
    found, state = counting(agent.init, key)(key)
    step = counting(agent.step, state)
    for _ in range(iterations):
        more, (state, _) = step(state)
        found += more
    return found


WORDS = np.uint32(2**32 - 1)
"""The counter that stands for a key's own words."""
BLOCK = np.dtype([("key", np.uint64), ("counter", np.uint32)])


def twice(found: Sequence[Use]) -> list[str]:
    """Return the errors in these uses: blocks that are drawn more than once, or drawn and also used to derive a key.

    Deriving the same key twice is not an error.
    """
    drawn, derived = (_blocks(use for use in found if use.how == how) for how in (DRAWN, MADE))
    blocks, count = np.unique(drawn, return_counts=True)
    again, both = blocks[count > 1], np.intersect1d(blocks, derived)
    wrong = [f"{key:016x} is drawn from twice" for key in np.unique(again["key"])]
    return wrong + [f"{key:016x} is drawn from, and keys are made of the same numbers" for key in np.unique(both["key"])]


def _blocks(found: Iterator[Use]) -> np.ndarray:
    parts = [np.empty(0, BLOCK)]
    for _, key, counters in found:
        part = np.empty((math.prod(key.shape[:-1]), math.prod(counters.shape[key.ndim - 1 :])), BLOCK)
        words = key.reshape(-1, 2).astype(np.uint64)
        part["key"] = (words[:, 0] << np.uint64(32) | words[:, 1])[:, None]
        part["counter"] = counters.reshape(part.shape).astype(np.uint32)
        parts.append(part.ravel())
    return np.concatenate(parts)


# ---------------------------------------------------------------------------------------------------------- walking the program


def _run(closed: ClosedJaxpr, args: Sequence[Any]) -> tuple[list[Any], list[Use]]:
    """Return ``(results, uses)`` of a traced function."""
    jaxpr, found = closed.jaxpr, list[Use]()
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))
    read = lambda x: x.val if isinstance(x, Literal) else known[x]  # noqa: E731
    for random, eqns in itertools.groupby(jaxpr.eqns, _is_random):
        if not random:
            known |= _plainly(jaxpr, list(eqns), known)
            continue
        for eqn in eqns:
            name, values = eqn.primitive.name, [*map(read, eqn.invars)]
            if name in USES:
                found.append(USES[name](eqn.params, *values))
                known |= _plainly(jaxpr, [eqn], known)
                continue
            results, more = WALKS.get(name, _call)(eqn, values)
            known |= zip(eqn.outvars, results, strict=True)
            found += more
    found += [Use(DRAWN, known[x], jnp.full((*x.aval.shape[:-1], 1), WORDS)) for x in _numbers(jaxpr)]
    return [*map(read, jaxpr.outvars)], found


def _numbers(jaxpr: Any) -> list[Any]:
    """Return the words of keys that are used as random numbers, as in ``sample_each``, and not only to wrap a key again."""
    words = [eqn.outvars[0] for eqn in jaxpr.eqns if eqn.primitive.name == "random_unwrap"]
    others = {x for eqn in jaxpr.eqns if eqn.primitive.name != "random_wrap" for x in eqn.invars if not isinstance(x, Literal)}
    return [x for x in words if x in others]


def _plainly(jaxpr: Any, eqns: list[Any], known: dict[Any, Any]) -> dict[Any, Any]:
    """Evaluate some equations as a separate program. Return their outputs."""
    outputs = [x for eqn in eqns for x in eqn.outvars]
    internal = set(outputs)
    needed = [*dict.fromkeys(x for eqn in eqns for x in eqn.invars if not isinstance(x, Literal) and x not in internal)]
    part = ClosedJaxpr(jaxpr.replace(constvars=[], invars=needed, outvars=outputs, eqns=eqns), ())
    return dict(zip(outputs, jaxpr_as_fun(part)(*[known[x] for x in needed]), strict=True))


def _is_random(eqn: Any) -> bool:
    return eqn.primitive.name in USES or _looks_at_keys(jaxprs_in_params(eqn.params))


def _looks_at_keys(jaxprs: Any) -> bool:
    inner = [eqn for jaxpr in jaxprs for eqn in jaxpr.eqns]
    return any(eqn.primitive.name in {*USES, "random_unwrap"} or _looks_at_keys(jaxprs_in_params(eqn.params)) for eqn in inner)


def _call(eqn: Any, values: Sequence[Any]) -> tuple[list[Any], list[Use]]:
    """Walk into jit, custom_jvp_call, custom_vmap_call, remat, …; a loop of unknown length cannot return its uses."""
    assert eqn.primitive.name != "while", "draws in a while loop are not counted"
    (inner,) = jaxprs_in_params(eqn.params)
    closed = [x for x in eqn.params.values() if isinstance(x, ClosedJaxpr)] or [ClosedJaxpr(inner, ())]
    return _run(closed[0], values)


def _scan(eqn: Any, values: Sequence[Any]) -> tuple[list[Any], list[Use]]:
    body, (consts, carried), names = parameter(eqn, "jaxpr"), scan_arguments(eqn), list[str]()

    def iteration(carry: Any, x: Any) -> Any:
        results, found = _run(body, [*values[:consts], *carry, *x])
        names[:] = [use.how for use in found]
        return results[:carried], (results[carried:], [use[1:] for use in found])

    start, xs = list(values[consts : consts + carried]), list(values[consts + carried :])
    how = {name: parameter(eqn, name) for name in ("length", "reverse")}
    last, (stacked, found) = jax.lax.scan(iteration, start, xs, **how)
    return [*last, *stacked], [Use(how, *use) for how, use in zip(names, found, strict=True)]


def _cond(eqn: Any, values: Sequence[Any]) -> tuple[list[Any], list[Use]]:
    """Walk into all branches; of branches for platforms, only into the first."""
    index, *operands = values
    each = [_run(branch, operands) for branch in parameter(eqn, "branches")]
    results = [jax.lax.select_n(index, *x) for x in zip(*(results for results, _ in each), strict=True)]
    counted = each[:1] if eqn.params.get("branches_platforms") else each
    return results, [use for _, found in counted for use in found]


WALKS = {"scan": _scan, "cond": _cond}


def _bits(params: Any, keys: Any) -> Use:
    count = math.prod(params["shape"])
    counters = jnp.broadcast_to(jnp.arange(count, dtype=jnp.uint32), (*keys.shape, count))
    return Use(DRAWN, jax.random.key_data(keys), counters)


def _split(params: Any, keys: Any) -> Use:
    return _bits(params, keys)._replace(how=MADE)


def _fold_in(params: Any, keys: Any, data: Any) -> Use:
    words, data = jax.random.key_data(keys), jnp.asarray(data).astype(jnp.uint32)
    shape = jnp.broadcast_shapes(keys.shape, data.shape)
    return Use(MADE, jnp.broadcast_to(words, (*shape, 2)), jnp.broadcast_to(data, shape)[..., None])


USES: dict[str, Callable[..., Use]] = {"random_bits": _bits, "random_split": _split, "random_fold_in": _fold_in}
