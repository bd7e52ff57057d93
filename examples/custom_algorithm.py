"""A learning rule of your own on the contracts: REINFORCE with a baseline, in one screen.

It knows spaces and no environment; ``bind`` makes an Agent of it, and everything else follows: jit, vmap over seeds and
hyperparameters, ``jaxrl.run`` with logs and resumable checkpoints, environments in JAX or on the host.

``REINFORCE`` tells the command line of it, which makes flags of the settings:

python examples/custom_algorithm.py
jaxrl train examples.custom_algorithm:REINFORCE --env CartPole-v1 --learning-rate 1e-3
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxrl
from jaxrl.agent import bind
from jaxrl.algorithms import Entry, Paper
from jaxrl.config import Count, Positive, Unit, split_settings
from jaxrl.distributions import sample_each
from jaxrl.metrics import scalars
from jaxrl.models import actor_critic
from jaxrl.optimize import clipped_adam
from jaxrl.returns import discounts, lambda_returns
from jaxrl.rollout import fold_each
from jaxrl.spaces import example_input
from jaxrl.spec import agent_spec

REINFORCE = Entry(
    "reinforce",
    "Reinforce",
    "policy gradient with a baseline",
    actions=("Discrete", "Box"),
    family="on-policy",
    memory=False,
    paper=Paper("Williams", 1992, "doi:10.1007/BF00992696"),
    module=__name__,
)


@dataclass(frozen=True)
class ReinforceConfig:
    """Structure: each field is a keyword of the builder, and a flag; its type is its range."""

    num_envs: Count = 16
    """Environments stepped side by side."""
    rollout_length: Count = 128
    """Rows that each environment contributes to an iteration."""

    def check(self) -> None:
        """Sizes that do not fit together would be refused here."""


class ReinforceHyperparams(NamedTuple):
    """Data: keywords and flags too, and vmap may run over them."""

    learning_rate: Positive = 3e-3
    """Adam's step size."""
    gamma: Unit = 0.99
    """Discount per step."""
    max_grad_norm: Positive = 0.5
    """Clip the gradient to this global norm."""


class State(NamedTuple):
    """Every learner has these fields; a rule adds what else it keeps."""

    params: Any
    opt_state: Any
    hyperparams: ReinforceHyperparams
    statistics: tuple
    key: jax.Array
    version: jax.Array


def make_reinforce(env: str, **settings: Any) -> jaxrl.Agent:
    config, hyperparams = split_settings("make_reinforce", ReinforceConfig, ReinforceHyperparams, settings)
    bound = jaxrl.make_env(env)
    model = actor_critic(bound.observation_space, bound.action_space)

    def init(key, hyperparams):
        params = model.init(key, example_input(bound.observation_space, bound.action_space))
        return State(params, clipped_adam(hyperparams).init(params), hyperparams, (), key, jnp.zeros((), jnp.int32))

    def policy(learner):
        return jaxrl.Policy(learner.params, (), (), learner.version)

    def act(policy, carry, inputs, env_id, key, *, explore):
        carry, output = model.apply(policy.params, carry, inputs)
        action = sample_each(output.policy, fold_each(key, env_id)) if explore else output.policy.mode()
        return carry, action, {}

    def update(learner, rollout):
        hp = learner.hyperparams

        def loss(params):
            _, output = model.unroll(params, rollout.carry, rollout.inputs)
            reached = jax.lax.stop_gradient(output.value[1:])  # inputs[t + 1] is always what row t reached
            # All rewards; where an episode was cut short, what follows is worth the value of the observation that it reached.
            returns = lambda_returns(rollout.reward, *discounts(rollout, hp.gamma), reached, rollout.valid)
            value = output.value[:-1]
            log_prob = jax.tree.map(lambda x: x[:-1], output.policy).log_prob(rollout.action)
            advantage = jax.lax.stop_gradient(returns - value)
            rows = -log_prob * advantage + 0.5 * (value - returns) ** 2
            return jnp.where(rollout.valid, rows, 0.0).sum() / rollout.valid.sum()

        value, gradient = jax.value_and_grad(loss)(learner.params)
        updates, opt_state = clipped_adam(hp).update(gradient, learner.opt_state)
        params = jax.tree.map(jnp.add, learner.params, updates)
        learner = learner._replace(params=params, opt_state=opt_state, version=learner.version + 1)
        return learner, scalars({"losses/loss": value})

    algorithm = jaxrl.Algorithm(init, policy, act, update, model.initial_carry)
    return bind(
        algorithm,
        bound,
        num_envs=config.num_envs,
        rollout_length=config.rollout_length,
        hyperparams=hyperparams,
        spec=agent_spec(make_reinforce, env, config, hyperparams, {}),
    )


def main(total_steps: int = 400_000, seeds: int = 2) -> None:
    _, history = jaxrl.run(make_reinforce("CartPole-v1"), total_steps, seeds=seeds)
    print(f"REINFORCE on CartPole: return {history['evaluation/episodic_return'][-1].mean():.1f} over {seeds} seeds")


if __name__ == "__main__":
    main()
