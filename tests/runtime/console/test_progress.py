"""Displays of a run: lines, the panel in a terminal, and their numbers."""

from __future__ import annotations

import math
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from jaxrl.runtime.console import progress
from jaxrl.runtime.console.progress import Lines, Live, duration, short, spread
from jaxrl.runtime.console.streams import Screen


def test_a_line_has_the_last_return_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    """An episode of 500 steps need not end in every chunk, nor in the last one."""
    lines = Lines("title", 500, Screen(sys.stdout))
    nan, alive = np.nan, np.zeros(2, bool)
    chunks = ([nan, nan], alive), ([4.0, nan], alive), ([nan, 8.0], alive), ([nan, nan], alive), ([nan, nan], ~alive)
    for number, (returns, diverged) in enumerate(chunks, 1):
        record = {"rows": 100 * number, "sps": 10.0, "diverged": diverged, "charts/episodic_return": np.array(returns)}
        lines.update(record, 1.0, 0.0)
    shown = [line.partition(" env steps/s")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    returns = ["", "return 4.00  ", "return 6.00 ± 2.00  ", "return 6.00 ± 2.00  ", ""]
    assert shown == [f"step {100 * (i + 1)}/500  {text}10" for i, text in enumerate(returns)]


def test_a_line_after_a_minute_of_silence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lines = Lines("title", 1_000, Screen(sys.stdout))
    for rows in range(0, 100, 10):
        now[0] += 20
        lines.advance(rows, 75.0)
    assert capsys.readouterr().out.splitlines() == ["title", *(f"step {rows:>5}/1,000  ETA 1:15 min" for rows in (20, 50, 80))]


def test_panel_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(force_terminal=True, width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - until the test ends
    live = Live("PPO · Env · 2 seeds", 1000, console)
    record = {
        "rows": 500,
        "sps": 123_456.0,
        "diverged": np.zeros(2, bool),
        "charts/episodic_return": np.array([1.0, 3.0]),
        "evaluation/episodic_return": np.array([400.0, 500.0]),
        "losses/value_loss": np.array([0.25, np.nan]),
    }
    live.update(record, 75.0, 6.4)
    record = {**record, **dict.fromkeys(("evaluation/episodic_return", "charts/episodic_return"), np.full(2, np.nan))}
    live.update(record, 75.0, 6.4, [(1200.0, 1.0, 0), (800.0, 2.0, 1)])
    monkeypatch.setattr(progress, "REFRESHES", math.inf)
    live.advance(625, 45.0)
    live.note("a note")
    live.close()
    text = console.export_text()
    for part in (
        "PPO · Env · 2 seeds",
        "625 / 1,000",
        "ETA 45 s",
        "2.00 ± 1.00",
        "450.0 ± 50.0",
        "123k",
        "6.4 s",
        "0.25",
        "workers 1.2k+800/s, lag 2, 1 restarts",
        "a note",
    ):
        assert part in text


def test_numbers_for_people() -> None:
    assert [short(x) for x in (12, 652_113, 1.3e6, np.nan)] == ["12", "652k", "1.3M", "–"]
    assert [short(x) for x in (999.6, 999_600, 2.5e12, 0.0)] == ["1k", "1M", "2500G", "0"]  # three figures, not 1e+03
    assert [duration(x) for x in (0.44, 12.3, 187, 8100, np.nan)] == ["0.4 s", "12 s", "3:07 min", "2:15 h", "–"]
    examples = ([475.23, 481.8], [0.0, 0.0], [0.0012, -0.0012], [1e-5, 1e-5], [np.nan, 24.81])
    shown = ["478.5 ± 3.3", "0 ± 0", "0.00000 ± 0.00120", "1.00e-05 ± 0.00e+00", "24.8"]
    assert [spread({"x": np.array(x)}, "x") for x in examples] == shown
