"""The core tests: every way in which jaxrl can run an algorithm gives the same result."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.agent import bind
from jaxrl.metrics import to_floats
from jaxrl.rollout.autoreset import first_input
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.runtime.evaluation.evaluate import evaluate
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.runtime.trainers.host import HostLearner
from jaxrl.training import run_iterations
from jaxrl.types import Agent, Env, HostEnv
from tests.helpers import probes
from tests.helpers.agents import (
    IN_A_SPEC,
    LEARN_ANYWHERE,
    RECURRENT,
    REPRESENTATIVES,
    SEARCHING,
    SMALL_ACTOR_CRITIC,
    algorithms,
    assert_bit_equal,
    assert_close,
    assert_new_noise,
    cartpole,
    each_family,
    each_family_anywhere,
    each_family_with_values,
    each_rollout_family,
    jitted,
    only_noise,
    ppo_first,
    run_steps,
    small,
    small_ppo,
    tiny,
    to_numpy,
)
from tests.helpers.hosted import hosted
from tests.helpers.key_uses import twice, uses_of

pytestmark = pytest.mark.expensive(220)

KEY = partial(jax.random.key, 0)
GAMMA = 0.9


def truncation_agent(algorithm: str, env: Env | HostEnv) -> Agent:
    return small(algorithm, env, gamma=GAMMA, **{"learning_rate": 0.02, tiny(algorithm).value_rate: 0.02})


def values_at_zero(algorithm: str, agent: Agent, learner: Any) -> np.ndarray:
    """Return V (or Q) of the truncation probe's only observation."""
    inputs = first_input(jnp.zeros((1, 1)), agent.env.action_space, 1)
    value = tiny(algorithm).value
    assert value is not None
    return np.asarray(value(agent, learner, inputs))


# ---------------------------------------------------------------------------------------------------------------- fused under jit


@each_family_with_values
def test_fused_truncation_bootstraps(algorithm: str) -> None:
    agent = truncation_agent(algorithm, probes.truncation())
    state, metrics = jax.jit(partial(run_iterations, agent))(agent.init(KEY()), 800)
    np.testing.assert_allclose(values_at_zero(algorithm, agent, state.learner), 1 / (1 - GAMMA), rtol=0.05)
    assert to_floats(metrics)["charts/episodic_length"] == pytest.approx(5)


@ppo_first
def test_loops_scans_and_chunks_are_one(algorithm: str) -> None:
    """Five calls of step equal a scan of five, and chunks of two and three, bit for bit."""
    agent = cartpole(algorithm)
    state = agent.init(KEY())
    looped, _ = run_steps(agent, state, 5)
    scanned, _ = jax.jit(lambda s: jax.lax.scan(lambda s, _: agent.step(s), s, length=5))(state)
    chunk = jax.jit(partial(run_iterations, agent))
    chunked, _ = chunk(chunk(state, 2)[0], 3)
    assert_bit_equal(looped, scanned)
    assert_bit_equal(looped, chunked)


# --------------------------------------------------------------------------------------------------------------------------- vmap


RATES = (1e-4, 1e-2, 1e-3)
STEPS = 5


@cache
def side_by_side(algorithm: str) -> tuple[Any, list[Any]]:
    """Run three seeds with different learning rates in one program.

    Return ``(keys, states)`` after 0, 1, … ``STEPS`` iterations.
    """
    agent, keys = cartpole(algorithm), jax.random.split(KEY(), len(RATES))
    init = jax.jit(jax.vmap(lambda key, rate: agent.init(key, {"learning_rate": rate})))
    step = jax.jit(jax.vmap(agent.step))
    states = [init(keys, jnp.array(RATES))]
    for _ in range(STEPS):
        states.append(step(states[-1])[0])
    assert step._cache_size() == 1
    return keys, states


@algorithms(("ppo", "dqn", "es"))
def test_seeds_and_hyperparameters_side_by_side_equal_each_alone(algorithm: str) -> None:
    agent, (keys, states) = cartpole(algorithm), side_by_side(algorithm)
    for i, rate in enumerate(RATES):
        solo, metrics = run_steps(agent, agent.init(keys[i], {"learning_rate": rate}), STEPS)
        assert_close(jax.tree.map(lambda x, i=i: x[i], states[-1]), solo)
        assert all(value is None or np.isfinite(value) for value in to_floats(metrics).values())
    assert jitted(agent.step)._cache_size() == 1


@each_family
def test_a_learning_rate_is_data(algorithm: str) -> None:
    """Train the same seed with two learning rates, in the program compiled for one."""
    agent = cartpole(algorithm)
    low, high = (run_steps(agent, agent.init(KEY(), {"learning_rate": rate}), 3)[0].learner.params for rate in RATES[:2])
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(to_numpy(low)), jax.tree.leaves(to_numpy(high)), strict=True))


@each_rollout_family
def test_seeds_differ_from_the_first_step(algorithm: str) -> None:
    _, states = side_by_side(algorithm)
    first = states[0]
    moving = {
        "params": [x for path, x in jax.tree.leaves_with_path(first.learner.params) if "kernel" in jax.tree_util.keystr(path)],
        "environments": [first.actor.input.obs],
        "keys": [jax.random.key_data(first.key), jax.random.key_data(first.learner.key)],
    }
    for name, leaves in moving.items():
        for leaf in leaves:
            assert (np.asarray(leaf)[0] != np.asarray(leaf)[1]).any(), name
    # Several iterations, since two seeds may draw the same few actions.
    actions = [np.asarray(state.actor.input.prev_action) for state in states[1:]]
    assert any((both[0] != both[1]).any() for both in actions)


@algorithms(["ppo", "dqn", "sac"], [name for name in LEARN_ANYWHERE if name not in SEARCHING])
def test_no_random_number_is_used_twice(algorithm: str) -> None:
    """From ``init`` and the warm-up through two iterations, each random number is drawn only once.

    Evolution draws the noise of its members again when it learns; ``tests/rollout/test_play.py`` has its environments. Searches
    draw in loops, which cannot be counted.
    """
    assert not twice(uses_of(cartpole(algorithm)))


@pytest.mark.slow
def test_noise_is_new_in_each_row_environment_and_iteration() -> None:
    env = probes.as_box(probes.truncation())
    agent, rollouts = small_ppo(env, model=only_noise), []
    update = agent.algorithm.update
    noted = agent.algorithm._replace(update=lambda learner, rollout: (update(learner, rollout)[0], {"rollout": rollout}))
    agent = bind(noted, env, num_envs=4, rollout_length=8, hyperparams=agent.hyperparams)
    state = agent.init(KEY())
    for _ in range(3):
        state, metrics = jitted(agent.step)(state)
        rollouts.append(metrics["rollout"])
    assert_new_noise(rollouts)


@pytest.mark.slow
def test_environment_parameters_are_data() -> None:
    """One value per environment, or per seed, in one program."""
    agent = small_ppo(probes.truncation())
    per_env = agent.init(KEY(), None, probes.Cut(jnp.array([2, 4, 8, 100])))
    state, _ = jax.jit(agent.step)(per_env)
    ends = jax.jit(lambda s: evaluate(agent, s, KEY(), 4, env_params=probes.Cut(jnp.array([2, 4, 8, 100])), max_steps=50))(state)
    np.testing.assert_array_equal(ends.episodic_length, [2, 4, 8, 50])
    np.testing.assert_array_equal(ends.finished, [True, True, True, False])

    states = jax.vmap(lambda cut: agent.init(KEY(), None, probes.Cut(cut)))(jnp.array([2, 4]))
    _, metrics = jax.jit(jax.vmap(agent.step))(states)
    lengths = np.asarray(metrics["charts/episodic_length"].sum / metrics["charts/episodic_length"].count)
    np.testing.assert_array_equal(lengths, [2, 4])


# ---------------------------------------------------------------------------------------------------------------------- host loop


@pytest.mark.slow
@each_family_anywhere
def test_host_loop_truncation_bootstraps(algorithm: str) -> None:
    agent = truncation_agent(algorithm, hosted(probes.truncation()))
    learner = HostLearner(agent, HostSampler(agent, 0))
    state = learner.init(KEY())
    for _ in range(800):
        state, _ = learner.step(state)
    np.testing.assert_allclose(values_at_zero(algorithm, agent, state.learner), 1 / (1 - GAMMA), rtol=0.05)


@algorithms(("ppo",), LEARN_ANYWHERE)
def test_host_loop_gives_the_same_data_as_the_fused_program(algorithm: str) -> None:
    """On an environment without randomness, whole learner states are bit-equal after the warm-up and five iterations."""
    fused, host = (small(algorithm, env) for env in (probes.truncation(), hosted(probes.truncation())))
    state, _ = run_steps(fused, fused.init(KEY()), 5)
    learner = HostLearner(host, HostSampler(host, 0))
    on_host = learner.init(KEY())
    for _ in range(5):
        on_host, _ = learner.step(on_host)
    assert_close(state.learner, on_host.learner, atol=1e-6)
    assert int(state.iteration) == int(on_host.iteration)
    assert [f._cache_size() for f in (learner.update.jitted, learner.policy, learner.sampler.act)] == [1, 1, 1]


@algorithms(("ppo",), LEARN_ANYWHERE)
def test_host_loop_over_envpool(algorithm: str) -> None:
    agent = small(algorithm, "envpool:CartPole-v1")
    learner = HostLearner(agent, HostSampler(agent, 3))
    state = learner.init(KEY())
    before = to_numpy(state.learner.params)
    for _ in range(10):
        rollout, _ = learner.sampler.collect(learner.policy(state.learner), KEY())
        end = rollout.terminated | rollout.truncated
        np.testing.assert_array_equal(~rollout.valid[1:], end[:-1])  # each end is followed by exactly one reset row
        np.testing.assert_array_equal(rollout.inputs.is_first[1:], ~rollout.valid)
        assert (rollout.reward[~rollout.valid] == 0).all()
        assert (rollout.reward[rollout.valid] == 1).all()
        learned, metrics = learner.update(state.learner, rollout)
        state = state._replace(learner=learned)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(to_numpy(state.learner.params)))
    assert any(
        (a != b).any() for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(to_numpy(state.learner.params)), strict=True)
    )
    assert metrics["losses/grad_norm"].count > 0


def test_a_host_agent_has_no_pure_step() -> None:
    agent = small_ppo("envpool:CartPole-v1")
    with pytest.raises(RuntimeError, match=r"jaxrl\.run"):
        agent.step(agent.init(KEY()))
    with pytest.raises(TypeError, match=r"jaxrl\.run"):
        jaxrl.make_train(agent, total_steps=1000)


# ---------------------------------------------------------------------------------------------------------------- another process


def _child_run(spec: dict[str, Any], num_steps: int, results: Any) -> None:
    jax.config.update("jax_num_cpu_devices", 2)
    agent = jaxrl.build(spec, trust="tests")
    state, _ = run_steps(agent, agent.init(jax.random.key(0)), num_steps)
    results.put(jax.tree.leaves(to_numpy(state)))


@pytest.mark.slow
@algorithms(REPRESENTATIVES, IN_A_SPEC)
def test_spawned_process_rebuilds_from_spec(algorithm: str) -> None:
    agent = cartpole(algorithm)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_child_run, args=(agent.spec, 3, results))
    child.start()
    theirs = results.get(timeout=300)
    child.join(timeout=60)
    assert child.exitcode == 0
    ours, _ = run_steps(agent, agent.init(KEY()), 3)
    for a, b in zip(jax.tree.leaves(to_numpy(ours)), theirs, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


# ------------------------------------------------------------------------------------------------------------ killed and restored


def _child_saves(spec: dict[str, Any], folder: str, steps: int) -> None:
    agent = jaxrl.build(spec, trust="tests")
    state = agent.init(jax.random.key(0))
    for step in range(1, steps + 1):
        state, _ = jitted(agent.step)(state)
        save(folder, state, step, spec=agent.spec)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@algorithms(["ppo"], IN_A_SPEC)
def test_killed_and_restored_goes_on_bit_for_bit(algorithm: str, tmp_path: Path) -> None:
    agent = cartpole(algorithm)
    child = multiprocessing.get_context("spawn").Process(target=_child_saves, args=(agent.spec, str(tmp_path), 3))
    child.start()
    child.join(timeout=300)
    assert child.exitcode == -signal.SIGKILL
    state, info = restore(tmp_path, jax.eval_shape(agent.init, KEY()))
    assert info.step == 3
    resumed, _ = run_steps(agent, state, 3)
    undisturbed, _ = run_steps(agent, agent.init(KEY()), 6)
    assert_bit_equal(resumed, undisturbed)


@each_family
def test_saved_and_restored_goes_on_bit_for_bit(algorithm: str, tmp_path: Path) -> None:
    agent = cartpole(algorithm)
    state, _ = run_steps(agent, agent.init(KEY()), 2)
    save(tmp_path, state, 2, spec=agent.spec)
    restored, _ = restore(tmp_path, jax.eval_shape(agent.init, KEY()))
    assert_bit_equal(run_steps(agent, restored, 1), run_steps(agent, state, 1))


# ------------------------------------------------------------------------------------------------------------------------- memory


def memory_agent(env: Env | HostEnv, model: Any) -> Agent:
    return small_ppo(env, model=model, num_envs=32, rollout_length=20, num_epochs=4, learning_rate=5e-3, gamma=0.9)


@pytest.mark.slow
def test_gru_remembers_a_cue_and_a_memoryless_network_cannot() -> None:
    results = {}
    for name, model in {"gru": RECURRENT, "memoryless": SMALL_ACTOR_CRITIC}.items():
        agent = memory_agent(probes.memory(), model)
        state, _ = jax.jit(partial(run_iterations, agent))(agent.init(KEY()), 100)
        results[name] = float(evaluate(agent, state, KEY(), 256).episodic_return.mean())
    assert results["gru"] > 0.95
    assert abs(results["memoryless"]) < 0.25  # chance: four standard errors of 256 coin tosses of ±1


@pytest.mark.slow
def test_gru_remembers_in_the_host_loop() -> None:
    agent = memory_agent(hosted(probes.memory()), RECURRENT)
    learner = HostLearner(agent, HostSampler(agent, 0))
    state = learner.init(KEY())
    for _ in range(100):
        state, _ = learner.step(state)
    assert float(jaxrl.evaluate(agent, state, KEY(), 256).episodic_return.mean()) > 0.95
