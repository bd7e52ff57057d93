"""JaxMARL's trainings of a case of teams. It runs in JaxMARL's virtual environment, so it does not import jaxrl.

The scripts are not in its package. They are imported from a clone, unchanged. They also import hydra and wandb, which only start
them and record their progress: stand-ins take their places. Initial kernels are normal, of the same scale, in place of
orthogonal: the QR decomposition under ``vmap`` can hang XLA on two cores.
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
import numpy as np
from flax.linen import initializers

from benchmarks.clones import JAXMARL
from benchmarks.protocol import serve
from benchmarks.team_cases import BATCH, EMBEDDING, ENV, HIDDEN, HYPERNETWORK, Case, from_json
from benchmarks.worker import installed_versions, peak_memory

SCRIPTS = {"ippo": ("IPPO", "ippo_ff_mpe"), "qmix": ("QLearning", "qmix_rnn")}
"""Algorithm -> folder and name of its script."""
SETTINGS: dict[str, dict[str, Any]] = {
    "ippo": {
        "LR": 2.5e-4,
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": 4,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
        "ANNEAL_LR": True,
    },
    "qmix": {
        "BUFFER_SIZE": 5_000,
        "BUFFER_BATCH_SIZE": BATCH,
        "HIDDEN_SIZE": HIDDEN,
        "MIXER_EMBEDDING_DIM": EMBEDDING,
        "MIXER_HYPERNET_HIDDEN_DIM": HYPERNETWORK,
        "MIXER_INIT_SCALE": 0.001,
        "EPS_START": 1.0,
        "EPS_FINISH": 0.05,
        "EPS_DECAY": 0.1,
        "MAX_GRAD_NORM": 25,
        "TARGET_UPDATE_INTERVAL": 200,
        "TAU": 1.0,
        "NUM_EPOCHS": 1,
        "LR": 0.005,
        "LEARNING_STARTS": 0,
        "LR_LINEAR_DECAY": True,
        "GAMMA": 0.9,
        "TEST_DURING_TRAINING": False,
        "TEST_NUM_ENVS": 1,
    },
}
"""The scripts' own settings for the environment, without evaluations and a warm-up."""


def normal_kernel(scale: float = 1.0) -> Any:
    return initializers.variance_scaling(scale**2, "fan_in", "normal")


def import_script(algorithm: str, folder: Path) -> Any:
    """Import one of JaxMARL's scripts."""
    hydra, wandb = ModuleType("hydra"), ModuleType("wandb")
    hydra.main = lambda **_: lambda function: function  # type: ignore[attr-defined]
    wandb.log = lambda metrics: None  # type: ignore[attr-defined]
    sys.modules |= {"hydra": hydra, "wandb": wandb}
    initializers.orthogonal = normal_kernel  # type: ignore[assignment]
    where, name = SCRIPTS[algorithm]
    sys.path.insert(0, str(folder / where))
    return import_module(name)


class Side:
    """``jit(vmap(train))`` over the keys of all seeds, as the scripts run it."""

    def __init__(self, case: Case, clone: Path) -> None:
        self.case = case
        module = import_script(case.algorithm, JAXMARL.files_of(clone))
        rows = {"NUM_ENVS": case.num_envs, "NUM_STEPS": case.rollout_length}
        config = {**SETTINGS[case.algorithm], **rows, "ENV_NAME": ENV, "ENV_KWARGS": {}, "WANDB_MODE": "disabled"}
        config["TOTAL_TIMESTEPS"] = self.steps = case.num_envs * case.rollout_length * case.length
        train = module.make_train(config, *([module.env_from_config(dict(config))[0]] if case.algorithm == "qmix" else []))
        self.program: Any = jax.jit(jax.vmap(train))
        self.key = jax.random.PRNGKey(0)

    def compile(self) -> dict[str, Any]:
        """Compile the program, and train once."""
        start = time.perf_counter()
        self.program = self.program.lower(self._keys()).compile()
        seconds = time.perf_counter() - start
        state = jax.block_until_ready(self.program(self._keys()))["runner_state"][0]
        return {
            "compile_seconds": seconds,
            "parameters": sum(np.size(x) for x in jax.tree.leaves(state.params)) // self.case.num_seeds,
            "versions": {"JaxMARL": version("jaxmarl"), "scripts": JAXMARL.commit, **installed_versions()},
        }

    def _keys(self) -> Any:
        self.key, key = jax.random.split(self.key)
        return jax.random.split(key, self.case.num_seeds)

    def train(self, calls: int) -> dict[str, Any]:
        """Train ``calls`` times, from scratch."""
        keys = [self._keys() for _ in range(calls)]
        start = time.perf_counter()
        for each in keys:
            jax.block_until_ready(self.program(each))
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "env_steps": calls * self.steps * self.case.num_seeds, "peak_bytes": peak_memory()}


def main(case_json: str, clone: str) -> None:
    side = Side(from_json(json.loads(case_json)), Path(clone))
    serve({"compile": side.compile, "train": side.train})


if __name__ == "__main__":
    main(*sys.argv[1:])
