"""Checks of a builder's arguments: ``prepare`` resolves them to the setup of an algorithm, from which an agent is bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.agent import as_only_device, bind
from jaxrl.builder.attempt import attempt, show
from jaxrl.builder.components import (
    check_actions,
    check_intrinsic,
    check_loss,
    resolve_data,
    resolve_intrinsic,
    resolve_losses,
    resolve_optimizer,
)
from jaxrl.builder.config import AgentConfig, ReplayConfig
from jaxrl.builder.networks import (
    ModelFn,
    as_network,
    check_statistics,
    is_recurrent,
    model_output,
    resolve_model,
    with_arguments,
)
from jaxrl.builder.settings import check_scheduled, split_settings
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.builder.spec import agent_spec, brief
from jaxrl.envs import resolve_env
from jaxrl.exploration.action_noise import HeldNoise
from jaxrl.optimize.schedules import check_schedules
from jaxrl.registry import title_of
from jaxrl.rollout.collect import example_rollout
from jaxrl.settings.validation import merge_hyperparams, refuse_unused
from jaxrl.types import Agent, Algorithm, Env, EnvLike, HostEnv, PyTree, Rollout

C = TypeVar("C", bound=AgentConfig)

TRACED = jax.ShapeDtypeStruct((), jnp.float32)
"""Argument for functions that are only traced. An array would initialise a JAX backend."""


@dataclass(frozen=True)
class PreparedAgent(Generic[C]):
    """A builder's arguments after checks: the algorithm's setup, the environment, the hyperparameters and the spec."""

    setup: AlgorithmSetup[C]
    env: Env | HostEnv
    hyperparams: Any
    """The agent's hyperparameters, as Python floats."""
    output: PyTree
    """Shapes of the model's outputs for a batch of one."""
    spec: dict[str, Any]

    def bind(self, algorithm: Algorithm, *, batch: Callable[[Any, Rollout], Any] | None = None) -> Agent:
        """Return the ``Agent`` of the algorithm and the environment.

        Args:
          batch: (learner, rollout) -> the batch passed to extra losses; needed if the algorithm accepts extra losses.
        """
        config = self.setup.config
        if self.setup.extra_losses or self.setup.intrinsic is not None:
            check = as_only_device(lambda _: self._check_parts(algorithm, batch), self.setup.axis_name)
            jax.eval_shape(check, TRACED)
        if (replay := self.spec["parts"].get("replay")) is not None:
            hyperparams = merge_hyperparams(self.hyperparams, None)
            init = as_only_device(lambda _: algorithm.init(jax.random.key(0), hyperparams), self.setup.axis_name)
            attempt(f"replay={brief(replay)}, which must store the rows of {self.env.name},", init, TRACED)
        return bind(
            algorithm,
            self.env,
            num_envs=config.num_envs if config.episodes else config.num_envs // max(1, self.setup.num_agents),
            rollout_length=config.rollout_length,
            hyperparams=self.hyperparams,
            spec=self.spec,
            axis_name=self.setup.axis_name,
            schedules=self.setup.schedules,
            episodes=config.episodes,
            data=self.setup.data,
            online=config.online,
        )

    def _check_parts(self, algorithm: Algorithm, batch: Any) -> None:
        """Raise an error if the intrinsic reward or an extra loss fails or returns the wrong structure; on shapes alone."""
        config, part, axis_name = self.setup.config, self.setup.intrinsic, self.setup.axis_name
        learner = algorithm.init(jax.random.key(0), merge_hyperparams(self.hyperparams, None))
        policy = algorithm.policy(learner)
        rollout = example_rollout(algorithm, self.env, policy, config.num_envs, config.rollout_length)
        if isinstance(rollout.carry, HeldNoise):  # learning does not see it
            rollout = rollout._replace(carry=rollout.carry.model)
        if part is not None:
            check_intrinsic(f"intrinsic={brief(self.spec['parts']['intrinsic'])}", part, learner, rollout, axis_name)
        minibatch = batch(learner, rollout) if self.setup.extra_losses else None
        for i, loss in enumerate(self.setup.extra_losses):
            check_loss(f"extra_losses[{i}]={show(loss)}", loss, learner.params, minibatch)


def checked(config: C, num_agents: int, *, recurrent: bool) -> C:
    """Check that the settings fit together, and return them as an algorithm sees them: with lanes for environments."""
    if not num_agents:
        config.check(recurrent=recurrent)
        return config
    lanes = config.as_lanes(num_agents)
    try:
        lanes.check(recurrent=recurrent)
    except ValueError as error:
        if lanes is config:
            raise
        divided = ", and replay_ratio is divided by their number" if getattr(config, "draws_environments", False) else ""
        raise ValueError(f"{error} (num_envs counts each of the {num_agents} agents of an environment here{divided})") from None
    return lanes


def check_data(title: str, config: AgentConfig, env: Env | HostEnv, dataset: Any, *, recurrent: bool) -> None:
    """Raise ValueError for a dataset, or a population's episodes, that the environment or the model does not go with."""
    if env.players == 2 and (config.episodes or dataset is not None):
        what = "data=…" if dataset is not None else title
        raise ValueError(
            f"{what} is for environments of one player, and {env.name} is a game of two: use PPO, PQN or DQN without data"
        )
    if dataset is not None and recurrent and isinstance(config, ReplayConfig):
        raise ValueError(
            "data=… has no carries, from which a model with memory learns: use a model without a core, or jaxrl.make_dt, whose "
            "context is its memory"
        )


def prepare(
    builder: Callable[..., Agent],
    env: EnvLike,
    config: type[C],
    hyperparams: type,
    settings: Mapping[str, Any],
    actions: Sequence[type[spaces.Space]],
    default_model: ModelFn,
    parts: Mapping[str, Any],
    *,
    memory: bool = False,
    statistics: bool = False,
    seen_space: Callable[[spaces.Space], spaces.Space] = lambda space: space,
) -> PreparedAgent[C]:
    """Check and resolve a builder's arguments: settings, environment, model, optimiser, schedules and losses.

    Args:
      builder: the builder itself, recorded in the spec.
      env: the builder's environment argument.
      config: class of the structural settings.
      hyperparams: class of the hyperparameters.
      settings: keywords that are fields of ``config`` and ``hyperparams``.
      actions: the kinds of action space that the algorithm supports.
      default_model: function of both spaces that makes the default model.
      parts: all other keywords of the builder: ``model``, ``optimizer``, ``schedules``, ``axis_name`` and any others.
      memory: the algorithm can train recurrent models, so it calls the model's ``unroll``, not only ``apply``.
      statistics: the algorithm learns the statistics of models that have some, so it calls ``train_model``.
      seen_space: function of the observation space that gives the space of what the model sees.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, action space or part.
      ValueError: settings out of range, or without effect.
    """
    data: Any
    structure, data = split_settings(builder.__name__, config, hyperparams, settings, parts)
    bound = resolve_env(env)
    structure = structure.for_env(bound)
    dataset = resolve_data(parts.get("data"), bound)
    if dataset is not None:
        structure = structure.for_data()
    elif structure.only_with_data:
        refuse_unused(structure, type(structure)(), structure.only_with_data, "without data=…")
    parts = {**parts, "model": with_arguments(parts["model"], default_model)}
    title = title_of(builder.__name__)
    check_actions(title, bound, actions)
    network = structure.network(default_model)
    seen = bound._replace(observation_space=seen_space(bound.observation_space))
    model = resolve_model(as_network(parts["model"], default_model, network), network, seen)
    if (recurrent := is_recurrent(model)) and not memory:
        raise TypeError(f"{title} learns from single rows, so its model must be memoryless (initial_carry gives ())")
    check_data(title, structure, bound, dataset, recurrent=recurrent)
    structure = structure.for_model(recurrent).for_images(getattr(parts["model"], "keywords", {}).get("image_layout", "auto"))
    if not statistics:
        check_statistics(title, model)
    losses = resolve_losses(parts.get("extra_losses", ()))
    intrinsic = resolve_intrinsic(parts.get("intrinsic"), bound)
    output = model_output(parts["model"], model, seen, unrolled=memory)
    num_agents = 0 if dataset is not None and not structure.online else bound.num_agents
    lanes = checked(structure, num_agents, recurrent=recurrent)
    factors = check_schedules(parts["schedules"], data._fields)
    check_scheduled(structure, factors)
    chosen = structure.optimizer if parts["optimizer"] is None else parts["optimizer"]
    optimizer, unread = resolve_optimizer(chosen, model, seen, data, hyperparams(), [*factors])
    both_spaces = (bound.observation_space, bound.action_space)
    setup = AlgorithmSetup(
        *both_spaces,
        model,
        lanes,
        optimizer,
        factors,
        losses,
        intrinsic,
        axis_name=parts["axis_name"],
        data=dataset,
        num_agents=num_agents,
    )
    if "extra_losses" in parts:
        parts = {**parts, "extra_losses": losses}  # always a tuple, even for a single function
    absent = {name for name, part in (("intrinsic", intrinsic), ("data", dataset)) if part is None}
    # Specs stay the same as those that were written before these parts existed.
    parts = {name: part for name, part in parts.items() if name not in absent}
    left_open = [*unread, *(structure.unused_with_data if dataset is not None else ())]
    spec = agent_spec(builder, env if isinstance(env, str) else bound, structure, data, parts, left_open)
    return PreparedAgent(setup, bound, data, output, spec)
