"""Files of settings (TOML): reading, the names that they may use, and checks of values without an environment."""

from __future__ import annotations

import inspect
import itertools
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.algorithms.presets import NETWORKS
from jaxrl.builder.settings import split_settings
from jaxrl.registry import ALGORITHMS, setting_names, unknown_algorithm
from jaxrl.runtime.system.disk import read_regular
from jaxrl.settings.aliases import hint_or, nearest
from jaxrl.settings.options import dotted_names, held_by_options, option_fields
from jaxrl.settings.validation import checked, setting_types


def read_toml(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read a file; ``kind``, such as "sweep", names it in errors.

    Raises:
      FileNotFoundError: the file does not exist.
      ValueError: it is not TOML.
    """
    shown = os.fspath(path)
    try:
        return tomllib.loads(read_regular(Path(path)).decode())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {kind} file {shown!r}") from None
    except ValueError as error:
        raise ValueError(f"{shown} is not TOML: {error}") from None


def check_algorithm(shown: str, entries: Mapping[str, Any], needed: Sequence[str], import_rule: Callable[[str], None]) -> None:
    """Check that a file has the ``needed`` entries, tables where they belong, and the name of an algorithm, which ``import_rule``
    may register."""
    if missing := [name for name in needed if name not in entries]:
        raise ValueError(f"{shown} lacks {', '.join(missing)}")
    for name in ("settings", "grid"):
        if not isinstance(entries.get(name, {}), Mapping):
            raise TypeError(f"{shown}: {name} = {entries[name]!r} must be a table, [{name}]")
    algorithm = entries["algorithm"]
    if not isinstance(algorithm, str):
        raise TypeError(f'{shown}: algorithm = {algorithm!r} must be the name of one, such as "ppo"')
    import_rule(algorithm)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{shown}: {unknown_algorithm(algorithm)}")


def checked_env(env: Any) -> str:
    if not isinstance(env, str):
        raise TypeError(f'env = {env!r} must be an id, such as "CartPole-v1"')
    return env


def checked_setting(algorithm: str, name: str, setting: Any) -> Any:
    """Return a setting after checking it, whole numbers as integers. Options are checked as a whole, by ``check_structure``."""
    _, config, hyperparams = ALGORITHMS[algorithm].load()
    if name in {*NETWORKS} - {*option_fields(config)}:
        return checked_network(algorithm, name, setting)
    if name not in {*itertools.chain(*setting_names(algorithm))}:
        return setting
    plain = checked(name, setting, (setting_types(config) | setting_types(hyperparams))[name])
    return setting if isinstance(plain, float) else plain  # unchanged, since jobs are named after it


def check_structure(algorithm: str, settings: Mapping[str, Any], *, with_data: bool = False) -> None:
    """Raise TypeError or ValueError unless these settings fit each other, as far as that does not depend on the environment."""
    entry = ALGORITHMS[algorithm]
    _, config, hyperparams = entry.load()
    networks = {*NETWORKS} - {*option_fields(config)}
    recurrent = settings.get("model", {}).get("core") is not None if "model" in networks else False
    plain = {name: each for name, each in settings.items() if name not in networks}
    structure: Any = split_settings(entry.builder, config, hyperparams, plain)[0]
    (structure.for_data() if with_data else structure).check(recurrent=recurrent)


def check_data_of(algorithm: str, data: Any) -> None:
    """Raise TypeError or ValueError unless ``data``, a dataset's file or None, suits the algorithm."""
    entry = ALGORITHMS[algorithm]
    if not isinstance(data, str | None):
        raise TypeError(f'data = {data!r} must be a file, such as "mixed.npz"')
    if data is None and entry.family == "dataset":
        raise ValueError(f'{entry.title} learns from a dataset alone: give data = "FILE"')
    if data is not None and "data" not in inspect.signature(entry.load().make).parameters:
        raise ValueError(f"{entry.title} takes no data: it learns from rollouts")


def grid_names(algorithm: str) -> tuple[list[str], dict[str, str]]:
    """Return the names that a sweep file may use: structural ones, and name -> hyperparameter for those that are data.

    Options, and their fields by dotted names, are among them.
    """
    config = ALGORITHMS[algorithm].load().config
    structure, hyperparams = setting_names(algorithm)
    held = {dotted: name for name, dotted in held_by_options(config).items()}
    fields = [name for name in dotted_names(config) if name not in held]
    networks = [name for name in NETWORKS if name in inspect.signature(ALGORITHMS[algorithm].load().make).parameters]
    structural = [*structure, *option_fields(config), *fields, *(networks if ALGORITHMS[algorithm].network else ())]
    return structural, {**{name: name for name in hyperparams}, **held}


def with_flat_names(algorithm: str, grid: Any) -> Any:
    """Write the fields of options in a grid, ``[grid.head] v_max = [10, 20]``, with dotted names."""
    options = option_fields(ALGORITHMS[algorithm].load().config)
    flat: dict[str, Any] = {}
    for name, values in grid.items() if isinstance(grid, Mapping) else ():
        is_table = name in options and isinstance(values, Mapping)
        flat |= {f"{name}.{field}": each for field, each in values.items()} if is_table else {name: values}
    return flat


def checked_network(algorithm: str, name: str, arguments: Any) -> Any:
    """Return the arguments of a network of the algorithm, after checking that they are valid for some observations."""
    from jaxrl.builder.networks import check_arguments, own_network

    if not isinstance(arguments, Mapping):
        raise TypeError(f"{name} = {arguments!r} must be a table of arguments of the network, such as {{ hidden_sizes = [64] }}")
    network: Any = own_network(ALGORITHMS[algorithm], name)
    check_arguments(network, arguments, name)
    network.config(**arguments)
    return dict(arguments)


def refuse_unknown(where: str, table: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name in table:
        if name not in allowed:
            hint = hint_or(nearest(name, allowed), f"Allowed: {', '.join(sorted(allowed))}")
            raise ValueError(f"{where}: {name!r} is unknown.{hint}")
