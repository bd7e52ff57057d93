"""Deep Q-learning (Mnih et al. 2015) with uniform replay, a target network and, by default, double Q-learning and
n-step returns.

Reads top to bottom: settings, state, acting, loss, observe and learn, builder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.actions import epsilon_greedy, falling_epsilon
from jaxrl.config import Count, LearningRate, Positive, PositiveUnit, PrioritizedConfig, TotalSteps, Unit
from jaxrl.distributions import pick
from jaxrl.models import q_network, split_mask
from jaxrl.optimize import Optimizer, Schedule, descend, packing, valid_mean
from jaxrl.parts import ModelArguments, ModelFn, check_q_values, resolve_replay
from jaxrl.replay import Draw, ReplayFn
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.transitions import Transitions, example_row, transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout import fold_each
from jaxrl.rule import Rule, prepare
from jaxrl.spaces import finite
from jaxrl.types import Agent, Algorithm, Array, Env, HostEnv, Key, Metrics, Model, Policy, PyTree, StepInput


@dataclass(frozen=True)
class DQNConfig(PrioritizedConfig):
    """DQN's structure."""

    rollout_length: Count = 32
    n_step: Count = 5
    """Rewards in a return before it bootstraps; 1 is the paper's."""
    target_update_interval: Count = 64
    """Updates between changes of the target network."""
    double: bool = True
    """Choose the next action with the online network (van Hasselt et al. 2016)."""


class DQNHyperparams(NamedTuple):
    """DQN's data: f32 scalars in the learner's state, to vmap over and to change mid-run."""

    learning_rate: LearningRate = 0.01
    gamma: Unit = 0.99
    """Discount per step."""
    tau: PositiveUnit = 1.0
    """How far the target network moves at each change; 1 copies."""
    epsilon_start: Unit = 1.0
    """Probability of a random action at the start."""
    epsilon_end: Unit = 0.1
    """The same once exploration_steps have passed."""
    exploration_steps: Positive = 5_000.0
    """Rows, after the warm-up, over which epsilon falls linearly."""
    max_grad_norm: Positive = 1_000.0
    """Clip the gradient to this global norm. A tight clip shrinks the batches with the largest errors, those that hold an end."""
    adam_eps: Positive = 0.01
    """Adam's ε. A large one takes smaller steps where gradients are small, as between actions of nearly the same value."""
    total_steps: TotalSteps = 0.0


class DQNState(NamedTuple):
    params: PyTree
    opt_state: PyTree
    hyperparams: DQNHyperparams
    statistics: tuple[()]
    key: Key
    version: Array
    target_params: PyTree
    replay: PyTree


# ------------------------------------------------------------------------------------------------------------------------ loss

PRIORITIES = "priorities"
"""What the loss gives beside what is logged."""


def dqn_loss(
    model: Model, double: bool, params: PyTree, target_params: PyTree, batch: Transitions, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """½·w·(r + γ·(1 − terminated)·Q⁻(s′, a′) − Q(s, a))², as a mean over valid draws (Mnih et al. 2015, eq. 1; w is 1 there).

    With n-step returns r is the sum of n discounted rewards, γ is γⁿ, and s′ is n steps away. a′ maximises the online network
    with ``double`` (van Hasselt et al. 2016, eq. 4) and the target network Q⁻ without. Beside what is logged it gives the rows'
    priorities, |r + … − Q(s, a)|.
    """
    batch = finite(batch, batch.valid)
    q_next = model.apply(target_params, (), batch.next_inputs)[1]
    chooser = model.apply(params, (), batch.next_inputs)[1] if double else q_next
    best = pick(q_next, jnp.argmax(chooser, -1))
    target = jax.lax.stop_gradient(batch.reward + jnp.where(batch.discount == 0, 0.0, batch.discount * best))

    q_values = model.apply(params, (), batch.inputs)[1]
    chosen = pick(q_values, batch.action)
    error = chosen - target
    mean = valid_mean(batch.valid, axis_name)
    loss = 0.5 * mean(batch.weight * error**2)
    logged = {"losses/td_loss": loss, "losses/q_values": mean(chosen)}
    return loss, logged | {PRIORITIES: jnp.where(batch.valid, jnp.abs(error), 0.0)}


def init(rule: Rule[DQNConfig], key: Key, hyperparams: DQNHyperparams) -> DQNState:
    learner = rule.init_learner(key, hyperparams)
    rows = rule.replay.init(example_row(rule.observation_space, rule.action_space))
    return DQNState(*learner, target_params=jax.tree.map(jnp.copy, learner.params), replay=rows)


def epsilon(rule: Rule[DQNConfig], learner: DQNState) -> Array:
    return falling_epsilon(rule.current(learner), learner.version.astype(jnp.float32) * rule.config.steps_per_iteration)


def policy(rule: Rule[DQNConfig], learner: DQNState) -> Policy:
    return Policy(learner.params, (), epsilon(rule, learner), learner.version)


def act(
    rule: Rule[DQNConfig], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    carry, q_values = rule.model.apply(policy.params, carry, inputs)
    if not explore:
        return carry, jnp.argmax(q_values, -1).astype(jnp.int32), {}
    return carry, epsilon_greedy(q_values, split_mask(inputs.obs)[1], policy.exploration, fold_each(key, env_id)), {}


def learn(rule: Rule[DQNConfig], learner: DQNState) -> tuple[DQNState, Metrics]:
    config, hp = rule.config, rule.current(learner)
    optimise, (pack, unpack) = rule.optimizer(hp), packing(rule.optimizer, learner.params)
    # Modulo first: the count of all updates would not stay within 32 bits.
    first = (learner.version % config.target_update_interval) * config.updates_per_iteration

    def one(carry: tuple[PyTree, PyTree, PyTree], now: tuple[Array, Transitions]) -> Any:
        packed, target, opt_state = carry
        index, batch = now
        loss = lambda p: dqn_loss(rule.model, config.double, unpack(p), unpack(target), batch, rule.axis_name)  # noqa: E731
        packed, opt_state, metrics = descend(loss, optimise, packed, opt_state, rule.axis_name)
        priorities = metrics.pop(PRIORITIES)
        # A where on parameters: a cond on state would become a select of everything under vmap.
        step = jnp.where((first + index + 1) % config.target_update_interval == 0, hp.tau, 0.0)
        target = jax.tree.map(lambda p, t: jnp.where(step == 1.0, p, t + step * (p - t)), packed, target)
        return (packed, target, opt_state), (metrics, priorities)

    def batch(replay: PyTree, draw: Draw) -> Transitions:
        drawn = transitions(rule.replay, replay, draw, hp.gamma, config.n_step)
        return drawn._replace(weight=drawn.weight ** rule.importance(learner)) if config.prioritized else drawn

    start = (pack(learner.params), pack(learner.target_params), learner.opt_state)
    (packed, target, opt_state), replay, metrics = rule.scan_updates(learner, one, start, batch)
    metrics["charts/epsilon"] = epsilon(rule, learner)
    fields = {"params": unpack(packed), "target_params": unpack(target), "opt_state": opt_state, "replay": replay}
    return rule.updated(learner, hp, metrics, **fields)


def make_algorithm(rule: Rule[DQNConfig]) -> Algorithm:
    """DQN's learning rule, bound to spaces and to no environment."""
    learnt = ("params", "target_params", "statistics")
    return rule.algorithm(init=init, policy=policy, act=act, learn=learn, learnt=learnt)


def make_dqn(
    env: str | Env | HostEnv,
    *,
    model: Model | ModelFn | ModelArguments | None = None,
    optimizer: Optimizer | None = None,
    replay: ReplayFn | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Deep Q-learning (Mnih et al. 2015) for Discrete actions; by default double (van Hasselt et al. 2016), with n-step returns.

    Args:
      env: an id ("CartPole-v1", "envpool:CartPole-v1", "my_module:make_my_env"), an Env or a HostEnv.
      model: arguments of ``jaxrl.models.q_network``, such as ``{"hidden_sizes": (128, 128)}``; or a memoryless Model whose
        outputs are Q-values f32[..., n], or a function of (observation_space, action_space) that gives one. Default: an MLP of
        2×64, ReLU, for vectors.
      optimizer: hyperparams -> optax transformation, or a transformation itself; default: clipped Adam.
      replay: a ``ReplayFn``, (capacity per environment, num_envs, rows_per_add, *, before, after) -> Replay, asked to keep 1 row
        before and n_step rows after a drawn one; default: ``uniform_replay``, or with ``prioritized`` a ``prioritised_replay``.
      schedules: hyperparameter name -> function of the iteration (the warm-up's included) that gives a factor on it.
      axis_name: the device axis that ``step`` will run under.
      settings: fields of ``DQNConfig`` and ``DQNHyperparams``.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, model or action space.
      ValueError: sizes that do not fit, hyperparameters out of range.
    """
    given = {"model": model, "optimizer": optimizer, "replay": replay, "schedules": schedules, "axis_name": axis_name}
    ready = prepare(make_dqn, env, DQNConfig, DQNHyperparams, settings, (spaces.Discrete,), q_network, given)
    check_q_values(model, ready.output, ready.env.action_space)
    config = ready.rule.config
    own = prioritised_replay(priority_exponent=config.priority_exponent) if config.prioritized else uniform_replay
    made = resolve_replay(replay, own, ready.env, config, before=1, after=config.n_step)
    return ready.bind(make_algorithm(replace(ready.rule, replay=made)))
