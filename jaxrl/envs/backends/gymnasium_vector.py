"""Gymnasium environments stepped one after the other in one process, with NEXT_STEP autoreset. Does not import jax."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import tree
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled

from jaxrl.envs.backends.values import Wrong, empty, failure_of, flag, native, number, write
from jaxrl.envs.host import TOLD, check_actions, env_seeds, narrow, one_line, quiet
from jaxrl.settings.validation import check_count
from jaxrl.types import HostEnvs, HostStep, PyTree

WITHOUT_A_SCREEN = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1", "MUJOCO_GL": "egl"}
"""Settings for headless drawing by pygame and MuJoCo, which read them when they first draw."""


def draw_without_a_screen() -> None:
    """Set the environment variables for drawing without a screen, if there is none."""
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        for name, value in WITHOUT_A_SCREEN.items():
            os.environ.setdefault(name, value)


class Task(NamedTuple):
    """Description from which any process can make one environment and interpret its output."""

    label: str
    spec: EnvSpec
    """Includes all options."""
    module: str | None
    """Imported before the environment is made, as it may register environments."""
    observation_space: spaces.Space
    """In 32-bit types."""
    action_space: spaces.Space
    """In jaxrl's form: discrete values count from 0."""
    learning: Mapping[str, Any] = {}
    """``reward_clip`` and ``episodic_life``, if they are on."""

    def make(self, **options: Any) -> gymnasium.Env:
        if self.module is not None:
            importlib.import_module(self.module)
        with quiet():
            return gymnasium.make(self.spec, disable_env_checker=True, **options)

    def check(self, action: Any, num_envs: int) -> np.ndarray:
        """Return actions as an array [num_envs, ...]. Raise for invalid ones."""
        return check_actions(self.label, self.action_space, action, num_envs)

    def open(self, num_envs: int, seed: int, first_id: int = 0, *, copies: int = 1, **options: Any) -> HostEnvs:
        """Open environments. With ``copies``, all of them are opened that many times, in one batch.

        ``options`` are added to those of the spec: ``render_mode``.
        """
        if options:
            draw_without_a_screen()
        return Running(self, env_seeds(seed, check_count("num_envs", num_envs), first_id) * copies, first_id, options)


class Running:
    """Open environments: see ``jaxrl.types.HostEnvs``."""

    def __init__(self, task: Task, seeds: Sequence[int], first_id: int, options: Mapping[str, Any]) -> None:
        self._task, self._first_id, self._envs = task, first_id, list[gymnasium.Env]()
        self._drawn = "render_mode" in options
        self._num_envs = num_envs = len(seeds)
        self._seeds: list[int | None] = [*seeds]
        self._done: np.ndarray | None = None
        self._info_dtypes: dict[str, np.dtype] = {}
        self._lives = np.zeros(num_envs, int)
        self._kept: dict[int, tuple[PyTree, dict[str, Any]]] = {}
        """After a lost life, while the game continues: the last observation and info, with which the next episode begins."""
        try:
            for _ in range(num_envs):
                self._envs.append(task.make(**options))
        except Exception as error:
            raise self._failure(len(self._envs), error) from error

    def reset(self) -> PyTree:
        obs = self._reset(np.ones(self._running(), bool))
        self._done = np.zeros(self._num_envs, bool)
        return obs

    def reset_where(self, mask: np.ndarray) -> PyTree:
        """Begin new episodes in some environments. Serves a time limit of ``HostEnv`` that the environments do not enforce."""
        assert self._done is not None
        self._running()
        self._done = self._done & ~mask
        return self._reset(mask)

    def step(self, action: Any) -> HostStep:
        num_envs, task = self._running(), self._task
        if self._done is None:
            raise RuntimeError(f"{task.label}: call reset() before the first step()")
        actions = self._actions(action)
        info_arrays = {name: np.zeros(num_envs, dtype) for name, dtype in self._info_dtypes.items()}
        terminated, truncated = np.zeros((2, num_envs), bool)
        obs = empty(task.observation_space, num_envs)
        row = HostStep(obs, np.zeros(num_envs, np.float32), terminated, truncated, info_arrays)
        i = 0
        try:
            for i in range(num_envs):
                info = self._begin(i, row.obs) if self._done[i] else self._advance(i, actions[i], row)
                for name in row.info.keys() & info.keys():
                    row.info[name][i] = number(name, info[name])
        except Exception as error:
            raise self._failure(i, error) from error
        self._done = row.terminated | row.truncated
        return row

    def render(self) -> np.ndarray:
        """Return pictures of all environments, or raise OSError if this machine cannot render them."""
        self._running()
        pictures: list[np.ndarray] = []
        try:
            for env in self._envs:
                pictures.append(np.asarray(env.render()))
        except Exception as error:
            raise self._failure(len(pictures), error) from error
        return np.stack(pictures)

    def close(self) -> None:
        """Close all environments, even if closing one of them fails."""
        envs, self._envs, failed = self._envs, [], None
        for i, env in enumerate(envs):
            try:
                env.close()
            except Exception as error:
                failed = failed or (i, error)
        if failed:
            raise self._failure(*failed) from failed[1]

    def _running(self) -> int:
        if not self._envs:
            raise RuntimeError(f"{self._task.label}: these environments are closed; open() gives new ones")
        return self._num_envs

    def _reset(self, mask: np.ndarray) -> PyTree:
        obs, i = empty(self._task.observation_space, self._num_envs), 0
        try:
            for i in map(int, np.flatnonzero(mask)):
                self._kept.pop(i, None)
                info = self._begin(i, obs)
                if self._done is None and i == 0:
                    self._info_dtypes = self._dtypes_kept(info)
        except Exception as error:
            raise self._failure(i, error) from error
        return obs

    def _begin(self, i: int, obs: PyTree) -> dict[str, Any]:
        """Write the first observation of an episode to row ``i`` of ``obs``."""
        if i in self._kept:
            first_obs, info = self._kept.pop(i)
        else:
            result = self._envs[i].reset(seed=self._seeds[i])
            if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
                raise Wrong("reset must return a pair (obs, info)")
            self._seeds[i] = None  # later resets continue the random stream; the seed would repeat the first episode
            first_obs, info = result
        write(obs, i, first_obs)
        self._lives[i] = int(info.get("lives", 0))
        return info

    def _advance(self, i: int, action: Any, row: HostStep) -> dict[str, Any]:
        """Step environment ``i`` and write the result to ``row``."""
        result = self._envs[i].step(action)
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
            raise Wrong("step must return (obs, reward, terminated, truncated, info)")
        obs, reward, terminated, truncated, info = result
        row.terminated[i], row.truncated[i] = flag("terminated", terminated), flag("truncated", truncated)
        write(row.obs, i, obs)
        row.reward[i] = number("reward", reward)
        lives, before = int(info.get("lives", 0)), self._lives[i]
        self._lives[i] = lives
        if self._task.learning.get("episodic_life") and 0 < lives < before and not (row.terminated[i] or row.truncated[i]):
            row.terminated[i] = True
            self._kept[i] = tree.map_structure(lambda x: x[i].copy(), row.obs), info
        if self._task.learning.get("reward_clip"):
            row.reward[i] = np.sign(row.reward[i])
            return {**info, "reward": reward}
        return info

    def _dtypes_kept(self, info: Mapping[str, Any]) -> dict[str, np.dtype]:
        """Return the dtypes of the info entries to keep, based on the first info. An entry that later infos lack is 0."""
        if self._task.learning.get("episodic_life") and "lives" not in info:
            raise Wrong("info has no 'lives', which episodic_life=True needs: leave that option out")
        entries = {name: np.asarray(info[name]) for name in TOLD if name != "reward" and name in info}
        numbers = {name: x.dtype for name, x in entries.items() if x.ndim == 0 and x.dtype.kind in "biuf"}
        # The cost of 0 or the False of a reset may be followed by 0.5.
        dtypes = {name: narrow(dtype) if name == "lives" else np.dtype(np.float32) for name, dtype in numbers.items()}
        return dtypes | ({"reward": np.dtype(np.float32)} if self._task.learning.get("reward_clip") else {})

    def _actions(self, action: Any) -> np.ndarray:
        """Convert actions to the environments' dtype and first value. The result is a new array, which they may keep."""
        return native(self._envs[0].action_space, self._task.check(action, self._num_envs))

    def _failure(self, i: int, error: Exception) -> Exception:
        """Close all environments, and return the exception to raise for an error of environment ``i``."""
        with suppress(Exception):
            self.close()
        if self._drawn and isinstance(error, DependencyNotInstalled | ImportError | OSError):
            return OSError(f"gymnasium cannot render {self._task.label} here: {one_line(error)}")
        return failure_of(f"{self._task.label}: environment {self._first_id + i}", error)
