"""Resolution of environment arguments: an id, a class, a function or an environment."""

from __future__ import annotations

from jaxrl.types import Env, EnvLike, HostEnv


def resolve_env(env: EnvLike) -> Env | HostEnv:
    """Return the environment for an id, or ``env`` itself, after validation of its shapes."""
    from jaxrl.envs import make_env, validate_env

    if not isinstance(env, Env | HostEnv):
        env = make_env(env)
    validate_env(env)
    return env
