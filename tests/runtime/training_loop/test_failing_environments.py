"""Environments that fail during a run: what was trained until then is saved, and a run that trained nothing leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.envs.host import EnvironmentFailed
from jaxrl.runtime.checkpoint.manifest import steps
from jaxrl.types import Agent, HostEnv, HostStep


class Ending(gymnasium.Env):
    """Ends its process, or raises, in the step ``after``. Rewards count the environments of this process, so they differ after
    each opening."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2)
    opened: ClassVar[int] = 0
    sound: ClassVar[float] = np.inf
    """Environments opened after this number fail in their first step."""

    def __init__(self, after: int = 10**9, how: str = "exit") -> None:
        Ending.opened += 1
        self.after = after if Ending.opened <= Ending.sound else 1
        self.how, self.reward, self.rows, self.row = how, float(Ending.opened), 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.row = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.rows, self.row = self.rows + 1, self.row + 1
        if self.rows >= self.after:
            if self.how == "exit":
                os._exit(3)
            raise ZeroDivisionError("in the world")
        return np.zeros(1, np.float32), self.reward, False, self.row >= 10, {}


ENDING = f"gymnasium:{__name__}:Ending"


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ending, "opened", 0)


def agent_on(env: Any, rollout_length: int = 8) -> Agent:
    settings: Any = {"num_minibatches": 1, "num_epochs": 1, "model": {"hidden_sizes": (4,)}}
    return jaxrl.make_ppo(env, num_envs=4, rollout_length=rollout_length, **settings)


def train(agent: Agent, folder: Path, iterations: int = 40, **how: Any) -> Any:
    how = {"eval_every": 0, "eval_episodes": 4, "chunk_iterations": 2, "checkpoint_every": 0, **how}
    return jaxrl.run(agent, iterations * agent.steps_per_iteration, out=folder, tensorboard=False, quiet=True, **how)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_a_process_of_environments_that_ends(tmp_path: Path) -> None:
    agent = agent_on(f"{ENDING}?num_workers=2&after=100")
    with pytest.raises(ChildProcessError, match=r"the process of environments \d to \d ended with exit code 3 during step"):
        train(agent, tmp_path / "run")
    (saved,) = steps(tmp_path / "run" / "checkpoints")
    assert saved == records(tmp_path / "run")[-1]["iteration"] > 8
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["end"]["state"] == "failed" and "since an environment failed, at step" in status["end"]["reason"]


def test_an_environment_that_fails_in_an_evaluation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The evaluation after 8 iterations opens environments 13 to 16, after those of training and two other evaluations."""
    monkeypatch.setattr(Ending, "sound", 13)
    agent = agent_on(f"{ENDING}?how=raise")
    with pytest.raises(EnvironmentFailed, match="ZeroDivisionError: in the world"):
        train(agent, tmp_path / "run", eval_every=4)
    assert steps(tmp_path / "run" / "checkpoints") == [8]
    found = [(each["iteration"], each["evaluation/episodic_return"]) for each in records(tmp_path / "run")]
    assert [iteration for iteration, returns in found if returns != [None]] == [0, 4] and found[-1] == (8, [None])


def test_the_last_evaluation_is_repeated_if_it_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of 8 iterations, the evaluation after the last opens environments 13 to 16."""
    monkeypatch.setattr(Ending, "sound", 13)
    agent = agent_on(f"{ENDING}?how=raise")
    with pytest.raises(EnvironmentFailed, match="ZeroDivisionError: in the world"):
        train(agent, tmp_path / "run", 8, eval_every=4)
    failed = records(tmp_path / "run")
    monkeypatch.setattr(Ending, "sound", 10**6)
    _, history = train(agent, tmp_path / "run", 8, eval_every=4)
    repeated = records(tmp_path / "run")
    assert [each["iteration"] for each in repeated] == [each["iteration"] for each in failed] == [0, 2, 4, 6, 8]
    assert failed[-1]["evaluation/episodic_return"] == [None] and np.isfinite(history["evaluation/episodic_return"][-1]).all()
    assert repeated[-1] == failed[-1] | {key: x for key, x in repeated[-1].items() if "evaluation" in key}
    train(agent, tmp_path / "run", 8, eval_every=4)
    assert records(tmp_path / "run") == repeated


class Closing:
    """Environments whose masks forbid every action after 200 rows."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.num_envs, self.rows = num_envs, 0

    def observe(self) -> Any:
        return {
            "observation": np.zeros((self.num_envs, 1), np.float32),
            "action_mask": np.full((self.num_envs, 2), self.rows < 200, np.int8),
        }

    def reset(self) -> Any:
        return self.observe()

    def step(self, action: Any) -> HostStep:
        self.rows += 1
        no = np.zeros(self.num_envs, bool)
        return HostStep(self.observe(), np.ones(self.num_envs, np.float32), no, no)

    def close(self) -> None:
        pass


def test_a_mask_that_forbids_everything_loses_nothing(tmp_path: Path) -> None:
    space = spaces.Dict({"observation": spaces.Box(-1.0, 1.0, (1,), np.float32), "action_mask": spaces.MultiBinary(2)})
    agent = agent_on(HostEnv(Closing, space, spaces.Discrete(2), name="closing"))
    with pytest.raises(EnvironmentFailed, match="closing: action_mask forbids every action"):
        train(agent, tmp_path / "run")
    assert steps(tmp_path / "run" / "checkpoints")


def test_a_run_that_trained_nothing_leaves_nothing(tmp_path: Path) -> None:
    """Then the same folder may hold a run with other settings."""
    for rollout_length in (8, 16):
        with pytest.raises(EnvironmentFailed, match="ZeroDivisionError: in the world"):
            train(agent_on(f"{ENDING}?how=raise&after=3", rollout_length), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_best_policies_of_a_training_without_a_checkpoint_are_replaced(tmp_path: Path) -> None:
    """A run that was killed before its first checkpoint begins again, on the host with other episodes."""
    agent, how = agent_on(ENDING), {"eval_every": 10, "chunk_iterations": 5, "checkpoint_every": 1e-6}
    train(agent, tmp_path / "run", **how)
    assert steps(tmp_path / "run" / "best") == [40]
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    states, _ = train(agent, tmp_path / "run", **how)
    assert steps(tmp_path / "run" / "best") == [40]
    policy = jaxrl.load_policy(tmp_path / "run").policy
    for one, other in zip(jax.tree.leaves(policy.params), jax.tree.leaves(states.learner.params), strict=True):
        np.testing.assert_array_equal(one, other[0])


def test_the_best_policies_are_of_the_training_that_went_on(tmp_path: Path) -> None:
    """A run that is resumed before its best evaluation trains on, on the host with other episodes: later ones replace it."""
    agent, how = agent_on(ENDING), {"eval_every": 10, "chunk_iterations": 5, "checkpoint_every": 1e-6}
    train(agent, tmp_path / "run", **how)
    assert steps(tmp_path / "run" / "best") == [40]
    for step in steps(tmp_path / "run" / "checkpoints"):
        if step > 5:  # as if the run had been killed after it wrote the best policies
            (tmp_path / "run" / "checkpoints" / str(step)).rename(tmp_path / str(step))
    states, _ = train(agent, tmp_path / "run", **how)
    policy = jaxrl.load_policy(tmp_path / "run").policy
    assert steps(tmp_path / "run" / "best") == [40]
    for one, other in zip(jax.tree.leaves(policy.params), jax.tree.leaves(states.learner.params), strict=True):
        np.testing.assert_array_equal(one, other[0])
