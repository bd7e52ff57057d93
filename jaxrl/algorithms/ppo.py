"""Proximal policy optimisation with a clipped surrogate (Schulman et al. 2017), memoryless or recurrent, discrete or continuous.

Reads top to bottom: settings, state, acting, targets, loss, update, builder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.config import Count, LearningRate, NonNegative, Positive, TotalSteps, Unit
from jaxrl.metrics import Stacked, stack, unstack
from jaxrl.minibatch import explained_variance, minibatches, standardized
from jaxrl.normalize import normalize_inputs, refresh, scale_rewards
from jaxrl.on_policy import OnPolicyConfig, act, drawn_actions, init, observe, prepare_actor_critic
from jaxrl.optimize import Optimizer, Schedule, add_losses, descend, packing, valid_mean, valid_means
from jaxrl.parts import ModelFn
from jaxrl.returns import discounts, gae
from jaxrl.rule import Learner, Rule
from jaxrl.spaces import finite
from jaxrl.types import Agent, Algorithm, Array, Env, HostEnv, Metrics, Model, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """PPO's structure."""

    num_epochs: Count = 10
    """Passes over each rollout."""
    num_minibatches: Count = 4
    """Parts of each pass, one gradient step each; must divide num_envs * rollout_length (num_envs for a recurrent model)."""
    normalize_advantages: bool = True
    """Mean 0 and deviation 1 within each minibatch."""
    clip_value_loss: bool = False
    """Clip the change of the value as the ratio is clipped."""

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        what, items = ("num_envs", self.num_envs) if recurrent else ("num_envs * rollout_length", self.steps_per_iteration)
        if items % self.num_minibatches:
            why = " (a recurrent model learns from whole sequences)" if recurrent else ""
            raise ValueError(f"num_minibatches={self.num_minibatches} must divide {what}={items}{why}")


class PPOHyperparams(NamedTuple):
    """PPO's data: f32 scalars in the learner's state, to vmap over and to change mid-run."""

    learning_rate: LearningRate = 1e-3
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
    total_steps: TotalSteps = 0.0


class Batch(NamedTuple):
    """Rows to learn from. Leaves are [N, ...] for memoryless models and [N, T, ...] (whole sequences) for recurrent ones."""

    inputs: StepInput
    carry: PyTree
    """[N, ...] at the start of each sequence; () when memoryless."""
    action: Array
    """As drawn from the distribution."""
    log_prob: Array
    advantage: Array
    """In minibatches mean 0 and deviation 1, with ``normalize_advantages``."""
    target: Array
    """The λ-return, what the value regresses to."""
    value: Array
    """The value before learning."""
    valid: Array


ExtraLoss = Callable[[PyTree, Batch], tuple[Array, dict[str, Array]]]
"""(params, minibatch) -> (a loss to add, scalars to log)."""


# ---------------------------------------------------------------------------------------------------------------------- update


def targets(model: Model, learner: Learner, rollout: Rollout, hp: PPOHyperparams) -> Batch:
    """Advantages and λ-returns of a rollout, as rows or sequences to shuffle."""
    inputs = normalize_inputs(learner.statistics, rollout.inputs)
    # All values at once, the reached observation of the last row included: far cheaper than one row at a time when acting.
    values = model.unroll(learner.params, rollout.carry, inputs)[1].value
    value = values[:-1]
    reward = scale_rewards(learner.statistics, rollout.reward)
    advantage = gae(reward, *discounts(rollout, hp.gamma, hp.gae_lambda), value, values[1:], rollout.valid)

    rows = Batch(
        inputs=jax.tree.map(lambda x: x[:-1], inputs),
        carry=(),
        action=drawn_actions(rollout),
        log_prob=rollout.extras["log_prob"],
        advantage=advantage,
        target=advantage + value,
        value=value,
        valid=rollout.valid,
    )
    if jax.tree.leaves(rollout.carry):
        return jax.tree.map(lambda x: x.swapaxes(0, 1), rows)._replace(carry=rollout.carry)
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)


def shuffled(config: PPOConfig, batch: Batch, order: Array, axis_name: str | None) -> Batch:
    """The minibatches of an epoch: leaves are [num_minibatches, size, ...]. All at once is fewer kernels than one by one."""
    parts = jax.tree.map(lambda x: x[order], batch)
    parts = finite(parts._replace(carry=()), parts.valid)._replace(carry=parts.carry)
    if not config.normalize_advantages:
        return parts
    return parts._replace(advantage=jax.vmap(lambda x, valid: standardized(x, valid, axis_name))(parts.advantage, parts.valid))


def ppo_loss(
    model: Model, config: PPOConfig, hp: PPOHyperparams, params: PyTree, batch: Batch, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """−L^CLIP + vf_coef·L^VF − ent_coef·S (Schulman et al. 2017, eq. 7 and 9), as means over the valid rows of all devices."""
    if jax.tree.leaves(batch.carry):
        inputs = jax.tree.map(lambda x: x.swapaxes(0, 1), batch.inputs)
        output = jax.tree.map(lambda x: x.swapaxes(0, 1), model.unroll(params, batch.carry, inputs)[1])
    else:
        output = model.apply(params, (), batch.inputs)[1]

    log_ratio = output.policy.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jax.lax.stop_gradient(jnp.clip(ratio, 1 - hp.clip_eps, 1 + hp.clip_eps) * batch.advantage)
    free = ratio * batch.advantage
    policy_loss = -jnp.where(free <= clipped, free, clipped)  # the minimum; where the clip lowers it, no gradient flows

    error = (output.value - batch.target) ** 2
    if config.clip_value_loss:
        near = batch.value + jnp.clip(output.value - batch.value, -hp.clip_eps, hp.clip_eps)
        error = jnp.maximum(error, (near - batch.target) ** 2)
    value_loss, entropy = 0.5 * error, output.policy.entropy()

    logged = {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": ratio - 1 - log_ratio,
        "losses/clipfrac": (jnp.abs(ratio - 1) > hp.clip_eps).astype(jnp.float32),
    }
    total = policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
    return valid_mean(batch.valid, axis_name)(total), valid_means(logged, batch.valid, axis_name)


def update(rule: Rule[PPOConfig], learner: Learner, rollout: Rollout) -> tuple[Learner, Metrics]:
    config, hp = rule.config, rule.current(learner)
    optimise, (pack, unpack) = rule.optimizer(hp), packing(rule.optimizer, learner.params)
    batch = targets(rule.model, learner, rollout, hp)
    key = jax.random.fold_in(learner.key, learner.version)
    order = minibatches(key, batch.valid.shape[0], config.num_epochs, config.num_minibatches)

    def loss(params: PyTree, part: Batch) -> tuple[Array, dict[str, Array]]:
        total, metrics = ppo_loss(rule.model, config, hp, params, part, rule.axis_name)
        return add_losses(rule.extra_losses, params, part, total, metrics)

    def minibatch(carry: tuple[PyTree, PyTree], part: Batch) -> tuple[tuple[PyTree, PyTree], Stacked]:
        packed, opt_state = carry
        packed, opt_state, metrics = descend(lambda p: loss(unpack(p), part), optimise, packed, opt_state, rule.axis_name)
        return (packed, opt_state), stack(metrics)

    def epoch(carry: tuple[PyTree, PyTree], order: Array) -> tuple[tuple[PyTree, PyTree], Stacked]:
        return jax.lax.scan(minibatch, carry, shuffled(config, batch, order, rule.axis_name))

    (packed, opt_state), logged = jax.lax.scan(epoch, (pack(learner.params), learner.opt_state), order)
    metrics = unstack(logged)
    metrics["losses/explained_variance"] = explained_variance(batch.target, batch.advantage, batch.valid, rule.axis_name)
    statistics = refresh(learner.statistics, rollout, hp.gamma, rule.axis_name)
    return rule.updated(learner, hp, metrics, params=unpack(packed), opt_state=opt_state, statistics=statistics)


def make_algorithm(rule: Rule[PPOConfig]) -> Algorithm:
    """PPO's learning rule, bound to spaces and to no environment."""
    return rule.algorithm(init=init, act=act, observe=observe, update=update)


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
    """Proximal policy optimisation (Schulman et al. 2017) with GAE, for Discrete, MultiDiscrete and Box actions.

    Args:
      env: an id ("CartPole-v1", "envpool:CartPole-v1", "my_module:make_my_env"), an Env or a HostEnv.
      model: a Model whose outputs are ``ActorCriticOutput``, or a function of (observation_space, action_space) that gives one,
        such as ``functools.partial(jaxrl.models.actor_critic, core="gru")``; default: two MLPs of 2×64, tanh, or convolutions
        where the observation is an image.
      optimizer: hyperparams -> optax transformation, or a transformation itself; default: clipped Adam.
      schedules: hyperparameter name -> function of the iteration (the warm-up's included) that gives a factor on it.
      extra_losses: functions of (params, Batch) -> (loss to add, scalars to log), or one.
      axis_name: the device axis that ``step`` will run under.
      settings: fields of ``PPOConfig`` and ``PPOHyperparams``.

    Raises:
      TypeError: unknown keyword (the nearest is suggested), wrong kind of environment, model or action space.
      ValueError: sizes that do not fit, hyperparameters out of range.
    """
    given = {"model": model, "optimizer": optimizer, "schedules": schedules, "extra_losses": extra_losses, "axis_name": axis_name}
    ready = prepare_actor_critic(make_ppo, env, PPOConfig, PPOHyperparams, settings, given)
    config, network = ready.rule.config, ready.rule.model

    def minibatch(learner: Learner, rollout: Rollout) -> Batch:
        """The first, for extra losses to be tried on."""
        batch = targets(network, learner, rollout, learner.hyperparams)
        return jax.tree.map(lambda x: x[: x.shape[0] // config.num_minibatches], batch)

    return ready.bind(make_algorithm(ready.rule), batch=minibatch)
