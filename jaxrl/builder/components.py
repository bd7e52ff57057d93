"""Components that the user passes to a builder beside networks: optimiser, replay, losses and intrinsic reward.

Each is checked by abstract evaluation, on shapes alone. So errors are raised by the builder, not inside a trace of ``step``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces

from jaxrl.builder.attempt import accepts, reason, show
from jaxrl.builder.config import BufferConfig, ReplayConfig
from jaxrl.intrinsic import Intrinsic, IntrinsicFn
from jaxrl.optimize import OptimizerFn, clipped_adam, settings_read
from jaxrl.registry import ALGORITHMS
from jaxrl.replay import Replay
from jaxrl.replay.augmentation import shift_replay
from jaxrl.replay.dataset import Dataset, DatasetInfo, check_spaces, info_of
from jaxrl.replay.dataset_replay import dataset_replay, mixed_replay
from jaxrl.replay.hindsight import hindsight_replay
from jaxrl.replay.options import Future
from jaxrl.rollout.inputs import example_input
from jaxrl.rollout.outputs import split_variables
from jaxrl.settings.aliases import listed
from jaxrl.settings.options import option_fields
from jaxrl.spaces.goals import check_goals
from jaxrl.spaces.trees import same_shapes, show_shapes
from jaxrl.types import Env, HostEnv, Model, PyTree, Rollout

OPTIMIZER = (
    "an optax transformation, or a function of the hyperparameters that returns one: lambda hp: optax.adamw(hp.learning_rate)"
)
LOSS = "a function (params, Batch) -> (loss, {name: scalar})"
INTRINSIC = (
    "a function of (observation_space, action_space) that returns a jaxrl.intrinsic.Intrinsic, such as jaxrl.intrinsic.rnd"
)


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
    if not callable(function) or not accepts(function, hyperparams):
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

    If the settings ask for ``hindsight`` or ``augmentation``, the replay is wrapped in ``hindsight_replay`` or ``shift_replay``.

    Args:
      replay: a ``ReplayFn``; None: that of the option ``config.replay``.
      data: dataset to draw from instead, or with ``config.online`` as well; None without one.
    """
    if data is not None and getattr(config, "augmentation", None) is not None:
        raise ValueError(f"augmentation={config.augmentation} has no effect with data=…: leave it out")  # type: ignore[attr-defined]
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
    if not callable(function) or not accepts(function, *sizes, before=before, after=after):
        raise TypeError(f"replay={show(replay)} {requirement}")

    def stored(*sizes: int, before: int, after: int) -> Replay:
        result = function(*sizes, before=before, after=after)
        if not isinstance(result, Replay):
            raise TypeError(f"replay={show(replay)} gives {show(result)}, and {requirement}")
        return result

    hindsight: Future | None = getattr(config, "hindsight", None)
    if (augmentation := getattr(config, "augmentation", None)) is not None:
        if hindsight is not None or config.has_memory or config.draws_environments:
            raise ValueError(
                f"augmentation={augmentation} changes single rows of one agent: leave it out, or hindsight, joint_actions and "
                "cores"
            )
        return shift_replay(
            stored(*sizes, before=before, after=after), env.observation_space, augmentation.pixels, augmentation.layout
        )
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
    if not accepts(intrinsic, *both_spaces):
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
