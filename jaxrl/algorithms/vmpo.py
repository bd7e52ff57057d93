"""V-MPO (Song et al. 2020): on-policy maximum a posteriori policy optimisation, memoryless or recurrent, discrete or continuous.

Reads top to bottom: settings, state, targets, losses, update, builder. What it shares with MPO is in
``jaxrl.algorithms.common.policy_improvement``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.common import on_policy
from jaxrl.algorithms.common.on_policy import (
    ValueHeadConfig,
    act,
    items_to_shuffle,
    normalized_rollout,
    observe,
    prepare_actor_critic,
)
from jaxrl.algorithms.common.policy_improvement import (
    Duals,
    KnownDistribution,
    divergences,
    improved,
    init_duals,
    kl_bounds,
    refuse_without_effect,
    temperature_loss,
    trust_region,
)
from jaxrl.builder.keywords import on_policy_keywords, with_keywords_of
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.intrinsic.part import with_intrinsic
from jaxrl.optimize.descent import Progress
from jaxrl.optimize.gradients import add_losses, gathered, mean_gradient
from jaxrl.optimize.learner import Learner
from jaxrl.optimize.minibatches import check_minibatches, explained_variance, minibatches, over_epochs
from jaxrl.returns import discounts, gae
from jaxrl.rollout.outputs import apply_model, rollout_outputs
from jaxrl.rollout.running_statistics import update_statistics
from jaxrl.settings import hyperparams as shared
from jaxrl.settings.validation import Count, Positive, Unit
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class VMPOConfig(ValueHeadConfig):
    """Structural settings of V-MPO."""

    num_epochs: Count = 4
    """Passes over each rollout."""
    num_minibatches: Count = 4
    """Minibatches per pass, one gradient step each; must divide num_envs * rollout_length (num_envs for a recurrent model)."""
    normalize_advantages: bool = True
    """Scale advantages to mean 0 and standard deviation 1 within each minibatch, so that η does not depend on the reward's
    scale."""

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        check_minibatches(self, self.steps_per_iteration, recurrent=recurrent)


class VMPOHyperparams(NamedTuple):
    """Hyperparameters of V-MPO: f32 scalars in the learner's state, which can be vmapped over and changed during a run."""

    learning_rate: shared.LearningRate = 1e-3
    dual_learning_rate: shared.LearningRate = 1e-2
    """Adam's step size for the temperature and the multipliers."""
    gamma: shared.Gamma = 0.99
    gae_lambda: Unit = 0.95
    """λ of generalised advantage estimation; 1 sums all rewards up to the rollout's end, as the paper's n-step returns do."""
    vf_coef: shared.VfCoef = 0.5
    temperature: Positive = 1.0
    """η at the start."""
    improvement_kl: Positive = 0.1
    """ε of the temperature: KL divergence of the weights of the better half from equal ones, in nats."""
    mean_kl: Positive = 0.01
    """Box actions: bound on the KL divergence by a change of the mean, in nats per dimension."""
    deviation_kl: Positive = 1e-4
    """Box actions: bound on the KL divergence by a change of the standard deviation, in nats per dimension."""
    discrete_kl: Positive = 0.01
    """Other actions: bound on the KL divergence of the policy that acted from the policy, in nats."""
    max_grad_norm: shared.MaxGradNorm = 0.5
    total_steps: shared.TotalSteps = 0.0


class VMPOState(Learner):
    """Learner state of V-MPO. ``opt_state`` holds the state of the network's optimiser, and of that of the duals."""

    duals: Duals


MULTIPLIERS = {"mean": 1.0, "deviation": 1.0, "discrete": 5.0}
"""Multipliers at the start."""


class Batch(NamedTuple):
    """Training batch. Leaves are [N, ...] for memoryless models and [N, T, ...] (whole sequences) for recurrent ones."""

    inputs: StepInput
    carry: PyTree
    """[N, ...] at the start of each sequence; () when memoryless."""
    action: Array
    """As drawn from the distribution."""
    advantage: Array
    """With ``normalize_advantages``, scaled in each minibatch to mean 0 and standard deviation 1."""
    target: Array
    """The λ-return, to which the value regresses."""
    valid: Array
    policy: PyTree
    """The distribution of the policy that acted."""


def init(setup: AlgorithmSetup[VMPOConfig], key: Key, hyperparams: VMPOHyperparams) -> VMPOState:
    learner = on_policy.init(setup, key, hyperparams)
    duals = init_duals(setup.action_space, hyperparams.temperature, MULTIPLIERS)
    opt_state = (learner.opt_state, optax.adam(hyperparams.dual_learning_rate).init(duals))
    return VMPOState(**learner._replace(opt_state=opt_state)._asdict(), duals=duals)


# --------------------------------------------------------------------------------------------------------------------- targets


def targets(setup: AlgorithmSetup[VMPOConfig], learner: Any, rollout: Rollout, hp: VMPOHyperparams) -> tuple[Batch, Array]:
    """Return a rollout's rows or sequences to shuffle, with advantages and λ-returns, and the errors of their values."""
    rows = normalized_rollout(learner.statistics, rollout)
    policy, outputs = rollout_outputs(setup.model, learner.params, rollout, rows.inputs, by_rows=False)
    value = setup.config.values(outputs)
    advantage = gae(rows.reward, *discounts(rollout, hp.gamma, hp.gae_lambda), value[:-1], value[1:], rollout.valid)
    inputs, old = jax.tree.map(lambda x: x[:-1], (rows.inputs, policy))
    with_bonus, target = with_intrinsic(rollout, advantage), advantage + value[:-1]
    batch = Batch(inputs, (), rows.action, with_bonus, target, rollout.valid, old)
    items = items_to_shuffle(batch, rollout.carry)
    return items, items_to_shuffle(batch._replace(advantage=advantage), rollout.carry).advantage


def threshold(advantage: Array, valid: Array) -> Array:
    """Return the least advantage of the better half of the valid rows, f32[], the larger half of an odd number."""
    best_first = -jnp.sort(-jnp.where(valid, advantage, -jnp.inf))
    return best_first[jnp.maximum((valid.sum() + 1) // 2 - 1, 0)]


# ---------------------------------------------------------------------------------------------------------------------- losses


def losses(setup: AlgorithmSetup[VMPOConfig], hp: VMPOHyperparams, batch: Batch) -> tuple[Any, Any]:
    """Return the losses of the network and of the duals on a batch, as functions.

    The network minimises −Σ ψ·log π(a | s) + vf_coef·½ E[(G − V(s))²] + α·KL(π_old ‖ π), with ψ ∝ exp(A / η) over the better half
    D̃ of the advantages; the temperature η·ε + η·log(mean of exp(A / η) over D̃); and a multiplier α·(bound − KL) (Song et al.
    2020, eq. 3 to 6).
    """
    bounds, of_all = kl_bounds(setup.action_space, hp), setup.valid_mean(batch.valid)
    everywhere = [gathered(x.reshape(-1), setup.axis_name) for x in (batch.advantage, batch.valid.astype(jnp.float32))]
    advantage, valid = everywhere[0], everywhere[1] > 0
    least = threshold(advantage, valid)
    chosen, better = valid & (advantage >= least), batch.valid & (batch.advantage >= least)
    log_prior = jnp.where(chosen | ~chosen.any(), -jnp.log(jnp.maximum(chosen.sum(), 1)), -jnp.inf)
    of_better = setup.valid_mean(better)

    def improvement(temperature: Array) -> Array:
        """log E[exp(A / η)] over the better half, f32[]."""
        return improved(advantage[:, None], temperature, log_prior[:, None])[1][0]

    def outputs(params: PyTree) -> tuple[KnownDistribution, Array, list[Array]]:
        policy, value = apply_model(setup.model, params, batch.inputs, batch.carry)
        return policy, value, [of_all(each) for each in divergences(batch.policy, policy)]

    def of_network(duals: Duals, params: PyTree) -> tuple[Array, dict[str, Array]]:
        temperature, multipliers = duals.positive
        policy, value, apart = outputs(params)
        log_weight = batch.advantage / temperature - improvement(temperature)
        weight = jnp.exp(jnp.where(better, log_weight, -jnp.inf))  # ψ times the number of rows in D̃
        policy_loss = -of_better(weight * policy.log_prob(batch.action))
        value_loss = of_all(setup.config.value_losses(value, batch.target))
        total = policy_loss + hp.vf_coef * value_loss + trust_region(multipliers, bounds, apart)[0]
        logged = {"losses/policy_loss": policy_loss, "losses/value_loss": value_loss}
        logged |= {"losses/entropy": of_all(policy.entropy()), "losses/temperature": temperature}
        logged |= {"losses/policy_kl": jnp.asarray(sum(each.sum() for each in apart))}
        return add_losses(setup.extra_losses, params, batch, total, logged)

    def of_duals(params: PyTree, duals: Duals) -> tuple[Array, dict[str, Array]]:
        temperature, multipliers = duals.positive
        loss = temperature_loss(improvement(temperature), temperature, hp.improvement_kl)
        return loss + trust_region(multipliers, bounds, outputs(params)[2])[1], {}

    return of_network, of_duals


# ---------------------------------------------------------------------------------------------------------------------- update


def update(setup: AlgorithmSetup[VMPOConfig], learner: VMPOState, rollout: Rollout) -> tuple[VMPOState, Metrics]:
    config, hp = setup.config, setup.current(learner)
    descent, adam = setup.descent(hp, learner.params), optax.adam(hp.dual_learning_rate)
    batch, error = targets(setup, learner, rollout, hp)
    sizes = (len(batch.valid), rollout.env_id.size, config.num_epochs, config.num_minibatches)
    order = minibatches(setup.update_key(learner), *sizes, setup.axis_name)

    def minibatch(carry: tuple[Progress, Duals, Any], part: Batch) -> Any:
        progress, duals, dual_state = carry
        of_network, of_duals = losses(setup, hp, part)
        slope, _ = mean_gradient(partial(of_duals, descent.params(progress)), duals, setup.axis_name)
        progress, metrics = descent.step(partial(of_network, duals), progress)
        step, dual_state = adam.update(slope, dual_state)
        return (progress, optax.apply_updates(duals, step), dual_state), metrics

    start = (descent.start(learner.params, learner.opt_state[0]), learner.duals, learner.opt_state[1])
    end, metrics = over_epochs(minibatch, start, batch, order, config.normalize_advantages, setup.axis_name)
    progress, duals, dual_state = end
    learnt = descent.finish(progress)
    metrics["losses/explained_variance"] = explained_variance(batch.target, error, batch.valid, setup.axis_name)
    fields = {"params": learnt["params"], "opt_state": (learnt["opt_state"], dual_state), "duals": duals}
    statistics = update_statistics(learner.statistics, rollout, hp.gamma, setup.axis_name)
    return setup.updated(learner, hp, metrics, **fields, statistics=statistics)


def make_algorithm(setup: AlgorithmSetup[VMPOConfig]) -> Algorithm:
    """Return V-MPO as an ``Algorithm``, bound to spaces but not to an environment."""
    transferable_fields = ("params", "duals", "statistics")
    return setup.algorithm(init=init, act=act, observe=observe, update=update, transferable_fields=transferable_fields)


@with_keywords_of(on_policy_keywords)
def make_vmpo(env: EnvLike, **keywords: Any) -> Agent:
    """V-MPO (Song et al. 2020): on-policy maximum a posteriori policy optimisation, for Discrete, MultiDiscrete and Box actions.

    Args:
      extra_losses: one function or several, (params, ``Batch``) -> (loss to add, scalars to log).
    """
    prepared = prepare_actor_critic(make_vmpo, env, VMPOConfig, VMPOHyperparams, keywords)
    setup, policy = prepared.setup, prepared.output.policy
    if not isinstance(policy, KnownDistribution):
        raise TypeError(f"V-MPO needs a Categorical, MultiCategorical, Normal or TanhNormal policy, not {type(policy).__name__}")
    refuse_without_effect(setup.action_space, prepared.hyperparams, setup.schedules)

    def minibatch(learner: Any, rollout: Rollout) -> Batch:
        """Return the first minibatch, for checking extra losses."""
        batch, _ = targets(setup, learner, rollout, learner.hyperparams)
        return jax.tree.map(lambda x: x[: len(x) // setup.config.num_minibatches], batch)

    return prepared.bind(make_algorithm(setup), batch=minibatch)
