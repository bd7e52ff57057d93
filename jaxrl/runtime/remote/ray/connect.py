"""Connect to a cluster of Ray: join one that asks for a token, or start one on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from jaxrl.envs.host import one_line

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that, set to 0, makes Ray use the loopback interface for a cluster of one machine. Read when Ray is imported."""

ANSWER = 15.0
"""Seconds that a cluster may take to answer at all."""


class NoToken(PermissionError):
    """Error: the cluster asks for no token."""


class OtherVersion(ConnectionError):
    """Error: the cluster has another version of Ray than this process."""


def set_variables(address: str | None) -> None:
    """Set variables that Ray reads when it is imported, unless they are set."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if address is None or address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"):
        os.environ.setdefault(LOOPBACK, "0")


def connect(address: str | None, cpus: int | None, insecure: bool, note: Callable[[str], None]) -> tuple[Any, bool]:
    """Join a cluster, or start one on this machine.

    Return the module ``ray``, and whether this process leaves the cluster when the object that asked for it is closed: not if
    something else in the process has joined it before.
    """
    if importlib.util.find_spec("ray") is None:
        raise ImportError('engine "ray" needs the package ray: pip install "jaxrl[ray]"')
    address = address or os.environ.get("RAY_ADDRESS") or None
    set_variables(address)
    if address is not None and not ("ray" in sys.modules and sys.modules["ray"].is_initialized()):
        check_token(address, insecure, note)
    import ray

    if ray.is_initialized():
        check_same(ray.get_runtime_context().gcs_address, address)
        return ray, False
    handler = signal.getsignal(signal.SIGTERM)
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    try:
        with warnings.catch_warnings():
            # It forks to start other programs, for which JAX's threads do not matter.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            if address is None:
                ray.init("local", num_cpus=cpus, include_dashboard=False, **settings)  # not one that another program started
            else:
                ray.init(address, **settings)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    print_losses(False)
    return ray, True


def check_same(joined: str, address: str | None) -> None:
    """Raise ValueError if this process is in another cluster than the one that was asked for: Ray allows only one."""

    def place(text: str) -> tuple[str, str]:
        host, _, port = text.rpartition(":")
        with contextlib.suppress(OSError):
            host = socket.gethostbyname(host)
        return host, port

    if address is not None and ":" in address and place(address) != place(joined):
        raise ValueError(
            f"this process is in the cluster at {joined}, and can join the one at {address} only after it has left it"
        )


def disconnect(ray: Any) -> None:
    """Leave the cluster, and end it if it was started here."""
    ray.shutdown()
    print_losses(True)


def print_losses(enabled: bool) -> None:
    """Set whether Ray prints 20 lines of the log of each machine that is lost, which jaxrl reports in one line."""
    with contextlib.suppress(ImportError, AttributeError):  # Ray has no public way
        from ray._private import worker

        worker._worker_logs_enabled = enabled


def check_token(address: str, insecure: bool, note: Callable[[str], None]) -> None:
    """Check that a cluster answers, and only to those who have its token.

    Raises:
      ConnectionError: it does not answer.
      OtherVersion: it has another version of Ray.
      NoToken: it answers without a token, and ``insecure`` is False.
      PermissionError: it refuses the token of this process.
    """
    without = _asks(address, {"RAY_AUTH_MODE": "disabled"})
    if without is None:
        if not insecure:
            raise NoToken(
                f"the cluster at {address} runs what anyone sends to it: start it with RAY_AUTH_MODE=token, or accept that with "
                "insecure=True"
            )
        note(f"the cluster at {address} asks for no token: anyone who reaches it can run programs there")
        os.environ["RAY_AUTH_MODE"] = "disabled"
        return
    _check_version(address, without)
    if "InvalidAuthToken" not in without:
        raise ConnectionError(f"no cluster answers at {address}: {one_line(without)[-200:]}")
    if (with_ours := _asks(address, {"RAY_AUTH_MODE": "token"})) is not None:
        _check_version(address, with_ours)
        # Without a file that it can read, Ray aborts and prints its call stack.
        no_file = re.search(r"(RAY_AUTH_TOKEN_PATH is set|Token authentication is enabled) but .*", with_ours)
        raise PermissionError(
            f"the cluster at {address} refuses this process's token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH "
            f"({no_file[0][:120] if no_file else one_line(with_ours)[:120]})"
        )


def _check_version(address: str, error: str) -> None:
    if found := re.search(r"cluster has Ray version (\S+) but local Ray version is (\S+)", error):
        raise OtherVersion(
            f"the cluster at {address} has Ray {found[1]}, and this process {found[2]}: pip install ray=={found[1]} here, or "
            f"ray=={found[2]} on all of its machines"
        )


def _asks(address: str, variables: dict[str, str]) -> str | None:
    """Ask for a cluster's status in a new process. Return None if it answers, else the error."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=ANSWER)
    except subprocess.TimeoutExpired:
        return f"it did not answer in {ANSWER:g} s"
    return None if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip())
