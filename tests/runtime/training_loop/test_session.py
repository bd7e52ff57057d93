"""The loop of a run with a driver that computes nothing: Ctrl-C, counting, best policies, the end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.runtime import run as run_module
from jaxrl.runtime.checkpoint.manifest import steps
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.run import RunDiverged, RunInterrupted, run
from jaxrl.runtime.training_loop import signals
from jaxrl.types import Agent, Max, Mean
from tests.helpers import probes
from tests.helpers.agents import small_dqn, small_ppo
from tests.helpers.fakes import FakeDriver, faked, press_ctrl_c


def test_rows_beyond_32_bits_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 10,000 iterations of 2²⁰ rows is computed in calls that 32 bits can count."""
    agent, calls = small_ppo(probes.action_choice(), num_envs=2**10, rollout_length=2**10), []

    class Counting(FakeDriver):
        def iterate(self, states: Any, iterations: int, alive: Any) -> Any:
            calls.append(iterations)
            rows = np.full(self.num_seeds, iterations * 2**20, np.int32)
            metrics = {
                "losses/loss": Mean(np.float32(rows), rows),
                "charts/valid_rows": Mean(rows - 1, rows),
                "best": Max(np.full(self.num_seeds, len(calls), np.float32)),
            }
            return {"done": states["done"] + iterations}, metrics, alive

    monkeypatch.setattr(
        run_module, "open_driver", lambda agent, seeds, **options: (Counting(len(seeds), {}), jax.devices()[:1], None)
    )
    _, history = run(agent, 10_000 * 2**20, seeds=2, chunk_iterations=10_000, eval_every=0, quiet=True)
    assert set(calls) == {16} and len(calls) == 625
    assert history["env_steps"].tolist() == [[10_000 * 2**20 - 625] * 2]
    assert history["losses/loss"].tolist() == [[1.0, 1.0]] and history["best"].tolist() == [[625.0, 625.0]]


def test_ctrl_c_finishes_the_chunk_and_writes_everything(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = faked(monkeypatch, {2: press_ctrl_c})
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RunInterrupted, match=r"stopped at step 128 of 320 .* results in") as caught:
        run(agent, 320, seeds=2, out=tmp_path, chunk_iterations=2, eval_every=4)
    assert signal.getsignal(signal.SIGINT) is before and driver.closed and driver.calls == 2
    assert caught.value.states["done"].tolist() == [4, 4]
    assert caught.value.history["iteration"].tolist() == [0, 2, 4]
    assert caught.value.history["best"].shape == (3, 2) and np.isnan(caught.value.history["best"]).all()
    assert len((tmp_path / "progress.csv").read_text().splitlines()) == 1 + 3 * 2
    restored, info = restore(tmp_path / "checkpoints", caught.value.states)
    assert info.step == 4 and restored["done"].tolist() == [4, 4]
    assert (tmp_path / "learning_curve.png").exists()
    assert "stopped at step 128" in capsys.readouterr().out


def test_ctrl_c_before_the_first_chunk(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = faked(monkeypatch, {0: press_ctrl_c})
    with pytest.raises(RunInterrupted, match="stopped at step 0 of 320") as caught:
        run(agent, 320, seeds=2, out=tmp_path, quiet=True)
    assert driver.calls == 0 and caught.value.history == {}
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "status.json"}  # they allow resuming


def test_ctrl_c_is_not_lost_in_the_last_chunk(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch, {1: press_ctrl_c})
    with pytest.raises(RunInterrupted, match="done at step 32 of 32"):
        run(agent, 32, seeds=2, quiet=True)


def test_a_second_ctrl_c_does_not_wait(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice() -> None:
        press_ctrl_c()
        monkeypatch.setattr(signals, "ECHO", 0.0)  # as if that had been some time ago
        press_ctrl_c()

    driver = faked(monkeypatch, {1: twice})
    with pytest.raises(KeyboardInterrupt) as caught:
        run(agent, 320, seeds=2, quiet=True)
    assert not isinstance(caught.value, RunInterrupted) and driver.closed


def test_nothing_is_computed_once_all_seeds_have_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the rest of a chunk that takes several calls: a host driver has nothing to return then."""
    agent, calls = small_ppo(probes.action_choice(), num_envs=2**10, rollout_length=2**10), []

    class Diverging(FakeDriver):
        def iterate(self, states: Any, iterations: int, alive: Any) -> Any:
            calls.append(iterations)
            states, metrics, alive = super().iterate(states, iterations, alive)
            return states, metrics, np.zeros_like(alive)

    monkeypatch.setattr(
        run_module, "open_driver", lambda agent, seeds, **options: (Diverging(len(seeds), {}), jax.devices()[:1], None)
    )
    with pytest.raises(RunDiverged, match="all seeds diverged, at step") as caught:
        run(agent, 64 * 2**20, seeds=2, chunk_iterations=32, eval_every=0, quiet=True)
    assert calls == [16] and caught.value.history["diverged"].tolist() == [[True, True]]


def test_logs_of_a_seed_that_has_diverged_are_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that the driver still returns."""
    agent = small_ppo(probes.action_choice())

    class Diverging(FakeDriver):
        def iterate(self, states: Any, iterations: int, alive: Any) -> Any:
            states, metrics, alive = super().iterate(states, iterations, alive)
            return states, metrics | {"best": Max(np.ones(2, np.float32))}, np.array([True, False])

    monkeypatch.setattr(run_module, "open_driver", lambda agent, seeds, **options: (Diverging(2, {}), jax.devices()[:1], None))
    _, history = run(agent, 128, seeds=2, eval_every=1, quiet=True)
    assert (history["best"][1:, 0] == 1).all() and np.isnan(history["best"][:, 1]).all() and history["diverged"][-1, 1]
    for key in ("episodic_return", "episodic_length", "longest_episode"):
        evaluated = ~np.isnan(history[f"evaluation/{key}"])
        assert evaluated[:, 0].all() and evaluated[0, 1] and not evaluated[1:, 1].any()


@pytest.mark.slow
@pytest.mark.parametrize(("untrained", "best"), [(1.0, 2), (0.5, 2), (1.5, 0)])
def test_untrained_policies_are_the_best_only_where_training_made_them_worse(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, untrained: float, best: int
) -> None:
    driver = faked(monkeypatch, {})
    driver.scores = {0: untrained}
    settings = {"seeds": 2, "out": tmp_path, "chunk_iterations": 2, "eval_every": 2, "quiet": True}
    _, history = run(agent, 128, **settings)
    assert history["evaluation/episodic_return"][:, 0].tolist() == [untrained, 1, 1]
    assert steps(tmp_path / "best") == [best]
    run(agent, 320, **settings)  # it knows the best policies from the records
    assert steps(tmp_path / "best") == [best]


def test_in_self_play_the_last_evaluated_policies_are_the_best(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The returns, of player 0 against itself, fall."""
    driver = faked(monkeypatch, {})
    driver.agent = driver.agent._replace(env=driver.agent.env._replace(players=2))
    driver.scores = {0: 1.0, 4: 0.5, 8: -1.0}
    settings = {"seeds": 2, "out": tmp_path, "chunk_iterations": 2, "eval_every": 4, "quiet": True}
    run(agent, 128, **settings)
    assert steps(tmp_path / "best") == [4]
    run(agent, 256, **settings)
    assert steps(tmp_path / "best") == [8]


def test_in_self_play_policies_that_were_not_evaluated_are_not_the_best(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = faked(monkeypatch, {3: press_ctrl_c})
    driver.agent = driver.agent._replace(env=driver.agent.env._replace(players=2))
    with pytest.raises(RunInterrupted, match="stopped at step 192 of 320"):
        run(agent, 320, seeds=2, out=tmp_path, chunk_iterations=2, eval_every=4, quiet=True)
    assert steps(tmp_path / "best") == [4]


def test_a_game_has_no_return_to_stop_at() -> None:
    with pytest.raises(ValueError, match=r"stop_at=0.9: returns in jaxrl:TicTacToe, a game of two players, .*jaxrl arena"):
        run(small_dqn("jaxrl:TicTacToe"), 64, stop_at=0.9)


def test_without_evaluations_the_first_row_is_that_of_the_first_chunk(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch, {})
    _, history = run(agent, 64, seeds=2, chunk_iterations=1, eval_every=0, quiet=True)
    assert history["iteration"].tolist() == [1, 2] and np.isfinite(history["sps"]).all()


def test_a_foreign_handler_of_ctrl_c_is_kept(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        faked(monkeypatch, {1: press_ctrl_c})
        run(agent, 64, seeds=2, quiet=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [1]
