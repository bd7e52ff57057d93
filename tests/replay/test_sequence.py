"""Sequences against a list of all rows: their starts, carries, ends, seams and priorities."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.sequence import CarriedRows, Sequences, sequence_priorities, sequence_replay, sequences
from jaxrl.replay.transitions import ReplayRow
from jaxrl.replay.uniform import uniform_replay
from tests.helpers.agents import assert_bit_equal

ENVS, ROWS, DRAWS = 2, 96, 900
ALL = np.arange(ENVS)
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


def history(seed: int) -> tuple[ReplayRow, np.ndarray]:
    """Return rows [ROWS, ENVS] as in rollouts, and the carry before each."""
    rng = np.random.default_rng(seed)
    ends = rng.random((ROWS, ENVS)) < 0.2
    valid = np.ones((ROWS, ENVS), bool)
    for t in range(1, ROWS):
        ends[t] &= ~ends[t - 1]
        valid[t] = ~ends[t - 1]
    terminated = ends & (rng.random((ROWS, ENVS)) < 0.5)
    obs = np.stack(np.meshgrid(np.arange(ROWS), np.arange(ENVS), indexing="ij"), -1).astype(np.float32)
    reward = np.where(valid, rng.normal(size=(ROWS, ENVS)), 0).astype(np.float32)
    rows = ReplayRow(obs, rng.integers(1, 5, (ROWS, ENVS)).astype(np.int32), reward, terminated, valid)
    return rows, rng.normal(size=(ROWS, ENVS, 3)).astype(np.float32)


def part(rows: ReplayRow, carry: np.ndarray, start: int, length: int, period: int) -> CarriedRows:
    return CarriedRows(
        jax.tree.map(lambda x: jnp.asarray(x[start : start + length]), rows), jnp.asarray(carry[start : start + length : period])
    )


@cache
def program(capacity: int, rows_per_add: int, period: int, length: int, prioritised: bool = True) -> Any:
    starts = prioritised_replay() if prioritised else uniform_replay
    replay = sequence_replay(starts, period=period)(capacity, ENVS, rows_per_add, before=1, after=length)

    def look(state: Any, key: Any) -> Any:
        draw = replay.draw(state, key, DRAWS)
        return draw, sequences(replay, state, draw, length)

    return replay, jit(replay.add), jit(look), jit(replay.mark_discontinuity)


def start_state(replay: Any) -> Any:
    rows, carry = history(0)
    return replay.init(CarriedRows(jax.tree.map(lambda x: jnp.asarray(x[0, 0]), rows), jnp.asarray(carry[0, 0])))


@pytest.mark.parametrize("prioritised", [True, False])
@pytest.mark.parametrize(
    "capacity, rows_per_add, period, length",
    [(40, 8, 4, 10), (35, 6, 3, 7), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((30, 4, 4, 4), (50, 6, 1, 5)))],
)
def test_sequences_are_those_of_a_list(capacity: int, rows_per_add: int, period: int, length: int, prioritised: bool) -> None:
    """After every add, until the ring has wrapped: all complete sequences are drawn, and no others."""
    replay, add, look, mark_discontinuity = program(capacity, rows_per_add, period, length, prioritised)
    rows, carry = history(capacity)
    state, crossed = start_state(replay), 0
    for i in range(ROWS // rows_per_add):
        state = add(state, part(rows, carry, i * rows_per_add, rows_per_add, period), ALL)
        stored = (i + 1) * rows_per_add
        if i == 4:
            state = mark_discontinuity(state)
            rows.valid[stored - 1] = False
        draw, batch = jax.device_get(look(state, jax.random.fold_in(KEY(), i)))
        oldest = max(0, stored - capacity // period * period)
        first = -(-(oldest + 1) // period) * period
        starts = range(first, stored - length, period)
        assert draw.valid.all() == bool(starts) and draw.valid.any() == bool(starts)
        if not starts:
            continue
        at = batch.inputs.obs[0].astype(int)
        assert {(int(t), int(e)) for t, e in at} == {(t, e) for t in starts for e in ALL}
        for j in range(0, DRAWS, 29):
            t, e = at[j]
            crossed += check_one(jax.tree.map(lambda x, j=j: x[:, j], batch._replace(carry=(), weight=())), rows, t, e, length)
            np.testing.assert_array_equal(batch.carry[j], carry[t, e])
    assert crossed > 10


def check_one(batch: Sequences, rows: ReplayRow, t: int, env: int, length: int) -> int:
    """Check one sequence against the rows from t on. Return 1 if an end is inside."""
    window = slice(t, t + length)
    valid, before = rows.valid[window, env], rows.valid[t - 1 : t + length, env]
    np.testing.assert_array_equal(batch.inputs.obs, rows.obs[t : t + length + 1, env])
    np.testing.assert_array_equal(batch.inputs.is_first, ~before)
    np.testing.assert_array_equal(batch.inputs.prev_action, np.where(before, rows.action[t - 1 : t + length, env], 0))
    np.testing.assert_array_equal(batch.inputs.prev_reward, np.where(before, rows.reward[t - 1 : t + length, env], 0))
    np.testing.assert_array_equal(batch.action, rows.action[window, env])
    np.testing.assert_array_equal(batch.reward, rows.reward[window, env])
    np.testing.assert_array_equal(batch.valid, valid)
    np.testing.assert_array_equal(batch.terminated, rows.terminated[window, env] & valid)
    cut = valid & ~rows.valid[t + 1 : t + length + 1, env] & ~rows.terminated[window, env]
    np.testing.assert_array_equal(batch.truncated, cut)
    return int(not valid.all())


@pytest.mark.slow
def test_priorities_are_those_of_their_sequence() -> None:
    """After an update the sequence with the largest error is drawn most often, with the right probability."""
    replay, add, look, _ = program(40, 8, 4, 10)
    rows, carry = history(1)
    state = start_state(replay)
    for i in range(8):
        state = add(state, part(rows, carry, 8 * i, 8, 4), ALL)
    draw, batch = look(state, KEY())
    chosen = (batch.inputs.obs[0] == jnp.array([36.0, 1.0])).all(-1)
    assert chosen.any()
    after = jit(replay.update)(state, draw, jnp.where(chosen, 100.0, 0.001))
    leaves = np.asarray(after.starts.levels[0]).reshape(ENVS, -1)
    _, again = look(after, KEY())
    share = np.mean((np.asarray(again.inputs.obs[0]) == [36, 1]).all(-1))
    assert share == pytest.approx(leaves.max() / leaves.sum(), abs=0.05) and share > 0.5
    assert_bit_equal(after.rows, state.rows)


def test_a_sequence_counts_as_its_largest_and_its_mean_error() -> None:
    errors = np.array([[1.0, -3.0, 9.0], [-2.0, 9.0, 9.0], [4.0, 1.0, 9.0]], np.float32)
    valid = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0]], bool)
    got = sequence_priorities(errors, valid, 0.9)
    np.testing.assert_allclose(got, [0.9 * 4 + 0.1 * 7 / 3, 0.9 * 3 + 0.1 * 2, 0.0], rtol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^period=0 must be an integer >= 1"):
        sequence_replay(period=0)
    with pytest.raises(ValueError, match=r"^period=3 must divide the 8 rows of an add: change the period or rollout_length"):
        sequence_replay(period=3)(40, ENVS, 8, before=1, after=10)
    with pytest.raises(ValueError, match=r"^capacity=15 rows per environment do not hold a sequence: 16 are needed for 11 rows"):
        sequence_replay(period=4)(15, ENVS, 8, before=1, after=10)
    sequence_replay(period=4)(16, ENVS, 8, before=1, after=10)
    replay, *_ = program(40, 8, 4, 10)
    rows, carry = history(0)
    given = part(rows, carry, 0, 8, 4)
    with pytest.raises(TypeError, match=r"this replay stores CarriedRows, .* not ReplayRow"):
        replay.add(start_state(replay), given.rows, ALL)
    with pytest.raises(ValueError, match=r"rows\.carry is float32\[1, 2, 3\], but this replay takes float32\[2, 2, 3\]"):
        replay.add(start_state(replay), given._replace(carry=given.carry[:1]), ALL)
