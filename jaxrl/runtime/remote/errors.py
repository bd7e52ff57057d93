"""Errors of remote objects, the same on both engines. Does not import jax."""

from __future__ import annotations


class RemoteError(RuntimeError):
    """Error: a remote object raised an exception, whose traceback is the cause of this error.

    It has the exception's type and message as text, since a class may exist only where it was raised.
    """

    def __init__(self, text: str, type_name: str = "", message: str = "") -> None:
        super().__init__(text)
        self.type_name, self.message = type_name, message
        """Type of the exception, such as "ValueError", and its text."""


class WorkerLost(RuntimeError):
    """Error: the process of a remote object ended, or its machine was lost. The call may have been executed in part."""


class NotEnough(RuntimeError):
    """Error: an object asks for more CPUs, GPUs or memory than the cluster has left."""
