"""Environments as builders take them: an id, a class, a function or an environment."""

from __future__ import annotations

from jaxrl.types import Env, EnvLike, HostEnv


def resolve_env(env: EnvLike) -> Env | HostEnv:
    """The environment behind an id, or the one given, after a look at its shapes."""
    from jaxrl.envs import make_env, validate_env

    if not isinstance(env, Env | HostEnv):
        env = make_env(env)
    validate_env(env)
    return env
