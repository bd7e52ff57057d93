"""Identity of a process: it is found while it runs, and never mistaken for another with its pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl.runtime.system import process_identity
from jaxrl.runtime.system.process_identity import look_for, this_process
from tests.helpers.live_files import identity_of
from tests.helpers.processes.children import soon, stop


def test_a_process_is_alive_then_suspended_then_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert soon(lambda: look_for(identity_of(process.pid)) == "alive")
        found = identity_of(process.pid)
        stop(process.pid)
        assert look_for(found) == "suspended"
    finally:
        process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert look_for(found) == "gone"  # a zombie, which keeps its pid
    process.wait()
    assert look_for(found) == "gone"


def test_a_pid_that_another_process_has_by_now_is_not_mistaken() -> None:
    here = this_process()
    assert look_for(here) == "alive" and here.started is not None
    assert look_for(here._replace(started=here.started - 1)) == "gone"


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "another"}, {"namespace": "pid:[1]"}])
def test_a_process_elsewhere_is_out_of_sight(change: dict[str, str]) -> None:
    assert look_for(this_process()._replace(**change)) == "out of sight"


def test_a_system_without_proc_knows_pids_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_identity, "PROCESSES", Path("/nowhere"))
    here = this_process()
    assert (here.started, here.boot, here.namespace) == (None, None, None)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert look_for(here) == "alive" and look_for(here._replace(pid=process.pid)) == "gone"
