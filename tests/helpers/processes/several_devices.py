"""Rollouts and updates of one agent on 1, 2 and 4 devices.

``JAX_NUM_CPU_DEVICES=4 python -m tests.helpers.processes.several_devices ALGORITHM FILE`` writes to ``FILE`` (.npz), under
``DEVICES/NAME``, the rollouts of three iterations, then parameters and gradient norm.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import bind
from jaxrl.metrics import to_floats
from jaxrl.parallel import data_parallel
from jaxrl.replay import Draw, Replay
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.collect import example_rollout
from jaxrl.types import Agent, Rollout
from tests.helpers.agents import small, to_numpy

DEVICES, ITERATIONS = (1, 2, 4), 3
STARTS = ("carry", "env_id", "version")
"""Fields of a rollout with shape [B]; the others have shape [T, B]."""


def whole_replay(capacity: int, num_envs: int, rows_per_add: int, *, before: int, after: int) -> Replay:
    """Build a replay without random draws: each batch is all rows, and those that could be drawn are valid."""
    uniform = uniform_replay(capacity, num_envs, rows_per_add, before=before, after=after)

    def draw(state: Any, key: Any, batch_size: int) -> Draw:
        length, envs = state.valid.shape
        row, env = jnp.divmod(jnp.arange(batch_size, dtype=jnp.int32) % (length * envs), envs)
        age = (state.position - 1 - row) % length
        drawable = (after <= age) & (age < state.size - before)
        return Draw(row, env, jnp.ones(batch_size), state.valid[row, env] & drawable)

    return uniform._replace(draw=draw)


BUFFER = 240
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_minibatches": 1},
    "dqn": {"replay": whole_replay, "buffer_size": BUFFER, "batch_size": BUFFER, "replay_ratio": BUFFER / 4},
}
"""Settings with which every gradient is over all rows, without random draws. DQN makes two updates per iteration."""


class Kept(NamedTuple):
    """An algorithm's statistics and the last rollout."""

    algorithm_statistics: Any
    rows: dict[str, Any]
    starts: dict[str, Any]

    @property
    def env_axes(self) -> dict[str, int]:
        return {"rows": 1, "starts": 0}


def keeping(agent: Agent) -> Agent:
    """Return the agent with the last rollout in its state. Each environment's rows stay on its device."""
    algorithm = agent.algorithm

    def keep(learner: Any, rollout: Rollout) -> Any:
        rows = rollout._asdict()
        starts = {name: rows.pop(name) for name in STARTS}
        return learner._replace(statistics=Kept(learner.statistics, rows, starts))

    def without_rollout(learner: Any) -> Any:
        return learner._replace(statistics=learner.statistics.algorithm_statistics)

    def init(key: Any, hyperparams: Any) -> Any:
        learner = algorithm.init(key, hyperparams)
        return keep(
            learner, example_rollout(algorithm, agent.env, algorithm.policy(learner), agent.num_envs, agent.rollout_length)
        )

    def observe(learner: Any, rollout: Rollout) -> Any:
        return keep(algorithm.observe(without_rollout(learner), rollout), rollout)

    def update(learner: Any, rollout: Rollout) -> Any:
        learner, metrics = algorithm.update(without_rollout(learner), rollout)
        return keep(learner, rollout), metrics

    functions = {
        "init": init,
        "policy": lambda learner: algorithm.policy(without_rollout(learner)),
        "observe": observe,
        "update": update,
    }
    sizes = {"num_envs": agent.num_envs, "rollout_length": agent.rollout_length}
    return bind(algorithm._replace(**functions), agent.env, **sizes, hyperparams=agent.hyperparams, axis_name=agent.axis_name)


def on_devices(algorithm: str, number: int) -> dict[str, np.ndarray]:
    """Return rollouts, parameters and gradient norm by name. On one device the agent is not changed."""
    make = partial(small, algorithm, "CartPole-v1", **SETTINGS[algorithm])
    agent = keeping(make()) if number == 1 else data_parallel(keeping(make(axis_name="data")), number)
    state, step, found = agent.init(jax.random.key(0)), jax.jit(agent.step), {}
    for iteration in range(ITERATIONS):
        state, metrics = step(state)
        assert len(state.actor.done.sharding.device_set) == number
        kept = state.learner.statistics
        for path, leaf in jax.tree.leaves_with_path(to_numpy({**kept.rows, **kept.starts})):
            found[f"rollout {iteration}{jax.tree_util.keystr(path)}"] = leaf
    for path, leaf in jax.tree.leaves_with_path(to_numpy(state.learner.params)):
        found[f"params{jax.tree_util.keystr(path)}"] = leaf
    found["norm"] = np.float32(to_floats({"norm": metrics["losses/grad_norm"]})["norm"])
    return found


def main(algorithm: str, path: str) -> None:
    found = {f"{number}/{name}": x for number in DEVICES for name, x in on_devices(algorithm, number).items()}
    np.savez(path, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
