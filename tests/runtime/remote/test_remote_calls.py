"""Remote objects: calls, values, map and the decorator, the same on each engine."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import remote
from jaxrl.runtime.remote.decorator import RemoteProxy
from tests.helpers.processes.remote_objects import (
    WAIT,
    Counter,
    DiesOnce,
    OnlyHere,
    Simulator,
    WaitingSimulator,
    square,
    square_or_fail,
)

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_calls_of_one_object_are_executed_in_order(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter, 5)
    futures = [one.call("add", number) for number in range(1, 101)]
    assert [each.result(WAIT) for each in futures] == list(np.cumsum(range(1, 101)) + 5)
    assert futures[3].result() == 15  # as often as one likes


def test_calls_from_several_threads_all_count(counter: remote.RemoteObject) -> None:
    before = counter.call("add", 0).result(WAIT)
    threads = [threading.Thread(target=lambda: [counter.call("add") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.call("add", 0).result(WAIT) == before + 200


def test_objects_work_side_by_side(cluster: remote.Cluster) -> None:
    slow, quick = cluster.start(Counter), cluster.start(Counter)
    pending = slow.call("slow_add", 2.0)
    assert quick.call("add").result(WAIT) == 1 and not pending.done()
    assert [each.result() for each in remote.as_completed([pending], timeout=WAIT)] == [1]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "text",
        b"bytes",
        {"a": [1, (2.5, None)]},
        {1, 2},
        np.arange(5),
        np.zeros((2, 0, 3)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::2],
        np.array([1, "x", None], object),
        {"small": np.ones(3, np.float16), "large": np.arange(200_000)},
        "x" * 3_000_000,
        Path("/somewhere"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_arrive_as_they_are(counter: remote.RemoteObject, value: Any) -> None:
    result = counter.call("same", value).result(WAIT)
    assert type(result) is type(value)
    np.testing.assert_equal(result, value)


def test_keywords_and_functions_of_a_test_arrive(counter: remote.RemoteObject) -> None:
    assert counter.call("same", 1, key="x").result(WAIT) == ((1,), {"key": "x"})
    assert counter.call("same", lambda: 5).result(WAIT)() == 5


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_arrays_are_read_only_on_both_sides(counter: remote.RemoteObject, size: int) -> None:
    ones = counter.call("ones", size).result(WAIT)
    assert not ones.flags.writeable and ones.sum() == size
    with pytest.raises(remote.RemoteError, match="read-only"):
        counter.call("write", np.zeros(size)).result(WAIT)


def test_arguments_are_those_of_the_time_of_the_call(cluster: remote.Cluster) -> None:
    one, data = cluster.start(Counter), np.ones(1_000_000)
    one.call("slow_add", 0.2)
    futures = []
    for number in range(3):
        data[:] = number
        futures.append(one.call("total", data))
    assert [each.result(WAIT) for each in futures] == [0, 1e6, 2e6]


def test_results_stay_as_they_were(counter: remote.RemoteObject) -> None:
    """Memory of results is reused only once nothing refers to it."""
    results = [counter.call("same", np.full(200_000, number)).result(WAIT) for number in range(6)]
    assert [int(each[0]) for each in results] == list(range(6)) and [int(each[-1]) for each in results] == list(range(6))
    part = results[3][10:12]
    del results
    gc.collect()
    for _ in range(5):
        counter.call("same", np.full(200_000, 9)).result(WAIT)
    assert part.tolist() == [3, 3]


def test_what_an_object_keeps_stays_as_it_was(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter)
    for number in range(4):
        one.call("keep", np.full(100_000, number)).result(WAIT)
    assert one.call("kept_total").result(WAIT) == 600_000


def test_a_shared_value_is_an_argument_of_any_call(cluster: remote.Cluster) -> None:
    one, other = cluster.start(Counter), cluster.start(Counter)
    large, small = cluster.put(np.ones(300_000)), cluster.put([1, 2])
    assert one.call("total", large, np.ones(2), large).result(WAIT) == 600_002
    assert [each.call("same", small).result(WAIT) for each in (one, other)] == [[1, 2], [1, 2]]
    assert other.call("same", 1, key=small).result(WAIT) == ((1,), {"key": [1, 2]})
    with pytest.raises(remote.RemoteError, match="read-only"):
        one.call("write", large).result(WAIT)
    pending = other.call("slow_add", 0.3), other.call("total", large)
    del large
    gc.collect()
    assert pending[1].result(WAIT) == 300_000  # the call keeps it
    with pytest.raises(TypeError, match="must be an argument by itself"):
        one.call("same", [small])


def test_a_call_that_was_not_sent_can_be_cancelled(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter, restarts=1)
    one.call("slow_add", 1.0)
    futures = [one.call("same", "x" * 200_000) for _ in range(20)]  # more than the connection takes
    assert futures[-1].cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        futures[-1].result(WAIT)
    assert [len(each.result(WAIT)) for each in futures[:-1]] == [200_000] * 19
    assert one.call("add").result(WAIT) == 2


def test_an_object_may_open_a_cluster_itself(counter: remote.RemoteObject) -> None:
    assert counter.call("nested").result(WAIT) == 42


def test_objects_see_no_gpu_and_few_threads(cluster: remote.Cluster) -> None:
    one = cluster.start(Counter, cpus=2)
    names = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "OMP_NUM_THREADS")
    assert [one.call("variable", name).result(WAIT) for name in names] == ["", "cpu", "2"]


def test_neither_side_imports_jax(counter: remote.RemoteObject) -> None:
    assert "jax" not in counter.call("modules").result(WAIT)


# ----------------------------------------------------------------------------------------------------------- map and decorator


def test_map_returns_results_in_order(cluster: remote.Cluster) -> None:
    assert list(cluster.map(square, range(30), cpus=2)) == [number**2 for number in range(30)]
    assert list(cluster.map(square, [])) == []
    assert list(cluster.map(lambda number: -number, (x for x in (1, 2)), cpus=4)) == [-1, -2]


def test_map_raises_at_the_item_that_failed(cluster: remote.Cluster) -> None:
    results = cluster.map(square_or_fail, range(6), cpus=4)
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    with pytest.raises(remote.RemoteError, match="ValueError: three is not allowed"):
        next(results)


def test_map_tries_items_again_whose_process_is_lost(cluster: remote.Cluster, tmp_path: Path) -> None:
    results = cluster.map(DiesOnce(tmp_path, (2, 5, 9)), range(12), cpus=4, retries=1)
    assert list(results) == [number**2 for number in range(12)]
    with pytest.raises(remote.WorkerLost):
        list(cluster.map(DiesOnce(tmp_path, (20,)), [20], cpus=4))


def test_a_decorated_class_makes_its_objects_on_the_open_cluster(engine: str) -> None:
    with pytest.raises(RuntimeError, match="no cluster is open"):
        Simulator(1)
    with remote.open(engine, cpus=4):
        simulator = Simulator(10)
        future: Any = simulator.play(5)
        assert future.result(WAIT) == 15 and simulator.play.__doc__ == "Return the seed and a number, added."
        waiting = WaitingSimulator(20)
        assert waiting.play(1) == 21 and dir(waiting) == ["die", "play"]
        with pytest.raises(remote.WorkerLost):
            waiting.die()
        assert waiting.play() == 20

        @remote.remote_class(wait=True)
        class Local:
            def two(self) -> int:
                return 2

        assert Local().two() == 2


def test_a_decorated_class_can_be_given_to_start(cluster: remote.Cluster) -> None:
    assert cluster.start(Simulator, 3).call("play", 4).result(WAIT) == 7
    assert cluster.start(partial(Counter, start=8)).call("add").result(WAIT) == 9


def test_items_of_a_map_that_cannot_be_done_all_fail(cluster: remote.Cluster) -> None:
    """More of them than Python allows recursion."""
    results = cluster.map(OnlyHere(), range(3000), cpus=4)
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        next(results)


def test_names_of_a_class_are_its_own(cluster: remote.Cluster) -> None:
    """``construct`` and ``close`` mean nothing special."""
    one = cluster.start(Counter, 3)
    assert one.call("add").result(WAIT) == 4 and one.call("construct").result(WAIT) == "of the class itself"
    assert RemoteProxy(Counter, one, True).close() == "of the object itself"
    assert one.call("add").result(WAIT) == 5


def test_objects_keep_a_cluster_open_that_nothing_else_refers_to(engine: str) -> None:
    one = remote.open(engine).start(Counter, cpus=0.1)
    gc.collect()
    assert one.call("add").result(WAIT) == 1
