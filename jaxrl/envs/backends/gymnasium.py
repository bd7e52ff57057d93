"""Gymnasium environments as ``HostEnv``s: registered ones, and those that a module registers or defines."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import DependencyNotInstalled

from jaxrl.envs.backends.gymnasium_vector import Task
from jaxrl.envs.host import LEARNING, MOST_ACTIONS, error_text, narrow, one_line, parts_of
from jaxrl.envs.ids import UnknownName, check_known, check_option, defaults_of, smallest, takes_any
from jaxrl.envs.subprocess.processes import Processes
from jaxrl.settings.aliases import nearest
from jaxrl.settings.packages import import_named, not_found
from jaxrl.settings.validation import check_count
from jaxrl.types import HostEnv, HostEnvs

OURS: dict[str, Any] = {
    "num_workers": 0,
    "worker_timeout": 300.0,
    "worker_restarts": 0,
    "max_episode_steps": None,
    "reward_clip": False,
    "episodic_life": False,
}
"""Options that jaxrl adds to every environment, with defaults. ``max_episode_steps`` defaults to the limit that is registered, or
that the environment has when it is built."""

LIMIT = "max_episode_steps"

PACKAGES = {"box2d": ("Box2D", "pygame"), "mujoco": ("mujoco", "imageio")}
"""Packages that Gymnasium's own families need in addition."""

EXTRAS = {"box2d": "jaxrl[box2d]", "mujoco": "gymnasium[mujoco]"}
"""Extras that install those packages."""

WRAP = "convert it with a Gymnasium wrapper in a function that returns the environment, and name it: gymnasium:module:function"


def list_names() -> list[str]:
    """List the currently registered environments whose packages are installed, without stubs that only name a replacement."""
    entries = {name: getattr(spec.entry_point, "__module__", None) for name, spec in gymnasium.registry.items()}
    return [name for name, module in entries.items() if module != "gymnasium.envs" and not _missing(family(name))]


def family(name: str) -> str:
    """Return the family of an environment: Gymnasium's subpackage, such as classic_control, or the package that defines it."""
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    entry = getattr(spec, "entry_point", None) or name
    module = entry if isinstance(entry, str) else str(getattr(entry, "__module__", "all"))
    parts = module.partition(":")[0].split(".")
    return parts[2] if parts[:2] == ["gymnasium", "envs"] and parts[2:] else parts[0]


def _missing(family: str) -> list[str]:
    return [package for package in PACKAGES.get(family, ()) if importlib.util.find_spec(package) is None]


def make(name: str, options: dict[str, Any]) -> HostEnv:
    """Make a Gymnasium environment. One instance is built to read its spaces, then closed; ``open`` starts the others.

    Args:
      name: name of a registered environment; or ``module:name`` of one that the module registers on import, or defines as a class
        or function.
      options: arguments of the environment, and those of ``OURS``. ``num_workers``: worker processes that step the environments;
        0 steps them in this process. ``worker_timeout``: seconds that a worker may take for one row. ``worker_restarts``: how
        often each crashed or hung worker is replaced; with 0, its failure ends all workers (see ``Processes``).
        ``max_episode_steps``: replaces the registered limit; an environment that is built with a limit, such as what a function
        gets from ``gymnasium.make``, keeps that, so a larger one is refused. It is passed on to an environment that has an
        argument of this name. ``reward_clip`` (the sign of the reward) and ``episodic_life`` (a lost life ends an episode; for
        environments whose info has ``lives``) apply to training only: ``open_eval`` gives raw rewards and whole games.

    Returns:
      A HostEnv with 32-bit observations and discrete actions that count from 0 (MultiBinary becomes MultiDiscrete). The i-th
      environment opened is seeded by a hash of (seed, first_id + i). ``HostStep.info`` has the entries of ``TOLD`` that the info
      of ``reset`` has, and the raw ``reward`` if ``reward_clip`` is on.

    Raises:
      ValueError: the environment or an option does not exist, or jaxrl does not support its spaces.
      ModuleNotFoundError: a required package is not installed.
    """
    label = f"gymnasium:{name}"
    return make_of(label, *_find(label, name), options)


def make_of(label: str, module: str | None, spec: EnvSpec, options: Mapping[str, Any]) -> HostEnv:
    """Make a HostEnv from a spec, as ``make`` does. Each process imports ``module`` before it makes an environment."""
    spec, may_draw = _with_options(label, spec, options)
    ours = {**OURS, LIMIT: spec.max_episode_steps, **chosen_of(label, options, OURS)}
    spec.max_episode_steps = None  # set below: the first instance shows which limit the environment has by itself

    task = Task(label, spec, module, spaces.Discrete(1), spaces.Discrete(1))
    try:
        env = task.make()
    except (DependencyNotInstalled, ImportError) as error:
        raise _lacking(label, error) from error
    except Exception as error:
        with_options = f" with the options {dict(options)}" if options else ""
        raise ValueError(f"gymnasium cannot build {label}{with_options}: {error_text(error)}") from error
    try:
        spec.max_episode_steps = _limit(label, env, ours[LIMIT], asked=LIMIT in options)
        observation_space = narrow_space(label, "observation_space", env.observation_space)
        task = task._replace(observation_space=observation_space, action_space=action_space_of(label, env.action_space))
        can_render, fps = may_draw and "rgb_array" in (env.metadata.get("render_modes") or ()), env.metadata.get("render_fps")
    finally:
        env.close()
    learning = {name: True for name in sorted(LEARNING) if ours[name]}
    workers = {"timeout": float(ours["worker_timeout"]), "max_restarts": ours["worker_restarts"]}
    start = partial(open_task, num_workers=ours["num_workers"], **workers)
    return HostEnv(
        partial(start, task._replace(learning=learning)),
        task.observation_space,
        task.action_space,
        dict(options),
        label,
        max_episode_steps=spec.max_episode_steps,
        open_eval=partial(start, task) if learning else None,
        open_render=partial(task.open, render_mode="rgb_array") if can_render else None,
        render_fps=float(fps or 30),
    )


def _limit(label: str, env: gymnasium.Env, limit: int | None, *, asked: bool) -> int | None:
    """Return the limit in force: ``limit``, or that of the wrappers with which the environment was built if it is smaller. Raise
    ValueError if a larger one was asked for."""
    own = []
    while True:
        if env.spec is not None and env.spec.max_episode_steps is not None:
            own.append(env.spec.max_episode_steps)
        if not isinstance(env, gymnasium.Wrapper):
            break
        env = env.env
    built = min(own, default=None)
    if built is None or limit is None:
        return built if limit is None else limit
    if asked and limit > built:
        raise ValueError(
            f"{label}: option {LIMIT}={limit} must be at most {built}, the limit with which the environment is built: change it "
            f"there, as gymnasium.make(…, {LIMIT}={limit}) does"
        )
    return min(limit, built)


def open_task(task: Any, num_envs: int, seed: int, first_id: int = 0, *, num_workers: int, **options: Any) -> HostEnvs:
    """Open the environments of a ``Task``, in worker processes if there are any."""
    num_envs, seed = check_count("num_envs", num_envs), check_count("seed", seed, at_least=0)
    if not num_workers:
        return task.open(num_envs, seed, first_id)
    first_id = check_count("first_id", first_id, at_least=0)
    return Processes(task.label, task.open, num_envs, seed, first_id, num_workers=num_workers, check=task.check, **options)


def _find(label: str, name: str) -> tuple[str | None, EnvSpec]:
    """Import the module that a name contains. Return the module's name and the environment's spec."""
    module, _, rest = name.rpartition(":")
    if module and import_named(module) is None:
        raise ValueError(f"{label}: {not_found(module)}")
    if rest in gymnasium.registry:
        return module or None, gymnasium.registry[rest]
    if not module:
        raise UnknownName(
            f"gymnasium has no environment {rest!r}.{nearest(rest, gymnasium.registry)} jaxrl.list_envs('gymnasium') lists those "
            f"that it has. If another module registers or defines it, write 'gymnasium:module:{rest}'",
            gymnasium.registry,
        )
    top = module.partition(".")[0]

    def is_environment(value: Any) -> bool:
        if isinstance(value, type):
            return issubclass(value, gymnasium.Env)
        return inspect.isfunction(value) and value.__module__.partition(".")[0] == top  # not an imported function

    candidates = {each for each, value in vars(sys.modules[module]).items() if is_environment(value)}
    if rest in candidates:
        return module, EnvSpec(rest, f"{module}:{rest}")
    candidates |= {each for each, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(top)}
    raise UnknownName(
        f"{label}: {module} neither registers nor defines an environment {rest!r}.{nearest(rest, candidates)}", candidates
    )


def _with_options(label: str, spec: EnvSpec, options: Mapping[str, Any]) -> tuple[EnvSpec, bool]:
    """Return a copy of the spec with the options that are its arguments, checked, and whether it takes a ``render_mode``.

    ``max_episode_steps`` is an option of jaxrl, and an argument of some environments as well. The others of ``OURS`` are jaxrl's.
    """
    if "render_mode" in options:
        raise ValueError(f"{label}: render_mode is not an option: jaxrl sets it when it renders (jaxrl record)")
    try:
        creator: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        defaults = defaults_of(creator)
    except (ImportError, DependencyNotInstalled, AttributeError) as error:
        raise _lacking(label, error) from error
    if not takes_any(creator):
        check_known(label, options, {*defaults, *OURS} - {"render_mode"})
    ours = OURS.keys() - ({LIMIT} & defaults.keys())
    options = {option: value for option, value in options.items() if option not in ours}
    for option, value in options.items():
        default = spec.kwargs.get(option, defaults.get(option))
        check_option(label, option, value, default, at_least=smallest(default))
    spec = copy.copy(spec)
    spec.kwargs = {**spec.kwargs, **options}
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        spec.entry_point = creator  # another process has another __main__
    return spec, takes_any(creator) or "render_mode" in defaults


def chosen_of(label: str, options: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that jaxrl adds, ``ours`` with their defaults, checked."""
    chosen = {name: value for name, value in options.items() if name in ours}
    for name, value in chosen.items():
        check_option(label, name, value, ours[name], at_least=0)
    for name, low, allowed in (("worker_timeout", 1e-3, "a number of seconds > 0"), ("max_episode_steps", 1, "an integer >= 1")):
        value = chosen.get(name, low)
        if isinstance(value, bool) or not isinstance(value, type(low) | int) or value < low:
            raise ValueError(f"{label}: option {name}={value!r} must be {allowed}")
    return chosen


def _lacking(label: str, error: Exception) -> ModuleNotFoundError:
    """Return the error for an environment whose packages are missing."""
    kind = family(label.removeprefix("gymnasium:"))
    if missing := _missing(kind):
        packages = f"package {missing[0]}, which is" if len(missing) == 1 else f"packages {' and '.join(missing)}, which are"
        return ModuleNotFoundError(f'{label} needs the {packages} not installed: pip install "{EXTRAS[kind]}"')
    return ModuleNotFoundError(f"{label} cannot be built here: {one_line(error)}")


def narrow_space(label: str, space_name: str, space: spaces.Space) -> spaces.Space:
    """Convert a space to 32-bit types. Raise ValueError if a part of it has no fixed shape, or needs more bits."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {name: narrow_space(label, f"{space_name}[{name!r}]", part) for name, part in parts_of(space)}
        return spaces.Dict(parts) if isinstance(space, spaces.Dict) else spaces.Tuple(parts.values())
    if isinstance(space, spaces.Box):
        dtype = narrow(space.dtype)
        if dtype.kind in "iu" and (space.low < np.iinfo(dtype).min).any() | (space.high > np.iinfo(dtype).max).any():
            raise ValueError(
                f"{label}: {space_name} is {space}, but jaxrl's integers have 32 bits: narrow its bounds, or use floats"
            )
        with np.errstate(over="ignore"):  # bounds beyond float32 become infinite
            return spaces.Box(space.low.astype(dtype), space.high.astype(dtype), space.shape, dtype.type)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        size: Any = space.n if isinstance(space, spaces.Discrete) else space.nvec
        dtype, start = narrow(space.dtype), np.asarray(space.start, np.float64)
        last = start + size - 1
        if (start < np.iinfo(dtype).min).any() or (last > np.iinfo(dtype).max).any():
            raise ValueError(f"{label}: {space_name} is {space}, whose values {dtype} cannot hold: use smaller ones, or a Box")
        return space
    if isinstance(space, spaces.MultiBinary):
        return space
    kinds = "Box, Discrete, MultiDiscrete and MultiBinary, and Dict and Tuple of them"
    raise ValueError(f"{label}: {space_name} is {space}, but jaxrl supports {kinds}: {WRAP}")


def action_space_of(label: str, space: spaces.Space) -> spaces.Space:
    """Return the space that algorithms act in: discrete values count from 0; several of them form a MultiDiscrete."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(space.shape, 2))
    if isinstance(space, spaces.Box):
        if np.issubdtype(space.dtype, np.floating):
            return narrow_space(label, "action_space", space)
        choices = space.high.astype(np.float64) - space.low.astype(np.float64) + 1
        if space.is_bounded() and (choices < MOST_ACTIONS).all():
            return spaces.MultiDiscrete(choices.astype(np.int64))
    raise ValueError(
        f"{label}: action_space is {space}, but jaxrl supports a Box of floats, Discrete, MultiDiscrete or MultiBinary: {WRAP}"
    )
