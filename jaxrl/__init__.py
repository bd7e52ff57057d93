"""jaxrl: JAX-native, functional reinforcement learning.

ppo = jaxrl.make_ppo("CartPole-v1")
train = jaxrl.make_train(ppo, total_steps=500_000)
states, metrics = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 8))
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from jaxrl.algorithms import ALGORITHMS

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jaxrl.algorithms.dqn import make_dqn
    from jaxrl.algorithms.ppo import make_ppo
    from jaxrl.envs import list_envs, make_env
    from jaxrl.runtime.checkpoint.store import restore, save
    from jaxrl.runtime.play.checking import check_env
    from jaxrl.runtime.play.evaluation import evaluate
    from jaxrl.runtime.play.policy import load_policy
    from jaxrl.runtime.run import resume, run
    from jaxrl.spec import build
    from jaxrl.training import make_train
    from jaxrl.types import Agent, AgentState, Algorithm, Env, HostEnv, Model, Policy, Rollout, StepInput, TimeStep

_HOMES = (
    {entry.builder: entry.module for entry in ALGORITHMS.values()}
    | {
        "check_env": "jaxrl.runtime.play.checking",
        "list_envs": "jaxrl.envs",
        "make_env": "jaxrl.envs",
        "restore": "jaxrl.runtime.checkpoint.store",
        "save": "jaxrl.runtime.checkpoint.store",
        "evaluate": "jaxrl.runtime.play.evaluation",
        "load_policy": "jaxrl.runtime.play.policy",
        "resume": "jaxrl.runtime.run",
        "run": "jaxrl.runtime.run",
        "build": "jaxrl.spec",
        "make_train": "jaxrl.training",
    }
    | dict.fromkeys(
        ("Agent", "AgentState", "Algorithm", "Env", "HostEnv", "Model", "Policy", "Rollout", "StepInput", "TimeStep"),
        "jaxrl.types",
    )
)
"""Where each public name lives; imported on first use, so that ``import jaxrl`` stays light."""

__all__ = [
    "Agent",
    "AgentState",
    "Algorithm",
    "Env",
    "HostEnv",
    "Model",
    "Policy",
    "Rollout",
    "StepInput",
    "TimeStep",
    "build",
    "check_env",
    "evaluate",
    "list_envs",
    "load_policy",
    "make_dqn",
    "make_env",
    "make_ppo",
    "make_train",
    "restore",
    "resume",
    "run",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        near = [make for make in (f"make_{name.lower()}", *difflib.get_close_matches(name, __all__, 1, 0.75)) if make in __all__]
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module 'jaxrl' has no attribute {name!r}.{hint} Public names: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
