"""PPO with demonstrations: an extra loss clones the actions of episodes that were played by another policy.

The reward of MountainCar is −1 per step until the goal, which random actions hardly ever reach, so PPO alone learns nothing.
The term is that of DAPG (Rajeswaran et al. 2018) with a constant weight.

python examples/demonstrations.py
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxrl
from jaxrl.models import actor_critic
from jaxrl.rollout.autoreset import first_input

STEPS = 200  # the limit of MountainCar


def demonstrate(env: jaxrl.Env, key: Any) -> tuple[Any, Any, Any]:
    """Return observations, actions and the valid rows of one episode: push in the direction in which the car moves."""

    def step(carry: Any, key: Any) -> Any:
        state, obs, done = carry
        action = jnp.where(obs[1] < 0, 0, 2)
        state, reached = env.step(key, state, action, env.params)
        return (state, reached.obs, done | reached.terminated), (obs, action, ~done)

    first, key = jax.random.split(key)
    start = (*env.reset(first, env.params), jnp.zeros((), bool))
    return jax.lax.scan(step, start, jax.random.split(key, STEPS))[1]


def cloning_loss(model: jaxrl.Model, env: jaxrl.Env, key: Any, episodes: int, weight: float) -> Any:
    obs, action, valid = jax.vmap(lambda key: demonstrate(env, key))(jax.random.split(key, episodes))
    obs, action, valid = (x.reshape(-1, *x.shape[2:]) for x in (obs, action, valid))
    inputs = first_input(obs, env.action_space, len(obs))

    def loss(params: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        policy = model.apply(params, (), inputs)[1].policy
        mean = jnp.where(valid, -policy.log_prob(action), 0.0).sum() / valid.sum()
        return weight * mean, {"demonstration_loss": mean}

    return loss


def main(total_steps: int = 150_000, num_seeds: int = 4) -> None:
    env = jaxrl.make_env("MountainCar-v0")
    model = actor_critic(env.observation_space, env.action_space)
    clone = cloning_loss(model, env, jax.random.key(0), episodes=4, weight=0.1)
    for name, extra in (("PPO", ()), ("with 4 demonstrations", (clone,))):
        ppo = jaxrl.make_ppo(env, model=model, extra_losses=extra, num_envs=16, rollout_length=128)
        train = jaxrl.make_train(ppo, total_steps, metrics_every=10)
        states, _ = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(1), num_seeds))
        evaluate = jax.vmap(partial(jaxrl.evaluate, ppo, key=jax.random.key(2), num_episodes=32))
        score = jax.jit(evaluate)(states).episodic_return.mean()
        print(f"{name}: mean return {score:.0f} over {num_seeds} seeds, at worst {-STEPS}")


if __name__ == "__main__":
    main()
