"""Environments from Gymnasium classes and functions instead of ids, and advice for arguments of other types."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from jaxrl.envs.backends.gymnasium import make_of
from jaxrl.envs.ids import defaults_of
from jaxrl.types import Env, HostEnv

WANTED = "env must be an id such as 'CartPole-v1', an Env, a HostEnv, or a Gymnasium class or function, not "


def from_gymnasium(source: Any, options: Mapping[str, Any], make_env: Callable[..., Env | HostEnv]) -> Env | HostEnv:
    """Make an environment from a Gymnasium class, or from a function that returns a Gymnasium environment; see ``make_env``.

    Args:
      options: arguments of the function, and options of the backend ``gymnasium``.
    """
    if not _may_make(source):
        raise TypeError(WANTED + _foreign(source))
    name, module = _name(source), getattr(source, "__module__", "")
    for argument, default in defaults_of(source).items():
        if default is inspect.Parameter.empty and argument not in options:
            fix = f"env=lambda: {name}({argument}=…)"
            raise TypeError(f"env={name} needs the argument {argument!r}: give a function that needs none, {fix}")
    try:
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is source and name not in gymnasium.registry:
            return make_env(f"gymnasium:{module}:{name}", **options)
        label = f"gymnasium:__main__:{name}" if module == "__main__" else f"gymnasium:{name}"
        return make_of(label, None, EnvSpec(re.sub(r"\W", "", name), entry_point=source), options)
    except ValueError:
        _refuse_own(source, name, options)
        raise


def _may_make(source: Any) -> bool:
    if isinstance(source, type):
        return issubclass(source, gymnasium.Env)
    return callable(source) and not isinstance(source, gymnasium.Env)


def _name(source: Any) -> str:
    """Return the name of a class or function without its enclosing scope; for a ``partial``, the name of its function."""
    while isinstance(source, functools.partial):
        source = source.func
    return str(getattr(source, "__qualname__", type(source).__name__)).rpartition("<locals>.")[2]


def _refuse_own(source: Any, name: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError with advice if the function makes a jaxrl environment, or one of PettingZoo."""
    try:
        env = None if isinstance(source, type) else source(**options)
    except Exception:  # the caller reports its own error
        return
    if _has_agents(env):
        raise TypeError(WANTED + _of_pettingzoo(name, getattr(source, "__module__", "module"))) from None
    if isinstance(env, Env | HostEnv):
        kind = type(env).__name__
        raise TypeError(f"{WANTED}{name}, which makes a jaxrl.{kind}: call it, or give its id 'module:{name}'") from None


def _foreign(source: Any) -> str:
    """Describe an invalid environment argument and what to pass instead."""
    if isinstance(source, Env | HostEnv):
        return f"a jaxrl.{type(source).__name__}, which is already an environment"
    if isinstance(source, EnvSpec):
        return f"an EnvSpec: give its id, 'gymnasium:{source.id}'"
    if isinstance(source, list | tuple) and source and all(map(_may_make, source)):
        return f"a {type(source).__name__} of functions: give one of them, and num_envs={len(source)}"
    value: Any = source[0] if isinstance(source, tuple) and source else source
    library, kind = type(value).__module__.partition(".")[0], type(value).__name__
    if library == "gymnax":
        return f"gymnax's {kind}: give its id"
    spec = getattr(value, "spec", None)
    known = spec.id if isinstance(spec, EnvSpec) and spec.id in gymnasium.registry else None
    if isinstance(value, gymnasium.vector.VectorEnv) or kind.endswith("VecEnv"):
        instead = f"'gymnasium:{known}'" if known else "a function that makes one, lambda: gymnasium.make(…),"
        return f"the batch {kind}: give {instead} and num_envs={getattr(value, 'num_envs', '…')}"
    if isinstance(value, gymnasium.Env):
        kind = type(value.unwrapped).__name__
        maker = f"'gymnasium:{known}' or env=lambda: gymnasium.make({known!r})" if known else f"{kind} or env=lambda: {kind}(…)"
        return f"a single {kind}: give an id, class or function to make num_envs of them, env={maker}"
    if _has_agents(value):
        made_by: type = value if isinstance(value, type) else type(value)
        return _of_pettingzoo(made_by.__name__, made_by.__module__)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__ if library in ("builtins", "jaxrl") else f"{library}'s {kind}"


def _has_agents(value: Any) -> bool:
    """Return whether this is a class or an environment of PettingZoo, which need not be installed."""
    kind = value if isinstance(value, type) else type(value)
    return any(base.__module__.startswith("pettingzoo.") for base in kind.__mro__)


def _of_pettingzoo(name: str, module: str) -> str:
    return f"PettingZoo's {name}: give the id of its class or function, 'pettingzoo:{module}:{name}'"
