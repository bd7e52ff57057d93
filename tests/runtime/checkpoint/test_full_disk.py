"""A disk that becomes full during a run: one readable error, no data is lost, and the same call resumes once there is space."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.processes.chaos import progress

# A limit on the size of files replaces a full disk: it applies to this process, but not to the pipes that it writes to.
# Bytecode is not written, because Python would import what the limit cut off.
SCRIPT = """
import resource, sys
from pathlib import Path
from jaxrl.runtime.cli.main import guarded
from jaxrl.runtime.run import run
from tests.helpers.agents import cartpole

sys.dont_write_bytecode = True

def set_limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def train(out, full_at=None):
    settings = dict(seeds=2, chunk_iterations=2, eval_every=4, eval_episodes=2, checkpoint_every=1e-6, quiet=True)
    fill = lambda chunk: set_limit(1) if chunk.iteration == full_at else None
    run(cartpole("ppo"), 32 * 20, out=out, on_chunk=fill, **settings)
    return 0

folder = Path(sys.argv[1])
print(guarded(lambda: train(folder / "stopped", full_at=10)))
set_limit(resource.RLIM_INFINITY)
print(guarded(lambda: train(folder / "stopped")), guarded(lambda: train(folder / "whole")))
"""


@pytest.mark.slow
def test_a_full_disk_ends_a_run_with_one_line_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.stdout.split() == ["2", "0", "0"], ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("jaxrl: ") and str(tmp_path / "stopped") in line and "File too large" in line
    assert progress(tmp_path / "stopped") == progress(tmp_path / "whole")


# Each file may have 2,000 bytes: many writes fail, in threads that continue after the first failure is reported.
MANY = """
import resource, sys, time
import jax.numpy as jnp
from jaxrl.runtime.checkpoint.manifest import CheckpointError, steps
from jaxrl.runtime.checkpoint.store import save

sys.dont_write_bytecode = True
folder, state = sys.argv[1], {str(i): jnp.full(1000, i) for i in range(60)}
save(folder, {"a": jnp.ones(1000)}, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    save(folder, state, 2)
except CheckpointError as error:
    time.sleep(1)
    print(steps(folder), "File too large" in str(error) or "saving step 2 in" in str(error))
"""


NEVER_AWAITED = """
import asyncio, sys
import jax.numpy as jnp
from jaxrl.runtime.checkpoint.silence_orbax import Quiet
from jaxrl.runtime.checkpoint.store import save

async def async_serialize(): ...
async def other(): ...

async def failed(why):
    asyncio.ensure_future(fails(why))
    await asyncio.sleep(0)

async def fails(why):
    raise ValueError(why)

save(sys.argv[1], {"a": jnp.ones(10)}, 1)
with Quiet():
    async_serialize()
    other()
    asyncio.run(failed("OUT_OF_RANGE: Error writing in OCDBT database"))
    asyncio.run(failed("of somebody else"))
"""


def test_writes_that_were_given_up_are_not_told_of_later(tmp_path: Path) -> None:
    """The garbage collector finds them later. Other warnings of this kind are still shown."""
    command = [sys.executable, "-c", NEVER_AWAITED, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "coroutine 'other' was never awaited" in ended.stderr and "serialize" not in ended.stderr
    assert "of somebody else" in ended.stderr and "OCDBT" not in ended.stderr


@pytest.mark.slow
def test_writes_that_fail_in_threads_print_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ended.stdout, ended.stderr) == ("[1] True\n", "")
