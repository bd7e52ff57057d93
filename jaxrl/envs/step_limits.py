"""Step limits of environments."""

from __future__ import annotations

import numpy as np

from jaxrl.types import Env, HostEnv, PyTree


def step_limit(env: Env | HostEnv) -> int | None:
    """Return the number of steps after which an episode ends at the latest, by jaxrl or by the environment itself; None
    without such a limit. Of several limits, the smallest one ends it."""
    limits = (env.max_episode_steps, _limit_in(getattr(env, "params", None)))
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_in(params: PyTree) -> int | None:
    """Return the limit that parameters hold, the largest if environments differ in it."""
    limit = getattr(params, "max_steps_in_episode", None)
    if limit is not None:
        return int(np.max(limit))
    inner = getattr(params, "env", None)  # parameters of a wrapper, such as ``StickyParams``
    return None if inner is None else _limit_in(inner)
