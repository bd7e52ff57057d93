"""The benchmark of memory: a tiny case against sizes computed by hand, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import memory
from benchmarks.__main__ import main


@pytest.mark.slow
def test_a_tiny_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The arrays of replay, 7 words and a flag for each of 8 · 1,256 rows, are close to the limit."""
    monkeypatch.setattr(memory, "SEEDS", 2)
    monkeypatch.setattr(memory, "CASES", {"CartPole-v1": {"model": {"hidden_sizes": (8,)}, "rollout_length": 8}})
    code = main(["memory", "--scale", "0.1", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "memory.json").read_text())
    (case,) = result["cases"]
    assert (case["row_bytes"], case["rows"]) == (26, 2 * 10_000 * 26)
    assert case["replay"] == 2 * (8 * 1_256 * 29 + 8) < case["program"]
    assert code == int(case["program"] > 1.3 * case["rows"]) == len(memory.missed(result))
    shown = capsys.readouterr().out
    assert f"| CartPole-v1 |             26 |             0 | {'1 (1.12)':>8} |" in shown
    assert "## Memory: 2 seeds in one program, 10,000 rows each" in (tmp_path / "TABLES.md").read_text()
