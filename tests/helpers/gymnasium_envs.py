"""Gymnasium environments with known answers or known faults: ``gymnasium:tests.helpers.gymnasium_envs:Truncation``."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.helpers.batches import FAULTS

BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Truncation(gymnasium.Env):
    """``probes.truncation``: reward 1 forever, truncated every ``every`` steps."""

    observation_space, action_space = BOX, spaces.Discrete(2)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, every: int = 5, render_mode: str | None = None) -> None:
        self.every, self.render_mode = every, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.zeros(1, np.float32), 1.0, False, self.time >= self.every, {}

    def render(self) -> Any:
        return np.full((20, 30, 3), self.time, np.uint8)


class Noise(gymnasium.Env):
    """Observes a draw of the environment's stream and the time, never ends by itself, and reports success."""

    observation_space, action_space = spaces.Box(-np.inf, np.inf, (2,), np.float64), BOX

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.obs = np.array([self.np_random.normal(), 0.0])  # always the same array, whose changes a caller must not see
        return self.obs, {"success": False, "text": "new", "many": [1, 2]}

    def step(self, action: Any) -> Any:
        self.obs += [self.np_random.normal(), 1.0]
        return self.obs, float(action[0]), False, False, {"success": self.obs[1] == 2.0}


gymnasium.register("jaxrl-tests/Noise-v0", Noise, max_episode_steps=3)
gymnasium.register("jaxrl-tests/Unknown-v0", "tests.no_such_module:Env")


class Lives(gymnasium.Env):
    """Three lives. Every second step costs one, each step earns 5, and the third loss ends the game."""

    observation_space, action_space = spaces.Box(0, np.inf, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.seen()

    def step(self, action: Any) -> Any:
        self.time += 1
        obs, info = self.seen()
        return obs, 5.0, info["lives"] == 0, False, info

    def seen(self) -> Any:
        return np.array([self.time], np.float32), {"lives": 3 - self.time // 2}


SPACES = {
    "box": spaces.Box(-2.0, 3.0, (2, 3), np.float32),
    "double": spaces.Box(np.array([-0.1, -np.inf]), np.array([0.1, np.inf]), dtype=np.float64),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "whole": spaces.Box(-3, 4, (2,), np.int64),
    "discrete": spaces.Discrete(3, start=-1),
    "multi": spaces.MultiDiscrete([3, 2], start=[2, -4]),
    "binary": spaces.MultiBinary(3),
    "binary grid": spaces.MultiBinary((2, 2)),
    "dict": spaces.Dict({"b": spaces.Discrete(3, start=1), "a": spaces.Dict({"c": BOX})}),
    "tuple": spaces.Tuple([spaces.Box(0, 1, (2,), np.float32), spaces.MultiBinary(2)]),
    "text": spaces.Text(3),
    "sequence": spaces.Dict({"a": spaces.Sequence(BOX)}),
    "huge": spaces.Box(-(2**40), 2**40, (1,), np.int64),
    "wide": spaces.Box(0, 2**30, (1,), np.int32),
    "many": spaces.Discrete(2**31 + 1),
    "far": spaces.MultiDiscrete([2, 3], start=[0, 2**31]),
}


class Spaces(gymnasium.Env):
    """Observes samples of one space, takes actions of another, and refuses all other actions."""

    def __init__(self, seen: str = "box", taken: str = "discrete") -> None:
        self.observation_space, self.action_space = copy.deepcopy((SPACES[seen], SPACES[taken]))  # each has a stream

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(0 if seed is None else seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), np.float64(np.sum(action)), False, False, {}


class Failing(gymnasium.Env):
    """Fails in the way ``how`` at action 1. If ``mark`` is given it starts a program and records its pid in a file name."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def __init__(self, how: str = "raise", mark: str | None = None) -> None:
        if how == "build":
            raise OSError("no world\nto build")
        self.how, self.game = how, None
        if mark is not None:  # a child program, as some environments start
            self.game = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(mark).with_name(f"{Path(mark).name}.{self.game.pid}").touch()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.how == "reset":
            raise KeyError("start")
        if self.how == "hang at reset":
            time.sleep(600)
        return np.zeros((1,) if self.how != "reset shape" else (2,), np.float32), {}

    def step(self, action: Any) -> Any:
        obs, reward = np.zeros(1, np.float32), 1.0
        if action == 0:
            return obs, reward, False, False, {}
        if self.how == "raise":
            raise ZeroDivisionError("in the\nworld")
        if self.how == "hang":
            time.sleep(600)
        if self.how == "die":
            os.abort()
        if self.how == "exit":
            os._exit(3)
        if self.how == "old":
            return obs, reward, False, {}
        if self.how.startswith("terminated"):
            return obs, reward, {"None": None, "no": "no", "2": 2}[self.how.partition(" ")[2]], False, {}
        shapes = {"shape": np.zeros(2, np.float32), "type": np.zeros(1, complex), "nothing": None}
        rewards = {"reward": np.ones(1), "text": "one"}
        return shapes.get(self.how, obs), rewards.get(self.how, reward), False, False, {}

    def close(self) -> None:
        if self.game is not None:
            self.game.kill()
            self.game.wait()


def wrapped(every: int = 3) -> gymnasium.Env:
    """Return an environment with a wrapper."""
    return gymnasium.wrappers.TransformReward(Truncation(every), lambda reward: 10 * reward)


class Told(gymnasium.Env):
    """``Truncation`` that observes a draw of its stream and the time, and fails when a file orders its process to."""

    observation_space, action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, mark: str, every: int = 5) -> None:
        self.order, self.every, self.row = Path(f"{mark}.{os.getpid()}"), every, 0

    @staticmethod
    def tell(mark: Path, pid: int, how: str, row: int = 0) -> None:
        """Order one environment of a process to do one of ``batches.FAULTS`` in row ``row`` or the next one after it.

        "wait" waits until the file ``mark`` exists, "wait.x" until ``mark.x`` exists.
        """
        order = Path(f"{mark}.{pid}")
        order.with_suffix(".new").write_text(f"{how} {row}")
        order.with_suffix(".new").rename(order)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.row = 0, self.row + 1
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.time, self.row = self.time + 1, self.row + 1
        if self.order.exists():
            how, row = self.order.read_text().split()
            if self.row > int(row):
                self.order.unlink()
                self.wait(how[4:]) if how.startswith("wait") else FAULTS[how]()
        return self.seen(), float(action), False, self.time >= self.every, {}

    def wait(self, suffix: str) -> None:
        while not Path(f"{self.order.with_suffix('')}{suffix}").exists():
            time.sleep(0.01)

    def seen(self) -> Any:
        return np.array([self.np_random.normal(), self.time], np.float32)
