"""``Agent.spec``: plain data that makes the same agent again, in another process or from a checkpoint.

A part (model, optimizer, schedule, environment function) is described by how to import it. One that cannot be imported is marked,
works in process, and is refused by name where the spec is used.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Mapping
from typing import Any

from jaxrl.types import Agent, Env, HostEnv, Model


def import_object(path: str) -> Any:
    """The object at ``module:qualified.name``."""
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def describe(part: Any) -> Any:
    """``part`` as plain data (JSON): itself, or a mapping with ``import``, ``partial``, ``model`` or ``unimportable``."""
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, Model):
        return {"model": describe(part._asdict())}
    if isinstance(part, list | tuple) and not hasattr(part, "_fields"):  # a NamedTuple would come back as a list
        return [describe(x) for x in part]
    if isinstance(part, Mapping):
        return {str(name): describe(x) for name, x in part.items()}
    if isinstance(part, functools.partial):
        return {"partial": describe(part.func), "args": describe(part.args), "kwargs": describe(part.keywords)}
    path = f"{getattr(part, '__module__', None)}:{getattr(part, '__qualname__', '')}"
    try:
        if not path.startswith("__main__:") and import_object(path) is part:
            return {"import": path}
    except (ImportError, AttributeError, TypeError, ValueError):
        pass
    return {"unimportable": repr(part)}


def realize(data: Any, where: str = "spec") -> Any:
    """The inverse of ``describe``; ``where`` names the part in the error."""
    if isinstance(data, list):
        return [realize(x, f"{where}[{i}]") for i, x in enumerate(data)]
    if not isinstance(data, Mapping):
        return data
    if "unimportable" in data:
        raise ValueError(
            f"{where} cannot be rebuilt from the spec, because {data['unimportable']} cannot be imported: "
            "define it as a function at the top of a module, and pass that function (or functools.partial of it, with plain "
            "arguments), or for an environment 'module:function'"
        )
    if "model" in data and len(data) == 1:
        return Model(**realize(data["model"], where))
    if "import" in data:
        try:
            return import_object(data["import"])
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{where} cannot be rebuilt: {data['import']!r} cannot be imported here ({error})") from error
    if "partial" in data:
        function = realize(data["partial"], where)
        return functools.partial(function, *realize(data["args"], where), **realize(data["kwargs"], where))
    return {name: realize(x, f"{where}[{name!r}]") for name, x in data.items()}


def describe_env(env: str | Env | HostEnv) -> Any:
    """The id of an environment, or the mark that it has none."""
    if isinstance(env, str):
        return env
    from jaxrl.envs import describe_env as id_of

    return id_of(env) or {"unimportable": f"the environment object {env.name!r}"}


def agent_spec(builder: Any, env: str | Env | HostEnv, config: Any, hyperparams: Any, parts: Mapping[str, Any]) -> dict[str, Any]:
    """``Agent.spec`` of what ``builder`` makes from a Config (dataclass), Hyperparams (NamedTuple) and parts."""
    return {
        "builder": describe(builder),
        "env": describe_env(env),
        "settings": describe({**dataclasses.asdict(config), **hyperparams._asdict()}),
        "parts": describe(parts),
    }


def build(spec: Mapping[str, Any], **overrides: Any) -> Agent:
    """The agent that ``spec`` (an ``Agent.spec``) describes.

    Args:
      spec: ``builder``, ``env``, ``settings`` and ``parts``, as plain data.
      overrides: keywords of the builder that replace what the spec says (``num_envs=4``, ``axis_name="d"``, ``env=…``).

    Raises:
      ValueError: a part of the agent cannot be imported, or the spec lacks a field.
    """
    missing = [name for name in ("builder", "env", "settings", "parts") if name not in spec]
    if missing:
        raise ValueError(f"this is no agent spec: it lacks {missing}; Agent.spec makes one")
    keywords = {**spec["settings"], **spec["parts"], "env": spec["env"]}
    described = {name: data for name, data in keywords.items() if name not in overrides}
    builder = realize(spec["builder"], "spec['builder']")
    return builder(**{name: realize(data, f"{name}") for name, data in described.items()}, **overrides)


def algorithm_name(spec: Mapping[str, Any]) -> str:
    """PPO for what ``make_ppo`` makes."""
    return re.sub(r"^make_(\w+)", lambda match: match[1].upper(), brief(spec.get("builder", "agent")))


def brief(value: Any) -> str:
    """Data of a spec as a short text; numbers as exact as float32."""
    if isinstance(value, Mapping):
        if "import" in value:
            return str(value["import"]).rpartition(":")[2]
        if "partial" in value:
            given = [*map(brief, value["args"]), *(f"{name}={brief(x)}" for name, x in value["kwargs"].items())]
            return f"{brief(value['partial'])}({', '.join(given)})"
        if "unimportable" in value:
            return re.sub(r" at 0x[0-9a-f]+", "", str(value["unimportable"]))  # an address, another one in each process
        return "{" + ", ".join(f"{name}: {brief(x)}" for name, x in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(brief, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
