"""A slow simulator in plain Python, as a gymnasium environment, stepped by eight worker processes.

python examples/python_simulator.py
jaxrl train impala --env gymnasium:examples.python_simulator:House --scheme impala --num-workers 8 --num-envs 8 --out runs/house
"""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import jaxrl

WANTED = 21.0
"""Target temperature of the room, in degrees."""


class House(gymnasium.Env):
    """A room with a heater, over a winter's day in steps of 15 minutes. Each degree off the target costs 1, and heating 0.1."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)  # off, on

    def __init__(self, seconds: float = 0.003) -> None:
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.hour, self.mildness = 0.0, self.np_random.uniform(-5, 5)
        self.room, self.walls = self.np_random.uniform(14, 24, size=2)
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)  # stands for the wait for an external simulator
        for _ in range(15):  # minutes
            outside = self.mildness + 5 * np.sin((self.hour - 9) * np.pi / 12)
            to_walls, lost = 0.05 * (self.room - self.walls), 0.002 * (self.walls - outside)
            self.room += 0.3 * action - to_walls
            self.walls += 0.3 * to_walls - lost
            self.hour += 1 / 60
        reward = -abs(self.room - WANTED) - 0.1 * action
        return self.seen(), float(reward), False, self.hour > 23.99, {}

    def seen(self) -> Any:
        warm = np.array([self.room - WANTED, self.walls - WANTED, self.mildness])
        return np.append(warm / 5, np.sin((self.hour - 9) * np.pi / 12)).astype(np.float32)


def main(total_steps: int = 30_000, num_workers: int = 8) -> None:
    agent = jaxrl.make_impala(f"gymnasium:{__name__}:House", num_envs=8, rollout_length=32, learning_rate=3e-3)
    _, alone = jaxrl.run(agent, total_steps // 10, eval_every=0, quiet=True)
    _, shared = jaxrl.run(agent, total_steps, scheme="impala", num_workers=num_workers, eval_every=0)

    def steps_per_second(history: dict[str, np.ndarray]) -> float:
        return agent.num_envs * agent.rollout_length * float(np.median(history["charts/updates_per_second"]))

    for name, history in (("in this process", alone), (f"{num_workers} workers", shared)):
        print(f"{name}: {steps_per_second(history):.0f} steps per second")
    returns = shared["charts/episodic_return"].ravel()
    returns = returns[np.isfinite(returns)]
    print(f"return of a day: {returns[:3].mean():.0f} at first, {returns[-3:].mean():.0f} after {total_steps:,} steps")


if __name__ == "__main__":
    main()
