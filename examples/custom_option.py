"""An option of a custom algorithm: an actor-critic whose value loss is squared or Huber's.

Settings that belong together are one value, an option. Each kind is a class with its fields and what it computes, so the
algorithm calls ``config.value_loss.loss`` and never asks which kind it is.

python examples/custom_option.py
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces

import jaxrl
from jaxrl.builder.config import RolloutConfig
from jaxrl.builder.prepare import prepare
from jaxrl.distributions import sample_each
from jaxrl.models import actor_critic
from jaxrl.returns import discounts, lambda_returns
from jaxrl.rollout.env_batches import fold_each
from jaxrl.settings.hyperparams import Gamma, LearningRate, MaxGradNorm, TotalSteps
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import Positive, Unit


@option("squared")
class Squared(Option):
    """Half the squared error, times a weight."""

    weight: Unit = 1.0  # structure: another value compiles another program

    def loss(self, hp: Any, error: jax.Array) -> jax.Array:
        return 0.5 * self.weight * error**2


@option("huber")
class Huber(Option):
    """Huber's loss: errors beyond delta count linearly."""

    delta: Positive = hyperparameter("huber_delta", 1.0)  # data: can be vmapped and scheduled

    def loss(self, hp: Any, error: jax.Array) -> jax.Array:
        return optax.losses.huber_loss(error, delta=hp.huber_delta)


@dataclass(frozen=True)
class Config(RolloutConfig):
    value_loss: Squared | Huber = Squared()  # noqa: RUF009 - an option is frozen


class Hyperparams(NamedTuple):
    learning_rate: LearningRate = 3e-3
    gamma: Gamma = 0.99
    huber_delta: Positive = 1.0  # its value comes from Huber.delta
    max_grad_norm: MaxGradNorm = 0.5
    total_steps: TotalSteps = 0.0


def act(setup, policy, carry, inputs, env_id, key, *, explore):
    carry, output = setup.model.apply(policy.params, carry, inputs)
    return carry, sample_each(output.policy, fold_each(key, env_id)) if explore else output.policy.mode(), {}


def gradients(setup, policy, rollout):
    def loss(params):
        _, output = setup.model.unroll(params, rollout.carry, rollout.inputs)  # [T + 1, B]
        distribution, value = jax.tree.map(lambda x: x[:-1], (output.policy, output.value))
        next_value = jax.lax.stop_gradient(output.value[1:])
        discount, trace = discounts(rollout, policy.hyperparams.gamma)
        advantage = lambda_returns(rollout.reward, discount, trace, next_value, rollout.valid) - value
        value_loss = setup.config.value_loss.loss(policy.hyperparams, advantage)
        losses = -distribution.log_prob(rollout.action) * jax.lax.stop_gradient(advantage) + value_loss
        return jnp.mean(losses, where=rollout.valid), {}

    return setup.gradient(loss, policy)


def make_critic(env, **settings):
    parts = {"model": None, "optimizer": None, "schedules": None, "axis_name": None}
    prepared = prepare(make_critic, env, Config, Hyperparams, settings, [spaces.Discrete], actor_critic, parts, memory=True)
    return prepared.bind(prepared.setup.algorithm(act=act, gradients=gradients))


def main(total_steps: int = 300_000) -> None:
    for value_loss in ("squared", Huber(delta=2.0)):
        _, history = jaxrl.run(make_critic("CartPole-v1", value_loss=value_loss), total_steps, quiet=True)
        print(f"{value_loss}: mean return {history['evaluation/episodic_return'][-1].mean():.1f}")
    agent = make_critic("CartPole-v1", value_loss="huber")
    train = jax.jit(jax.vmap(lambda delta: jaxrl.make_train(agent, total_steps)(jax.random.key(0), {"huber_delta": delta})))
    states, _ = train(jnp.array([0.5, 1.0, 2.0]))
    print(f"side by side, delta is {states.learner.hyperparams.huber_delta}")


if __name__ == "__main__":
    main()
