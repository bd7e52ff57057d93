"""Evaluations on slow environments keep within their share of the rows, and a resumed run makes the same evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.runtime.run import RunInterrupted, run
from jaxrl.runtime.training_loop.evaluation_pace import EPISODES, SHARE, SLOW, episodes_within, is_slow, numbers_per_step
from jaxrl.types import Agent, Env, TimeStep
from tests.helpers import probes
from tests.helpers.agents import small_ppo
from tests.helpers.fakes import faked, press_ctrl_c
from tests.helpers.hosted import hosted


def heavy(length: int) -> Env:
    """An environment whose step computes 100 numbers, ``length`` times."""
    probe = probes.action_choice()

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        after, reached = probe.step(key, state, action, params)
        end, _ = jax.lax.scan(lambda x, _: (x + 1.0, None), jnp.zeros(100), length=length)
        return after, TimeStep(reached.obs, reached.reward + 0 * end.sum(), reached.terminated, reached.truncated)

    return probe._replace(step=step)


def test_slow_is_what_runs_outside_of_jax_or_computes_much() -> None:
    assert is_slow(hosted(probes.action_choice())) and not is_slow(jaxrl.make_env("CartPole-v1"))
    assert not is_slow(jaxrl.make_env("Breakout-MinAtar"))
    few, many = numbers_per_step(heavy(10)), numbers_per_step(heavy(1010))
    assert many - few == 100 * 1000  # a scan's body counts once per iteration
    assert not is_slow(heavy(10)) and is_slow(heavy(SLOW // 100))


def record(rows: int, episodes: int, longest: float) -> dict[str, Any]:
    return {"rows": rows, "evaluation/episodes": episodes, "evaluation/longest_episode": np.array([longest, longest + 20])}


def test_an_evaluation_fits_or_is_left_out() -> None:
    """Evaluations so far took 16 · 110 + 16 · 60 rows, without the first one, and the next may take 16 · 60 like the last one."""
    records = [record(32, 16, 900.0), record(64, 16, 100.0), record(96, 0, np.nan), record(128, 16, 50.0), {}]
    needed = (16 * 110 + 2 * 16 * 60) / 0.25
    assert episodes_within(0.25, 128, int(needed), records, 32) == 16 == EPISODES
    assert episodes_within(0.25, 128, int(needed) - 1, records, 32) == 0
    assert episodes_within(0.25, 3, 10**9, records) == 3
    records[3]["evaluation/longest_episode"] = np.array([60.0, np.nan])  # a seed that diverged
    assert [episodes_within(0.25, 128, int(needed) - less, records, 32) for less in (0, 1)] == [16, 0]
    assert episodes_within(0.25, 128, 0, []) == 16  # of the initial policies


@pytest.fixture
def on_host() -> Agent:
    return small_ppo(hosted(probes.action_choice()))


def lasting(monkeypatch: pytest.MonkeyPatch, steps: int, during: Any = None) -> list[int]:
    """Let the longest episode of an evaluation have ``steps`` steps. Return the list of the evaluations' episode counts."""
    driver, asked = faked(monkeypatch, during or {}), list[int]()

    def evaluate(states: Any, iteration: int, num_episodes: int, *, explore: bool) -> Any:
        asked.append(num_episodes)
        return np.ones((2, num_episodes)), np.minimum(np.arange(num_episodes) + steps - 1, steps) * np.ones((2, 1))

    monkeypatch.setattr(driver, "evaluate", evaluate)
    return asked


def test_evaluations_of_a_slow_environment_take_their_share(on_host: Agent, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """20 are planned in 3,200 rows.

    Between the first and the last, which are complete, four of 16 · 10 rows fit into a quarter.
    """
    asked = lasting(monkeypatch, 10)
    _, history = run(on_host, 3200, seeds=2, eval_episodes=50)
    rows, episodes = history["rows"], history["evaluation/episodes"]
    assert asked == episodes[episodes > 0].tolist() == [16] * 5 + [50]
    for i in np.flatnonzero(episodes)[1:-1]:
        assert episodes[1 : i + 1].sum() * 10 <= SHARE * rows[i]
    assert np.isnan(history["evaluation/episodic_return"][episodes == 0]).all()
    share = history["time/evaluation"]
    assert (share > 0).all() and (share < 1).all() and share[-1] > 0
    assert ", evaluation 0.0 s)" in (out := capsys.readouterr().out) or "(evaluation 0.0 s)" in out


@pytest.mark.parametrize(("settings", "count"), [({"eval_every": 5}, 21), ({"stop_at": 2.0}, 18)])
def test_what_is_asked_for_is_done(on_host: Agent, monkeypatch: pytest.MonkeyPatch, settings: Any, count: int) -> None:
    """A number of iterations, or an end by a score, which few episodes could reach by chance."""
    asked = lasting(monkeypatch, 1000)
    run(on_host, 3200, seeds=2, eval_episodes=50, quiet=True, **settings)
    assert asked == [50] * count


def test_a_fast_environment_is_evaluated_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = lasting(monkeypatch, 1000)
    run(small_ppo(probes.action_choice()), 3200, seeds=2, eval_episodes=50, quiet=True)
    assert asked == [50] * 18


@pytest.mark.slow
def test_a_resumed_run_makes_the_same_evaluations(on_host: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lasting(monkeypatch, 10)
    _, whole = run(on_host, 3200, seeds=2, eval_episodes=50, quiet=True)
    lasting(monkeypatch, 10, {20: press_ctrl_c})
    given: dict[str, Any] = {"seeds": 2, "out": tmp_path, "eval_episodes": 50, "quiet": True, "tensorboard": False}
    with pytest.raises(RunInterrupted):
        run(on_host, 3200, **given)
    lasting(monkeypatch, 10)
    _, resumed = run(on_host, 3200, **given)
    for key in ("iteration", "evaluation/episodes", "evaluation/longest_episode", "evaluation/episodic_return"):
        np.testing.assert_array_equal(resumed[key], whole[key])
