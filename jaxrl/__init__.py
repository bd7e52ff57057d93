"""jaxrl: JAX-native, functional reinforcement learning.

ppo = jaxrl.make_ppo("CartPole-v1")
train = jaxrl.make_train(ppo, total_steps=500_000)
states, metrics = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 8))
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl.registry import ALGORITHMS, known_as
from jaxrl.settings.aliases import hint_or
from jaxrl.settings.doors import DOORS
from jaxrl.version import __version__ as __version__

if TYPE_CHECKING:
    from jaxrl.algorithms.a2c import make_a2c as make_a2c
    from jaxrl.algorithms.alphazero import make_alphazero as make_alphazero
    from jaxrl.algorithms.awr import make_awr as make_awr
    from jaxrl.algorithms.bc import make_bc as make_bc
    from jaxrl.algorithms.coma import make_coma
    from jaxrl.algorithms.cql import make_cql
    from jaxrl.algorithms.crossq import make_crossq as make_crossq
    from jaxrl.algorithms.dagger import make_dagger as make_dagger
    from jaxrl.algorithms.ddpg import make_ddpg as make_ddpg
    from jaxrl.algorithms.dqn import make_dqn as make_dqn
    from jaxrl.algorithms.dt import make_dt as make_dt
    from jaxrl.algorithms.es import make_es as make_es
    from jaxrl.algorithms.impala import make_impala as make_impala
    from jaxrl.algorithms.iql import make_iql as make_iql
    from jaxrl.algorithms.maddpg import make_maddpg
    from jaxrl.algorithms.mappo import make_mappo
    from jaxrl.algorithms.mpc import make_mpc as make_mpc
    from jaxrl.algorithms.mpo import make_mpo as make_mpo
    from jaxrl.algorithms.muzero import make_muzero as make_muzero
    from jaxrl.algorithms.ppo import make_ppo as make_ppo
    from jaxrl.algorithms.pqn import make_pqn as make_pqn
    from jaxrl.algorithms.qdagger import make_qdagger as make_qdagger
    from jaxrl.algorithms.qmix import make_qmix
    from jaxrl.algorithms.r2d2 import make_r2d2 as make_r2d2
    from jaxrl.algorithms.rainbow import make_rainbow
    from jaxrl.algorithms.reinforce import make_reinforce as make_reinforce
    from jaxrl.algorithms.sac import make_sac as make_sac
    from jaxrl.algorithms.td3 import make_td3 as make_td3
    from jaxrl.algorithms.vmpo import make_vmpo as make_vmpo
    from jaxrl.builder.spec import build
    from jaxrl.envs import list_envs, make_env
    from jaxrl.runtime.actors.scheme import Scheme
    from jaxrl.runtime.arena.arena import arena
    from jaxrl.runtime.checkpoint.replay_files import load_replay, save_replay
    from jaxrl.runtime.checkpoint.restore import restore
    from jaxrl.runtime.checkpoint.store import save
    from jaxrl.runtime.datasets.files import load_dataset, save_dataset
    from jaxrl.runtime.evaluation.check_env import check_env
    from jaxrl.runtime.evaluation.evaluate import evaluate
    from jaxrl.runtime.evaluation.fitted_q_evaluation import fitted_q_evaluation
    from jaxrl.runtime.evaluation.load_policy import load_policy
    from jaxrl.runtime.run import resume, run
    from jaxrl.runtime.search.search import search
    from jaxrl.training import make_train
    from jaxrl.types import Agent, AgentState, Algorithm, Env, HostEnv, Model, Policy, Rollout, StepInput, TimeStep

_HOMES = {
    "check_env": "jaxrl.runtime.evaluation.check_env",
    "list_envs": "jaxrl.envs",
    "make_env": "jaxrl.envs",
    "load_dataset": "jaxrl.runtime.datasets.files",
    "save_dataset": "jaxrl.runtime.datasets.files",
    "load_replay": "jaxrl.runtime.checkpoint.replay_files",
    "Scheme": "jaxrl.runtime.actors.scheme",
    "restore": "jaxrl.runtime.checkpoint.restore",
    "save": "jaxrl.runtime.checkpoint.store",
    "save_replay": "jaxrl.runtime.checkpoint.replay_files",
    "arena": "jaxrl.runtime.arena.arena",
    "evaluate": "jaxrl.runtime.evaluation.evaluate",
    "fitted_q_evaluation": "jaxrl.runtime.evaluation.fitted_q_evaluation",
    "make_coma": "jaxrl.algorithms.coma",
    "make_cql": "jaxrl.algorithms.cql",
    "make_maddpg": "jaxrl.algorithms.maddpg",
    "make_mappo": "jaxrl.algorithms.mappo",
    "make_qmix": "jaxrl.algorithms.qmix",
    "make_rainbow": "jaxrl.algorithms.rainbow",
    "load_policy": "jaxrl.runtime.evaluation.load_policy",
    "resume": "jaxrl.runtime.run",
    "run": "jaxrl.runtime.run",
    "search": "jaxrl.runtime.search.search",
    "build": "jaxrl.builder.spec",
    "make_train": "jaxrl.training",
    **dict.fromkeys(
        ("Agent", "AgentState", "Algorithm", "Env", "HostEnv", "Model", "Policy", "Rollout", "StepInput", "TimeStep"),
        "jaxrl.types",
    ),
}
"""Public name -> module, imported on first use so that ``import jaxrl`` stays light. Builders are in the registry."""


def _homes() -> dict[str, str]:
    return _HOMES | {entry.builder: entry.module for entry in ALGORITHMS.values()}


__all__ = [
    "Agent",
    "AgentState",
    "Algorithm",
    "Env",
    "HostEnv",
    "Model",
    "Policy",
    "Rollout",
    "Scheme",
    "StepInput",
    "TimeStep",
    "arena",
    "build",
    "check_env",
    "evaluate",
    "fitted_q_evaluation",
    "list_envs",
    "load_dataset",
    "load_policy",
    "load_replay",
    "make_coma",
    "make_cql",
    "make_env",
    "make_maddpg",
    "make_mappo",
    "make_qmix",
    "make_rainbow",
    "make_train",
    "restore",
    "resume",
    "run",
    "save",
    "save_dataset",
    "save_replay",
    "search",
]
__all__ += [entry.builder for entry in ALGORITHMS.values()]


_ROOMS = ("envs", "evolution", "metrics", "models", "options", "parallel", "pbt", "remote", "replay", "returns", "types")
"""Modules available as attributes after ``import jaxrl``, as in ``jaxrl.parallel.initialize()``."""

DOORS["jaxrl.parallel.initialize"] = "jaxrl.runtime.distributed.start"
DOORS["jaxrl.evolution.maximize"] = "jaxrl.runtime.evolution.maximize"
for _name in ("init", "ask", "tell", "export", "status", "member_parameters"):
    DOORS[f"jaxrl.evolution.{_name}"] = "jaxrl.runtime.evolution.product"
DOORS["jaxrl.run"] = _HOMES["run"]


_ELSEWHERE = {
    "learn": "run",
    "load": "load_policy",
    "load_model": "load_policy",
    "predict": "load_policy",
    "evaluate_policy": "evaluate",
    "make": "make_env",
    "make_vec": "make_env",
    "make_vec_env": "make_env",
}
"""Functions of other libraries -> their equivalents here."""


def _hint(name: str, homes: Mapping[str, str]) -> str:
    """Return a suggestion for the unknown ``name``, or an empty string."""
    plain = name.lower().removesuffix("config").removeprefix("make_")
    algorithm, flags = known_as(plain) or (plain, "")
    meant = [_ELSEWHERE.get(name.lower(), ""), f"make_{plain}", f"make_{algorithm}"]
    near = next((x for x in [*meant, *difflib.get_close_matches(name, homes, 1, 0.8)] if x in homes), None)
    settings = f" {name} is its settings {flags}, written here as command-line flags." if flags and near == meant[-1] else ""
    return f" Did you mean {near!r}?{settings}" if near else ""


def __getattr__(name: str) -> Any:
    homes = _homes()
    if name in _ROOMS:
        return importlib.import_module(f"jaxrl.{name}")
    if name not in homes:
        said = hint_or(_hint(name, homes), f"Public names: {', '.join(sorted(homes))}")
        raise AttributeError(f"module 'jaxrl' has no attribute {name!r}.{said}")
    value = getattr(importlib.import_module(homes[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
