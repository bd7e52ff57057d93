"""Interfaces of JAX that may change without notice, all in one place.

If an interface is missing, there is a fallback, or an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

NEWEST = "0.11.2"
"""Newest version of JAX that passes all tests."""


class NotInThisJax(ImportError):
    """Error: JAX has changed an interface that jaxrl depends on."""

    def __init__(self, interface: str) -> None:
        super().__init__(
            f'jax {jax.__version__} has no {interface}, which jaxrl needs here: pip install "jax<={NEWEST}", or a newer jaxrl'
        )


NAMES = ("ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "jaxpr_as_fun", "jaxprs_in_params")


def _refusing(name: str) -> Any:
    """Return a stand-in for a missing class or function of JAX. Calls and ``isinstance`` checks raise ``NotInThisJax``."""

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
    """Return True if ``x`` is a traced array, without values."""
    tracer = getattr(jax.core, "Tracer", None)
    if tracer is not None:
        return isinstance(x, tracer)
    try:
        return isinstance(x, jax.Array) and not isinstance(x.is_fully_addressable, bool)
    except jax.errors.ConcretizationTypeError:
        return True


def parameter(eqn: JaxprEqn, *names: str) -> Any:
    """Return the parameter of a jaxpr's equation that has one of these names, which differ between versions of JAX."""
    for name in names:
        if name in eqn.params:
            return eqn.params[name]
    raise NotInThisJax(f"parameter {' or '.join(names)} of {eqn.primitive.name}")


class Loop(NamedTuple):
    """Inputs of a loop: constants, then carried values, then scanned rows."""

    num_consts: int
    num_carried: int


def scan_arguments(eqn: JaxprEqn) -> Loop:
    """Count the inputs of a ``scan`` by their shapes, since the parameters that count them have changed between versions.

    Scanned and stacked rows have one more axis outside the body than inside.
    """
    body = parameter(eqn, "jaxpr").jaxpr

    def rows(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        return sum(len(x.aval.shape) > len(y.aval.shape) for x, y in zip(outside, inside, strict=True))

    num_carried = len(eqn.outvars) - rows(eqn.outvars, body.outvars)
    return Loop(len(eqn.invars) - rows(eqn.invars, body.invars) - num_carried, num_carried)


def while_arguments(eqn: JaxprEqn) -> tuple[int, int]:
    """Return the numbers of constants of a ``while``'s condition and of its body. They precede the carried values."""
    num_carried = len(eqn.outvars)
    condition, body = (len(parameter(eqn, name).jaxpr.invars) - num_carried for name in ("cond_jaxpr", "body_jaxpr"))
    return condition, body


def needed_part(jaxpr: Jaxpr) -> Jaxpr:
    """Remove the equations that no output needs."""
    try:
        from jax.interpreters.partial_eval import dce_jaxpr
    except ImportError:
        raise NotInThisJax("jax.interpreters.partial_eval.dce_jaxpr") from None
    needed, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return needed


def define_prng(name: str, key_shape: tuple[int, ...], **functions: Callable[..., Any]) -> Any:
    """Define a generator of random bits for typed keys from ``seed``, ``split``, ``random_bits`` and ``fold_in``.

    Return None if JAX does not support custom generators.
    """
    try:
        from jax.extend.random import define_prng_impl

        return define_prng_impl(key_shape=key_shape, name=name, tag=name, **functions)
    except (ImportError, TypeError):
        return None


def setting(name: str) -> Any:
    """Return the value of a setting of JAX, such as ``jax_num_cpu_devices``."""
    values = getattr(jax.config, "values", None)
    return getattr(jax.config, name) if values is None else values[name]


def backends_started() -> bool:
    """Return True if JAX has started its backends; False if unknown, in which case JAX itself refuses settings made too late."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return False


class Coordination(NamedTuple):
    """Group of processes of ``jax.distributed``, as seen by one of them."""

    store: Any
    """Store of short texts, which all processes read and write."""
    process_id: int
    num_processes: int


def coordination() -> Coordination | None:
    """Return the group of this process, or None if it has not joined one.

    Raises:
      NotInThisJax: the process has joined a group, but its store is not accessible.
    """
    if not jax.distributed.is_initialized():
        return None
    try:
        from jax._src import distributed  # the store has no public interface; orbax also uses this one

        state = distributed.global_state
        return Coordination(state.client, int(state.process_id or 0), int(state.num_processes or 1))
    except (ImportError, AttributeError):
        raise NotInThisJax("jax._src.distributed.global_state") from None


_known: dict[tuple[str, str, Any], bool] = {}


def known_options(options: Mapping[str, Any], platform: str = "cpu") -> dict[str, Any]:
    """Return the compiler options that this jaxlib knows; it refuses to compile with others.

    It compiles an empty program with them, which takes a hundredth of a second, once per process. This starts JAX's backend.
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
