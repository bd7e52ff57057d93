"""The score experiments: builder and settings, length, number of seeds, and required score."""

from __future__ import annotations

from typing import Any

from benchmarks.atari_scores import ATARI_SCORES
from benchmarks.experiment import Experiment
from benchmarks.game_scores import GAME_SCORES, GAMES, ONE_PLY
from benchmarks.minatar_scores import MINATAR_SCORES
from benchmarks.mujoco_scores import MUJOCO_SCORES
from benchmarks.offline_scores import BARS, CONSERVATIVE, Bar
from benchmarks.planning_scores import PLANNING_SCORES
from benchmarks.switches import CARTPOLE_RETURNS, SWITCHES
from benchmarks.team_scores import TEAM_SCORES
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.presets import CHAIN, HIDDEN, PRESETS, Preset
from jaxrl.algorithms.presets.settings import SAC_SWING, SMALL, SWING, TD3_PENDULUM

FURTHER: dict[str, dict[str, Any]] = {
    "cql-pendulum-mixed": {"most_above": CONSERVATIVE},
    "dt-cartpole-mixed": {"least_correlation": 0.9},
}
"""Further requirements on presets."""


def of_preset(preset: Preset) -> Experiment:
    """Return the experiment that measures a preset's score."""
    assert preset.threshold is not None, preset.name
    measured = Experiment(
        preset.name,
        ALGORITHMS[preset.algorithm].builder,
        preset.env,
        preset.settings,
        preset.total_steps,
        preset.num_seeds,
        preset.threshold,
        preset.passing_seeds,
        preset.run.get("eval_episodes", 128),
        data=preset.dataset,
    )
    if preset.against:
        measured = measured._replace(episodes=GAMES, against=preset.against, draw_points=1.0, further_opponents=ONE_PLY)
    return measured._replace(**FURTHER.get(preset.name, {}))


def control(preset: Preset, name: str, without: str, threshold: float) -> Experiment:
    """Return a preset's experiment with the setting ``without`` at its default, to measure that setting's effect."""
    settings = {setting: value for setting, value in preset.settings.items() if setting != without}
    measured = of_preset(preset)._replace(name=f"{preset.name}-{name}", settings=settings)
    return measured._replace(threshold=threshold, at_most=True)


def on_cartpole(name: str, settings: dict[str, Any], builder: str = "make_dqn") -> Experiment:
    """Return the experiment of a DQN variant on CartPole, at the length used for comparison."""
    return Experiment(name, builder, "CartPole-v1", settings, 500_000, 8, 475)


def in_envpool(algorithm: str, total_steps: int = 500_000, num_seeds: int = 4) -> Experiment:
    """Return the experiment of an algorithm's defaults on envpool's CartPole."""
    env, run = "envpool:CartPole-v1", {"sampler": "xla"}
    return Experiment(f"{algorithm}-cartpole-envpool", f"make_{algorithm}", env, {}, total_steps, num_seeds, 475, run=run)


def by_workers(algorithm: str, scheme: str, total_steps: int = 500_000, num_seeds: int = 4) -> Experiment:
    """Return the experiment of ``in_envpool`` with rollouts from two worker processes."""
    experiment = in_envpool(algorithm, total_steps, num_seeds)
    return experiment._replace(name=f"{algorithm}-cartpole-workers", run={"scheme": scheme, "num_workers": 2})


def from_data(bar: Bar) -> Experiment:
    """Return the experiment of an algorithm that learns from a dataset alone."""
    task = bar.task
    length = bar.updates or task.updates, task.num_seeds, bar.threshold
    measured = Experiment(bar.name, bar.builder, task.env, bar.settings, *length, at_most=bar.at_most, data=bar.data)
    return measured._replace(most_above=bar.most_above)


D4PG = {
    **SMALL,
    "critics": {"name": "atoms", "num_atoms": 101, "v_min": -500, "v_max": 0},
    "n_step": 5,
    "replay": "prioritized",
}
"""Atoms span the discounted returns of Pendulum."""


TD3_SWING = {**TD3_PENDULUM, **SAC_SWING, "batch_size": 16, "gamma": 0.95, "policy_delay": 1, "exploration_noise": 0.3}
"""With sequences of 32 rows there are few updates, so the policy takes part in each. TD3's page has the returns with other γ."""


LONG_CHAIN = "MemoryChain-bsuite?memory_length=100"
GATED = {"core": "attention", "context": 104, "attention_layers": 1, "core_size": 32, "gated": True}


def on_long_chain(name: str, model: dict[str, Any], total_steps: int, required: float, **how: Any) -> Experiment:
    """Return the experiment of PPO with a core on a chain of 100 rows."""
    settings = {"model": {**model, "use_previous": False}, "num_envs": 64, "rollout_length": 128}
    settings |= {} if model is GATED else {"learning_rate": 2e-3}
    return Experiment(f"ppo-memorychain-100-{name}", "make_ppo", LONG_CHAIN, settings, total_steps, 8, required, **how)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        *(of_preset(preset) for preset in PRESETS.values() if preset.threshold is not None),
        control(PRESETS["ppo-memorychain"], "memoryless", "model", 0.5),
        control(PRESETS["ppo-cartpole-hidden"], "memoryless", "model", 250),
        on_long_chain("attention", GATED, 300_000, 0.9),
        on_long_chain("s5", {"core": "s5"}, 400_000, 0.9),
        on_long_chain("gru", {"core": "gru"}, 400_000, 0.5, at_most=True),
        control(PRESETS["dqn-bitflip"], "control", "hindsight", 0.05),
        Experiment("d4pg-pendulum", "make_ddpg", "Pendulum-v1", D4PG, 20_000, 8, -160),
        Experiment("sac-pendulum-hidden-memoryless", "make_sac", SWING, SMALL, 60_000, 8, -800, at_most=True),
        Experiment("td3-pendulum-hidden", "make_td3", SWING, TD3_SWING, 60_000, 5, -250),
        Experiment("dqn-memorychain-memoryless", "make_dqn", CHAIN, {}, 60_000, 8, 0.5, at_most=True),
        Experiment("dqn-cartpole-hidden-memoryless", "make_dqn", HIDDEN, {}, 150_000, 8, 250, at_most=True),
        on_cartpole("dqn-cartpole-long", {}),
        *(on_cartpole(f"dqn-cartpole-{name}", variant.settings) for name, variant in SWITCHES.items()),
        on_cartpole("rainbow-cartpole", CARTPOLE_RETURNS, "make_rainbow"),
        *MINATAR_SCORES,
        *(in_envpool(algorithm) for algorithm in ("ppo", "impala")),
        Experiment("ppo-cartpole-drift", "make_ppo", "CartPole-v1", {"surrogate": "drift"}, 500_000, 16, 495),
        Experiment(
            "ppo-pendulum-noise",
            "make_ppo",
            "Pendulum-v1",
            {**PRESETS["ppo-pendulum"].settings, "mean_noise": 0.3},
            2_000_000,
            8,
            -180,
        ),
        in_envpool("a2c", num_seeds=16),
        in_envpool("dqn", 100_000),
        by_workers("ppo", "a2c"),
        by_workers("a2c", "a2c", num_seeds=16),
        by_workers("impala", "impala"),
        by_workers("dqn", "apex", 100_000),
        Experiment("ppo-acrobot-gymnasium", "make_ppo", "gymnasium:Acrobot-v1", {}, 500_000, 4, -100),
        *ATARI_SCORES,
        *map(from_data, BARS),
        *MUJOCO_SCORES,
        *TEAM_SCORES,
        *GAME_SCORES,
        *PLANNING_SCORES,
    )
}
