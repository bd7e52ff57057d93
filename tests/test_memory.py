"""What replay takes, against the arrays that are made, and runs that are refused because it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.replay.size import replay_bytes
from jaxrl.runtime.system import memory
from tests import probes
from tests.agents import small_dqn, small_ppo


@pytest.mark.parametrize("settings", [{}, {"prioritized": True}])
def test_the_estimate_is_what_the_arrays_take(settings: dict[str, Any]) -> None:
    agent = small_dqn(probes.truncation(), buffer_size=4_000, **settings)
    state = jax.jit(agent.init)(jax.random.key(0))
    assert replay_bytes(agent) == sum(x.nbytes for x in jax.tree.leaves(state.learner.replay)) > 4_000
    assert replay_bytes(small_ppo(probes.truncation())) == 0


def linux(folder: Path, monkeypatch: Any, available: int, swap: int = 0, group: tuple[int, int, int] | None = None) -> None:
    """Files as Linux has them; sizes in KiB, and for the group in bytes: limit, used, and files of it not in use."""
    meminfo = folder / "meminfo"
    meminfo.write_text(f"MemTotal: 99999 kB\nMemAvailable: {available} kB\nSwapFree: {swap} kB\nHugePages_Free: 0\n")
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    monkeypatch.setattr(memory, "CGROUP", folder)
    if group:
        limit, used, inactive = group
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 12\ninactive_file {inactive}\n")


def test_a_run_whose_replay_does_not_fit_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    agent = small_dqn(probes.truncation(), buffer_size=400_000)
    each = replay_bytes(agent)
    linux(tmp_path, monkeypatch, available=2 * each // 1024 - 1)
    row = f"{each / 400_000:.0f} bytes a row"
    message = (
        rf"^buffer_size=400000: the replay of 2 seeds takes {each * 2 / 2**20:.1f} MiB, "
        rf"{each / 2**20:.1f} MiB each \({row}\), and .* MiB of memory are available: use a smaller buffer_size, or fewer seeds$"
    )
    with pytest.raises(ValueError, match=message):
        jaxrl.run(agent, total_steps=80, seeds=2, quiet=True)


def test_what_is_available(tmp_path: Path, monkeypatch: Any) -> None:
    devices = jax.devices("cpu")
    linux(tmp_path, monkeypatch, available=1000, swap=24)
    assert memory.available_bytes(devices) == 2**20
    linux(tmp_path, monkeypatch, available=1000, group=(500_000, 300_000, 100_000))
    assert memory.available_bytes(devices) == 300_000
    (tmp_path / "memory.max").write_text("max\n")  # no limit
    assert memory.available_bytes(devices) == 1_024_000
    (tmp_path / "meminfo").unlink()  # another system than Linux
    assert memory.available_bytes(devices) is None
    memory.check_replay_fits(small_dqn(probes.truncation()), 2**60, 1, devices)  # nothing known, nothing refused


class Card:
    """A device with memory of its own."""

    platform = "gpu"

    def __init__(self, **statistics: int) -> None:
        self.statistics = statistics

    def memory_stats(self) -> dict[str, int] | None:
        return self.statistics or None


def test_memory_of_accelerators() -> None:
    cards: Any = [Card(bytes_limit=1000, bytes_in_use=300), Card(bytes_limit=1000)]
    assert memory.available_bytes(cards) == 1700
    assert memory.available_bytes([*cards, Card()]) is None  # type: ignore[list-item]


@pytest.mark.parametrize(
    "count, shown", [(12, "12 bytes"), (2048, "2.0 KiB"), (3 * 2**29, "1.5 GiB"), (np.int64(2**20), "1.0 MiB")]
)
def test_bytes_in_words(count: int, shown: str) -> None:
    assert memory.show_bytes(count) == shown
