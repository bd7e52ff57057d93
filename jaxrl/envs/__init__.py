"""Environments by id: ``make_env("CartPole-v1")``, ``make_env("envpool:Pong-v5", stack_num=2)``, ``make_env("my_env:chain")``."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl.envs.ids import (
    DEFAULT_BACKEND,
    EnvId,
    UnknownName,
    check_known,
    check_option,
    defaults_of,
    format_id,
    parse_id,
    shortest,
    takes_any,
    version_of,
)
from jaxrl.settings.aliases import nearest, shortened, similar
from jaxrl.settings.packages import import_named, not_found
from jaxrl.types import Env, EnvLike, HostEnv

if TYPE_CHECKING:
    from jaxrl.envs.checks.check_env import check_env
    from jaxrl.envs.checks.validate import EnvError, validate_env

__all__ = ["Backend", "EnvError", "check_env", "describe_env", "list_envs", "make_env", "register_backend", "validate_env"]


_CHECKS = {"check_env": "check_env", "EnvError": "validate", "validate_env": "validate"}


def __getattr__(name: str) -> Any:
    """Import the checks, which need jax, on first access: a process that only steps host environments does not load it."""
    if name not in _CHECKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"jaxrl.envs.checks.{_CHECKS[name]}"), name)


class Backend(NamedTuple):
    """Source of environments: how to build, list and group them."""

    make: Callable[[str, dict[str, Any]], Env | HostEnv]
    """(name, options) -> environment. ``make_env`` sets the environment's ``name``."""
    list_names: Callable[[], list[str]]
    family: Callable[[str], str] = lambda name: "all"
    """Family of environments that a name belongs to, for summaries."""


EXTRAS = ("brax", "craftax", "jaxmarl", "jumanji", "pettingzoo", "pgx", "playground", "xminigrid")
"""Backends whose package is an optional extra of jaxrl of the same name; it may be absent."""
_MODULES = {name: f"jaxrl.envs.backends.{name}" for name in ("gymnax", "envpool", "gymnasium", *EXTRAS)}
_MODULES["jaxrl"] = "jaxrl.envs.builtin"
"""Backend -> its module, imported on first use. It has ``make`` and ``list_names``, and may have ``family``."""
_ON_HOST = {"envpool", "gymnasium", "pettingzoo"}
"""Backends whose environments run on the host. Listed here because importing them might start JAX's backend."""
_REGISTERED: dict[str, Backend] = {}


def make_env(env_id: str | Callable[..., Any], /, **options: Any) -> Env | HostEnv:
    """Return the environment for an id. The same id and options give the same object.

    Args:
      env_id: ``name`` (gymnax), ``backend:name``, or ``module:function`` for a custom environment: the function is imported,
        called with the options, and must return an ``Env`` or a ``HostEnv``. Options may follow, as in
        ``"CartPole-v1?gravity=5.0&max_steps_in_episode=100"``; values are Python literals. Wrappers (see
        ``jaxrl.envs.wrappers``) come last, the innermost first: ``"CartPole-v1|frame_stack(4)|time_limit(200)"``. Instead of an
        id: a Gymnasium environment class, or a function that returns a Gymnasium environment. If it can be imported, it gets an
        id; otherwise it works in this process only.
      options: plain data. They override options in the id. The backend defines which options an environment takes.

    Returns:
      An environment whose ``name`` is the complete id, options included: ``make_env(env.name)`` rebuilds it in any process.

    Raises:
      ValueError: unknown backend, environment or option, or an invalid value. Names the nearest match and what is allowed.
      TypeError: ``env_id`` cannot make an environment. Says what to pass instead.
      ModuleNotFoundError: the backend's package is not installed. Names the ``pip install`` command for it.
    """
    if not isinstance(env_id, str):
        from jaxrl.envs.backends.gymnasium_classes import from_gymnasium

        return from_gymnasium(env_id, options, make_env)
    parsed = parse_id(env_id)
    parsed = parsed._replace(options={**parsed.options, **options})
    if parsed.wrappers:
        from jaxrl.envs.wrappers import bind_call

        parsed = parsed._replace(wrappers=tuple(map(bind_call, parsed.wrappers)))
    canonical_id = format_id(parsed)
    if canonical_id not in _MADE or _MADE_BY.get(canonical_id) is not _function_of(parsed):
        _MADE[canonical_id] = _make(canonical_id)
        _MADE_BY[canonical_id] = _function_of(parsed)
    return _MADE[canonical_id]


_MADE: dict[str, Env | HostEnv] = {}
"""Environments made so far, by canonical id."""
_MADE_BY: dict[str, Any] = {}
"""By canonical id, the user's function that made the environment, or None. It is another one after ``importlib.reload``."""


def _function_of(parsed: EnvId) -> Any:
    """Return the function of an imported module that an id names; None if it names none."""
    module, _, function = f"{parsed.backend}:{parsed.name}".rpartition(":")
    return getattr(sys.modules.get(module.rpartition(":")[2]), function, None)


def resolve_env(env: EnvLike) -> Env | HostEnv:
    """Return the environment for an id, a class or a function, or ``env`` itself, after validation of its shapes."""
    from jaxrl.envs.checks.validate import validate_env

    if not isinstance(env, Env | HostEnv):
        env = make_env(env)
    validate_env(env)
    return env


REACHING = re.compile(r"(.*_)?(path|file|dir|args)")
"""Options that name files or even programs: VizDoom starts the program at ``vzd_path``."""


def factory_of(env_id: str) -> str | None:
    """Return the ``module:function`` that an id names; None if a backend makes the environment."""
    parsed = parse_id(env_id)
    return None if parsed.backend in _backends() else f"{parsed.backend}:{parsed.name}"


def imported_by(env_id: str) -> str | None:
    """Return the ``module:name`` that an id imports: a factory, or the environment in gymnasium:module:name. None without one."""
    backend, name, *_ = parse_id(env_id)
    if backend == "pettingzoo" and all(part.isidentifier() for part in name.split(".")):
        return f"{name}:parallel_env"
    return factory_of(env_id) or (name if backend in ("gymnasium", "pettingzoo") and ":" in name else None)


def reach_of(env_id: str) -> str | None:
    """Return what the user must trust before an id from data is used: ``module:name``, or an id whose options name files."""
    parsed = parse_id(env_id)
    inside = format_id(parsed._replace(wrappers=()))
    return imported_by(env_id) or (inside if any(map(REACHING.fullmatch, parsed.options)) else None)


def _make(canonical_id: str) -> Env | HostEnv:
    backend, name, options, wrappers = parsed = parse_id(canonical_id)
    if wrappers:
        from jaxrl.envs.wrappers import wrap

        return wrap(make_env(format_id(parsed._replace(wrappers=wrappers[:-1]))), wrappers[-1])
    if backend in _backends():
        try:
            env = _backend(backend).make(name, options)
        except UnknownName as error:
            there = _elsewhere(name, backend, error.known)
            raise (ValueError(f"{backend} has no environment {name!r}: {there}") if there else error) from None
    else:
        env = _call_factory(EnvId(backend, name, options))
    if not isinstance(env, Env | HostEnv):
        raise TypeError(f"{canonical_id} returned {type(env).__name__}; it must return a jaxrl.types.Env or HostEnv")
    return env._replace(name=canonical_id)


def list_envs(backend: str | None = None) -> list[str]:
    """List the ids that ``make_env`` takes: those of one backend, or of every backend whose package is installed."""
    known = _backends()
    if backend is not None:
        if not isinstance(backend, str) or backend not in known:
            kind = ValueError if isinstance(backend, str) else TypeError
            raise kind(f"unknown backend {shortened(backend)}.{nearest(backend, known)} Backends: {', '.join(known)}.")
        return [f"{backend}:{name}" for name in _backend(backend).list_names()]
    ids: list[str] = []
    for each in known:
        with contextlib.suppress(ModuleNotFoundError):  # not installed
            ids += list_envs(each)
    return ids


def family_of(env_id: str) -> str:
    """Return the family of an environment within its backend: "MinAtar", "atari", ..."""
    parsed = parse_id(env_id)
    return _backend(parsed.backend).family(parsed.name)


def runs_on_host(env_id: str) -> bool:
    """Return whether an id, possibly incomplete, belongs to a backend whose environments run on the host. Imports nothing."""
    return env_id.partition(":")[0] in _ON_HOST


def register_backend(
    name: str, make: Callable[[str, dict[str, Any]], Env | HostEnv], list_names: Callable[[], list[str]], *, on_host: bool = False
) -> None:
    """Let ``make_env("name:...")`` call ``make(rest, options)``. Each process has to register the backend itself.

    Args:
      on_host: the backend makes ``HostEnv``s only. The command line then asks JAX for a single device.
    """
    if not name.isidentifier():
        raise ValueError(f"backend name {name!r} must be an identifier such as 'my_backend'")
    if name in _backends():
        raise ValueError(f"backend {name!r} exists already. Backends: {', '.join(_backends())}.")
    _REGISTERED[name] = Backend(make, list_names)
    _ON_HOST.update([name] * on_host)


def describe_env(env: Env | HostEnv) -> str | None:
    """Return the id from which another process can rebuild ``env``: same functions, equal parameters. None if there is none.

    The name alone is not trusted: a ``module:function`` in it is not imported, unless ``make_env`` imported it before.
    """
    if env.name.startswith("__main__:"):
        return None  # another process has another __main__
    try:
        if env.name.partition("|")[0] not in _MADE and imported_by(env.name):
            return None
        rebuilt = make_env(env.name)
    except Exception:  # any failure, including one in a user's function, means that this id does not rebuild it
        return None
    from jaxrl.envs.checks.validate import same
    from jaxrl.spaces.trees import same_shapes

    # The rest, without parameters, name and rendering, must be equal in a rebuilt environment.
    data = ("params", "name", "render", "render_fps", "open_render")
    rest = [{name: part for name, part in each._asdict().items() if name not in data} for each in (rebuilt, env)]
    params = [getattr(each, "params", ()) for each in (rebuilt, env)]
    equal_but_for_data = type(rebuilt) is type(env) and rest[0] == rest[1]
    return env.name if equal_but_for_data and same_shapes(*params) and same(*params) else None


def _elsewhere(name: str, asked: str = DEFAULT_BACKEND, known: Iterable[str] = ()) -> str:
    """Return advice for an error: ids with this name or with another version of it. Empty if there are none.

    A namespace before the name, as in ALE/Pong-v5, comes from another library and is ignored. Versions of the backend ``asked``
    come first; ``known`` are its names, if they differ from those that it lists.
    """
    wanted, names = version_of(name), {name, name.rpartition("/")[2]}
    exact: list[str] = []
    others: list[tuple[int, str]] = []
    for backend in dict.fromkeys((asked, *_backends())):
        with contextlib.suppress(Exception):  # skip a package that is absent or broken
            names_there = [*known] if known and backend == asked else _backend(backend).list_names()
            exact += [shortest(f"{backend}:{each}") for each in names_there if each in names]
            versions = [(version_of(each), each) for each in names_there if each not in names]
            others += [(v.number, shortest(f"{backend}:{each}")) for v, each in versions if v.stem == wanted.stem]
    newest = max(others, key=lambda other: other[0], default=None)
    if not exact:
        atari = ", which skips 4 frames and stacks 4 by itself" if wanted.skips else ""
        return f"write {newest[1]!r}{atari}" if newest else ""
    newer = f", or the newer {newest[1]!r}" if newest and newest[0] > wanted.number else ""
    return f"write {' or '.join(map(repr, sorted(exact)))}{newer}"


def _backends() -> list[str]:
    return sorted({*_MODULES, *_REGISTERED})


def _backend(name: str) -> Backend:
    if name not in _REGISTERED:
        module = importlib.import_module(_MODULES[name])
        _REGISTERED[name] = Backend(*(getattr(module, part) for part in Backend._fields if hasattr(module, part)))
    return _REGISTERED[name]


def unknown_module(module: str, function: str, folder: str | None = None, *, is_name: bool = True) -> ValueError:
    """Return the error for ``module:function`` if ``module`` is neither a backend nor a module, or cannot be one (``is_name``).

    Args:
      folder: see ``ids.not_found``.
    """
    problem = f"unknown backend {module!r} in the environment id '{module}:{function}'."
    plain = module.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    if plain == module and (hint := similar(module, _backends(), 0.65)):
        return ValueError(problem + hint)
    if plain != module:
        fix = f"or name a module as Python imports it, without a folder and without .py: '{plain}:{function}'"
    elif not is_name:
        fix = "or name a module and its function as Python imports them"
    else:
        fix = f"and {not_found(module, folder)}"
    return ValueError(f"{problem} Backends: {', '.join(_backends())}; {fix}")


def _call_factory(env_id: EnvId) -> Any:
    """Call the function ``module:function`` with the id's options."""
    module_name, function_name, options, _ = env_id
    if not function_name.isidentifier() and (there := _elsewhere(function_name)):
        raise ValueError(f"unknown backend {module_name!r}: {there}. Backends: {', '.join(_backends())}")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise unknown_module(module_name, function_name, is_name=False)
    if (module := import_named(module_name)) is None:
        raise unknown_module(module_name, function_name)
    factory = getattr(module, function_name, None)
    if not callable(factory):
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"module {module_name} has no function {function_name!r}.{nearest(function_name, functions)}")
    label, arguments = f"{module_name}:{function_name}", defaults_of(factory)
    if not takes_any(factory):
        check_known(label, options, arguments)
    for name, default in arguments.items():
        if default is inspect.Parameter.empty and name not in options:
            raise ValueError(f"{label} needs the option {name!r}: make_env({label!r}, {name}=...)")
    for name, value in options.items():
        _check_own_option(label, name, value, arguments.get(name))
    return factory(**options)


def _check_own_option(label: str, name: str, value: Any, default: Any) -> None:
    """Raise ValueError for an option of a user's function whose value is text where it cannot be meant."""
    if isinstance(default, bool):
        check_option(label, name, value, default)
    elif isinstance(value, str) and isinstance(default, int | float):
        raise ValueError(f"{label}: option {name}={shortened(value)} must be a number (its default is {default})")
    elif isinstance(value, str) and value in ("true", "false", "none"):
        raise ValueError(f"{label}: option {name}={value} is text: write {value.capitalize()}")
