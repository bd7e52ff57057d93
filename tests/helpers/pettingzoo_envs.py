"""Parallel environments of PettingZoo with known answers or known faults: ``pettingzoo:tests.helpers.pettingzoo_envs:Mortal``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pettingzoo
from gymnasium import spaces
from pettingzoo.utils.conversions import parallel_to_aec

AGENTS = ["ann", "bob", "cy"]
LIVES = {"ann": 1, "bob": 3, "cy": 2}
"""Rows after which the agents end: ann and bob terminate, cy is truncated."""


class Mortal(pettingzoo.ParallelEnv):
    """Agents that end one after another. Agent i gets 10·i + t in row t ≥ 1, plus a hundredth of its action, and observes
    (t, i, a draw of the stream for the episode).

    Args:
      fault: what the environment does wrong.
      once: a file that does not exist. The second row of an episode creates it and ends the process.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 7, "name": "mortal"}

    def __init__(self, fault: str = "", actions: int = 2, once: str = "", render_mode: str | None = None) -> None:
        self.fault, self.render_mode, self.rng = fault, render_mode, np.random.default_rng(0)
        self.possible_agents = [] if fault == "nobody" else [*AGENTS]
        self.actions, self.once = actions, once

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(self.actions, start=1)

    def seen(self, agent: str) -> np.ndarray:
        return np.array([self.time, AGENTS.index(agent), self.drawn])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.time, self.drawn, self.agents = 0, self.rng.normal(), [*AGENTS]
        if self.fault == "waits":
            self.agents.remove("bob")
        if self.fault == "pair":
            return {agent: self.seen(agent) for agent in self.agents}
        return {agent: self.seen(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents) and all(self.action_space(a).contains(x) for a, x in actions.items())
        self.time += 1
        if self.once and self.time == 2 and not Path(self.once).exists():
            Path(self.once).touch()
            os._exit(3)
        if self.fault == "raises" and self.time == 2:
            raise RuntimeError("the floor is wet")
        playing, over = self.agents, {agent: self.time >= LIVES[agent] for agent in self.agents}
        rewards = {agent: 10.0 * AGENTS.index(agent) + self.time + actions[agent] / 100 for agent in playing}
        terminated = {agent: over[agent] and agent != "cy" for agent in playing}
        truncated = {agent: over[agent] and agent == "cy" for agent in playing}
        self.agents = [agent for agent in playing if not over[agent]]
        return self._spoilt({agent: self.seen(agent) for agent in playing}, rewards, terminated, truncated)

    def _spoilt(self, obs: Any, rewards: Any, terminated: Any, truncated: Any) -> Any:
        infos: Any = {agent: {} for agent in obs}
        if self.fault == "returns" and self.time == 2:
            self.agents.append("ann")
        if self.fault == "stranger" and self.time == 2:
            self.agents.append("dan")
        if self.fault == "leaves" and self.time == 2:
            self.agents.remove("bob")
        if self.fault == "silent":
            del rewards["bob"]
        if self.fault == "shape":
            obs["bob"] = np.zeros(2)
        if self.fault == "flag":
            truncated["bob"] = "no"
        return (obs, rewards, terminated, truncated) if self.fault == "short" else (obs, rewards, terminated, truncated, infos)

    def state(self) -> np.ndarray:
        return np.array([self.time, 7.0])

    def render(self) -> np.ndarray:
        return np.full((20, 30, 3), self.time, np.uint8)


class Endless(Mortal):
    """``Mortal`` whose agents do not end, and with an argument that it needs."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def step(self, actions: dict[str, int]) -> Any:
        self.time += 1
        flags: Any = dict.fromkeys(AGENTS, False)
        return {a: self.seen(a) for a in AGENTS}, dict.fromkeys(AGENTS, 1.0), flags, flags, {}


class Pair(pettingzoo.ParallelEnv):
    """Two agents with unequal spaces: the speaker (5 actions) observes its last action, the listener (3) observes (time, 1). The
    listener must not repeat its action. Both are truncated after four rows; the reward of each is its own action.

    Args:
      mask: where the mask is given: "info", "obs", or nowhere.
      kind: with "mixed", the listener's actions are a Box.
      equal: the speaker has three actions, too, and observes (time, 0).
    """

    metadata: ClassVar[dict[str, Any]] = {}
    possible_agents: ClassVar[list[str]] = ["speaker", "listener"]

    def __init__(self, mask: str = "", kind: str = "", equal: bool = False) -> None:
        self.mask, self.kind, self.equal = mask, kind, equal

    def observation_space(self, agent: str) -> spaces.Space:
        box = spaces.Box(0, 9, (1 if agent == "speaker" and not self.equal else 2,), np.float32)
        n = self.choices(agent)
        return spaces.Dict({"observation": box, "action_mask": spaces.Box(0, 1, (n,), np.int8)}) if self.mask == "obs" else box

    def choices(self, agent: str) -> int:
        return 5 if agent == "speaker" and not self.equal else 3

    def action_space(self, agent: str) -> spaces.Space:
        mixed = self.kind == "mixed" and agent == "listener"
        return spaces.Box(-1, 1, (2,), np.float32) if mixed else spaces.Discrete(self.choices(agent))

    def told(self) -> tuple[Any, Any]:
        speaker = [self.time, 0] if self.equal else self.last[:1]
        obs: Any = {"speaker": np.array(speaker, np.float32), "listener": np.array([self.time, 1], np.float32)}
        masks = {agent: np.ones(self.choices(agent), np.int8) for agent in self.agents}
        if self.time:
            masks["listener"][self.last[1]] = 0
        if self.mask == "obs":
            obs = {agent: {"observation": obs[agent], "action_mask": masks[agent]} for agent in self.agents}
        infos = {agent: {"action_mask": masks[agent]} if self.mask == "info" else {} for agent in self.agents}
        return obs, infos

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.last, self.agents = 0, [0, 0], ["speaker", "listener"]
        return self.told()

    def step(self, actions: dict[str, Any]) -> Any:
        self.time, self.last = self.time + 1, [int(actions[agent]) for agent in ("speaker", "listener")]
        rewards = {agent: float(action) for agent, action in actions.items()}
        obs, infos = self.told()
        no, ended = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, self.time == 4)
        self.agents = [] if self.time == 4 else self.agents
        return obs, rewards, no, ended, infos


class Places(Mortal):
    """``Mortal`` whose agents observe the time as a Discrete, a MultiDiscrete or a Dict. Ann's space is larger if ``unequal``."""

    def __init__(self, kind: str = "discrete", unequal: bool = False) -> None:
        super().__init__()
        self.kind, self.unequal = kind, unequal

    def observation_space(self, agent: str) -> spaces.Space:
        place, two = spaces.Discrete(9 if self.unequal and agent == "ann" else 5), spaces.MultiDiscrete([5, 3])
        return {"discrete": place, "multi": two, "dict": spaces.Dict({"place": place, "two": two})}[self.kind]

    def seen(self, agent: str) -> Any:
        two = np.array([self.time, AGENTS.index(agent)])
        return {"discrete": self.time, "multi": two, "dict": {"place": self.time, "two": two}}[self.kind]


pettingzoo.register("parallel", "jaxrl-tests/Mortal-v3", Mortal, kwargs={"actions": 3})


def converted() -> Any:
    return parallel_to_aec(Endless(1.0))


def in_turns() -> Any:
    env = parallel_to_aec(Endless(1.0))
    env.env.metadata = {"is_parallelizable": False}
    return env


def number() -> int:
    return 3


def broken() -> Any:
    raise OSError("no such maze")
