"""Check what running host environments return, and cast observations to the types of their space. Does not import jax."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree

from jaxrl.envs.backends.values import empty
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.types import HostEnv, HostStep, PyTree


class Receiver:
    """Receives what the environments of one batch return.

    The first row of a rollout decides the types of its memory. So a row that has other shapes, types or names than the space, or
    than an earlier row, is cast or refused here: NumPy would truncate it silently.
    """

    def __init__(self, env: HostEnv) -> None:
        self._env, self._axes = env, 1 + (env.num_agents > 0)
        self._example = empty(env.observation_space, 1)
        self._wanted = [(x.shape[1:], x.dtype) for x in tree.flatten(self._example)]
        self._info: dict[str, tuple[tuple[int, ...], Any]] | None = None
        """Shapes and types of the first info."""

    def observation(self, obs: PyTree, num_envs: int) -> PyTree:
        """Return observations of ``num_envs`` environments in the types of the space.

        Raises:
          EnvironmentFailed: they do not fit the space.
        """
        leaves, lead = tree.flatten(obs), self._lead(num_envs)
        if len(leaves) == len(self._wanted) and all(
            isinstance(x, np.ndarray) and x.dtype == dtype and x.shape == (*lead, *shape)
            for x, (shape, dtype) in zip(leaves, self._wanted, strict=True)
        ):
            return obs
        return self._cast(obs, lead)

    def row(self, reached: HostStep, num_envs: int) -> HostStep:
        """Return a row of ``num_envs`` environments, with its observations in the types of the space.

        Raises:
          EnvironmentFailed: its type is wrong, or it does not fit the space or earlier rows.
        """
        if not isinstance(reached, HostStep):
            hint = ": make HostStep(*row[:4]) of Gymnasium's five values" if isinstance(reached, tuple) else ""
            raise self._failed(f"step gave {type(reached).__name__}, which must be a jaxrl.types.HostStep{hint}")
        if np.shape(reached.reward) != (lead := self._lead(num_envs)):
            raise self._failed(f"step gave reward={_shown(reached.reward)}; it must be an array float32{[*lead]}")
        self._check_flags(reached, lead)
        self._check_info(reached.info)
        return reached._replace(obs=self.observation(reached.obs, num_envs))

    def _lead(self, num_envs: int) -> tuple[int, ...]:
        return (num_envs, self._env.num_agents) if self._axes > 1 else (num_envs,)

    def _failed(self, what: str) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._env.name}: {what}")

    def _check_flags(self, reached: HostStep, lead: tuple[int, ...]) -> None:
        """Check that flags are arrays of bools. None, for example, would count as False."""
        for name in ("terminated", "truncated"):
            flags = np.asarray(getattr(reached, name))
            if flags.dtype.kind not in "biu" or flags.shape not in (lead, lead[:1]):
                shown = _shown(flags) if flags.ndim else repr(getattr(reached, name))
                raise self._failed(f"step gave {name}={shown}; it must be an array bool{[*lead]}")

    def _check_info(self, info: Any) -> None:
        if not isinstance(info, dict):
            raise self._failed(f"step gave info={_shown(info)}; it must be a dict of arrays: return {{}} if it is empty")
        found = {name: (np.shape(x)[self._axes :], getattr(x, "dtype", None)) for name, x in info.items()}
        if self._info is None:
            self._info = found
        elif found != self._info:
            shown = [", ".join(f"{name}: {dtype}{[*shape]}" for name, (shape, dtype) in x.items()) for x in (self._info, found)]
            raise self._failed(
                f"the info of step was {{{shown[0]}}} and is now {{{shown[1]}}}: it must have the same names, shapes and types "
                "in every step"
            )

    def _cast(self, obs: PyTree, lead: tuple[int, ...]) -> PyTree:
        space = self._env.observation_space
        try:
            tree.assert_same_structure(self._example, obs, check_types=False)
        except (TypeError, ValueError):
            raise self._failed(f"an observation is {_shown(obs)}, and observation_space is {space}: they must agree") from None

        def cast(like: np.ndarray, x: Any) -> np.ndarray:
            array, to, wanted = np.asarray(x), like.dtype, (*lead, *like.shape[1:])
            if array.shape != wanted or array.dtype.kind not in ("biuf" if to.kind == "f" else "biu"):
                raise self._failed(
                    f"an observation is {_shown(array)}, and with observation_space {space} it must be {to}{[*wanted]}"
                )
            return array.astype(to)

        return tree.map_structure(cast, self._example, obs)


def _shown(value: Any) -> str:
    """Return the type and shape of an array, or the type of another value."""
    if isinstance(value, dict | tuple | list):
        return type(value).__name__ + (f" of {', '.join(map(repr, value))}" if isinstance(value, dict) else "")
    array = np.asarray(value)
    return f"{array.dtype}{[*array.shape]}"
