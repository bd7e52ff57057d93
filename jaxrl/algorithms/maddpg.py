"""Multi-agent DDPG (Lowe et al. 2017) as settings of DDPG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.ddpg import make_ddpg
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.types import Agent, EnvLike

SETTINGS: dict[str, Any] = {
    "joint_actions": True,
    "model": {"hidden_sizes": (64, 64)},
    "critic": {"hidden_sizes": (64, 64), "privileged": True},
    "num_envs": 4,
    "rollout_length": 25,
    "batch_size": 1024,
    "buffer_size": 1_000_000,
    "replay_ratio": 10.24,
    "learning_rate": 1e-2,
    "actor_learning_rate": 1e-2,
    "gamma": 0.95,
    "tau": 0.01,
    "max_grad_norm": 0.5,
}
"""Settings of the paper's code for particle environments: an update per 100 steps, of 1,024 rows."""


@suggest_arguments
def make_maddpg(env: EnvLike, **keywords: Any) -> Agent:
    """Multi-agent DDPG (MADDPG, Lowe et al. 2017): DDPG whose critics see the state and the actions of all agents. Agents and
    their specs are those of ``make_ddpg``. Agents share their parameters, unless ``jaxrl.models.per_agent`` makes the networks.

    Args:
      env: as for ``make_ddpg``, with several agents and a ``privileged_state`` in its observations. The wrapper ``central_state``
        adds one: ``"jaxrl:Spread|agent_id|central_state"``.
      keywords: keywords of ``make_ddpg``, which override those in ``jaxrl.algorithms.maddpg.SETTINGS``. Arguments of the networks
        are added to its own.
    """
    for name in ("model", "critic"):
        if isinstance(keywords.get(name), Mapping):
            keywords[name] = {**SETTINGS[name], **keywords[name]}
    return make_ddpg(env, **{**SETTINGS, **keywords})
