"""Proximal policy optimisation with a clipped surrogate (Schulman et al. 2017), memoryless or recurrent, discrete or continuous.

Reads top to bottom: settings, state, acting, targets, loss, update, builder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.actions import to_environment
from jaxrl.agent import as_only_device, bind, resolve_env
from jaxrl.config import Count, Length, NonNegative, Positive, RolloutConfig, Unit, merge_hyperparams, split_settings
from jaxrl.distributions import Categorical, Normal, sample_each
from jaxrl.metrics import scalars
from jaxrl.minibatch import explained_variance, minibatches
from jaxrl.models import ActorCriticOutput, actor_critic
from jaxrl.normalize import Statistics, init_statistics, normalize_inputs, refresh, scale_rewards
from jaxrl.optimize import (
    Optimizer,
    OptimizerFn,
    Schedule,
    check_schedules,
    clipped_adam,
    descend,
    learning_rate_metric,
    packing,
    pmean,
    scheduled,
    valid_mean,
)
from jaxrl.parts import ModelFn, check_loss, model_output, resolve_losses, resolve_model, resolve_optimizer, show
from jaxrl.returns import gae
from jaxrl.rollout import example_rollout, fold_each
from jaxrl.spaces import example_input, finite, other_way, show_shapes
from jaxrl.spec import agent_spec
from jaxrl.types import Agent, Algorithm, Array, Env, HostEnv, Key, Metrics, Model, Policy, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """PPO's structure."""

    num_epochs: Count = 10
    """Passes over each rollout."""
    num_minibatches: Count = 4
    """Parts of each pass, one gradient step each; must divide num_envs * rollout_length (num_envs for a recurrent model)."""
    normalize_advantages: bool = True
    """Mean 0 and deviation 1 within each minibatch."""
    normalize_observations: bool = False
    """By running mean and deviation."""
    normalize_rewards: bool = False
    """Divide by the running deviation of the discounted return, for learning only."""
    clip_value_loss: bool = False
    """Clip the change of the value as the ratio is clipped."""

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        what, items = ("num_envs", self.num_envs) if recurrent else ("num_envs * rollout_length", self.steps_per_iteration)
        if items % self.num_minibatches:
            why = " (a recurrent model learns from whole sequences)" if recurrent else ""
            raise ValueError(f"num_minibatches={self.num_minibatches} must divide {what}={items}{why}")


class PPOHyperparams(NamedTuple):
    """Data: f32 scalars in the learner's state; vmap over them, change them mid-run."""

    learning_rate: NonNegative = 1e-3
    """Adam's step size; 0 learns nothing, as a control."""
    gamma: Unit = 0.99
    """Discount per step."""
    gae_lambda: Unit = 0.95
    """λ of generalised advantage estimation: 0 trusts the value, 1 the rewards."""
    clip_eps: Positive = 0.2
    """How far the probability ratio may leave 1 before its gradient stops."""
    ent_coef: NonNegative = 0.01
    """Weight of the entropy bonus."""
    vf_coef: NonNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Positive = 0.5
    """Clip the gradient to this global norm."""
    total_steps: Length = 0.0
    """Rows per seed of the whole run, for ``anneal``; 0: not known yet. ``run`` and ``make_train`` set it to their own length."""


class PPOState(NamedTuple):
    params: PyTree
    opt_state: PyTree
    hyperparams: PPOHyperparams
    statistics: Statistics
    key: Key
    version: Array


class Batch(NamedTuple):
    """Rows to learn from. Leaves are [N, ...] for memoryless models and [N, T, ...] (whole sequences) for recurrent ones."""

    inputs: StepInput
    carry: PyTree
    """[N, ...] at the start of each sequence; () when memoryless."""
    action: Array
    """As drawn from the distribution."""
    log_prob: Array
    advantage: Array
    target: Array
    """The λ-return, what the value regresses to."""
    value: Array
    """The value before learning."""
    valid: Array


ExtraLoss = Callable[[PyTree, Batch], tuple[Array, dict[str, Array]]]
"""(params, minibatch) -> (a loss to add, scalars to log)."""


# ---------------------------------------------------------------------------------------------------------------------- update


def targets(model: Model, learner: PPOState, rollout: Rollout, hp: PPOHyperparams) -> Batch:
    """Advantages and λ-returns of a rollout, as rows or sequences to shuffle."""
    inputs = normalize_inputs(learner.statistics, rollout.inputs)
    # All values at once, the reached observation of the last row included: far cheaper than one row at a time when acting.
    values = model.unroll(learner.params, rollout.carry, inputs)[1].value
    value = values[:-1]
    reward = scale_rewards(learner.statistics, rollout.reward)
    ends = (rollout.terminated, rollout.truncated, rollout.valid)
    advantage = gae(reward, value, values[1:], *ends, hp.gamma, hp.gae_lambda)

    rows = Batch(
        inputs=jax.tree.map(lambda x: x[:-1], inputs),
        carry=(),
        action=rollout.extras.get("raw_action", rollout.action),
        log_prob=rollout.extras["log_prob"],
        advantage=advantage,
        target=advantage + value,
        value=value,
        valid=rollout.valid,
    )
    if jax.tree.leaves(rollout.carry):
        return jax.tree.map(lambda x: x.swapaxes(0, 1), rows)._replace(carry=rollout.carry)
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)


def ppo_loss(
    model: Model, config: PPOConfig, hp: PPOHyperparams, params: PyTree, batch: Batch, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """−L^CLIP + vf_coef·L^VF − ent_coef·S (Schulman et al. 2017, eq. 7 and 9), as means over the valid rows of all devices."""
    batch = finite(batch._replace(carry=()), batch.valid)._replace(carry=batch.carry)
    if jax.tree.leaves(batch.carry):
        inputs = jax.tree.map(lambda x: x.swapaxes(0, 1), batch.inputs)
        output = jax.tree.map(lambda x: x.swapaxes(0, 1), model.unroll(params, batch.carry, inputs)[1])
    else:
        output = model.apply(params, (), batch.inputs)[1]
    mean = valid_mean(batch.valid, axis_name)

    advantage = batch.advantage
    if config.normalize_advantages:
        centred = advantage - pmean(mean(advantage), axis_name)
        advantage = centred * jax.lax.rsqrt(pmean(mean(centred**2), axis_name) + 1e-8)

    log_ratio = output.policy.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - hp.clip_eps, 1 + hp.clip_eps)
    policy_loss = -mean(jnp.minimum(ratio * advantage, clipped * advantage))

    error = (output.value - batch.target) ** 2
    if config.clip_value_loss:
        near = batch.value + jnp.clip(output.value - batch.value, -hp.clip_eps, hp.clip_eps)
        error = jnp.maximum(error, (near - batch.target) ** 2)
    value_loss = 0.5 * mean(error)
    entropy = mean(output.policy.entropy())

    metrics = {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": mean(ratio - 1 - log_ratio),
        "losses/clipfrac": mean((jnp.abs(ratio - 1) > hp.clip_eps).astype(jnp.float32)),
    }
    return policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy, metrics


def make_algorithm(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    model: Model,
    config: PPOConfig,
    *,
    optimizer: OptimizerFn = clipped_adam,
    schedules: Mapping[str, Schedule] | None = None,
    extra_losses: Sequence[ExtraLoss] = (),
    axis_name: str | None = None,
) -> Algorithm:
    """PPO's learning rule for these spaces, bound to no environment."""
    schedules = dict(schedules or {})
    warmup_iterations = int(config.normalize_observations or config.normalize_rewards)

    def current(learner: PPOState) -> PPOHyperparams:
        rows = config.steps_per_iteration if config.anneal and "learning_rate" not in schedules else 0
        return scheduled(learner.hyperparams, schedules, learner.version + warmup_iterations, annealed_rows=rows)

    def init(key: Key, hyperparams: PPOHyperparams) -> PPOState:
        model_key, learner_key = jax.random.split(key)
        example = example_input(observation_space, action_space)
        statistics = init_statistics(
            observation_space if config.normalize_observations else None, config.num_envs if config.normalize_rewards else None
        )
        params = model.init(model_key, normalize_inputs(statistics, example))
        opt_state = optimizer(hyperparams).init(packing(optimizer, params).pack(params))
        return PPOState(params, opt_state, hyperparams, statistics, learner_key, jnp.zeros((), jnp.int32))

    def policy(learner: PPOState) -> Policy:
        return Policy(learner.params, learner.statistics, (), learner.version)

    def act(policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool) -> Any:
        carry, output = model.apply(policy.params, carry, normalize_inputs(policy.statistics, inputs))
        drawn = sample_each(output.policy, fold_each(key, env_id)) if explore else output.policy.mode()
        extras = {"log_prob": output.policy.log_prob(drawn)}
        if not isinstance(action_space, spaces.Discrete):
            extras["raw_action"] = drawn
        return carry, to_environment(action_space, drawn), extras

    def observe(learner: PPOState, rollout: Rollout) -> PPOState:
        return learner._replace(statistics=refresh(learner.statistics, rollout, current(learner).gamma, axis_name))

    def loss(params: PyTree, hp: PPOHyperparams, batch: Batch) -> tuple[Array, dict[str, Array]]:
        total, metrics = ppo_loss(model, config, hp, params, batch, axis_name)
        for extra_loss in extra_losses:
            extra, logged = extra_loss(params, batch)
            total += extra
            metrics |= {f"losses/{name}": x for name, x in logged.items()}
        return total, metrics

    def update(learner: PPOState, rollout: Rollout) -> tuple[PPOState, Metrics]:
        hp = current(learner)
        optimise, (pack, unpack) = optimizer(hp), packing(optimizer, learner.params)
        batch = targets(model, learner, rollout, hp)
        key = jax.random.fold_in(learner.key, learner.version)
        order = minibatches(key, batch.valid.shape[0], config.num_epochs, config.num_minibatches)

        def minibatch(carry: tuple[PyTree, PyTree], rows: Array) -> tuple[tuple[PyTree, PyTree], dict[str, Array]]:
            packed, opt_state = carry
            part = jax.tree.map(lambda x: x[rows], batch)
            packed, opt_state, metrics = descend(lambda p: loss(unpack(p), hp, part), optimise, packed, opt_state, axis_name)
            return (packed, opt_state), metrics

        (packed, opt_state), metrics = jax.lax.scan(minibatch, (pack(learner.params), learner.opt_state), order)
        metrics["losses/explained_variance"] = explained_variance(batch.target, batch.advantage, batch.valid, axis_name)
        metrics |= learning_rate_metric(optimizer, hp, learner.params)
        statistics = refresh(learner.statistics, rollout, hp.gamma, axis_name)
        learner = learner._replace(params=unpack(packed), opt_state=opt_state, statistics=statistics, version=learner.version + 1)
        return learner, scalars(metrics)

    return Algorithm(
        init,
        policy,
        act,
        update,
        model.initial_carry,
        observe=observe,
        warmup_iterations=warmup_iterations,
    )


# --------------------------------------------------------------------------------------------------------------------- builder


def check_output(model: Any, output: Any, action_space: spaces.Space) -> None:
    """Refuse a model that gives (shapes of) something else than a policy over these actions and a value, for a batch of one."""
    if not isinstance(output, ActorCriticOutput) or getattr(output.value, "shape", None) != (1,):
        raise TypeError(
            f"model={show(model)} must give an ActorCriticOutput(policy, value f32[batch]); for a batch of one it gives "
            f"{show_shapes(output)}"
        )
    kind: Any = Categorical
    size = getattr(action_space, "n", None)
    if isinstance(action_space, spaces.Box):
        kind, size = Normal, math.prod(action_space.shape)
    built_in = isinstance(output.policy, Categorical | Normal)  # a distribution of the user's own is the user's matter
    if built_in and (not isinstance(output.policy, kind) or output.policy[0].shape != (1, size)):
        raise TypeError(
            f"model={show(model)} must give a {kind.__name__} policy of size {size} for {action_space}; it gives "
            f"{type(output.policy).__name__} {show_shapes(output.policy[0])}"
        )


def check_losses(
    losses: Sequence[ExtraLoss], model: Model, algorithm: Algorithm, env: Env | HostEnv, config: PPOConfig, hyperparams: Any
) -> None:
    """Refuse extra losses that fail on a minibatch, or give something else than they have to; only shapes are computed."""
    learner = algorithm.init(jax.random.key(0), merge_hyperparams(hyperparams, None))
    rollout = example_rollout(algorithm, env, algorithm.policy(learner), config.num_envs, config.rollout_length)
    batch = targets(model, learner, rollout, learner.hyperparams)
    part = jax.tree.map(lambda x: x[: x.shape[0] // config.num_minibatches], batch)
    for i, loss in enumerate(losses):
        check_loss(f"extra_losses[{i}]={show(loss)}", loss, learner.params, part)


def make_ppo(
    env: str | Env | HostEnv,
    *,
    model: Model | ModelFn | None = None,
    optimizer: Optimizer | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    extra_losses: Sequence[ExtraLoss] | ExtraLoss = (),
    axis_name: str | None = None,
    **settings: Any,
) -> Agent:
    """Proximal policy optimisation (Schulman et al. 2017) with GAE, for Discrete and Box actions.

    Args:
      env: an id ("CartPole-v1", "envpool:CartPole-v1", "my_module:make_my_env"), an Env or a HostEnv.
      model: a Model whose outputs are ``ActorCriticOutput``, or a function of (observation_space, action_space) that gives one,
        such as ``functools.partial(jaxrl.models.actor_critic, core="gru")``; default: two MLPs of 2×64, tanh.
      optimizer: hyperparams -> optax transformation, or a transformation itself; default: clipped Adam.
      schedules: hyperparameter name -> function of the iteration (the warm-up's included) that gives a factor on it.
      extra_losses: functions of (params, Batch) -> (loss to add, scalars to log), or one.
      axis_name: the device axis that ``step`` will run under.
      settings: fields of ``PPOConfig`` and ``PPOHyperparams``.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, model or action space.
      ValueError: sizes that do not fit, hyperparameters out of range.
    """
    config, hyperparams = split_settings(
        "make_ppo", PPOConfig, PPOHyperparams, settings, ("model", "optimizer", "schedules", "extra_losses", "axis_name")
    )
    bound = resolve_env(env)
    if not isinstance(bound.action_space, spaces.Discrete | spaces.Box):
        what = f"{bound.name} has {bound.action_space}: {other_way(bound.action_space)}"
        raise TypeError(f"PPO needs a Discrete or Box action space; {what}")
    network, losses = resolve_model(model, actor_critic, bound), resolve_losses(extra_losses)
    check_output(model, model_output(model, network, bound, unrolled=True), bound.action_space)
    config.check(recurrent=bool(jax.tree.leaves(jax.eval_shape(lambda: network.initial_carry(1)))))
    factors = check_schedules(schedules, PPOHyperparams._fields)
    algorithm = make_algorithm(
        bound.observation_space,
        bound.action_space,
        network,
        config,
        optimizer=resolve_optimizer(optimizer, network, bound, hyperparams, PPOHyperparams(), [*factors]),
        schedules=factors,
        extra_losses=losses,
        axis_name=axis_name,
    )
    if losses:
        check = as_only_device(lambda _: check_losses(losses, network, algorithm, bound, config, hyperparams), axis_name)
        jax.eval_shape(check, jax.ShapeDtypeStruct((), jnp.float32))  # an array would start a backend
    parts = {"model": model, "optimizer": optimizer, "schedules": schedules, "extra_losses": losses, "axis_name": axis_name}
    return bind(
        algorithm,
        bound,
        num_envs=config.num_envs,
        rollout_length=config.rollout_length,
        hyperparams=hyperparams,
        spec=agent_spec(make_ppo, env, config, hyperparams, parts),
        axis_name=axis_name,
    )
