"""The score experiments: what is trained, for how long, on how many seeds, and what must come out."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxrl.presets import PRESETS


class Experiment(NamedTuple):
    """A named score: greedy returns at the end of training."""

    name: str
    builder: str
    """``make_…`` of jaxrl."""
    env: str
    settings: dict[str, Any]
    """Keywords of the builder."""
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


def of_preset(name: str, threshold: float, passing_seeds: int | None = None) -> Experiment:
    """What a preset claims, measured: its settings have their home in ``jaxrl.presets``."""
    preset = PRESETS[name]
    builder = f"make_{preset.algorithm}"
    sizes = (preset.total_steps, preset.num_seeds)
    return Experiment(name, builder, preset.env, preset.settings, *sizes, threshold, passing_seeds)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        of_preset("ppo-cartpole", 490),
        of_preset("ppo-pendulum", -250),
        of_preset("dqn-cartpole", 475, passing_seeds=15),
        Experiment("dqn-cartpole-long", "make_dqn", "CartPole-v1", {}, 500_000, 8, 475),
    )
}
