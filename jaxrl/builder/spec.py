"""``Agent.spec``: plain data that makes the same agent again, in another process or from a checkpoint.

A part (model, optimizer, schedule, environment function) is described by how to import it. One that cannot be imported is marked,
works in process, and is refused by name where the spec is used. What a spec may import, ``jaxrl.builder.trusted_imports`` says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl.builder.trusted_imports import PATH, RESULTS, check_trust, check_trusted, import_object, import_part, remember
from jaxrl.registry import ALGORITHMS, title_of
from jaxrl.settings.aliases import nearest
from jaxrl.types import Agent, Env, HostEnv, Model


def describe(part: Any, role: str = "part") -> Any:
    """``part`` as plain data (JSON): itself, or a mapping with ``import``, ``partial``, ``model`` or ``unimportable``.

    What can be imported is remembered, in its role, as used by this process: see ``jaxrl.builder.trusted_imports``.
    """
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
            remember(path, role)
            return {"import": path}
    except (ImportError, AttributeError, TypeError, ValueError):
        pass
    return {"unimportable": repr(part)}


def realize(data: Any, where: str = "spec", *, trust: Sequence[str] = (), result: str | None = None) -> Any:
    """The inverse of ``describe``; ``where`` names the part in the error, ``result`` what it must promise: see
    ``jaxrl.builder.trusted_imports``.

    Raises:
      ValueError: a part cannot be imported, or must not be.
    """
    again = functools.partial(realize, trust=trust)
    if isinstance(data, list):
        return [again(x, f"{where}[{i}]") for i, x in enumerate(data)]
    if not isinstance(data, Mapping):
        return data
    if "unimportable" in data:
        raise ValueError(
            f"{where} cannot be rebuilt from the spec, because {data['unimportable']} cannot be imported: give the part again "
            f"where that is possible ({where.partition('[')[0]}=…), or define it as a function at the top of a module, "
            "and pass that function (or functools.partial of it, with plain arguments), or for an environment 'module:function'"
        )
    if "model" in data and len(data) == 1:
        made = again(data["model"], where)
        if not (isinstance(made, dict) and set(made) == set(Model._fields) and all(map(callable, made.values()))):
            raise ValueError(f"{where} cannot be rebuilt: a Model is the functions {', '.join(Model._fields)}")
        return Model(**made)
    if "import" in data:
        return import_part(data["import"], where, trust, result)
    if "partial" in data:
        function = realize(data["partial"], where, trust=trust, result=result)
        args, kwargs = again(data.get("args"), where), again(data.get("kwargs"), where)
        if not (callable(function) and isinstance(args, list) and isinstance(kwargs, dict)):
            raise ValueError(f"{where} cannot be rebuilt: a partial is a function, a list of args and a mapping of kwargs")
        return functools.partial(function, *args, **kwargs)
    return {name: again(x, f"{where}[{name!r}]") for name, x in data.items()}


def describe_env(env: str | Env | HostEnv) -> Any:
    """The id of an environment, or the mark that it has none."""
    from jaxrl.envs import describe_env as id_of
    from jaxrl.envs import reach_of

    name = env if isinstance(env, str) else id_of(env)
    if name is None:
        return {"unimportable": f"the environment object {env.name!r}"}  # type: ignore[union-attr]
    if reach := reach_of(name):
        remember(reach, "env")
    return name


def check_env_id(env_id: str, trust: str | Iterable[str] = ()) -> str:
    """An environment's id that data gives, unless it runs or reads something that nobody trusts: see ``envs.reach_of``.

    Raises:
      ValueError: it is, or no id.
    """
    from jaxrl.envs import reach_of

    if reach := reach_of(env_id):
        check_trusted(reach, "env", check_trust(trust), "env")
    return env_id


def check_factory(env_id: str, trust: str | Iterable[str] = ()) -> None:
    """Import the function that a trusted id names: trust in a module is none in the functions of others that it imports.

    Raises:
      ValueError: there is no such function, or its own module is not trusted.
    """
    from jaxrl.envs import factory_of

    factory = factory_of(env_id)
    if factory is not None and PATH.fullmatch(factory):  # what else is wrong with an id, make_env says
        import_part(factory, "env", check_trust(trust), role="env")


def agent_spec(
    builder: Any, env: str | Env | HostEnv, config: Any, hyperparams: Any, parts: Mapping[str, Any], unread: Iterable[str] = ()
) -> dict[str, Any]:
    """``Agent.spec`` of what ``builder`` makes from a Config (dataclass), Hyperparams (NamedTuple) and parts.

    Args:
      unread: settings that have no effect beside these parts. They are None, which leaves them open: their defaults may change.
    """
    fields = [field for field in dataclasses.fields(config) if not _as_before(field, config)]
    structure = {field.name: getattr(config, field.name) for field in fields}
    return {
        "builder": describe(builder, "builder"),
        "env": describe_env(env),
        "settings": describe({**structure, **hyperparams._asdict(), **dict.fromkeys(unread)}),
        "parts": describe(parts),
    }


def _as_before(field: dataclasses.Field[Any], config: Any) -> bool:
    """Whether it was ``added`` (see ``jaxrl.settings.validation``) and changes nothing: runs without it go on."""
    return "added" in field.metadata and getattr(config, field.name) == field.default


def build(spec: Mapping[str, Any], *, trust: str | Iterable[str] = (), **overrides: Any) -> Agent:
    """The agent that ``spec`` (an ``Agent.spec``) describes.

    A spec is data, and may be somebody else's: of what it names, only parts of jaxrl are imported, those that were given to a
    builder in this process, and what is in ``trust``.

    Args:
      spec: ``builder``, ``env``, ``settings`` and ``parts``, as plain data.
      trust: packages or modules whose code may run: ``("my_package",)``.
      overrides: keywords of the builder that replace what the spec says (``num_envs=4``, ``axis_name="d"``, ``env=…``).

    Raises:
      ValueError: a part of the agent cannot be imported, or is not trusted, or the spec lacks a field.
    """
    if not isinstance(spec, Mapping):
        fix = ": give its spec, agent.spec" if isinstance(spec, Agent) else ""
        raise TypeError(f"spec must be the mapping that Agent.spec is, not a {type(spec).__name__}{fix}")
    missing = [name for name in ("builder", "env", "settings", "parts") if name not in spec]
    if missing:
        raise ValueError(f"this is no agent spec: it lacks {missing}; Agent.spec makes one")
    if not (isinstance(spec["settings"], Mapping) and isinstance(spec["parts"], Mapping)):
        raise ValueError("this is no agent spec: its settings and parts must be mappings; Agent.spec makes one")
    trust = check_trust(trust)
    settings = {name: value for name, value in spec["settings"].items() if value is not None}  # None: left open
    keywords = {**settings, **spec["parts"], "env": spec["env"]}
    described = {name: data for name, data in keywords.items() if name not in overrides}
    if isinstance(env := described.get("env"), str):
        check_env_id(env, trust)
    builder = _builder(spec["builder"], trust)
    made = {name: realize(data, name, trust=trust, result=RESULTS.get(name)) for name, data in described.items()}
    if isinstance(env, str):
        check_factory(env, trust)
    agent = builder(**made, **overrides)
    if not isinstance(agent, Agent):
        raise ValueError(f"builder {brief(spec['builder'])} gives {type(agent).__name__}, and no jaxrl.Agent")
    return agent


def _builder(data: Any, trust: Sequence[str]) -> Any:
    """The builder: one of the registry's, or one of the user's own."""
    path = data.get("import") if isinstance(data, Mapping) else None
    if isinstance(path, str) and path in {f"{entry.module}:{entry.builder}" for entry in ALGORITHMS.values()}:
        return import_object(path)
    if path is None:
        raise ValueError(f"builder must be {{'import': 'module:function'}}, and not {brief(data)}")
    return import_part(path, "builder", trust, role="builder")


def build_again(spec: Mapping[str, Any], *, trust: str | Iterable[str] = (), to_learn: bool = False, **parts: Any) -> Agent:
    """The agent of a run, with parts given again that its spec cannot name (``model=my_function``). Its spec stays what it was.

    Args:
      to_learn: it is to go on learning, so that a setting which the spec lacks, today's default, would make another run of it.

    Raises:
      TypeError: a keyword is no part of this agent. Its settings are those of the run.
      ValueError: the spec lacks a setting, ``to_learn``.
    """
    known = {"env", *(name for name in spec.get("parts", ()) if name != "axis_name")}
    for name in parts:
        if name not in known:
            raise TypeError(
                f"{name}=… is no part of this agent that can be given again.{nearest(name, known)} It has "
                f"{', '.join(sorted(known))}; its settings are those of the run"
            )
    agent = build(spec, trust=trust, **parts)
    lacking = [name for name in (agent.spec or {}).get("settings", ()) if name not in spec["settings"]]
    if to_learn and lacking:
        raise ValueError(
            f"the run's agent lacks {', '.join(lacking)}: it is of another version of jaxrl, and only that one can go on with it."
            " This one can evaluate it, load its policy, and begin from it with init_from"
        )
    return agent._replace(spec=dict(spec))


def modules_outside(spec: Any) -> list[str]:
    """The modules outside jaxrl that ``build(spec)`` would have to ``trust`` in another process."""
    from jaxrl.envs import reach_of

    paths = [data["import"] for data in _mappings_with("import", spec) if isinstance(data["import"], str)]
    if isinstance(spec, Mapping) and isinstance(spec.get("env"), str):
        with contextlib.suppress(ValueError):  # what is wrong with an id is said where it is used
            if reach := reach_of(spec["env"]):
                paths.append(reach)
    modules = {path.partition(":")[0] for path in paths}
    return sorted(module for module in modules if module.partition(".")[0] != "jaxrl")


def unimportable_parts(spec: Mapping[str, Any]) -> dict[str, str]:
    """Keyword of the builder -> what of that part cannot be imported."""
    env = spec.get("env")
    parts = {"env": {"unimportable": env} if _of_script(env) else env, **spec.get("parts", {})}
    found = {name: _mappings_with("unimportable", part) for name, part in parts.items()}
    return {name: brief(marks[0]) for name, marks in found.items() if marks}


def _of_script(env: Any) -> bool:
    """Whether an environment's id names something in ``__main__``: another process has another one."""
    from jaxrl.envs import imported_by

    with contextlib.suppress(ValueError):  # what is wrong with an id is said where it is used
        return isinstance(env, str) and (imported_by(env) or "").startswith("__main__:")
    return False


def _mappings_with(key: str, data: Any) -> list[Mapping[str, Any]]:
    """The mappings with this key in nested data, outer ones first."""
    if isinstance(data, list | tuple):
        return [found for x in data for found in _mappings_with(key, x)]
    if not isinstance(data, Mapping):
        return []
    here = [data] if key in data else []
    return here + _mappings_with(key, list(data.values()))


def algorithm_name(spec: Mapping[str, Any]) -> str:
    """PPO for what ``make_ppo`` makes."""
    builder, bracket, settings = brief(spec.get("builder", "agent")).partition("(")
    return title_of(builder) + bracket + settings


def brief(value: Any) -> str:
    """Data of a spec as a short text; numbers as exact as float32."""
    if isinstance(value, Mapping):
        if "import" in value:
            return str(value["import"]).rpartition(":")[2]
        if "partial" in value:
            args, kwargs = value.get("args") or (), value.get("kwargs") or {}  # data of somebody else's may lack them
            given = [*map(brief, args), *(f"{name}={brief(x)}" for name, x in kwargs.items())]
            return f"{brief(value['partial'])}({', '.join(given)})"
        if "unimportable" in value:
            return re.sub(r" at 0x[0-9a-f]+", "", str(value["unimportable"]))  # an address, another one in each process
        return "{" + ", ".join(f"{name}: {brief(x)}" for name, x in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(brief, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
