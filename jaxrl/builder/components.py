"""The parts that a user gives a builder: a model, an optimiser, functions.

Each is tried on shapes alone, so that what is wrong with it is said where it was given, not inside a trace of ``step``.
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
from jaxrl.builder.config import HindsightConfig, ReplayConfig
from jaxrl.distributions import Categorical, MultiCategorical, Normal, TanhNormal
from jaxrl.intrinsic import Intrinsic, IntrinsicFn
from jaxrl.models import ActorCriticOutput
from jaxrl.optimize import OptimizerFn, clipped_adam, settings_read
from jaxrl.registry import ALGORITHMS, Entry
from jaxrl.replay import Replay, ReplayFn
from jaxrl.replay.hindsight import hindsight_replay
from jaxrl.rollout.inputs import example_input
from jaxrl.settings.aliases import listed, nearest
from jaxrl.spaces.goals import check_goals
from jaxrl.spaces.trees import same_shapes, show_shapes
from jaxrl.types import Env, HostEnv, Model, PyTree, Rollout

ModelFn: TypeAlias = Callable[[spaces.Space, spaces.Space], Model]
ModelArguments: TypeAlias = Mapping[str, Any]
"""Of the function that makes the rule's own network: {"core": "gru"}."""

MODEL = "a jaxrl.Model(init, apply, unroll, initial_carry), or a function of (observation_space, action_space) that gives one"
OPTIMIZER = (
    "an optax transformation, or a function of the hyperparameters that gives one: lambda hp: optax.adamw(hp.learning_rate)"
)
LOSS = "a function (params, Batch) -> (loss, {name: scalar})"
INTRINSIC = "a function of (observation_space, action_space) that gives a jaxrl.intrinsic.Intrinsic, such as jaxrl.intrinsic.rnd"


def show(part: Any) -> str:
    """A part in a few words, for an error."""
    if isinstance(part, functools.partial):
        return f"partial({show(part.func)}, …)"
    if name := getattr(part, "__qualname__", None):
        return str(name).rpartition("<locals>.")[2]
    text = repr(part)
    return f"{type(part).__name__}(…)" if "\n" in text or " at 0x" in text or len(text) > 60 else text


def reason(error: Exception) -> str:
    """What an exception says, in one line."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines[0]) <= 240 else f"{lines[0][:240]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def attempt(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Shapes of what a function of the user's gives for (shapes of) ``args``; nothing is computed."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        raise TypeError(f"{what} fails with {reason(error)}") from error


def other_way(action_space: spaces.Space) -> str:
    """For an error: what to do with actions that a rule does not take."""
    kind = type(action_space).__name__
    other = max(ALGORITHMS.values(), key=lambda entry: (kind in entry.actions, len(entry.actions)))
    takes = f"{other.builder} takes {other.takes}"
    if isinstance(action_space, spaces.MultiDiscrete):
        number = math.prod(action_space.nvec.ravel().tolist())
        return f"let the environment number the combinations, as Discrete({number}), and take them apart in step; or {takes}"
    return takes


def check_actions(rule: str, env: Env | HostEnv, kinds: Sequence[type[spaces.Space]]) -> None:
    """Refuse an environment whose actions are of none of these kinds."""
    if not isinstance(env.action_space, tuple(kinds)):
        names = listed([kind.__name__ for kind in kinds], "or")
        what = f"{env.name} has {env.action_space}: {other_way(env.action_space)}"
        raise TypeError(f"{rule} needs a {names} action space; {what}")


# ----------------------------------------------------------------------------------------------------------------------- models


def own_network(algorithm: Entry) -> ModelFn | None:
    """The function of ``jaxrl.models`` that an algorithm's entry names; None where it names none."""
    return getattr(models, algorithm.network) if algorithm.network else None


def check_arguments(network: ModelFn, given: ModelArguments, name: str = "model") -> None:
    """Refuse arguments that a network does not take. What it says to their values, it says itself."""
    takes = {name: p for name, p in inspect.signature(network).parameters.items() if p.kind is p.KEYWORD_ONLY}
    for argument in given:
        if argument not in takes:
            what = f"{name}={dict(given)!r}: {show(network)} takes no {argument!r}.{nearest(argument, takes)}"
            raise TypeError(f"{what} It takes: {', '.join(takes)}")


def with_arguments(
    model: Model | ModelFn | ModelArguments | None, network: ModelFn, name: str = "model"
) -> Model | ModelFn | None:
    """A builder's ``model`` keyword with arguments of the rule's own ``network`` as the function of the spaces that they mean.

    Args:
      name: the keyword, for errors.
    """
    if not isinstance(model, Mapping):
        return model
    check_arguments(network, model, name)
    return functools.partial(network, **model) if model else None


def is_own(model: Any, network: ModelFn) -> bool:
    """Whether a builder's ``model`` keyword is the rule's own ``network``, with arguments or without."""
    return model is None or model is network or (isinstance(model, functools.partial) and model.func is network)


def as_network(model: Any, network: ModelFn, other: ModelFn) -> Any:
    """A builder's ``model`` keyword, with ``other`` where it has the rule's own ``network``."""
    if other is network or not is_own(model, network):
        return model
    return functools.partial(other, *model.args, **model.keywords) if isinstance(model, functools.partial) else other


def resolve_model(model: Model | ModelFn | None, default: ModelFn, env: Env | HostEnv, *, name: str = "model") -> Model:
    """A builder's ``model`` keyword: a Model, a function of (observation_space, action_space) that gives one, or None.

    ``apply`` and ``unroll`` of what is returned take a ``key``, whether the given ones do or not.

    Args:
      name: the keyword, for errors, of builders that take another model besides.
    """
    what, both = f"{name}={show(model)}", (env.observation_space, env.action_space)
    if library := _flax_library(model):
        kind = show(model).partition("(")[0]
        call = f"from_linen({kind}(…))" if library == "linen" else f"from_nnx(lambda rngs: {kind}(…, rngs=rngs))"
        raise TypeError(
            f"{what} is a flax module, and must be {MODEL}: {name}=jaxrl.models.{call}, or a function of the spaces that gives it"
        )
    made: Any = model
    if not isinstance(model, Model):
        function: Any = default if model is None else model
        if not callable(function):
            raise TypeError(f"{what} must be {MODEL}")
        if not _takes(function, *both):
            raise TypeError(f"{what} takes {inspect.signature(function)}, and must be {MODEL}")
        made = function(*both)
        if not isinstance(made, Model):
            raise TypeError(f"{what} gives {show(made)} for the spaces of {env.name}, and must be {MODEL}")
    for part, value in made._asdict().items():
        if not callable(value):
            fix = ": lambda batch_size: () for a model without memory" if part == "initial_carry" else ""
            raise TypeError(f"{what}: its {part} is {show(value)}, and must be a function{fix}")
    return made._replace(apply=_with_key(made.apply), unroll=_with_key(made.unroll))


def _with_key(function: Any) -> Any:
    """``apply`` or ``unroll`` of a model, which takes a key that one of three arguments has no use for."""
    if _takes(function, None, None, None, key=None):
        return function
    return lambda params, carry, inputs, key=None: function(params, carry, inputs)


def _flax_library(part: Any) -> str | None:
    """ "linen" or "nnx", for a module of theirs or a class of such modules."""
    kind = part if isinstance(part, type) else type(part)
    return next((name for name, base in (("linen", nn.Module), ("nnx", nnx.Module)) if issubclass(kind, base)), None)


def _takes(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether it can be called so, as far as its signature tells."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # it has no signature, or arguments of a partial that do not fit: the call will say
        return True
    return True


def model_output(given: Any, model: Model, env: Env | HostEnv, *, unrolled: bool = False, name: str = "model") -> PyTree:
    """Shapes of what a model gives for a batch of one.

    Args:
      given: the builder's keyword, for errors.
      unrolled: the rule uses ``unroll``, so look whether it gives the same over two rows.
      name: the keyword, for errors.

    Raises:
      TypeError: a function of the model fails on this environment's spaces, or gives something else than it has to.
    """
    what, on = f"{name}={show(given)}:", f"on the spaces of {env.name}"
    inputs = jax.eval_shape(lambda: example_input(env.observation_space, env.action_space))
    carry = attempt(f"{what} initial_carry(1)", lambda: model.initial_carry(1))
    params = attempt(f"{what} init(key, inputs) {on}", model.init, jax.eval_shape(lambda: jax.random.key(0)), inputs)
    names = ["apply", "unroll"] if unrolled else ["apply"]
    outputs = []
    for part, lead in zip(names, [(), (2,)], strict=False):
        rows = jax.tree.map(lambda x, lead=lead: jax.ShapeDtypeStruct(lead + x.shape, x.dtype), inputs)
        out = attempt(f"{what} {part}(params, carry, inputs) {on}", getattr(model, part), params, carry, rows)
        if type(out) is not tuple or len(out) != 2:
            raise TypeError(f"{what} {part} must return (carry, outputs); it returned {show_shapes(out)}")
        if not same_shapes(out[0], carry):
            raise TypeError(
                f"{what} {part} returned the carry {show_shapes(out[0])}, and initial_carry(1) gives {show_shapes(carry)}: "
                "they must agree"
            )
        outputs.append(out[1])
    if unrolled:
        expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), outputs[0])
        if not same_shapes(outputs[1], expected):
            raise TypeError(
                f"{what} unroll over two rows gives {show_shapes(outputs[1])}, and apply {show_shapes(outputs[0])} for one: "
                "unroll must give the same with the axis of time in front"
            )
    return outputs[0]


def is_recurrent(model: Model) -> bool:
    """Whether it has a carry."""
    return bool(jax.tree.leaves(jax.eval_shape(lambda: model.initial_carry(1))))


def check_actor_critic(given: Any, output: PyTree, action_space: spaces.Space) -> None:
    """Refuse a model that gives (shapes of) something else than a policy over these actions and a value, for a batch of one."""
    if not isinstance(output, ActorCriticOutput) or getattr(output.value, "shape", None) != (1,):
        raise TypeError(
            f"model={show(given)} must give an ActorCriticOutput(policy, value f32[batch]); for a batch of one it gives "
            f"{show_shapes(output)}"
        )
    kinds, size = _policies(action_space)
    # A distribution of the user's own is the user's matter.
    built_in = isinstance(output.policy, Categorical | MultiCategorical | Normal | TanhNormal)
    if built_in and (not isinstance(output.policy, kinds) or output.policy[0].shape != (1, *size)):
        names = listed([kind.__name__ for kind in kinds], "or")
        shown = size[0] if len(size) == 1 else size
        raise TypeError(
            f"model={show(given)} must give a {names} policy of size {shown} for {action_space}; it gives "
            f"{type(output.policy).__name__} {show_shapes(output.policy[0])}"
        )


def _policies(action_space: spaces.Space) -> tuple[tuple[type, ...], tuple[int, ...]]:
    """The built-in distributions over these actions, and how large one is."""
    if isinstance(action_space, spaces.Box):
        return (Normal, TanhNormal), (math.prod(action_space.shape),)
    if isinstance(action_space, spaces.MultiDiscrete):
        return (MultiCategorical,), (action_space.nvec.size, int(action_space.nvec.max()))
    return (Categorical,), (int(action_space.n),)  # type: ignore[attr-defined]


def check_q_values(given: Any, output: PyTree, action_space: Any) -> None:
    """Refuse a model that gives (shapes of) something else than a Q-value of each Discrete action, for a batch of one."""
    if getattr(output, "shape", None) != (1, action_space.n):
        raise TypeError(
            f"model={show(given)} must give Q-values f32[batch, {action_space.n}]; for a batch of one it gives "
            f"{show_shapes(output)}"
        )


# ------------------------------------------------------------------------------------------------------------------- optimisers


READ_BY_OPTIMIZERS = {
    "learning_rate": "optax.adamw(hp.learning_rate)",
    "max_grad_norm": "optax.chain(optax.clip_by_global_norm(hp.max_grad_norm), optax.adamw(hp.learning_rate))",
    "adam_eps": "optax.adamw(hp.learning_rate, eps=hp.adam_eps)",
}
"""Hyperparameters that nothing but the optimiser looks at, and how one does."""


def resolve_optimizer(
    optimizer: OptimizerFn | optax.GradientTransformation | None,
    model: Model,
    env: Env | HostEnv,
    hyperparams: Any,
    defaults: Any,
    scheduled: Sequence[str],
) -> tuple[OptimizerFn, set[str]]:
    """A builder's ``optimizer`` keyword as a function of the hyperparameters, tried on the model's parameters; and the names of
    those that have no effect with it.

    Args:
      hyperparams: the agent's own, and ``defaults`` the rule's.
      scheduled: hyperparameters that a schedule changes.

    Raises:
      TypeError: it is no optimiser, or fails.
      ValueError: a learning rate, a clip or a schedule was asked for that it does not look at.
    """
    if optimizer is None or optimizer is clipped_adam:
        return clipped_adam, set()
    what = f"optimizer={show(optimizer)}"
    function = ready(optimizer) if isinstance(optimizer, optax.GradientTransformation) else optimizer
    if not callable(function) or not _takes(function, hyperparams):
        raise TypeError(f"{what} must be {OPTIMIZER}")
    inputs = jax.eval_shape(lambda: example_input(env.observation_space, env.action_space))
    params = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), inputs)
    try:
        read, (state, updates, after) = settings_read(function, hyperparams, params)
    except Exception as error:
        raise TypeError(f"{what} must be {OPTIMIZER}. This one fails with {reason(error)}") from error
    for name, got, wanted in (("updates", updates, params), ("state", after, state)):
        if not same_shapes(got, wanted):
            raise TypeError(f"{what} gives the {name} {show_shapes(got)} for {show_shapes(wanted)}: they must agree")
    unread = ({*READ_BY_OPTIMIZERS} & {*defaults._fields}) - read
    for name in unread:
        fix = READ_BY_OPTIMIZERS[name]
        if name in scheduled:
            raise ValueError(
                f"{name} has a schedule, and {what} does not look at it: use lambda hp: {fix}, "
                "or give the transformation a schedule of its own"
            )
        if float(getattr(hyperparams, name)) != getattr(defaults, name):
            raise ValueError(
                f"{name}={getattr(hyperparams, name):g} has no effect, because {what} does not look at it: leave it out, or use "
                f"lambda hp: {fix}"
            )
    return function, unread


def ready(transformation: optax.GradientTransformation) -> OptimizerFn:
    """A transformation that looks at no hyperparameter."""
    return lambda hyperparams: transformation


# ----------------------------------------------------------------------------------------------------------------------- replay


def resolve_replay(
    replay: Any, default: ReplayFn, env: Env | HostEnv, config: ReplayConfig, *, before: int, after: int
) -> Replay:
    """A builder's ``replay`` keyword: None, or a ``ReplayFn``, called with the rule's sizes and the window that it needs.

    With ``hindsight`` among the settings it is within a ``hindsight_replay``.
    """
    sizes = (config.buffer_size // config.num_envs, config.num_envs, config.rollout_length)
    must = "must be a function (capacity per environment, num_envs, rows_per_add, *, before, after) -> Replay, such as "
    must += show(default)
    if replay is not None and getattr(config, "prioritized", False):
        raise ValueError(
            f"prioritized=True has no effect beside replay={show(replay)}: leave one of them out, or use "
            "replay=jaxrl.replay.prioritised.prioritised_replay(…)"
        )
    function = default if replay is None else replay
    if not callable(function) or not _takes(function, *sizes, before=before, after=after):
        raise TypeError(f"replay={show(replay)} {must}")

    def stored(*sizes: int, before: int, after: int) -> Replay:
        made = function(*sizes, before=before, after=after)
        if not isinstance(made, Replay):
            raise TypeError(f"replay={show(replay)} gives {show(made)}, and {must}")
        return made

    if not isinstance(config, HindsightConfig) or config.hindsight == "none":
        return stored(*sizes, before=before, after=after)
    check_goals(env, f"hindsight={config.hindsight!r}")
    around = hindsight_replay(stored, env.compute_reward, strategy=config.hindsight, share=config.hindsight_share)  # type: ignore[arg-type]
    return around(*sizes, before=before, after=after)


# ----------------------------------------------------------------------------------------------------------------------- losses


def resolve_losses(extra_losses: Any) -> tuple[Any, ...]:
    """A builder's ``extra_losses`` keyword: several functions, or one."""
    if callable(extra_losses):
        return (extra_losses,)
    if not isinstance(extra_losses, Sequence) or isinstance(extra_losses, str):
        raise TypeError(f"extra_losses={show(extra_losses)} must be {LOSS}, or a list of them")
    for i, loss in enumerate(extra_losses):
        if not callable(loss):
            raise TypeError(f"extra_losses[{i}]={show(loss)} must be {LOSS}")
    return tuple(extra_losses)


def check_loss(what: str, loss: Callable[[PyTree, Any], Any], params: PyTree, batch: Any) -> None:
    """Refuse a loss that fails on a minibatch, or gives something else than (a scalar, {name: scalar}); called on shapes."""
    must = "it must return (loss, {name: scalar to log}), with {} where there is nothing to log"
    try:
        out = loss(params, batch)
    except Exception as error:
        raise TypeError(f"{what} must be {LOSS}. This one fails with {reason(error)}") from error
    if not isinstance(out, tuple | list) or len(out) != 2 or not isinstance(out[1], Mapping):
        raise TypeError(f"{what} returned {show_shapes(out)}: {must}")
    for name, value in {"the loss": out[0], **{f"the scalar {name!r}": x for name, x in out[1].items()}}.items():
        number = isinstance(value, int | float | jax.Array | np.ndarray | np.generic) and jnp.result_type(value).kind in "fiu"
        if not number or jnp.shape(value) != ():
            fix = ", say a mean over the rows that batch.valid names" if number else f": {must}"
            raise TypeError(f"{what} returned {show_shapes(value)} as {name}, which must be one number{fix}")


# ------------------------------------------------------------------------------------------------------------ intrinsic rewards


def resolve_intrinsic(intrinsic: Intrinsic | IntrinsicFn | None, env: Env | HostEnv) -> Intrinsic | None:
    """A builder's ``intrinsic`` keyword: an Intrinsic, a function of both spaces that gives one, or None."""
    if intrinsic is None or isinstance(intrinsic, Intrinsic):
        return intrinsic
    what, both = f"intrinsic={show(intrinsic)}", (env.observation_space, env.action_space)
    if not callable(intrinsic):
        raise TypeError(f"{what} must be {INTRINSIC}")
    if not _takes(intrinsic, *both):
        raise TypeError(f"{what} takes {inspect.signature(intrinsic)}, and must be {INTRINSIC}")
    made: Any = intrinsic(*both)
    if not isinstance(made, Intrinsic):
        raise TypeError(f"{what} gives {show(made)} for the spaces of {env.name}, and must be {INTRINSIC}")
    return made


def check_intrinsic(what: str, part: Intrinsic, learner: Any, rollout: Rollout, axis_name: str | None) -> None:
    """Refuse one whose functions fail on a rollout, or give something else than they have to; called on shapes."""
    state = learner.intrinsic
    try:
        observed, learnt = part.observe(state, rollout, axis_name), part.learn(state, rollout, learner.key, axis_name)
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError  # a size that does not fit is no wrong type
        raise kind(f"{what} fails on a rollout of {show_shapes(rollout.reward)} with {reason(error)}") from error
    rows = rollout.reward
    if not (isinstance(learnt, tuple | list) and len(learnt) == 3 and isinstance(learnt[2], Mapping)):
        raise TypeError(
            f"{what}: learn returned {show_shapes(learnt)}; it must return (advantage, state, {{key: scalar to log}})"
        )
    if not same_shapes(learnt[0], rows):
        raise TypeError(
            f"{what}: learn returned the advantage {show_shapes(learnt[0])}, which must be {show_shapes(rows)}: one number for "
            "each row [T, B]"
        )
    for name, after in (("observe", observed), ("learn", learnt[1])):
        if not same_shapes(after, state):
            raise TypeError(
                f"{what}: {name} returned the state {show_shapes(after)}, and init gives {show_shapes(state)}: they must agree"
            )
    for name, value in learnt[2].items():
        if getattr(value, "shape", None) is None or jnp.result_type(value).kind not in "fiu":
            raise TypeError(f"{what}: learn returned {show_shapes(value)} as {name!r}, which must be numbers to log")
