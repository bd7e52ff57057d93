"""Uniform replay against a deque, with sizes that do not divide, and its cost in a compiled loop."""

from __future__ import annotations

import re
from collections import deque
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.replay import Draw, Replay
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.uniform import CANDIDATES, ReplayState, places, uniform_replay
from jaxrl.runtime.system.cores import usable_cores
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, small_dqn
from tests.helpers.numbered_rows import ALL, ENVS, EXAMPLE, KEY, Numbered, numbered_rows


class Filled(NamedTuple):
    replay: Replay
    state: ReplayState
    stored: list[tuple[int, np.ndarray]]
    """(number, valid[num_envs]) of the rows that a deque would hold, oldest first."""


@cache
def ring(capacity: int, rows_per_add: int) -> tuple[Replay, Any]:
    """Return a replay and its compiled ``add``."""
    replay = uniform_replay(capacity, ENVS, rows_per_add, before=1)
    return replay, jax.jit(replay.add, compiler_options=COMPILE_FAST)


def fill(capacity: int, rows_per_add: int, adds: int, **settings: Any) -> Filled:
    replay, add = ring(capacity, rows_per_add)
    state, stored = replay.init(EXAMPLE), deque(maxlen=capacity)
    for i in range(adds):
        rows = numbered_rows(i * rows_per_add, rows_per_add, **settings)
        state = add(state, rows, ALL)
        stored.extend(zip(range(i * rows_per_add, (i + 1) * rows_per_add), rows.valid, strict=True))
    return Filled(replay, state, list(stored))


def drawable(stored: list[tuple[int, np.ndarray]]) -> set[tuple[int, int]]:
    """Return (number, env) of the valid rows with a stored neighbour on both sides."""
    return {(number, env) for number, valid in stored[1:-1] for env in range(len(valid)) if valid[env]}


@partial(jax.jit, static_argnums=(0, 3), compiler_options=COMPILE_FAST)
def look(replay: Replay, state: ReplayState, key: Any, batch: int) -> tuple[Draw, list[Numbered]]:
    draw = replay.draw(state, key, batch)
    return draw, [replay.take(state, draw, offset) for offset in (-1, 0, 1)]


SIZES = [(9, 1), (10, 4), (3, 4)]
"""(capacity, rows per add): single rows, sizes that do not divide, and adds larger than the capacity."""


@pytest.mark.parametrize(
    "capacity, rows_per_add", [SIZES[0], *(pytest.param(*size, marks=pytest.mark.slow) for size in SIZES[1:])]
)
def test_draws_are_what_a_deque_holds(capacity: int, rows_per_add: int) -> None:
    """After every add, until the ring has wrapped at least twice."""
    replay, add = ring(capacity, rows_per_add)
    state, stored = replay.init(EXAMPLE), deque(maxlen=capacity)
    for i in range(3 * capacity // rows_per_add + 3):
        rows = numbered_rows(i * rows_per_add, rows_per_add)
        state = add(state, rows, ALL)
        stored.extend(zip(rows.number[:, 0].tolist(), rows.valid, strict=True))
        draw, (before, row, after) = look(replay, state, jax.random.fold_in(KEY(), i), 600)
        allowed = drawable(list(stored))
        found = np.asarray(draw.valid)
        assert set(zip(row.number[found].tolist(), draw.env[found].tolist(), strict=True)) == allowed
        assert found.any() == bool(allowed)
        assert row.valid[found].all()
        for part, offset in ((before, -1), (row, 0), (after, 1)):
            number = row.number[found] + offset
            np.testing.assert_array_equal(part.number[found], number)
            np.testing.assert_array_equal(part.name[found], np.stack([number, draw.env[found]], -1))
            np.testing.assert_array_equal(part.flag[found], number % 251)
        assert int(state.size) == len(stored)
    assert jax.tree.map(lambda x: x.dtype, state.records.unpack()) == jax.tree.map(lambda x: x.dtype, EXAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("capacity, rows_per_add", [(10, 4), (9, 1)])
def test_no_window_crosses_a_seal(capacity: int, rows_per_add: int) -> None:
    """The newest row of each environment can then be a predecessor or a successor, but is not drawn itself."""
    replay, add = ring(capacity, rows_per_add)
    state, stored = replay.init(EXAMPLE), deque(maxlen=capacity)
    mark_discontinuity = jax.jit(replay.mark_discontinuity, compiler_options=COMPILE_FAST)
    assert_bit_equal(mark_discontinuity(state), state)
    for i in range(3 * capacity // rows_per_add + 3):
        rows = numbered_rows(i * rows_per_add, rows_per_add)
        state = add(state, rows, ALL)
        stored.extend(zip(rows.number[:, 0].tolist(), rows.valid, strict=True))
        if i % 2:
            state = mark_discontinuity(state)
            stored[-1] = (stored[-1][0], np.zeros(ENVS, bool))
        draw, (before, row, after) = look(replay, state, jax.random.fold_in(KEY(), i), 600)
        found, seams = np.asarray(draw.valid), {number for number, valid in stored if not valid.any()}
        assert set(zip(row.number[found].tolist(), draw.env[found].tolist(), strict=True)) == drawable(list(stored))
        np.testing.assert_array_equal(after.number[found], row.number[found] + 1)
        after_seam = np.isin(before.number[found], list(seams))
        assert not before.valid[found][after_seam].any()


@cache
def large() -> Filled:
    return fill(10, 4, 5, share_valid=0.8)


@pytest.mark.slow
def test_draws_are_uniform() -> None:
    replay, state, stored = large()
    draw, (_, row, _) = look(replay, state, KEY(), 6000)
    names = [(n, e) for n, e, ok in zip(row.number.tolist(), draw.env.tolist(), draw.valid.tolist(), strict=True) if ok]
    counts = [names.count(name) for name in sorted(drawable(stored))]
    assert len(counts) > 15 and sum(counts) == len(names)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("capacity, lanes", [(2**20, 2**10), (2**20, 2**11), (2**20, 3 * 2**13), (2**30, 2**20)])
def test_rows_may_be_more_than_32_bits_count(capacity: int, lanes: int) -> None:
    """A partly full buffer: all its rows and all lanes are drawn."""
    rows = capacity // 8 * 5
    row, lane = (np.asarray(x) for x in places(KEY(), (2000,), capacity, lanes, jnp.int32(rows)))
    assert row.dtype == lane.dtype == np.int32
    for drawn, count in ((row, rows), (lane, lanes)):
        assert drawn.min() >= 0 and drawn.max() < count
        assert scipy.stats.chisquare(np.bincount(drawn.astype(np.int64) * 8 // count, minlength=8)).pvalue > 1e-3
    assert np.unique(row).size > 1900


def test_draws_depend_on_their_key() -> None:
    replay, state, _ = large()
    a, b, c = (look(replay, state, jax.random.key(seed), 600)[0] for seed in (1, 1, 2))
    assert_bit_equal(a, b)
    assert (a.row != c.row).any()


def test_nothing_there_gives_no_valid_draw() -> None:
    for filled in (fill(10, 4, 0), fill(9, 1, 2), fill(10, 4, 4, share_valid=0.0)):
        draw, _ = look(filled.replay, filled.state, KEY(), 600)
        assert not draw.valid.any()
        assert ((draw.row >= 0) & (draw.row < 12) & (draw.env >= 0) & (draw.env < ENVS)).all()
    # With three rows the middle one is the first that can be drawn.
    replay, state, _ = fill(9, 1, 3, share_valid=1.0)
    draw, (_, row, _) = look(replay, state, KEY(), 600)
    assert draw.valid.all() and (row.number == 1).all()


def test_a_share_q_of_invalid_rows_costs_q_to_the_fourth_of_the_draws() -> None:
    replay, state, stored = fill(10, 4, 3, share_valid=0.5)
    rows = [valid for _, valid in stored[1:-1]]
    share = 1 - np.mean(rows)
    missed = 1 - np.mean(look(replay, state, KEY(), 6000)[0].valid)
    assert missed == pytest.approx(share**CANDIDATES, rel=0.25)


def test_states_of_different_age_side_by_side() -> None:
    """vmap over states, as over seeds: positions differ, and draws are those of each state alone."""
    young, old = fill(10, 4, 2), fill(10, 4, 5)
    replay = young.replay
    both = jax.tree.map(lambda *x: jnp.stack(x), young.state, old.state)
    rows, keys = numbered_rows(100, 4), jax.random.split(KEY(), 2)
    _, add = ring(10, 4)
    after = jax.jit(jax.vmap(replay.add, in_axes=(0, None, None)))(both, rows, ALL)
    seen = jax.vmap(lambda state, key: look(replay, state, key, 600))(after, keys)
    for i, filled in enumerate((young, old)):
        alone = add(filled.state, rows, ALL)
        assert_bit_equal(jax.tree.map(lambda x, i=i: x[i], after), alone)
        assert_bit_equal(jax.tree.map(lambda x, i=i: x[i], seen), look(replay, alone, keys[i], 600))


def test_a_device_may_hold_a_share_of_the_environments() -> None:
    """Built for three environments, used with the last two: draws follow the state."""
    replay, state, stored = large()
    share = state._replace(records=state.records[:, 1:], valid=state.valid[:, 1:])
    share = ring(10, 4)[1](share, jax.tree.map(lambda x: x[:, 1:], numbered_rows(20, 4)), np.array([2, 3]))
    draw, (_, row, _) = look(replay, share, KEY(), 600)
    newer = [*stored, *zip(range(20, 24), numbered_rows(20, 4).valid, strict=True)][-10:]
    allowed = {(number, env - 1) for number, env in drawable(newer) if env > 0}
    assert set(zip(row.number[draw.valid].tolist(), draw.env[draw.valid].tolist(), strict=True)) == allowed


@pytest.mark.parametrize("capacity, rows_per_add, before, after", [(10, 4, 1, 3), (9, 1, 3, 0), (7, 4, 0, 1), (11, 3, 2, 2)])
def test_windows_are_whole(capacity: int, rows_per_add: int, before: int, after: int) -> None:
    """The requested number of rows around each drawn row, as in a deque, until the ring has wrapped twice."""
    replay = uniform_replay(capacity, ENVS, rows_per_add, before=before, after=after)
    offsets = range(-before, after + 1)

    @partial(jax.jit, compiler_options=COMPILE_FAST)
    def add_and_look(state: ReplayState, rows: Numbered, key: Any) -> Any:
        state = replay.add(state, rows, ALL)
        draw = replay.draw(state, key, 600)
        return state, draw, [replay.take(state, draw, offset) for offset in offsets]

    stored: deque[tuple[int, np.ndarray]] = deque(maxlen=capacity)
    state = replay.init(EXAMPLE)
    for i in range(2 * capacity // rows_per_add + 3):
        rows = numbered_rows(i * rows_per_add, rows_per_add)
        stored.extend(zip(rows.number[:, 0].tolist(), rows.valid, strict=True))
        state, draw, window = jax.device_get(add_and_look(state, rows, jax.random.fold_in(KEY(), i)))
        found, whole = draw.valid, [*stored][before : len(stored) - after]
        number, env = window[before].number[found], draw.env[found]
        assert set(zip(number.tolist(), env.tolist(), strict=True)) == {(n, e) for n, ok in whole for e in ALL if ok[e]}
        for offset, part in zip(offsets, window, strict=True):
            np.testing.assert_array_equal(part.name[found], np.stack([number + offset, env], -1))
    assert found.any()


@pytest.mark.parametrize("capacity", [12, 10])
@pytest.mark.parametrize("parts", [([0, 1], [2]), ([2], [0], [1])], ids=["in order", "in any order"])
def test_a_round_may_come_in_parts(capacity: int, parts: tuple[list[int], ...]) -> None:
    """The ring is then that of one add.

    Before the last part, neither the round's rows nor the rows that it overwrites are drawn.
    """
    replay, add = ring(capacity, 4)
    whole = in_parts = replay.init(EXAMPLE)
    stored: deque[tuple[int, np.ndarray]] = deque(maxlen=capacity)
    for i in range(5):
        rows = numbered_rows(4 * i, 4)
        for part in parts:
            if part is not parts[0]:
                draw, (before, row, after) = look(replay, in_parts, jax.random.fold_in(KEY(), i), 600)
                found = np.asarray(draw.valid)
                allowed = drawable([*stored][max(0, len(stored) + 4 - 12) :])
                assert set(zip(row.number[found].tolist(), draw.env[found].tolist(), strict=True)) == allowed
                for x, offset in ((before, -1), (after, 1)):
                    np.testing.assert_array_equal(x.name[found], row.name[found] + np.array([offset, 0]))
            # ids of later environments: a device counts its lanes from its first environment
            in_parts = add(in_parts, jax.tree.map(lambda x, part=part: x[:, part], rows), np.array(part) + ENVS)
        stored.extend(zip(rows.number[:, 0].tolist(), rows.valid, strict=True))
        whole = add(whole, rows, ALL)
        assert_bit_equal(in_parts, whole)


def test_all_draws_of_a_uniform_replay_count_alike() -> None:
    replay, state, _ = large()
    draw, _ = look(replay, state, KEY(), 600)
    np.testing.assert_array_equal(draw.weight, np.ones(600, np.float32))
    assert replay.update(state, draw, jnp.zeros(600)) is state


def test_an_empty_replay_can_be_donated() -> None:
    """Also if it was built outside of ``jit``: no two of its arrays may share a buffer, which could not be donated twice."""
    for make in (uniform_replay, prioritised_replay()):
        arrays = jax.tree.leaves(make(8, ENVS, 2, before=0, after=1).init(EXAMPLE))
        assert len({x.unsafe_buffer_pointer() for x in arrays}) == len(arrays)


def test_sizes_that_do_not_fit_are_refused() -> None:
    for sizes, window, name in (
        ((2, 3, 4), {"before": 1}, "capacity"),
        ((10, 0, 4), {}, "num_envs"),
        ((10, 3, 0), {}, "rows_per_add"),
        ((10.5, 3, 1), {}, "capacity"),
        ((6, 3, 1), {"before": 1, "after": 5}, "capacity"),
        ((10, 3, 1), {"after": -1}, "after"),
        ((10, 3, 1), {"before": 0.5}, "before"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}=.* must be an integer >= "):
            uniform_replay(*sizes, **window)
    replay, state, _ = large()
    with pytest.raises(ValueError, match="takes 4 rows at a time, not 3: build it for that rollout_length"):
        replay.add(state, numbered_rows(0, 3), ALL)
    draw = Draw(jnp.zeros(2, jnp.int32), jnp.zeros(2, jnp.int32), jnp.ones(2), jnp.ones(2, bool))
    for offset in (-2, 2):
        with pytest.raises(ValueError, match=rf"^offset={offset} must be from -1 to 1: build this replay with a larger before"):
            replay.take(state, draw, offset)
    with pytest.raises(AssertionError, match="equal_shape"):
        replay.take(state, draw, jnp.zeros(3, jnp.int32))


ROWS = numbered_rows(0, 4)


@pytest.mark.parametrize(
    "rows, env_id, message",
    [
        (
            ROWS._replace(flag=ROWS.number.astype(np.float32)),
            ALL,
            r"rows\.flag is float32\[4, 3\], .* takes uint8\[4, 3\]: cast it",
        ),
        (ROWS._replace(number=ROWS.name), ALL, r"rows\.number is float32\[4, 3, 2\], but this replay takes int32\[4, 3\]"),
        (ROWS._replace(name={"x": ROWS.name}), ALL, "this replay stores rows of .* not of"),
        (ROWS, ALL[:2], r"rows\.number is int32\[4, 3\], but this replay takes int32\[4, 2\]"),
        (
            numbered_rows(0, 4, 4),
            np.arange(4),
            "env_id names 4 environments, but this replay has 3 lanes: build it for that num_envs",
        ),
        (ROWS, np.array([0, 2, 1]), r"env_id=\[0, 2, 1\] must be consecutive environments within the 3 lanes"),
        (numbered_rows(0, 4, 2), np.array([2, 3]), r"env_id=\[2, 3\] must be consecutive environments within the 3 lanes"),
    ],
    ids=["dtype", "shape", "structure", "ids of some", "too many", "order", "beyond the last lane"],
)
def test_rows_that_do_not_fit_are_refused(rows: Any, env_id: Any, message: str) -> None:
    """Otherwise they would silently be cut off or fill other lanes."""
    replay, state, _ = large()
    with pytest.raises(ValueError, match=message):
        replay.add(state, rows, env_id)


# ------------------------------------------------------------------------------------------------------------------------ cost

CAPACITY = 12_345
"""A size that occurs nowhere else in the program."""


def ring_copies(num_seeds: int | None, donate: bool = True) -> tuple[int, int]:
    """Count the copies of a ring in the compiled scan of DQN's step. Return them and the program's scratch bytes."""
    sizes = {"num_envs": 1, "rollout_length": 1, "batch_size": 8, "buffer_size": CAPACITY}
    agent = small_dqn(probes.truncation(), **sizes)
    init, step = agent.init, agent.step
    if num_seeds is not None:
        init, step = (lambda key: jax.vmap(agent.init)(jax.random.split(key, num_seeds))), jax.vmap(agent.step)
    loop = jax.jit(lambda state: jax.lax.scan(lambda s, _: step(s), state, length=3), donate_argnums=(0,) if donate else ())
    compiled = loop.lower(jax.eval_shape(init, KEY())).compile(compiler_options=COMPILE_FAST)
    text = compiled.as_text()
    assert f"{CAPACITY},1" in text  # a ring looks like this
    return len(re.findall(rf"\[(?:\d+,)?{CAPACITY},1[^=]*copy(?:-start)?\(", text)), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("num_seeds", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_the_ring_is_never_copied(num_seeds: int | None) -> None:
    copies, scratch = ring_copies(num_seeds)
    assert copies == 0
    assert scratch < CAPACITY  # bytes: less than the smallest ring, that of a flag


@pytest.mark.slow
def test_the_copy_test_would_notice() -> None:
    """A state that the caller keeps must be copied, once."""
    assert ring_copies(None, donate=False)[0] > 0


def splits(function: Any, *args: Any) -> int:
    """Count the kernels of the compiled program that are split over threads."""
    text = jax.jit(function).lower(*args).compile(compiler_options=COMPILE_FAST).as_text()
    return text.count('"outer_dimension_partitions":["')


@pytest.mark.parametrize("shape", [(128,), (4, 128)])
def test_reading_a_large_ring_is_not_split_over_threads(shape: tuple[int, ...]) -> None:
    ring, index = jax.ShapeDtypeStruct((10**6, 1, 8), jnp.uint32), jax.ShapeDtypeStruct(shape, jnp.int32)
    plainly = splits(lambda ring, row, env: ring[row, env], ring, index, index)
    assert (plainly > 0) == (usable_cores() > 1)  # on one core XLA has no thread to split for
    assert splits(gather_rows, ring, index, index) == 0


def test_a_large_ring_is_read_by_one_thread_in_the_whole_step() -> None:
    agent = small_dqn(probes.truncation(), num_envs=1, rollout_length=1, batch_size=128, replay_ratio=128, buffer_size=10**6)
    assert splits(agent.step, jax.eval_shape(agent.init, KEY())) == 0


@pytest.mark.parametrize("num_seeds", [None, 3])
def test_gathered_rows_are_those_at_the_indices(num_seeds: int | None) -> None:
    rng, lead = np.random.default_rng(0), () if num_seeds is None else (num_seeds,)
    ring = rng.normal(size=(*lead, 7, 2, 3)).astype(np.float32)
    row, env = rng.integers(7, size=(*lead, 4, 5)), rng.integers(2, size=(*lead, 4, 5))
    gather = jax.jit(gather_rows if num_seeds is None else jax.vmap(gather_rows))
    expected = ring[row, env] if num_seeds is None else np.stack([r[i, j] for r, i, j in zip(ring, row, env, strict=True)])
    np.testing.assert_array_equal(gather(ring, row, env), expected)
