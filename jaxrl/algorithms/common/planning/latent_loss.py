"""The loss of a learned model that is unrolled along actions (Schrittwieser et al. 2020, equation 1)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.planning.latent_model import LatentModel, LatentParams
from jaxrl.algorithms.common.planning.model_targets import Targets
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.optimize.gradients import valid_means
from jaxrl.replay.sequence import Sequences
from jaxrl.types import Array, StepInput


def unrolled(latent: LatentModel, params: LatentParams, inputs: StepInput, action: Array) -> tuple[Any, Any]:
    """Unroll the model from observations, [N], along actions i32[K, N].

    Returns:
      The predictions at k = 0 … K, [K + 1, N, ...], and the outputs of the dynamics, [K, N, ...].
    """

    def step(state: Array, action: Array) -> tuple[Array, Any]:
        state = 0.5 * state + 0.5 * jax.lax.stop_gradient(state)  # halves the gradient (appendix G)
        output = latent.step(params, state, action)
        return output.state, output

    first = latent.represent(params, inputs)
    outputs = jax.lax.scan(step, first, action)[1]
    return latent.predict(params, jnp.concatenate([first[None], outputs.state])), outputs


def muzero_loss(
    latent: LatentModel, vf_coef: Array | float, params: LatentParams, batch: Sequences, target: Targets, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """Mean over valid draws of Σₖ wₖ·(ℓᵖ + vf_coef·ℓᵛ + ℓʳ + ℓᵗ), times the draw's weight, with w₀ = 1 and wₖ = 1/K
    (Schrittwieser et al. 2020, equation 1; its weight decay belongs to the optimiser).

    ℓᵖ, ℓᵛ and ℓʳ are cross-entropies to the improved policy, the return and the reward; ℓᵗ is that of whether the episode goes
    on, and with which player. The metrics returned include the priorities.
    """
    steps, support = len(target.reward), latent.support
    predicted, outputs = unrolled(latent, params, jax.tree.map(lambda x: x[0], batch.inputs), batch.action[:steps])
    weight = jnp.where(jnp.arange(steps + 1) == 0, 1.0, 1.0 / steps)[:, None]

    def cross_entropy(logits: Array, probabilities: Array, known: Array) -> Array:
        return jnp.where(known, -(probabilities * jax.nn.log_softmax(logits)).sum(-1), 0.0)

    policy_loss = cross_entropy(predicted.logits, target.policy, target.in_episode)
    value_loss = cross_entropy(predicted.value, support.encode(target.value), target.known)
    reward_loss = cross_entropy(outputs.reward, support.encode(target.reward), target.known[:-1])
    turn = jax.nn.one_hot(target.turn, outputs.turn.shape[-1])
    turn_loss = cross_entropy(outputs.turn, turn, target.known[:-1])
    loss = (weight * (policy_loss + vf_coef * value_loss)).sum(0) + (reward_loss + turn_loss).mean(0)
    logged = {"losses/policy_loss": policy_loss[0], "losses/value_loss": value_loss[0]}
    logged |= {"losses/reward_loss": reward_loss.mean(0), "losses/turn_loss": turn_loss.mean(0)}
    loss, logged = valid_means(batch.weight * loss, logged, target.in_episode[0], axis_name)
    error = jnp.abs(support.decode(predicted.value[0]) - target.value[0])
    return loss, logged | {PRIORITIES: jnp.where(target.in_episode[0], error, 0.0)}
