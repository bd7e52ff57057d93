"""Conservative Q-learning (Kumar et al. 2020) as settings of SAC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.common.offline.conservative import CQL
from jaxrl.algorithms.sac import make_sac
from jaxrl.settings.aliases import suggest_arguments
from jaxrl.types import Agent, EnvLike

SETTINGS: dict[str, Any] = {
    "conservative": CQL(),
    "model": {"hidden_sizes": (256, 256, 256)},
    "learning_rate": 3e-4,
    "actor_learning_rate": 1e-4,
    "temperature": {"learning_rate": 1e-4},
}
"""Settings of the authors' code that differ from SAC's defaults."""


@suggest_arguments
def make_cql(env: EnvLike, **keywords: Any) -> Agent:
    """Conservative Q-learning (CQL, Kumar et al. 2020), for learning from a dataset: SAC whose critics give low values to actions
    that the data lack. Agents and their specs are those of ``make_sac``. DQN has ``conservative=Conservative()``.

    Args:
      env: as for ``make_sac``.
      keywords: keywords of ``make_sac``, such as ``data``, which override those in ``jaxrl.algorithms.cql.SETTINGS``. Arguments
        of the network, and fields of ``conservative`` without a name, are added to its own. The weight,
        ``conservative={"weight": …}``, must suit the scale of rewards, because the term competes with differences of values
        between actions.
    """
    for name in ("model", "conservative"):
        if name in keywords:
            keywords[name] = _merged(SETTINGS[name], keywords[name])
    return make_sac(env, **{**SETTINGS, **keywords})


def _merged(default: Any, given: Any) -> Any:
    """Return a mapping with the fields of the default that it leaves out; any other value as it is."""
    if not isinstance(given, Mapping) or "name" in given:
        return given
    return {"name": default.name, **given} if isinstance(default, CQL) else {**default, **given}
