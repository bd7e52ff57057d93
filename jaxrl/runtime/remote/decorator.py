"""``remote_class``: a decorator whose classes make their objects on the open cluster, as in PARL. Does not import jax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jaxrl.runtime.remote.cluster import SETTINGS, RemoteObject, current_cluster
from jaxrl.settings.aliases import hint_or, listed, similar


class RemoteProxy:
    """Object of a class with the decorator. Its methods are those of the class, called in another process.

    It ends with its cluster, and when nothing refers to it.
    """

    def __init__(self, cls: type, handle: RemoteObject, wait: bool) -> None:
        self._cls, self._handle, self._wait = cls, handle, wait

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not callable(getattr(self._cls, name, None)):
            kind = self._cls.__name__
            raise AttributeError(
                f"{kind} has no method {name!r}: attributes stay in the other process, so write a method that returns it"
            )

        def call(*args: Any, **keywords: Any) -> Any:
            future = self._handle.call(name, *args, **keywords)
            return future.result() if self._wait else future

        call.__name__, call.__doc__ = name, getattr(self._cls, name).__doc__
        return call

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._cls) if not name.startswith("_") and callable(getattr(self._cls, name))]

    def __repr__(self) -> str:
        return repr(self._handle)


class RemoteClass:
    """Class with the decorator."""

    def __init__(self, cls: type, wait: bool, settings: dict[str, Any]) -> None:
        self._cls, self._wait, self._settings = cls, wait, settings
        functools.update_wrapper(self, cls, updated=())
        self._name = cls.__qualname__

    def __call__(self, *args: Any, **keywords: Any) -> RemoteProxy:
        """Make an object on the innermost open cluster. With ``wait``, return once it is made."""
        handle = current_cluster().start(self._jaxrl_constructor, *args, **keywords, **self._settings)
        if self._wait:
            handle.ready.result()
        return RemoteProxy(self._cls, handle, self._wait)

    def __reduce__(self) -> Any:
        """Pickle by name where the class can be imported, else with the class."""
        if self.__module__ == "__main__" or "<locals>" in self._name:
            return RemoteClass, (self._cls, self._wait, self._settings)
        return self._name

    @property
    def _jaxrl_constructor(self) -> Constructor:
        """See ``cluster.CONSTRUCTOR``."""
        return Constructor(self)


class Constructor:
    """Function that makes an object of a class with the decorator, in the calling process."""

    def __init__(self, remote: RemoteClass) -> None:
        self.remote, self.__name__ = remote, remote._cls.__name__

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.remote._cls(*args, **keywords)


def remote_class(cls: type | None = None, /, *, wait: bool = False, **settings: Any) -> Any:
    """Decorate a class, so that its objects live in other processes of the open cluster.

    ``Simulator(seed)`` starts an object, and ``simulator.play(x)`` calls its method ``play`` there. It returns a future, or with
    ``wait`` the result, as in PARL. Attributes are not available.

    Args:
      wait: methods return results, and the constructor returns once the object is made.
      settings: of ``Cluster.start``, such as ``cpus`` and ``restarts``.

    Raises:
      TypeError: an unknown setting, or the decorated object is not a class.
    """
    for name in settings:
        if name not in SETTINGS:
            allowed = ("wait", *SETTINGS)
            raise TypeError(f"unknown setting {name!r}.{hint_or(similar(name, allowed, 0.5), f'Allowed: {listed(allowed)}.')}")
    if cls is None:
        return lambda decorated: RemoteClass(decorated, wait, settings)
    if not isinstance(cls, type):
        raise TypeError(f"remote_class({cls!r}) decorates a class: write @remote_class or @remote_class(wait=True, cpus=2)")
    return RemoteClass(cls, wait, settings)
