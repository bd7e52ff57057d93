"""Numbers of kernels that PPO and DQN start, checked by a test. ``python -m tests.helpers.kernel_counts`` updates them."""

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
    """Count the kernels of the checked cases with this jaxlib and this kind of CPU."""
    compiler = f"jaxlib {version('jaxlib')} for {platform.machine()}"
    return {"compiler": compiler, "kernels": count([case for case in CASES if case.name in HELD])}


if __name__ == "__main__":
    counts = count_now()
    FILE.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"), end="")
