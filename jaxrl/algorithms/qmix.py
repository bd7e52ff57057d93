"""QMIX (Rashid et al. 2018) as settings of R2D2."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.r2d2 import make_r2d2
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.types import Agent, EnvLike

SETTINGS: dict[str, Any] = {
    "decomposition": "qmix",
    "replay": {"name": "sequence", "exponent": 0.0, "importance_exponent": 0.0},
    "rescale": None,
    "n_step": 1,
    "target_update_interval": 200,
    "learning_rate": 5e-4,
    "max_grad_norm": 10.0,
    "exploration_steps": 50_000.0,
}
"""Settings of the paper that differ from R2D2's defaults."""


@suggest_arguments
def make_qmix(env: EnvLike, **keywords: Any) -> Agent:
    """QMIX (Rashid et al. 2018): recurrent Q-learning of the value of a team, which is a monotonic function of its agents' values
    and of the state. Agents and their specs are those of ``make_r2d2``, which also has the sum of values,
    ``decomposition=VDN()``.

    Args:
      env: as for ``make_r2d2``, with several agents and a ``privileged_state`` in its observations. The wrapper ``central_state``
        adds one: ``"jaxrl:Spread|central_state"``.
      keywords: keywords of ``make_r2d2``, which override those in ``jaxrl.algorithms.qmix.SETTINGS``.
    """
    return make_r2d2(env, **{**SETTINGS, **keywords})
