"""Versions of jaxrl, Python and the packages that jaxrl uses. Whether they fit each other is a question for ``pip check``."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator

from jaxrl.runtime.doctor.finding import PACKAGES, Finding, pip
from jaxrl.version import __version__

REQUIRED = {
    "jax": "everything",
    "jaxlib": "everything",
    "numpy": "everything",
    "flax": "all networks",
    "optax": "all optimisers, so all training",
    "chex": "returns and advantages, so all training",
    "dm-tree": "chex and gymnax",
    "gymnasium": "the spaces of all environments, and environments by gymnasium:name",
    "gymnax": "environments by bare name, such as CartPole-v1",
    "six": "gymnax, which imports it without requiring it, so environments by bare name, such as CartPole-v1",
    "envpool": "environments by envpool:name",
    "orbax-checkpoint": "checkpoints: saving, resuming, loading policies",
    "matplotlib": "learning curves",
    "cloudpickle": "functions of a script, sent to other processes",
    "pillow": "pictures of environments: jaxrl record",
    "flatbuffers": "exporting policies",
    "rich": "the display of runs",
    "tensorboardX": "TensorBoard logs, so every run without --no-tensorboard",
    "tyro": "the flags of most commands",
}
"""Package -> what does not work without it."""

OPTIONAL = {
    "wandb": "--wandb",
    "imageio-ffmpeg": "jaxrl record --out x.mp4",
    "brax": "environments by brax:name",
    "craftax": "environments by craftax:name",
    "jaxmarl": "environments by jaxmarl:name",
    "jumanji": "environments by jumanji:name",
    "pettingzoo": "environments by pettingzoo:name",
    "pgx": "environments by pgx:name",
    "playground": "environments by playground:name",
    "xminigrid": "environments by xminigrid:name",
    "mctx": "make_alphazero, make_muzero, and the players mcts:N of jaxrl arena",
    "optuna": "jaxrl search with the methods tpe, gp and nsga2, and its --storage",
    "cmaes": "jaxrl search with the method cmaes",
    "minari": 'datasets by jaxrl.load_dataset("minari:…")',
    "evosax": "make_es with strategy evosax",
    "Box2D": "gymnasium:LunarLander-v3, BipedalWalker-v3 and CarRacing-v3",
    "ray": 'remote objects on several machines: remote.open("ray")',
    "pygame-ce": "pictures of gymnasium's environments, and Box2D",
}
"""Package -> its purpose."""


def check_packages() -> Iterator[Finding]:
    yield Finding(PACKAGES, "jaxrl", "ok", __version__)
    yield Finding(PACKAGES, "python", "ok", platform.python_version())
    for name, breaks in REQUIRED.items():
        if version := installed_version(name):
            yield Finding(PACKAGES, name, "ok", version)
        else:
            yield Finding(PACKAGES, name, "problem", "not installed", breaks, pip("install", name))
    for name, purpose in OPTIONAL.items():
        if version := installed_version(name):
            yield Finding(PACKAGES, name, "ok", version)
        else:
            yield Finding(PACKAGES, name, "absent", f"optional, for {purpose}: {pip('install', name)}")


def installed_version(name: str) -> str | None:
    """Return the installed version; None if the package is not installed, or has no metadata."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
