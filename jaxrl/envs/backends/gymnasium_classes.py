"""What is given for an environment instead of an id: Gymnasium's classes and functions; for the rest, what to give instead."""

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
from jaxrl.types import Env, HostEnv

WANTED = "env must be an id such as 'CartPole-v1', an Env, a HostEnv, or a Gymnasium class or function, not "


def from_gymnasium(given: Any, options: Mapping[str, Any], make_env: Callable[..., Env | HostEnv]) -> Env | HostEnv:
    """The environment of a class of Gymnasium's, or of a function that makes one: by its id where other processes can import it,
    else for this process alone.

    Args:
      options: the function's own, and those of the backend ``gymnasium``.
      make_env: makes environments of ids.

    Raises:
      TypeError: it is neither; the message says what to give instead.
    """
    if not _may_make(given):
        raise TypeError(WANTED + _foreign(given))
    name, module = _name(given), getattr(given, "__module__", "")
    _check_complete(given, name, options)
    try:
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is given and name not in gymnasium.registry:
            return make_env(f"gymnasium:{module}:{name}", **options)
        label = f"gymnasium:__main__:{name}" if module == "__main__" else f"gymnasium:{name}"
        return make_of(label, None, EnvSpec(re.sub(r"\W", "", name), entry_point=given), options)
    except ValueError:
        _refuse_own(given, name, options)
        raise


def _may_make(given: Any) -> bool:
    if isinstance(given, type):
        return issubclass(given, gymnasium.Env)
    return callable(given) and not isinstance(given, gymnasium.Env)


def _name(given: Any) -> str:
    """Of a class or function, without where it was defined; of a ``partial``, that of its function."""
    while isinstance(given, functools.partial):
        given = given.func
    return str(getattr(given, "__qualname__", type(given).__name__)).rpartition("<locals>.")[2]


def _check_complete(given: Any, name: str, options: Mapping[str, Any]) -> None:
    """Refuse what cannot be called without more arguments."""
    for parameter in inspect.signature(given).parameters.values():
        if parameter.default is parameter.empty and "VAR" not in parameter.kind.name and parameter.name not in options:
            fix = f"env=lambda: {name}({parameter.name}=…)"
            raise TypeError(f"env={name} needs the argument {parameter.name!r}: give a function that needs none, {fix}")


def _refuse_own(given: Any, name: str, options: Mapping[str, Any]) -> None:
    """Say what to do with a function that makes an environment of jaxrl's."""
    try:
        made = None if isinstance(given, type) else given(**options)
    except Exception:  # which is what the caller reports
        return
    if isinstance(made, Env | HostEnv):
        kind = type(made).__name__
        raise TypeError(f"{WANTED}{name}, which makes a jaxrl.{kind}: call it, or give its id 'module:{name}'") from None


def _foreign(given: Any) -> str:
    """What was given for an environment, and what to give instead."""
    if isinstance(given, Env | HostEnv):
        return f"a jaxrl.{type(given).__name__}, which make_env has made already"
    if isinstance(given, EnvSpec):
        return f"an EnvSpec: give its id, 'gymnasium:{given.id}'"
    if isinstance(given, list | tuple) and given and all(map(_may_make, given)):
        return f"a {type(given).__name__} of functions: give one of them, and num_envs={len(given)}"
    one: Any = given[0] if isinstance(given, tuple) and given else given
    library, kind = type(one).__module__.partition(".")[0], type(one).__name__
    if library == "gymnax":
        return f"gymnax's {kind}: give its id"
    spec = getattr(one, "spec", None)
    known = spec.id if isinstance(spec, EnvSpec) and spec.id in gymnasium.registry else None
    if isinstance(one, gymnasium.vector.VectorEnv) or kind.endswith("VecEnv"):
        give = f"'gymnasium:{known}'" if known else "a function that makes one, lambda: gymnasium.make(…),"
        return f"the batch {kind}: give {give} and num_envs={getattr(one, 'num_envs', '…')}"
    if isinstance(one, gymnasium.Env):
        kind = type(one.unwrapped).__name__
        how = f"'gymnasium:{known}' or env=lambda: gymnasium.make({known!r})" if known else f"{kind} or env=lambda: {kind}(…)"
        return f"a single {kind}: num_envs of them are stepped, so give what makes one, env={how}"
    if isinstance(one, type):
        return f"the class {one.__name__}"
    return type(one).__name__ if library in ("builtins", "jaxrl") else f"{library}'s {kind}"
