"""Gymnasium's environments, in Python, as ``HostEnv``s: registered ones, and those that a module registers or holds."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import DependencyNotInstalled

from jaxrl.envs.backends.gymnasium_vector import Task
from jaxrl.envs.host import LEARNING, MOST_ACTIONS, check_actions, narrow
from jaxrl.envs.ids import UnknownName, check_known, check_option, smallest
from jaxrl.envs.subprocess.processes import Processes
from jaxrl.settings.aliases import nearest
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
"""Options that every environment takes here, with their defaults; that of ``max_episode_steps`` is the registered limit."""

PACKAGES = {"box2d": ("Box2D", "pygame"), "mujoco": ("mujoco", "imageio")}
"""What gymnasium's own families need besides."""

EXTRAS = {"box2d": "jaxrl[box2d]", "mujoco": "gymnasium[mujoco]"}
"""Which bring those."""

SUPPORTED = "Box, Discrete, MultiDiscrete and MultiBinary, and Dict and Tuple of them"
WRAP = "put a wrapper around it that gives one of these, and name a function that returns the whole (gymnasium:module:function)"


def list_names() -> list[str]:
    """Those registered now that can be built here; the others say what they lack."""
    return [name for name, spec in gymnasium.registry.items() if _is_there(spec, family(name))]


def family(name: str) -> str:
    """Of gymnasium's own the part of it, such as classic_control; of others the package that has them."""
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    entry = getattr(spec, "entry_point", None) or name
    module = entry if isinstance(entry, str) else str(getattr(entry, "__module__", "all"))
    parts = module.partition(":")[0].split(".")
    return parts[2] if parts[:2] == ["gymnasium", "envs"] and parts[2:] else parts[0]


def _is_there(spec: EnvSpec, family: str) -> bool:
    if getattr(spec.entry_point, "__module__", None) == "gymnasium.envs":
        return False  # a function that only says what to use instead
    return not _missing(family)


def _missing(family: str) -> list[str]:
    return [package for package in PACKAGES.get(family, ()) if sys.modules.get(package) is None and not _is_installed(package)]


def _is_installed(package: str) -> bool:
    return package not in sys.modules and importlib.util.find_spec(package) is not None


def make(name: str, options: dict[str, Any]) -> HostEnv:
    """An environment of gymnasium's. One is built here for its spaces, and closed; others start with ``open``.

    Args:
      name: of a registered environment; or ``module:name`` of one that is registered when the module is imported, or that is a
        class or function in there.
      options: the arguments of the environment, and those of ``OURS``. ``num_workers``: processes to step them in; 0 is this one.
        ``worker_timeout``: seconds that a worker may take for one row. ``worker_restarts``: how often each worker that crashes or
        hangs is replaced; 0: it ends the others (see ``Processes``). ``max_episode_steps``: instead of the registered limit.
        ``reward_clip`` (the sign of the reward) and ``episodic_life`` (a lost life ends an episode; for environments whose info
        has ``lives``) hold for training alone: ``open_eval`` gives raw rewards and whole games.

    Returns:
      A HostEnv with observations in 32 bits, and choices that count from 0 (MultiBinary actions are MultiDiscrete ones). The i-th
      environment opened is seeded by a hash of (seed, first_id + i). ``HostStep.info`` has what ``TOLD`` lists and the info of
      ``reset`` has; and the raw ``reward``, where ``reward_clip`` is on.

    Raises:
      ValueError: there is no such environment or option, or its spaces are none that jaxrl takes.
      ModuleNotFoundError: a package that it needs is not installed.
    """
    label = f"gymnasium:{name}"
    return make_of(label, *_find(label, name), options)


def make_of(label: str, module: str | None, spec: EnvSpec, options: Mapping[str, Any]) -> HostEnv:
    """What ``make`` gives, of a spec: ``module`` is imported first wherever an environment is made."""
    spec, may_draw = _with_options(label, spec, {option: value for option, value in options.items() if option not in OURS})
    ours = _ours(label, {**OURS, "max_episode_steps": spec.max_episode_steps}, options)
    spec.max_episode_steps = ours["max_episode_steps"]

    task = Task(label, spec, module, spaces.Discrete(1), spaces.Discrete(1))
    one = _build(task, options)
    try:
        seen = narrow_space(label, "observation_space", one.observation_space)
        task = task._replace(observation_space=seen, action_space=_action_space(label, one.action_space))
        drawn, fps = may_draw and "rgb_array" in (one.metadata.get("render_modes") or ()), one.metadata.get("render_fps")
    finally:
        one.close()
    learning = {name: True for name in sorted(LEARNING) if ours[name]}
    workers = {"timeout": float(ours["worker_timeout"]), "max_restarts": ours["worker_restarts"]}
    start = partial(_open, num_workers=ours["num_workers"], **workers)
    return HostEnv(
        partial(start, task._replace(learning=learning)),
        task.observation_space,
        task.action_space,
        dict(options),
        label,
        max_episode_steps=spec.max_episode_steps,
        open_eval=partial(start, task) if learning else None,
        open_render=partial(task.open, render_mode="rgb_array") if drawn else None,
        render_fps=float(fps or 30),
    )


def _open(task: Task, num_envs: int, seed: int, first_id: int = 0, *, num_workers: int, **options: Any) -> HostEnvs:
    num_envs, seed = check_count("num_envs", num_envs), check_count("seed", seed, at_least=0)
    if not num_workers:
        return task.open(num_envs, seed, first_id)
    check: Callable[[Any, int], np.ndarray] = partial(check_actions, task.label, task.action_space)
    return Processes(
        task.label,
        task.open,
        num_envs,
        seed,
        check_count("first_id", first_id, at_least=0),
        num_workers=num_workers,
        check=check,
        **options,
    )


# ------------------------------------------------------------------------------------------------------------ names and options


def _find(label: str, name: str) -> tuple[str | None, EnvSpec]:
    """The module that a name says, imported, and the environment."""
    module, _, rest = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports something that is not
            raise ValueError(
                f"{label}: no module {module!r} was found in {sys.path[0] or 'the current folder'!r} or among the installed "
                "packages: work in the folder that holds it, or put that folder on PYTHONPATH"
            ) from None
    if rest in gymnasium.registry:
        return module or None, gymnasium.registry[rest]
    if not module:
        raise UnknownName(
            f"gymnasium has no environment {rest!r}.{nearest(rest, gymnasium.registry)} jaxrl.list_envs('gymnasium') lists those "
            f"that it has; one that a module of its own registers, or holds, is 'gymnasium:module:{rest}'",
            gymnasium.registry,
        )
    held = {each: value for each, value in vars(sys.modules[module]).items() if _is_environment(module, value)}
    if rest in held:
        return module, EnvSpec(rest, f"{module}:{rest}")
    top = module.partition(".")[0]
    held |= {each: spec for each, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(top)}
    raise UnknownName(f"{label}: {module} neither registers nor holds an environment {rest!r}.{nearest(rest, held)}", held)


def _is_environment(module: str, value: Any) -> bool:
    """An environment's class, or a function of the module's own package: what that has from elsewhere may be anything."""
    if isinstance(value, type):
        return issubclass(value, gymnasium.Env)
    return inspect.isfunction(value) and value.__module__.partition(".")[0] == module.partition(".")[0]


def _with_options(label: str, spec: EnvSpec, options: Mapping[str, Any]) -> tuple[EnvSpec, bool]:
    """A copy of the spec with these arguments, and whether the environment takes a ``render_mode``.

    Arguments are known and of their default's type, as far as the environment tells.
    """
    if "render_mode" in options:
        raise ValueError(f"{label}: render_mode is no option but set by jaxrl, where it draws (jaxrl record)")
    try:
        creator: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        parameters = inspect.signature(creator).parameters.values()
    except (ImportError, DependencyNotInstalled, AttributeError) as error:
        raise _lacking(label, error) from error
    defaults = {each.name: each.default for each in parameters if "VAR" not in each.kind.name}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    if not takes_any:
        check_known(label, options, {*defaults, *OURS} - {"render_mode"})
    for option, value in options.items():
        default = spec.kwargs.get(option, defaults.get(option))
        check_option(label, option, value, default, at_least=smallest(default))
    spec = copy.copy(spec)
    spec.kwargs = {**spec.kwargs, **options}
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        spec.entry_point = creator  # another process has another __main__
    return spec, takes_any or "render_mode" in defaults


def _ours(label: str, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``OURS``."""
    given = {name: value for name, value in options.items() if name in OURS}
    for name, value in given.items():
        check_option(label, name, value, OURS[name], at_least=0)
    for name, low, what in (("worker_timeout", 1e-3, "a number of seconds > 0"), ("max_episode_steps", 1, "an integer >= 1")):
        value = given.get(name, low)
        if isinstance(value, bool) or not isinstance(value, type(low) | int) or value < low:
            raise ValueError(f"{label}: option {name}={value!r} must be {what}")
    return {**defaults, **given}


def _build(task: Task, options: Mapping[str, Any]) -> gymnasium.Env:
    try:
        return task.make()
    except (DependencyNotInstalled, ImportError) as error:
        raise _lacking(task.label, error) from error
    except Exception as error:
        given = f" with the options {dict(options)}" if options else ""
        raise ValueError(
            f"gymnasium cannot build {task.label}{given}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _lacking(label: str, error: Exception) -> ModuleNotFoundError:
    """The error for an environment whose packages are not there."""
    kind = family(label.removeprefix("gymnasium:"))
    if missing := _missing(kind):
        packages = f"package {missing[0]}, which is" if len(missing) == 1 else f"packages {' and '.join(missing)}, which are"
        return ModuleNotFoundError(f'{label} needs the {packages} not installed: pip install "{EXTRAS[kind]}"')
    return ModuleNotFoundError(f"{label} cannot be built here: {' '.join(str(error).split())}")


# ---------------------------------------------------------------------------------------------------------------------- spaces


def narrow_space(label: str, what: str, space: spaces.Space) -> spaces.Space:
    """The space in 32-bit types.

    Raises:
      ValueError: some part of it has no arrays of one shape, or integers that need more bits.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: narrow_space(label, f"{what}[{name!r}]", part) for name, part in space.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([narrow_space(label, f"{what}[{i}]", part) for i, part in enumerate(space)])
    if isinstance(space, spaces.Box):
        dtype = narrow(space.dtype)
        if dtype.kind in "iu" and (space.low < np.iinfo(dtype).min).any() | (space.high > np.iinfo(dtype).max).any():
            raise ValueError(f"{label}: {what} is {space}, and jaxrl's integers have 32 bits: narrow its bounds, or use floats")
        with np.errstate(over="ignore"):  # bounds beyond all float32 are infinite
            return spaces.Box(space.low.astype(dtype), space.high.astype(dtype), space.shape, dtype.type)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return space
    raise ValueError(f"{label}: {what} is {space}, and jaxrl takes {SUPPORTED}: {WRAP}")


def _action_space(label: str, space: spaces.Space) -> spaces.Space:
    """The space that rules act in: choices count from 0, and several of them at once are MultiDiscrete."""
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
        f"{label}: action_space is {space}, and jaxrl acts in a Box of floats, Discrete, MultiDiscrete or MultiBinary: {WRAP}"
    )
