"""A custom algorithm: REINFORCE with a baseline.

Its functions take an ``AlgorithmSetup`` as first argument: the model, the optimizer and everything else that is fixed before
tracing. ``prepare`` checks the builder's arguments, and ``bind`` returns an Agent. The agent then works with jit, with vmap over
seeds and hyperparameters, with ``jaxrl.run`` (logs, resumable checkpoints), and with environments in JAX or on the host.

The entry ``REINFORCE`` makes it available on the command line, with a flag for each setting:

python examples/custom_algorithm.py
jaxrl train examples.custom_algorithm:REINFORCE --env CartPole-v1 --learning-rate 1e-3
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from gymnasium import spaces

import jaxrl
from jaxrl import models, returns
from jaxrl.algorithms import Entry, Paper
from jaxrl.builder.config import RolloutConfig
from jaxrl.builder.prepare import prepare
from jaxrl.settings import hyperparams, validation

REINFORCE = Entry(
    "reinforce",
    "Reinforce",
    "policy gradient with a baseline",
    actions=("Discrete", "Box"),
    family="on-policy",
    memory=True,
    paper=Paper("Williams", 1992, "doi:10.1007/BF00992696"),
    module=__name__,
)


@dataclass(frozen=True)
class ReinforceConfig(RolloutConfig):
    """Static settings. Each field is a keyword of the builder and a flag; its type gives its range."""

    num_envs: validation.Count = 16
    rollout_length: validation.Count = 128


class ReinforceHyperparams(NamedTuple):
    """Hyperparameters. They are keywords and flags too, but stored as arrays, so vmap can run over them."""

    learning_rate: hyperparams.LearningRate = 3e-3
    gamma: hyperparams.Gamma = 0.99
    max_grad_norm: hyperparams.MaxGradNorm = 0.5
    total_steps: hyperparams.TotalSteps = 0.0
    """Rows per seed of the whole run; the learning rate falls to 0 over them. 0: not known yet."""


def act(setup, policy, carry, inputs, env_id, key, *, explore):
    carry, output = setup.model.apply(policy.params, carry, inputs)
    drawn = setup.sample(output.policy, key, env_id) if explore else output.policy.mode()
    return carry, setup.to_environment(drawn), {"drawn": drawn}


def update(setup, learner, rollout):
    hp, mean = setup.current(learner), setup.valid_mean(rollout.valid)

    def loss(params):
        _, output = setup.model.unroll(params, rollout.carry, rollout.inputs)
        reached = jax.lax.stop_gradient(output.value[1:])  # inputs[t + 1] is always the observation that row t reached
        # λ = 1: the sum of all rewards, bootstrapped from the value of the last observation where an episode was truncated.
        target = returns.lambda_returns(rollout.reward, *returns.discounts(rollout, hp.gamma), reached, rollout.valid)
        value = output.value[:-1]
        log_prob = jax.tree.map(lambda x: x[:-1], output.policy).log_prob(rollout.extras["drawn"])
        total = mean(-log_prob * jax.lax.stop_gradient(target - value) + 0.5 * (value - target) ** 2)
        return total, {"losses/loss": total}

    return setup.descend(learner, hp, loss)


def make_reinforce(env, *, model=None, optimizer=None, schedules=None, axis_name=None, **settings: Any) -> jaxrl.Agent:
    parts = {"model": model, "optimizer": optimizer, "schedules": schedules, "axis_name": axis_name}
    kinds = (spaces.Discrete, spaces.Box)
    prepared = prepare(
        make_reinforce, env, ReinforceConfig, ReinforceHyperparams, settings, kinds, models.actor_critic, parts, memory=True
    )
    return prepared.bind(prepared.setup.algorithm(act=act, update=update))


def main(total_steps: int = 400_000, seeds: int = 2) -> None:
    _, history = jaxrl.run(make_reinforce("CartPole-v1"), total_steps, seeds=seeds)
    print(f"REINFORCE on CartPole: return {history['evaluation/episodic_return'][-1].mean():.1f} over {seeds} seeds")


if __name__ == "__main__":
    main()
