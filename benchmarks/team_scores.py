"""Experiments with several agents. A score is the mean over agents of their returns, as everywhere in jaxrl."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment

SPREAD, CENTRAL_SPREAD = "jaxrl:Spread|agent_id", "jaxrl:Spread|agent_id|central_state"
SPEAKER, CENTRAL_SPEAKER = "jaxrl:SpeakerListener|agent_id", "jaxrl:SpeakerListener|agent_id|central_state"
RIDDLE, CENTRAL_RIDDLE = "jaxrl:SwitchRiddle|agent_id", "jaxrl:SwitchRiddle|agent_id|central_state"
SPREAD_BAR = -55 / 3
"""PARL's MADDPG reaches −55 as the sum over three agents, the metric of PettingZoo."""
PARTICLES: dict[str, Any] = {"num_envs": 32, "rollout_length": 50}
IPPO: dict[str, Any] = {**PARTICLES, "gamma": 0.95, "num_epochs": 4, "num_minibatches": 4}
PQN_VDN: dict[str, Any] = {**PARTICLES, "gamma": 0.95, "decomposition": "vdn", "model": {"hidden_sizes": (128, 128)}}


RIDDLES: dict[str, Any] = {
    "num_envs": 32,
    "rollout_length": 7,
    "sequence_length": 7,
    "replay_ratio": 8,
    "learning_starts": 2_000,
    "exploration_steps": 100_000,
}
"""A row for the reset follows the six days."""
MEMORYLESS: dict[str, Any] = {"num_envs": 32, "rollout_length": 28, "decomposition": "vdn"}
BEST_RIDDLE = 540 / 729
"""Best mean return of agents that remember what they saw (``tests/envs/backends/test_team_games.py``)."""


TEAM_SCORES = (
    Experiment("ippo-spread", "make_ppo", SPREAD, IPPO, 2_000_000, 8, SPREAD_BAR),
    Experiment("mappo-spread", "make_mappo", CENTRAL_SPREAD, PARTICLES, 2_000_000, 8, SPREAD_BAR),
    Experiment("pqnvdn-spread", "make_pqn", SPREAD, PQN_VDN, 2_000_000, 8, SPREAD_BAR),
    Experiment("ippo-speakerlistener", "make_ppo", SPEAKER, IPPO, 2_000_000, 8, None),
    Experiment("mappo-speakerlistener", "make_mappo", CENTRAL_SPEAKER, PARTICLES, 2_000_000, 8, -12.5),
    Experiment("maddpg-speakerlistener", "make_maddpg", CENTRAL_SPEAKER, {}, 625_000, 8, -28.5),
    Experiment("qmix-switchriddle", "make_qmix", CENTRAL_RIDDLE, RIDDLES, 400_000, 8, 0.9 * BEST_RIDDLE),
    Experiment("vdn-switchriddle", "make_qmix", RIDDLE, {**RIDDLES, "decomposition": "vdn"}, 400_000, 8, 0.9 * BEST_RIDDLE),
    Experiment("pqnvdn-switchriddle-memoryless", "make_pqn", RIDDLE, MEMORYLESS, 400_000, 8, 0.5 * BEST_RIDDLE, at_most=True),
)
