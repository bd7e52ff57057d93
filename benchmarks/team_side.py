"""jaxrl's trainings of a case of teams, with the driver of ``jaxrl.run``."""

from __future__ import annotations

import json
import sys
from typing import Any

import jaxrl
from benchmarks.fused_side import FusedSide
from benchmarks.protocol import serve
from benchmarks.team_cases import BATCH, EMBEDDING, ENV, HIDDEN, HYPERNETWORK, Case, from_json
from jaxrl.options import QMIX
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.types import Agent

TOTAL_STEPS = 1e7
"""Where schedules end: later than any section."""
PLAYED = 25 / 26
"""Share of rows that are steps of environments; the others are spent on resets."""


def make_agent(case: Case) -> Agent:
    """Return the agent of a case, with networks and batches of the peer's sizes."""
    sizes: dict[str, Any] = {"num_envs": case.num_envs, "rollout_length": case.rollout_length}
    if case.algorithm == "ippo":
        return jaxrl.make_ppo(f"jaxmarl:{ENV}", **sizes, num_epochs=4, num_minibatches=4, learning_rate=2.5e-4)
    return jaxrl.make_qmix(
        f"jaxmarl:{ENV}|agent_id|central_state",
        **sizes,
        decomposition=QMIX(embedding_size=EMBEDDING, hypernetwork_size=HYPERNETWORK),
        model={"hidden_sizes": (HIDDEN,), "core_size": HIDDEN, "use_previous": False},
        batch_size=BATCH,
        sequence_length=case.rollout_length,
        replay_ratio=BATCH / case.num_envs,  # an update per iteration
        buffer_size=3 * 5_000 * case.rollout_length,  # rows of three agents
        learning_starts=1_000,
        gamma=0.9,
        max_grad_norm=25.0,
        learning_rate=5e-3,
    )


class Side(FusedSide):
    """The training program of all seeds."""

    def __init__(self, case: Case) -> None:
        super().__init__(make_agent(case), case.num_seeds, TOTAL_STEPS)
        self.case = case

    def train(self, calls: int) -> dict[str, Any]:
        """Run as many iterations as ``calls`` trainings of the peer have."""
        return self.iterate(calls * self.case.length, "env_steps", PLAYED)


def main(case_json: str) -> None:
    request_cpu_devices()
    side = Side(from_json(json.loads(case_json)))
    serve({"compile": side.compile, "train": side.train})


if __name__ == "__main__":
    main(*sys.argv[1:])
