"""Shared machinery of all algorithms: the ``AlgorithmSetup`` that each of their functions takes first, as in ``update(setup,
learner, rollout)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

from jaxrl.builder.config import AgentConfig
from jaxrl.distributions import Distribution, sample_each
from jaxrl.exploration.action_noise import hold_noise
from jaxrl.intrinsic.part import Intrinsic, exploring
from jaxrl.metrics import scalars
from jaxrl.optimize import OptimizerFn, clipped_adam, learning_rate_metric
from jaxrl.optimize.descent import Descent, descent
from jaxrl.optimize.gradients import LossFn, mean_gradient, valid_mean
from jaxrl.optimize.learner import Learner
from jaxrl.optimize.schedules import Schedule, scheduled
from jaxrl.replay.dataset import Dataset, DatasetInfo
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import example_input
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.spaces.action_scaling import to_environment
from jaxrl.spaces.trees import same_shapes, show_shapes
from jaxrl.types import Algorithm, Array, Key, LearnerState, Mean, Metrics, Model, Policy, PyTree, Rollout
from jaxrl.xla.fast_random import fold_in

C = TypeVar("C", bound=AgentConfig)
L = TypeVar("L", bound=LearnerState)


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
    axis_name: str | None = None
    data: Dataset | DatasetInfo | None = None
    """Dataset that the algorithm learns from in place of rollouts."""
    num_agents: int = 0
    """Agents in each environment. ``config.num_envs`` counts all of their lanes."""

    @property
    def steps_per_iteration(self) -> int:
        """Number of environment steps between updates, over all environments."""
        lanes = 1 if self.config.episodes else max(1, self.num_agents)  # sizes of a population count environments
        return self.config.steps_per_iteration // lanes

    @property
    def warmup_iterations(self) -> int:
        """Number of warm-up iterations in the settings; at least one with an intrinsic reward, for its statistics."""
        return max(self.config.warmup_iterations, int(self.intrinsic is not None))

    def current(self, learner: LearnerState) -> Any:
        """Return the hyperparameters of the next update: the learner's, after schedules and annealing."""
        annealed = self.config.anneal and "learning_rate" not in self.schedules
        iteration = learner.version + self.warmup_iterations
        rows = self.steps_per_iteration if annealed else 0
        return scheduled(learner.hyperparams, self.schedules, iteration, annealed_rows=rows)

    def init_learner(self, key: Key, hyperparams: Any, statistics: PyTree = ()) -> Learner:
        """Initialise the model's parameters and the optimiser's state."""
        model_key, learner_key = jax.random.split(key)
        example = example_input(self.observation_space, self.action_space)
        params = self.model.init(model_key, normalize_inputs(statistics, example))
        opt_state = self.descent(hyperparams, params).init(params)
        return Learner(params, opt_state, hyperparams, statistics, learner_key, jnp.zeros((), jnp.int32))

    def descent(self, hyperparams: Any, params: PyTree, *, single_steps: bool = False) -> Descent:
        """Return the optimiser's steps on parameters of these shapes. ``jaxrl.optimize.descent`` documents ``single_steps``."""
        return descent(self.optimizer, hyperparams, params, self.axis_name, single_steps=single_steps)

    def acts_at_random(self, learner: LearnerState) -> Array:
        """Return whether actions are drawn uniformly, bool[]: until the first update, and so during the warm-up. With a dataset
        the policy acts from the start, because it may continue another run."""
        return learner.version == 0 if self.data is None else jnp.zeros((), bool)

    def update_key(self, learner: LearnerState) -> Key:
        """Return the random key of this update, the same on all devices."""
        return fold_in(learner.key, learner.version)

    def device_key(self, key: Key) -> Key:
        """Return a random key for this device alone; without a device axis ``key`` itself."""
        return key if self.axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(self.axis_name))

    def sample(self, distribution: Distribution, key: Key, env_id: Array) -> Array:
        """Draw an action from a distribution, [B], for each environment. Its draw depends on its id, but not on the batch."""
        return sample_each(distribution, fold_each(key, env_id))

    def to_environment(self, action: Array) -> Array:
        """Convert actions from the model's units to the environment's (``jaxrl.spaces.action_scaling``)."""
        return to_environment(self.action_space, action)

    def valid_mean(self, valid: Array) -> Callable[[Array], Array]:
        """Return a function that maps rows to their mean over valid rows of all devices (``jaxrl.optimize.gradients``)."""
        return valid_mean(valid, self.axis_name)

    def stream(self, learner: Any, number: int) -> Key:
        """Return the key of a random stream of this update, the same on all devices and independent of ``update_key``.

        Replay splits ``update_key``, and updates and devices fold 0, 1, 2, … into it. ``fold_in(key, 2)`` equals
        ``split(key, 3)[2]``, so streams fold in numbers far from 0.
        """
        return fold_in(self.update_key(learner), 2**31 - 1 - number)

    def updated(self, learner: L, hyperparams: Any, metrics: Mapping[str, Array | Mean], **fields: Any) -> tuple[L, Metrics]:
        """Return the result of an update: the learner with new ``fields`` and the next version, and the metrics with the learning
        rate added."""
        rate = learning_rate_metric(self.optimizer, hyperparams, learner.params)
        return learner._replace(version=learner.version + 1, **fields), scalars({**metrics, **rate})  # type: ignore[attr-defined]

    def descend(
        self, learner: L, hyperparams: Any, loss: Callable[[PyTree], tuple[Array, dict[str, Array]]]
    ) -> tuple[L, Metrics]:
        """Return the result of an update with one gradient step along ``loss(params) -> (loss, scalars to log)``."""
        descent = self.descent(hyperparams, learner.params)
        progress, metrics = descent.step(loss, descent.start(learner.params, learner.opt_state))
        return self.updated(learner, hyperparams, metrics, **descent.finish(progress))

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
        buffers: tuple[str, ...] = (),
        tolerates_lag: bool = False,
        plans: bool = False,
        check_vma: bool = True,
        **functions: Callable[..., Any],
    ) -> Algorithm:
        """Bind functions that take this setup first into an ``Algorithm``; keywords are its field names.

        By default ``init`` is ``init_learner``, and ``policy`` is that of this module. An algorithm with ``learn`` updates by
        ``observe``, then ``learn``. One with ``gradients`` updates by ``observe``, if it has one, and ``apply``, and its policies
        hold the hyperparameters. ``Algorithm`` documents ``transferable_fields``, ``buffers``, ``tolerates_lag``,
        ``plans`` and ``check_vma``.
        """
        shared: dict[str, Callable[..., Any]] = {"init": AlgorithmSetup.init_learner, "policy": policy}
        if "gradients" in functions:
            shared |= {"policy": policy_to_learn, "apply": apply}
        bound: dict[str, Any] = {name: partial(function, self) for name, function in {**shared, **functions}.items()}
        if "learn" in bound:
            bound["update"] = lambda learner, rollout: bound["learn"](bound["observe"](learner, rollout))
        if "learn_from" in bound:
            bound["update"] = _learns_from_episodes
        if "gradients" in bound:
            bound["update"] = partial(update_by_gradient, bound)
        algorithm = Algorithm(
            **bound,
            initial_carry=self.model.initial_carry,
            warmup_iterations=self.warmup_iterations,
            transferable_fields=transferable_fields,
            buffers=buffers,
            tolerates_lag=tolerates_lag,
            plans=plans,
            check_vma=check_vma,
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


def _learns_from_episodes(learner: Any, rollout: Rollout) -> Any:
    raise TypeError(
        "this algorithm learns from the episodes of a population, not from rollouts: use learn_from(learner, episodes)"
    )


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
    descent = setup.descent(setup.current(learner), learner.params)
    params, opt_state = descent.apply(gradient, learner.params, learner.opt_state)
    return learner._replace(params=params, opt_state=opt_state, version=learner.version + 1)
