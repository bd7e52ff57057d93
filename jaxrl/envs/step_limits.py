"""Step limits of environments."""

from __future__ import annotations

from jaxrl.types import Env, HostEnv


def step_limit(env: Env | HostEnv) -> int | None:
    """Return the number of steps after which an episode ends at the latest, by jaxrl or by the environment itself; None
    without such a limit."""
    limit = env.max_episode_steps or getattr(getattr(env, "params", None), "max_steps_in_episode", None)
    return None if limit is None else int(limit)
