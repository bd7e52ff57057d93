"""Shared parts of Q-learning algorithms: the schedule of ε, ε-greedy acting, and learning from replay with a target network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxrl.builder.replay_setup import PRIORITIES, ReplaySetup
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.exploration.epsilon_greedy import epsilon_greedy, falling_epsilon, spread_epsilon
from jaxrl.models import split_mask
from jaxrl.optimize.descent import Progress
from jaxrl.optimize.learner import TargetLearner
from jaxrl.replay import Draw
from jaxrl.replay.transitions import Transitions
from jaxrl.rollout.env_batches import fold_each
from jaxrl.types import Array, Key, Metrics, Policy, PyTree, StepInput

ValueTerm: TypeAlias = Callable[[Array, Transitions, Callable[[Array], Array]], tuple[Array, dict[str, Array]]]
"""Term of a loss that reads Q-values: (Q-values f32[N, n], batch, mean over valid rows) -> (loss, scalars to log)."""


def epsilon(setup: AlgorithmSetup[Any], learner: Any) -> Array:
    """Return ε f32[] of the first environment in the next rollout."""
    return falling_epsilon(setup.current(learner), learner.version.astype(jnp.float32) * setup.steps_per_iteration)


def policy(setup: AlgorithmSetup[Any], learner: Any) -> Policy:
    """Return the policy: the parameters and ε."""
    return Policy(learner.params, (), epsilon(setup, learner), learner.version)


def actions(
    setup: AlgorithmSetup[Any], policy: Policy, q_values: Array, inputs: StepInput, env_id: Array, keys: Key | None
) -> Array:
    """Return actions i32[B]: ε-greedy with a key for each row, greedy without. ``exploration`` varies ε by environment."""
    if keys is None:
        return jnp.argmax(q_values, -1).astype(jnp.int32)
    spread = setup.config.exploration
    rates = spread_epsilon(policy.exploration, spread.exponent if spread else 0.0, env_id, setup.config.num_envs)
    return epsilon_greedy(q_values, split_mask(inputs.obs)[1], rates, keys)


def act(
    setup: AlgorithmSetup[Any], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Return ``actions`` for a model whose outputs are Q-values."""
    carry, q_values = setup.model.apply(policy.params, carry, inputs)
    return carry, actions(setup, policy, q_values, inputs, env_id, fold_each(key, env_id) if explore else None), {}


# -------------------------------------------------------------------------------------------------- replay and a target network


def init(setup: ReplaySetup[Any], key: Key, hyperparams: Any, example: Any) -> TargetLearner:
    """Initialise the learner, with identical online and target networks and a replay for rows like ``example``, unbatched."""
    learner = setup.init_learner(key, hyperparams)
    target_params = jax.tree.map(jnp.copy, learner.params)
    return TargetLearner(**learner._asdict(), target_params=target_params, replay=setup.replay.init(example))


def learn(
    setup: ReplaySetup[Any],
    learner: TargetLearner,
    hyperparams: Any,
    loss: Callable[..., tuple[Array, dict[str, Array]]],
    batch: Callable[[PyTree, Draw], PyTree],
    *others: PyTree,
) -> tuple[TargetLearner, Metrics]:
    """Run the updates of an iteration, with one gradient step per batch. Every ``target_update_interval`` updates, the target
    network moves by the fraction ``tau`` towards the online network (Mnih et al. 2015, algorithm 1, with ``tau`` 1).

    Args:
      hyperparams: ``setup.current(learner)``.
      loss: (params, target_params, batch, *others) -> (loss, scalars to log with ``PRIORITIES``).
      batch: (replay's state, draw) -> the update's batch, as in ``ReplaySetup.scan_updates``.
      others: further inputs of the loss, as in ``ReplaySetup.scan_updates``.
    """
    config = setup.config
    descent = setup.descent(hyperparams, learner.params)
    # Modulo first, because the count of all updates may not fit in 32 bits.
    first = (learner.version % config.target_update_interval) * config.updates_per_iteration

    def update_once(progress: Progress, update_inputs: tuple[Any, ...]) -> Any:
        (index, *rest), target = update_inputs, descent.target_params(progress)
        progress, metrics = descent.step(lambda params: loss(params, target, *rest), progress)
        priorities = metrics.pop(PRIORITIES)
        step = jnp.where((first + index + 1) % config.target_update_interval == 0, hyperparams.tau, 0.0)
        return descent.move_target(progress, step), (metrics, priorities)

    start = descent.start(learner.params, learner.opt_state, learner.target_params)
    progress, replay, metrics = setup.scan_updates(learner, update_once, start, batch, *others)
    metrics["charts/epsilon"] = epsilon(setup, learner)
    return setup.updated(learner, hyperparams, metrics, **descent.finish(progress), replay=replay)
