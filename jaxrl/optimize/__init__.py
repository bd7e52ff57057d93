"""Optimizers: clipped Adam and RMSProp, and the hyperparameters that an optimizer reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax

from jaxrl.settings.aliases import nearest
from jaxrl.settings.loadable import component
from jaxrl.types import Array, PyTree

OptimizerFn: TypeAlias = Callable[[Any], optax.GradientTransformation]
"""hyperparams -> optimizer. It is called inside the trace, so that its scalars are data."""
Optimizer: TypeAlias = OptimizerFn | optax.GradientTransformation
"""``optimizer`` of a builder. A plain transformation reads no hyperparameters."""
F = TypeVar("F", bound=OptimizerFn)


def elementwise(optimizer: F) -> F:
    """Declare that an optimizer treats all elements of the parameters alike, except for their global norm.

    It then gets small parameters as one vector, which is faster (``jaxrl.xla.packed_parameters``). Its state in checkpoints is
    the state for that vector.
    """
    vars(optimizer)["elementwise"] = True
    return optimizer


def is_elementwise(optimizer: OptimizerFn) -> bool:
    """Return True for an optimizer declared as ``elementwise``. A ``partial`` of one is not: its saved states are trees."""
    return getattr(optimizer, "elementwise", False)


@component("optimizer")
@elementwise
def clipped_adam(hyperparams: Any) -> optax.GradientTransformation:
    """Return Adam (Kingma & Ba 2015) at ``learning_rate``, after clipping the gradient's global norm to ``max_grad_norm``.

    ε and β₁ are the hyperparameters ``adam_eps`` and ``adam_b1`` of algorithms that have them, else 1e-5 and 0.9.
    """
    adam = _adam(hyperparams.learning_rate, getattr(hyperparams, "adam_eps", 1e-5), getattr(hyperparams, "adam_b1", 0.9))
    return optax.chain(_clip_by_global_norm(hyperparams.max_grad_norm), adam)


@component("optimizer")
@elementwise
def adam(hyperparams: Any) -> optax.GradientTransformation:
    """Return Adam (Kingma & Ba 2015) at ``learning_rate``, without clipping. ε and β₁ are as in ``clipped_adam``."""
    eps, b1 = getattr(hyperparams, "adam_eps", 1e-5), getattr(hyperparams, "adam_b1", 0.9)
    return _adam(hyperparams.learning_rate, eps, b1)


@component("optimizer")
@elementwise
def sgd(hyperparams: Any) -> optax.GradientTransformation:
    """Return plain gradient descent at ``learning_rate``."""
    return optax.sgd(hyperparams.learning_rate)


def _adam(learning_rate: Array, eps: Array | float, b1: Array | float, b2: float = 0.999) -> optax.GradientTransformation:
    """optax's Adam with the bias corrections of both moments in one array: apart, each is a separate kernel."""

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        before, *rest = state
        count = optax.safe_increment(before.count)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, before.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, before.nu, updates)
        of_mu, of_nu = 1 / (1 - jnp.array([b1, b2]) ** count)
        steps = jax.tree.map(lambda m, v: -learning_rate * (m * of_mu) / (jnp.sqrt(v * of_nu) + eps), mu, nu)
        return steps, (before._replace(count=count, mu=mu, nu=nu), *rest)

    return optax.GradientTransformation(optax.adam(learning_rate, b1, b2, eps).init, update)


def _clip_by_global_norm(max_norm: Array) -> optax.GradientTransformation:
    """Clip by one common factor. optax's version divides and selects element by element, in a separate pass."""

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        factor = jnp.minimum(1.0, max_norm / optax.tree.norm(updates))
        return jax.tree.map(lambda g: g * factor, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


@component("optimizer")
@elementwise
def clipped_rmsprop(hyperparams: Any, *, decay: float = 0.99, eps: float = 1e-5) -> optax.GradientTransformation:
    """Return RMSProp without momentum (Mnih et al. 2016, section 4), after clipping the global norm to ``max_grad_norm``.

    g ← decay·g + (1 − decay)·Δ², θ ← θ − learning_rate·Δ / √(g + ε).
    """
    rmsprop = optax.rmsprop(hyperparams.learning_rate, decay=decay, eps=eps)
    return optax.chain(_clip_by_global_norm(hyperparams.max_grad_norm), rmsprop)


def settings_read(optimizer: OptimizerFn, hyperparams: Any, params: PyTree) -> tuple[set[str], Any]:
    """Return the names of the hyperparameters that an optimizer reads, and the shapes of ``(state, updates, state after)``."""
    read: set[str] = set()

    class Watched(type(hyperparams)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

        def __getattr__(self, name: str) -> Any:
            fields = hyperparams._fields
            raise AttributeError(f"there is no hyperparameter {name!r}.{nearest(name, fields)} Allowed: {', '.join(fields)}")

        def __iter__(self) -> Any:  # as _asdict and _replace do
            read.update(hyperparams._fields)
            return super().__iter__()

    def once(hyperparams: Any, params: PyTree) -> Any:
        transformation = optimizer(Watched(*hyperparams))
        if not isinstance(transformation, optax.GradientTransformation):
            raise TypeError(f"it gave {type(transformation).__name__}")
        state = transformation.init(params)
        return state, *transformation.update(params, state, params)

    scalars = type(hyperparams)(*[jax.ShapeDtypeStruct((), jnp.float32)] * len(hyperparams))
    return read, jax.eval_shape(once, scalars, params)


def learning_rate_metric(optimizer: OptimizerFn, hyperparams: Any, params: PyTree) -> dict[str, Array]:
    """Return ``charts/learning_rate``, or nothing for an optimizer that does not read the hyperparameter ``learning_rate``."""
    if optimizer is not clipped_adam and "learning_rate" not in settings_read(optimizer, hyperparams, params)[0]:
        return {}
    return {"charts/learning_rate": hyperparams.learning_rate}
