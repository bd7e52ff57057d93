"""Tests on a GPU: updates equal to the CPU's, determinism, learning in its precision, and several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import remote
from jaxrl.evolution.noise import LowRankNoise, NormalNoise, SignNoise
from jaxrl.runtime.doctor import diagnose
from jaxrl.runtime.run import RunInterrupted
from jaxrl.xla import fast_random
from tests.helpers.agents import assert_bit_equal, cartpole, every_playing_algorithm, small, to_numpy
from tests.helpers.paths import ROOT
from tests.helpers.short_runs import at, train

pytestmark = pytest.mark.gpu

ITERATIONS = 5


@pytest.fixture(scope="module", autouse=True)
def gpu() -> jax.Device:
    (device, *_) = jax.devices("gpu")
    assert jax.default_backend() == "gpu"
    return device


@pytest.fixture
def full_precision() -> Iterator[None]:
    """Multiply in f32. A GPU's default rounds the factors of f32 products to 10 bits (TF32)."""
    with jax.default_matmul_precision("highest"):
        yield


def learn(agent: Any) -> tuple[Any, Any]:
    """Return the parameters before and after some iterations, and check that these learnt."""
    state = jax.jit(agent.init)(jax.random.key(3))
    before, step = state.learner.params, jax.jit(agent.step)
    for _ in range(ITERATIONS + agent.algorithm.warmup_iterations):
        state, _ = step(state)
    return to_numpy(before), to_numpy(state.learner.params)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)]).astype(np.float64)


# ------------------------------------------------------------------------------------------------------------ beside the CPU


@every_playing_algorithm
def test_updates_equal_those_of_the_cpu(algorithm: str, full_precision: None) -> None:
    agent = cartpole(algorithm)
    before, after = map(flat, learn(agent))
    with jax.default_device(jax.devices("cpu")[0]):
        before_there, after_there = map(flat, learn(agent))
    np.testing.assert_allclose(before, before_there, rtol=1e-4, atol=1e-6)
    change, difference = np.linalg.norm(after_there - before_there), np.linalg.norm(after - after_there)
    assert change > 0 and difference < 0.02 * change


def test_draws_equal_those_of_the_cpu() -> None:
    key = jax.random.key(7)

    def draws() -> list[Any]:
        integers = fast_random.bits(key, (1000,)), fast_random.integers_below(key, (100,), jnp.int32(1000))
        keys, permuted = fast_random.split(key, 5), fast_random.permutation(key, 100)
        return to_numpy([*integers, keys, permuted, fast_random.uniform(key, (100,))])

    here = draws()
    with jax.default_device(jax.devices("cpu")[0]):
        assert_bit_equal(here, draws())


@pytest.mark.parametrize("noise", [NormalNoise(), SignNoise(), LowRankNoise()], ids=lambda noise: type(noise).__name__)
def test_members_equal_those_of_the_cpu(noise: Any) -> None:
    params = {"kernel": jnp.ones((5, 3)), "bias": jnp.zeros(3)}

    def member() -> Any:
        return to_numpy(noise.member(jax.random.key(1), jnp.int32(5), params, jnp.float32(0.1)))

    here = flat(member())
    with jax.default_device(jax.devices("cpu")[0]):
        np.testing.assert_allclose(here, flat(member()), rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------------------------------------------- determinism


@every_playing_algorithm
def test_a_resumed_run_is_bit_equal(algorithm: str, tmp_path: Path) -> None:
    agent = cartpole(algorithm)
    rows = agent.steps_per_iteration * (12 + agent.algorithm.warmup_iterations)
    whole, _ = train(agent, None, rows)

    def stop() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterrupted):
        train(agent, tmp_path, rows, on_chunk=at(agent.algorithm.warmup_iterations + 6, stop))
    resumed, _ = train(agent, tmp_path, rows)
    assert_bit_equal(resumed, whole)


LARGE = """
import hashlib, jax, numpy as np, jaxrl
agents = {
    "ppo": (jaxrl.make_ppo("CartPole-v1", num_envs=64, rollout_length=32), 8 * 64 * 32),
    "dqn": (jaxrl.make_dqn("CartPole-v1", learning_starts=500, buffer_size=5000), 2000),
    "sac": (jaxrl.make_sac("Pendulum-v1", learning_starts=500, buffer_size=5000), 1500),
    "es": (jaxrl.make_es("CartPole-v1", members=64, episodes=2), 4 * 64 * 2 * 500),
}
result = {}
for name, (agent, rows) in agents.items():
    states, _ = jaxrl.run(agent, rows, seeds=2, eval_every=0, quiet=True)
    parts = [np.asarray(x).tobytes() for x in jax.tree.leaves(states.learner.params)]
    result[name] = hashlib.sha256(b"".join(parts)).hexdigest()[:12]
"""


@pytest.mark.parametrize("shared", [True, False])
def test_other_processes_compute_the_same_bits(shared: bool, tmp_path: Path) -> None:
    """With the compiled programs of the first. Without them, XLA may choose other kernels unless it is told not to time them."""

    def digests(number: int) -> Any:
        folder = str(tmp_path / str(0 if shared else number))
        flags = {} if shared else {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
        return in_process(LARGE, JAXRL_CACHE_DIR=folder, JAX_COMPILATION_CACHE_DIR=folder, **flags)

    first = digests(0)
    assert digests(1) == first and len(set(first.values())) == len(first)


def in_process(code: str, **environment: str) -> Any:
    script = f"import json\n{code}\nprint(json.dumps(result))"
    ask: dict[str, Any] = {"cwd": ROOT, "env": os.environ | environment, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", script], **ask)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------------------------------------------------------ learning


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ppo_learns(dtype: str) -> None:
    agent = jaxrl.make_ppo("CartPole-v1", model={"dtype": dtype})
    states, history = jaxrl.run(agent, 200_000, seeds=16, eval_every=10_000, eval_episodes=32, quiet=True)
    assert {device.platform for device in jax.tree.leaves(states.learner.params)[0].devices()} == {"gpu"}
    assert np.mean(history["evaluation/episodic_return"][-1]) > (450 if dtype == "float32" else 400)


# ----------------------------------------------------------------------------------------------------------------- processes


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "es"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_environments_on_the_host(algorithm: str, num_workers: int, tmp_path: Path) -> None:
    agent = small(algorithm, "gymnasium:CartPole-v1")
    settings: dict[str, Any] = {"num_workers": num_workers} if num_workers else {}
    states, history = train(agent, tmp_path, agent.steps_per_iteration * (8 + agent.algorithm.warmup_iterations), **settings)
    assert np.isfinite(flat(to_numpy(states.learner.params))).all() and len(history["env_steps"]) > 2


def test_a_cpu_loads_a_policy_of_a_gpu(trained: Path) -> None:
    observations = [[0.01 * n, 0.2, -0.03, 0.4 - 0.1 * n] for n in range(8)]
    code = f"""
import jaxrl, numpy as np
policy = jaxrl.load_policy({str(trained)!r})
result = [int(policy(np.array(o, np.float32))) for o in {observations}]
"""
    assert in_process(code, JAX_PLATFORMS="cpu") == in_process(code)


def test_the_doctor_finds_the_gpu() -> None:
    levels = {finding.check: finding.level for finding in diagnose()}
    assert levels["devices"] == levels["GPU"] == levels["training"] == "ok"


class Device:
    """Object that reports where JAX computes in its process."""

    def backend(self) -> tuple[str, int]:
        import jax

        return jax.default_backend(), int(jax.numpy.arange(4).sum())


def test_remote_objects_see_a_gpu_only_if_asked() -> None:
    with remote.open() as cluster:
        one, none = cluster.start(Device, gpus=1), cluster.start(Device)
        assert one.call("backend").result(120) == ("gpu", 6)
        assert none.call("backend").result(120) == ("cpu", 6)
        with pytest.raises(remote.NotEnough):
            cluster.start(Device, gpus=1)
