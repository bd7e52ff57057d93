"""What every learning rule shares around its gradient: schedules, the optimiser, and means over devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl.cache import parts_in_cache
from jaxrl.collectives import varying
from jaxrl.names import hint_or, nearest
from jaxrl.spaces import show_shapes
from jaxrl.types import Array, PyTree

Schedule: TypeAlias = Callable[[Array], Array]
"""iteration (i32[], the warm-up's included) -> a factor on a hyperparameter."""
OptimizerFn: TypeAlias = Callable[[Any], optax.GradientTransformation]
"""hyperparams -> optimiser, called inside the trace, so that its scalars are data."""
Optimizer: TypeAlias = OptimizerFn | optax.GradientTransformation
"""What builders take: a transformation itself looks at no hyperparameter."""

LossFn: TypeAlias = Callable[[PyTree, Any], tuple[Array, dict[str, Array]]]
"""(params, what the rule's loss is given) -> (a loss to add, scalars to log)."""

H = TypeVar("H")


def clipped_adam(hyperparams: Any) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015) at ``learning_rate``, after clipping the gradient's global norm to ``max_grad_norm``.

    ε is the hyperparameter ``adam_eps`` of rules that have it, else 1e-5.
    """
    adam = _adam(hyperparams.learning_rate, getattr(hyperparams, "adam_eps", 1e-5))
    return optax.chain(_clip_by_global_norm(hyperparams.max_grad_norm), adam)


def _adam(learning_rate: Array, eps: Array | float, b1: float = 0.9, b2: float = 0.999) -> optax.GradientTransformation:
    """optax's, but with the bias corrections of both moments as one array: by themselves they are a kernel each."""

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
    """optax's, but by one factor: that one divides and selects element by element, in a pass of its own."""

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        factor = jnp.minimum(1.0, max_norm / optax.tree.norm(updates))
        return jax.tree.map(lambda g: g * factor, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def clipped_rmsprop(hyperparams: Any, *, decay: float = 0.99, eps: float = 1e-5) -> optax.GradientTransformation:
    """RMSProp without momentum, g ← decay·g + (1 − decay)·Δ², θ ← θ − learning_rate·Δ / √(g + ε) (Mnih et al. 2016, section 4),
    after clipping the gradient's global norm to ``max_grad_norm``."""
    rmsprop = optax.rmsprop(hyperparams.learning_rate, decay=decay, eps=eps)
    return optax.chain(_clip_by_global_norm(hyperparams.max_grad_norm), rmsprop)


def settings_read(optimizer: OptimizerFn, hyperparams: Any, params: PyTree) -> tuple[set[str], Any]:
    """The hyperparameters that an optimiser looks at, and shapes of what it gives: ``(state, updates, state after)``."""
    read: set[str] = set()

    class Watched(type(hyperparams)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

        def __getattr__(self, name: str) -> Any:
            fields = hyperparams._fields
            raise AttributeError(f"there is no hyperparameter {name!r}.{nearest(name, fields)} There are: {', '.join(fields)}")

        def __iter__(self) -> Any:  # as _asdict and _replace do
            read.update(hyperparams._fields)
            return super().__iter__()

    def once(hyperparams: Any, params: PyTree) -> Any:
        made = optimizer(Watched(*hyperparams))
        if not isinstance(made, optax.GradientTransformation):
            raise TypeError(f"it gave {type(made).__name__}")
        state = made.init(params)
        return state, *made.update(params, state, params)

    scalars = type(hyperparams)(*[jax.ShapeDtypeStruct((), jnp.float32)] * len(hyperparams))
    return read, jax.eval_shape(once, scalars, params)


def learning_rate_metric(optimizer: OptimizerFn, hyperparams: Any, params: PyTree) -> dict[str, Array]:
    """``charts/learning_rate``; nothing for an optimiser that does not look at it, whose rate is its own matter."""
    if optimizer is not clipped_adam and "learning_rate" not in settings_read(optimizer, hyperparams, params)[0]:
        return {}
    return {"charts/learning_rate": hyperparams.learning_rate}


class Packing(NamedTuple):
    """How parameters travel through the updates of an iteration."""

    pack: Callable[[PyTree], PyTree]
    unpack: Callable[[PyTree], PyTree]


def packing(optimizer: OptimizerFn, params: PyTree, *, at_most: int | None = None) -> Packing:
    """One flat vector for this module's optimisers, which treat all elements alike; the tree itself for one of your own.

    A small network spends more time on starting a kernel per leaf and operation than on computing, so the vector makes its
    updates faster, and it is one collective instead of one per leaf. ``opt_state`` is that of what is packed.

    Args:
      at_most: parameters to pack; of more, the tree itself.
    """
    large = at_most is not None and sum(x.size for x in jax.tree.leaves(params)) > at_most
    if large or optimizer not in (clipped_adam, clipped_rmsprop):
        return Packing(lambda tree: tree, lambda tree: tree)
    return Packing(lambda tree: ravel_pytree(tree)[0], ravel_pytree(params)[1])


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


# --------------------------------------------------------------------------------------------------------------- over devices


def pmean(x: PyTree, axis_name: str | None) -> PyTree:
    """The mean over the devices of a mapped axis; ``x`` itself when none is named."""
    return x if axis_name is None else jax.lax.pmean(x, axis_name)


def valid_mean(valid: Array, axis_name: str | None = None) -> Callable[[Array], Array]:
    """The mean over valid rows, 0 where there is none; of x [..., *rows], several quantities at once, [...].

    It is this device's sum over the count on an average device: the ``pmean`` of it, as of its gradient, is the mean over all.
    """
    count = _average_count(valid.sum(dtype=jnp.float32), axis_name)
    return lambda x: _sum_of_rows(x, valid) / count


def valid_means(
    loss: Array, logged: Mapping[str, Array], valid: Array, axis_name: str | None = None
) -> tuple[Array, dict[str, Array]]:
    """``valid_mean`` of a loss, [*rows], and of all that is logged of the same rows, which is not differentiated.

    One reduction for what is logged and the count of rows, instead of one each.
    """
    *sums, count = _sum_of_rows(jax.lax.stop_gradient(jnp.stack([*logged.values(), jnp.ones_like(loss)])), valid)
    count = _average_count(count, axis_name)
    return _sum_of_rows(loss, valid) / count, {name: total / count for name, total in zip(logged, sums, strict=True)}


def _sum_of_rows(x: Array, valid: Array) -> Array:
    return jnp.where(valid, x, 0.0).sum(tuple(range(-valid.ndim, 0)))


def _average_count(count: Array, axis_name: str | None) -> Array:
    return _at_least_a_row(pmean(count, axis_name), axis_name)


def _at_least_a_row(average: Array, axis_name: str | None) -> Array:
    # Of one valid row on all devices together, an average device has less than one.
    return jnp.maximum(average, 1.0 if axis_name is None else 1.0 / jax.lax.axis_size(axis_name))


def mean_gradient(loss_fn: Callable[[PyTree], tuple[Array, Any]], params: PyTree, axis_name: str | None) -> tuple[PyTree, Any]:
    """``(gradient, aux)`` of ``loss_fn(params) -> (loss, aux)``, the gradient averaged over devices when an axis is named."""
    if axis_name is None:
        return jax.grad(loss_fn, has_aux=True)(params)
    gradient, aux = jax.grad(loss_fn, has_aux=True)(varying(params, axis_name))
    return jax.lax.pmean(gradient, axis_name), aux


@jax.named_scope("descend")
def accumulated_gradient(
    loss_fn: Callable[..., tuple[Array, dict[str, Array]]],
    params: PyTree,
    batch: PyTree,
    valid: Array,
    num_parts: int | None,
    axis_name: str | None = None,
) -> tuple[PyTree, dict[str, Array]]:
    """``(gradient, what the loss logs)`` of a loss that is a mean over valid rows, one part of them after the other.

    Only the activations of one part are in memory. A part counts as it has valid rows, so it is the gradient of the whole.
    Devices meet twice, to count all valid rows and to average.

    Args:
      loss_fn: (params, batch, axis_name) -> (loss, metrics), over the rows of all devices on the axis.
      batch: leaves [N, ...], and ``valid`` bool[N, ...] says which rows the loss looks at.
      num_parts: must divide N; 1 takes all at once, None as many as serve the processor, and sequences all at once.
    """
    if num_parts is None:
        alone = partial(loss_fn, axis_name=None)
        num_parts = parts_in_cache(alone, params, batch, rows=valid.shape[0]) if valid.ndim == 1 else 1
        if num_parts > 1:
            cut, whole = (partial(accumulated_gradient, loss_fn, num_parts=n, axis_name=axis_name) for n in (num_parts, 1))
            return jax.lax.platform_dependent(params, batch, valid, cpu=cut, default=whole)
    if num_parts == 1:
        return mean_gradient(lambda params: loss_fn(params, batch, axis_name), params, axis_name)
    if valid.shape[0] % num_parts:  # a builder knows no devices; this is one's share
        raise ValueError(f"accumulation_steps={num_parts} must divide the {valid.shape[0]} items of a minibatch on each device")
    parts = jax.tree.map(lambda x: x.reshape((num_parts, -1, *x.shape[1:])), batch)
    count = valid.reshape(num_parts, -1).sum(1, dtype=jnp.float32)
    total = pmean(count.sum(), axis_name)
    weight = jnp.where(total > 0, count / _at_least_a_row(total, axis_name), 1.0 / num_parts)
    start = jax.tree.map(jnp.zeros_like, params)
    if axis_name is not None:
        params, start = varying(params, axis_name), varying(start, axis_name)

    def add(total: PyTree, part: tuple[PyTree, Array]) -> tuple[PyTree, dict[str, Array]]:
        gradient, logged = jax.grad(loss_fn, has_aux=True)(params, part[0], None)
        total = jax.tree.map(lambda sum_, g: sum_ + (part[1] * g).astype(sum_.dtype), total, gradient)
        return total, jax.tree.map(lambda x: part[1] * x, logged)

    gradient, logged = jax.lax.scan(add, start, (parts, weight))
    return pmean(gradient, axis_name), jax.tree.map(lambda x: x.sum(0), logged)


def descend(
    loss_fn: Callable[[PyTree], tuple[Array, dict[str, Array]]],
    optimise: optax.GradientTransformation,
    params: PyTree,
    opt_state: PyTree,
    axis_name: str | None = None,
) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """One step along ``loss_fn``'s gradient: params, the optimiser's state, and what the loss logs, with ``losses/grad_norm``."""
    return step_along(*mean_gradient(loss_fn, params, axis_name), optimise, params, opt_state)


def step_along(
    gradient: PyTree, metrics: dict[str, Array], optimise: optax.GradientTransformation, params: PyTree, opt_state: PyTree
) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """One step along a gradient that is there already: as ``descend``."""
    metrics["losses/grad_norm"] = optax.tree.norm(gradient)
    updates, opt_state = optimise.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, metrics


def add_losses(
    losses: Sequence[LossFn], params: PyTree, batch: Any, total: Array, metrics: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """A rule's own loss and metrics with those of the user's functions (params, batch) -> (a loss to add, scalars to log)."""
    for loss in losses:
        extra, logged = loss(params, batch)
        total += extra
        metrics |= {f"losses/{name}": x for name, x in logged.items()}
    return total, metrics
