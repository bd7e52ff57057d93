"""A custom environment: two pure functions, two spaces, and parameters that are arrays.

python examples/custom_env.py                                       # check it, then train on it for a few seconds
jaxrl train ppo --env examples.custom_env:make_drift --seeds 8      # elsewhere its id is 'module:function'
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import jaxrl


class Params(NamedTuple):
    push: float = 0.3
    wind: float = 0.2


def reset(key, params):
    position = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
    return position, position  # the state (any pytree) and its observation


def step(key, position, action, params):
    wind = params.wind * jax.random.normal(key, (1,))
    position = position + params.push * (action - 1) + wind  # 0: left, 1: stay, 2: right
    lost = jnp.abs(position[0]) > 2.0
    return position, jaxrl.TimeStep(
        obs=position,
        reward=1.0 - jnp.abs(position[0]),
        terminated=lost,
        truncated=jnp.asarray(False),  # for time limits inside step; jaxrl enforces max_episode_steps
    )


def make_drift(wind: float = 0.2) -> jaxrl.Env:
    """Keep a drifting point near 0. ``make_env("examples.custom_env:make_drift?wind=0.5")`` has more wind."""
    line = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    return jaxrl.Env(reset, step, line, spaces.Discrete(3), Params(wind=wind), name="drift", max_episode_steps=50)


def main() -> None:
    env = make_drift()
    jaxrl.check_env(env)  # reports everything that is wrong, and how to fix it
    ppo = jaxrl.make_ppo(env, num_envs=8, rollout_length=64)
    train = jax.jit(jaxrl.make_train(ppo, total_steps=50_000))
    _, metrics = train(jax.random.key(0))
    total, episodes = (np.asarray(x) for x in metrics["charts/episodic_return"])  # one entry per iteration
    for name, part in (("first", slice(None, 10)), ("last", slice(-10, None))):
        print(f"{name} 10 iterations: mean return {total[part].sum() / episodes[part].sum():.1f} of at most 50")


if __name__ == "__main__":
    main()
