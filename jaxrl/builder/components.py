"""Components that the user passes to a builder: model, optimiser, replay, losses and intrinsic reward.

Each is checked by abstract evaluation, on shapes alone. So errors are raised by the builder, not inside a trace of ``step``.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from gymnasium import spaces

from jaxrl import models
from jaxrl.builder.config import BufferConfig, ReplayConfig
from jaxrl.distributions import Categorical, MultiCategorical, Normal, TanhNormal
from jaxrl.evolution.noise import LowRankNoise
from jaxrl.intrinsic import Intrinsic, IntrinsicFn
from jaxrl.models import ActorCriticOutput
from jaxrl.optimize import OptimizerFn, clipped_adam, settings_read
from jaxrl.registry import ALGORITHMS, OTHER_NETWORKS, Entry
from jaxrl.replay import Replay
from jaxrl.replay.dataset import Dataset, DatasetInfo, check_spaces, info_of
from jaxrl.replay.dataset_replay import dataset_replay, mixed_replay
from jaxrl.replay.hindsight import hindsight_replay
from jaxrl.replay.options import Future
from jaxrl.rollout.inputs import example_input
from jaxrl.rollout.outputs import split_variables
from jaxrl.settings.aliases import listed, nearest
from jaxrl.settings.options import option_fields
from jaxrl.spaces.goals import check_goals
from jaxrl.spaces.trees import same_shapes, show_shapes
from jaxrl.types import Env, HostEnv, Model, PyTree, Rollout, TrainFn, Variables

ModelFn: TypeAlias = Callable[[spaces.Space, spaces.Space], Model]
ModelArguments: TypeAlias = Mapping[str, Any]
"""Keyword arguments of the function that makes the algorithm's default network: {"core": "gru"}."""

MODEL = "a jaxrl.Model(init, apply, unroll, initial_carry), or a function of (observation_space, action_space) that returns one"
OPTIMIZER = (
    "an optax transformation, or a function of the hyperparameters that returns one: lambda hp: optax.adamw(hp.learning_rate)"
)
LOSS = "a function (params, Batch) -> (loss, {name: scalar})"
INTRINSIC = (
    "a function of (observation_space, action_space) that returns a jaxrl.intrinsic.Intrinsic, such as jaxrl.intrinsic.rnd"
)


def show(part: Any) -> str:
    """Return a short text for a component, for error messages."""
    if isinstance(part, functools.partial):
        return f"partial({show(part.func)}, …)"
    if name := getattr(part, "__qualname__", None):
        return str(name).rpartition("<locals>.")[2]
    text = repr(part)
    return f"{type(part).__name__}(…)" if "\n" in text or " at 0x" in text or len(text) > 60 else text


def reason(error: Exception) -> str:
    """Return the type and first line of an exception's message, at most 240 characters of it."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines[0]) <= 240 else f"{lines[0][:240]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def attempt(description: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return the output shapes of a user's function for ``args`` (or their shapes); nothing is computed.

    Raises:
      TypeError: the function fails. The message starts with the given description of the function.
    """
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        raise TypeError(f"{description} fails with {reason(error)}") from error


def other_way(action_space: spaces.Space) -> str:
    """Suggest, for an error message, what to use for actions that an algorithm does not support."""
    kind = type(action_space).__name__
    other = max(ALGORITHMS.values(), key=lambda entry: (kind in entry.actions, len(entry.actions)))
    takes = f"{other.builder} takes {other.takes}"
    if isinstance(action_space, spaces.MultiDiscrete):
        number = math.prod(action_space.nvec.ravel().tolist())
        return f"make the action space Discrete({number}), one action per combination, and decode it in step; or {takes}"
    return takes


def check_actions(algorithm: str, env: Env | HostEnv, kinds: Sequence[type[spaces.Space]]) -> None:
    """Raise TypeError if the environment's action space is not of one of these kinds."""
    if not isinstance(env.action_space, tuple(kinds)):
        names = listed([kind.__name__ for kind in kinds], "or")
        problem = f"{env.name} has {env.action_space}: {other_way(env.action_space)}"
        raise TypeError(f"{algorithm} needs a {names} action space; {problem}")


# ----------------------------------------------------------------------------------------------------------------------- models


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
        if not _takes(function, *both_spaces):
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
    if _takes(function, None, None, None, key=None):
        return function
    return lambda params, carry, inputs, key=None: function(params, carry, inputs)


def _flax_library(part: Any) -> str | None:
    """Return "linen" or "nnx" for a flax module or module class, and None for anything else."""
    kind = part if isinstance(part, type) else type(part)
    return next((name for name, base in (("linen", nn.Module), ("nnx", nnx.Module)) if issubclass(kind, base)), None)


def _takes(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether the function's signature accepts these arguments. True if it has no signature."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # no signature, or a partial with arguments that do not fit: the call itself will fail
        return True
    return True


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


# ------------------------------------------------------------------------------------------------------------------- optimisers


READ_BY_OPTIMIZERS = {
    "learning_rate": "optax.adamw(hp.learning_rate)",
    "max_grad_norm": "optax.chain(optax.clip_by_global_norm(hp.max_grad_norm), optax.adamw(hp.learning_rate))",
    "adam_eps": "optax.adamw(hp.learning_rate, eps=hp.adam_eps)",
    "adam_b1": "optax.adamw(hp.learning_rate, b1=hp.adam_b1)",
}
"""Hyperparameters that only the optimiser uses, each with an example of an optimiser that uses it."""


def resolve_optimizer(
    optimizer: OptimizerFn | optax.GradientTransformation | None,
    model: Model,
    env: Env | HostEnv,
    hyperparams: Any,
    defaults: Any,
    scheduled: Sequence[str],
) -> tuple[OptimizerFn, set[str]]:
    """Resolve a builder's ``optimizer`` keyword, and check it on the shapes of the model's parameters.

    Args:
      hyperparams: the agent's hyperparameters; ``defaults`` are the algorithm's.
      scheduled: names of hyperparameters that have a schedule.

    Returns:
      The optimiser as a function of the hyperparameters, and the names of hyperparameters that have no effect with it.

    Raises:
      TypeError: it is not an optimiser, or it fails.
      ValueError: a learning rate, a clip or a schedule was set that the optimiser ignores.
    """
    if optimizer is None or optimizer is clipped_adam:
        return clipped_adam, set()
    label = f"optimizer={show(optimizer)}"
    function = constant_optimizer(optimizer) if isinstance(optimizer, optax.GradientTransformation) else optimizer
    if not callable(function) or not _takes(function, hyperparams):
        raise TypeError(f"{label} must be {OPTIMIZER}")
    inputs = jax.eval_shape(lambda: example_input(env.observation_space, env.action_space))
    params = split_variables(jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), inputs))[0]
    try:
        read, (state, updates, after) = settings_read(function, hyperparams, params)
    except Exception as error:
        raise TypeError(f"{label} must be {OPTIMIZER}. This one fails with {reason(error)}") from error
    for name, returned, expected in (("updates", updates, params), ("state", after, state)):
        if not same_shapes(returned, expected):
            raise TypeError(f"{label} gives the {name} {show_shapes(returned)} for {show_shapes(expected)}: they must agree")
    unread = ({*READ_BY_OPTIMIZERS} & {*defaults._fields}) - read
    for name in unread:
        fix = READ_BY_OPTIMIZERS[name]
        if name in scheduled:
            raise ValueError(
                f"{name} has a schedule, but {label} does not use it: use lambda hp: {fix}, "
                "or pass a schedule to the transformation itself"
            )
        if float(getattr(hyperparams, name)) != getattr(defaults, name):
            raise ValueError(
                f"{name}={getattr(hyperparams, name):g} has no effect, because {label} does not use it: leave it out, or use "
                f"lambda hp: {fix}"
            )
    return function, unread


def constant_optimizer(transformation: optax.GradientTransformation) -> OptimizerFn:
    """Return a function of the hyperparameters that ignores them and returns this transformation."""
    return lambda hyperparams: transformation


# ----------------------------------------------------------------------------------------------------------------------- replay


def resolve_data(data: Any, env: Env | HostEnv) -> Dataset | DatasetInfo | None:
    """Check a builder's ``data`` keyword.

    Raises:
      TypeError: it is not a dataset.
      ValueError: it has other spaces than the environment.
    """
    if data is None:
        return None
    if not isinstance(data, Dataset | DatasetInfo):
        raise TypeError(f"data={show(data)} must be a Dataset, as jaxrl.load_dataset(file) returns")
    check_spaces(info_of(data), env)
    return data


def resolve_replay(replay: Any, env: Env | HostEnv, config: BufferConfig, *, before: int, after: int, data: Any = None) -> Replay:
    """Make the replay of a builder's ``replay`` keyword, with the algorithm's sizes and the window that it needs.

    If the settings ask for ``hindsight``, the replay is wrapped in ``hindsight_replay``.

    Args:
      replay: a ``ReplayFn``; None: that of the option ``config.replay``.
      data: dataset to draw from instead, or with ``config.online`` as well; None without one.
    """
    if data is not None and isinstance(config, ReplayConfig) and config.online:
        ring = resolve_replay(replay, env, config, before=before, after=after)
        return mixed_replay(ring, config.mixing_ratio, before=before, after=after)
    if data is not None:
        if replay is not None:
            raise ValueError(f"replay={show(replay)} has no effect with data=…, whose rows are drawn with equal probability")
        return dataset_replay(before=before, after=after)
    sizes = (config.buffer_size // config.num_envs, config.num_envs, config.rollout_length)
    kind: Any = type(config)
    options = "".join(f"{option.__name__}(…), " for option in option_fields(kind).get("replay", ()))
    requirement = f"must be {options}or a function (capacity per environment, num_envs, rows_per_add, *, before, after) -> "
    requirement += "Replay, such as jaxrl.replay.uniform.uniform_replay"
    function = config.replay.function if replay is None else replay  # type: ignore[attr-defined]
    if not callable(function) or not _takes(function, *sizes, before=before, after=after):
        raise TypeError(f"replay={show(replay)} {requirement}")

    def stored(*sizes: int, before: int, after: int) -> Replay:
        result = function(*sizes, before=before, after=after)
        if not isinstance(result, Replay):
            raise TypeError(f"replay={show(replay)} gives {show(result)}, and {requirement}")
        return result

    hindsight: Future | None = getattr(config, "hindsight", None)
    if hindsight is None:
        return stored(*sizes, before=before, after=after)
    check_goals(env, f"hindsight={hindsight.name!r}")
    with_hindsight = hindsight_replay(stored, env.compute_reward, strategy=hindsight.name, share=hindsight.share)  # type: ignore[arg-type]
    return with_hindsight(*sizes, before=before, after=after)


# ----------------------------------------------------------------------------------------------------------------------- losses


def resolve_losses(extra_losses: Any) -> tuple[Any, ...]:
    """Resolve a builder's ``extra_losses`` keyword, one function or a sequence of them, to a tuple."""
    if callable(extra_losses):
        return (extra_losses,)
    if not isinstance(extra_losses, Sequence) or isinstance(extra_losses, str):
        raise TypeError(f"extra_losses={show(extra_losses)} must be {LOSS}, or a list of them")
    for i, loss in enumerate(extra_losses):
        if not callable(loss):
            raise TypeError(f"extra_losses[{i}]={show(loss)} must be {LOSS}")
    return tuple(extra_losses)


def check_loss(label: str, loss: Callable[[PyTree, Any], Any], params: PyTree, batch: Any) -> None:
    """Raise TypeError if a loss fails on a minibatch, or does not return (scalar, {name: scalar}). Called under abstract
    evaluation."""
    requirement = "it must return (loss, {name: scalar to log}), with {} where there is nothing to log"
    try:
        out = loss(params, batch)
    except Exception as error:
        raise TypeError(f"{label} must be {LOSS}. This one fails with {reason(error)}") from error
    if not isinstance(out, tuple | list) or len(out) != 2 or not isinstance(out[1], Mapping):
        raise TypeError(f"{label} returned {show_shapes(out)}: {requirement}")
    for name, value in {"the loss": out[0], **{f"the scalar {name!r}": x for name, x in out[1].items()}}.items():
        is_number = isinstance(value, int | float | jax.Array | np.ndarray | np.generic) and jnp.result_type(value).kind in "fiu"
        if not is_number or jnp.shape(value) != ():
            fix = ", such as a mean over the valid rows (batch.valid)" if is_number else f": {requirement}"
            raise TypeError(f"{label} returned {show_shapes(value)} as {name}, which must be one number{fix}")


# ------------------------------------------------------------------------------------------------------------ intrinsic rewards


def resolve_intrinsic(intrinsic: Intrinsic | IntrinsicFn | None, env: Env | HostEnv) -> Intrinsic | None:
    """Resolve a builder's ``intrinsic`` keyword: an Intrinsic, a function of both spaces that returns one, or None."""
    if intrinsic is None or isinstance(intrinsic, Intrinsic):
        return intrinsic
    label, both_spaces = f"intrinsic={show(intrinsic)}", (env.observation_space, env.action_space)
    if not callable(intrinsic):
        raise TypeError(f"{label} must be {INTRINSIC}")
    if not _takes(intrinsic, *both_spaces):
        raise TypeError(f"{label} takes {inspect.signature(intrinsic)}, and must be {INTRINSIC}")
    result: Any = intrinsic(*both_spaces)
    if not isinstance(result, Intrinsic):
        raise TypeError(f"{label} gives {show(result)} for the spaces of {env.name}, and must be {INTRINSIC}")
    return result


def check_intrinsic(label: str, intrinsic: Intrinsic, learner: Any, rollout: Rollout, axis_name: str | None) -> None:
    """Raise an error if the functions of an intrinsic reward fail on a rollout, or return the wrong structure. Called under
    abstract evaluation."""
    state = learner.intrinsic
    try:
        observed, learnt = intrinsic.observe(state, rollout, axis_name), intrinsic.learn(state, rollout, learner.key, axis_name)
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError  # a size that does not fit is not a wrong type
        raise kind(f"{label} fails on a rollout of {show_shapes(rollout.reward)} with {reason(error)}") from error
    rows = rollout.reward
    if not (isinstance(learnt, tuple | list) and len(learnt) == 3 and isinstance(learnt[2], Mapping)):
        raise TypeError(
            f"{label}: learn returned {show_shapes(learnt)}; it must return (advantage, state, {{key: scalar to log}})"
        )
    if not same_shapes(learnt[0], rows):
        raise TypeError(
            f"{label}: learn returned the advantage {show_shapes(learnt[0])}, which must be {show_shapes(rows)}: one number for "
            "each row [T, B]"
        )
    for name, after in (("observe", observed), ("learn", learnt[1])):
        if not same_shapes(after, state):
            raise TypeError(
                f"{label}: {name} returned the state {show_shapes(after)}, and init gives {show_shapes(state)}: they must agree"
            )
    for name, value in learnt[2].items():
        if getattr(value, "shape", None) is None or jnp.result_type(value).kind not in "fiu":
            raise TypeError(f"{label}: learn returned {show_shapes(value)} as {name!r}, which must be numbers to log")
