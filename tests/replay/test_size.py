"""Memory of replay compared with the allocated arrays, and runs that are refused because it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.builder import replay_setup
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.replay.size import replay_bytes
from jaxrl.runtime.system import memory
from jaxrl.runtime.trainers.fused import FusedDriver
from tests.helpers import probes
from tests.helpers.agents import small_dqn, small_ppo


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"replay": "prioritized"}])
def test_the_estimate_is_what_the_arrays_take(settings: dict[str, Any]) -> None:
    agent = small_dqn(probes.truncation(), buffer_size=4_000, **settings)
    state = jax.jit(agent.init)(jax.random.key(0))
    assert replay_bytes(agent) == sum(x.nbytes for x in jax.tree.leaves(state.learner.replay)) > 4_000
    assert replay_bytes(small_ppo(probes.truncation())) == 0


def large_observations(size: int = 400) -> jaxrl.Env:
    """An endless episode whose observations are numbers that the reset drew, as large as a board of MinAtar."""

    def reset(key: jax.Array, params: Any) -> Any:
        obs = jax.random.uniform(key, (size,))
        return obs, obs

    def step(key: jax.Array, obs: Any, action: Any, params: Any) -> Any:
        return obs, jaxrl.TimeStep(obs, obs[0], jnp.bool_(False), jnp.bool_(False), {})

    return jaxrl.Env(reset, step, spaces.Box(0.0, 1.0, (size,), np.float32), spaces.Discrete(2), (), "tests:large_observations")


@pytest.mark.slow
def test_sixteen_seeds_take_little_more_than_their_rows() -> None:
    """Training copies no buffer, and an iteration's draws are small compared with it."""
    capacity, seeds = 100_000, 16
    agent = small_dqn(large_observations(), buffer_size=capacity, rollout_length=32, replay_ratio=32, batch_size=64)
    rows = seeds * capacity * (400 * 4 + 4 + 4 + 2)  # observation, action, reward and two flags
    driver = FusedDriver(agent, range(seeds), jax.devices()[:1])
    driver.compiler_options = COMPILE_FAST
    memory = driver.compile_iterate(driver.shapes()).memory_analysis()
    assert memory.alias_size_in_bytes > rows
    taken = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes - memory.alias_size_in_bytes
    assert rows < taken < 1.05 * rows


@pytest.mark.slow
def test_rows_are_gathered_in_parts_where_observations_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update's 8 rows and the rows they reached are 25,600 bytes. The result is the same with and without parts."""
    ends = []
    for limit, parts in ((2**20, 1), (2**16, 8), (1, 16)):
        monkeypatch.setattr(replay_setup, "GATHERED_BYTES", limit)
        agent = small_dqn(large_observations(), batch_size=8, rollout_length=8, replay_ratio=4, buffer_size=400)
        learn: Any = agent.algorithm.learn
        assert learn.args[0].num_parts == parts
        if not ends:
            state = jax.jit(agent.init, compiler_options=COMPILE_FAST)(jax.random.key(0))
        ends.append(jax.jit(agent.algorithm.learn, compiler_options=COMPILE_FAST)(state.learner))
    for end in ends[1:]:
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), ends[0][0].params, end[0].params)
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y), ends[0][1], end[1])


def linux(folder: Path, monkeypatch: Any, available: int, swap: int = 0, group: tuple[int, int, int] | None = None) -> None:
    """Write files as on Linux. Sizes are in KiB, and for the control group in bytes: limit, used, and unused file cache."""
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
    row = f"{each / 400_000:.0f} bytes per row"
    message = (
        rf"^buffer_size=400000: the replay of 2 seeds takes {each * 2 / 2**20:.1f} MiB, "
        rf"{each / 2**20:.1f} MiB each \({row}\), but only .* MiB of memory is "
        "available: use a smaller buffer_size, or fewer seeds$"
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
    (tmp_path / "meminfo").unlink()  # not Linux
    assert memory.available_bytes(devices) is None
    memory.check_replay_fits(small_dqn(probes.truncation()), 2**60, 1, devices)  # with unknown memory nothing is refused


class Card:
    """A device with separate memory."""

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
