"""``Agent.spec``: plain data to rebuild an agent in another process or from a checkpoint.

A part (model, optimizer, schedule, environment function) is described by its import path. A part that cannot be imported is
marked as such: it works in this process, and building from the spec raises an error that names it. Imports are restricted, see
``jaxrl.builder.trusted_imports``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.builder.old_specs import converted
from jaxrl.builder.trusted_imports import PATH, check_trust, check_trusted, import_object, import_part, remember
from jaxrl.registry import ALGORITHMS, title_of
from jaxrl.settings.aliases import nearest, shortened
from jaxrl.settings.loadable import KINDS, Kind
from jaxrl.settings.options import described_option, held_by_options, option_fields
from jaxrl.types import Agent, Env, HostEnv, Model

OTHER_BUILDERS = ("jaxrl.pbt.builder:make_population", "jaxrl.pbt.schedule:make_replay")
"""Builders beside those of the registry. They take the spec of an agent as JSON, and build it without further trust."""


def describe(part: Any, role: str = "part") -> Any:
    """Return ``part`` as plain data (JSON): itself, or a mapping with ``import``, ``partial``, ``model`` or ``unimportable``.

    Importable objects are recorded, with their role, as used by this process: see ``jaxrl.builder.trusted_imports``.
    """
    if isinstance(part, np.bool_ | np.integer | np.floating):
        return part.item()
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if hasattr(type(part), "as_plain"):  # a dataset, or a teacher
        return part.as_plain()
    if isinstance(part, Model):
        return {"model": describe({name: function for name, function in part._asdict().items() if function is not None})}
    if isinstance(part, list | tuple) and not hasattr(part, "_fields"):  # a NamedTuple would be rebuilt as a list
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


class Described(NamedTuple):
    """Description of a teacher, which ``jaxrl.builder.teacher`` rebuilds."""

    data: Mapping[str, Any]
    trust: Sequence[str]


def realize(data: Any, where: str = "spec", *, trust: Sequence[str] = (), kind: Kind | None = None) -> Any:
    """Rebuild an object from its description; the inverse of ``describe``.

    Args:
      where: name of the part, for errors.
      trust: packages or modules that may be imported.
      kind: required kind of the part, if it is a component of jaxrl: see ``jaxrl.settings.loadable``.

    Raises:
      ValueError: a part cannot be imported, or is not trusted.
    """
    rebuild = functools.partial(realize, trust=trust)
    if isinstance(data, list):
        return [rebuild(x, f"{where}[{i}]") for i, x in enumerate(data)]
    if not isinstance(data, Mapping):
        return data
    if "unimportable" in data:
        raise ValueError(
            f"{where} cannot be rebuilt from the spec, because {data['unimportable']} cannot be imported: pass the part again "
            f"where that is possible ({where.partition('[')[0]}=…), or define it as a function at the top of a module, "
            "and pass that function (or functools.partial of it, with plain arguments), or for an environment 'module:function'"
        )
    if "model" in data and len(data) == 1:
        functions = rebuild(data["model"], where)
        needed = {*Model._fields} - {*Model._field_defaults}
        named = isinstance(functions, dict) and needed <= {*functions} <= {*Model._fields}
        if not (named and all(map(callable, functions.values()))):
            raise ValueError(f"{where} cannot be rebuilt: a Model is the functions {', '.join(Model._fields)}")
        return Model(**functions)
    if "dataset" in data and len(data) == 1:
        from jaxrl.replay.dataset import DatasetInfo  # imports jax, without which a spec can be read

        return DatasetInfo.read(data)
    if "teacher" in data and len(data) == 1:
        return Described(data["teacher"], trust)
    if "import" in data:
        return import_part(data["import"], where, trust, kind)
    if "partial" in data:
        function = realize(data["partial"], where, trust=trust, kind=kind)
        args, kwargs = rebuild(data.get("args"), where), rebuild(data.get("kwargs"), where)
        if not (callable(function) and isinstance(args, list) and isinstance(kwargs, dict)):
            raise ValueError(f"{where} cannot be rebuilt: a partial is a function, a list of args and a mapping of kwargs")
        return functools.partial(function, *args, **kwargs)
    return {name: rebuild(x, f"{where}[{name!r}]") for name, x in data.items()}


def describe_env(env: str | Env | HostEnv) -> Any:
    """Return the id of an environment, or an ``unimportable`` mark if it has none."""
    from jaxrl.envs import describe_env as id_of
    from jaxrl.envs import reach_of

    name = env if isinstance(env, str) else id_of(env)
    if name is None:
        return {"unimportable": f"the environment object {env.name!r}"}  # type: ignore[union-attr]
    if reach := reach_of(name):
        remember(reach, "env")
    return name


def check_env_id(env_id: str, trust: str | Iterable[str] = ()) -> str:
    """Return an environment id from data, after a check that it only runs or reads trusted things: see ``envs.reach_of``.

    Raises:
      ValueError: the id is invalid, or refers to something that is not trusted.
    """
    from jaxrl.envs import reach_of

    if reach := reach_of(env_id):
        check_trusted(reach, "env", check_trust(trust), "env")
    return env_id


def check_factory(env_id: str, trust: str | Iterable[str] = ()) -> None:
    """Import the function that a trusted environment id names. A trusted module does not make the functions trusted that it
    imports from other modules.

    Raises:
      ValueError: the function does not exist, or the module that defines it is not trusted.
    """
    from jaxrl.envs import factory_of

    factory = factory_of(env_id)
    if factory is not None and PATH.fullmatch(factory):  # make_env reports other errors of an id
        import_part(factory, "env", check_trust(trust), role="env")


def agent_spec(
    builder: Any, env: str | Env | HostEnv, config: Any, hyperparams: Any, parts: Mapping[str, Any], unread: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the ``Agent.spec`` for a builder, its Config (dataclass), Hyperparams (NamedTuple) and parts.

    Args:
      unread: settings that have no effect with these parts. They are stored as None, so that their defaults may change.
    """
    kind: Any = type(config)
    structure: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in option_fields(kind):
            structure |= described_option(kind, field.name, value)
        elif "added" not in field.metadata or value != field.default:
            structure[field.name] = value  # others are left out, so that runs from before the field existed can be resumed
    held = held_by_options(kind)
    numbers = {name: value for name, value in hyperparams._asdict().items() if name not in held}
    return {
        "builder": describe(builder, "builder"),
        "env": describe_env(env),
        "settings": describe({**structure, **numbers, **dict.fromkeys(unread)}),
        "parts": describe(parts),
    }


def build(spec: Mapping[str, Any], *, trust: str | Iterable[str] = (), **overrides: Any) -> Agent:
    """Build the agent that ``spec`` (an ``Agent.spec``) describes.

    A spec is data and may come from an untrusted source. Only these are imported: parts of jaxrl, parts that were passed to a
    builder in this process, and parts of the packages in ``trust``.

    Args:
      spec: ``builder``, ``env``, ``settings`` and ``parts``, as plain data.
      trust: packages or modules whose code may run: ``("my_package",)``.
      overrides: keywords of the builder that replace those of the spec (``num_envs=4``, ``axis_name="d"``, ``env=…``).

    Raises:
      TypeError: ``spec`` is not a mapping.
      ValueError: a part of the agent cannot be imported, or is not trusted, or the spec lacks a field.
    """
    if not isinstance(spec, Mapping):
        fix = ": give its spec, agent.spec" if isinstance(spec, Agent) else ""
        raise TypeError(f"spec must be the mapping that Agent.spec is, not a {type(spec).__name__}{fix}")
    missing = [name for name in ("builder", "env", "settings", "parts") if name not in spec]
    if missing:
        raise ValueError(f"this is not an agent spec: it lacks {missing}; use agent.spec")
    if not (isinstance(spec["settings"], Mapping) and isinstance(spec["parts"], Mapping)):
        raise ValueError("this is not an agent spec: its settings and parts must be mappings; use agent.spec")
    trust, spec = check_trust(trust), converted(spec)
    keywords = {**spec["parts"], **_settings(spec), "env": spec["env"]}
    if wrong := [name for name in keywords if not isinstance(name, str)]:
        raise ValueError(
            f"this is not an agent spec: {shortened(wrong[0])} must be the name of a setting or part; use agent.spec"
        )
    described = {name: data for name, data in keywords.items() if name.partition(".")[0] not in overrides}
    if isinstance(env := described.get("env"), str):
        check_env_id(env, trust)
    builder = _builder(spec["builder"], trust)
    arguments = {name: realize(data, name, trust=trust, kind=KINDS.get(name)) for name, data in described.items()}
    if isinstance(env, str):
        check_factory(env, trust)
    agent = builder(**arguments, **overrides)
    if not isinstance(agent, Agent):
        raise ValueError(f"builder {brief(spec['builder'])} must return a jaxrl.Agent, not {type(agent).__name__}")
    return agent


def _settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a spec. With a custom ``ReplayFn``, which is a part of the same name, the fields of the option
    ``replay`` have dotted names."""
    settings = {name: value for name, value in spec["settings"].items() if value is not None}  # None: left open
    if spec["parts"].get("replay") is not None and isinstance(settings.get("replay"), Mapping):
        settings |= {f"replay.{field}": value for field, value in settings.pop("replay").items()}
    return settings


def _builder(data: Any, trust: Sequence[str]) -> Any:
    """Import the builder: one of the registry, or a trusted custom one."""
    path = data.get("import") if isinstance(data, Mapping) else None
    if isinstance(path, str) and path in {*OTHER_BUILDERS, *(f"{entry.module}:{entry.builder}" for entry in ALGORITHMS.values())}:
        return import_object(path)
    if path is None:
        raise ValueError(f"builder must be {{'import': 'module:function'}}, not {brief(data)}")
    return import_part(path, "builder", trust, role="builder")


def build_again(spec: Mapping[str, Any], *, trust: str | Iterable[str] = (), to_learn: bool = False, **parts: Any) -> Agent:
    """Rebuild the agent of a run, with replacements for parts that its spec cannot import (``model=my_function``).

    The returned agent keeps the run's spec.

    Args:
      to_learn: the agent will continue training. Then the spec must have all settings, because today's default of a missing one
        could change the run.

    Raises:
      TypeError: a keyword is not a part of this agent. Settings cannot be replaced.
      ValueError: ``to_learn`` is set and the spec lacks a setting.
    """
    known = {"env", *(name for name in spec.get("parts", ()) if name != "axis_name")}
    for name in parts:
        if name not in known:
            raise TypeError(
                f"{name}=… is not a part of this agent that can be replaced.{nearest(name, known)} Its parts are "
                f"{', '.join(sorted(known))}; its settings are those of the run"
            )
    agent = build(spec, trust=trust, **parts)
    lacking = [name for name in (agent.spec or {}).get("settings", ()) if name not in converted(spec)["settings"]]
    if to_learn and lacking:
        raise ValueError(
            f"the run's agent lacks {', '.join(lacking)}: another version of jaxrl wrote it, and only that one can resume it. "
            "This version can evaluate it, load its policy, and start a new run from it with init_from"
        )
    return agent._replace(spec=dict(spec))


def modules_outside(spec: Any) -> list[str]:
    """Return the modules outside jaxrl that ``build(spec)`` would need in ``trust`` in another process."""
    from jaxrl.envs import reach_of

    paths = [data["import"] for data in _mappings_with("import", spec) if isinstance(data["import"], str)]
    if isinstance(spec, Mapping) and isinstance(spec.get("env"), str):
        with contextlib.suppress(ValueError):  # an invalid id is reported where it is used
            if reach := reach_of(spec["env"]):
                paths.append(reach)
    modules = {path.partition(":")[0] for path in paths}
    return sorted(module for module in modules if module.partition(".")[0] != "jaxrl")


def packages_outside(spec: Any) -> list[str]:
    """Return the packages of ``modules_outside``, as ``trust`` takes them."""
    return [*dict.fromkeys(module.partition(".")[0] for module in modules_outside(spec))]


def unimportable_parts(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts that cannot be imported: keyword of the builder -> short text of the object."""
    env = spec.get("env")
    parts = {"env": {"unimportable": env} if _of_script(env) else env, **spec.get("parts", {})}
    found = {name: _mappings_with("unimportable", part) for name, part in parts.items()}
    return {name: brief(marks[0]) for name, marks in found.items() if marks}


def _of_script(env: Any) -> bool:
    """Return whether an environment's id names an object in ``__main__``, which differs in another process."""
    from jaxrl.envs import imported_by

    with contextlib.suppress(ValueError):  # an invalid id is reported where it is used
        return isinstance(env, str) and (imported_by(env) or "").startswith("__main__:")
    return False


def _mappings_with(key: str, data: Any) -> list[Mapping[str, Any]]:
    """Return the mappings with this key in nested data, outer ones first."""
    if isinstance(data, list | tuple):
        return [found for x in data for found in _mappings_with(key, x)]
    if not isinstance(data, Mapping):
        return []
    here = [data] if key in data else []
    return here + _mappings_with(key, list(data.values()))


def algorithm_name(spec: Mapping[str, Any]) -> str:
    """Return the title of the spec's algorithm, "PPO" for ``make_ppo``."""
    builder, bracket, settings = brief(spec.get("builder", "agent")).partition("(")
    return title_of(builder) + bracket + settings


def brief(value: Any) -> str:
    """Return data of a spec as a short text, with numbers at the precision of float32."""
    if isinstance(value, Mapping):
        if "import" in value:
            return str(value["import"]).rpartition(":")[2]
        if "partial" in value:
            args, kwargs = value.get("args") or (), value.get("kwargs") or {}  # untrusted data may lack them
            arguments = [*map(brief, args), *(f"{name}={brief(x)}" for name, x in kwargs.items())]
            return f"{brief(value['partial'])}({', '.join(arguments)})"
        if "unimportable" in value:
            return re.sub(r" at 0x[0-9a-f]+", "", str(value["unimportable"]))  # the address differs in each process
        return "{" + ", ".join(f"{name}: {brief(x)}" for name, x in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(brief, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
