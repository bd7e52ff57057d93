"""Keywords that the builders of a family share: their types, defaults and texts, once for each family.

Each function here is a family's signature and is never called. ``with_keywords_of`` gives it to a builder that takes
``**keywords``, for type checkers, ``inspect.signature`` and ``help``. A TypedDict could not: settings, the fields of a Config and
its Hyperparams, are keywords too, and ``Unpack`` allows no others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from jaxrl.builder.networks import ModelArguments, ModelFn
from jaxrl.intrinsic.part import Intrinsic, IntrinsicFn
from jaxrl.optimize import Optimizer
from jaxrl.optimize.gradients import LossFn
from jaxrl.optimize.schedules import Schedule
from jaxrl.registry import ALGORITHMS
from jaxrl.replay import ReplayFn
from jaxrl.replay.dataset import Dataset, DatasetInfo
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.settings.docstrings import entries, with_entries
from jaxrl.settings.options import Option
from jaxrl.types import Agent, EnvLike, Model

Family = TypeVar("Family", bound=Callable[..., Agent])


def agent_keywords(
    env: EnvLike,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of every builder. Other families document only their differences.

    Args:
      env: an id ("CartPole-v1", "envpool:CartPole-v1", "my_module:make_my_env"), an Env, a HostEnv or a Gymnasium class.
      model: arguments of ``jaxrl.models.q_network``, such as ``{"hidden_sizes": (128, 128)}``; or a memoryless Model whose
        outputs are Q-values f32[..., n], or a function of (observation_space, action_space) that returns one. Default: an MLP of
        2×64, ReLU, for vectors.
      optimizer: hyperparams -> optax transformation, or a transformation itself; default: clipped Adam.
      schedules: hyperparameter name -> function of the iteration (warm-up included) that returns a factor on it.
      axis_name: name of the device axis that ``step`` runs under.
      settings: fields of the algorithm's config and hyperparameters.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, model or action space.
      ValueError: sizes that do not fit together, hyperparameters out of range, settings without effect.
    """
    raise NotImplementedError


def on_policy_keywords(
    env: EnvLike,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    extra_losses: Sequence[LossFn] | LossFn = (),
    intrinsic: Intrinsic | IntrinsicFn | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of on-policy actor-critics.

    Args:
      model: arguments of ``jaxrl.models.actor_critic``, such as ``{"core": "gru"}``; or a Model whose outputs are
        ``ActorCriticOutput``, or a function of (observation_space, action_space) that returns one. Default: two MLPs of 2×64,
        tanh, or convolutions for images.
      extra_losses: one function or several, (params, rollout of ``normalized_rollout``) -> (loss to add, scalars to log).
      intrinsic: an intrinsic reward, such as ``jaxrl.intrinsic.rnd``.
    """
    raise NotImplementedError


def replay_keywords(
    env: EnvLike,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    replay: ReplayFn | Option | str | Mapping[str, Any] | None = None,
    data: Dataset | DatasetInfo | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of Q-learning with replay.

    Args:
      replay: ``Uniform()`` or ``Prioritized()`` of ``jaxrl.options``; or a ``ReplayFn``, (capacity per environment, num_envs,
        rows_per_add, *, before, after) -> Replay, called with ``before=1`` and ``after=n_step``. Default: ``Uniform()``.
      data: a dataset to learn from in place of rollouts, as ``jaxrl.load_dataset`` reads it: offline learning.
    """
    raise NotImplementedError


def latent_model_keywords(
    env: EnvLike,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    dynamics: Model | ModelFn | ModelArguments | None = None,
    prediction: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    replay: ReplayFn | Option | str | Mapping[str, Any] | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of algorithms that learn a model on latent states.

    Args:
      model: the representation, from observations to latent states: arguments of ``jaxrl.models.representation``, such as
        ``{"latent_size": 32}``; those of layers (``hidden_sizes``, ``activation``, ``layer_norm``, ``dtype``) apply to the other
        networks too; or a memoryless Model whose outputs are f32[..., d]; or a function of both spaces that returns
        one. Default: an MLP of 2×64, ReLU, for vectors.
      dynamics: from latent states and actions to next states, rewards and ends: arguments of ``jaxrl.models.latent_dynamics``; or
        a memoryless Model with the same inputs and outputs; or a function of both spaces that returns one.
      prediction: from latent states to priors and values: the same of ``jaxrl.models.latent_prediction``.
      replay: ``Uniform()``, ``Prioritized()`` or a ``ReplayFn``, called with ``before=1`` and ``after=unroll_steps + n_step``.
    """
    raise NotImplementedError


def actor_critic_replay_keywords(
    env: EnvLike,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    critic: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    replay: ReplayFn | Option | str | Mapping[str, Any] | None = None,
    data: Dataset | DatasetInfo | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of algorithms that learn a policy and critics from replay.

    Args:
      env: an id ("Pendulum-v1", "envpool:HalfCheetah-v4", "my_module:make_my_env"), an Env, a HostEnv or a Gymnasium class.
      model: the policy: arguments of ``jaxrl.models.deterministic_policy``, such as ``{"hidden_sizes": (64, 64)}``, which also
        apply to the critics if ``critic`` is not given, and ``{"core": "gru"}``, with which both have memory and learn from
        sequences; or a Model whose outputs are actions f32[..., d] in [−1, 1], or a ``Categorical`` if these are Discrete; or a
        function of (observation_space, action_space) that returns one. Default: an MLP of 2×256, ReLU, for vectors.
      critic: each critic: arguments of ``jaxrl.models.action_value``; or a Model with the same inputs and outputs; or a function
        of both spaces that returns one. The core of one with memory must not see the action. Default: as the policy.
      optimizer: hyperparams -> optax transformation, or a transformation itself, for policy and critics; default: clipped Adam.
      replay: ``Uniform()``, ``Prioritized()`` or a ``ReplayFn``, as in ``make_dqn``.
      data: a dataset to learn from in place of rollouts, as ``jaxrl.load_dataset`` reads it: offline learning.

    Raises:
      ValueError: sizes that do not fit together, hyperparameters out of range, settings without effect, a Box without bounds.
    """
    raise NotImplementedError


def model_based_keywords(
    env: EnvLike,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    reward: Callable[..., Any] | None = None,
    optimizer: Optimizer | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of algorithms that learn the dynamics of the environment.

    Args:
      env: an id ("Pendulum-v1", "envpool:HalfCheetah-v4", "my_module:make_my_env"), an Env, a HostEnv or a Gymnasium class.
      reward: a JAX function of one row, (obs, action, next_obs) -> reward f32[], to be used in place of the learned reward.
    """
    raise NotImplementedError


def imitation_keywords(
    env: EnvLike,
    *,
    teacher: Any = None,
    teacher_obs: Callable[..., Any] | None = None,
    model: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of algorithms that learn the actions of a teacher.

    Args:
      teacher: a trained policy, as ``jaxrl.load_policy`` returns, or ``(agent, state)``, the state of one seed. Required.
      teacher_obs: function from an observation of the environment to one of the teacher's; default: they are the same.
    """
    raise NotImplementedError


def taught_replay_keywords(
    env: EnvLike,
    *,
    teacher: Any = None,
    teacher_obs: Callable[..., Any] | None = None,
    model: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    replay: ReplayFn | Option | str | Mapping[str, Any] | None = None,
    data: Dataset | DatasetInfo | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of Q-learning with replay and a teacher.

    Args:
      teacher: a trained policy without memory, as ``jaxrl.load_policy`` returns, or ``(agent, state)``, the state of one seed.
        Required.
      teacher_obs: as in ``make_dagger``.
      replay: as in ``make_dqn``.
      data: a dataset to learn from in place of rollouts, as in ``make_dqn``, such as the teacher's replay.
    """
    raise NotImplementedError


def dataset_keywords(
    env: EnvLike,
    *,
    data: Dataset | DatasetInfo | None = None,
    model: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Keywords of algorithms that learn from a dataset alone.

    Args:
      env: an id ("Pendulum-v1", "envpool:HalfCheetah-v4", "my_module:make_my_env"), an Env, a HostEnv or a Gymnasium class, with
        the spaces of the data. It plays the evaluations.
      data: the dataset, as ``jaxrl.load_dataset`` reads it. Required.
      axis_name: has no effect, and is refused.
    """
    raise NotImplementedError


def with_keywords_of(family: Family) -> Callable[[Callable[..., Agent]], Family]:
    """Return a decorator of a builder ``(env, **keywords)``: it takes the family's keywords, and its docstring lists them.

    The builder's docstring documents what differs; each entry of its Args and Raises replaces the family's. Its errors are those
    of ``suggest_arguments`` as well.
    """

    def decorate(builder: Callable[..., Agent]) -> Family:
        checked: Any = suggest_arguments(builder)
        checked.__signature__ = inspect.signature(family)
        if builder.__doc__:  # python -OO leaves none
            checked.__doc__ = composed(builder, family)
        return cast(Family, checked)

    return decorate


def split_keywords(builder: Callable[..., Agent], keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``(settings, parts)``: parts are the keywords that the builder's signature lists, given or with their defaults.

    An option of replay is a setting; a ``ReplayFn`` is a part.
    """
    named = [p for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
    parts = {p.name: keywords.get(p.name, p.default) for p in named}
    settings = {name: value for name, value in keywords.items() if name not in parts}
    replay = parts.get("replay")
    if isinstance(replay, str | Mapping) or hasattr(replay, "is_option"):  # also a class by mistake, for its error
        settings["replay"], parts["replay"] = replay, None
    return settings, parts


def composed(builder: Callable[..., Agent], family: Callable[..., Agent]) -> str:
    """Return the builder's docstring with the Args and Raises of its family that it does not replace."""
    args, errors = (entries(part, agent_keywords, family, builder) for part in ("Args", "Raises"))
    if entry := ALGORITHMS.get(builder.__name__.removeprefix("make_")):
        args["settings"] = f"fields of ``{entry.config}`` and ``{entry.hyperparams}``."
    return with_entries(builder, Args={name: args[name] for name in inspect.signature(family).parameters}, Raises=errors)
