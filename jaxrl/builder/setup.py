"""What every learning rule shares around its own few functions.

A builder ``prepare``s what it was given; the rule's functions take the ``AlgorithmSetup`` that comes of it as their first argument, as in
``update(setup, learner, rollout)``; ``PreparedAgent.bind`` makes the ``Agent``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from jaxrl.agent import as_only_device, bind
from jaxrl.builder.components import (
    ModelFn,
    as_network,
    check_actions,
    check_intrinsic,
    check_loss,
    is_recurrent,
    model_output,
    resolve_intrinsic,
    resolve_losses,
    resolve_model,
    resolve_optimizer,
    show,
    with_arguments,
)
from jaxrl.builder.config import RolloutConfig
from jaxrl.builder.spec import agent_spec, brief
from jaxrl.envs.resolve import resolve_env
from jaxrl.exploration.action_noise import hold_noise
from jaxrl.intrinsic.part import Intrinsic, exploring
from jaxrl.metrics import scalars
from jaxrl.optimize import OptimizerFn, clipped_adam, learning_rate_metric, packing
from jaxrl.optimize.gradients import LossFn, mean_gradient
from jaxrl.optimize.schedules import Schedule, check_schedules, remaining, scheduled
from jaxrl.registry import title_of
from jaxrl.replay import Draw, Replay, over_devices
from jaxrl.replay.transitions import replay_rows
from jaxrl.rollout.collect import example_rollout
from jaxrl.rollout.inputs import example_input
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.settings.validation import merge_hyperparams, split_settings
from jaxrl.spaces.trees import same_shapes, show_shapes
from jaxrl.types import (
    Agent,
    Algorithm,
    Array,
    Env,
    EnvLike,
    HostEnv,
    Key,
    LearnerState,
    Mean,
    Metrics,
    Model,
    Policy,
    PyTree,
    Rollout,
)
from jaxrl.xla.fast_random import fold_in

C = TypeVar("C", bound=RolloutConfig)
L = TypeVar("L", bound=LearnerState)

GATHERED_BYTES = 2**15
"""Of observations, gathered from replay at once: so much stays in a cache, and what many seeds gather is little beside replay.
Sixteen of CartPole with 100,000 rows each take 1.29 times their rows with it, and 1.71 with eight times as much."""


class Learner(NamedTuple):
    """The state of a rule that keeps nothing of its own; the others have these fields first."""

    params: PyTree
    opt_state: PyTree
    hyperparams: Any
    statistics: PyTree
    key: Key
    """Constant: update n draws from (key, n)."""
    version: Array


@dataclass(frozen=True)
class AlgorithmSetup(Generic[C]):
    """All that the functions of a rule know before anything is traced. A rule bound to spaces, and to no environment."""

    observation_space: spaces.Space
    action_space: spaces.Space
    model: Model
    config: C
    optimizer: OptimizerFn = clipped_adam
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    extra_losses: Sequence[LossFn] = ()
    intrinsic: Intrinsic | None = None
    replay: Replay = None  # type: ignore[assignment]
    """Of rules that have one."""
    axis_name: str | None = None

    @property
    def warmup_iterations(self) -> int:
        """Those of the settings; one at least for the statistics of an intrinsic reward."""
        return max(self.config.warmup_iterations, int(self.intrinsic is not None))

    def current(self, learner: LearnerState) -> Any:
        """The hyperparameters of the next update: the state's, after their schedules and annealing."""
        annealed = self.config.anneal and "learning_rate" not in self.schedules
        iteration = learner.version + self.warmup_iterations
        rows = self.config.steps_per_iteration if annealed else 0
        return scheduled(learner.hyperparams, self.schedules, iteration, annealed_rows=rows)

    def init_learner(self, key: Key, hyperparams: Any, statistics: PyTree = ()) -> Learner:
        """Parameters of the model, and the optimiser's state for them."""
        model_key, learner_key = jax.random.split(key)
        example = example_input(self.observation_space, self.action_space)
        params = self.model.init(model_key, normalize_inputs(statistics, example))
        opt_state = self.optimizer(hyperparams).init(packing(self.optimizer, params).pack(params))
        return Learner(params, opt_state, hyperparams, statistics, learner_key, jnp.zeros((), jnp.int32))

    def draw(self, learner: Any) -> Draw:
        """The rows that all updates of an iteration learn from, one batch after the other."""
        config: Any = self.config
        return self.draw_batches(learner.replay, self.draw_key(learner), config.updates_per_iteration)

    def draw_batches(self, replay: PyTree, key: Key, number: int = 1) -> Draw:
        """The rows of some batches; a device draws its share."""
        return over_devices(self.replay.draw(replay, key, number * self.device_batch_size), self.axis_name)

    def draw_key(self, learner: Any) -> Key:
        """For the rows of this iteration on this device."""
        key = fold_in(learner.key, learner.version)
        return key if self.axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(self.axis_name))

    @property
    def device_batch_size(self) -> int:
        """Rows of a batch on this device."""
        config: Any = self.config
        return config.batch_size // (1 if self.axis_name is None else jax.lax.axis_size(self.axis_name))

    def stream(self, learner: Any, number: int) -> Key:
        """A key of this iteration, the same on all devices, beside that of ``draw``, of which replay splits others, and of which
        there are those of updates and devices, 0, 1, 2, …: ``fold_in(key, 2)`` is ``split(key, 3)[2]``. So these are far from
        0."""
        return fold_in(fold_in(learner.key, learner.version), 2**31 - 1 - number)

    @property
    def num_parts(self) -> int:
        """In how many parts, of as many updates each, an iteration gathers what it drew: as few as keep the observations of a
        part's rows, and of what they reached, within ``GATHERED_BYTES``; or one for each update."""
        config: Any = self.config
        obs = jax.tree.leaves(example_input(self.observation_space, self.action_space).obs)
        update = 2 * config.batch_size * sum(x.nbytes for x in obs)
        number = config.updates_per_iteration
        return next(
            k for k in range(1, number + 1) if number % k == 0 and (number // k * update <= GATHERED_BYTES or k == number)
        )

    def per_update(self, drawn: PyTree) -> PyTree:
        """What was drawn as batches to scan over, [updates_per_iteration, batch_size, ...]."""
        config: Any = self.config
        return jax.tree.map(lambda x: x.reshape((config.updates_per_iteration, -1, *x.shape[1:])), drawn)

    def scan_updates(
        self, learner: Any, one: Callable[[Any, Any], Any], start: PyTree, batch: Callable[[Any, Draw], PyTree], *others: PyTree
    ) -> tuple[PyTree, Any, Any]:
        """``jax.lax.scan`` over the updates of an iteration: what it carried last, the replay's state, and the metrics, stacked.

        Args:
          one: (carry, (number of the update, batch, *others)) -> (carry, (metrics, priorities f32[batch_size])).
          batch: (replay's state, draw) -> what an update learns from; one-to-one with the draw's rows.
          others: leaves [updates_per_iteration, ...], of which each update gets one.
        """
        config: Any = self.config
        numbers = jnp.arange(config.updates_per_iteration, dtype=jnp.int32)
        if not self.replay.prioritised:

            def without_priorities(carry: PyTree, now: Any) -> Any:
                carry, (metrics, _) = one(carry, now)
                return carry, metrics

            def part(carry: Any, now: Any) -> Any:
                (learnt, state), (drawn, numbers, *others) = carry, now
                # Rows are gathered before the updates, in few large steps.
                rows = batch(state, jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), drawn))
                batches = jax.tree.map(lambda x: x.reshape((*drawn.row.shape, *x.shape[1:])), rows)
                learnt, metrics = jax.lax.scan(without_priorities, learnt, (numbers, batches, *others))
                return (learnt, state), metrics

            carry, updates = (start, learner.replay), (self.per_update(self.draw(learner)), numbers, *others)
            if (parts := self.num_parts) == 1:
                (carry, state), metrics = part(carry, updates)
            else:  # the loop carries the buffer, or it would be copied into it
                updates = jax.tree.map(lambda x: x.reshape((parts, -1, *x.shape[1:])), updates)
                (carry, state), metrics = jax.lax.scan(part, carry, updates)
                metrics = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), metrics)
            return carry, state, metrics

        key = self.draw_key(learner)

        def draw_and_learn(carry: Any, now: Any) -> Any:
            learnt, state = carry
            number, *rest = now
            drawn = self.draw_batches(state, fold_in(key, number))
            learnt, (metrics, priorities) = one(learnt, (number, batch(state, drawn), *rest))
            return (learnt, self.replay.update(state, drawn, priorities)), metrics

        (carry, state), metrics = jax.lax.scan(draw_and_learn, (start, learner.replay), (numbers, *others))
        return carry, state, metrics

    def importance(self, learner: LearnerState) -> Array:
        """f32[]: the exponent of importance weights now (``PrioritizedConfig``)."""
        config: Any = self.config
        hyperparams: Any = learner.hyperparams
        iteration = learner.version + self.warmup_iterations
        left = remaining(iteration, config.steps_per_iteration, hyperparams.total_steps) if config.anneal else 1.0
        return 1.0 - (1.0 - config.importance_exponent) * jnp.asarray(left)

    def updated(self, learner: L, hyperparams: Any, metrics: Mapping[str, Array | Mean], **fields: Any) -> tuple[L, Metrics]:
        """What an update gives: the learner with new ``fields`` and the next version, and the metrics, with the learning rate."""
        rate = learning_rate_metric(self.optimizer, hyperparams, learner.params)
        return learner._replace(version=learner.version + 1, **fields), scalars({**metrics, **rate})  # type: ignore[attr-defined]

    def gradient(self, loss: Callable[[PyTree], tuple[Array, dict[str, Array]]], policy: Policy) -> tuple[PyTree, Metrics]:
        """What ``Algorithm.gradients`` gives, of ``loss(params) -> (loss, scalars to log)``: the mean over all devices, not
        clipped yet, and the metrics, with its norm and the learning rate."""
        gradient, metrics = mean_gradient(loss, policy.params, self.axis_name)
        metrics["losses/grad_norm"] = optax.tree.norm(gradient)
        rate = learning_rate_metric(self.optimizer, policy.hyperparams, policy.params)
        return gradient, scalars({**metrics, **rate})

    def algorithm(
        self,
        *,
        transferable_fields: tuple[str, ...] = ("params", "statistics"),
        tolerates_lag: bool = False,
        **functions: Callable[..., Any],
    ) -> Algorithm:
        """The ``Algorithm`` of functions that take the rule first, by the names that it has for them.

        Where none is given, ``init`` is ``init_learner``, and ``policy``, and with replay ``observe`` and ``mark_discontinuity``, are those of
        this module. A rule that gives ``learn`` updates by ``observe``, then ``learn``. One that gives ``gradients`` updates by
        ``observe``, if it has one, and ``apply``, and its policies hold the hyperparameters. For ``transferable_fields`` and
        ``tolerates_lag``, which holds with replay, see ``Algorithm``.
        """
        shared: dict[str, Callable[..., Any]] = {"init": AlgorithmSetup.init_learner, "policy": policy}
        if self.replay is not None:
            shared |= {"observe": store, "seal": mark_discontinuity}
        if "gradients" in functions:
            shared |= {"policy": policy_to_learn, "apply": apply}
        bound: dict[str, Any] = {name: partial(function, self) for name, function in {**shared, **functions}.items()}
        if "learn" in bound:
            bound["update"] = lambda learner, rollout: bound["learn"](bound["observe"](learner, rollout))
        if "gradients" in bound:
            bound["update"] = partial(update_by_gradient, bound)
        algorithm = Algorithm(
            **bound,
            initial_carry=self.model.initial_carry,
            warmup_iterations=self.warmup_iterations,
            transferable_fields=transferable_fields,
            buffers=("replay",) if self.replay is not None else (),
            tolerates_lag=tolerates_lag or self.replay is not None,
        )
        if self.intrinsic is not None:
            algorithm = exploring(algorithm, self.intrinsic, self.config.num_envs, self.axis_name)
        return hold_noise(algorithm, self.action_space, getattr(self.config, "hold_noise", 1))  # of rules that draw actions


def policy(setup: AlgorithmSetup[Any], learner: LearnerState) -> Policy:
    """The parameters and statistics: a rule that explores by these alone."""
    return Policy(learner.params, learner.statistics, (), learner.version)


def policy_to_learn(setup: AlgorithmSetup[Any], learner: LearnerState) -> Policy:
    """The same with the hyperparameters, so that it is all that a gradient needs."""
    return policy(setup, learner)._replace(hyperparams=setup.current(learner))


def update_by_gradient(functions: Mapping[str, Callable[..., Any]], learner: Any, rollout: Rollout) -> tuple[Any, Metrics]:
    """``Algorithm.update`` by its ``gradients`` and ``apply``, and ``observe`` if there is one."""
    gradient, metrics = functions["gradients"](functions["policy"](learner), rollout)
    if "observe" in functions:
        learner = functions["observe"](learner, rollout)
    return functions["apply"](learner, gradient), metrics


def apply(setup: AlgorithmSetup[Any], learner: Any, gradient: PyTree) -> Any:
    """One step of the optimiser along a gradient that is shaped like the parameters.

    Raises:
      ValueError: it is not.
    """
    if not same_shapes(gradient, learner.params):
        raise ValueError(
            f"gradient is {show_shapes(gradient)}, and the parameters are {show_shapes(learner.params)}: it must be what "
            "gradients gives of an agent with the same model, for one seed (or jax.vmap(apply) over learners and gradients)"
        )
    pack, unpack = packing(setup.optimizer, learner.params)
    packed = pack(learner.params)
    updates, opt_state = setup.optimizer(setup.current(learner)).update(pack(gradient), learner.opt_state, packed)
    params = unpack(optax.apply_updates(packed, updates))
    return learner._replace(params=params, opt_state=opt_state, version=learner.version + 1)


def store(setup: AlgorithmSetup[Any], learner: Any, rollout: Rollout) -> Any:
    """Add the rollout's rows to the replay, raw."""
    return learner._replace(replay=setup.replay.add(learner.replay, replay_rows(rollout), rollout.env_id))


def mark_discontinuity(setup: AlgorithmSetup[Any], learner: Any) -> Any:
    """The environments begin anew."""
    return learner._replace(replay=setup.replay.mark_discontinuity(learner.replay))


# -------------------------------------------------------------------------------------------------------------------- builders


@dataclass(frozen=True)
class PreparedAgent(Generic[C]):
    """What a builder was given, looked through."""

    setup: AlgorithmSetup[C]
    env: Env | HostEnv
    hyperparams: Any
    """The agent's own, as Python floats."""
    output: PyTree
    """Shapes of what the model gives for a batch of one."""
    spec: dict[str, Any]

    def bind(self, algorithm: Algorithm, *, batch: Callable[[Any, Rollout], Any] | None = None) -> Agent:
        """The ``Agent`` of the algorithm and the environment.

        Args:
          batch: (learner, rollout) -> what extra losses are given, of rules that take some.
        """
        config = self.setup.config
        if self.setup.extra_losses or self.setup.intrinsic is not None:
            check = as_only_device(lambda _: self._check_parts(algorithm, batch), self.setup.axis_name)
            jax.eval_shape(check, jax.ShapeDtypeStruct((), jnp.float32))  # an array would start a backend
        return bind(
            algorithm,
            self.env,
            num_envs=config.num_envs,
            rollout_length=config.rollout_length,
            hyperparams=self.hyperparams,
            spec=self.spec,
            axis_name=self.setup.axis_name,
            schedules=self.setup.schedules,
        )

    def _check_parts(self, algorithm: Algorithm, batch: Any) -> None:
        """Refuse an intrinsic reward or extra losses that fail, or give something else than they have to; on shapes alone."""
        config, part, axis_name = self.setup.config, self.setup.intrinsic, self.setup.axis_name
        learner = algorithm.init(jax.random.key(0), merge_hyperparams(self.hyperparams, None))
        policy = algorithm.policy(learner)
        rollout = example_rollout(algorithm, self.env, policy, config.num_envs, config.rollout_length)
        if part is not None:
            check_intrinsic(f"intrinsic={brief(self.spec['parts']['intrinsic'])}", part, learner, rollout, axis_name)
        minibatch = batch(learner, rollout) if self.setup.extra_losses else None
        for i, loss in enumerate(self.setup.extra_losses):
            check_loss(f"extra_losses[{i}]={show(loss)}", loss, learner.params, minibatch)


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
) -> PreparedAgent[C]:
    """Look through what a builder was given: settings, environment, model, optimiser, schedules and losses.

    Args:
      builder: itself, which the spec names.
      settings: its keywords that are fields of ``config`` and ``hyperparams``.
      actions: the kinds of action space that the rule takes.
      parts: all other keywords of the builder: ``model``, ``optimizer``, ``schedules``, ``axis_name``, and others that it has.
      memory: the rule trains recurrent models, so it calls the model's ``unroll``, not only ``apply``.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, action space or part.
      ValueError: settings out of range, or that have no effect.
    """
    data: Any
    structure, data = split_settings(builder.__name__, config, hyperparams, settings, parts)
    bound = resolve_env(env)
    parts = {**parts, "model": with_arguments(parts["model"], default_model)}
    title = title_of(builder.__name__)
    check_actions(title, bound, actions)
    network = structure.network(default_model)
    model = resolve_model(as_network(parts["model"], default_model, network), network, bound)
    if (recurrent := is_recurrent(model)) and not memory:
        raise TypeError(f"{title} learns from single rows, so its model must be memoryless (initial_carry gives ())")
    losses = resolve_losses(parts.get("extra_losses", ()))
    intrinsic = resolve_intrinsic(parts.get("intrinsic"), bound)
    output = model_output(parts["model"], model, bound, unrolled=memory)
    structure.check(recurrent=recurrent)
    factors = check_schedules(parts["schedules"], data._fields)
    optimizer, unread = resolve_optimizer(parts["optimizer"], model, bound, data, hyperparams(), [*factors])
    both = (bound.observation_space, bound.action_space)
    setup = AlgorithmSetup(*both, model, structure, optimizer, factors, losses, intrinsic, axis_name=parts["axis_name"])
    if "extra_losses" in parts:
        parts = {**parts, "extra_losses": losses}  # one need not be in a list
    if intrinsic is None:  # specs without this part are those of before there was one
        parts = {name: part for name, part in parts.items() if name != "intrinsic"}
    return PreparedAgent(
        setup, bound, data, output, agent_spec(builder, env if isinstance(env, str) else bound, structure, data, parts, unread)
    )
