"""Arguments that ``jaxrl.run`` refuses, and folders that it cannot write to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.runtime.run import run
from jaxrl.runtime.training_loop.members import check_members
from jaxrl.settings.validation import check_seeds
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import small_dqn, small_ppo
from tests.helpers.fakes import faked


@pytest.mark.parametrize(
    ("seeds", "error", "words"),
    [
        (0, ValueError, "seeds=0 must be at least 1"),
        (True, TypeError, "seeds=True must be a number of seeds"),
        (2.5, TypeError, r"seeds=2\.5 must be"),
        ("8", TypeError, "seeds='8' must be"),
        ([], TypeError, r"seeds=\[\] must be"),
        ([1, 2.5], TypeError, "must be a number of seeds or a list of integers"),
        ([[1], [2]], TypeError, "list of integers"),
        ([3, -1], ValueError, "-1 is outside 0 … 2"),
        ([2**32], ValueError, "4294967296 is outside"),
        ([4, 5, 4], ValueError, "4 occurs twice"),
    ],
)
def test_bad_seeds(seeds: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_members(check_seeds(seeds))


def test_good_seeds() -> None:
    assert check_seeds(3) == [0, 1, 2]
    assert check_seeds(np.int64(2)) == [0, 1]
    assert check_seeds(np.array([5, 2])) == [5, 2]
    assert check_seeds(range(2, 4)) == [2, 3]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"total_steps": 0}, ValueError, "total_steps=0 must be an integer >= 1"),
        ({"total_steps": 100, "exact_steps": True}, ValueError, "use 96 or 128"),
        ({"chunk_iterations": 0}, ValueError, "chunk_iterations=0 must be"),
        ({"eval_every": -1}, ValueError, "eval_every=-1 must be an integer >= 0"),
        ({"eval_episodes": 0}, ValueError, "eval_episodes=0 must be"),
        (
            {"hyperparams": {"learning_rat": 1.0}},
            TypeError,
            "unknown hyperparameter 'learning_rat'. Did you mean 'learning_rate'",
        ),
        ({"hyperparams": {"num_envs": 8}}, TypeError, "'num_envs'. Sizes and switches belong to the builder"),
        ({"hyperparams": {"gamma": 1.5}}, ValueError, "gamma=1.5 is not allowed"),
        ({"hyperparams": {"gamma": [0.9, 0.8, 0.7]}}, ValueError, r"shape \(3,\): it must be one number, or one per seed \(2,\)"),
        (
            {"hyperparams": {"gamma": [0.9, [1]]}},
            ValueError,
            r"hyperparams\['gamma'\]=\[0.9, \[1\]\] must be one number, or one per",
        ),
        ({"hyperparams": 3}, TypeError, "hyperparams must be a mapping"),
        ({"on_chunk": 3}, TypeError, "on_chunk=3 must be a function of a Chunk"),
        ({"save_replay": "no"}, TypeError, "save_replay='no' must be True or False"),
        ({"tensorboard": None}, TypeError, "tensorboard=None must be True or False"),
        ({"out": 3}, TypeError, "3 is not a path of a folder or file: give a string"),
    ],
)
def test_bad_settings(agent: Agent, settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run(agent, **{"total_steps": 64, "seeds": 2, "quiet": True, **settings})


def test_a_warmup_that_leaves_nothing() -> None:
    with pytest.raises(ValueError, match="use at least 72"):
        run(small_dqn(probes.action_choice()), 64, quiet=True)


def test_an_agent_for_a_device_axis() -> None:
    with pytest.raises(ValueError, match="axis_name='d': run shards seeds by itself"):
        run(small_ppo(probes.action_choice(), axis_name="d"), 64, quiet=True)


def test_out_that_is_not_empty(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(FileExistsError, match=r"out='.*' is not empty and holds no run"):
        run(agent, 64, out=tmp_path, quiet=True)


def test_out_that_cannot_be_written(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="cannot be written to: it, or a folder above it, is a file"):
            run(agent, 64, out=out, quiet=True)


def test_a_run_that_cannot_start_leaves_no_folder(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    driver = faked(monkeypatch, {1: fail})
    with pytest.raises(RuntimeError, match="no"):
        run(agent, 64, seeds=2, out=tmp_path / "run", quiet=True)
    assert driver.closed and not (tmp_path / "run").exists()
