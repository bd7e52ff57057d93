"""The benchmark of devices: its processes, its counts, and the arithmetic of its model."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import cases, pauses, scaling, scaling_report, scaling_worker
from benchmarks.groups import Group
from benchmarks.hlo import Program, bytes_of
from benchmarks.protocol import WorkerError, clean_environment
from benchmarks.report import render
from benchmarks.scaling_model import (
    Level,
    Link,
    Work,
    all_reduce,
    fit,
    of_devices,
    predict,
    slowest_of,
    work_of,
)

TINY = cases.Case("tiny", "PPO, 2 envs", "ppo", "ppo", cases.PPO | {"num_envs": 2, "rollout_length": 8}, 160, hidden_sizes=(4,))

# ------------------------------------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize(("hops", "size", "expected"), [("ring", 2, 2), ("ring", 4, 6), ("tree", 4, 4), ("tree", 5, 6)])
def test_an_all_reduce_takes_its_hops_and_its_bytes_on_each_level(hops: str, size: int, expected: int) -> None:
    link = Link(10.0, 5.0, hops)
    within = 10 * expected + 2 * (size - 1) / size * 100 / 5
    assert all_reduce(100, [Level(size, link)]) == pytest.approx(within)
    assert all_reduce(100, [Level(size, link), Level(2, Link(100.0, 2.0))]) == pytest.approx(within + 2 * 100 + 100 / 2)
    found = fit([(n, all_reduce(n, [Level(size, link)])) for n in (4, 1_000, 10**6, 10**8)], size, hops)
    assert found[:2] == pytest.approx(link[:2]) and found.hops == hops


WORK = Work(fixed=1.0, per_row=0.5, rows=8, all_reduces=((100, 2), (0, 3)))


def test_predictions_by_hand() -> None:
    level = Level(2, Link(0.25, 400.0))  # 0.5 for its hops, 0.25 for 100 bytes
    strong, weak = (predict(WORK, [level], weak=weak) for weak in (False, True))
    reducing = 2 * 0.75 + 3 * 0.5
    assert strong == (2, 1 + 0.5 * 4, reducing, pytest.approx(5 / (2 * 6)))
    assert weak == (2, 1 + 0.5 * 8, reducing, pytest.approx(5 / 8))
    assert predict(WORK, [level._replace(size=1)], weak=False) == (1, 5.0, 0.0, 1.0)


def test_devices_fill_hosts() -> None:
    inner, outer = Level(8, Link(1.0, 1.0)), Link(2.0, 2.0)
    assert of_devices(4, inner, outer) == [inner._replace(size=4)]
    assert of_devices(64, inner, outer) == [inner, Level(8, outer)]
    with pytest.raises(ValueError, match="12 devices do not fill hosts of 8"):
        of_devices(12, inner, outer)


def test_a_fit_of_noise_stays_a_link() -> None:
    assert fit([(4, 1.0), (8, 2.0)], 2) == (0.0, pytest.approx(4.0, rel=0.2), "ring")  # the line is below 0 at 0 bytes
    faster = fit([(4, 2.0), (8, 1.0)], 2)
    assert faster.bandwidth == math.inf and 2 * faster.hop == pytest.approx(1.2)
    with pytest.raises(ValueError, match="two sizes"):
        fit([(4, 1.0), (4, 2.0)], 2)


def test_work_is_a_line_through_two_sizes_and_one_of_many_is_the_slowest() -> None:
    assert work_of(5.0, 3.0, 8, [[100, 2], [0, 3]]) == WORK
    assert work_of(5.0, 2.0, 8, []) == Work(0.0, 5 / 8, 8, ())  # less than half of the time
    assert slowest_of(1, 0.5) == 1
    draws = np.random.default_rng(0).normal(1.0, 0.1, (2_000, 64)).max(1).mean()
    assert draws < slowest_of(64, 0.1) < draws + 0.06


# -------------------------------------------------------------------------------------------------------------------- counts


def test_all_reduces_are_counted_in_loops_with_their_sizes() -> None:
    listed = ((8, 5), (4, 1), (4_000, 30))
    zero: Any = np.float32(0)
    compiled = scaling_worker.all_reduces(listed).lower(np.int32(1), zero).compile()  # type: ignore[attr-defined]
    assert sorted(Program(compiled.as_text()).all_reduces().items()) == sorted(listed)
    assert float(compiled(np.int32(3), zero)) == 0
    assert bytes_of("f32[9157]{0}") == 36_628 and bytes_of("f32[]") == 4
    assert bytes_of("(f32[2,3]{1,0}, s32[5]{0}, bf16[1])") == 24 + 20 + 2


@pytest.mark.slow
def test_a_worker_trains() -> None:
    """The side that splits its environments reduces each gradient; the one with separate seeds reduces nothing."""
    commands, two, counted = scaling_worker.Commands(), TINY._replace(num_seeds=2), {}
    for side, case in {"shared": TINY, "apart": two}.items():
        counted[side] = dict(commands.prepare(side, case._asdict())["all_reduces"])
        assert commands.train(side, 2)["seconds"] > 0
        assert len(commands._training[side].states.iteration.sharding.device_set) == 2
    assert counted["apart"] == {}
    params = commands._training["shared"].states.learner.params
    gradient = 4 * sum(np.size(x) for x in jax.tree.leaves(params))
    (largest,) = (times for size, times in counted["shared"].items() if gradient <= size <= gradient + 8)
    assert largest == TINY.updates_per_iteration
    assert np.asarray(commands._training["shared"].states.iteration) == 3
    assert commands.reduce(list(counted["shared"].items()), 2)["seconds"] > 0


# ------------------------------------------------------------------------------------------------------------------- processes

WORKER = """
import sys, time
from benchmarks.protocol import serve
processes, number, port = map(int, sys.argv[1:])
def where():
    return {"processes": processes, "number": number, "port": port}
def die():
    if number:
        raise OSError("out of luck")
    time.sleep(600)
serve({"where": where, "die": die, "sleep": lambda: time.sleep(600)})
"""


def group(tmp_path: Path, timeout: float = 60.0) -> Group:
    return Group([sys.executable, "-c", WORKER], 2, clean_environment(tmp_path), timeout)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "timeout", "message"), [("die", 60, "out of luck"), ("sleep", 2, "no answer to 'sleep'")])
def test_nobody_waits_for_the_dead(tmp_path: Path, command: str, timeout: float, message: str) -> None:
    with group(tmp_path, timeout) as both:
        with pytest.raises(WorkerError, match=message):
            both.ask(command)
        assert all(worker._process.wait(timeout=10) for worker in both._workers)


def test_all_processes_get_a_command_and_none_outlives_who_asked(tmp_path: Path) -> None:
    with group(tmp_path) as both:
        first, second = both.ask("where")
        assert (first["number"], second["number"]) == (0, 1) and first["processes"] == second["processes"] == 2
        assert first["port"] == second["port"] > 0
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            both.ask("sleep")
        assert all(worker._process.wait(timeout=10) for worker in both._workers)


@pytest.mark.slow
def test_two_processes_reduce_together(tmp_path: Path) -> None:
    with scaling.opened([scaling.TWO_PROCESSES], tmp_path) as groups:
        answers = groups[scaling.TWO_PROCESSES].ask("reduce", all_of=[[64, 3], [4, 1]], rounds=2)
    assert len(answers) == 2 and all(answer["seconds"] > 0 for answer in answers)


class FakeGroup:
    def __init__(self, name: str, asked: list[Any]) -> None:
        self.name, self.asked = name, asked

    def ask(self, op: str, **arguments: Any) -> list[dict[str, Any]]:
        self.asked.append((self.name, op, arguments))
        if op == "prepare":
            return [{"all_reduces": [[40, 16]] if arguments["side"] == "shared" else []}]
        number = arguments.get("iterations") or arguments["rounds"]
        return [{"seconds": 0.001 * number}, {"seconds": 0.002 * number}]  # the slowest process counts


def test_all_parts_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    @contextmanager
    def opened(names: Any, cache: Path) -> Any:
        yield {name: FakeGroup(name, asked) for name in names}

    monkeypatch.setattr(scaling, "opened", opened)
    monkeypatch.setattr(pauses, "TICK", 0.001)
    plan = scaling.PLAN._replace(sizes=(4, 64), section_seconds=1.0)
    result = scaling.measure(3, 0.5, tmp_path, plan)
    assert json.loads((tmp_path / "scaling.json").read_text()) == json.loads(json.dumps(result))
    assert result["seeds"]["seconds"] == dict.fromkeys(scaling.SEEDS, [pytest.approx(0.002)] * 3)
    assert [point["bytes"] for point in result["reducing"]["4 processes"]] == [4, 64]
    envs = {(group, a["side"]): a["case"]["settings"]["num_envs"] for group, op, a in asked if op == "prepare"}
    assert envs["2 devices", "half"] == envs["2 processes", "apart"] == 256 and envs["one core", "whole"] == 512
    sections = [a["rounds"] for _, op, a in asked if op == "reduce" and a["all_of"] == [[64, 1]]]
    assert set(sections) == {scaling.FEWEST, 250}  # of 2 ms each, half a second
    assert scaling.missed(result) and scaling_report.scaling_report(result) in render(tmp_path)
