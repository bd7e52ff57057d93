"""Presets: environment, settings and length of training, with the measured score or the publication they are from."""

from __future__ import annotations

from jaxrl.algorithms.presets.games import GAMES
from jaxrl.algorithms.presets.measured import MEASURED
from jaxrl.algorithms.presets.offline import OFFLINE
from jaxrl.algorithms.presets.planning import PLANNING
from jaxrl.algorithms.presets.preset import NETWORKS, Preset, Score, interval_text, shown, words
from jaxrl.algorithms.presets.published import PPO_ATARI, PUBLISHED
from jaxrl.algorithms.presets.settings import CHAIN, HIDDEN, SMALL
from jaxrl.settings.aliases import unknown

__all__ = [
    "CHAIN",
    "HIDDEN",
    "NETWORKS",
    "PPO_ATARI",
    "PRESETS",
    "SMALL",
    "Preset",
    "Score",
    "find_preset",
    "interval_text",
    "shown",
    "words",
]

PRESETS = {preset.name: preset for preset in (*MEASURED, *OFFLINE, *PLANNING, *GAMES, *PUBLISHED)}


def find_preset(name: str, algorithm: str | None = None) -> Preset:
    """Return a preset by name.

    Raises:
      ValueError: unknown name (the nearest is suggested), or a preset of another algorithm.
    """
    if name not in PRESETS:
        raise unknown("preset", name, list(PRESETS))
    preset = PRESETS[name]
    if algorithm not in (None, preset.algorithm):
        raise ValueError(f"preset {name!r} is for {preset.algorithm}: use jaxrl train {preset.algorithm} --preset {name}")
    return preset
