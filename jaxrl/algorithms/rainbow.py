"""Rainbow (Hessel et al. 2018) as settings of DQN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.common.q_heads import C51
from jaxrl.algorithms.dqn import make_dqn
from jaxrl.exploration.options import Noisy
from jaxrl.replay.options import Prioritized
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.types import Agent, EnvLike

SETTINGS: dict[str, Any] = {
    "head": C51(),
    "model": {"dueling": True},
    "noise": Noisy(),
    "epsilon_start": 0.0,
    "epsilon_end": 0.0,
    "n_step": 3,
    "replay": Prioritized(exponent=0.5),
    "learning_rate": 1e-3,
    "adam_eps": 1.5e-4,
}
"""Settings of Rainbow that differ from DQN's defaults, which include double Q-learning. The learning rate suits the cross-entropy
loss; Adam's ε is the paper's."""


@suggest_arguments
def make_rainbow(env: EnvLike, **keywords: Any) -> Agent:
    """Rainbow (Hessel et al. 2018, table 1): DQN with C51, dueling streams, noisy layers without ε, 3-step returns, prioritized
    replay and double Q-learning. Agents and their specs are those of ``make_dqn``.

    Args:
      env: as for ``make_dqn``.
      keywords: keywords of ``make_dqn``, which override those in ``jaxrl.algorithms.rainbow.SETTINGS``; arguments of the network
        are added to its own. The atoms, ``head=C51(v_min=…, v_max=…)``, must enclose the discounted returns of the environment;
        the default, ±10, suits Atari's clipped rewards.
    """
    if isinstance(keywords.get("model"), Mapping):
        keywords["model"] = {**SETTINGS["model"], **keywords["model"]}
    return make_dqn(env, **{**SETTINGS, **keywords})
