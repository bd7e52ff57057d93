"""n-step returns from stored rows against a NumPy loop, over episodes that terminate, are truncated, or have a seam."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.replay.transitions import ReplayRow, Transitions, transitions
from jaxrl.replay.uniform import uniform_replay

ROWS, ENVS, GAMMA = 60, 2, 0.9
ADD, CAPACITY = 12, 42
"""The ring consists of whole adds, and wraps."""


def episodes(seed: int) -> ReplayRow:
    """Return rows as in rollouts. The row after an end is the reset row, which is invalid and holds the last observation."""
    rng = np.random.default_rng(seed)
    ends = rng.random((ROWS, ENVS)) < 0.25
    valid = np.ones((ROWS, ENVS), bool)
    for t in range(1, ROWS):
        ends[t] &= ~ends[t - 1]
        valid[t] = ~ends[t - 1]
    terminated = ends & (rng.random((ROWS, ENVS)) < 0.5)
    reward = np.where(valid, rng.normal(size=(ROWS, ENVS)), 0).astype(np.float32)
    obs = np.stack(np.meshgrid(np.arange(ROWS), np.arange(ENVS), indexing="ij"), -1).astype(np.float32)
    return ReplayRow(obs, rng.integers(1, 5, (ROWS, ENVS)).astype(np.int32), reward, terminated, valid)


def by_loop(rows: ReplayRow, t: int, env: int, n_step: int) -> tuple[float, float, int]:
    """Return (return, discount, row reached) of the transition that starts at row t."""
    total, discount = 0.0, 1.0
    for m in range(n_step):
        if m and not rows.valid[t + m, env]:
            return total, discount, t + m
        total += discount * rows.reward[t + m, env]
        discount *= GAMMA
        if rows.terminated[t + m, env]:
            return total, 0.0, t + m + 1
    return total, discount, t + n_step


@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_returns_stop_where_their_episode_does(n_step: int) -> None:
    replay = uniform_replay(CAPACITY, ENVS, ADD, before=1, after=n_step)
    rows = episodes(n_step)
    state = replay.init(jax.tree.map(lambda x: jnp.asarray(x[0, 0]), rows))
    add, mark_discontinuity = (jax.jit(f, compiler_options=COMPILE_FAST) for f in (replay.add, replay.mark_discontinuity))
    for start in range(0, ROWS, ADD):
        state = add(state, jax.tree.map(lambda x, start=start: jnp.asarray(x[start : start + ADD]), rows), jnp.arange(ENVS))
        if start == ADD:  # the environments begin anew: the next row does not follow any earlier one
            state = mark_discontinuity(state)
            rows.valid[2 * ADD - 1] = False

    @partial(jax.jit, compiler_options=COMPILE_FAST)
    def sample(key: jax.Array) -> Transitions:
        return transitions(replay, state, replay.draw(state, key, 2000), GAMMA, n_step)

    batch = jax.device_get(sample(jax.random.key(0)))
    row, env = batch.inputs.obs.astype(int).T
    found = np.flatnonzero(batch.valid)
    starts = {(int(t), int(e)) for t in range(ROWS - CAPACITY + 1, ROWS - n_step) for e in range(ENVS) if rows.valid[t, e]}
    assert {(int(row[i]), int(env[i])) for i in found} == starts
    lengths = set()
    for i in found:
        t, e = int(row[i]), int(env[i])
        reward, discount, reached = by_loop(rows, t, e, n_step)
        lengths.add(reached - t)
        np.testing.assert_allclose((batch.reward[i], batch.discount[i]), (reward, discount), rtol=1e-5, atol=1e-6)
        for inputs, at in ((batch.inputs, t), (batch.next_inputs, reached)):
            np.testing.assert_array_equal(inputs.obs[i], rows.obs[at, e])
            before = rows.valid[at - 1, e]
            assert inputs.is_first[i] == (not before)
            assert inputs.prev_action[i] == (rows.action[at - 1, e] if before else 0)
            assert inputs.prev_reward[i] == (rows.reward[at - 1, e] if before else 0)
        assert batch.action[i] == rows.action[t, e]
    assert lengths == set(range(1, n_step + 1))
    assert (batch.discount[found] == 0).any() and (batch.discount[found] > 0).any()
