"""Contracts: the types that the parts of jaxrl exchange.

Each type is a NamedTuple of arrays or a NamedTuple of pure functions, typed by the Protocols below. Shapes are written
``f32[B]``. ``B`` is the number of environments and ``T`` the number of rows in a rollout; ``[]`` is one environment, unbatched.
With several agents in an environment, each is a lane, so ``B`` is the number of environments times that of agents.

Rows follow the NEXT_STEP convention of Gymnasium and envpool. When an episode ends at row t, ``inputs[t + 1].obs`` is the true
last observation. Row t + 1 is the reset row: its action is ignored, its reward is 0 and ``valid`` is False. Then
``inputs[t + 2].is_first`` is True. So the value after a truncated step is always ``V(inputs[t + 1])``.
"""

from __future__ import annotations

from jaxrl.types.agents import ActorState, Agent, AgentState, EpisodeStatistics, InitAgentFn, StepAgentFn
from jaxrl.types.algorithms import ActFn, Algorithm, LearnerState, Policy, Simulator
from jaxrl.types.arrays import Array, Key, PyTree
from jaxrl.types.data import Episodes, Rollout, StepInput
from jaxrl.types.environments import (
    CompiledEnvs,
    ComputeRewardFn,
    Env,
    EnvLike,
    HostEnv,
    HostEnvs,
    HostStep,
    OpenFn,
    RenderFn,
    ResetFn,
    StepFn,
    Symmetries,
    TimeStep,
)
from jaxrl.types.metrics import Max, Mean, Metrics, Min
from jaxrl.types.models import ApplyFn, InitialCarryFn, InitModelFn, Model, TrainFn, Variables

__all__ = [
    "ActFn",
    "ActorState",
    "Agent",
    "AgentState",
    "Algorithm",
    "ApplyFn",
    "Array",
    "CompiledEnvs",
    "ComputeRewardFn",
    "Env",
    "EnvLike",
    "EpisodeStatistics",
    "Episodes",
    "HostEnv",
    "HostEnvs",
    "HostStep",
    "InitAgentFn",
    "InitModelFn",
    "InitialCarryFn",
    "Key",
    "LearnerState",
    "Max",
    "Mean",
    "Metrics",
    "Min",
    "Model",
    "OpenFn",
    "Policy",
    "PyTree",
    "RenderFn",
    "ResetFn",
    "Rollout",
    "Simulator",
    "StepAgentFn",
    "StepFn",
    "StepInput",
    "Symmetries",
    "TimeStep",
    "TrainFn",
    "Variables",
]
