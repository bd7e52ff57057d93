"""Opening host environments, those of several seeds as one batch. Imports no jax."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from jaxrl.types import HostEnv, HostEnvs, HostStep, PyTree


def open_envs(env: HostEnv, num_envs: int, seeds: Sequence[int], first_id: int = 0, *, evaluation: bool = False) -> HostEnvs:
    """``num_envs`` environments of each seed, one seed's after the other's, which are what they are where it is alone."""
    parts: list[HostEnvs] = []
    try:
        for seed in seeds:
            parts.append(_open(env, num_envs, seed, first_id, evaluation))
    except BaseException:
        _close(parts)
        raise
    return Pools(parts, num_envs) if parts[1:] else parts[0]


def _open(env: HostEnv, num_envs: int, seed: int, first_id: int, evaluation: bool) -> HostEnvs:
    """An ``open`` that takes no ``first_id`` serves where that is 0."""
    start = env.open_eval if evaluation and env.open_eval else env.open
    if not first_id:
        return start(num_envs, seed)
    if "first_id" not in inspect.signature(start).parameters:
        raise TypeError(
            f"{env.name}: environments {first_id} to {first_id + num_envs - 1} cannot be opened apart from the others: let open "
            "take (num_envs, seed, first_id=0), and draw the i-th from (seed, first_id + i)"
        )
    return start(num_envs, seed, first_id=first_id)


class Pools:
    """Pools of ``num_envs`` environments each as one batch, [len(pools) · num_envs]: see ``jaxrl.types.HostEnvs``."""

    def __init__(self, pools: Sequence[HostEnvs], num_envs: int) -> None:
        self._pools, self._num_envs = list(pools), num_envs
        if all(hasattr(pool, "reset_where") for pool in pools):
            self.reset_where = self._reset_where

    def reset(self) -> PyTree:
        return _join([pool.reset() for pool in self._pools])

    def step(self, action: np.ndarray) -> HostStep:
        return _join([pool.step(part) for pool, part in zip(self._pools, self._split(action), strict=True)])

    def close(self) -> None:
        _close(self._pools)

    def _reset_where(self, mask: np.ndarray) -> PyTree:
        pools: Any = self._pools
        fresh = [pool.reset_where(part) if part.any() else None for pool, part in zip(pools, self._split(mask), strict=True)]
        shown = next(obs for obs in fresh if obs is not None)
        nothing = tree.map_structure(np.zeros_like, shown)
        return _join([nothing if obs is None else obs for obs in fresh])

    def _split(self, batch: np.ndarray) -> np.ndarray:
        return batch.reshape(len(self._pools), self._num_envs, *batch.shape[1:])


def _join(parts: Sequence[Any]) -> Any:
    return tree.map_structure(lambda *x: np.concatenate(x), *parts)


def _close(pools: Sequence[HostEnvs]) -> None:
    """All of them, whatever one of them says to that."""
    errors: list[Exception] = []
    for pool in pools:
        try:
            pool.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
