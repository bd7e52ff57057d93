"""Open host environments; those of several seeds form one batch. Does not import jax."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from jaxrl.envs.host import error_text
from jaxrl.runtime.system.warn import warn
from jaxrl.types import HostEnv, HostEnvs, HostStep, PyTree


def can_send(envs: HostEnvs) -> bool:
    """Return True if the environments step in the background; see ``jaxrl.types.HostEnvs``."""
    return hasattr(envs, "send") and hasattr(envs, "recv")


def begun_anew(envs: HostEnvs) -> np.ndarray | bool:
    """Return the mask of environments whose last row is an unrequested reset; see ``jaxrl.types.HostEnvs``."""
    ask = getattr(envs, "begun_anew", None)
    return False if ask is None else np.asarray(ask(), bool)


def open_envs(
    env: HostEnv,
    num_envs: int,
    seed: int,
    first_id: int = 0,
    *,
    evaluation: bool = False,
    batch_size: int | None = None,
    copies: int = 1,
) -> Any:
    """Open environments.

    Args:
      first_id: number of the first environment. ``open`` may lack this argument if it is 0.
      evaluation: open the variant for evaluation.
      batch_size: rows per ``recv``, if ``open`` takes this argument.
      copies: number of times that the environments are opened, if ``open`` takes this argument (``takes_copies``).
    """
    start = _open_of(env, evaluation)
    takes = inspect.signature(start).parameters if first_id or batch_size else {}
    options = {"batch_size": batch_size} if "batch_size" in takes else {}
    if copies > 1:
        options["copies"] = copies
    if first_id:
        options["first_id"] = first_id
        if "first_id" not in takes:
            raise TypeError(
                f"{env.name}: environments {first_id} to {first_id + num_envs - 1} cannot be opened apart from the others: let "
                "open take (num_envs, seed, first_id=0), and seed the i-th with (seed, first_id + i)"
            )
    return start(num_envs, seed, **options)


def _open_of(env: HostEnv, evaluation: bool) -> Any:
    return env.open_eval if evaluation and env.open_eval else env.open


def takes_copies(env: HostEnv, evaluation: bool) -> bool:
    """Return whether environments can be opened several times in one batch."""
    return "copies" in inspect.signature(_open_of(env, evaluation)).parameters


def close_envs(env: HostEnv, envs: HostEnvs) -> None:
    """Close environments. Errors are only reported, since no result depends on them."""
    try:
        envs.close()
    except Exception as error:
        warn(f"{env.name}: its environments could not be closed ({error_text(error)}); no result depends on that")


class SeedBatch:
    """Open environments of several seeds as one batch, [len(seeds) · num_envs], ordered by seed.

    Each seed's environments are the same as when opened alone. A seed may be repeated.
    """

    def __init__(self, env: HostEnv, num_envs: int, seeds: Sequence[int], first_id: int = 0, *, evaluation: bool = False) -> None:
        copies = len(seeds) if len({*seeds}) == 1 and takes_copies(env, evaluation) else 1
        self._env, self._num_envs, self._pools = env, num_envs * copies, list[Any]()
        seeds = seeds[:1] if copies > 1 else seeds
        try:
            for seed in seeds:
                self._pools.append(open_envs(env, num_envs, seed, first_id, evaluation=evaluation, copies=copies))
        except BaseException:
            self.close()
            raise
        self._asked = [True] * len(seeds)
        """Pools that took part in the last step or reset."""
        self.in_background = all(map(can_send, self._pools))
        self.can_reset_some = all(hasattr(pool, "reset_where") for pool in self._pools)

    def begun_anew(self) -> np.ndarray | bool:
        if len(self._pools) == 1:
            return begun_anew(self._pools[0])
        each = [asked and begun_anew(pool) for asked, pool in zip(self._asked, self._pools, strict=True)]
        return np.concatenate([np.broadcast_to(mask, self._num_envs) for mask in each])

    def reset(self) -> PyTree:
        return _join([pool.reset() for pool in self._pools])

    def send(self, action: np.ndarray) -> None:
        """Begin a row, in the background where the environments can."""
        self._asked, self._actions = [True] * len(self._pools), self._split(action)
        for pool, part in zip(self._pools, self._actions, strict=True):
            if can_send(pool):
                pool.send(part)

    def recv(self) -> HostStep:
        """Return the row, in the order of the environments."""
        return _join([_row(pool, part) for pool, part in zip(self._pools, self._actions, strict=True)])

    def reset_where(self, mask: np.ndarray) -> PyTree:
        parts = self._split(mask)
        self._asked = [bool(part.any()) for part in parts]
        fresh = [pool.reset_where(part) if part.any() else None for pool, part in zip(self._pools, parts, strict=True)]
        shown = next(obs for obs in fresh if obs is not None)
        nothing = tree.map_structure(np.zeros_like, shown)
        return _join([nothing if obs is None else obs for obs in fresh])

    def render(self) -> np.ndarray:
        return _join([np.asarray(pool.render()) for pool in self._pools])

    def close(self) -> None:
        for pool in self._pools:
            close_envs(self._env, pool)

    def _split(self, batch: np.ndarray) -> np.ndarray:
        return batch.reshape(len(self._pools), self._num_envs, *batch.shape[1:])


def _row(envs: Any, action: np.ndarray) -> HostStep:
    """Return the row of all environments that was begun with ``action``, in their order."""
    if not can_send(envs):
        return envs.step(action)
    if hasattr(envs, "recv_all"):
        return envs.recv_all()
    parts, left = [], len(action)
    while left:
        parts.append(envs.recv())
        left -= len(parts[-1][0])
    env_id, whole = np.concatenate([part[0] for part in parts]), _join([part[1] for part in parts])
    if (env_id[1:] > env_id[:-1]).all():
        return whole
    order = np.argsort(env_id)
    return tree.map_structure(lambda x: x[order], whole)


def _join(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tree.map_structure(lambda *x: np.concatenate(x), *parts)
