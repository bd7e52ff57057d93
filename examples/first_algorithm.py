"""A first algorithm: an actor-critic with one gradient per rollout. Trains on CartPole in about ten seconds on a CPU.

python examples/first_algorithm.py
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

import jaxrl
from jaxrl.builder.config import RolloutConfig
from jaxrl.builder.prepare import prepare
from jaxrl.models import actor_critic
from jaxrl.returns import discounts, lambda_returns
from jaxrl.settings.hyperparams import Gamma, LearningRate, MaxGradNorm, TotalSteps


class Hyperparams(NamedTuple):
    learning_rate: LearningRate = 3e-3
    gamma: Gamma = 0.99
    max_grad_norm: MaxGradNorm = 0.5
    total_steps: TotalSteps = 0.0


def act(setup, policy, carry, inputs, env_id, key, *, explore):
    carry, output = setup.model.apply(policy.params, carry, inputs)
    sample = jax.vmap(lambda distribution, i: distribution.sample(jax.random.fold_in(key, i)))
    return carry, sample(output.policy, env_id) if explore else output.policy.mode(), {}


def gradients(setup, policy, rollout):
    def loss(params):
        _, output = setup.model.unroll(params, rollout.carry, rollout.inputs)  # [T + 1, B]
        distribution, value = jax.tree.map(lambda x: x[:-1], (output.policy, output.value))
        next_value = jax.lax.stop_gradient(output.value[1:])  # inputs[t + 1] is always the observation that row t reached
        discount, trace = discounts(rollout, policy.hyperparams.gamma)
        advantage = lambda_returns(rollout.reward, discount, trace, next_value, rollout.valid) - value
        losses = -distribution.log_prob(rollout.action) * jax.lax.stop_gradient(advantage) + 0.5 * advantage**2
        return jnp.mean(losses, where=rollout.valid), {}

    return setup.gradient(loss, policy)


def make_first(env, **settings):
    parts = {"model": None, "optimizer": None, "schedules": None, "axis_name": None}
    prepared = prepare(make_first, env, RolloutConfig, Hyperparams, settings, [spaces.Discrete], actor_critic, parts, memory=True)
    return prepared.bind(prepared.setup.algorithm(act=act, gradients=gradients))


def main(total_steps: int = 300_000) -> None:
    _, history = jaxrl.run(make_first("CartPole-v1"), total_steps)
    print(f"mean return: {history['evaluation/episodic_return'][-1].mean():.1f}")


if __name__ == "__main__":
    main()
