"""Networks that the user passes to a builder: arguments of the default one, or a ``Model``, checked on shapes alone."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from gymnasium import spaces

from jaxrl import models
from jaxrl.builder.attempt import accepts, attempt, reason, show
from jaxrl.distributions import Categorical, MultiCategorical, Normal, TanhNormal
from jaxrl.evolution.noise import LowRankNoise
from jaxrl.models import ActorCriticOutput
from jaxrl.registry import OTHER_NETWORKS, Entry
from jaxrl.rollout.inputs import example_input
from jaxrl.settings.aliases import listed, nearest
from jaxrl.spaces.trees import same_shapes, show_shapes
from jaxrl.types import Env, HostEnv, Model, PyTree, TrainFn, Variables

ModelFn: TypeAlias = Callable[[spaces.Space, spaces.Space], Model]
ModelArguments: TypeAlias = Mapping[str, Any]
"""Keyword arguments of the function that makes the algorithm's default network: {"core": "gru"}."""

MODEL = "a jaxrl.Model(init, apply, unroll, initial_carry), or a function of (observation_space, action_space) that returns one"


def own_network(algorithm: Entry, keyword: str = "model") -> ModelFn | None:
    """Return the function of ``jaxrl.models`` that makes the default of this keyword of the builder, or None if none does."""
    name = algorithm.network if keyword == "model" else OTHER_NETWORKS[keyword]
    return getattr(models, name) if name else None


def check_arguments(network: ModelFn, arguments: ModelArguments, name: str = "model") -> None:
    """Raise TypeError for keyword arguments that a network does not take. Their values are checked by the network itself."""
    takes = {name: p for name, p in inspect.signature(network).parameters.items() if p.kind is p.KEYWORD_ONLY}
    for argument in arguments:
        if argument not in takes:
            problem = f"{name}={dict(arguments)!r}: {show(network)} takes no {argument!r}.{nearest(argument, takes)}"
            raise TypeError(f"{problem} It takes: {', '.join(takes)}")


def with_arguments(
    model: Model | ModelFn | ModelArguments | None, network: ModelFn, name: str = "model"
) -> Model | ModelFn | None:
    """Convert a mapping of arguments in a builder's ``model`` keyword to a function of the spaces; return anything else as is.

    Args:
      network: the algorithm's default network, which takes the arguments.
      name: the builder's keyword, for errors.
    """
    if not isinstance(model, Mapping):
        return model
    check_arguments(network, model, name)
    return functools.partial(network, **model) if model else None


def is_own(model: Any, network: ModelFn) -> bool:
    """Return whether a builder's ``model`` keyword selects the default ``network``, with or without arguments."""
    return model is None or model is network or (isinstance(model, functools.partial) and model.func is network)


def as_network(model: Any, network: ModelFn, other: ModelFn) -> Any:
    """Return a builder's ``model`` keyword with the default ``network`` replaced by ``other``."""
    if other is network or not is_own(model, network):
        return model
    return functools.partial(other, *model.args, **model.keywords) if isinstance(model, functools.partial) else other


def resolve_model(model: Model | ModelFn | None, default: ModelFn, env: Env | HostEnv, *, name: str = "model") -> Model:
    """Resolve a builder's ``model`` keyword: a Model, a function of (observation_space, action_space) that returns one, or None.

    ``apply`` and ``unroll`` of the returned Model accept a ``key``, whether the user's functions do or not.

    Args:
      default: function of the spaces, used for None.
      name: the builder's keyword, for errors; some builders take a second model.
    """
    shown, both_spaces = f"{name}={show(model)}", (env.observation_space, env.action_space)
    if library := _flax_library(model):
        kind = show(model).partition("(")[0]
        call = f"from_linen({kind}(…))" if library == "linen" else f"from_nnx(lambda rngs: {kind}(…, rngs=rngs))"
        raise TypeError(
            f"{shown} is a flax module, and must be {MODEL}: {name}=jaxrl.models.{call}, "
            "or a function of the spaces that gives it"
        )
    resolved: Any = model
    if not isinstance(model, Model):
        function: Any = default if model is None else model
        if not callable(function):
            raise TypeError(f"{shown} must be {MODEL}")
        if not accepts(function, *both_spaces):
            raise TypeError(f"{shown} takes {inspect.signature(function)}, and must be {MODEL}")
        resolved = function(*both_spaces)
        if not isinstance(resolved, Model):
            raise TypeError(f"{shown} gives {show(resolved)} for the spaces of {env.name}, and must be {MODEL}")
    for part, value in resolved._asdict().items():
        if not callable(value) and (part, value) != ("train", None):
            fix = ": lambda batch_size: () for a model without memory" if part == "initial_carry" else ""
            raise TypeError(f"{shown}: its {part} is {show(value)}, and must be a function{fix}")
    return resolved._replace(apply=_with_key(resolved.apply), unroll=_with_key(resolved.unroll))


def _with_key(function: Any) -> Any:
    """Return a model's ``apply`` or ``unroll``, wrapped to accept and ignore ``key`` if it takes three arguments only."""
    if accepts(function, None, None, None, key=None):
        return function
    return lambda params, carry, inputs, key=None: function(params, carry, inputs)


def _flax_library(part: Any) -> str | None:
    """Return "linen" or "nnx" for a flax module or module class, and None for anything else."""
    kind = part if isinstance(part, type) else type(part)
    return next((name for name, base in (("linen", nn.Module), ("nnx", nnx.Module)) if issubclass(kind, base)), None)


def model_output(argument: Any, model: Model, env: Env | HostEnv, *, unrolled: bool = False, name: str = "model") -> PyTree:
    """Return the shapes of a model's outputs for a batch of one.

    Args:
      argument: value of the builder's keyword, for errors.
      unrolled: the algorithm uses ``unroll``, so check that its outputs over two rows agree with those of ``apply``.
      name: the builder's keyword, for errors.

    Raises:
      TypeError: a function of the model fails on this environment's spaces, or returns the wrong structure.
    """
    label, on_spaces = f"{name}={show(argument)}:", f"on the spaces of {env.name}"
    inputs = jax.eval_shape(lambda: example_input(env.observation_space, env.action_space))
    carry = attempt(f"{label} initial_carry(1)", lambda: model.initial_carry(1))
    params = attempt(f"{label} init(key, inputs) {on_spaces}", model.init, jax.eval_shape(lambda: jax.random.key(0)), inputs)
    names = ["apply", "unroll"] if unrolled else ["apply"]
    outputs = []
    for part, lead in zip(names, [(), (2,)], strict=False):
        rows = jax.tree.map(lambda x, lead=lead: jax.ShapeDtypeStruct(lead + x.shape, x.dtype), inputs)
        out = attempt(f"{label} {part}(params, carry, inputs) {on_spaces}", getattr(model, part), params, carry, rows)
        if type(out) is not tuple or len(out) != 2:
            raise TypeError(f"{label} {part} must return (carry, outputs); it returned {show_shapes(out)}")
        if not same_shapes(out[0], carry):
            raise TypeError(
                f"{label} {part} returned the carry {show_shapes(out[0])}, and initial_carry(1) gives {show_shapes(carry)}: "
                "they must agree"
            )
        outputs.append(out[1])
    if unrolled:
        expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), outputs[0])
        if not same_shapes(outputs[1], expected):
            raise TypeError(
                f"{label} unroll over two rows gives {show_shapes(outputs[1])}, and apply {show_shapes(outputs[0])} for one: "
                "unroll must return the same outputs with a leading time axis"
            )
    if model.train is not None:
        _check_training(label, on_spaces, model.train, params, inputs, outputs[0])
    return outputs[0]


def _check_training(label: str, on_spaces: str, train: TrainFn, variables: PyTree, inputs: PyTree, outputs: PyTree) -> None:
    """Raise TypeError if a model's ``train`` fails, or returns the wrong structure. All arguments are shapes."""
    if not isinstance(variables, Variables):
        raise TypeError(f"{label} init must return Variables(params, statistics), because the model has a function train")
    valid = jax.ShapeDtypeStruct((1,), bool)
    out = attempt(f"{label} train(variables, inputs, valid) {on_spaces}", train, variables, inputs, valid)
    if not (isinstance(out, tuple) and len(out) == 2 and same_shapes(out, (outputs, variables.statistics))):
        raise TypeError(
            f"{label} train returned {show_shapes(out)}; it must return (outputs, statistics), with the outputs of apply, "
            f"{show_shapes(outputs)}, and the statistics of init, {show_shapes(variables.statistics)}"
        )


def check_statistics(algorithm: str, model: Model, name: str = "model") -> None:
    """Raise TypeError if a model learns statistics, for an algorithm that learns none.

    Args:
      algorithm: the algorithm's title.
      name: the builder's keyword.
    """
    if model.train is not None:
        raise TypeError(
            f"{algorithm} learns parameters alone, but {name} has statistics to learn, as batch normalisation does: use layer "
            "normalisation"
        )


def is_recurrent(model: Model) -> bool:
    """Return whether the model has a carry."""
    return bool(jax.tree.leaves(jax.eval_shape(lambda: model.initial_carry(1))))


def check_actor_critic(model: Any, output: PyTree, action_space: spaces.Space, num_values: int | None = None) -> None:
    """Raise TypeError unless ``output``, the shapes for a batch of one, is a value, or ``num_values`` of them, and a policy over
    these actions."""
    shape = (num_values,) if num_values else ()
    if not isinstance(output, ActorCriticOutput) or getattr(output.value, "shape", None) != (1, *shape):
        wanted = ", ".join(map(str, ("batch", *shape)))
        raise TypeError(
            f"model={show(model)} must give an ActorCriticOutput(policy, value f32[{wanted}]); for a batch of one it gives "
            f"{show_shapes(output)}"
        )
    kinds, size = _policies(action_space)
    # Custom distributions are not checked.
    built_in = isinstance(output.policy, Categorical | MultiCategorical | Normal | TanhNormal)
    if built_in and (not isinstance(output.policy, kinds) or output.policy[0].shape != (1, *size)):
        names = listed([kind.__name__ for kind in kinds], "or")
        shown = size[0] if len(size) == 1 else size
        raise TypeError(
            f"model={show(model)} must give a {names} policy of size {shown} for {action_space}; it gives "
            f"{type(output.policy).__name__} {show_shapes(output.policy[0])}"
        )


def _policies(action_space: spaces.Space) -> tuple[tuple[type, ...], tuple[int, ...]]:
    """Return the built-in distributions over these actions, and the shape of their first parameter for one row."""
    if isinstance(action_space, spaces.Box):
        return (Normal, TanhNormal), (math.prod(action_space.shape),)
    if isinstance(action_space, spaces.MultiDiscrete):
        return (MultiCategorical,), (action_space.nvec.size, int(action_space.nvec.max()))
    return (Categorical,), (int(action_space.n),)  # type: ignore[attr-defined]


def check_greedy_policy(model: Any, output: PyTree, action_space: spaces.Space) -> None:
    """Raise TypeError unless ``output``, the shapes for a batch of one, chooses one of these actions."""
    (kinds, size), chosen = _policies(action_space), output
    if isinstance(action_space, spaces.Box):
        fits, expected = getattr(output, "shape", None) == (1, *size), f"actions f32[batch, {size[0]}] for {action_space}"
    else:
        fits = isinstance(output, kinds) and chosen[0].shape == (1, *size)
        expected = f"a {kinds[0].__name__} of size {size[0] if len(size) == 1 else size} for {action_space}"
    if not fits:
        raise TypeError(f"model={show(model)} must give {expected}; for a batch of one it gives {show_shapes(output)}")


def check_low_rank(model: Any, network: Model, env: Env | HostEnv, noise: LowRankNoise) -> None:
    """Raise TypeError unless the network's dense layers take a ``LowRankKernel``."""

    def first_output() -> Any:
        inputs, key = example_input(env.observation_space, env.action_space), jax.random.key(0)
        params = noise.member(key, jnp.zeros((), jnp.int32), network.init(key, inputs), jnp.ones(()))
        return network.apply(params, network.initial_carry(1), inputs)

    try:
        jax.eval_shape(first_output)
    except Exception as error:
        raise TypeError(
            f"noise='low_rank' needs the dense layers of jaxrl's networks, and model={show(model)} fails with "
            f"{reason(error)}: use noise='normal'"
        ) from error


def check_q_values(model: Any, output: PyTree, action_space: Any) -> None:
    """Raise TypeError unless ``output``, the shapes for a batch of one, has a Q-value for each Discrete action."""
    if getattr(output, "shape", None) != (1, action_space.n):
        raise TypeError(
            f"model={show(model)} must give Q-values f32[batch, {action_space.n}]; for a batch of one it gives "
            f"{show_shapes(output)}"
        )
