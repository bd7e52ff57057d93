"""Proximal policy optimisation (Schulman et al. 2017) with a clip or a penalty, memoryless or recurrent, discrete or continuous.

Reads top to bottom: settings, targets, loss, update, builder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common import on_policy
from jaxrl.algorithms.common.constraints import lagrangian
from jaxrl.algorithms.common.constraints.lagrangian import Lagrangian, constrained, observe, prepare_constraint, update_multiplier
from jaxrl.algorithms.common.on_policy import ValueHeadConfig, act, drawn_actions, items_to_shuffle, mean_kl, prepare_actor_critic
from jaxrl.algorithms.common.ppo_objectives import Batch, Clip, Drift, KLPenalty, mean_noise_keys, with_mean_noise
from jaxrl.builder.keywords import on_policy_keywords, with_keywords_of
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.intrinsic.part import with_intrinsic
from jaxrl.metrics import Stacked, stack, unstack
from jaxrl.optimize.descent import Progress
from jaxrl.optimize.gradients import add_losses, valid_means
from jaxrl.optimize.minibatches import (
    check_minibatches,
    explained_variance,
    mean_over_taken_steps,
    minibatches,
    shuffled,
    stop_on_kl,
)
from jaxrl.returns import discounts, gae
from jaxrl.rollout.outputs import apply_model, rollout_outputs
from jaxrl.rollout.running_statistics import (
    normalize_inputs,
    normalized_values,
    scale_rewards,
    update_statistics,
    values_in_units,
)
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.options import ABSENT
from jaxrl.settings.validation import Count, NonNegative, Positive, Unit, added, refuse_unused
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Model, PyTree, Rollout


@dataclass(frozen=True)
class PPOConfig(ValueHeadConfig):
    """Structural settings of PPO."""

    num_epochs: Count = 10
    """Passes over each rollout."""
    num_minibatches: Count = 4
    """Minibatches per pass, one gradient step each; must divide num_envs * rollout_length (num_envs for a recurrent model)."""
    normalize_advantages: bool = True
    """Scale advantages to mean 0 and standard deviation 1 within each minibatch."""
    surrogate: Clip | KLPenalty | Drift = Clip()
    """Surrogate objective, which keeps the new policy close to the old one."""
    normalize_values: bool = added(False)
    """Let the value regress to targets that are normalised by their running mean and standard deviation (Yu et al. 2022)."""
    stop_kl: NonNegative = added(0.0)
    """Stop an iteration's gradient steps at the first minibatch with an approx_kl above this; 0: never stop."""
    accumulation_steps: Count = added(1)
    """Parts of each minibatch, whose gradients are computed in turn to save memory. With 1, jaxrl may use more on a CPU."""
    mean_noise: NonNegative = added(0.0)
    """Half the width of the uniform noise that gradient steps add to the mean of a policy for Box actions (RPO: Rahman and Xue
    2022); 0: none."""
    constraint: Lagrangian | None = added(None)
    """Limit on the cost of episodes, ``info["cost"]`` of the environment; None: no limit."""

    @property
    def num_values(self) -> int | None:
        return super().num_values if self.constraint is None else 2

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        self.surrogate.check_value_head(self.value_head)
        if self.value_head is not None and self.constraint is not None:
            raise ValueError(f"value_head={self.value_head.name!r} has no value of costs, as constraint=… needs: leave one out")
        check_minibatches(self, self.steps_per_iteration, recurrent=recurrent, accumulation_steps=self.accumulation_steps)
        if self.num_epochs * self.num_minibatches == 1:
            refuse_unused(self, PPOConfig, ("stop_kl",), "on an iteration of one gradient step, which begins at the old policy")


class PPOHyperparams(NamedTuple):
    """Hyperparameters of PPO: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    gae_lambda: Unit = 0.95
    """λ of generalised advantage estimation: 0 trusts the value, 1 the rewards."""
    clip_eps: Positive = 0.2
    """``Clip.eps``."""
    ent_coef: shared.EntCoef = 0.01
    vf_coef: shared.VfCoef = 0.5
    max_grad_norm: shared.MaxGradNorm = 0.5
    total_steps: shared.TotalSteps = 0.0
    cost_limit: lagrangian.CostLimit = ABSENT
    pid_kp: lagrangian.Kp = ABSENT
    pid_ki: lagrangian.Ki = ABSENT
    pid_kd: lagrangian.Kd = ABSENT
    cost_smoothing: lagrangian.Smoothing = ABSENT


ExtraLoss = Callable[[PyTree, Batch], tuple[Array, dict[str, Array]]]
"""(params, minibatch) -> (loss to add, scalars to log)."""


def init(setup: AlgorithmSetup[PPOConfig], key: Key, hyperparams: PPOHyperparams) -> Any:
    learner = setup.config.surrogate.with_state(on_policy.init(setup, key, hyperparams, values=setup.config.normalize_values))
    return lagrangian.with_constraint_state(setup, learner)


# ---------------------------------------------------------------------------------------------------------------------- update


def targets(model: Model, config: PPOConfig, learner: Any, rollout: Rollout, hp: PPOHyperparams) -> Batch:
    """Compute advantages and λ-returns of a rollout, as rows or sequences to shuffle."""
    inputs = normalize_inputs(learner.statistics, rollout.inputs)
    output = rollout_outputs(model, learner.params, rollout, inputs, by_rows=config.accumulation_steps > 1)
    values = values_in_units(learner.statistics, config.values(output.value))
    value, next_value = values[:-1], values[1:]
    reward = scale_rewards(learner.statistics, rollout.reward)
    advantage = gae(reward, *discounts(rollout, hp.gamma, hp.gae_lambda), value, next_value, rollout.valid)

    rows = Batch(
        inputs=jax.tree.map(lambda x: x[:-1], inputs),
        carry=(),
        action=drawn_actions(rollout),
        log_prob=rollout.extras["log_prob"],
        advantage=with_intrinsic(rollout, advantage),
        target=advantage + value,
        value=value,
        valid=rollout.valid,
        policy=jax.tree.map(lambda x: x[:-1], output.policy) if isinstance(config.surrogate, KLPenalty) else (),
    )
    if config.constraint is not None:
        rows = constrained(rows, learner.constraint, rollout, output.cost_value, hp)
    return items_to_shuffle(rows, rollout.carry)


def ppo_loss(
    model: Model, config: PPOConfig, hp: PPOHyperparams, params: PyTree, batch: Batch, axis_name: str | None, learner: Any = None
) -> tuple[Array, dict[str, Array]]:
    """−L^CLIP (or −L^KLPEN) + vf_coef·L^VF − ent_coef·S (eq. 9), as means over the valid rows of all devices."""
    output = apply_model(model, params, batch.inputs, batch.carry)
    policy = output.policy
    if config.mean_noise:
        policy = policy._replace(mean=policy.mean + batch.noise)
    log_ratio = policy.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    policy_loss, logged = config.surrogate.policy_loss(hp, learner, batch, ratio, policy)
    value_loss, entropy = config.surrogate.value_losses(config, hp, batch, output.value), policy.entropy()

    logged |= {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": ratio - 1 - log_ratio,
    }
    if config.constraint is not None:
        of_costs = batch._replace(target=batch.cost.target, value=batch.cost.value)
        logged["losses/cost_value_loss"] = 0.5 * config.surrogate.value_error(hp, of_costs, output.cost_value)
        value_loss = value_loss + logged["losses/cost_value_loss"]
    total = policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
    return valid_means(total, logged, batch.valid, axis_name)


Carry: TypeAlias = tuple[Progress, Array | None]
"""Parameters and optimiser state, and whether to continue with gradient steps (None if they cannot be stopped)."""


def update(setup: AlgorithmSetup[PPOConfig], learner: Any, rollout: Rollout) -> tuple[Any, Metrics]:
    config, hp = setup.config, setup.current(learner)
    learner, cost_metrics = update_multiplier(setup, learner, rollout, hp)
    descent, raw = setup.descent(hp, learner.params), targets(setup.model, config, learner, rollout, hp)
    moments, batch = normalized_values(learner.statistics.values, raw, setup.axis_name)
    sizes = (batch.valid.shape[0], rollout.env_id.shape[0], config.num_epochs, config.num_minibatches)
    order = minibatches(setup.update_key(learner), *sizes, setup.axis_name)
    noise_keys = mean_noise_keys(config, setup.update_key(learner), setup.axis_name)

    def loss(params: PyTree, part: Batch, axis_name: str | None) -> tuple[Array, dict[str, Array]]:
        total, metrics = ppo_loss(setup.model, config, hp, params, part, axis_name, learner)
        return add_losses(setup.extra_losses, params, part, total, metrics)

    def minibatch(carry: Carry, part: Batch) -> tuple[Carry, tuple[Stacked, Array | None]]:
        progress, going = carry
        new, metrics = descent.accumulated_step(
            loss, progress, part, part.valid, config.accumulation_steps, may_cut=not setup.extra_losses
        )  # a user's loss may be something other than a mean over rows
        going, new = stop_on_kl(config.stop_kl, metrics, going, new, progress, setup.axis_name)
        return (new, going), (stack(metrics), going)

    def epoch(carry: Carry, inputs: tuple[Array, Key | None]) -> tuple[Carry, tuple[Stacked, Array | None]]:
        order, key = inputs
        noisy = with_mean_noise(config, batch, key)
        return jax.lax.scan(minibatch, carry, shuffled(noisy, order, config.normalize_advantages, setup.axis_name))

    start = (descent.start(learner.params, learner.opt_state), jnp.array(True) if config.stop_kl else None)
    (progress, _), (logged, going) = jax.lax.scan(epoch, start, (order, noise_keys))
    learnt, metrics = descent.finish(progress), mean_over_taken_steps(unstack(logged), going)
    error = raw.advantage if setup.intrinsic is None and config.constraint is None else raw.target - raw.value
    metrics["losses/explained_variance"] = explained_variance(raw.target, error, raw.valid, setup.axis_name)
    parts = config.num_minibatches * config.accumulation_steps
    measure = partial(mean_kl, setup.model, learnt["params"], batch, parts, setup.axis_name)
    fields, refresh_metrics = config.surrogate.refresh(learner, measure)
    statistics = update_statistics(learner.statistics, rollout, hp.gamma, setup.axis_name)._replace(values=moments)
    return setup.updated(learner, hp, metrics | refresh_metrics | cost_metrics, **learnt, statistics=statistics, **fields)


def make_algorithm(setup: AlgorithmSetup[PPOConfig]) -> Algorithm:
    """Return PPO as an ``Algorithm``, bound to spaces but not to an environment."""
    # Ratios are relative to the probabilities with which the rollout's actions were drawn, however old that policy is.
    return setup.algorithm(init=init, act=act, observe=observe, update=update, tolerates_lag=True)


@with_keywords_of(on_policy_keywords)
def make_ppo(env: EnvLike, **keywords: Any) -> Agent:
    """Proximal policy optimisation (Schulman et al. 2017) with GAE, for Discrete, MultiDiscrete and Box actions.

    Args:
      extra_losses: one ``ExtraLoss`` or several, (params, Batch) -> (loss to add, scalars to log).
    """
    prepared = prepare_constraint(prepare_actor_critic(make_ppo, env, PPOConfig, PPOHyperparams, keywords))
    config, network = prepared.setup.config, prepared.setup.model
    config.surrogate.check_policy(prepared.output.policy)
    if config.mean_noise and not hasattr(prepared.output.policy, "mean"):
        raise TypeError("mean_noise is for policies with a mean, as for Box actions: leave it out")

    def minibatch(learner: Any, rollout: Rollout) -> Batch:
        """Return the first minibatch, for checking extra losses."""
        batch = targets(network, config, learner, rollout, learner.hyperparams)
        batch = normalized_values(learner.statistics.values, batch, prepared.setup.axis_name)[1]
        batch = with_mean_noise(config, batch, jax.random.key(0) if config.mean_noise else None)
        return jax.tree.map(lambda x: x[: x.shape[0] // config.num_minibatches], batch)

    return prepared.bind(make_algorithm(prepared.setup), batch=minibatch)
