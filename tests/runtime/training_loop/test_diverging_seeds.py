"""Seeds that diverge: they are frozen, leave the means, and the others continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.runtime.checkpoint.manifest import steps
from jaxrl.runtime.run import RunDiverged
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.runtime.training_loop.on_chunk import Chunk
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, cartpole, small_ppo
from tests.helpers.hosted import hosted
from tests.helpers.short_runs import Killed, assert_same_history, at, kill, rows_of, train

pytestmark = pytest.mark.expensive(60)


@pytest.mark.slow
def test_seeds_that_diverge_leave_the_means_and_the_last_one_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    agent = small_ppo(probes.action_choice())
    rates = {"learning_rate": np.array([1e-3, 1e38], np.float32)}
    _, history = train(agent, None, hyperparams=rates, quiet=False)
    lost = history["diverged"][:, 1]
    assert lost[-1] and not history["diverged"][:, 0].any()
    assert np.isnan(history["evaluation/episodic_return"][lost, 1]).all()
    assert np.isnan(history["charts/episodic_return"][lost, 1]).all()
    assert history["iteration"][-1] == 12
    _, history = train(agent, None, hyperparams=rates, on_nan="stop", quiet=False)
    assert history["iteration"][-1] < 12
    with pytest.raises(RunDiverged) as caught:
        train(agent, None, hyperparams={"learning_rate": 1e38}, quiet=False)
    assert caught.value.history["iteration"][-1] < 12
    out = capsys.readouterr().out
    assert "stopped, since a seed diverged, at step" in out and "stopped, since all seeds diverged, at step" in out


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_return_that_is_no_number_is_blank_and_ends_nothing(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one episode of one evaluation. The other seed, and this seed's other values, are not affected."""
    agent, original, played = cartpole("ppo"), FusedDriver.evaluate, []

    def evaluate(driver: FusedDriver, states: Any, iteration: int, *args: Any, **settings: Any) -> Any:
        returns, lengths = original(driver, states, iteration, *args, **settings)
        played.append(np.asarray(returns).mean(1))
        return returns.at[1, 0].set(value if iteration == 4 else returns[1, 0]), lengths

    def watch(chunk: Chunk) -> None:
        chunk.record["mine"] = np.array([1.0, np.inf])

    monkeypatch.setattr(FusedDriver, "evaluate", evaluate)
    settings: dict[str, Any] = {"quiet": False, "tensorboard": True, "stop_at": 1e6, "on_chunk": watch}
    _, history = train(agent, tmp_path, **settings)
    returns = history["evaluation/episodic_return"]
    expected = np.full((7, 2), np.nan)
    expected[[0, 2, 4, 6]] = played
    expected[2, 1] = np.nan
    np.testing.assert_allclose(returns, expected)
    assert np.isfinite(history["evaluation/episodic_length"][2]).all() and not history["diverged"].any()
    assert history["mine"][1:, 0].tolist() == [1.0] * 6 and np.isnan(history["mine"][:, 1]).all()
    told = capsys.readouterr().out
    assert told.count("is not finite at step") == 1 and "inf" not in told.replace("not finite", "") and "nan" not in told
    assert "inf" not in (tmp_path / "progress.csv").read_text() and "Inf" not in (tmp_path / "records.jsonl").read_text()
    means = [np.nanmean(returns[row]) for row in (0, 2, 4, 6)]
    assert steps(tmp_path / "best") == [(0, 4, 8, 12)[int(np.argmax(means))]]
    assert_same_history(train(agent, tmp_path, **settings)[1], history)


@pytest.mark.slow
def test_a_seed_that_diverges_is_frozen(tmp_path: Path) -> None:
    """Over chunks and a kill. The other seed is the same as next to a healthy one."""
    agent = cartpole("dqn")
    rates: Any = {"learning_rate": np.array([1e-3, 1e38], np.float32)}
    states, history = train(agent, None, rows_of("dqn"), hyperparams=rates)
    assert not history["diverged"][:, 0].any() and history["diverged"][-1, 1]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((states.learner.params, states.learner.target_params)))
    assert int(states.iteration[1]) < int(states.iteration[0]) == agent.algorithm.warmup_iterations + 12
    other, _ = train(agent, None, rows_of("dqn"), hyperparams={"learning_rate": [1e-3, 2e-3]}, chunk_iterations=3)
    first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    assert_bit_equal(first(states), first(other))
    with pytest.raises(Killed):
        train(agent, tmp_path, rows_of("dqn"), hyperparams=rates, on_chunk=at(agent.algorithm.warmup_iterations + 8, kill))
    again, resumed = train(agent, tmp_path, rows_of("dqn"), hyperparams=rates)
    assert_bit_equal(again, states)
    assert_same_history(resumed, history)


def test_a_frozen_seed_that_is_given_something_else_goes_on() -> None:
    def calm(chunk: Chunk) -> Any:
        if chunk.iteration != 6:
            return None
        learner = chunk.states.learner
        rates = np.full(2, 1e-3, np.float32)
        return chunk.states._replace(learner=learner._replace(hyperparams=learner.hyperparams._replace(learning_rate=rates)))

    states, history = train(cartpole("ppo"), None, hyperparams={"learning_rate": [1e-3, 1e38]}, on_chunk=calm)
    assert history["diverged"][:, 1].tolist() == [False, True, True, False, False, False, False]
    assert np.isfinite(history["losses/value_loss"][4:, 1]).all() and int(states.iteration[1]) == 6


@pytest.mark.slow
def test_a_seed_on_the_host_is_frozen() -> None:
    agent = small_ppo(hosted(probes.truncation(5)))
    driver = HostDriver(agent, [3, 5])
    start = driver.init({"learning_rate": np.array([1e-3, 1e38])})
    second = lambda states: jax.tree.map(lambda x: x[1], states)  # noqa: E731
    states, metrics, alive = driver.iterate(start, 2)
    assert alive.tolist() == [True, False]
    assert_bit_equal(second(states), second(start))
    states, metrics, alive = driver.iterate(states, 2, alive)
    assert alive.tolist() == [True, False] and metrics["charts/valid_rows"].count.tolist() == [64, 0]
    assert_bit_equal(second(states), second(start))
    assert states.iteration.tolist() == [4, 0]
    driver.close()
