"""Settings of presets, and the processors on which their scores were measured."""

from __future__ import annotations

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
