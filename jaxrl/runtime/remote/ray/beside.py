"""Calls of objects on Ray beside the one in progress, and the ends of objects. Does not import jax."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from jaxrl.runtime.remote.cluster import RemoteObject
from jaxrl.runtime.remote.ray.actor import for_ray
from jaxrl.runtime.remote.values import pack


def call_beside(remote_object: RemoteObject, method: str, *args: Any) -> Future[Any]:
    """Call a short method of an object on Ray in another thread than the call in progress. Its answer may be ``Exceptional``.

    The future is never completed if the object is lost.
    """
    return remote_object._queue.worker.call_beside(method, for_ray(pack((args, {}))))


def how_it_ended(remote_object: RemoteObject) -> str | None:
    """Describe the end of an object on Ray as a predicate; None if it has not ended."""
    queue = remote_object._queue
    return None if queue.error is None else str(queue.worker.how)
