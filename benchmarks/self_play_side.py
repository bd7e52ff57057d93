"""jaxrl's side of the benchmark of self-play, with the driver of ``jaxrl.run``. A device per core shares the games."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

import jaxrl
from benchmarks.fused_side import FusedSide
from benchmarks.protocol import serve
from benchmarks.self_play_cases import CHANNELS, FEATURES, GAMES, HIDDEN, MOVES, SIMULATIONS, Case, from_json
from benchmarks.worker import peak_memory
from jaxrl.runtime.logs.records import env_steps
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.types import Agent

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"encoder": "flat", "hidden_sizes": HIDDEN, "activation": "relu", "shared": True},
    "convolution": {"encoder": "minatar", "channel_multiplier": CHANNELS // 16, "hidden_sizes": (FEATURES,)},
}
TOTAL_STEPS = 1e9
"""Where schedules end: later than any section."""
BATCH = 64
"""Positions of an iteration's only update, so few that learning takes next to no time."""


def make_agent(case: Case) -> Agent:
    """Return the agent of a case, with the peer's search and sizes."""
    return jaxrl.make_alphazero(
        "jaxrl:ConnectFour",
        num_envs=GAMES,
        rollout_length=MOVES,
        simulations=SIMULATIONS,
        epsilon=0.0,
        batch_size=BATCH,
        replay_ratio=BATCH / (GAMES * MOVES),
        model=NETWORKS[case.network],
    )


class Side(FusedSide):
    """Self-play with one update per iteration. The rows in which games begin anew are not moves, and do not count."""

    def __init__(self, case: Case) -> None:
        super().__init__(make_agent(case), 1, TOTAL_STEPS, jax.local_device_count())

    def train(self, calls: int) -> dict[str, Any]:
        """Run this number of iterations."""
        seconds, metrics = self.timed(calls)
        moves = int(np.sum(env_steps(metrics, calls * GAMES * MOVES)))
        return {"seconds": seconds, "moves": moves, "peak_bytes": peak_memory()}


def main(case_json: str) -> None:
    request_cpu_devices()
    side = Side(from_json(json.loads(case_json)))
    serve({"compile": side.compile, "train": side.train})


if __name__ == "__main__":
    main(*sys.argv[1:])
