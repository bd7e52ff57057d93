"""Recipes of the datasets that ``python -m benchmarks datasets`` makes: which runs train, and which of their rows are kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.algorithms.presets import PRESETS, SMALL

FOLDER = Path("datasets")
"""Folder of the datasets. git ignores it."""


class Training(NamedTuple):
    """The training of one seed, whose policies and replay give the rows."""

    name: str
    builder: str
    """``make_…`` of jaxrl."""
    env: str
    settings: dict[str, Any]
    """Keywords of the builder."""
    total_steps: int
    """Rows of the whole training. Schedules end there, also if it is stopped at an earlier stage."""
    seed: int = 0


class Part(NamedTuple):
    """Rows of a dataset that have one source."""

    training: Training
    stage: int
    """Rows after which the training is stopped to give this part."""
    source: str
    """"policy": the policy of that stage, which explores as in training. "random": uniformly random actions. "replay": the rows
    of its replay buffer, in which the policy improves."""
    rows: int = 0
    """Number of transitions, at least. A replay buffer gives all of its rows."""

    @property
    def half(self) -> Part:
        return self._replace(rows=self.rows // 2)


PENDULUM = Training("pendulum", "make_sac", "Pendulum-v1", {**SMALL, "replay_ratio": 32}, 50_000)
"""With one update for 8 rows, half of the buffer is from policies that do not yet swing the pole up."""
CARTPOLE = Training("cartpole", "make_dqn", "CartPole-v1", {}, 100_000)
_PRESET = PRESETS["sac-halfcheetah"]
HALFCHEETAH = Training("halfcheetah", "make_sac", _PRESET.env, _PRESET.settings, _PRESET.total_steps, seed=1)

PENDULUM_MEDIUM = Part(PENDULUM, 25_984, "policy", 50_000)
"""Greedy returns are about -600."""
PENDULUM_EXPERT = Part(PENDULUM, 50_000, "policy", 50_000)
PENDULUM_RANDOM = Part(PENDULUM, 25_984, "random", 50_000)
CARTPOLE_EXPERT = Part(CARTPOLE, 100_000, "policy", 50_000)
CARTPOLE_RANDOM = Part(CARTPOLE, 50_000, "random", 50_000)
HALFCHEETAH_MEDIUM = Part(HALFCHEETAH, 52_000, "policy", 100_000)
"""Returns are about 4,000."""
HALFCHEETAH_EXPERT = Part(HALFCHEETAH, 300_000, "policy", 100_000)

RECIPES: dict[str, tuple[Part, ...]] = {
    "pendulum-random": (PENDULUM_RANDOM,),
    "pendulum-medium": (PENDULUM_MEDIUM,),
    "pendulum-replay": (Part(PENDULUM, 50_000, "replay"),),
    "pendulum-mixed": (PENDULUM_RANDOM.half, PENDULUM_EXPERT.half),
    "pendulum-expert": (PENDULUM_EXPERT,),
    "cartpole-random": (CARTPOLE_RANDOM,),
    "cartpole-replay": (Part(CARTPOLE, 50_000, "replay"),),
    "cartpole-mixed": (CARTPOLE_RANDOM.half, CARTPOLE_EXPERT.half),
    "halfcheetah-medium": (HALFCHEETAH_MEDIUM,),
    "halfcheetah-replay": (Part(HALFCHEETAH, 100_000, "replay"),),
    "halfcheetah-medium-expert": (HALFCHEETAH_MEDIUM.half, HALFCHEETAH_EXPERT.half),
}
"""Name -> parts, one after another."""


def path_of(folder: Path, name: str) -> Path:
    """Return the file of a dataset."""
    return folder / f"{name}.npz"


def check_datasets(names: Iterable[str], folder: Path) -> None:
    """Raise FileNotFoundError unless the folder holds these datasets."""
    if missing := sorted(name for name in names if not path_of(folder, name).is_file()):
        into = "" if folder == FOLDER else f" --out {folder}"
        files = ", ".join(f"{name}.npz" for name in missing)
        raise FileNotFoundError(f"no {files} in {folder}: run 'python -m benchmarks datasets {' '.join(missing)}{into}' first")


def stages_of(training: Training) -> list[int]:
    """Return the stages of a training in all recipes, in order of time."""
    return sorted({part.stage for parts in RECIPES.values() for part in parts if part.training.name == training.name})
