"""``maximize``: any function, in this process and in others, with the same result; lost evaluations; bad arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from jaxrl import remote
from jaxrl.evolution import maximize
from jaxrl.options import ARS, OpenAI, SignNoise
from jaxrl.runtime.remote.errors import RemoteError
from tests.helpers.processes.black_boxes import START, TARGET, dies_once, fails, quadratic


@pytest.fixture(scope="module")
def alone() -> Any:
    return maximize(quadratic, START, generations=40, members=16, learning_rate=0.1)


def assert_same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(a.fitness, b.fitness)
    for name in START:
        np.testing.assert_array_equal(a.theta[name], b.theta[name])


def test_a_quadratic_is_maximised(alone: Any) -> None:
    assert alone.fitness.shape == (40, 16) and alone.fitness[-1].mean() > -0.5 > -5 > alone.fitness[0].mean()
    np.testing.assert_allclose(alone.theta["w"], TARGET, atol=0.5)
    assert {name: (x.shape, str(x.dtype)) for name, x in alone.theta.items()} == {"w": ((2, 3), "float32"), "b": ((), "float32")}


def test_a_search_is_continued_bit_for_bit(alone: Any) -> None:
    seen = list[Any]()
    first = maximize(quadratic, START, generations=15, members=16, learning_rate=0.1, on_generation=seen.append)
    second = maximize(quadratic, START, generations=25, members=16, learning_rate=0.1, state=first.state)
    np.testing.assert_array_equal(np.concatenate([first.fitness, second.fitness]), alone.fitness)
    assert_same(second._replace(fitness=alone.fitness), alone)
    assert [each.number for each in seen] == list(range(1, 16)) and seen[3].fitness.tolist() == alone.fitness[3].tolist()


@pytest.mark.parametrize("settings", [{"noise": "sign"}, {"strategy": "ars", "learning_rate": 0.05}, {"sigma_decay": 0.97}])
def test_settings_are_the_options_of_es(settings: Any) -> None:
    found = maximize(quadratic, START, generations=40, members=16, **{"learning_rate": 0.1, **settings})
    assert found.fitness[-1].mean() > found.fitness[0].mean() + 3
    objects = {"sign": SignNoise(), "ars": ARS(), "openai": OpenAI()}
    written = {name: objects.get(value, value) for name, value in settings.items()}
    again = maximize(quadratic, START, generations=40, members=16, **{"learning_rate": 0.1, **written})
    assert_same(found, again)


def test_all_members_of_a_generation_have_one_seed() -> None:
    seeds = list[int]()
    maximize(lambda params, seed: seeds.append(seed) or 0.0, np.zeros(2), generations=3, members=4)  # type: ignore[func-returns-value]
    assert seeds == [0] * 4 + [1] * 4 + [2] * 4


def test_nan_is_the_lowest_fitness() -> None:
    found = maximize(lambda x, seed: float("nan") if x[0] < 0 else float(x[0]), np.zeros(1), generations=20, members=8)
    assert found.theta[0] > 0.3


def test_an_optimizer_of_the_users() -> None:
    found = maximize(quadratic, START, generations=30, members=16, optimizer=optax.adam(0.1))
    assert found.fitness[-1].mean() > -2


def test_other_processes_give_the_same(alone: Any) -> None:
    with remote.open(cpus=2, note=lambda text: None) as cluster:
        assert_same(maximize(quadratic, START, generations=40, members=16, learning_rate=0.1, cluster=cluster), alone)


def test_the_start_of_a_process_is_no_part_of_an_evaluation(alone: Any) -> None:
    found = maximize(quadratic, START, generations=2, members=16, learning_rate=0.1, num_workers=1, timeout=1.0)
    np.testing.assert_array_equal(found.fitness, alone.fitness[:2])


@pytest.mark.slow
def test_lost_evaluations_are_repeated(alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_TEST_MARK", str(tmp_path / "mark"))
    notes = list[str]()
    with remote.open(cpus=2, note=notes.append) as cluster:
        assert_same(maximize(dies_once, START, generations=40, members=16, learning_rate=0.1, cluster=cluster), alone)
    assert (tmp_path / "mark").exists() and any("SIGKILL" in note for note in notes)


@pytest.mark.slow
def test_an_exception_of_the_function_is_raised() -> None:
    with pytest.raises(ZeroDivisionError, match="no customers"):
        maximize(fails, START, generations=1)
    with pytest.raises(RemoteError, match="no customers"):
        maximize(fails, START, generations=1, num_workers=1)


@pytest.mark.ray
def test_a_cluster_of_ray_gives_the_same(alone: Any) -> None:
    assert_same(maximize(quadratic, START, generations=40, members=16, learning_rate=0.1, num_workers=2, engine="ray"), alone)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"members": 7}, "members=7 must be even"),
        ({"members": 0}, "members=0 must be an integer >= 1"),
        ({"generations": 1.5}, "generations=1.5 must be an integer"),
        ({"sigma": 0}, "sigma=0 is not allowed"),
        ({"noise": "low_rank"}, "noise='low_rank' is unknown.*'normal' or 'sign'"),
        ({"strategy": "cma"}, "strategy='cma' is unknown"),
        ({"num_workers": -1}, "num_workers=-1 must be an integer >= 0"),
        ({"engine": "nonsense"}, "unknown engine 'nonsense'.*Available: local, ray"),
        ({"timeout": -5}, "timeout=-5 is not allowed"),
        ({"engine": "ray"}, "engine and timeout are for evaluations in other processes"),
        ({"timeout": 5.0}, "engine and timeout are for evaluations in other processes"),
        ({"engine": "ray", "cluster": object()}, "engine='ray' has no effect beside cluster=…"),
        ({"theta": {}}, "theta has no arrays"),
        ({"function": 3}, r"maximize\(3, …\) must begin with a function"),
        ({"function": lambda params, seed: [1.0, 2.0]}, "must return one number"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], words: str) -> None:
    given = {"function": quadratic, "theta": START, "generations": 1, **arguments}
    with pytest.raises((TypeError, ValueError), match=words):
        maximize(given.pop("function"), given.pop("theta"), **given)
