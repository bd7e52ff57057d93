"""The kernels that PPO and DQN start, which a test holds: ``python -m tests.helpers.kernel_counts`` writes the figures anew."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.kernels import count

FILE = Path(__file__).with_suffix(".json")
HELD = ("ppo-1-seed", "dqn-10k")


def count_now() -> dict[str, Any]:
    """What this jaxlib makes of the cases that are held, for a CPU like this one."""
    compiler = f"jaxlib {version('jaxlib')} for {platform.machine()}"
    return {"compiler": compiler, "kernels": count([case for case in CASES if case.name in HELD])}


if __name__ == "__main__":
    counts = count_now()
    FILE.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"), end="")
