"""``ParallelMap``: a function applied to many items by several remote objects. Does not import jax."""

from __future__ import annotations

import functools
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


class SharedCalls:
    """Calls that wait, and objects that take them as they become idle."""

    def __init__(self, objects: Sequence[Any], calls: Sequence[tuple[Any, ...]], retries: int) -> None:
        """
        Args:
          calls: method and arguments of each call.
          retries: number of times that a call is repeated by any object if its process is lost, or takes too long.
        """
        self._calls, self._futures = calls, [Future[Any]() for _ in calls]
        self._tries = [1 + check_count("retries", retries, at_least=0)] * len(calls)
        self._waiting, self._lock, self._living = deque(range(len(calls))), threading.Lock(), [*objects]
        for _ in range(AHEAD):
            for each in objects:
                self._next(each)

    @property
    def futures(self) -> list[Future[Any]]:
        """Futures of the results, in the order of the calls."""
        return self._futures

    def _next(self, worker: Any) -> None:
        """Give an object its next call. A call that cannot be sent fails, and the one after it is tried.

        If the object has ended because its process was lost, another one gets the call.
        """
        while (index := self._take()) is not None:
            try:
                future = worker.call(*self._calls[index])
            except Exception as error:
                if isinstance(error, WorkerLost) and (other := self._without(worker)) is not None:
                    worker = other
                    with self._lock:
                        self._waiting.appendleft(index)
                else:
                    self._futures[index].set_exception(error)
            else:
                return future.add_done_callback(functools.partial(self._done, worker, index))

    def _without(self, lost: Any) -> Any:
        """Leave an object that has ended out from now on. Return one of the others, or None."""
        with self._lock:
            self._living = [each for each in self._living if each is not lost]
            return self._living[0] if self._living else None

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

    def drop(self) -> None:
        """Leave the calls that no object has taken."""
        with self._lock:
            self._waiting.clear()


class ParallelMap:
    """A function applied to items by objects that are started for it."""

    def __init__(
        self, start: Callable[..., Any], function: Callable[[Any], Any], items: Sequence[Any], num_workers: int, retries: int
    ) -> None:
        """``start`` starts a remote object, as ``Cluster.start`` does."""
        self._objects: list[Any] = []
        self._calls = SharedCalls((), (), 0)
        tries = len(items) * (1 + check_count("retries", retries, at_least=0))
        try:
            for _ in range(min(num_workers, len(items))):
                self._objects.append(start(Function, function, restarts=tries))
        except BaseException:
            self.close()
            raise
        self._calls = SharedCalls(self._objects, [("apply", item) for item in items], retries)

    def results(self) -> Iterator[Any]:
        """Yield the results in the order of the items. The workers end with the iterator."""
        return _results(self, self._calls.futures[::-1])

    def close(self) -> None:
        """End the workers, and leave the remaining items."""
        self._calls.drop()
        for each in self._objects:
            each.close()


def _results(mapping: ParallelMap, futures: list[Future[Any]]) -> Iterator[Any]:
    """``futures`` are in reverse order. A result is freed once it was yielded."""
    try:
        while futures:
            yield futures.pop().result()
    finally:
        mapping.close()
