"""Races to a score: which task, with which settings on each side. Standard library only."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.cases import PPO, SAC

EVALUATIONS = 50
"""Evaluations of a training, evenly spaced."""
EPISODES = 32
"""Greedy episodes of an evaluation."""


class Race(NamedTuple):
    """A training that ends with the first evaluation whose mean over seeds reaches a score."""

    name: str
    title: str
    score: float
    total_steps: int
    """Steps per seed at which a side gives up."""
    sides: dict[str, dict[str, Any]]
    """Side -> its algorithm, environment and settings, with its names."""
    num_seeds: int = 1


REJAX_PPO = {"clip_eps": PPO["clip_eps"], "num_steps": PPO["rollout_length"], "num_envs": 5} | {
    name: PPO[name]
    for name in ("num_epochs", "num_minibatches", "learning_rate", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")
}
REJAX_SAC = {"num_epochs": 1, "target_update_freq": 1, "fill_buffer": SAC["learning_starts"], "polyak": 1 - SAC["tau"]} | {
    name: SAC[name] for name in ("num_envs", "buffer_size", "batch_size", "learning_rate", "gamma", "max_grad_norm")
}
REJAX_PQN = {"num_envs": 128, "num_steps": 32, "num_epochs": 2, "num_minibatches": 32, "td_lambda": 0.65, "learning_rate": 5e-4}
"""Rejax's configuration files for CartPole and Pendulum, as in the cases of speed; for Breakout the values of jaxrl's preset."""
SBX_PPO = {
    "n_envs": 8,
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "ent_coef": 0.0,
    "learning_rate": 1e-3,
}
"""RL Zoo's for CartPole, without their linear schedules."""
SBX_SAC = {"n_envs": 1, "learning_rate": 1e-3}
"""RL Zoo's for Pendulum."""

CARTPOLE = Race(
    "cartpole",
    "475 on CartPole",
    475.0,
    500_000,
    {
        "jaxrl": {"preset": "ppo-cartpole"},
        "rejax": {"algorithm": "ppo", "env": "CartPole-v1", "settings": REJAX_PPO},
        "sbx": {"library": "sbx", "algorithm": "PPO", "env": "CartPole-v1", "settings": SBX_PPO},
        "sb3": {"library": "stable_baselines3", "algorithm": "PPO", "env": "CartPole-v1", "settings": SBX_PPO},
    },
)
PENDULUM = Race(
    "pendulum",
    "−200 on Pendulum",
    -200.0,
    40_000,
    {
        "jaxrl": {"preset": "sac-pendulum"},
        "rejax": {"algorithm": "sac", "env": "Pendulum-v1", "settings": REJAX_SAC},
        "sbx": {"library": "sbx", "algorithm": "SAC", "env": "Pendulum-v1", "settings": SBX_SAC},
        "sb3": {"library": "stable_baselines3", "algorithm": "SAC", "env": "Pendulum-v1", "settings": SBX_SAC},
    },
)
BREAKOUT = Race(
    "breakout",
    "20 on MinAtar's Breakout",
    20.0,
    2_000_000,
    {
        "jaxrl": {"preset": "pqn-minatar-breakout"},
        "rejax": {"algorithm": "pqn", "env": "Breakout-MinAtar", "settings": REJAX_PQN},
    },
)
MANY = 128
"""Seeds at once; SBX and Stable-Baselines3 train one at a time."""


def at_once(race: Race, total_steps: int) -> Race:
    """Return the race of ``MANY`` seeds in one program."""
    sides = {side: how for side, how in race.sides.items() if "library" not in how}
    title = f"{race.title}, mean of {MANY} seeds"
    return race._replace(name=f"{race.name}-{MANY}", title=title, num_seeds=MANY, sides=sides, total_steps=total_steps)


RACES = (CARTPOLE, PENDULUM, BREAKOUT, at_once(CARTPOLE, 300_000))
