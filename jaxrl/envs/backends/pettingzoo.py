"""Environments of PettingZoo as ``HostEnv``s of several agents: registered ones, and those that a module defines."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.envs.backends.gymnasium import OURS as GYMNASIUM
from jaxrl.envs.backends.gymnasium import action_space_of, chosen_of, narrow_space, open_task
from jaxrl.envs.backends.pettingzoo_vector import Maker, Task, begun, load
from jaxrl.envs.backends.values import Wrong
from jaxrl.envs.host import error_text, one_line
from jaxrl.envs.ids import UnknownName, check_known, check_option, defaults_of, smallest, takes_any
from jaxrl.envs.teams import padding_of
from jaxrl.settings.aliases import nearest
from jaxrl.settings.packages import import_named, import_package, not_found
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import PRIVILEGED_KEY, entries_of
from jaxrl.types import HostEnv

OURS: dict[str, Any] = {
    **{name: GYMNASIUM[name] for name in ("num_workers", "worker_timeout", "worker_restarts", "max_episode_steps")},
    "agent_id": None,
    "world_state": False,
}
"""Options that jaxrl adds to every environment, with defaults."""

PACKAGES = {
    "atari": ("multi_agent_ale_py", "pygame"),
    "butterfly": ("pygame", "pymunk"),
    "classic": ("pygame",),
    "sisl": ("pygame", "pymunk", "scipy", "Box2D"),
}
"""Packages that PettingZoo's own families need in addition."""

MODULES = ("mpe2",)
"""Packages with environments of PettingZoo that register none: one in each module whose name ends in a version."""

FUNCTIONS = ("parallel_env", "env")
"""Names of the function that makes a module's environment, the one of the parallel interface first."""


def list_names() -> list[str]:
    """List the registered environments of the parallel interface whose packages are installed, and the modules of ``MODULES``."""
    names = [name for name in _registry() if not _missing(family(name))]
    for package in MODULES:
        if spec := importlib.util.find_spec(package):
            found = [each.name for each in pkgutil.iter_modules(spec.submodule_search_locations)]
            names += [f"{package}.{name}" for name in found if name.rpartition("_v")[2].isdecimal()]
    return sorted(names)


def family(name: str) -> str:
    """Return the family of an environment: PettingZoo's subpackage, such as butterfly, or the package that defines it."""
    return name.rpartition(":")[0].partition(".")[0] or name.partition("/")[0].partition(".")[0]


def make(name: str, options: dict[str, Any]) -> HostEnv:
    """Make an environment of PettingZoo (Terry et al. 2021) from its parallel interface. One instance is built and reset, to
    read its spaces and masks, then closed; ``open`` starts the others.

    Args:
      name: name of a registered environment, such as ``butterfly/pistonball-v6``; a module, whose function ``parallel_env`` is
        called; or ``module:name`` of a function or class, or of an environment that the module registers. An AEC environment
        whose metadata say ``is_parallelizable`` is converted with PettingZoo's ``aec_to_parallel``.
      options: arguments of the environment, and those of ``OURS``. ``num_workers``, ``worker_timeout``, ``worker_restarts``: as
        for Gymnasium's environments. ``max_episode_steps``: truncates the agents that are left after this number of rows.
        ``agent_id``: add the number of an agent to its observation; by default only if the agents have unequal
        spaces, which are then padded (``jaxrl.envs.teams.pad``). ``world_state``: add what ``state()`` returns as
        ``privileged_state``.

    Returns:
      A HostEnv with ``num_agents``, in the order of ``possible_agents``. An agent that ended keeps its flags and its last
      observation until all have ended. An ``action_mask`` in Dict observations or, if the first infos have one, in the infos
      becomes that of jaxrl. Types and seeds are those of Gymnasium's environments.

    Raises:
      ValueError: the environment or an option does not exist, its agents take turns, or spaces are not supported.
      ModuleNotFoundError: a required package is not installed.
    """
    label = f"pettingzoo:{name}"
    import_package("pettingzoo", label, extra="pettingzoo")
    maker, may_draw = _with_options(label, _find(label, name), {key: x for key, x in options.items() if key not in OURS})
    ours = {**OURS, **chosen_of(label, options, OURS)}
    if ours["agent_id"] not in (None, True, False):
        raise ValueError(f"{label}: option agent_id={ours['agent_id']!r} must be True or False")
    try:
        env = maker()
    except ImportError as error:
        raise ModuleNotFoundError(f"{label} cannot be built here: {one_line(error)}{_extra(name)}") from error
    except Wrong as error:
        raise ValueError(f"{label}: {error}") from None
    except Exception as error:
        with_options = f" with the options {options}" if options else ""
        raise ValueError(f"pettingzoo cannot build {label}{with_options}: {error_text(error)}") from error
    try:
        task = _task(label, maker, env, ours)
        modes, fps = env.metadata.get("render_modes") or (), env.metadata.get("render_fps")
    finally:
        env.close()
    workers = {"timeout": float(ours["worker_timeout"]), "max_restarts": ours["worker_restarts"]}
    return HostEnv(
        partial(open_task, task, num_workers=ours["num_workers"], **workers),
        _common_space(task),
        task.action_space,
        dict(options),
        label,
        max_episode_steps=task.max_episode_steps,
        open_render=partial(task.open, render_mode="rgb_array") if may_draw and "rgb_array" in modes else None,
        render_fps=float(fps or 30),
        num_agents=len(task.agents),
    )


def _task(label: str, maker: Maker, env: Any, ours: Mapping[str, Any]) -> Task:
    """Return the description of an environment, from an instance that is reset for it."""
    agents = tuple(getattr(env, "possible_agents", ()))
    if not agents:
        raise ValueError(f"{label} has no possible_agents: jaxrl needs the names of all agents before an episode begins")
    try:
        _, infos = begun(env, agents, 0)
        told = all(MASK_KEY in infos.get(agent, {}) for agent in agents)
    except Wrong as error:
        raise ValueError(f"{label}: {error}") from None
    except Exception as error:
        raise ValueError(f"{label}: reset(seed=0) failed: {error_text(error)}") from error
    taken = tuple(action_space_of(f"{label}: agent {agent!r}", env.action_space(agent)) for agent in agents)
    seen = tuple(
        _masked(narrow_space(f"{label}: agent {agent!r}", "observation_space", env.observation_space(agent)), action, told)
        for agent, action in zip(agents, taken, strict=True)
    )
    equal = all(space == spaces_[0] for spaces_ in (seen, taken) for space in spaces_)
    agent_id, padding = not equal if ours["agent_id"] is None else ours["agent_id"], None
    if not equal or agent_id:
        try:
            padding = padding_of(seen, taken, agent_id=agent_id)
        except ValueError as error:
            raise ValueError(f"{label}, whose agents are {', '.join(map(repr, agents))}: {error}") from None
    action_space = taken[0] if padding is None else padding.action_space
    world = _world_space(label, env) if ours["world_state"] else None
    return Task(label, maker, agents, seen, taken, told, action_space, padding, world, ours["max_episode_steps"])


def _world_space(label: str, env: Any) -> spaces.Space:
    """Return the space of ``state()``, of an environment that was reset."""
    try:
        state = np.asarray(env.state())
    except (AttributeError, NotImplementedError):
        raise ValueError(f"{label} has no state(), which world_state=True needs: leave it out") from None
    space = getattr(env, "state_space", None)
    if space is None:
        space = spaces.Box(-np.inf, np.inf, state.shape, np.float32)
    return narrow_space(label, "state_space", space)


def _masked(space: spaces.Space, action_space: spaces.Space, told: bool) -> spaces.Space:
    """Return an observation space whose mask, which PettingZoo declares as a Box, is as jaxrl's."""
    if not isinstance(action_space, spaces.Discrete) or not (
        told or (isinstance(space, spaces.Dict) and MASK_KEY in space.spaces)
    ):
        return space
    parts = entries_of(space)
    found = parts.get(MASK_KEY, spaces.MultiBinary(int(action_space.n)))
    fits = found.shape == (int(action_space.n),) and np.dtype(found.dtype).kind in "biu"
    return spaces.Dict({**parts, MASK_KEY: spaces.MultiBinary(int(action_space.n)) if fits else found})


def _common_space(task: Task) -> spaces.Space:
    """Return the observation space of each agent, as the environments give it."""
    space = task.seen[0] if task.padding is None else task.padding.observation_space
    if task.world is None:
        return space
    return spaces.Dict({**entries_of(space), PRIVILEGED_KEY: task.world})


def _registry() -> dict[str, Any]:
    return import_package("pettingzoo", "the backend pettingzoo", extra="pettingzoo").parallel_registry


def _missing(family: str) -> list[str]:
    return [package for package in PACKAGES.get(family, ()) if importlib.util.find_spec(package) is None]


def _extra(name: str) -> str:
    name = name.removeprefix("pettingzoo.")
    return f': pip install "pettingzoo[{family(name)}]"' if _missing(family(name)) else ""


def _find(label: str, name: str) -> Maker:
    """Import the module that a name contains, and return what makes the environment."""
    registry, version = _registry(), name.replace("_v", "-v")
    if version in registry:
        return _registered(version)
    module, colon, function = name.rpartition(":")
    if not colon and all(part.isidentifier() for part in name.split(".")):
        module = name
    if not module:
        listing = "jaxrl.list_envs('pettingzoo') lists those that it has; one of a module is 'pettingzoo:module:function'"
        raise UnknownName(f"pettingzoo has no environment {name!r}.{nearest(version, registry)} {listing}", registry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            found = import_named(module)
        except ImportError as error:
            raise ModuleNotFoundError(f"{label} cannot be built here: {one_line(error)}{_extra(name)}") from error
    if found is None:
        known = [each for each in list_names() if each.rpartition(".")[2].rpartition("_v")[0] == module.rpartition(".")[2]]
        hint = nearest(module, [*known, *list_names()])
        raise ValueError(f"{label}: {not_found(module)}{hint and '.' + hint}")
    if function.replace("_v", "-v") in registry:
        return _registered(function.replace("_v", "-v"))
    defined = {each for each, value in vars(found).items() if callable(value) and not each.startswith("_")}
    names = [function] if colon else [each for each in FUNCTIONS if each in defined]
    if not names or names[0] not in defined:
        lacks = f"no {function!r}" if colon else f"neither {' nor '.join(FUNCTIONS)}"
        raise ValueError(f"{label}: {module} has {lacks}.{nearest(function, defined)} Write 'pettingzoo:module:function'")
    is_own = module == "__main__"  # another process has another __main__
    return Maker(getattr(found, names[0]) if is_own else f"{module}:{names[0]}")


def _registered(name: str) -> Maker:
    spec = _registry()[name]
    limit = {} if spec.max_cycles in (None, -1) else {"max_cycles": spec.max_cycles}
    return Maker(spec.entry_point, {**limit, **spec.kwargs})


def _with_options(label: str, maker: Maker, options: Mapping[str, Any]) -> tuple[Maker, bool]:
    """Return a copy with these arguments, checked, and whether the environment takes a ``render_mode``."""
    if "render_mode" in options:
        raise ValueError(f"{label}: render_mode is not an option: jaxrl sets it when it renders (jaxrl record)")
    try:
        creator = load(maker.entry)
    except ImportError as error:
        raise ModuleNotFoundError(f"{label} cannot be built here: {one_line(error)}{_extra(label[11:])}") from error
    defaults = defaults_of(creator)
    if not takes_any(creator):
        check_known(label, options, {*defaults, *OURS} - {"render_mode"})
    for name, default in defaults.items():
        if default is inspect.Parameter.empty and name not in {**maker.arguments, **options}:
            raise ValueError(f"{label} needs the option {name!r}: make_env({label!r}, {name}=...)")
    for option, value in options.items():
        default = maker.arguments.get(option, defaults.get(option, inspect.Parameter.empty))
        check_option(label, option, value, default, at_least=smallest(default))
    return maker._replace(arguments={**maker.arguments, **options}), takes_any(creator) or "render_mode" in defaults
