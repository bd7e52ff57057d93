"""Environments by id: ``make_env("CartPole-v1")``, ``make_env("envpool:Pong-v5", stack_num=2)``, ``make_env("my_env:chain")``."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl.envs.ids import DEFAULT_BACKEND, EnvId, UnknownName, check_known, format_id, parse_id, shortest, version_of
from jaxrl.settings.aliases import nearest, shortened, similar
from jaxrl.types import Env, HostEnv

if TYPE_CHECKING:
    from jaxrl.envs.checks.check_env import check_env
    from jaxrl.envs.checks.validate import EnvError, validate_env

__all__ = ["Backend", "EnvError", "check_env", "describe_env", "list_envs", "make_env", "register_backend", "validate_env"]


_CHECKS = {
    "check_env": "jaxrl.envs.checks.check_env",
    "EnvError": "jaxrl.envs.checks.validate",
    "validate_env": "jaxrl.envs.checks.validate",
}


def __getattr__(name: str) -> Any:
    """What needs jax is imported when it is asked for, so that a process which only steps host environments need not."""
    if name not in _CHECKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_CHECKS[name]), name)


class Backend(NamedTuple):
    """Where environments come from."""

    make: Callable[[str, dict[str, Any]], Env | HostEnv]
    """(name, options) -> environment. It need not set ``name``: ``make_env`` does."""
    list_names: Callable[[], list[str]]
    family: Callable[[str], str] = lambda name: "all"
    """Which of the backend's kinds a name belongs to, for summaries."""


# Imported on first use: each has `make`, `list_names` and `family`.
_MODULES = {
    "gymnax": "jaxrl.envs.backends.gymnax",
    "envpool": "jaxrl.envs.backends.envpool",
    "gymnasium": "jaxrl.envs.backends.gymnasium",
    "brax": "jaxrl.envs.backends.brax",
    "craftax": "jaxrl.envs.backends.craftax",
    "jumanji": "jaxrl.envs.backends.jumanji",
    "xminigrid": "jaxrl.envs.backends.xminigrid",
    "jaxrl": "jaxrl.envs.backends.builtin",
}
EXTRAS = ("brax", "craftax", "jumanji", "xminigrid")
"""Those whose package is an extra of jaxrl's, by the same name: without it nothing is wrong."""
_ON_HOST = {"envpool", "gymnasium"}
"""Those whose environments run on the host: said here, as an import might start JAX's backend."""
_REGISTERED: dict[str, Backend] = {}


def make_env(env_id: str | Callable[..., Any], /, **options: Any) -> Env | HostEnv:
    """The environment that an id names; the same object for the same id and options.

    Args:
      env_id: ``name`` (gymnax), ``backend:name``, or ``module:function`` for an environment of your own: the function is
        imported, called with the options, and must return an ``Env`` or a ``HostEnv``. Options may follow, as in
        ``"CartPole-v1?gravity=5.0&max_steps_in_episode=100"``; values are Python literals. Then wrappers (see
        ``jaxrl.envs.wrappers``), the innermost first: ``"CartPole-v1|frame_stack(4)|time_limit(200)"``. Or a class of Gymnasium
        environments, or a function that makes one: what can be imported has an id, and the rest works in this process alone.
      options: plain data; they win over those in the id. What an environment takes is its backend's matter.

    Returns:
      An environment whose ``name`` is the whole id, options included: ``make_env(env.name)`` gives it back, in any process.

    Raises:
      ValueError: unknown backend, environment or option, or a value that does not fit; names the nearest and what is allowed.
      TypeError: what is given makes no environment; says what to give instead.
      ModuleNotFoundError: the backend's package is not installed; names the ``pip install`` that brings it.
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
    if canonical_id not in _MADE:
        _MADE[canonical_id] = _make(canonical_id)
    return _MADE[canonical_id]


_MADE: dict[str, Env | HostEnv] = {}
"""By canonical id."""


REACHING = re.compile(r"(.*_)?(path|file|dir|args)")
"""Options that name files, and even programs: VizDoom starts the one at ``vzd_path``."""


def factory_of(env_id: str) -> str | None:
    """The ``module:function`` that an id names; None where a backend makes the environment."""
    parsed = parse_id(env_id)
    return None if parsed.backend in _backends() else f"{parsed.backend}:{parsed.name}"


def imported_by(env_id: str) -> str | None:
    """``module:name`` of what an id brings from outside: a factory, or the environment in gymnasium:module:name."""
    parsed = parse_id(env_id)
    return factory_of(env_id) or (parsed.name if parsed.backend == "gymnasium" and ":" in parsed.name else None)


def reach_of(env_id: str) -> str | None:
    """What somebody has to vouch for before an id from data is used: ``module:name``, or an id whose options name files."""
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
    """Ids that ``make_env`` takes: of one backend, or of all whose package is installed."""
    if backend is not None:
        if not isinstance(backend, str) or backend not in _backends():
            kind = ValueError if isinstance(backend, str) else TypeError
            raise kind(
                f"unknown backend {shortened(backend)}.{nearest(backend, _backends())} Backends: {', '.join(_backends())}."
            )
        return [f"{backend}:{name}" for name in _backend(backend).list_names()]
    ids: list[str] = []
    for each in _backends():
        try:
            ids += list_envs(each)
        except ModuleNotFoundError:
            continue  # not installed, so it offers nothing here
    return ids


def family_of(env_id: str) -> str:
    """Which of its backend's kinds of environments this one is: "MinAtar", "atari", ..."""
    parsed = parse_id(env_id)
    return _backend(parsed.backend).family(parsed.name)


def runs_on_host(env_id: str) -> bool:
    """Whether an id, which need not be whole, is of a backend whose environments run on the host; nothing is imported."""
    return env_id.partition(":")[0] in _ON_HOST


def register_backend(
    name: str,
    make: Callable[[str, dict[str, Any]], Env | HostEnv],
    list_names: Callable[[], list[str]],
    *,
    on_host: bool = False,
) -> None:
    """Let ``make_env("name:...")`` call ``make(rest, options)``. Other processes know the backend once they ran this too.

    Args:
      on_host: it makes ``HostEnv``s only, for which the command line asks JAX for no more than one device.
    """
    if not name.isidentifier():
        raise ValueError(f"backend name {name!r} must be an identifier such as 'my_backend'")
    if name in _backends():
        raise ValueError(f"backend {name!r} exists already. Backends: {', '.join(_backends())}.")
    _REGISTERED[name] = Backend(make, list_names)
    _ON_HOST.update([name] * on_host)


def describe_env(env: Env | HostEnv) -> str | None:
    """The id from which another process can rebuild ``env``: same functions, equal parameters. None when there is no such id.

    A name is only a name: the ``module:function`` that it says is not imported, unless ``make_env`` did so before.
    """
    if env.name.startswith("__main__:"):
        return None  # another process has another __main__
    try:
        if env.name.partition("|")[0] not in _MADE and imported_by(env.name):
            return None
        again = make_env(env.name)
    except Exception:  # whatever keeps the id from being built, a user's own function included, means: not by this id
        return None
    from jaxrl.envs.checks.validate import same
    from jaxrl.spaces.trees import same_shapes

    equal_but_for_data = type(again) is type(env) and _without_data(again) == _without_data(env)
    params = [getattr(each, "params", ()) for each in (again, env)]
    return env.name if equal_but_for_data and same_shapes(*params) and same(*params) else None


def _without_data(env: Env | HostEnv) -> Env | HostEnv:
    """What an id must give again beside parameters; how it is drawn is not part of that."""
    other = {"params": (), "render": None} if isinstance(env, Env) else {"open_render": None}
    return env._replace(name="", render_fps=0.0, **other)


def _elsewhere(name: str, asked: str = DEFAULT_BACKEND, known: Iterable[str] = ()) -> str:
    """For an error: which ids have this name, or another version of it; nothing where none has.

    A namespace before it, as in ALE/Pong-v5, is another library's.

    Args:
      asked: the backend that it was looked for in, whose other versions come first.
      known: the names that this one has, if others than it lists.
    """
    wanted, names = version_of(name), {name, name.rpartition("/")[2]}
    exact: list[str] = []
    others: list[tuple[int, str]] = []
    for backend in dict.fromkeys((asked, *_backends())):
        with contextlib.suppress(Exception):  # a package that is absent or broken offers nothing
            there = [*known] if known and backend == asked else _backend(backend).list_names()
            exact += [shortest(f"{backend}:{each}") for each in there if each in names]
            versions = [(version_of(each), each) for each in there if each not in names]
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
        _REGISTERED[name] = Backend(module.make, module.list_names, module.family)
    return _REGISTERED[name]


def unknown_module(module: str, function: str, folder: str | None = None) -> ValueError:
    """The error for ``module:function`` where there is neither such a backend nor such a module.

    Args:
      folder: where the module was looked for, besides the installed packages; None: its name can be none.
    """
    what, plain = f"unknown backend {module!r}", module.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    if plain == module and (hint := similar(module, _backends(), 0.65)):
        return ValueError(f"{what} in the environment id '{module}:{function}'.{hint}")
    if plain != module:
        fix = f"or name a module as Python imports it, without a folder and without .py: '{plain}:{function}'"
    elif folder is None:
        fix = "or name a module and its function as Python imports them"
    else:
        fix = (
            f"and no module {module!r} was found in {folder!r} or among the installed packages: work in the folder that holds "
            "it, or put that folder on PYTHONPATH"
        )
    return ValueError(f"{what} in the environment id '{module}:{function}'. Backends: {', '.join(_backends())}; {fix}")


def _call_factory(env_id: EnvId) -> Any:
    """Call the function ``module:function`` with the id's options."""
    module_name, function_name, options, _ = env_id
    if not function_name.isidentifier() and (there := _elsewhere(function_name)):
        raise ValueError(f"unknown backend {module_name!r}: {there}. Backends: {', '.join(_backends())}")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise unknown_module(module_name, function_name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports something that is not
        raise unknown_module(module_name, function_name, sys.path[0] or "the current folder") from None
    factory = getattr(module, function_name, None)
    if not callable(factory):
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"module {module_name} has no function {function_name!r}.{nearest(function_name, functions)}")
    label, parameters = f"{module_name}:{function_name}", inspect.signature(factory).parameters.values()
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        check_known(label, options, [parameter.name for parameter in parameters])
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in options and "VAR" not in parameter.kind.name:
            raise ValueError(f"{label} needs the option {parameter.name!r}: make_env({label!r}, {parameter.name}=...)")
    return factory(**options)
