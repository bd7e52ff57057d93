"""Presets with a score that was measured for them."""

from __future__ import annotations

from jaxrl.algorithms.presets.preset import Preset, Score

PENDULUM = {
    "num_envs": 32,
    "rollout_length": 128,
    "num_epochs": 10,
    "num_minibatches": 16,
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "ent_coef": 0.0,
    "normalize_observations": True,
    "normalize_rewards": True,
}

CHAIN = "MemoryChain-bsuite?memory_length=20"
"""A memory task: the agent must report one bit 20 rows after observing it."""
CHAIN_SETTINGS = {"model": {"core": "gru", "use_previous": False}, "num_envs": 64}
"""The previous action is not an input: it could carry the bit in place of the recurrent core."""
HIDDEN = "CartPole-v1|select_observation(0,2)"
"""CartPole with the positions of cart and pole but without their velocities."""
HIDDEN_SETTINGS = {"model": {"core": "gru"}, "num_envs": 64, "normalize_rewards": True}

SMALL = {"model": {"hidden_sizes": (64, 64)}}
"""Small networks, sufficient for low-dimensional observations; the default for continuous control is 256 units."""
SWING = "Pendulum-v1|select_observation(0,1)"
"""Pendulum without its velocity."""
SAC_SWING = {"model": {"core": "gru", "hidden_sizes": (64,)}, "batch_size": 32}
TD3_PENDULUM = {**SMALL, "gamma": 0.98, "tau": 0.01, "exploration_noise": 0.2}
CROSSQ_PENDULUM = {**SMALL, "critic": {"hidden_sizes": (128, 128)}}
SAC_MOUNTAINCAR = {**SMALL, "hold_noise": 50, "learning_starts": 5000}
"""Exploration reaches the hill only if each action is held for many rows."""
SAC_CARTPOLE = {
    **SMALL,
    "batch_size": 64,
    "replay_ratio": 64,
    "n_step": 3,
    "temperature": {"initial": 0.1, "discrete_entropy": 0.05},
    "tau": 0.01,
    "learning_rate": 3e-3,
    "adam_eps": 1e-3,
}
BIT_FLIP = {
    "hindsight": "future",
    "gamma": 0.8,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "adam_eps": 1e-5,
    "epsilon_end": 0.05,
}

R2D2_HIDDEN = {
    "batch_size": 16,
    "n_step": 5,
    "burn_in": 8,
    "replay": {"exponent": 0.6},
    "learning_rate": 3e-3,
    "exploration_steps": 10_000,
    "epsilon_end": 0.1,
}
R2D2_CHAIN = {
    "model": CHAIN_SETTINGS["model"],
    "replay_ratio": 48,
    "sequence_length": 48,
    "replay": {"exponent": 0.6},
    "rescale": "none",
    "learning_rate": 3e-3,
    "adam_eps": 1e-5,
    "exploration_steps": 10_000,
    "epsilon_end": 0.1,
}
"""Sequences are long enough to hold a whole episode, wherever they begin."""

MINATAR = {
    "model": {"encoder": "flat", "activation": "relu"},  # trains several times as many steps per second as convolutions
    "num_envs": 64,
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 8,
    "learning_rate": 5e-3,
    "anneal": True,
}

ASTERIX = MINATAR | {"model": {"activation": "relu"}, "learning_rate": 2.5e-3}
"""The network for boards, because an MLP does not exceed a return of 12."""

VMPO_PENDULUM = {
    "num_envs": 16,
    "num_epochs": 10,
    "gamma": 0.95,
    "normalize_rewards": True,
    "mean_kl": 0.03,
    "deviation_kl": 1e-3,
}
PQN_PENDULUM = {
    "model": {"hidden_sizes": (64, 64)},
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "q_lambda": 0.65,
    "exploration_steps": 200_000,
}
PQN_MINATAR = {
    "model": MINATAR["model"],
    "num_envs": 128,
    "rollout_length": 32,
    "num_epochs": 2,
    "num_minibatches": 32,
    "q_lambda": 0.65,
    "learning_rate": 2e-3,
    "anneal": True,
    "epsilon_end": 0.05,
    "exploration_steps": 200_000,
}
"""Sizes, λ and ε of purejaxql (Gallici et al. 2024), with a higher learning rate, no convolutions, and a fifth of the rows."""

HALFCHEETAH = {
    "num_envs": 8,
    "rollout_length": 256,
    "num_epochs": 10,
    "num_minibatches": 32,
    "learning_rate": 3e-4,
    "anneal": True,
    "ent_coef": 0.0,
    "normalize_observations": True,
    "normalize_rewards": True,
}
"""The usual settings for PPO on MuJoCo: 2,048 rows per iteration, 10 epochs of 32 minibatches. CleanRL reports 1,442 ± 46 with
them."""

MOUNTAINCAR = {"hold_noise": 16, "normalize_observations": True}

CPU = "2 cores of an AMD EPYC"
CPU_25_17 = f"{CPU} (family 25, model 17)"

ES_PENDULUM = {
    "episodes": 8,
    "model": {"hidden_sizes": (32, 32)},
    "strategy": {"name": "ars", "elite_share": 0.25},
    "sigma": 0.3,
    "learning_rate": 0.2,
    "weight_decay": 0.0,
}
LINEAR = {"model": {"hidden_sizes": ()}, "weight_decay": 0.0}
ES_SWIMMER = {"members": 16, **LINEAR}
ARS_HALFCHEETAH = {
    **LINEAR,
    "strategy": {"name": "ars", "elite_share": 0.125},
    "sigma": 0.03,
    "learning_rate": 0.0012,
    "anneal": True,
}
"""N = 32, b = 4, ν = 0.03 and α = 0.02 of Mania et al. 2018."""

MEASURED = (
    Preset("ppo-cartpole", "ppo", "CartPole-v1", {}, 500_000, 16, Score(500.0, 500.0, 500.0, 25, CPU), 495),
    Preset("ppo-pendulum", "ppo", "Pendulum-v1", PENDULUM, 2_000_000, 8, Score(-156.8, -163.2, -149.6, 183, CPU), -180),
    Preset(
        "ppo-halfcheetah",
        "ppo",
        "envpool:HalfCheetah-v4",
        HALFCHEETAH,
        1_000_000,
        3,
        Score(1750.2, 1709.2, 1787.8, 532, CPU),
        1442,
    ),
    Preset("ppo-acrobot", "ppo", "Acrobot-v1", {}, 500_000, 8, Score(-77.6, -80.8, -74.5, 13, CPU), -86),
    Preset(
        "ppo-mountaincar",
        "ppo",
        "MountainCarContinuous-v0",
        MOUNTAINCAR,
        1_000_000,
        8,
        Score(93.7, 93.6, 93.8, 23, CPU),
        90,
        7,
    ),
    Preset(
        "ppo-minatar-spaceinvaders",
        "ppo",
        "SpaceInvaders-MinAtar",
        MINATAR,
        10_000_000,
        8,
        Score(184.5, 180.8, 187.4, 4122, CPU),
        131,
    ),
    Preset("ppo-minatar-breakout", "ppo", "Breakout-MinAtar", MINATAR, 10_000_000, 8, Score(64.9, 49.2, 79.0, 1565, CPU), 28),
    Preset("ppo-minatar-freeway", "ppo", "Freeway-MinAtar", MINATAR, 10_000_000, 4, Score(59.5, 58.3, 60.3, 608, CPU), 58),
    Preset("ppo-minatar-asterix", "ppo", "Asterix-MinAtar", ASTERIX, 10_000_000, 4, Score(64.0, 63.3, 64.6, 1466, CPU), 15),
    Preset("ppo-memorychain", "ppo", CHAIN, CHAIN_SETTINGS, 500_000, 8, Score(1.0, 1.0, 1.0, 676, CPU), 0.9),
    Preset("ppo-cartpole-hidden", "ppo", HIDDEN, HIDDEN_SETTINGS, 500_000, 8, Score(500.0, 500.0, 500.0, 561, CPU), 450),
    Preset("a2c-cartpole", "a2c", "CartPole-v1", {}, 500_000, 16, Score(500.0, 500.0, 500.0, 5, CPU), 475),
    Preset("impala-cartpole", "impala", "CartPole-v1", {}, 500_000, 16, Score(500.0, 500.0, 500.0, 4, CPU), 475),
    Preset("reinforce-cartpole", "reinforce", "CartPole-v1", {}, 500_000, 16, Score(499.4, 498.8, 499.9, 7, CPU), 475),
    Preset("vmpo-cartpole", "vmpo", "CartPole-v1", {}, 100_000, 8, Score(488.5, 465.4, 500.0, 7, CPU_25_17), 475),
    Preset("vmpo-pendulum", "vmpo", "Pendulum-v1", VMPO_PENDULUM, 500_000, 8, Score(-197.4, -228.0, -171.8, 57, CPU_25_17), -220),
    Preset("dqn-cartpole", "dqn", "CartPole-v1", {}, 100_000, 16, Score(499.3, 498.1, 500.0, 17, CPU), 475, 15),
    Preset("dqn-acrobot", "dqn", "Acrobot-v1", {}, 200_000, 8, Score(-78.2, -80.0, -76.4, 49, CPU), -90),
    Preset("dqn-bitflip", "dqn", "jaxrl:BitFlip?n=15", BIT_FLIP, 300_000, 8, Score(0.99, 0.98, 1.00, 996, CPU), 0.9),
    Preset("pqn-cartpole", "pqn", "CartPole-v1", {}, 500_000, 8, Score(500.0, 500.0, 500.0, 10, CPU), 490),
    Preset(
        "pqn-memorychain",
        "pqn",
        CHAIN,
        {**CHAIN_SETTINGS, "num_minibatches": 8},
        500_000,
        8,
        Score(1.0, 1.0, 1.0, 48, CPU_25_17),
        0.95,
    ),
    Preset("pqn-minatar-breakout", "pqn", "Breakout-MinAtar", PQN_MINATAR, 2_000_000, 4, Score(39.2, 31.9, 52.8, 84, CPU), 10),
    Preset(
        "pqn-minatar-spaceinvaders",
        "pqn",
        "SpaceInvaders-MinAtar",
        PQN_MINATAR,
        2_000_000,
        4,
        Score(130.5, 106.0, 144.5, 159, CPU),
        45,
    ),
    Preset("r2d2-memorychain", "r2d2", CHAIN, R2D2_CHAIN, 60_000, 8, Score(1.0, 1.0, 1.0, 169, CPU), 0.9),
    Preset("r2d2-cartpole-hidden", "r2d2", HIDDEN, R2D2_HIDDEN, 150_000, 8, Score(475.4, 444.4, 498.9, 424, CPU), 450),
    Preset("pqn-pendulum", "pqn", "Pendulum-v1", PQN_PENDULUM, 500_000, 8, Score(-157.0, -161.2, -153.0, 95, CPU_25_17), -200),
    Preset("sac-pendulum", "sac", "Pendulum-v1", SMALL, 20_000, 8, Score(-151.6, -157.6, -145.9, 160, CPU), -160),
    Preset("sac-pendulum-hidden", "sac", SWING, SAC_SWING, 60_000, 8, Score(-184.0, -210.6, -165.1, 3344, CPU_25_17), -250),
    Preset("crossq-pendulum", "crossq", "Pendulum-v1", CROSSQ_PENDULUM, 9_984, 8, Score(-146.0, -152.3, -139.8, 196, CPU), -160),
    Preset("mpo-pendulum", "mpo", "Pendulum-v1", SMALL, 20_000, 8, Score(-152.0, -157.1, -146.9, 594, CPU_25_17), -160),
    Preset("awr-cartpole", "awr", "CartPole-v1", {}, 100_000, 8, Score(500.0, 500.0, 500.0, 47, CPU_25_17), 475),
    Preset("td3-pendulum", "td3", "Pendulum-v1", TD3_PENDULUM, 20_000, 8, Score(-152.6, -157.5, -147.6, 176, CPU), -160),
    Preset("ddpg-pendulum", "ddpg", "Pendulum-v1", SMALL, 20_000, 8, Score(-150.8, -156.1, -145.0, 145, CPU), -200),
    Preset(
        "sac-mountaincar",
        "sac",
        "MountainCarContinuous-v0",
        SAC_MOUNTAINCAR,
        30_000,
        8,
        Score(94.2, 94.1, 94.3, 135, CPU),
        90,
        7,
    ),
    Preset(
        "sac-inverted-pendulum",
        "sac",
        "brax:inverted_pendulum",
        SMALL,
        30_000,
        3,
        Score(1000.0, 1000.0, 1000.0, 35, CPU),
        900,
    ),
    Preset(
        "sac-halfcheetah",
        "sac",
        "envpool:HalfCheetah-v4",
        {"learning_starts": 5000},
        300_000,
        3,
        Score(8885.2, 7182.1, 9843.2, 4960, CPU),
        4500,
    ),
    Preset("sac-cartpole", "sac", "CartPole-v1", SAC_CARTPOLE, 200_000, 8, Score(500.0, 500.0, 500.0, 62, CPU), 475, 7),
    Preset(
        "es-cartpole",
        "es",
        "CartPole-v1",
        {"max_env_steps": 960_000},
        2_000_000,
        16,
        Score(500.0, 500.0, 500.0, 9, CPU_25_17),
        499.9,
        16,
    ),
    Preset("es-pendulum", "es", "Pendulum-v1", ES_PENDULUM, 20_480_000, 8, Score(-154.2, -162.5, -147.5, 13, CPU_25_17), -200),
    Preset("es-acrobot", "es", "Acrobot-v1", {}, 6_000_000, 8, Score(-82.5, -84.2, -80.9, 14, CPU_25_17), -85),
    Preset("es-swimmer", "es", "envpool:Swimmer-v4", ES_SWIMMER, 2_000_000, 5, Score(358.0, 357.3, 358.7, 993, CPU_25_17), 340),
    Preset(
        "es-halfcheetah",
        "es",
        "envpool:HalfCheetah-v4",
        ARS_HALFCHEETAH,
        12_500_000,
        5,
        Score(4496.8, 4204.4, 4789.2, 3954, CPU_25_17),
        4046,
    ),
)
