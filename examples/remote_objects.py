"""Search for a policy at random, with objects in other processes that play episodes.

Each candidate is a linear policy for CartPole. The simulators are remote objects: on this machine, or with engine="ray" on a
cluster. What they return are futures of the standard library.

Run: python examples/remote_objects.py
"""

import os

import gymnasium
import numpy as np
from rich.progress import track

from jaxrl import remote


class Simulator:
    """An environment, which each process opens once."""

    def __init__(self, seed: int) -> None:
        self.env = gymnasium.make("CartPole-v1")
        self.env.reset(seed=seed)

    def play(self, weights: np.ndarray, episodes: int) -> float:
        """Return the mean return of the policy that pushes to the right where ``weights @ obs > 0``."""
        total = 0.0
        for _ in range(episodes):
            obs, _ = self.env.reset()
            done = False
            while not done:
                obs, reward, terminated, truncated, _ = self.env.step(int(weights @ obs > 0))
                total, done = total + float(reward), terminated or truncated
        return total / episodes


def main(candidates: int = 200, episodes: int = 10, engine: str = "local") -> None:
    weights = np.random.default_rng(0).normal(size=(candidates, 4))
    with remote.open(engine) as cluster:
        simulators = [cluster.start(Simulator, seed, restarts=2) for seed in range(os.cpu_count() or 1)]
        futures = {}
        for index, each in enumerate(weights):
            futures[simulators[index % len(simulators)].call("play", each, episodes)] = index
        scores = np.zeros(candidates)
        for future in track(remote.as_completed(futures), "Playing", total=candidates):
            scores[futures[future]] = future.result()
    print(f"best of {candidates} policies: {scores.max():.1f} of 500, mean of all: {scores.mean():.1f}")


if __name__ == "__main__":
    main()
