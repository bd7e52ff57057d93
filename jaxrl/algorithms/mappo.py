"""Multi-agent PPO (Yu et al. 2022) as settings of PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.ppo import make_ppo
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.types import Agent, EnvLike

SETTINGS: dict[str, Any] = {
    "model": {"critic": "privileged"},
    "normalize_values": True,
    "surrogate": {"name": "clip", "value_loss": True},
    "num_epochs": 10,
    "num_minibatches": 1,
    "learning_rate": 7e-4,
    "max_grad_norm": 10.0,
}
"""Settings of the paper for particle environments that differ from PPO's defaults."""


@suggest_arguments
def make_mappo(env: EnvLike, **keywords: Any) -> Agent:
    """Multi-agent PPO (MAPPO, Yu et al. 2022): PPO with parameters that all agents share, whose critic sees the state of all of
    them and learns normalised targets. Agents and their specs are those of ``make_ppo``.

    Args:
      env: as for ``make_ppo``, with a ``privileged_state`` in its observations. The wrapper ``central_state`` adds one:
        ``"jaxrl:Spread|central_state"``.
      keywords: keywords of ``make_ppo``, which override those in ``jaxrl.algorithms.mappo.SETTINGS``. Arguments of the network
        are added to its own.
    """
    if isinstance(keywords.get("model"), Mapping):
        keywords["model"] = {**SETTINGS["model"], **keywords["model"]}
    return make_ppo(env, **{**SETTINGS, **keywords})
