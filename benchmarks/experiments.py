"""The score experiments: what is trained, for how long, on how many seeds, and what must come out."""

from __future__ import annotations

from typing import Any, NamedTuple


class Experiment(NamedTuple):
    """A named score: greedy returns at the end of training."""

    name: str
    builder: str
    """``make_…`` of jaxrl."""
    env: str
    settings: dict[str, Any]
    """Keywords of the builder; it gets ``total_steps`` too where ``anneal`` is among them."""
    total_steps: int
    """Per seed."""
    num_seeds: int
    threshold: float
    passing_seeds: int | None = None
    """How many seeds must reach the threshold; None: their mean must."""
    episodes: int = 128
    """Greedy episodes per seed."""

    @property
    def asked(self) -> str:
        """What must pass, in words."""
        who = "mean" if self.passing_seeds is None else f"{self.passing_seeds} of {self.num_seeds} seeds"
        return f"{who} ≥ {self.threshold:g}"

    def passes(self, scores: list[float]) -> bool:
        if self.passing_seeds is None:
            return sum(scores) / len(scores) >= self.threshold
        return sum(score >= self.threshold for score in scores) >= self.passing_seeds


PENDULUM = {
    "num_envs": 16,
    "rollout_length": 128,
    "num_epochs": 10,
    "num_minibatches": 16,
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "ent_coef": 0.0,
    "normalize_observations": True,
    "normalize_rewards": True,
    "anneal": True,
}

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("ppo-cartpole", "make_ppo", "CartPole-v1", {"anneal": True}, 500_000, 16, 490),
        Experiment("ppo-pendulum", "make_ppo", "Pendulum-v1", PENDULUM, 2_000_000, 8, -250),
        Experiment("dqn-cartpole", "make_dqn", "CartPole-v1", {"anneal": True}, 500_000, 8, 475),
    )
}
