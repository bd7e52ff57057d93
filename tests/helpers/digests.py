"""Digests of everything that a refactoring of names and modules must not change.

``python -m tests.helpers.digests BEFORE.json`` writes them. After a change
``python -m tests.helpers.digests AFTER.json --against BEFORE.json`` writes new ones and prints each difference: for every
algorithm and each of its switches the arrays after five iterations, the spec and the log keys; the help of every command; the
public names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import jaxrl

ITERATIONS = 5

ACTOR_CRITIC: dict[str, Any] = {"num_envs": 4, "rollout_length": 8, "anneal": False, "model": {"hidden_sizes": (8,)}}
REPLAY: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 4,
    "batch_size": 16,
    "buffer_size": 160,
    "learning_starts": 32,
    "replay_ratio": 4,
    "anneal": False,
    "model": {"hidden_sizes": (8,)},
}
Q_LEARNING = {**REPLAY, "target_update_interval": 3}
MINIBATCHES = {"num_epochs": 2, "num_minibatches": 2}
PENDULUM, REACH, BIT_FLIP = "Pendulum-v1", "jaxrl:Reach", "jaxrl:BitFlip?n=4"

Cases = dict[str, dict[str, Any]]

ON_POLICY: Cases = {
    "default": {},
    "anneal": {"anneal": True, "total_steps": 3200},
    "normalize": {"normalize_observations": True, "normalize_rewards": True},
    "hold_noise": {"env": PENDULUM, "hold_noise": 2},
    "gru": {"model": {"hidden_sizes": (8,), "core": "gru", "core_size": 8}},
    "schedules": {"schedules": {"gamma": optax.linear_schedule(1.0, 0.9, 4)}},
    "optimizer": {"optimizer": lambda hyperparams: optax.sgd(hyperparams.learning_rate)},
}
OFF_POLICY: Cases = {
    "default": {},
    "n_step": {"n_step": 3},
    "hindsight": {"env": REACH, "hindsight": {"name": "future", "share": 0.5}},
    "critics": {"critics": {"size": 3, "subset": 2}, "critic": {"layer_norm": True, "dropout": 0.1}},
    "policy_delay": {"policy_delay": 2},
}
DETERMINISTIC: Cases = {**OFF_POLICY, "hold_noise": {"noise": {"hold": 3}}, "ou": {"noise": "ou"}}
CASES: dict[str, tuple[str, dict[str, Any], Cases]] = {
    "ppo": (
        "CartPole-v1",
        {**ACTOR_CRITIC, **MINIBATCHES},
        {
            **ON_POLICY,
            "kl": {"surrogate": {"name": "kl", "coef": 0.5, "target": 0.02}},
            "stop_kl": {"stop_kl": 0.001, "surrogate": {"value_loss": True}},
            "advantages": {"normalize_advantages": False, "accumulation_steps": 2},
            "rnd": {"intrinsic": "rnd"},
            "constraint": {"env": "jaxrl:Hazards", "constraint": {"name": "lagrangian", "limit": 3.0}},
        },
    ),
    "a2c": ("CartPole-v1", ACTOR_CRITIC, {**ON_POLICY, "advantages": {"normalize_advantages": True}}),
    "impala": ("CartPole-v1", ACTOR_CRITIC, ON_POLICY),
    "reinforce": ("CartPole-v1", ACTOR_CRITIC, {**ON_POLICY, "baseline": {"baseline": False, "normalize_advantages": False}}),
    "pqn": (
        "CartPole-v1",
        {**ACTOR_CRITIC, **MINIBATCHES},
        {
            "default": {},
            "plain": {"model": {"hidden_sizes": (8,), "layer_norm": False}, "exploration": {"name": "spread", "exponent": 3.0}},
        },
    ),
    "vmpo": ("CartPole-v1", {**ACTOR_CRITIC, **MINIBATCHES}, ON_POLICY),
    "dqn": (
        "CartPole-v1",
        Q_LEARNING,
        {
            "default": {},
            "plain": {"bootstrap": "greedy", "n_step": 1, "exploration": "spread"},
            "prioritized": {"replay": {"name": "prioritized", "exponent": 0.5, "importance_exponent": 0.6}},
            "c51": {
                "head": {"name": "c51", "num_atoms": 11, "v_min": -5.0, "v_max": 5.0},
                "model": {"hidden_sizes": (8,), "dueling": True},
            },
            "qr": {"head": {"name": "qr", "num_quantiles": 8, "huber_threshold": 0.5}},
            "iqn": {"head": {"name": "iqn", "num_quantiles": 8}, "noise": "noisy"},
            "munchausen": {"bootstrap": "munchausen", "n_step": 1},
            "hindsight": {"env": BIT_FLIP, "hindsight": "final", "n_step": 1},
        },
    ),
    "r2d2": (
        "CartPole-v1",
        {**Q_LEARNING, "sequence_length": 4, "n_step": 2},
        {"default": {}, "burn_in": {"burn_in": 2, "rescale": None, "replay": {"exponent": 0.5}}},
    ),
    "sac": (
        PENDULUM,
        REPLAY,
        {
            **OFF_POLICY,
            "hold_noise": {"hold_noise": 3},
            "discrete": {"env": "CartPole-v1"},
            "tqc": {"critics": {"name": "quantiles", "num_quantiles": 5, "dropped": 1}},
            "redq": {"critics": {"size": 4, "subset": 2}, "actor_value": "mean"},
            "optimistic": {"exploration": "optimistic"},
            "fixed": {"temperature": {"name": "fixed", "value": 0.1}},
        },
    ),
    "crossq": (PENDULUM, {**REPLAY, "replay_ratio": 12}, OFF_POLICY),
    "mpo": (PENDULUM, REPLAY, {**OFF_POLICY, "discrete": {"env": "CartPole-v1"}}),
    "td3": (PENDULUM, REPLAY, DETERMINISTIC),
    "ddpg": (PENDULUM, REPLAY, DETERMINISTIC),
    "awr": ("CartPole-v1", {**REPLAY, "replay_ratio": 16, "n_step": 4}, {"default": {}, "box": {"env": PENDULUM}}),
    "iql": (PENDULUM, REPLAY, {"default": {}}),
}


def digest(value: bytes | str) -> str:
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()[:16]


def digest_of_arrays(tree: Any) -> str:
    """Return a digest of shapes, dtypes and bits, in order. It does not depend on names of fields and classes."""
    found = hashlib.sha256()
    for x in jax.tree.leaves(tree):
        is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(x) if is_key else x)
        found.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def agents(only: str | None) -> Iterator[tuple[str, Any]]:
    for algorithm, (env, common, cases) in CASES.items():
        for case, switches in cases.items():
            if only in (None, algorithm):
                settings = {"env": env, **common, **switches}
                if settings.get("intrinsic") == "rnd":
                    from jaxrl.intrinsic import rnd

                    settings["intrinsic"] = rnd
                yield f"{algorithm} {case}", getattr(jaxrl, f"make_{algorithm}")(settings.pop("env"), **settings)


def of_agent(agent: Any) -> dict[str, Any]:
    state = jax.jit(agent.init)(jax.random.key(3))
    step, metrics = jax.jit(agent.step), {}
    for _ in range(ITERATIONS):
        state, metrics = step(state)
    try:
        spec = json.loads(re.sub(r" at 0x\w+", "", json.dumps(agent.spec)))
    except ValueError as error:
        spec = str(error)
    return {"state": digest_of_arrays(state), "spec": spec, "log keys": sorted(metrics)}


def of_commands() -> dict[str, str]:
    def said(*arguments: str) -> str:
        command = [sys.executable, "-m", "jaxrl", *arguments, "--help"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout

    top = ("train", "launch", "sweep", "plot", "eval", "record", "envs", "algos", "presets", "doctor")
    commands = [(), *((name,) for name in top), *(("train", name) for name in CASES)]
    return {" ".join(("jaxrl", *arguments, "--help")): digest(said(*arguments)) for arguments in commands}


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            yield f"{name}: only {'before' if name in before else 'after'}"
        elif isinstance(before[name], dict) and isinstance(after[name], dict):
            yield from (f"{name} / {line}" for line in differences(before[name], after[name]))
        elif before[name] != after[name]:
            yield f"{name}: {before[name]} -> {after[name]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--against", type=Path, help="digests made before the change")
    parser.add_argument("--only", help="one algorithm")
    asked = parser.parse_args()
    found: dict[str, Any] = {"public names": sorted(jaxrl.__all__)} if asked.only is None else {}
    for name, agent in agents(asked.only):
        found[name] = of_agent(agent)
        print(name, found[name]["state"], file=sys.stderr, flush=True)
    if asked.only is None:
        found |= of_commands()
    asked.path.write_text(json.dumps(found, indent=1))
    lines = list(differences(json.loads(asked.against.read_text()), found)) if asked.against else []
    print(*lines or [f"{len(found)} digests written to {asked.path}"], sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
