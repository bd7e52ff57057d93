"""Environments of MuJoCo Playground as pure ``Env``s: true last observations, truncation apart from termination, stable types."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jaxrl.envs.backends.brax import pure_env
from jaxrl.envs.ids import EnvId, check_name, check_options, format_id, parse_id
from jaxrl.envs.rendering.brax import figure
from jaxrl.settings.packages import import_package
from jaxrl.types import Env

CONTROL = (
    "AcrobotSwingup",
    "AcrobotSwingupSparse",
    "BallInCup",
    "CartpoleBalance",
    "CartpoleBalanceSparse",
    "CartpoleSwingup",
    "CartpoleSwingupSparse",
    "CheetahRun",
    "FingerSpin",
    "FingerTurnEasy",
    "FingerTurnHard",
    "FishSwim",
    "HopperHop",
    "HopperStand",
    "HumanoidRun",
    "HumanoidStand",
    "HumanoidWalk",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
    "ReacherHard",
    "SwimmerSwimmer6",
    "WalkerRun",
    "WalkerStand",
    "WalkerWalk",
)
"""Tasks of the DeepMind Control Suite, listed here because importing playground takes seconds. Robots are listed after that."""

MODELS = "external_deps/mujoco_menagerie"
"""Folder of the models of robots, in that of the package."""
IMPLEMENTATIONS = ("jax", "warp")
RESERVED = ("action_repeat", "episode_length", "impl", "vision")
"""Settings of playground that have another name here, or none: repeat actions by the wrapper ``action_repeat``."""


def list_names() -> list[str]:
    if importlib.util.find_spec("mujoco_playground") is None:
        _import_playground("the backend playground")  # raises, and names the pip install
    found = getattr(getattr(sys.modules.get("mujoco_playground"), "registry", None), "ALL_ENVS", ())
    return [*CONTROL, *sorted({*found} - {*CONTROL})]


def family(name: str) -> str:
    return "control suite" if name in CONTROL else "robots"


def make(name: str, options: dict[str, Any]) -> Env:
    """Make an environment of MuJoCo Playground without its wrappers: jaxrl resets and truncates episodes itself.

    Args:
      options: ``impl``, the physics: "jax", the default, on any device, or "warp", playground's default, on NVIDIA GPUs;
        ``max_episode_steps`` (playground's ``episode_length``); and the numbers of the task's default config, such as
        ``ctrl_dt``. All are static.

    Returns:
      An Env with actions in [−1, 1]. playground's ``done`` is a termination; the limit is a truncation, as in playground's
      wrapper for training. A Dict observation keeps its ``privileged_state``, which only critics see. ``TimeStep.info`` holds
      playground's ``metrics``.

    Raises:
      ValueError: the task needs the models of robots, which playground would download.
    """
    label = f"playground:{name}"
    registry = _import_playground(label)
    check_name("playground", name, list_names())
    if name not in CONTROL and not (Path(registry.__file__).parents[1] / MODELS).exists():
        raise ValueError(
            f"{label} needs the models of MuJoCo Menagerie in playground's folder {MODELS}, and jaxrl downloads nothing: load "
            "the environment once with mujoco_playground.registry.load, which does"
        )
    config = registry.get_default_config(name)
    numbers = {key: x for key, x in config.items() if isinstance(x, int | float) and key not in RESERVED}
    check_options(label, options, {**numbers, "impl": "jax", "max_episode_steps": int(config.episode_length)})
    if options.get("impl", "jax") not in IMPLEMENTATIONS:
        raise ValueError(f"{label}: option impl={options['impl']!r} must be one of {', '.join(map(repr, IMPLEMENTATIONS))}")
    overrides = {option: value for option, value in options.items() if option != "max_episode_steps"}
    limit = options.get("max_episode_steps", int(config.episode_length))
    return _task(format_id(EnvId("playground", name, overrides)))._replace(max_episode_steps=limit)


@functools.cache
def _task(canonical_id: str) -> Env:
    """Construct an environment and close over it. Cached, so that equal ids share functions and compiled programs."""
    _, name, overrides, _ = parse_id(canonical_id)
    with warnings.catch_warnings(action="ignore"):  # the models have deprecated parts
        task = sys.modules["mujoco_playground"].registry.load(name, config_overrides={"impl": "jax", **overrides})
    draw = figure(canonical_id, task)
    return pure_env(task, lambda env_state: draw(SimpleNamespace(q=env_state.data.qpos, qd=env_state.data.qvel)))


def _import_playground(needed_by: str) -> Any:
    """Return playground's registry. The output of packages that print and warn on import is suppressed."""
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        return import_package("mujoco_playground", needed_by, extra="playground").registry
