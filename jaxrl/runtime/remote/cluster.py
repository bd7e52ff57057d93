"""``Cluster``: starts remote objects on one of the engines, and ends them. Does not import jax."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from jaxrl.runtime.remote.calls import CallQueue, Job
from jaxrl.runtime.remote.holder import Slot
from jaxrl.runtime.remote.parallel_map import ParallelMap
from jaxrl.runtime.remote.resources import Resources, asked, check_amount, check_enough, left_of, number_that_fit
from jaxrl.runtime.remote.values import Packed, pack
from jaxrl.settings.aliases import unknown
from jaxrl.settings.validation import Range, check_count

T = TypeVar("T")

SETTINGS = ("cpus", "gpus", "memory", "restarts", "timeout", "placement", "log_name")
"""Settings of ``Cluster.start``."""

ENGINES = ("local", "ray")

PLACEMENTS = ("pack", "spread")

CONSTRUCTOR = "_jaxrl_constructor"
"""Attribute of a class with the decorator: the function that makes an object in the calling process."""


class Reference(Generic[T]):
    """Value that was sent to the cluster once (``Cluster.put``), for use as an argument of any number of calls."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        raise TypeError(
            "a reference must be an argument by itself, not a part of one: only then does the method receive its value"
        )


class RemoteObject:
    """Object in another process. It ends with its cluster, with ``close``, and when nothing refers to it."""

    def __init__(self, cluster: Cluster, queue: CallQueue) -> None:
        self._cluster, self._engine, self._queue = cluster, cluster._engine, queue  # the cluster lives as long as its objects
        self._release = weakref.finalize(self, self._engine.let_go, queue, "nothing refers to it")
        self._release.atexit = False

    def call(self, method: str, /, *args: Any, **keywords: Any) -> Future[Any]:
        """Call a method, and return the future of its result at once. Calls of one object are executed in order.

        A call is executed at most once. Arrays in arguments and results are read-only views of memory: copy before you write.

        Returns:
          The future. Its ``result`` raises ``RemoteError`` for an exception of the method, ``WorkerLost`` if the process ended
          during the call, and ``TimeoutError`` if it took longer than the object's ``timeout``.

        Raises:
          TypeError: the arguments cannot be sent to another process.
          RuntimeError: the object was closed, or its process was lost (``WorkerLost``).
        """
        if not isinstance(method, str) or not method:
            raise TypeError(f"call({method!r}, …) must begin with the name of a method")
        what = f"the arguments of {self._queue.job.name}.{method}"
        packed, references = pack_arguments(what, args, keywords)
        return self._queue.call(self._engine.request(self._queue, method, packed, references))

    @property
    def ready(self) -> Future[None]:
        """Future that is complete when the object is made, with its error if that failed."""
        return self._queue.ready

    @property
    def restarts(self) -> int:
        """Number of times that its process was replaced."""
        return self._queue.restarts

    def close(self) -> None:
        """End the object. An idle one ends by itself; a call in progress is cut off, and fails."""
        self._release.detach()
        self._engine.end(self._queue, "it was closed")

    def __repr__(self) -> str:
        return f"<remote {self._queue.job.name}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self!r} has no attribute {name!r}: methods are called by call({name!r}, …), and values of the object are returned "
            "by methods"
        )

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} belongs to the process that started it, and cannot be sent to another one")


class Cluster:
    """Place for remote objects: see ``open``."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._numbers, self._lock = engine, Counter[str](), threading.Lock()
        self._owner = os.getpid()
        self._release = weakref.finalize(self, engine.close)

    def start(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        cpus: float = 1,
        gpus: float = 0,
        memory: int | str | None = None,
        restarts: int = 0,
        timeout: float | None = None,
        placement: str = "pack",
        log_name: str | None = None,
        **keywords: Any,
    ) -> RemoteObject:
        """Make an object in a new process. Returns at once; ``RemoteObject.ready`` reports when it is made.

        Args:
          function: class of the object, or a function that returns it.
          args: its arguments.
          keywords: its keyword arguments. Where one has the name of a setting below, use ``functools.partial``.
          cpus: number of cores that it uses, and of threads that its libraries get. The cluster has a limited number.
          gpus: number of GPUs, or a fraction of one. An object sees no other GPUs, and with 0 none at all.
          memory: bytes that it may use, or text such as "2GB". If it uses more, its process is killed.
          restarts: number of times that the object is made again if its process is lost. It ends earlier if three starts in a
            row are lost.
          timeout: seconds that a call may take, after which its process is killed; None: any time. Making the object may take
            120 seconds, or ``timeout`` if that is longer.
          placement: machine of a cluster of Ray: "pack", one that is in use until half of it is; "spread", each one in turn.
          log_name: name of the file in ``log_folder``, without ".log"; None: the class and a number.

        Raises:
          NotEnough: the cluster has fewer CPUs, GPUs or memory left.
          TypeError: the class or its arguments cannot be sent to another process.
          ValueError: a setting is out of range.
          RuntimeError: the cluster is closed.
        """
        self._check_open()
        function = getattr(function, CONSTRUCTOR, function)
        if not callable(function):
            raise TypeError(f"start({function!r}) must begin with a class, or a function that returns an object")
        kind = getattr(getattr(function, "func", function), "__name__", type(function).__name__)
        wanted, restarts = asked(cpus, gpus, memory), check_count("restarts", restarts, at_least=0)
        if timeout is not None:
            check_amount("timeout", timeout, Range(0, open_low=True))
        if placement not in PLACEMENTS:
            raise unknown("placement", placement, PLACEMENTS)
        packed = pack_job(function, args, keywords)
        with self._lock:
            name = f"{kind} {self._numbers[kind]}"
            check_enough(name, wanted, self._engine.total, self._left(), self._engine.hint)
            log = self._engine.log_of(log_name or name)
            self._numbers[kind] += 1
            queue = self._engine.start(Job(name, packed, wanted, restarts, timeout, log, placement))
        return RemoteObject(self, queue)

    def put(self, value: T) -> Reference[T]:
        """Send a value to the cluster once, for any number of calls. Methods receive it as read-only arrays.

        Its memory is freed when nothing refers to the reference.

        Raises:
          TypeError: it cannot be sent to other processes.
          MemoryError: there is too little memory.
        """
        self._check_open()
        try:
            return Reference(self._engine.put(pack(value)))
        except TypeError as error:
            raise TypeError(f"the value cannot be sent to other processes: {error}") from error

    def map(
        self,
        function: Callable[[Any], T],
        items: Iterable[Any],
        *,
        cpus: float = 1,
        gpus: float = 0,
        memory: int | str | None = None,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Iterator[T]:
        """Apply a function to all items, in as many processes as fit. Returns an iterator over the results, in order.

        Args:
          function: function of one item, which may be called again for an item whose process is lost.
          cpus: number of cores of each process; this and the next two as in ``start``.
          gpus: number of GPUs of each process.
          memory: bytes that each process may use.
          retries: number of times that an item is tried again if its process is lost, or takes longer than ``timeout``.
          timeout: seconds that an item may take. The start of a process does not count.

        Raises:
          NotEnough: not even one process fits.
        """
        self._check_open()
        everything = [*items]
        number = number_that_fit(asked(cpus, gpus, memory), self._left(), len(everything))
        settings: dict[str, Any] = {"cpus": cpus, "gpus": gpus, "memory": memory, "timeout": timeout}
        start = functools.partial(self.start, **settings)
        return ParallelMap(start, function, everything, max(1, number), retries).results()

    def _left(self) -> Resources:
        return left_of(self._engine.total, self._engine.used())

    @property
    def resources(self) -> Resources:
        """CPUs, GPUs and bytes of memory of the cluster, in use or not."""
        return self._engine.total

    def close(self) -> None:
        """End all objects. Idle ones end by themselves; calls in progress are cut off, and fail."""
        if os.getpid() == self._owner:
            self._release()

    def _check_open(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError("this process is a fork of the one that opened this cluster, and cannot use it: open another one")
        if not self._release.alive:
            raise RuntimeError("this cluster is closed: remote.open() opens another one")

    def __enter__(self) -> Cluster:
        _open_clusters.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(ValueError):
            _open_clusters.remove(self)
        self.close()


_open_clusters: list[Cluster] = []
"""Clusters whose ``with`` block is being executed, for the decorator."""


def current_cluster() -> Cluster:
    """Return the cluster of the innermost ``with`` block."""
    if not _open_clusters:
        raise RuntimeError("no cluster is open: put this into a block `with remote.open():`")
    return _open_clusters[-1]


def pack_job(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Packed:
    """Pack what makes an object."""
    try:
        return pack((function, args, keywords))
    except TypeError as error:
        raise TypeError(f"{function!r} and its arguments cannot be sent to another process: {error}") from error


def pack_arguments(what: str, args: Iterable[Any], keywords: dict[str, Any]) -> tuple[Packed, list[Any]]:
    """Pack the arguments of a call. Return the shared values among them in addition, for which they have slots."""
    shared: list[Any] = []

    def slot(value: Any) -> Any:
        if not isinstance(value, Reference):
            return value
        shared.append(value._value)
        return Slot(len(shared) - 1)

    try:
        return pack(([*map(slot, args)], {name: slot(value) for name, value in keywords.items()})), shared
    except TypeError as error:
        raise TypeError(f"{what} cannot be sent to another process: {error}") from error


def open_cluster(
    engine: str = "local",
    *,
    cpus: int | None = None,
    address: str | None = None,
    insecure: bool = False,
    log_folder: str | Path | None = None,
    patience: float = 30.0,
    note: Callable[[str], None] = print,
) -> Cluster:
    """Open a cluster of processes, in which ``Cluster.start`` makes objects. Use it as a context: it ends what it began.

    Args:
      engine: "local": processes of this machine; "ray": a cluster of Ray (``jaxrl[ray]``).
      cpus: number of CPUs of a cluster that is started here; None: the cores that this process may use.
      address: address of the cluster of Ray to join; None: RAY_ADDRESS, and if that is not set, a cluster is started here.
      insecure: join a cluster that asks for no token, where anyone who reaches it can run programs.
      log_folder: folder for the output of the objects, one file each, wherever they are; None: they print to the output of this
        process, and on Ray to its logs.
      patience: seconds for which an object may wait on Ray for CPUs, GPUs or memory that other programs use, and then for its
        process to run.
      note: called with one line if an object is restarted.

    Raises:
      ImportError: Ray is not installed.
      ConnectionError: no cluster answers at the address.
      PermissionError: the cluster asks for no token, or for another one.
    """
    from jaxrl.runtime.remote.local.engine import LocalEngine
    from jaxrl.runtime.remote.resources import machine, visible_gpus
    from jaxrl.runtime.system.cores import usable_cores

    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    count = usable_cores() if cpus is None else check_count("cpus", cpus)
    folder = None if log_folder is None else Path(log_folder)
    if engine == "ray":
        from jaxrl.runtime.remote.ray.engine import RayEngine

        check_amount("patience", patience, Range(0, open_low=True))
        return Cluster(RayEngine(address, cpus=count, insecure=insecure, log_folder=folder, patience=patience, note=note))
    if address is not None or insecure:
        raise ValueError('address and insecure are for remote.open("ray"): the local engine has processes of this machine alone')
    gpus = visible_gpus()
    return Cluster(LocalEngine(machine(count, len(gpus)), gpus, folder, note))
