"""Shared machinery of all algorithms: the setup that their functions take, and the agent bound from them.

Builders call ``prepare``, which returns a ``PreparedAgent`` with the ``AlgorithmSetup`` that every function of an algorithm takes
first, as in ``update(setup, learner, rollout)``. ``PreparedAgent.bind`` makes the ``Agent``.
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
from jaxrl.envs import resolve_env
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
"""Most bytes of observations to gather from replay at once. This much stays in a cache, and for many seeds the gathered rows
stay small compared with the replay: 16 seeds of CartPole with 100,000 rows each take 1.29 times the memory of their rows, and
1.71 times with a limit eight times as large."""


class Learner(NamedTuple):
    """Learner state of an algorithm with no further state. The learner states of other algorithms start with these fields."""

    params: PyTree
    opt_state: PyTree
    hyperparams: Any
    statistics: PyTree
    key: Key
    """Constant. Update n draws its random numbers from (key, n)."""
    version: Array


@dataclass(frozen=True)
class AlgorithmSetup(Generic[C]):
    """Everything static that an algorithm's functions need. It is bound to spaces, but not to an environment."""

    observation_space: spaces.Space
    action_space: spaces.Space
    model: Model
    config: C
    optimizer: OptimizerFn = clipped_adam
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    extra_losses: Sequence[LossFn] = ()
    intrinsic: Intrinsic | None = None
    replay: Replay = None  # type: ignore[assignment]
    """Only in algorithms with replay."""
    axis_name: str | None = None

    @property
    def warmup_iterations(self) -> int:
        """Number of warm-up iterations in the settings; at least one with an intrinsic reward, for its statistics."""
        return max(self.config.warmup_iterations, int(self.intrinsic is not None))

    def current(self, learner: LearnerState) -> Any:
        """Return the hyperparameters of the next update: the learner's, after schedules and annealing."""
        annealed = self.config.anneal and "learning_rate" not in self.schedules
        iteration = learner.version + self.warmup_iterations
        rows = self.config.steps_per_iteration if annealed else 0
        return scheduled(learner.hyperparams, self.schedules, iteration, annealed_rows=rows)

    def init_learner(self, key: Key, hyperparams: Any, statistics: PyTree = ()) -> Learner:
        """Initialise the model's parameters and the optimiser's state."""
        model_key, learner_key = jax.random.split(key)
        example = example_input(self.observation_space, self.action_space)
        params = self.model.init(model_key, normalize_inputs(statistics, example))
        opt_state = self.optimizer(hyperparams).init(packing(self.optimizer, params).pack(params))
        return Learner(params, opt_state, hyperparams, statistics, learner_key, jnp.zeros((), jnp.int32))

    def draw(self, learner: Any) -> Draw:
        """Draw the rows for all updates of an iteration, one batch after the other."""
        config: Any = self.config
        return self.draw_batches(learner.replay, self.draw_key(learner), config.updates_per_iteration)

    def draw_batches(self, replay: PyTree, key: Key, number: int = 1) -> Draw:
        """Draw the rows of ``number`` batches. Each device draws its share of every batch."""
        return over_devices(self.replay.draw(replay, key, number * self.device_batch_size), self.axis_name)

    def draw_key(self, learner: Any) -> Key:
        """Return the random key for this iteration's rows on this device."""
        key = fold_in(learner.key, learner.version)
        return key if self.axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(self.axis_name))

    @property
    def device_batch_size(self) -> int:
        """Number of rows of a batch on this device."""
        config: Any = self.config
        return config.batch_size // (1 if self.axis_name is None else jax.lax.axis_size(self.axis_name))

    def stream(self, learner: Any, number: int) -> Key:
        """Return the key of a random stream of this iteration, the same on all devices and independent of ``draw_key``.

        Replay splits the key of ``draw``, and updates and devices fold 0, 1, 2, … into it. ``fold_in(key, 2)`` equals
        ``split(key, 3)[2]``, so streams fold in numbers far from 0.
        """
        return fold_in(fold_in(learner.key, learner.version), 2**31 - 1 - number)

    @property
    def num_parts(self) -> int:
        """Number of equal parts in which an iteration gathers the drawn rows: the smallest divisor of the number of updates that
        keeps the observations and next observations of a part within ``GATHERED_BYTES``, or else one part per update."""
        config: Any = self.config
        obs = jax.tree.leaves(example_input(self.observation_space, self.action_space).obs)
        update = 2 * config.batch_size * sum(x.nbytes for x in obs)
        number = config.updates_per_iteration
        return next(
            k for k in range(1, number + 1) if number % k == 0 and (number // k * update <= GATHERED_BYTES or k == number)
        )

    def per_update(self, drawn: PyTree) -> PyTree:
        """Reshape drawn rows to batches to scan over, [updates_per_iteration, batch_size, ...]."""
        config: Any = self.config
        return jax.tree.map(lambda x: x.reshape((config.updates_per_iteration, -1, *x.shape[1:])), drawn)

    def scan_updates(
        self, learner: Any, step: Callable[[Any, Any], Any], start: PyTree, batch: Callable[[Any, Draw], PyTree], *others: PyTree
    ) -> tuple[PyTree, Any, Any]:
        """Run the updates of an iteration with ``jax.lax.scan``.

        Args:
          step: a single update, (carry, (number of the update, batch, *others)) -> (carry, (metrics, priorities
            f32[batch_size])).
          start: the initial carry.
          batch: (replay's state, draw) -> the update's batch, one row for each row of the draw.
          others: leaves [updates_per_iteration, ...]; each update gets its slice.

        Returns:
          The last carry, the replay's state, and the metrics, stacked.
        """
        config: Any = self.config
        numbers = jnp.arange(config.updates_per_iteration, dtype=jnp.int32)
        if not self.replay.prioritised:

            def without_priorities(carry: PyTree, update: Any) -> Any:
                carry, (metrics, _) = step(carry, update)
                return carry, metrics

            def part(carry: Any, updates: Any) -> Any:
                (learnt, state), (drawn, numbers, *others) = carry, updates
                # Gathering all rows of a part in one large step is faster than one gather per update.
                rows = batch(state, jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), drawn))
                batches = jax.tree.map(lambda x: x.reshape((*drawn.row.shape, *x.shape[1:])), rows)
                learnt, metrics = jax.lax.scan(without_priorities, learnt, (numbers, batches, *others))
                return (learnt, state), metrics

            carry, updates = (start, learner.replay), (self.per_update(self.draw(learner)), numbers, *others)
            if (parts := self.num_parts) == 1:
                (carry, state), metrics = part(carry, updates)
            else:  # the scan carries the buffer; otherwise the buffer would be copied into the loop
                updates = jax.tree.map(lambda x: x.reshape((parts, -1, *x.shape[1:])), updates)
                (carry, state), metrics = jax.lax.scan(part, carry, updates)
                metrics = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), metrics)
            return carry, state, metrics

        key = self.draw_key(learner)

        def draw_and_learn(carry: Any, update: Any) -> Any:
            learnt, state = carry
            number, *rest = update
            drawn = self.draw_batches(state, fold_in(key, number))
            learnt, (metrics, priorities) = step(learnt, (number, batch(state, drawn), *rest))
            return (learnt, self.replay.update(state, drawn, priorities)), metrics

        (carry, state), metrics = jax.lax.scan(draw_and_learn, (start, learner.replay), (numbers, *others))
        return carry, state, metrics

    def importance(self, learner: LearnerState) -> Array:
        """Return the current exponent of importance weights, f32[] (``PrioritizedConfig``)."""
        config: Any = self.config
        hyperparams: Any = learner.hyperparams
        iteration = learner.version + self.warmup_iterations
        left = remaining(iteration, config.steps_per_iteration, hyperparams.total_steps) if config.anneal else 1.0
        return 1.0 - (1.0 - config.importance_exponent) * jnp.asarray(left)

    def updated(self, learner: L, hyperparams: Any, metrics: Mapping[str, Array | Mean], **fields: Any) -> tuple[L, Metrics]:
        """Return the result of an update: the learner with new ``fields`` and the next version, and the metrics with the learning
        rate added."""
        rate = learning_rate_metric(self.optimizer, hyperparams, learner.params)
        return learner._replace(version=learner.version + 1, **fields), scalars({**metrics, **rate})  # type: ignore[attr-defined]

    def gradient(self, loss: Callable[[PyTree], tuple[Array, dict[str, Array]]], policy: Policy) -> tuple[PyTree, Metrics]:
        """Return the result of ``Algorithm.gradients`` for ``loss(params) -> (loss, scalars to log)``.

        Returns:
          The gradient, averaged over all devices and not clipped, and the metrics with the gradient's norm and the learning rate
          added.
        """
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
        """Bind functions that take this setup first into an ``Algorithm``; keywords are its field names.

        By default ``init`` is ``init_learner``; ``policy``, and with replay ``observe`` and ``mark_discontinuity``, are
        those of this module. An algorithm with ``learn`` updates by ``observe``, then ``learn``. One with ``gradients``
        updates by ``observe``, if it has one, and ``apply``, and its policies hold the hyperparameters. ``Algorithm`` documents
        ``transferable_fields`` and ``tolerates_lag``, which is always true with replay.
        """
        shared: dict[str, Callable[..., Any]] = {"init": AlgorithmSetup.init_learner, "policy": policy}
        if self.replay is not None:
            shared |= {"observe": store, "mark_discontinuity": mark_discontinuity}
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
        return hold_noise(algorithm, self.action_space, getattr(self.config, "hold_noise", 1))  # not every config has hold_noise


def policy(setup: AlgorithmSetup[Any], learner: LearnerState) -> Policy:
    """Return a policy of the parameters and statistics alone, with no exploration state."""
    return Policy(learner.params, learner.statistics, (), learner.version)


def policy_to_learn(setup: AlgorithmSetup[Any], learner: LearnerState) -> Policy:
    """Return the same policy with the hyperparameters, so that gradients can be computed from it alone."""
    return policy(setup, learner)._replace(hyperparams=setup.current(learner))


def update_by_gradient(functions: Mapping[str, Callable[..., Any]], learner: Any, rollout: Rollout) -> tuple[Any, Metrics]:
    """Implement ``Algorithm.update`` with ``gradients`` and ``apply``, and ``observe`` if there is one."""
    gradient, metrics = functions["gradients"](functions["policy"](learner), rollout)
    if "observe" in functions:
        learner = functions["observe"](learner, rollout)
    return functions["apply"](learner, gradient), metrics


def apply(setup: AlgorithmSetup[Any], learner: Any, gradient: PyTree) -> Any:
    """Apply one optimiser step with a gradient.

    Raises:
      ValueError: the gradient does not have the shapes of the parameters.
    """
    if not same_shapes(gradient, learner.params):
        raise ValueError(
            f"gradient is {show_shapes(gradient)}, but the parameters are {show_shapes(learner.params)}: pass the result of "
            "gradients from an agent with the same model, for one seed (or use jax.vmap(apply) over learners and gradients)"
        )
    pack, unpack = packing(setup.optimizer, learner.params)
    packed = pack(learner.params)
    updates, opt_state = setup.optimizer(setup.current(learner)).update(pack(gradient), learner.opt_state, packed)
    params = unpack(optax.apply_updates(packed, updates))
    return learner._replace(params=params, opt_state=opt_state, version=learner.version + 1)


def store(setup: AlgorithmSetup[Any], learner: Any, rollout: Rollout) -> Any:
    """Add the rollout's rows, not normalised, to the replay."""
    return learner._replace(replay=setup.replay.add(learner.replay, replay_rows(rollout), rollout.env_id))


def mark_discontinuity(setup: AlgorithmSetup[Any], learner: Any) -> Any:
    """Mark a break in the replay, because the environments are reset."""
    return learner._replace(replay=setup.replay.mark_discontinuity(learner.replay))


# -------------------------------------------------------------------------------------------------------------------- builders


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
            jax.eval_shape(check, jax.ShapeDtypeStruct((), jnp.float32))  # an array would initialise a JAX backend
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
        """Raise an error if the intrinsic reward or an extra loss fails or returns the wrong structure; on shapes alone."""
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

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, action space or part.
      ValueError: settings out of range, or without effect.
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
    both_spaces = (bound.observation_space, bound.action_space)
    setup = AlgorithmSetup(*both_spaces, model, structure, optimizer, factors, losses, intrinsic, axis_name=parts["axis_name"])
    if "extra_losses" in parts:
        parts = {**parts, "extra_losses": losses}  # always a tuple, even for a single function
    if intrinsic is None:  # keeps specs the same as those written before intrinsic rewards existed
        parts = {name: part for name, part in parts.items() if name != "intrinsic"}
    return PreparedAgent(
        setup, bound, data, output, agent_spec(builder, env if isinstance(env, str) else bound, structure, data, parts, unread)
    )
