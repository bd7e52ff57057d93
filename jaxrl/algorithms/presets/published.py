"""Presets of publications, which were not measured here."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.presets.preset import Preset

PPO_ATARI = {
    "num_envs": 8,
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate": 2.5e-4,
    "surrogate": {"eps": 0.1, "value_loss": True},
}
DQN_ATARI = {
    "num_envs": 8,  # for speed; one in the original
    "rollout_length": 4,
    "batch_size": 32,
    "replay_ratio": 8,
    "buffer_size": 100_000,  # 2.8 GB; the original has a million
    "learning_starts": 80_000,
    "target_update_interval": 250,  # updates: one in 4 steps
    "n_step": 1,
    "bootstrap": "greedy",
    "learning_rate": 1e-4,
    "adam_eps": 1e-8,
    "epsilon_end": 0.01,
    "exploration_steps": 1_000_000,
    "anneal": False,
}
IMPALA_ATARI = {"model": {"encoder": "impala"}, "num_envs": 32, "rollout_length": 20, "learning_rate": 6e-4}
"""The paper's settings, except for the optimiser: Adam, with the gradient of a mean loss."""
PPO_MUJOCO = {
    "num_envs": 1,
    "rollout_length": 2048,
    "num_minibatches": 32,
    "learning_rate": 3e-4,
    "ent_coef": 0.0,
    "surrogate": {"value_loss": True},
    "normalize_observations": True,
    "normalize_rewards": True,
}
OFF_POLICY_MUJOCO = {"buffer_size": 1_000_000, "anneal": False}
"""The original has one environment. This has the default number, with as many updates per step."""
SAC_MUJOCO = {**OFF_POLICY_MUJOCO, "learning_starts": 5_000, "actor_learning_rate": 3e-4}
TD3_MUJOCO = {**OFF_POLICY_MUJOCO, "learning_starts": 25_000, "learning_rate": 3e-4, "actor_learning_rate": 3e-4}

Published = dict[str, tuple[dict[str, Any], str]]
"""Algorithm -> settings and their source."""
CLEANRL = "CleanRL (Huang et al. 2022),"
ATARI: Published = {
    "ppo": (PPO_ATARI, f"{CLEANRL} ppo_atari_envpool.py"),
    "dqn": (DQN_ATARI, f"{CLEANRL} dqn_atari.py with a smaller buffer and more environments"),
    "impala": (IMPALA_ATARI, "Espeholt et al. 2018, table G.1, with Adam"),
}
MUJOCO: Published = {
    "ppo": (PPO_MUJOCO, f"{CLEANRL} ppo_continuous_action.py"),
    "sac": (SAC_MUJOCO, f"{CLEANRL} sac_continuous_action.py with more environments"),
    "td3": (TD3_MUJOCO, f"{CLEANRL} td3_continuous_action.py with more environments"),
}


def _published(domain: str, env: str, names: tuple[str, ...], published: Published, total_steps: int) -> list[Preset]:
    """Return a preset, not measured here, for each algorithm and environment.

    Args:
      env: environment id, with {} in place of the name.
    """
    return [
        Preset(f"{algorithm}-{domain}-{name.lower()}", algorithm, env.format(name), settings, total_steps, 1, published=source)
        for algorithm, (settings, source) in published.items()
        for name in names
    ]


PUBLISHED = (
    *_published("atari", "envpool:{}-v5?episodic_life=True&reward_clip=True", ("Pong", "Breakout"), ATARI, 10_000_000),
    *_published("mujoco", "envpool:{}-v4", ("Hopper", "Walker2d"), MUJOCO, 1_000_000),
)
