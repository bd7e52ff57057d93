"""Self-play of pgx's AlphaZero example. It runs in pgx's virtual environment, so it does not import jaxrl.

The example is not in pgx's package. It is imported from a clone, unchanged, and its function ``selfplay`` is called. Stand-ins
take the places of wandb, of the baseline model, which would be downloaded, and of its network, so that both sides have the same
one.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pgx

from benchmarks.clones import PGX
from benchmarks.protocol import serve
from benchmarks.self_play_cases import CHANNELS, FEATURES, GAMES, HIDDEN, MOVES, SIMULATIONS, Case, from_json
from benchmarks.worker import installed_versions, peak_memory


def make_network(network: str) -> type:
    """Return a class in place of the example's ``AZNet``."""
    import haiku as hk  # which is not among what jaxrl's own tests install

    class Network(hk.Module):
        """Network of a case: a torso, and linear heads for the policy and the value."""

        def __init__(self, num_actions: int, **sizes: Any) -> None:
            super().__init__()
            self.num_actions = num_actions

        def __call__(self, board: Any, **training: Any) -> Any:
            x, is_mlp = board.astype(jnp.float32), network == "mlp"
            if not is_mlp:
                x = jax.nn.relu(hk.Conv2D(CHANNELS, 3, padding="VALID")(x))
            x = hk.nets.MLP(HIDDEN if is_mlp else (FEATURES,), activate_final=True)(hk.Flatten()(x))
            return hk.Linear(self.num_actions)(x), hk.Linear(1)(x)[:, 0]

    return Network


def import_example(network: str, folder: Path) -> Any:
    """Import the example with a network and with the sizes of the benchmark."""
    stands_in, wandb = ModuleType("network"), ModuleType("wandb")
    stands_in.AZNet = make_network(network)  # type: ignore[attr-defined]
    sys.modules |= {"network": stands_in, "wandb": wandb}
    pgx.make_baseline_model = lambda name: None
    sizes = {"env_id": "connect_four", "selfplay_batch_size": GAMES, "num_simulations": SIMULATIONS, "max_num_steps": MOVES}
    sys.argv = ["train.py", *(f"{name}={value}" for name, value in sizes.items())]
    sys.path.insert(0, str(folder))
    return import_module("train")


class Side:
    """The example's ``selfplay`` on all devices of its process."""

    def __init__(self, case: Case, clone: Path) -> None:
        self.module = import_example(case.network, PGX.files_of(clone))
        self.number, self.model = jax.local_device_count(), None

    def compile(self) -> dict[str, Any]:
        """Compile the program, and play once."""
        board = self.module.env.init(jax.random.PRNGKey(0)).observation[None]
        model = self.module.forward.init(jax.random.PRNGKey(0), board)
        self.model = jax.tree.map(lambda x: jnp.stack([x] * self.number), model)
        start = time.perf_counter()
        jax.block_until_ready(self.play(0))
        return {
            "compile_seconds": time.perf_counter() - start,
            "parameters": sum(np.size(x) for x in jax.tree.leaves(model[0])),
            "versions": {"pgx": version("pgx"), "example": PGX.commit, **installed_versions()},
        }

    def play(self, number: int) -> Any:
        return self.module.selfplay(self.model, jax.random.split(jax.random.PRNGKey(number), self.number))

    def train(self, calls: int) -> dict[str, Any]:
        """Play this number of times."""
        start = time.perf_counter()
        for number in range(calls):
            played = jax.block_until_ready(self.play(number))
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "moves": calls * played.reward.size, "peak_bytes": peak_memory()}


def main(case_json: str, clone: str) -> None:
    side = Side(from_json(json.loads(case_json)), Path(clone))
    serve({"compile": side.compile, "train": side.train})


if __name__ == "__main__":
    main(*sys.argv[1:])
