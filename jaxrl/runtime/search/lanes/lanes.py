"""``Lanes``: the program of a search. Trials are slots of it, and the seeds of a trial are the lanes of its slot.

A slot whose trial has ended is filled again in place, so that no lane waits and nothing compiles again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import with_total_steps
from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.runtime.logs.records import env_steps
from jaxrl.runtime.search.search_file import SearchFile, check_built
from jaxrl.runtime.system.devices import shard_count
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.training import check_pure, evaluate_pure, evaluation_key
from jaxrl.types import Agent, AgentState, Array, Policy, PyTree


def build(search: SearchFile, structure: Mapping[str, Any]) -> Agent:
    """Build the agent of the trials with a structure."""
    check_built(search, structure)
    agent: Agent = ALGORITHMS[search.algorithm].load().make(search.env, **{**search.settings, **structure})
    check_pure(agent, "a search")
    if agent.env.players == 2:
        raise ValueError(
            f"a search ranks trials by their returns, and those of self-play in {agent.env.name} say who wins, not how well both "
            "play: compare agents by jaxrl.arena"
        )
    return agent


def states_folder(folder: Path, part: int = 0, parts: int = 1) -> Path:
    """Return the folder of the checkpoints of a part of the slots."""
    return folder / f"{part}-of-{parts}"


class Lanes:
    """States of all slots, sharded over devices."""

    def __init__(
        self, agent: Agent, slots: int, seeds: Sequence[int], names: Sequence[str], devices: Sequence[jax.Device]
    ) -> None:
        """
        Args:
          seeds: of each trial, the same for all.
          names: hyperparameters that trials set.
        """
        self.agent, self.slots, self.seeds, self._names = agent, slots, list(seeds), list(names)
        self._driver = self._open(slots, devices)
        self._tested_slots = self._group_size(len(devices))
        self._tester = self._driver if self._tested_slots == slots else self._open(self._tested_slots, devices)
        self._hyperparams = {name: np.full(slots, getattr(agent.hyperparams, name), np.float32) for name in self._names}
        self.alive = np.zeros((slots, len(self.seeds)), bool)
        """bool[slots, seeds]: False for seeds that have diverged, and in slots that were never filled."""
        self.states: PyTree = None

    def twin(self) -> Lanes:
        """Return empty slots that share the programs of these."""
        twin = copy.copy(self)
        twin.alive, twin._hyperparams = self.alive.copy(), {name: x.copy() for name, x in self._hyperparams.items()}
        return twin

    def _open(self, slots: int, devices: Sequence[jax.Device]) -> FusedDriver:
        lanes = np.tile(np.asarray(self.seeds), slots).tolist()
        return FusedDriver(self.agent, lanes, devices[: shard_count(len(lanes), len(devices))])

    def _group_size(self, num_devices: int) -> int:
        """Return how many slots are tested by one call: about a quarter, as tests of other slots in the same call are wasted."""
        fits = [n for n in range(1, self.slots + 1) if self.slots % n == 0 and n * len(self.seeds) % num_devices == 0]
        return next((n for n in fits if 4 * n >= self.slots), self.slots)

    def compile_seconds(self) -> float:
        """Return the time spent so far on compiling."""
        others = 0.0 if self._tester is self._driver else self._tester.compile_seconds
        return self._driver.compile_seconds + others

    def refill(self, trials: Mapping[int, Mapping[str, float]], total_steps: int) -> None:
        """Begin trials in slots.

        Args:
          trials: slot -> hyperparameters.
          total_steps: rows of a whole training, where schedules end.
        """
        for slot, hyperparams in trials.items():
            for name in self._names:
                self._hyperparams[name][slot] = hyperparams[name]
            self.alive[slot] = True
        fresh = self._driver.init(self._columns(total_steps))
        if self.states is None:
            self.states = fresh
            return
        chosen = np.repeat([slot in trials for slot in range(self.slots)], len(self.seeds))
        self.states = self._driver.call("refill", _choose, (0, 0, 0), fresh, self.states, chosen)

    def free(self, slots: Sequence[int]) -> None:
        """Freeze slots that have no trial."""
        self.alive[[*slots]] = False

    def _columns(self, total_steps: int) -> dict[str, np.ndarray]:
        """Return the hyperparameters of all lanes."""
        columns = {name: np.repeat(values, len(self.seeds)) for name, values in self._hyperparams.items()}
        return dict(with_total_steps(self.agent, columns, total_steps))

    def train(self, iterations: Mapping[int, int]) -> int:
        """Train slots, and return the number of env steps of those that are alive.

        Args:
          iterations: slot -> number. Each different number needs a call of the program, for all slots, so there should be few.
        """
        trained, rows = 0, 0
        for number in sorted({*iterations.values()} - {0}):
            chosen = np.array([iterations.get(slot, 0) >= number for slot in range(self.slots)])
            rows += self._train(number - trained, chosen)
            trained = number
        return rows

    def _train(self, iterations: int, chosen: np.ndarray) -> int:
        """Train the slots that are chosen, bool[slots], and leave the others as they are."""
        now = self.alive & chosen[:, None]
        self.states, metrics, alive = self._driver.iterate(self.states, iterations, now.ravel())
        self.alive = np.where(chosen[:, None], np.asarray(alive).reshape(now.shape), self.alive)
        rows = env_steps(jax.device_get(metrics), iterations * self.agent.steps_per_iteration)
        return int(rows[now.ravel()].sum())

    def close(self) -> None:
        """Free the states."""
        self.states = None

    def test(self, slots: Sequence[int], ages: Sequence[int], episodes: int) -> np.ndarray:
        """Play greedy episodes with the policies of some slots.

        Args:
          ages: of their trials. Episodes of equal seeds and ages are the same.

        Returns:
          Mean returns, f64[len(slots), seeds]; NaN for seeds that have diverged.
        """
        policies, returns = self._driver.policies(self.states), []
        size, each = self._tested_slots, len(self.seeds)
        for begin in range(0, len(slots), size):
            group = [*slots[begin : begin + size]]
            padded = group + [group[0]] * (size - len(group))
            age = [*ages[begin : begin + size], *[ages[begin]] * (size - len(group))]
            lanes = (np.asarray(padded)[:, None] * each + np.arange(each)).ravel()
            played = self._play(policies, lanes, np.repeat(np.asarray(age, np.int32), each), episodes)
            returns.append(played.reshape(size, each)[: len(group)])
        means = np.concatenate(returns).astype(np.float64)
        return np.where(self.alive[[*slots]], means, math.nan)

    def _play(self, policies: Any, lanes: np.ndarray, ages: np.ndarray, episodes: int) -> np.ndarray:
        tester, seeds = self._tester, np.tile(np.asarray(self.seeds, np.uint32), self._tested_slots)

        def play(seed: Array, policy: Policy, age: Array) -> Array:
            return evaluate_pure(self.agent, policy, evaluation_key(seed, age), episodes).episodic_return

        placed: Any = tester.place(_take(policies, lanes))
        played = np.asarray(tester.call(("test", episodes), play, (0, 0, 0), seeds, placed, ages))
        mean: np.ndarray = played.mean(-1, dtype=np.float64)  # here: a program for fewer lanes may add in another order
        return mean

    def save(self, folder: str | Path, step: int, part: int = 0, parts: int = 1) -> None:
        """Write a checkpoint of these slots, one of several parts of all."""
        save(
            states_folder(Path(folder), part, parts),
            {"states": self.states, "alive": self.alive, "hyperparams": self._hyperparams},
            step,
            keep=2,
        )

    def restore(self, folder: str | Path, step: int, part: int = 0, parts: int = 1) -> None:
        """Continue from a checkpoint."""
        target = {"states": self._driver.shapes(self._columns(1)), "alive": self.alive, "hyperparams": self._hyperparams}
        saved, _ = restore(states_folder(Path(folder), part, parts), target, step=step)
        self.states, self.alive = saved["states"], np.array(saved["alive"])
        self._hyperparams = {name: np.array(values) for name, values in saved["hyperparams"].items()}


@jax.jit
def _take(policies: Any, lanes: np.ndarray) -> Any:
    return jax.tree.map(lambda x: x[lanes], policies)


def _choose(fresh: AgentState, old: AgentState, is_new: Array) -> AgentState:
    return jax.tree.map(lambda new, kept: jnp.where(is_new, new, kept), fresh, old)
