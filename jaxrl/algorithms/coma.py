"""COMA (Foerster et al. 2018) as settings of A2C."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.a2c import make_a2c
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.types import Agent, EnvLike

SETTINGS: dict[str, Any] = {"counterfactual": True, "gae_lambda": 0.8, "max_grad_norm": 10.0}
"""Settings of the paper that differ from A2C's defaults."""


@suggest_arguments
def make_coma(env: EnvLike, **keywords: Any) -> Agent:
    """Counterfactual multi-agent policy gradients (COMA, Foerster et al. 2018): A2C whose critic sees the actions of all agents.
    Its baseline is the mean value of an agent's actions, with those of the others fixed. Agents and their specs are those of
    ``make_a2c``.

    Args:
      env: as for ``make_a2c``, with several agents and Discrete actions. The critic also sees a ``privileged_state`` in its
        observations, which the wrapper ``central_state`` adds: ``"jaxrl:Spread|agent_id|central_state"``.
      keywords: keywords of ``make_a2c``, which override those in ``jaxrl.algorithms.coma.SETTINGS``. A ``model`` that is a
        function of the spaces sees the actions of other agents, one-hot, as the ``privileged_state``, or as the second part of
        it, and returns a model with a value for each action, f32[..., n].
    """
    return make_a2c(env, **{**SETTINGS, **keywords})
