"""Datasets read from files and written to them: jaxrl's ``.npz``, D4RL's layout in ``.npz`` or HDF5, and Minari."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.envs import resolve_env
from jaxrl.replay.dataset import Dataset, DatasetInfo, info_of, leaf_name, make_dataset, one_after_another
from jaxrl.replay.transitions import ReplayRow, example_row
from jaxrl.runtime.checkpoint.npz import Arrays, open_arrays
from jaxrl.runtime.datasets.layouts import D4RL, Spaces, cast_to_spaces, from_d4rl, from_episodes
from jaxrl.runtime.system.disk import absolute, check_writable, parse_json, replacing
from jaxrl.runtime.system.memory import available_on_host, show_bytes
from jaxrl.settings.packages import import_package
from jaxrl.spaces.trees import realize_space, show_shapes
from jaxrl.types import EnvLike, PyTree

MINARI = "minari:"
HDF5 = (".hdf5", ".h5")
SPACES = "spaces"
"""Array of a file of jaxrl that holds both spaces, as JSON in bytes."""


def load_dataset(source: str | os.PathLike[str], env: EnvLike | None = None) -> Dataset:
    """Read a dataset, for ``data=`` of builders.

    Args:
      source: a file of ``save_dataset`` or ``jaxrl collect``; a file of ``jaxrl.save_replay``, or a folder of several; a file in
        D4RL's layout, ``.npz`` or ``.hdf5`` (needs h5py); or ``"minari:ID"``, a dataset of Minari on this machine (needs
        ``pip install "jaxrl[minari]"``). Files need not be trusted: nothing in them is executed, and each row is checked.
      env: environment whose spaces the rows have. It is needed for files of ``save_replay``, which hold no spaces; others then
        get its bounds.

    Returns:
      The dataset. Where a file holds the true last observation of an episode, it is kept. D4RL's files without
      ``next_observations`` do not: the last step of an episode that was cut off is then left out.

    Raises:
      OSError: the file does not exist or is not a regular file.
      ModuleNotFoundError: a package is needed to read it.
      ValueError: it holds no dataset, is damaged, has other spaces, has a row that the environment cannot have produced, or
        does not fit into memory.
    """
    bound: Any = env if env is None or isinstance(env, Spaces) else resolve_env(env)
    text = os.fspath(source)
    if text.startswith(MINARI):
        rows, known = _read_minari(text.removeprefix(MINARI))
        return _made(rows, bound or known, text, text)
    path = Path(text).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.npz"))
        if not files:
            raise ValueError(f"{text} is a folder without .npz files: give a file, or a folder of files of jaxrl.save_replay")
        check_fits(files, text)
        parts = [_read(file, bound) for file in files]
        env_or_known = bound or _shared_spaces(files, [known for _, known in parts])
        return _made(_joined(files, [rows for rows, _ in parts]), env_or_known, os.fspath(absolute(path)), text)
    check_fits([path], text)
    rows, known = _read(path, bound)
    return _made(rows, bound or known, os.fspath(absolute(path)), text)


COPIES = 3
"""A dataset is in memory this often while it is read: as arrays, in one lane, and packed. Compressed files need more."""


def check_fits(files: Sequence[Path], shown: str) -> None:
    """Raise ValueError if the rows of files cannot fit into the available memory, before they are read."""
    available = available_on_host()
    needed = COPIES * sum(file.stat().st_size for file in files if file.is_file())
    if available is not None and needed > available:
        raise ValueError(
            f"{shown} needs about {show_bytes(needed)} of memory while it is read, but only {show_bytes(available)} is "
            "available: use fewer rows"
        )


def load_again(described: Dataset | DatasetInfo) -> Dataset:
    """Return the dataset that a run recorded.

    Raises:
      ValueError: its file is not known, cannot be read, or holds another dataset.
    """
    if isinstance(described, Dataset):
        return described
    fix = "pass the dataset again, data=jaxrl.load_dataset(…)"
    if described.path is None:
        raise ValueError(f"the run learns from a dataset that was made in memory: {fix}")
    try:
        found = load_dataset(described.path, Spaces(described.observation_space, described.action_space, "the recorded spaces"))  # type: ignore[arg-type]
    except OSError as error:
        raise ValueError(
            f"the dataset of the run, {described.path}, cannot be read ({error.strerror or error}): {fix}"
        ) from error
    if found.info != info_of(described):
        raise ValueError(
            f"{described.path} is not the dataset of the run any more: its digest is {found.info.digest[:12]}…, and the run's is "
            f"{described.digest[:12]}…: restore the file, or {fix}"
        )
    return found


def save_dataset(path: str | os.PathLike[str], data: Dataset) -> None:
    """Write a dataset to a file, for ``load_dataset``, or as a dataset of Minari.

    Args:
      path: a file ``.npz``; or ``"minari:NAMESPACE/NAME-v0"`` (needs ``pip install "jaxrl[minari]"``).

    Raises:
      ValueError: another extension.
      OSError: the file cannot be written.
    """
    text = os.fspath(path)
    check_target(text)
    if text.startswith(MINARI):
        return _write_minari(text.removeprefix(MINARI), data)
    target = absolute(text)
    target.parent.mkdir(parents=True, exist_ok=True)
    rows: Any = jax.device_get(data.rows())
    arrays: Any = {leaf_name(where): np.ascontiguousarray(x) for where, x in jax.tree.leaves_with_path(rows)}
    arrays[SPACES] = np.frombuffer(json.dumps(data.info.spaces).encode(), np.uint8)
    with replacing(target) as file:
        np.savez(file, **arrays)
    return None


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise an error for a path that ``save_dataset`` cannot write to, before any work."""
    text = os.fspath(path)
    if text.startswith(MINARI):
        _check_new_minari(text)
    elif not text.endswith(".npz"):
        raise ValueError(f"{text} must end in .npz, or be minari:NAMESPACE/NAME-v0")
    else:
        check_writable(text, "out", make_folder=True)


def _joined(files: Sequence[Path], parts: Sequence[ReplayRow]) -> ReplayRow:
    """Return the rows of several files in one lane. Raise ValueError if those of two files differ in shape."""
    lanes: list[Any] = [rows if rows.valid.ndim == 2 else jax.tree.map(lambda x: x[:, None], rows) for rows in parts]
    flat = [one_after_another(rows) for rows in lanes]
    shapes = [jax.tree.map(lambda x: np.empty(x.shape[1:], x.dtype), rows) for rows in flat]
    for file, shape in zip(files, shapes, strict=True):
        if jax.tree.map(np.shape, shape) != jax.tree.map(np.shape, shapes[0]):
            raise ValueError(f"{file} has rows {show_shapes(shape)}, and {files[0]} {show_shapes(shapes[0])}: they must agree")
    joined: Any = jax.tree.map(lambda *leaves: np.concatenate(leaves), *flat)
    return joined


def _shared_spaces(files: Sequence[Path], known: Sequence[Spaces | None]) -> Spaces | None:
    """Return the spaces that files hold, None if none does. Raise ValueError if those of two files differ."""
    held = [(file, each) for file, each in zip(files, known, strict=True) if each is not None]
    for file, each in held:
        if each[:2] != held[0][1][:2]:
            raise ValueError(f"{file} and {held[0][0]} hold different spaces: give the environment that both come from, env=…")
    return held[0][1] if held else None


def _made(rows: ReplayRow, env: Any, path: str, shown: str) -> Dataset:
    """Return the dataset of rows.

    Args:
      env: has their spaces; None: those that D4RL's arrays show.
    """
    env = env if env is not None else _spaces_of(rows, shown)
    try:
        return make_dataset(cast_to_spaces(rows, env), env, path)
    except ValueError as error:
        raise ValueError(f"{shown}: {error}") from None


# ----------------------------------------------------------------------------------------------------------------------- readers


def _read(path: Path, env: Any) -> tuple[ReplayRow, Any]:
    """Return the rows of a file, and the spaces that it holds or those of ``env``; None if it holds none, as D4RL's files."""
    if path.suffix in HDF5:
        h5py = import_package("h5py", f"reading {path.name}", extra="minari")
        with path.open("rb") as opened, h5py.File(opened, "r") as file:
            wanted = [name for name in (*D4RL, "timeouts", "next_observations") if name in file]
            arrays = {name: np.asarray(file[name]) for name in wanted}
        return _guarded(path, lambda: from_d4rl(arrays)), env
    with open_arrays(path) as file:
        names = file.names
        if "observations" in names:
            arrays = {name: _whole(file, name) for name in (*D4RL, "timeouts", "next_observations") if name in names}
            return _guarded(path, lambda: from_d4rl(arrays)), env
        known = _known_spaces(file, path) if SPACES in names else env
        if known is None:
            raise ValueError(f"{path} holds no spaces: give the environment, load_dataset({path.name!r}, env=…)")
        leaves, structure = jax.tree.flatten_with_path(example_row(known.observation_space, known.action_space))
        if missing := sorted({leaf_name(where) for where, _ in leaves} - {*names}):
            raise ValueError(f"{path} has no {', '.join(missing)}. It holds {', '.join(map(ascii, names[:20])) or 'no array'}")
        return jax.tree.unflatten(structure, [_whole(file, leaf_name(where)) for where, _ in leaves]), known


def _guarded(path: Path, read: Callable[[], ReplayRow]) -> ReplayRow:
    try:
        return read()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _whole(file: Arrays, name: str) -> np.ndarray:
    column = file.column(name)
    return column.read(column.shape[0])


def _known_spaces(file: Arrays, path: Path) -> Spaces:
    try:
        described = parse_json(_whole(file, SPACES).tobytes())
        return Spaces(realize_space(described["observation"]), realize_space(described["action"]), path.name)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: its spaces cannot be read ({error})") from None


def _spaces_of(rows: ReplayRow, name: str) -> Spaces:
    """Return spaces for rows of D4RL: real observations without bounds, and actions in [−1, 1] or numbers of choices."""
    action = rows.action
    if np.issubdtype(action.dtype, np.integer):
        chosen: spaces.Space = spaces.Discrete(int(action.max()) + 1)
    else:
        bound = max(1.0, float(np.abs(action).max()))
        chosen = spaces.Box(-bound, bound, action.shape[1:], np.float32)
    return Spaces(spaces.Box(-np.inf, np.inf, rows.obs.shape[1:], np.float32), chosen, name)


def _read_minari(dataset_id: str) -> tuple[ReplayRow, Spaces]:
    minari = import_package("minari", f"minari:{dataset_id}", extra="minari")
    try:
        dataset = minari.load_dataset(dataset_id)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"minari:{dataset_id} is not on this machine ({error}): minari download {dataset_id}") from None
    known = Spaces(dataset.observation_space, dataset.action_space, f"minari:{dataset_id}")
    return from_episodes(dataset.iterate_episodes(), _tree), known


def _tree(values: Any) -> PyTree:
    """Return Minari's observations of an episode as a tree of arrays."""
    if isinstance(values, dict):
        return {name: _tree(x) for name, x in values.items()}
    if isinstance(values, tuple):
        return tuple(_tree(x) for x in values)
    return np.asarray(values)


# ----------------------------------------------------------------------------------------------------------------------- writers


def _check_new_minari(text: str) -> None:
    minari = import_package("minari", text, extra="minari")
    dataset_id = text.removeprefix(MINARI)
    try:
        minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
    except (TypeError, ValueError):
        raise ValueError(f"{text} must be {MINARI}NAMESPACE/NAME-v0") from None
    if dataset_id in minari.list_local_datasets():
        raise FileExistsError(f"{text} exists: name another version, or delete it with minari delete {dataset_id}")


def _write_minari(dataset_id: str, data: Dataset) -> None:
    minari = import_package("minari", f"minari:{dataset_id}", extra="minari")
    buffers = list(_episodes(data, minari.data_collector.EpisodeBuffer))
    about = dict.fromkeys(("code_permalink", "author", "author_email", "description"), "")
    both_spaces = {"observation_space": data.info.observation_space, "action_space": data.info.action_space}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no environment is named
        minari.create_dataset_from_buffers(dataset_id, buffers, **both_spaces, algorithm_name="jaxrl", **about)


def _episodes(data: Dataset, buffer: Any) -> Sequence[Any]:
    rows: Any = jax.device_get(data.rows())
    starts = np.append(np.asarray(data.starts), len(rows.valid))
    made = []
    for number, (start, stop) in enumerate(itertools.pairwise(starts)):
        steps, whole = slice(start, stop - 1), slice(start, stop)
        ended = rows.terminated[steps]
        cut = np.zeros(len(ended), bool)
        cut[-1] = not ended[-1]
        made.append(
            buffer(
                id=number,
                observations=jax.tree.map(lambda x, whole=whole: x[whole], rows.obs),
                actions=rows.action[steps],
                rewards=rows.reward[steps].tolist(),
                terminations=ended.tolist(),
                truncations=cut.tolist(),
            )
        )
    return made
