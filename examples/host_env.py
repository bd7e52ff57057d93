"""A simulator outside of JAX: a ``HostEnv`` is two spaces and a function that opens a batch of environments.

python examples/host_env.py
jaxrl train ppo --env examples.host_env:make_balance --seeds 2
"""

from typing import Any

import numpy as np
from gymnasium import spaces

import jaxrl
from jaxrl.types import HostStep

LIMIT = 100


class Balance:
    """Masses on unstable ground, pushed to the left or to the right: a running batch, as ``HostEnv.open`` returns it."""

    def __init__(self, num_envs: int, seed: int, first_id: int = 0) -> None:
        # Environment i draws from (seed, i): the same numbers in a batch of any size, and different ones for every seed.
        self.streams = [np.random.default_rng([seed, first_id + i]) for i in range(num_envs)]
        self.state = np.zeros((num_envs, 2), np.float32)  # position, velocity
        self.time = np.zeros(num_envs, int)
        self.done = np.ones(num_envs, bool)

    def begin(self, which: Any) -> None:
        for i in np.flatnonzero(which):
            self.state[i] = self.streams[i].uniform(-0.1, 0.1, 2)
        self.time[which] = 0

    def reset(self) -> Any:
        self.begin(np.ones_like(self.done))
        self.done = np.zeros_like(self.done)
        return self.state.copy()  # a copy: later steps write into this array

    def step(self, action: Any) -> HostStep:
        fresh = self.done  # these ended in the previous step and reset now, ignoring their action
        position, velocity = self.state.T
        velocity = velocity + 0.1 * position + 0.02 * (2 * np.asarray(action) - 1)
        self.state = np.stack([position + 0.2 * velocity, velocity], axis=1).astype(np.float32)
        self.time += 1
        self.begin(fresh)
        fell = np.abs(self.state[:, 0]) > 1
        late = self.time >= LIMIT
        self.done = fell | late
        return HostStep(self.state.copy(), np.where(fresh, 0, 1).astype(np.float32), fell, late)

    def close(self) -> None:
        pass


def make_balance() -> jaxrl.HostEnv:
    seen = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return jaxrl.HostEnv(Balance, seen, spaces.Discrete(2), name="examples.host_env:make_balance", max_episode_steps=LIMIT)


def main(total_steps: int = 40_000) -> None:
    env = make_balance()
    jaxrl.check_env(env, steps=100)  # reports everything that is wrong, and how to fix it
    _, history = jaxrl.run(jaxrl.make_ppo(env), total_steps, seeds=1)
    print(f"PPO on masses to balance: return {history['evaluation/episodic_return'][-1].mean():.1f} of {LIMIT}")


if __name__ == "__main__":
    main()
