"""Gymnasium's environments in one process, one after the other, as NEXT_STEP rows. Imports no jax."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import tree
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled

from jaxrl.envs.host import TOLD, EnvironmentFailed, check_actions, env_seeds, narrow, quiet
from jaxrl.settings.validation import check_count
from jaxrl.types import HostEnvs, HostStep, PyTree

WITHOUT_A_SCREEN = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1", "MUJOCO_GL": "egl"}
"""With which pygame and MuJoCo draw in silence where there is no display; read by them when they first draw."""


class Task(NamedTuple):
    """What a process needs to make one environment, and to understand what it gives."""

    label: str
    spec: EnvSpec
    """With all options."""
    module: str | None
    """To import before: it may register other environments, too."""
    observation_space: spaces.Space
    """In 32-bit types."""
    action_space: spaces.Space
    """As jaxrl takes it: choices count from 0."""
    learning: Mapping[str, Any] = {}
    """``reward_clip`` and ``episodic_life``, where they are on."""

    def make(self, **options: Any) -> gymnasium.Env:
        if self.module is not None:
            importlib.import_module(self.module)
        with quiet():
            return gymnasium.make(self.spec, disable_env_checker=True, **options)

    def open(self, num_envs: int, seed: int, first_id: int = 0, **options: Any) -> HostEnvs:
        """``options`` come on top of the spec's: ``render_mode``."""
        if options and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            for name, value in WITHOUT_A_SCREEN.items():
                os.environ.setdefault(name, value)
        return Running(self, num_envs, seed, first_id, options)


class Running:
    """Environments that run: see ``jaxrl.types.HostEnvs``."""

    def __init__(self, task: Task, num_envs: int, seed: int, first_id: int, options: Mapping[str, Any]) -> None:
        self._task, self._first_id, self._envs = task, first_id, list[gymnasium.Env]()
        self._drawn = "render_mode" in options
        self._num_envs = num_envs = check_count("num_envs", num_envs)
        self._seeds: list[int | None] = [*env_seeds(seed, num_envs, first_id)]
        self._done: np.ndarray | None = None
        self._told: dict[str, np.dtype] = {}
        self._lives = np.zeros(num_envs, int)
        self._kept: dict[int, tuple[PyTree, dict[str, Any]]] = {}
        """Where a life was lost and the game goes on: what was seen last, with which the next episode begins."""
        try:
            for _ in range(num_envs):
                self._envs.append(task.make(**options))
        except Exception as error:
            raise self._failure(len(self._envs), error) from error
        self._space: Any = self._envs[0].action_space

    def reset(self) -> PyTree:
        obs = self._reset(np.ones(self._running(), bool))
        self._done = np.zeros(self._num_envs, bool)
        return obs

    def reset_where(self, mask: np.ndarray) -> PyTree:
        """New episodes in some environments, for a limit that ``HostEnv`` has and they have not."""
        assert self._done is not None
        self._running()
        self._done = self._done & ~mask
        return self._reset(mask)

    def step(self, action: Any) -> HostStep:
        num_envs, task = self._running(), self._task
        if self._done is None:
            raise RuntimeError(f"{task.label}: call reset() before the first step()")
        actions = self._actions(action)
        told = {name: np.zeros(num_envs, dtype) for name, dtype in self._told.items()}
        terminated, truncated = np.zeros((2, num_envs), bool)
        row = HostStep(self._empty(), np.zeros(num_envs, np.float32), terminated, truncated, told)
        i = 0
        try:
            for i in range(num_envs):
                info = self._begin(i, row.obs) if self._done[i] else self._advance(i, actions[i], row)
                for name in row.info.keys() & info.keys():
                    row.info[name][i] = _number(name, info[name])
        except Exception as error:
            raise self._failure(i, error) from error
        self._done = row.terminated | row.truncated
        return row

    def render(self) -> np.ndarray:
        """Pictures of all environments, where ``open_render`` opened them.

        Raises:
          OSError: this machine cannot draw them.
        """
        self._running()
        pictures: list[np.ndarray] = []
        try:
            for env in self._envs:
                pictures.append(np.asarray(env.render()))
        except Exception as error:
            raise self._failure(len(pictures), error) from error
        return np.stack(pictures)

    def close(self) -> None:
        """All of them, whatever one of them says to that."""
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
        obs, i = self._empty(), 0
        try:
            for i in map(int, np.flatnonzero(mask)):
                self._kept.pop(i, None)
                info = self._begin(i, obs)
                if self._done is None and i == 0:
                    self._told = self._what_is_told(info)
        except Exception as error:
            raise self._failure(i, error) from error
        return obs

    def _begin(self, i: int, obs: PyTree) -> dict[str, Any]:
        """Put the first observation of an episode into ``obs``."""
        if i in self._kept:
            seen, info = self._kept.pop(i)
        else:
            answer = self._envs[i].reset(seed=self._seeds[i])
            if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
                raise _Wrong("reset gave no pair (obs, info), as gymnasium's has to")
            self._seeds[i] = None  # a further reset goes on with the stream, instead of repeating its first episode
            seen, info = answer
        _write(obs, i, seen)
        self._lives[i] = int(info.get("lives", 0))
        return info

    def _advance(self, i: int, action: Any, row: HostStep) -> dict[str, Any]:
        """Put one step of one environment into ``row``."""
        answer = self._envs[i].step(action)
        if not (isinstance(answer, tuple) and len(answer) == 5 and isinstance(answer[4], dict)):
            raise _Wrong("step did not give (obs, reward, terminated, truncated, info), as gymnasium's has to")
        seen, reward, terminated, truncated, info = answer
        row.terminated[i], row.truncated[i] = _flag("terminated", terminated), _flag("truncated", truncated)
        _write(row.obs, i, seen)
        row.reward[i] = _number("reward", reward)
        lives, before = int(info.get("lives", 0)), self._lives[i]
        self._lives[i] = lives
        if self._task.learning.get("episodic_life") and 0 < lives < before and not (row.terminated[i] or row.truncated[i]):
            row.terminated[i] = True
            self._kept[i] = tree.map_structure(lambda x: x[i].copy(), row.obs), info
        if self._task.learning.get("reward_clip"):
            row.reward[i] = np.sign(row.reward[i])
            return {**info, "reward": reward}
        return info

    def _what_is_told(self, info: Mapping[str, Any]) -> dict[str, np.dtype]:
        """By the first info of all: later ones may lack an entry, which is 0 then."""
        if self._task.learning.get("episodic_life") and "lives" not in info:
            raise _Wrong("info has no 'lives', so episodic_life=True has no meaning: leave it out")
        given = {name: np.asarray(info[name]) for name in TOLD if name != "reward" and name in info}
        told = {name: narrow(x.dtype) for name, x in given.items() if x.ndim == 0 and x.dtype.kind in "biuf"}
        return told | ({"reward": np.dtype(np.float32)} if self._task.learning.get("reward_clip") else {})

    def _actions(self, action: Any) -> np.ndarray:
        """In the environments' own type, counted from where they begin; arrays of their own, which they may keep."""
        array = check_actions(self._task.label, self._task.action_space, action, self._num_envs)
        space = self._space
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            return np.clip(array.astype(space.dtype), space.low, space.high)  # exactly: some assert it
        start = space.low.astype(np.int64) if isinstance(space, spaces.Box) else getattr(space, "start", 0)
        return (array + start).astype(space.dtype)

    def _empty(self) -> PyTree:
        return _empty(self._task.observation_space, self._num_envs)

    def _failure(self, i: int, error: Exception) -> Exception:
        """What to raise for an error of one environment; none of them is left running."""
        with suppress(Exception):
            self.close()
        where, name = f"{self._task.label}: environment {self._first_id + i}", type(error).__name__
        if isinstance(error, _Wrong):
            return EnvironmentFailed(f"{where}: {error}")
        if self._drawn and isinstance(error, DependencyNotInstalled | ImportError | OSError):
            return OSError(f"gymnasium cannot draw {self._task.label} here: {_one_line(error)}")
        *_, last = traceback.extract_tb(error.__traceback__)
        return EnvironmentFailed(f"{where} raised {name}: {_one_line(error)} ({last.filename}, line {last.lineno})")


class _Wrong(ValueError):
    """An environment gave what it may not."""


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _empty(space: spaces.Space, num_envs: int) -> PyTree:
    """Arrays for a batch of observations."""
    if isinstance(space, spaces.Dict):
        return {name: _empty(part, num_envs) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_empty(part, num_envs) for part in space)
    return np.zeros((num_envs, *(space.shape or ())), narrow(space.dtype))


def _write(batch: PyTree, i: int, value: Any, what: str = "obs") -> None:
    """Put one observation into row ``i``, refusing what NumPy would spread over it or cut off."""
    if isinstance(batch, dict | tuple):
        parts = batch.items() if isinstance(batch, dict) else enumerate(batch)
        if not isinstance(value, Mapping if isinstance(batch, dict) else list | tuple) or len(value) != len(batch):
            raise _Wrong(f"{what} is {type(value).__name__}, and observation_space has {len(batch)} parts there")
        for name, part in parts:
            if isinstance(batch, dict) and name not in value:
                raise _Wrong(f"{what} has no {name!r}, and observation_space has")
            _write(part, i, value[name], f"{what}[{name!r}]")
        return
    array, into = np.asarray(value), batch.dtype
    fits = array.dtype == into or array.dtype.kind in ("biuf" if into.kind == "f" else "biu")
    if array.shape != batch.shape[1:] or not fits:
        raise _Wrong(
            f"{what} is {array.dtype}{list(array.shape)}, and observation_space is {into}{list(batch.shape[1:])}: they must agree"
        )
    batch[i] = array


def _flag(what: str, value: Any) -> bool:
    """A boolean: the truth of anything else, of None or "no", is not what was meant."""
    if not isinstance(value, bool | np.bool_):
        array = np.asarray(value)
        if array.ndim or array.dtype.kind not in "biu" or array not in (0, 1):
            raise _Wrong(f"{what} is {value!r}; it must be True or False")
    return bool(value)


def _number(what: str, value: Any) -> Any:
    """A scalar, or an array without axes."""
    if isinstance(value, float | int | np.number | np.bool_):
        return value
    if np.ndim(value) or np.asarray(value).dtype.kind not in "biuf":
        raise _Wrong(f"{what} is {type(value).__name__}{list(np.shape(value))}; it must be one number")
    return value
