"""``ParallelMap``: a function applied to many items by several remote objects. Does not import jax."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from jaxrl.runtime.remote.errors import WorkerLost
from jaxrl.settings.validation import check_count

AHEAD = 2
"""Number of items that each worker has, so that it does not wait for the next one."""


class Function:
    """A function, as an object."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def apply(self, item: Any) -> Any:
        return self.function(item)


class ParallelMap:
    """Items that wait, and workers that take them as they become idle."""

    def __init__(
        self, start: Callable[..., Any], function: Callable[[Any], Any], items: Sequence[Any], num_workers: int, retries: int
    ) -> None:
        """``start`` starts a remote object, as ``Cluster.start`` does."""
        self._items, self._futures = items, [Future[Any]() for _ in items]
        self._tries = [1 + check_count("retries", retries, at_least=0)] * len(items)
        self._waiting, self._lock = deque(range(len(items))), threading.Lock()
        self._objects: list[Any] = []
        try:
            for _ in range(min(num_workers, len(items))):
                self._objects.append(start(Function, function, restarts=sum(self._tries)))
        except BaseException:
            self.close()
            raise
        for _ in range(AHEAD):
            for each in self._objects:
                self._next(each)

    def results(self) -> Iterator[Any]:
        """Yield the results in the order of the items. The workers end with the iterator."""
        return _results(self, self._futures[::-1])

    def _next(self, worker: Any) -> None:
        """Give a worker its next item. An item that cannot be sent fails, and the one after it is tried."""
        while (index := self._take()) is not None:
            try:
                future = worker.call("apply", self._items[index])
            except Exception as error:
                self._futures[index].set_exception(error)
            else:
                return future.add_done_callback(lambda done, index=index: self._done(worker, index, done))

    def _take(self) -> int | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _done(self, worker: Any, index: int, done: Future[Any]) -> None:
        error = done.exception()
        self._tries[index] -= 1
        if isinstance(error, WorkerLost | TimeoutError) and self._tries[index]:
            with self._lock:
                self._waiting.appendleft(index)
        elif error is not None:
            self._futures[index].set_exception(error)
        else:
            self._futures[index].set_result(done.result())
        self._next(worker)

    def close(self) -> None:
        """End the workers, and leave the remaining items."""
        with self._lock:
            self._waiting.clear()
        for each in self._objects:
            each.close()


def _results(mapping: ParallelMap, futures: list[Future[Any]]) -> Iterator[Any]:
    """``futures`` are in reverse order. A result is freed once it was yielded."""
    try:
        while futures:
            yield futures.pop().result()
    finally:
        mapping.close()
