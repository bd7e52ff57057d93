"""Gymnasium's environments behind jaxrl's learning rules: a ``HostEnv`` is spaces and a function that opens a batch.

python examples/gymnasium_env.py
jaxrl train ppo --env "examples.gymnasium_env:make_gymnasium?id=Acrobot-v1" --seeds 2
"""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import jaxrl
from jaxrl.types import HostStep


class Running:
    """A batch of environments that run, as ``HostEnv.open`` returns it."""

    def __init__(self, envs: gymnasium.vector.VectorEnv, seeds: list[int]) -> None:
        self.envs, self.close = envs, envs.close
        self.seeds: list[int] | None = seeds

    def reset(self) -> Any:
        obs, _ = self.envs.reset(seed=self.seeds)
        self.seeds = None  # a second reset goes on with the same streams, instead of repeating their first episodes
        return narrow_arrays(obs)

    def step(self, action: Any) -> HostStep:
        # An environment that ended one step before resets now: it ignores its action and gives reward 0 and no end.
        obs, reward, terminated, truncated, _ = self.envs.step(action)
        return HostStep(narrow_arrays(obs), reward, terminated, truncated)


def narrow_arrays(obs: Any) -> Any:
    """Arrays in 32 bits, as JAX holds them."""
    return jax.tree.map(lambda x: x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False), obs)


def narrow_space(space: spaces.Space) -> spaces.Space:
    """The space of what ``narrow_arrays`` gives."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: narrow_space(part) for name, part in space.items()})
    if isinstance(space, spaces.Box):
        dtype = jax.dtypes.canonicalize_dtype(space.dtype)
        return spaces.Box(space.low.astype(dtype), space.high.astype(dtype), dtype=dtype.type)
    return space


def make_gymnasium(id: str, **options: Any) -> jaxrl.HostEnv:
    """``make_env("examples.gymnasium_env:make_gymnasium?id=Acrobot-v1")``; options are those of ``gymnasium.make``."""
    with gymnasium.make(id, **options) as one:
        observation_space, action_space = narrow_space(one.observation_space), narrow_space(one.action_space)

    def open(num_envs: int, seed: int, first_id: int = 0) -> Running:
        envs = gymnasium.make_vec(
            id,
            num_envs,
            vectorization_mode="sync",  # one after the other, in this process
            vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP, "copy": True},
            **options,
        )
        # Environment i draws from (seed, i): the same in a batch of any size, and other seeds have no environment in common.
        ids = range(first_id, first_id + num_envs)
        seeds = [int(np.random.SeedSequence([seed, i]).generate_state(1)[0]) for i in ids]
        return Running(envs, seeds)

    return jaxrl.HostEnv(open, observation_space, action_space, options, name=f"gymnasium:{id}")


def main(env: str = "CartPole-v1", total_steps: int = 40_000) -> None:
    host = make_gymnasium(env)
    jaxrl.check_env(host)  # says everything that is wrong, and how to mend it
    _, history = jaxrl.run(jaxrl.make_ppo(host), total_steps, seeds=1)
    print(f"PPO on gymnasium's {env}: return {history['evaluation/episodic_return'][-1].mean():.1f}")


if __name__ == "__main__":
    main()
