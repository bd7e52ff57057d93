"""Experiments on Atari: PPO and DQN with published settings for ten million frames of Breakout and Pong. PPO with memory on Pong
where one frame hides how the ball moves.
"""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment
from jaxrl.algorithms.presets import PRESETS

PONG: dict[str, Any] = {
    "model": {"encoder": "mnih2013"},
    "num_envs": 8,
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 8,
    "learning_rate": 1e-3,
    "anneal": True,
}
"""PPO's settings for Atari with a higher learning rate, since there are only a fifth as many steps."""
SMALL_PONG = "envpool:Pong-v5?img_height=42&img_width=42"
"""Pong with a quarter of the pixels, which a CPU can train on in an hour."""
HIDDEN_PONG = f"{SMALL_PONG}&stack_num=1"
"""Pong in which the observation is one frame, so that velocities are hidden."""
FRAMES = 10_000_000
"""Frames of a published curve that are trained; each step repeats its action for 4 frames."""


HOW: dict[str, Any] = {"episodes": 32, "last_episodes": 100, "run": {"sampler": "xla"}}
"""Scores are training returns, since greedy policies of Atari's games can get stuck."""


def on_pong(name: str, env: str, model: dict[str, Any], threshold: float | None, *, at_most: bool = False) -> Experiment:
    """Return an experiment on small Pong, with one seed: PPO's training returns at the end of two million steps."""
    settings = PONG | {"model": PONG["model"] | model}
    return Experiment(name, "make_ppo", env, settings, 2_000_000, 1, threshold, at_most=at_most, **HOW)


def published(algorithm: str, game: str) -> Experiment:
    """Return the experiment of a preset with published settings, stopped after ``FRAMES``, for comparison. The learning rate is
    constant, which it nearly is in this part of a run of full length."""
    preset = PRESETS[f"{algorithm}-atari-{game}"]
    settings = preset.settings | {"anneal": False}
    return Experiment(f"{preset.name}-10m", f"make_{algorithm}", preset.env, settings, FRAMES // 4, 1, None, **HOW)


ATARI_SCORES = (
    on_pong("ppo-pong", SMALL_PONG, {}, -10),
    on_pong("ppo-pong-hidden", HIDDEN_PONG, {"core": "gru"}, -10),
    on_pong("ppo-pong-hidden-memoryless", HIDDEN_PONG, {}, -10, at_most=True),
    published("ppo", "breakout"),
    published("ppo", "pong"),
    published("dqn", "breakout"),
)
