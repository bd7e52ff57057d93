"""Deep Q-learning (Mnih et al. 2015) with uniform replay, a target network and, by default, double Q-learning and
n-step returns.

Reads top to bottom: settings, state, acting, loss, observe and learn, builder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.actions import epsilon_greedy
from jaxrl.agent import bind, resolve_env
from jaxrl.config import Count, Length, NonNegative, Positive, PositiveUnit, ReplayConfig, Unit, split_settings
from jaxrl.distributions import pick
from jaxrl.metrics import scalars
from jaxrl.models import q_network, split_mask
from jaxrl.optimize import (
    Optimizer,
    OptimizerFn,
    Schedule,
    check_schedules,
    clipped_adam,
    descend,
    learning_rate_metric,
    packing,
    scheduled,
    valid_mean,
)
from jaxrl.parts import ModelFn, model_output, resolve_model, resolve_optimizer, resolve_replay, show
from jaxrl.replay import Replay, ReplayFn
from jaxrl.replay.transitions import ReplayRow, Transitions, transitions
from jaxrl.replay.uniform import ReplayState, uniform_replay
from jaxrl.rollout import fold_each
from jaxrl.spaces import example_input, finite, other_way, show_shapes
from jaxrl.spec import agent_spec
from jaxrl.types import Agent, Algorithm, Array, Env, HostEnv, Key, Metrics, Model, Policy, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """DQN's structure."""

    rollout_length: Count = 32
    n_step: Count = 5
    """Rewards in a return before it bootstraps; 1 is the paper's."""
    target_update_interval: Count = 64
    """Updates between changes of the target network."""
    double: bool = True
    """Choose the next action with the online network (van Hasselt et al. 2016)."""


class DQNHyperparams(NamedTuple):
    """Data: f32 scalars in the learner's state; vmap over them, change them mid-run."""

    learning_rate: NonNegative = 0.01
    """Adam's step size; 0 learns nothing, as a control."""
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
    total_steps: Length = 0.0
    """Rows per seed of the whole run, for ``anneal``; 0: not known yet. ``run`` and ``make_train`` set it to their own length."""


class DQNState(NamedTuple):
    params: PyTree
    opt_state: PyTree
    hyperparams: DQNHyperparams
    statistics: tuple[()]
    key: Key
    version: Array
    target_params: PyTree
    replay: ReplayState


# ------------------------------------------------------------------------------------------------------------------------ loss


def dqn_loss(
    model: Model, double: bool, params: PyTree, target_params: PyTree, batch: Transitions, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """½·w·(r + γ·(1 − terminated)·Q⁻(s′, a′) − Q(s, a))², as a mean over valid draws (Mnih et al. 2015, eq. 1; w is 1 there).

    With n-step returns r is the sum of n discounted rewards, γ is γⁿ, and s′ is n steps away. a′ maximises the online network
    with ``double`` (van Hasselt et al. 2016, eq. 4) and the target network Q⁻ without.
    """
    batch = finite(batch, batch.valid)
    q_next = model.apply(target_params, (), batch.next_inputs)[1]
    chooser = model.apply(params, (), batch.next_inputs)[1] if double else q_next
    best = pick(q_next, jnp.argmax(chooser, -1))
    target = jax.lax.stop_gradient(batch.reward + jnp.where(batch.discount == 0, 0.0, batch.discount * best))

    q_values = model.apply(params, (), batch.inputs)[1]
    chosen = pick(q_values, batch.action)
    mean = valid_mean(batch.valid, axis_name)
    loss = 0.5 * mean(batch.weight * (chosen - target) ** 2)
    return loss, {"losses/td_loss": loss, "losses/q_values": mean(chosen)}


def make_algorithm(
    observation_space: spaces.Space,
    action_space: spaces.Discrete,
    model: Model,
    replay: Replay,
    config: DQNConfig,
    *,
    optimizer: OptimizerFn = clipped_adam,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
) -> Algorithm:
    """DQN's learning rule for these spaces, bound to no environment."""
    schedules = dict(schedules or {})
    num_updates = config.updates_per_iteration
    warmup_iterations = config.warmup_iterations

    def current(learner: DQNState) -> DQNHyperparams:
        rows = config.steps_per_iteration if config.anneal and "learning_rate" not in schedules else 0
        return scheduled(learner.hyperparams, schedules, learner.version + warmup_iterations, annealed_rows=rows)

    def init(key: Key, hyperparams: DQNHyperparams) -> DQNState:
        model_key, learner_key = jax.random.split(key)
        example = example_input(observation_space, action_space)
        params = model.init(model_key, example)
        row = jax.tree.map(lambda x: x[0], ReplayRow(*example[:3], example.is_first, example.is_first))
        return DQNState(
            params=params,
            opt_state=optimizer(hyperparams).init(packing(optimizer, params).pack(params)),
            hyperparams=hyperparams,
            statistics=(),
            key=learner_key,
            version=jnp.zeros((), jnp.int32),
            target_params=jax.tree.map(jnp.copy, params),
            replay=replay.init(row),
        )

    def epsilon(learner: DQNState) -> Array:
        hp = current(learner)
        done = learner.version.astype(jnp.float32) * config.steps_per_iteration / hp.exploration_steps
        return hp.epsilon_start + (hp.epsilon_end - hp.epsilon_start) * jnp.clip(done, 0.0, 1.0)

    def policy(learner: DQNState) -> Policy:
        return Policy(learner.params, (), epsilon(learner), learner.version)

    def act(policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool) -> Any:
        carry, q_values = model.apply(policy.params, carry, inputs)
        if not explore:
            return carry, jnp.argmax(q_values, -1).astype(jnp.int32), {}
        action = epsilon_greedy(q_values, split_mask(inputs.obs)[1], policy.exploration, fold_each(key, env_id))
        return carry, action, {}

    def observe(learner: DQNState, rollout: Rollout) -> DQNState:
        obs = jax.tree.map(lambda x: x[:-1], rollout.inputs.obs)
        rows = ReplayRow(obs, rollout.action, rollout.reward, rollout.terminated, rollout.valid)
        return learner._replace(replay=replay.add(learner.replay, rows, rollout.env_id))

    def learn(learner: DQNState) -> tuple[DQNState, Metrics]:
        hp = current(learner)
        optimise, (pack, unpack) = optimizer(hp), packing(optimizer, learner.params)
        key, batch_size = jax.random.fold_in(learner.key, learner.version), config.batch_size
        if axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
            batch_size //= jax.lax.axis_size(axis_name)
        # Modulo first: the count of all updates would not stay within 32 bits.
        first = (learner.version % config.target_update_interval) * num_updates

        # All updates' rows are gathered before the scan: a buffer that a loop reads would be copied into it.
        draw = replay.draw(learner.replay, key, num_updates * batch_size)
        drawn = transitions(replay, learner.replay, draw, hp.gamma, config.n_step)
        batches = jax.tree.map(lambda x: x.reshape((num_updates, batch_size, *x.shape[1:])), drawn)

        def one(
            carry: tuple[PyTree, PyTree, PyTree], now: tuple[Array, Transitions]
        ) -> tuple[tuple[PyTree, PyTree, PyTree], dict[str, Array]]:
            packed, target, opt_state = carry
            index, batch = now
            loss = lambda p: dqn_loss(model, config.double, unpack(p), unpack(target), batch, axis_name)  # noqa: E731
            packed, opt_state, metrics = descend(loss, optimise, packed, opt_state, axis_name)
            # A where on parameters: a cond on state would become a select of everything under vmap.
            step = jnp.where((first + index + 1) % config.target_update_interval == 0, hp.tau, 0.0)
            target = jax.tree.map(lambda p, t: jnp.where(step == 1.0, p, t + step * (p - t)), packed, target)
            return (packed, target, opt_state), metrics

        now = (jnp.arange(num_updates, dtype=jnp.int32), batches)
        start = (pack(learner.params), pack(learner.target_params), learner.opt_state)
        (packed, target, opt_state), metrics = jax.lax.scan(one, start, now)
        metrics |= {"charts/epsilon": epsilon(learner), **learning_rate_metric(optimizer, hp, learner.params)}
        learner = learner._replace(
            params=unpack(packed), target_params=unpack(target), opt_state=opt_state, version=learner.version + 1
        )
        return learner, scalars(metrics)

    def update(learner: DQNState, rollout: Rollout) -> tuple[DQNState, Metrics]:
        return learn(observe(learner, rollout))

    def seal(learner: DQNState) -> DQNState:
        return learner._replace(replay=replay.seal(learner.replay))

    return Algorithm(
        init,
        policy,
        act,
        update,
        model.initial_carry,
        observe=observe,
        learn=learn,
        seal=seal,
        warmup_iterations=warmup_iterations,
    )


# --------------------------------------------------------------------------------------------------------------------- builder


def make_dqn(
    env: str | Env | HostEnv,
    *,
    model: Model | ModelFn | None = None,
    optimizer: Optimizer | None = None,
    replay: ReplayFn | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Deep Q-learning (Mnih et al. 2015) for Discrete actions; by default double (van Hasselt et al. 2016), with n-step returns.

    Args:
      env: an id ("CartPole-v1", "envpool:CartPole-v1", "my_module:make_my_env"), an Env or a HostEnv.
      model: a memoryless Model whose outputs are Q-values f32[..., n], or a function of (observation_space, action_space) that
        gives one; default: an MLP of 2×64, ReLU.
      optimizer: hyperparams -> optax transformation, or a transformation itself; default: clipped Adam.
      replay: a ``ReplayFn``, (capacity per environment, num_envs, rows_per_add, *, before, after) -> Replay, asked to keep 1 row
        before and n_step rows after a drawn one; default: ``uniform_replay``.
      schedules: hyperparameter name -> function of the iteration (the warm-up's included) that gives a factor on it.
      axis_name: the device axis that ``step`` will run under.
      settings: fields of ``DQNConfig`` and ``DQNHyperparams``.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, model or action space.
      ValueError: sizes that do not fit, hyperparameters out of range.
    """
    config, hyperparams = split_settings(
        "make_dqn", DQNConfig, DQNHyperparams, settings, ("model", "optimizer", "replay", "schedules", "axis_name")
    )
    bound = resolve_env(env)
    if not isinstance(bound.action_space, spaces.Discrete):
        raise TypeError(
            f"DQN needs a Discrete action space; {bound.name} has {bound.action_space}: {other_way(bound.action_space)}"
        )
    network = resolve_model(model, q_network, bound)
    if jax.tree.leaves(jax.eval_shape(lambda: network.initial_carry(1))):
        raise TypeError(
            "DQN with uniform replay learns from single rows, so its model must be memoryless (initial_carry gives ())"
        )
    num_actions = int(bound.action_space.n)
    if getattr(output := model_output(model, network, bound), "shape", None) != (1, num_actions):
        raise TypeError(
            f"model={show(model)} must give Q-values f32[batch, {num_actions}]; for a batch of one it gives {show_shapes(output)}"
        )
    config.check()
    capacity = config.buffer_size // config.num_envs
    factors = check_schedules(schedules, DQNHyperparams._fields)
    algorithm = make_algorithm(
        bound.observation_space,
        bound.action_space,
        network,
        resolve_replay(replay, uniform_replay, capacity, config.num_envs, config.rollout_length, before=1, after=config.n_step),
        config,
        optimizer=resolve_optimizer(optimizer, network, bound, hyperparams, DQNHyperparams(), [*factors]),
        schedules=factors,
        axis_name=axis_name,
    )
    parts = {"model": model, "optimizer": optimizer, "replay": replay, "schedules": schedules, "axis_name": axis_name}
    return bind(
        algorithm,
        bound,
        num_envs=config.num_envs,
        rollout_length=config.rollout_length,
        hyperparams=hyperparams,
        spec=agent_spec(make_dqn, env, config, hyperparams, parts),
        axis_name=axis_name,
    )
