"""Environments of PettingZoo stepped one after the other in one process, with NEXT_STEP autoreset. Does not import jax."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import tree
from gymnasium import spaces

from jaxrl.envs.backends.gymnasium_vector import draw_without_a_screen
from jaxrl.envs.backends.values import Wrong, empty, failure_of, flag, native, number, write
from jaxrl.envs.host import check_actions, env_seeds, one_line, quiet
from jaxrl.envs.teams import Padding
from jaxrl.settings.validation import check_count
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import PRIVILEGED_KEY, as_entries
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import HostEnvs, HostStep, PyTree


class Maker(NamedTuple):
    """Recipe of one environment, for any process."""

    entry: str | Callable[..., Any]
    """``module:function``, or the function itself."""
    arguments: Mapping[str, Any] = {}

    def __call__(self, **more: Any) -> Any:
        """Make an environment of the parallel interface.

        Raises:
          Wrong: the function returns something else, or agents take turns.
        """
        from pettingzoo import AECEnv, ParallelEnv
        from pettingzoo.utils.conversions import aec_to_parallel

        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo's own modules announce its registry
            env = load(self.entry)(**self.arguments, **more)
        if isinstance(env, ParallelEnv):
            return env
        if not isinstance(env, AECEnv):
            raise Wrong(f"it gives an object of type {type(env).__name__}, neither a ParallelEnv nor an AECEnv of PettingZoo")
        if not env.metadata.get("is_parallelizable"):
            raise Wrong("its agents take turns; jaxrl steps environments whose agents act at once (a ParallelEnv)")
        return aec_to_parallel(env)


def load(entry: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that ``module:function`` names."""
    if callable(entry):
        return entry
    module, _, name = entry.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(module), name)


def begun(env: Any, agents: Sequence[str], seed: int | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Start an episode, in which all agents take part; return their observations and infos."""
    result = env.reset(seed=seed)
    if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Mapping) for part in result)):
        raise Wrong("reset must return a pair of dicts (observations, infos)")
    if absent := [agent for agent in agents if agent not in env.agents or agent not in result[0]]:
        agents_are = f"agent {absent[0]!r} is" if not absent[1:] else f"agents {', '.join(map(repr, absent))} are"
        wanted = "all begin an episode, and one that has to wait may observe zeros, and have its actions ignored"
        raise Wrong(f"after reset, {agents_are} not in env.agents, or without an observation: {wanted}")
    return result


class Task(NamedTuple):
    """Description from which any process can make one environment and interpret its output."""

    label: str
    make: Maker
    agents: tuple[str, ...]
    seen: tuple[spaces.Space, ...]
    """Observation space of each agent, in 32-bit types, with the mask that its info has."""
    taken: tuple[spaces.Space, ...]
    """Action space of each agent, in jaxrl's form: discrete values count from 0."""
    told: bool
    """The mask is in the info of each agent, not in its observation."""
    action_space: spaces.Space
    """That of all agents."""
    padding: Padding | None
    """None if all agents have equal spaces, which stay as they are."""
    world: spaces.Space | None = None
    """Space of ``state()``, if critics shall see it."""
    max_episode_steps: int | None = None

    def check(self, action: Any, num_envs: int) -> np.ndarray:
        """Return actions as an array [num_envs, num_agents, ...]. Raise for invalid ones."""
        return check_actions(self.label, self.action_space, action, num_envs, len(self.agents))

    def open(self, num_envs: int, seed: int, first_id: int = 0, **options: Any) -> HostEnvs:
        """Open environments. ``options`` are further arguments of each: ``render_mode``."""
        if options:
            draw_without_a_screen()
        return Running(self, env_seeds(seed, check_count("num_envs", num_envs), first_id), first_id, options)


class Running:
    """Open environments: see ``jaxrl.types.HostEnvs``."""

    def __init__(self, task: Task, seeds: Sequence[int], first_id: int, options: Mapping[str, Any]) -> None:
        self._task, self._first_id, self._envs, self._begun = task, first_id, list[Any](), False
        self._drawn = "render_mode" in options
        self._seeds: list[int | None] = [*seeds]
        shape = len(seeds), len(task.agents)
        self._seen = [empty(space, len(seeds)) for space in task.seen]
        """Last observation of each agent, [num_envs, ...]."""
        self._world = None if task.world is None else empty(task.world, len(seeds))
        self._terminated, self._truncated = np.zeros((2, *shape), bool)
        self._reward, self._time = np.zeros(shape, np.float32), np.zeros(len(seeds), int)
        try:
            for _ in seeds:
                self._envs.append(task.make(**options))
        except Exception as error:
            raise self._failure(len(self._envs), error) from error
        self._native = [self._envs[0].action_space(agent) for agent in task.agents]

    def reset(self) -> PyTree:
        self._running()
        self._each(self._begin, np.ones(len(self._envs), bool))
        self._begun = True
        return self._obs()

    def reset_where(self, mask: np.ndarray) -> PyTree:
        """Begin new episodes in some environments. Serves a time limit of ``HostEnv`` that the environments do not enforce."""
        self._running()
        self._each(self._begin, mask)
        return self._obs()

    def step(self, action: Any) -> HostStep:
        self._running()
        if not self._begun:
            raise RuntimeError(f"{self._task.label}: call reset() before the first step()")
        ended: Any = (self._terminated | self._truncated).all(1)
        taken = self._actions(action)
        self._reward = np.zeros_like(self._reward)
        self._each(lambda i: self._begin(i) if ended[i] else self._advance(i, {a: x[i] for a, x in taken.items()}))
        return HostStep(self._obs(), self._reward, self._terminated.copy(), self._truncated.copy())

    def render(self) -> np.ndarray:
        """Return pictures of all environments, or raise OSError if this machine cannot render them."""
        self._running()
        pictures: list[np.ndarray] = []
        self._each(lambda i: pictures.append(np.array(self._envs[i].render())))
        return np.stack(pictures)

    def close(self) -> None:
        """Close all environments, even if closing one of them fails."""
        envs, self._envs, first = self._envs, [], None
        for i, env in enumerate(envs):
            try:
                env.close()
            except Exception as error:
                first = first or (i, error)
        if first:
            raise self._failure(*first) from first[1]

    def _running(self) -> None:
        if not self._envs:
            raise RuntimeError(f"{self._task.label}: these environments are closed; open() gives new ones")

    def _each(self, do: Callable[[int], None], mask: np.ndarray | None = None) -> None:
        """Call a function for the environments of a mask. An error closes all."""
        i = 0
        try:
            for i in range(len(self._envs)):
                if mask is None or mask[i]:
                    do(i)
        except Exception as error:
            raise self._failure(i, error) from error

    def _begin(self, i: int) -> None:
        """Start an episode of environment ``i``, in which all agents take part."""
        observations, infos = begun(self._envs[i], self._task.agents, self._seeds[i])
        self._seeds[i] = None  # later resets continue the random stream; the seed would repeat the first episode
        self._refuse_others(i, {})
        for k, agent in enumerate(self._task.agents):
            self._observe(i, k, observations[agent], infos.get(agent, {}))
        self._write_world(i)
        self._terminated[i] = self._truncated[i] = False
        self._time[i] = 0

    def _advance(self, i: int, actions: Mapping[str, Any]) -> None:
        """Step environment ``i``. Agents that are over keep their flags and their last observation."""
        env, over = self._envs[i], self._terminated[i] | self._truncated[i]
        result = env.step({agent: action for agent, action in actions.items() if agent in env.agents})
        if not (isinstance(result, tuple) and len(result) == 5 and all(isinstance(part, Mapping) for part in result)):
            raise Wrong("step must return five dicts (observations, rewards, terminations, truncations, infos)")
        observations, rewards, terminations, truncations, infos = result
        flags = {agent: bool(terminations.get(agent)) or bool(truncations.get(agent)) for agent in terminations}
        self._refuse_others(i, flags, over)
        self._time[i] += 1
        for k in map(int, np.flatnonzero(~over)):
            agent = self._task.agents[k]
            if lacks := [name for name, part in zip(PARTS, result[:4], strict=True) if agent not in part]:
                wanted = "an agent that takes part has an entry, also in the step that ends it"
                raise Wrong(f"step gave no {lacks[0]}[{agent!r}]: {wanted}")
            self._terminated[i, k] = flag(f"terminations[{agent!r}]", terminations[agent])
            self._truncated[i, k] = flag(f"truncations[{agent!r}]", truncations[agent])
            self._reward[i, k] = number(f"rewards[{agent!r}]", rewards[agent])
            self._observe(i, k, observations[agent], infos.get(agent, {}))
            if agent not in env.agents and not flags[agent]:
                raise Wrong(f"agent {agent!r} left env.agents, and neither its termination nor its truncation is True")
        self._write_world(i)
        if self._time[i] == self._task.max_episode_steps:
            self._truncated[i] |= ~self._terminated[i]

    def _refuse_others(self, i: int, flags: Mapping[str, bool], over: np.ndarray | None = None) -> None:
        """Refuse agents that take part although they did not, or no longer, before."""
        known = [agent for k, agent in enumerate(self._task.agents) if over is None or not over[k]]
        others = [agent for agent in self._envs[i].agents if agent not in known and not flags.get(agent)]
        if others:
            again = "after its end" if others[0] in self._task.agents else "without being one of possible_agents"
            wanted = "jaxrl needs the same agents in all episodes, each from the reset to its end"
            raise Wrong(f"agents that appear from nowhere: {others[0]!r} takes part {again}; {wanted}")

    def _observe(self, i: int, k: int, obs: Any, info: Mapping[str, Any]) -> None:
        """Write the observation of an agent to row ``i``."""
        agent, places = self._task.agents[k], self._seen[k]
        if not self._task.told:
            return write(places, i, obs, f"observations[{agent!r}]")
        parts = {name: place for name, place in places.items() if name != MASK_KEY}
        plain = not isinstance(obs, Mapping)
        write(parts[OBSERVATION] if plain else parts, i, obs, f"observations[{agent!r}]")
        mask = info.get(MASK_KEY, np.ones(places[MASK_KEY].shape[1:], np.int8))  # there is none after an end
        write(places[MASK_KEY], i, mask, f"infos[{agent!r}][{MASK_KEY!r}]")

    def _write_world(self, i: int) -> None:
        if self._world is not None:
            write(self._world, i, self._envs[i].state(), "state()")

    def _obs(self) -> PyTree:
        """Return the observations of all agents, [num_envs, num_agents, ...], in new arrays."""
        padding, agents = self._task.padding, len(self._task.agents)
        stacked = padding.observations(self._seen) if padding else tree.map_structure(lambda *x: np.stack(x, 1), *self._seen)
        if self._world is None:
            return stacked
        world = tree.map_structure(lambda x: np.repeat(x[:, None], agents, 1), self._world)
        return {**as_entries(stacked), PRIVILEGED_KEY: world}

    def _actions(self, action: Any) -> dict[str, np.ndarray]:
        """Return the actions of each agent, [num_envs, ...], in its own space."""
        task = self._task
        array = task.check(action, len(self._envs))
        columns: Any = task.padding.actions(array) if task.padding is not None else np.moveaxis(array, 1, 0)  # type: ignore[arg-type]
        over, own = self._terminated | self._truncated, {}
        for k, agent in enumerate(task.agents):
            column, space = columns[k], task.taken[k]
            if isinstance(space, spaces.Discrete):
                if (wrong := ~over[:, k] & (column >= int(space.n))).any():
                    wanted = f"it has {space.n} actions, and {MASK_KEY} forbids the others"
                    raise ValueError(f"{task.label}: action {column[wrong][0]} of agent {agent!r}: {wanted}")
                column = np.minimum(column, int(space.n) - 1)  # of agents that are over, which no mask binds
            own[agent] = native(self._native[k], column)
        return own

    def _failure(self, i: int, error: Exception) -> Exception:
        """Close all environments, and return the exception to raise for an error of environment ``i``."""
        with suppress(Exception):
            self.close()
        if self._drawn and isinstance(error, ImportError | OSError):
            return OSError(f"pettingzoo cannot render {self._task.label} here: {one_line(error)}")
        return failure_of(f"{self._task.label}: environment {self._first_id + i}", error)


PARTS = ("observations", "rewards", "terminations", "truncations")
"""Parts of the result of ``step`` in the parallel interface, before the infos."""
