"""Kill a run with SIGKILL at random moments, resume it each time, and compare it with an undisturbed run.

``python -m tests.helpers.processes.chaos --kills 30`` prints each kill and exits with 1 if the two runs differ.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from jaxrl.runtime.checkpoint.manifest import steps
from jaxrl.runtime.checkpoint.restore import read_arrays

TIMES = ("seconds", "sps", "time/evaluation")
PROGRAM = """
import sys
from tests.helpers.agents import small_dqn
from jaxrl.runtime.run import run
agent = small_dqn("CartPole-v1")
run(agent, int(sys.argv[2]), seeds=2, out=sys.argv[1], chunk_iterations=40, eval_every=400, eval_episodes=2,
    checkpoint_every=0.2, tensorboard=False, quiet=True)
"""
"""A run of DQN, so that the replay buffer must be restored too."""


def start(folder: Path, total_steps: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), str(total_steps)], env=os.environ)


def progress(folder: Path) -> list[dict[str, str]]:
    """Read the rows of ``progress.csv``, without times."""
    with (folder / "progress.csv").open(newline="") as file:
        return [{key: cell for key, cell in row.items() if key not in TIMES} for row in csv.DictReader(file)]


def is_saving(folder: Path) -> bool:
    return (folder / "checkpoints" / "unfinished").exists()


def kill_at_random(folder: Path, total_steps: int, kills: int, seed: int, timeout: float) -> list[str]:
    """Run to the end through ``kills`` kills, every third during a save. Return a description of each kill."""
    rng, moments = random.Random(seed), []
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        process = start(folder, total_steps)
        if len(moments) == kills:
            if process.wait(deadline - time.monotonic()):
                raise RuntimeError(f"the run failed with exit code {process.returncode}")
            return moments
        first = len(steps(folder / "checkpoints"))
        until = time.monotonic() + rng.uniform(0.5, 12.0)  # from the imports, over compilation, into training
        want_save = len(moments) % 3 == 0
        while process.poll() is None and time.monotonic() < until + 20 * want_save:
            if want_save and time.monotonic() >= until and is_saving(folder):
                break
            time.sleep(0.0005 if want_save else 0.01)
        if process.poll() is not None:
            raise RuntimeError(f"the run ended after {len(moments)} of {kills} kills; increase --steps")
        saving = is_saving(folder)
        process.kill()
        process.wait()
        last = max(steps(folder / "checkpoints"), default=None)
        moments.append(f"checkpoint {last}{', while saving' if saving else ''}{'' if first else ', the first start'}")
    raise TimeoutError(f"not finished after {timeout:.0f} s and {len(moments)} kills")


def differences(a: Path, b: Path) -> list[str]:
    """Return the differences between the ends of two runs: arrays of the last checkpoints, and rows of the logs."""
    (arrays_a, _), (arrays_b, _) = (read_arrays(folder / "checkpoints") for folder in (a, b))
    found = [k for k, x in arrays_a.items() if k not in arrays_b or not np.array_equal(x, arrays_b[k], equal_nan=True)]
    if progress(a) != progress(b):
        found.append("progress.csv")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--steps", type=int, default=2_000_000, help="rows per seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1800)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        undisturbed, disturbed = Path(name) / "undisturbed", Path(name) / "disturbed"
        if start(undisturbed, args.steps).wait(args.timeout):
            return 1
        for number, moment in enumerate(kill_at_random(disturbed, args.steps, args.kills, args.seed, args.timeout), 1):
            print(f"kill {number:2}: {moment}")
        found = differences(undisturbed, disturbed)
    verdict = f"differs in {', '.join(found)}" if found else "bit-equal, logs too"
    print(f"after {args.kills} kills: {verdict} (jax {jax.__version__})")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
