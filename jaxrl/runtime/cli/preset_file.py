"""Presets from files: the ``best.toml`` of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.presets import Preset, find_preset
from jaxrl.builder.settings import split_settings
from jaxrl.registry import ALGORITHMS
from jaxrl.settings.options import with_dotted

SUFFIX = ".toml"
ENTRIES = ("algorithm", "env", "total_steps", "seeds", "settings")


def named_preset(name: str, algorithm: str | None = None) -> Preset:
    """Return a preset by its name, or that of a file that ends in ``.toml``.

    Raises:
      FileNotFoundError: the file does not exist.
      ValueError: unknown name, a preset of another algorithm, or a file with other entries.
    """
    return read_preset(name, algorithm) if name.endswith(SUFFIX) else find_preset(name, algorithm)


def read_preset(path: str, algorithm: str | None = None) -> Preset:
    """Read a file with the entries ``algorithm, env, total_steps, seeds`` and the table ``[settings]``."""
    from jaxrl.runtime.search.settings_file import check_algorithm, checked_env, read_toml, refuse_unknown
    from jaxrl.settings.validation import check_count

    entries = read_toml(path, "preset")
    refuse_unknown(path, entries, ENTRIES)
    check_algorithm(path, entries, ENTRIES[:3], lambda name: None)
    found, settings = str(entries["algorithm"]), entries.get("settings", {})
    if algorithm not in (None, found):
        raise ValueError(f"{path} is for {found}: use jaxrl train {found} --preset {path}")
    plain = plain_settings(path, found, settings)
    try:
        total_steps, num_seeds = (check_count(name, entries.get(name, 1)) for name in ("total_steps", "seeds"))
        env = checked_env(entries["env"])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from None
    return Preset(path, found, env, plain, total_steps, num_seeds, published="a file")


def plain_settings(path: str, algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those of options in tables, after checking them."""
    from jaxrl.algorithms.presets import NETWORKS

    entry, nested = ALGORITHMS[algorithm], with_dotted(settings)
    try:
        split_settings(entry.builder, *entry.load()[1:], {name: x for name, x in nested.items() if name not in NETWORKS})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    return dict(nested)
