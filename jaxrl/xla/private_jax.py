"""Interfaces of JAX that it may change without notice, all in one place.

Each has another way for where it is missing or, where there is none, an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

NEWEST = "0.11.2"
"""The newest JAX that all tests have passed with."""


class NotInThisJax(ImportError):
    """JAX has changed in a place that jaxrl depends on."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f'jax {jax.__version__} has no {what}, which this part of jaxrl needs: pip install "jax<={NEWEST}", or a newer jaxrl'
        )


# ---------------------------------------------------------------------------------------------------------------- traced programs


NAMES = ("ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "jaxpr_as_fun", "jaxprs_in_params")


def _refusing(name: str) -> Any:
    """Stands for a class or function that JAX does not have: whatever is done with it raises ``NotInThisJax``."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotInThisJax(f"jax.extend.core.{name}")

    return type(name, (type,), {"__call__": refuse, "__instancecheck__": refuse})(name, (), {})


if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr as ClosedJaxpr
    from jax.extend.core import Jaxpr as Jaxpr
    from jax.extend.core import JaxprEqn as JaxprEqn
    from jax.extend.core import Literal as Literal
    from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun
    from jax.extend.core import jaxprs_in_params as jaxprs_in_params
else:
    try:
        from jax.extend import core
    except ImportError:
        core = None
    for _name in NAMES:
        globals()[_name] = getattr(core, _name, None) or _refusing(_name)


def is_traced(x: Any) -> bool:
    """Whether ``x`` is an array of a program that is being traced, without values."""
    tracer = getattr(jax.core, "Tracer", None)
    if tracer is not None:
        return isinstance(x, tracer)
    try:
        return isinstance(x, jax.Array) and not isinstance(x.is_fully_addressable, bool)
    except jax.errors.ConcretizationTypeError:
        return True


def parameter(eqn: JaxprEqn, *names: str) -> Any:
    """The parameter of an equation of a jaxpr that has one of these names, in one version of JAX or another."""
    for name in names:
        if name in eqn.params:
            return eqn.params[name]
    raise NotInThisJax(f"parameter {' or '.join(names)} of {eqn.primitive.name}")


class Loop(NamedTuple):
    """What goes into a loop: constants, then values that it carries, then rows that it scans."""

    num_consts: int
    num_carried: int


def scan_arguments(eqn: JaxprEqn) -> Loop:
    """Of a ``scan``. Told by shapes, which its semantics fix, for the parameters that count them have changed: rows that are
    scanned or stacked have one more axis outside of its body than inside."""
    body = parameter(eqn, "jaxpr").jaxpr

    def rows(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        return sum(len(x.aval.shape) > len(y.aval.shape) for x, y in zip(outside, inside, strict=True))

    num_carried = len(eqn.outvars) - rows(eqn.outvars, body.outvars)
    return Loop(len(eqn.invars) - rows(eqn.invars, body.invars) - num_carried, num_carried)


def while_arguments(eqn: JaxprEqn) -> tuple[int, int]:
    """The numbers of constants of a ``while``'s condition and of its body, which come before what it carries."""
    num_carried = len(eqn.outvars)
    condition, body = (len(parameter(eqn, name).jaxpr.invars) - num_carried for name in ("cond_jaxpr", "body_jaxpr"))
    return condition, body


def needed_part(jaxpr: Jaxpr) -> Jaxpr:
    """Without what none of its outputs needs."""
    try:
        from jax.interpreters.partial_eval import dce_jaxpr
    except ImportError:
        raise NotInThisJax("jax.interpreters.partial_eval.dce_jaxpr") from None
    needed, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return needed


# ------------------------------------------------------------------------------------------------------------------- random bits


def define_prng(name: str, key_shape: tuple[int, ...], **functions: Callable[..., Any]) -> Any:
    """A generator of random bits for typed keys, made of ``seed``, ``split``, ``random_bits`` and ``fold_in``; None where JAX
    takes none."""
    try:
        from jax.extend.random import define_prng_impl

        return define_prng_impl(key_shape=key_shape, name=name, tag=name, **functions)
    except (ImportError, TypeError):
        return None


# ----------------------------------------------------------------------------------------------------------- settings, processes


def setting(name: str) -> Any:
    """The value of a setting of JAX, such as ``jax_num_cpu_devices``."""
    values = getattr(jax.config, "values", None)
    return getattr(jax.config, name) if values is None else values[name]


def backends_started() -> bool:
    """Whether JAX has counted its devices; False where it does not say, and then itself refuses what comes too late."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return False


class Coordination(NamedTuple):
    """What a process of ``jax.distributed`` knows of its group."""

    store: Any
    """Of short texts, which all processes read and write."""
    process_id: int
    num_processes: int


def coordination() -> Coordination | None:
    """None in a process that has not joined a group.

    Raises:
      NotInThisJax: it has, and there is no way to its store.
    """
    if not jax.distributed.is_initialized():
        return None
    try:
        from jax._src import distributed  # its store has no public door; orbax goes in here, too

        state = distributed.global_state
        return Coordination(state.client, int(state.process_id or 0), int(state.num_processes or 1))
    except (ImportError, AttributeError):
        raise NotInThisJax("jax._src.distributed.global_state") from None


# -------------------------------------------------------------------------------------------------------------- compiler options

_known: dict[tuple[str, str, Any], bool] = {}


def known_options(options: Mapping[str, Any], platform: str = "cpu") -> dict[str, Any]:
    """Those options of the compiler that this jaxlib knows: it refuses a program that is compiled with another.

    It is asked with an empty program, which takes it a hundredth of a second, once per process. This starts JAX's backend.
    """
    new = {name: value for name, value in options.items() if (platform, name, value) not in _known}
    all_known = not new or _compiles(new, platform)
    for name, value in new.items():
        _known[platform, name, value] = all_known or _compiles({name: value}, platform)
    return {name: value for name, value in options.items() if _known[platform, name, value]}


def _compiles(options: dict[str, Any], platform: str) -> bool:
    with jax.default_device(jax.local_devices(backend=platform)[0]):
        program = jax.jit(lambda: 0).lower()
    try:
        program.compile(options)
    except jax.errors.JaxRuntimeError:
        return False
    return True
