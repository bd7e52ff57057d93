"""Runs of ES: resumed bit for bit, budgets of rows that were played, loaded policies, and the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxrl
from jaxrl.rollout.autoreset import first_input
from jaxrl.runtime.cli.commands.train import parse
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.run import resume
from jaxrl.runtime.training_loop.outcome import RunDiverged
from jaxrl.types import Agent
from tests.helpers.agents import assert_bit_equal, run_steps, small
from tests.helpers.processes.chaos import TIMES
from tests.helpers.short_runs import at, train
from tests.helpers.walk import BOX_WALK, WALK

pytestmark = pytest.mark.expensive(15)

SEEDS, BUDGET = [3, 5], 300


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command line appends the current folder


class Killed(Exception):
    """Stands for a kill: it is not caught, and nothing is finished."""


class Finished(NamedTuple):
    agent: Agent
    folder: Path
    states: Any
    history: dict[str, np.ndarray]


def run(agent: Agent, folder: Path, **settings: Any) -> Any:
    """Run eight generations."""
    return train(agent, folder, 8 * agent.steps_per_iteration, seeds=SEEDS, **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    agent = small("es", BOX_WALK, sigma=0.5, learning_rate=0.3, max_env_steps=BUDGET)
    folder = tmp_path_factory.mktemp("es") / "run"
    return Finished(agent, folder, *run(agent, folder))


@pytest.mark.slow
def test_a_resumed_run_continues_bit_for_bit(finished: Finished, tmp_path: Path) -> None:
    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        run(finished.agent, tmp_path / "run", on_chunk=at(4, kill))
    states, history = resume(tmp_path / "run", quiet=True)
    assert_bit_equal(states, finished.states)
    assert history.keys() == finished.history.keys()
    for name in history.keys() - TIMES:
        np.testing.assert_array_equal(history[name], finished.history[name], err_msg=name)


def test_rows_that_were_played_are_counted_and_end_at_the_budget(finished: Finished) -> None:
    """Of the rows allowed, which ``total_steps`` counts. A generation after that plays none, and has blanks in the log."""
    history, rows = finished.history, np.asarray(finished.states.learner.rows)
    np.testing.assert_array_equal(history["env_steps"][-1], rows)
    assert (rows >= BUDGET).all() and (rows < BUDGET + 256).all() and history["rows"][-1] == 8 * 256
    shares = history["charts/valid_rows"][1:]
    np.testing.assert_allclose(shares * 512, np.diff(history["env_steps"], axis=0))
    assert (shares[0] > 0).all() and (shares[-1] == 0).all() and np.isnan(history["charts/episodic_return"][-1]).all()
    assert not history["diverged"].any() and np.isfinite(history["evaluation/episodic_return"][-1]).all()


@pytest.mark.parametrize("which", ["best", "last"])
def test_a_loaded_policy_plays_the_mean(which: str, finished: Finished) -> None:
    """That of the seed after ``policy.step`` generations; exploring, that of a member."""
    policy, agent = jaxrl.load_policy(finished.folder, which=which, seed=5, trust="tests"), finished.agent
    alone, _ = run_steps(agent, agent.init(jax.random.key(5)), policy.step)
    mean = agent.algorithm.policy(alone.learner)
    seen, ids = jax.random.uniform(jax.random.key(0), (64, 2), minval=-1.0), jnp.arange(64)
    inputs = first_input(seen, agent.env.action_space, 64)
    _, expected, _ = agent.algorithm.act(mean, (), inputs, ids, jax.random.key(1), explore=False)
    np.testing.assert_allclose(policy(np.asarray(seen)), expected, atol=1e-4)
    assert np.abs(policy(np.asarray(seen), explore=True, key=jax.random.key(2)) - expected).max() > 0.1


@pytest.mark.slow
def test_a_policy_trained_with_the_default_horizon_loads(tmp_path: Path) -> None:
    """That is the step limit of the environment, which a loaded policy does not have."""
    agent = small("es", "CartPole-v1", members=2, episodes=1, horizon=0)
    jaxrl.run(agent, agent.steps_per_iteration, out=tmp_path, quiet=True, tensorboard=False, eval_every=1, eval_episodes=1)
    policy = jaxrl.load_policy(tmp_path, which="best")
    assert policy(np.zeros(4, np.float32)) in (0, 1)


OPTIONS = "--strategy ars --strategy.elite_share 0.5 --noise low_rank --noise.rank 2 --members 4 --episodes 1 --horizon 4"


def test_the_command_line_has_options_of_noise_and_strategy() -> None:
    _, settings = parse("es", ["--env", WALK, *OPTIONS.split()])
    agent = jaxrl.make_es(WALK, **settings)
    assert agent.spec["settings"]["strategy"] == {"name": "ars", "elite_share": 0.5}
    assert agent.spec["settings"]["noise"] == {"name": "low_rank", "rank": 2}
    assert (agent.num_envs, agent.episodes, agent.rollout_length) == (4, 1, 4)


@pytest.mark.slow
def test_the_command_line_trains(tmp_path: Path) -> None:
    run_of = [
        "--env",
        WALK,
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "run"),
        "--quiet",
        "--total-steps",
        "32",
        "--eval-every",
        "0",
    ]
    assert main(["train", "es", *run_of, *OPTIONS.split()]) == 0
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["agent"]["settings"]
    assert settings["noise"] == {"name": "low_rank", "rank": 2} and settings["members"] == 4


def test_the_command_line_says_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", WALK, "--out", str(tmp_path / "run")]
    for extra, message in (
        (["--members", "3", "--horizon", "8"], "members=3 must be even"),
        ([], "horizon must be given for tests.helpers.walk:walk"),
        (["--noise.rank", "2"], "rank"),
    ):
        assert main(["train", "es", *flags, *extra]) == 2
        error = capsys.readouterr().err.strip()
        assert message in error and "Traceback" not in error
    assert not (tmp_path / "run").exists()


def never_finite(hyperparams: Any) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, params: jax.tree.map(lambda x: x * jnp.nan, updates))


@pytest.mark.slow
@pytest.mark.parametrize("env", [WALK, "gymnasium:CartPole-v1"])
def test_a_population_that_diverges_says_so(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    agent = small("es", env, optimizer=never_finite)
    with pytest.raises(RunDiverged, match="all seeds diverged"):
        jaxrl.run(agent, 4 * agent.steps_per_iteration, seeds=2, eval_every=0)
    assert "environments" not in capsys.readouterr().out  # none is to blame
