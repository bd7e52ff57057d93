"""Buffers as files: what comes back is what was stored, in other buffers, and wrong files are refused."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.config import merge_hyperparams
from jaxrl.envs.check import COMPILE_FAST
from jaxrl.replay.stored import stored_rows
from jaxrl.replay.transitions import replay_rows
from jaxrl.rollout import collect
from jaxrl.types import Agent
from tests import probes
from tests.agents import assert_bit_equal, small, small_dqn, small_ppo

KEY = jax.random.key(0)
SIZES = {"buffer_size": 4 * 31}
"""A ring that adds of two rows do not fill evenly, and wrap."""


def fresh(agent: Agent) -> Any:
    return agent.algorithm.init(KEY, merge_hyperparams(agent.hyperparams, None))


def filled(agent: Agent, iterations: int = 40) -> tuple[Any, list[Any]]:
    """A learner, and the rows that a deque would hold, oldest first."""
    state = jax.jit(agent.init, compiler_options=COMPILE_FAST)(KEY)
    learner, rows = fresh(agent), deque[Any](maxlen=31)

    @jax.jit
    def step(actor: Any, key: Any, learner: Any) -> Any:
        policy = agent.algorithm.policy(learner)
        ids = np.arange(agent.num_envs, dtype=np.int32)
        actor, rollout, _ = collect(agent.algorithm, agent.env, policy, actor, agent.env.params, ids, key, agent.rollout_length)
        return actor, rollout, agent.algorithm.observe(learner, rollout)  # type: ignore[misc]

    actor = state.actor
    for i in range(iterations):
        actor, rollout, learner = step(actor, jax.random.fold_in(KEY, i), learner)
        stored = jax.device_get(replay_rows(rollout))
        rows.extend(jax.tree.map(lambda x, t=t: x[t], stored) for t in range(agent.rollout_length))
    return learner, list(rows)


@pytest.mark.parametrize("settings", [{}, {"prioritized": True}])
@pytest.mark.parametrize("iterations", [3, 40])
def test_rows_are_stored_and_come_back(settings: dict[str, Any], iterations: int, tmp_path: Path) -> None:
    agent = small_dqn(probes.truncation(), **SIZES, **settings)
    learner, rows = filled(agent, iterations)
    expected = jax.tree.map(lambda *x: np.stack(x), *rows)
    assert_bit_equal(stored_rows(learner.replay), expected)

    jaxrl.save_replay(tmp_path / "new" / "rows.npz", learner)
    with np.load(tmp_path / "new" / "rows.npz") as file:
        np.testing.assert_array_equal(file["reward"], expected.reward)
    for other in (agent, small_dqn(probes.truncation(), n_step=2, rollout_length=4, buffer_size=240, prioritized=True)):
        before = fresh(other)
        back = jaxrl.load_replay(tmp_path / "new" / "rows.npz", other, before)
        whole = len(rows) // other.rollout_length * other.rollout_length
        assert_bit_equal(stored_rows(back.replay), jax.tree.map(lambda x, whole=whole: x[len(rows) - whole :], expected))
        assert_bit_equal(back._replace(replay=()), before._replace(replay=()))
        if iterations == 40:
            _, metrics = jax.jit(other.algorithm.learn, compiler_options=COMPILE_FAST)(back)
            assert float(metrics["losses/td_loss"].sum) > 0


def test_states_of_agents_are_taken_too(tmp_path: Path) -> None:
    agent = small_dqn(probes.truncation(), **SIZES)
    state = jax.jit(agent.init, compiler_options=COMPILE_FAST)(KEY)
    jaxrl.save_replay(tmp_path / "rows.npz", state)
    back = jaxrl.load_replay(tmp_path / "rows.npz", agent, state._replace(learner=fresh(agent)))
    assert_bit_equal(stored_rows(back.learner.replay).obs[-30:], stored_rows(state.learner.replay).obs[-30:])


def test_sequences_of_a_file_begin_as_episodes_do(tmp_path: Path) -> None:
    """For a rule that stores a carry with them, which a file has not."""
    learner, rows = filled(small_dqn(probes.truncation(), **SIZES), 40)
    jaxrl.save_replay(tmp_path / "rows.npz", learner)
    other = small("r2d2", probes.truncation())
    acted = jax.jit(other.init, compiler_options=COMPILE_FAST)(KEY).learner  # 8 rollouts, the first of which began so as well
    replay = jaxrl.load_replay(tmp_path / "rows.npz", other, acted).replay
    assert_bit_equal(jax.tree.map(lambda x: x[-30:], stored_rows(replay)), jax.tree.map(lambda *x: np.stack(x[-30:]), *rows))
    carry = np.asarray(replay.starts.ring.records.unpack().carry)
    assert carry[1:8].any((1, 2)).all() and not carry[8:23].any()


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    agent = small_dqn(probes.truncation(), **SIZES)
    learner, _ = filled(agent, 3)
    jaxrl.save_replay(path, learner)
    others = [
        (
            small_dqn(probes.truncation(), num_envs=2, **SIZES),
            r"holds rows of 4 environments: build the agent with num_envs=4, not 2",
        ),
        (
            small_dqn(probes.truncation(), rollout_length=8, **SIZES),
            r"holds 6 rows of each environment: build .* a rollout_length",
        ),
        (small_dqn("CartPole-v1"), r"obs is float32\[6, 4, 1\], and for .*CartPole-v1 it must be float32\[6, 4, 4\]"),
    ]
    for other, message in others:
        with pytest.raises(ValueError, match=message):
            jaxrl.load_replay(path, other, fresh(other))
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(ValueError, match=r"text\.npz is no file of save_replay"):
        jaxrl.load_replay(tmp_path / "text.npz", agent, learner)
    np.savez(tmp_path / "part.npz", obs=np.zeros(3))
    with pytest.raises(ValueError, match=r"part\.npz has no action, reward, terminated, valid, which .* needs: it holds obs"):
        jaxrl.load_replay(tmp_path / "part.npz", agent, learner)
    ppo = small_ppo(probes.truncation())
    with pytest.raises(TypeError, match=r"state must be that of a rule with replay, not Learner"):
        jaxrl.save_replay(path, fresh(ppo))
    two = jax.tree.map(lambda x: np.stack([x, x]), learner.replay)
    with pytest.raises(ValueError, match=r"state holds buffers of \(2,\) seeds: give one"):
        jaxrl.save_replay(path, learner._replace(replay=two))
    with pytest.raises(TypeError, match="state must be that of a replay with a ring"):
        stored_rows(())
