"""Open host environments; those of several seeds form one batch. Does not import jax."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from jaxrl.envs.host import EnvironmentFailed, one_line
from jaxrl.runtime.system.warn import warn
from jaxrl.types import HostEnv, HostEnvs, HostStep, PyTree


def can_send(envs: HostEnvs) -> bool:
    """Return True if the environments step in the background; see ``jaxrl.types.HostEnvs``."""
    return getattr(envs, "in_background", hasattr(envs, "send") and hasattr(envs, "recv"))


def begun_anew(envs: HostEnvs) -> np.ndarray | bool:
    """Return the mask of environments whose last row is an unrequested reset; see ``jaxrl.types.HostEnvs``."""
    ask = getattr(envs, "begun_anew", None)
    return False if ask is None else np.asarray(ask(), bool)


def takes_batch_size(env: HostEnv) -> bool:
    """Return True if ``open`` takes the number of rows per ``recv``; see ``jaxrl.types.HostEnvs``."""
    return "batch_size" in inspect.signature(env.open).parameters


class Pending:
    """One row of all environments of a batch, between sending actions and receiving results."""

    def __init__(self, envs: HostEnvs) -> None:
        self._envs: Any = envs
        self._sends = can_send(envs)
        self._action: np.ndarray | None = None

    def send(self, action: np.ndarray) -> None:
        """Begin the row, in the background if the environments can."""
        self._action = action
        if self._sends:
            self._envs.send(action)

    def recv(self) -> HostStep:
        """Return the row, in the order of the environments."""
        action, self._action = self._action, None
        assert action is not None
        if not self._sends:
            return self._envs.step(action)
        if hasattr(self._envs, "recv_all"):
            return self._envs.recv_all()
        parts, left = [], len(action)
        while left:
            parts.append(self._envs.recv())
            left -= len(parts[-1][0])
        env_id = np.concatenate([part[0] for part in parts])
        whole = parts[0][1] if len(parts) == 1 else _join([part[1] for part in parts])
        if (env_id[1:] > env_id[:-1]).all():
            return whole
        order = np.argsort(env_id)
        return tree.map_structure(lambda x: x[order], whole)


def open_envs(
    env: HostEnv,
    num_envs: int,
    seeds: Sequence[int],
    first_id: int = 0,
    *,
    evaluation: bool = False,
    batch_size: int | None = None,
) -> HostEnvs:
    """Open ``num_envs`` environments of each seed, ordered by seed. Each seed's environments are the same as when opened alone.

    Args:
      first_id: number of the first environment. ``open`` may lack this argument if it is 0.
      evaluation: open the variant for evaluation.
      batch_size: rows per ``recv``, if ``open`` takes this argument.
    """
    start: Any = env.open_eval if evaluation and env.open_eval else env.open
    takes = inspect.signature(start).parameters if first_id or batch_size else {}
    options = {"batch_size": batch_size} if "batch_size" in takes else {}
    if first_id:
        options["first_id"] = first_id
        if "first_id" not in takes:
            raise TypeError(
                f"{env.name}: environments {first_id} to {first_id + num_envs - 1} cannot be opened apart from the others: let "
                "open take (num_envs, seed, first_id=0), and seed the i-th with (seed, first_id + i)"
            )
    parts: list[HostEnvs] = []
    try:
        for seed in seeds:
            parts.append(start(num_envs, seed, **options))
    except BaseException:
        _close(parts)
        raise
    return Pools(parts, num_envs) if parts[1:] else parts[0]


class Pools:
    """Several pools of ``num_envs`` environments each as one batch, [len(pools) · num_envs]; see ``jaxrl.types.HostEnvs``."""

    def __init__(self, pools: Sequence[HostEnvs], num_envs: int) -> None:
        self._pools, self._num_envs = list(pools), num_envs
        self._rows = [Pending(pool) for pool in pools]
        self._asked = [True] * len(pools)
        """Pools that took part in the last step or reset."""
        self.in_background = all(map(can_send, pools))
        if all(hasattr(pool, "reset_where") for pool in pools):
            self.reset_where = self._reset_where

    def begun_anew(self) -> np.ndarray:
        each = [asked and begun_anew(pool) for asked, pool in zip(self._asked, self._pools, strict=True)]
        return np.concatenate([np.broadcast_to(mask, self._num_envs) for mask in each])

    def reset(self) -> PyTree:
        return _join([pool.reset() for pool in self._pools])

    def send(self, action: np.ndarray) -> None:
        """Begin a row in all pools that step in the background."""
        self._asked = [True] * len(self._pools)
        for row, part in zip(self._rows, self._split(action), strict=True):
            row.send(part)

    def recv(self) -> tuple[np.ndarray, HostStep]:
        """Return the row of all pools."""
        return np.arange(len(self._pools) * self._num_envs), _join([row.recv() for row in self._rows])

    def step(self, action: np.ndarray) -> HostStep:
        self.send(action)
        return self.recv()[1]

    def close(self) -> None:
        _close(self._pools)

    def _reset_where(self, mask: np.ndarray) -> PyTree:
        pools: Any = self._pools
        parts = self._split(mask)
        self._asked = [bool(part.any()) for part in parts]
        fresh = [pool.reset_where(part) if part.any() else None for pool, part in zip(pools, parts, strict=True)]
        shown = next(obs for obs in fresh if obs is not None)
        nothing = tree.map_structure(np.zeros_like, shown)
        return _join([nothing if obs is None else obs for obs in fresh])

    def _split(self, batch: np.ndarray) -> np.ndarray:
        return batch.reshape(len(self._pools), self._num_envs, *batch.shape[1:])


def close_envs(env: HostEnv, envs: HostEnvs) -> None:
    """Close environments opened by ``open_envs``. Errors are only reported, since no result depends on them."""
    try:
        envs.close()
    except Exception as error:
        why = str(error) if isinstance(error, EnvironmentFailed) else f"{type(error).__name__}: {error}"
        warn(f"{env.name}: its environments could not be closed ({one_line(why)}); no result depends on that")


def _join(parts: Sequence[Any]) -> Any:
    return tree.map_structure(lambda *x: np.concatenate(x), *parts)


def _close(pools: Sequence[HostEnvs]) -> None:
    """Close all pools, even if one raises; then raise the first error."""
    errors: list[Exception] = []
    for pool in pools:
        try:
            pool.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
