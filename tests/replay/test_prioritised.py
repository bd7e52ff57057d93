"""Prioritised replay against a deque and a dictionary of priorities, its draws against their probabilities, and its cost."""

from __future__ import annotations

import re
from collections import deque
from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.parallel import data_parallel, env_axes
from jaxrl.replay import Draw, Replay, over_devices
from jaxrl.replay.options import Prioritized
from jaxrl.replay.prioritised import FANOUT, LARGEST, SMALLEST, PrioritisedState, prioritised_replay
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, small, small_dqn
from tests.helpers.numbered_rows import ALL, ENVS, EXAMPLE, KEY, numbered_rows

ALPHA, BETA = 0.6, 0.4
RING = {"records": 1, "valid": 1}
"""Fields of the ring's state and their axis of environments."""
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


class Program:
    """A replay with compiled functions."""

    def __init__(
        self, capacity: int, rows_per_add: int, before: int, after: int, num_envs: int = ENVS, **exponents: float
    ) -> None:
        made = prioritised_replay(**{"priority_exponent": ALPHA, "importance_exponent": BETA, **exponents})
        self.replay: Replay = made(capacity, num_envs, rows_per_add, before=before, after=after)
        self.add, self.update, self.mark_discontinuity = (
            jit(f) for f in (self.replay.add, self.replay.update, self.replay.mark_discontinuity)
        )
        self.look = jit(self._look, static_argnums=2)

    def _look(self, state: Any, key: Any, batch: int) -> tuple[Draw, Any]:
        draw = self.replay.draw(state, key, batch)
        return draw, self.replay.take(state, draw, 0)


program = cache(Program)


def leaf(priority: Any, exponent: float = ALPHA) -> Any:
    return (np.clip(priority, 0, LARGEST) + SMALLEST) ** exponent


class Oracle:
    """A deque of rows, with the priorities of those that can be drawn."""

    def __init__(self, capacity: int, before: int, after: int) -> None:
        self.stored: deque[tuple[int, np.ndarray]] = deque(maxlen=capacity)
        self.window, self.leaves, self.highest = (before, after), {}, 1.0  # type: ignore[var-annotated]

    def add(self, rows: Any) -> None:
        self.stored.extend(zip(rows.number[:, 0].tolist(), rows.valid, strict=True))
        before, after = self.window
        whole = [*self.stored][before : max(0, len(self.stored) - after)]
        can = {(number, env) for number, valid in whole for env in range(len(valid)) if valid[env]}
        self.leaves = {row: self.leaves.get(row, self.highest) for row in can}

    def update(self, rows: list[tuple[int, int]], priorities: np.ndarray) -> None:
        new: dict[tuple[int, int], float] = {}
        for row, priority in zip(rows, priorities.tolist(), strict=True):
            if not np.isnan(priority):
                new[row] = max(new.get(row, 0.0), float(leaf(priority)))
        self.leaves |= new
        self.highest = max([self.highest, *new.values()])

    def check(self, state: PrioritisedState, length: int) -> None:
        levels = [np.asarray(level, np.float64) for level in state.levels]
        expected = np.zeros((ENVS, levels[0].shape[1] * FANOUT))
        for (number, env), value in self.leaves.items():
            expected[env, number % length] = value
        np.testing.assert_allclose(levels[0].reshape(ENVS, -1), expected, rtol=1e-5)
        for level, above in pairwise(levels):
            total = np.zeros((ENVS, above.shape[1] * FANOUT))
            total[:, : level.shape[1]] = level.sum(-1)
            np.testing.assert_allclose(above.reshape(ENVS, -1), total, rtol=1e-5)
        np.testing.assert_allclose(state.highest, self.highest, rtol=1e-5)


SIZES = [(10, 4, 1, 1), (9, 1, 0, 2), (3, 4, 1, 1), (70, 9, 2, 3), (8, 2, 0, 0)]
"""(capacity, rows per add, before, after): sizes that do not divide, single rows, adds larger than the capacity, several levels,
no window."""


@pytest.mark.slow
@pytest.mark.parametrize("capacity, rows_per_add, before, after", SIZES)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6), share_valid=st.sampled_from([0.3, 0.8, 1.0]))
def test_it_counts_rows_as_a_dictionary_does(
    capacity: int, rows_per_add: int, before: int, after: int, seed: int, share_valid: float
) -> None:
    """After every add and update, until the ring has wrapped twice: all leaves, their sums, and the draws."""
    p, rng = program(capacity, rows_per_add, before, after), np.random.default_rng(seed)
    state, oracle = p.replay.init(EXAMPLE), Oracle(capacity, before, after)
    for i in range(2 * capacity // rows_per_add + 3):
        rows = numbered_rows(i * rows_per_add, rows_per_add, share_valid=share_valid)
        state = p.add(state, rows, ALL)
        oracle.add(rows)
        if rng.random() < 0.1:
            state = p.mark_discontinuity(state)
            oracle.stored[-1] = (oracle.stored[-1][0], np.zeros(ENVS, bool))
            oracle.leaves = {row: value for row, value in oracle.leaves.items() if row[0] != oracle.stored[-1][0]}
        oracle.check(state, p_length(capacity, rows_per_add))
        draw, row = p.look(state, jax.random.fold_in(KEY(), seed + i), 32)
        named = list(zip(row.number.tolist(), draw.env.tolist(), strict=True))
        assert draw.valid.all() == bool(oracle.leaves) and draw.valid.any() == bool(oracle.leaves)
        if not oracle.leaves:
            continue
        counts = np.array([oracle.leaves[name] for name in named])  # only these rows
        np.testing.assert_allclose(draw.weight, (counts / counts.min()) ** -BETA, rtol=1e-4)
        priorities = np.where(rng.random(32) < 0.2, np.nan, rng.exponential(size=32) ** 4).astype(np.float32)
        state = p.update(state, draw, priorities)
        oracle.update(named, priorities)
        oracle.check(state, p_length(capacity, rows_per_add))


@pytest.mark.slow
def test_weights_of_a_batch_in_parts_are_those_of_the_whole() -> None:
    """Devices draw from separate rows, whose priorities may have another scale.

    The weights depend on the probability of a row.
    """
    p = program(64, 8, 1, 1)
    key, rng = KEY(), np.random.default_rng(0)
    states = []
    for scale in (1.0, 1000.0, 0.0):
        state = filled(p, 8, 9)
        drawn, _ = p.look(state, key, 64)
        state = p.update(state, drawn, (scale * rng.exponential(size=64)).astype(np.float32))
        states.append(state if scale else p.replay.init(EXAMPLE))  # no row can be drawn from it
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    both = jax.vmap(lambda state: over_devices(p.replay.draw(state, key, 16), "d"), axis_name="d")(stacked)
    leaves = [np.asarray(state.levels[0]).reshape(ENVS, -1) for state in states]
    chance = [leaf[env, row] / max(leaf.sum(), 1e-9) for leaf, env, row in zip(leaves, both.env, both.row, strict=True)]
    least = min(chance[0].min(), chance[1].min())
    np.testing.assert_allclose(both.weight[:2], (least / np.stack(chance[:2])) ** BETA, rtol=1e-4)
    assert not both.valid[2].any() and not both.weight[2].any() and both.weight[:2].max() == pytest.approx(1)


@pytest.mark.slow
def test_an_algorithm_weighs_its_devices_rows_alike() -> None:
    """Checked on the batches of updates on two devices."""
    agent = small_dqn("CartPole-v1", replay=Prioritized(importance_exponent=1.0), axis_name="d")
    setup, learner = agent.algorithm.learn.args[0], agent.init(KEY()).learner  # type: ignore[union-attr]
    double = lambda x: jnp.stack([x, x])  # noqa: E731
    learner = jax.tree.map(double, learner)
    leaves = [level.at[1, 0].multiply(100.0) for level in learner.replay.levels]  # one environment of the second device
    learner = learner._replace(replay=learner.replay._replace(levels=tuple(leaves)))

    def weights(learner: Any) -> Any:
        one = lambda carry, now: (carry, (now[1], jnp.full(now[1][0].shape[0], jnp.nan)))  # noqa: E731
        return setup.scan_updates(learner, one, (), lambda _, draw: (draw.weight, draw.row, draw.env))[2]

    got, row, env = jax.vmap(weights, axis_name="d")(learner)  # type: ignore[call-overload]
    levels = np.asarray(learner.replay.levels[0]).reshape(2, agent.num_envs, -1)
    chance = np.stack([levels[d][env[d], row[d]] / levels[d].sum() for d in range(2)])
    np.testing.assert_allclose(got, chance.min((0, 2), keepdims=True) / chance, rtol=1e-4)
    assert (got[0] != got[1]).any()


def p_length(capacity: int, rows_per_add: int) -> int:
    return -(-capacity // rows_per_add) * rows_per_add


def filled(p: Program, rows_per_add: int, adds: int, num_envs: int = ENVS) -> PrioritisedState:
    state = p.replay.init(EXAMPLE)
    for i in range(adds):
        state = p.add(state, numbered_rows(i * rows_per_add, rows_per_add, num_envs), np.arange(num_envs))
    return state


def weighed(state: PrioritisedState, leaves: np.ndarray) -> PrioritisedState:
    """Return the state with other leaves, [lanes, entries]."""
    levels, below = [], leaves.astype(np.float32)
    for level in state.levels:
        level = np.zeros(level.shape, np.float32)
        level.reshape(level.shape[0], -1)[:, : below.shape[1]] = below
        levels.append(jnp.asarray(level))
        below = level.sum(-1)
    return state._replace(levels=tuple(levels))


@pytest.mark.parametrize("num_envs, capacity", [(1, 100), (3, 30), (11, 9)])
def test_rows_are_drawn_in_proportion(num_envs: int, capacity: int) -> None:
    p = program(capacity, 3, 0, 1, num_envs)
    state, rng = filled(p, 3, 2 * capacity // 3, num_envs), np.random.default_rng(capacity)
    leaves = np.zeros((num_envs, capacity + 2))
    leaves[:, :capacity] = rng.exponential(size=(num_envs, capacity)) ** 3 * (rng.random((num_envs, capacity)) < 0.7)
    state = weighed(state, leaves)
    counts = np.zeros_like(leaves)
    for i in range(100):
        draw, _ = p.look(state, jax.random.key(i), 400)
        np.add.at(counts, (np.asarray(draw.env), np.asarray(draw.row)), 1)
    assert counts[leaves == 0].sum() == 0
    often = (leaves / leaves.sum() * counts.sum() > 10) & (leaves > 0)
    rest = [x[~often].sum() for x in (counts, leaves)]
    observed, expected = (np.append(x[often], r) for x, r in zip((counts, leaves), rest, strict=True))
    assert often.sum() > 20
    assert scipy.stats.chisquare(observed, expected / expected.sum() * observed.sum()).pvalue > 1e-3


def test_a_batch_is_stratified() -> None:
    """With equal leaves and one row per stratum, every row is drawn about once."""
    p = program(64, 8, 0, 0, 1)
    state = weighed(filled(p, 8, 8, 1), np.ones((1, 64)))
    draw, _ = p.look(state, KEY(), 64)
    np.testing.assert_array_equal(np.sort(np.asarray(draw.row)), np.arange(64))


@settings(max_examples=30, deadline=None)
@given(
    leaves=st.lists(
        st.one_of(st.just(0.0), st.floats(1e-4, 1e-3), st.floats(1.0, 2.0), st.just(1e10)),
        min_size=1,
        max_size=100,
    ),
    seed=st.integers(0, 10**6),
)
def test_what_counts_nothing_is_never_drawn(leaves: list[float], seed: int) -> None:
    """For any rounding of the sums: leaves of 1e10 next to leaves of 1e-4, and rows that were never written."""
    p = program(100, 3, 0, 1, 1)
    state = weighed(p.replay.init(EXAMPLE), np.array(leaves)[None])
    draw, _ = p.look(state, jax.random.key(seed), 64)
    row = np.asarray(draw.row)
    assert draw.valid.all() == any(leaves) and draw.valid.any() == any(leaves)
    if any(leaves):
        assert (row < len(leaves)).all() and all(leaves[i] > 0 for i in row)
        assert np.isfinite(draw.weight).all() and float(draw.weight.max()) == 1
    else:
        assert not draw.weight.any()


def draw_of(rows: list[int], envs: list[int] | None = None) -> Draw:
    size = len(rows)
    return Draw(jnp.array(rows), jnp.array(envs or [0] * size), jnp.ones(size), jnp.ones(size, bool))


def test_priorities_that_are_none() -> None:
    """Negative priorities become 0, and infinity the largest value.

    NaN has no effect. For a row drawn twice the larger one counts.
    """
    p = program(20, 4, 0, 1, 1)
    state = filled(p, 4, 5, 1)
    state = weighed(state, np.full((1, 19), 2.0))
    draw = draw_of([3, 4, 5, 6, 6, 7, 7])
    after = p.update(state, draw, jnp.array([-5.0, jnp.inf, jnp.nan, 3.0, 1.0, jnp.nan, 4.0]))
    expected = np.full(19, 2.0)
    expected[3:8] = [leaf(0.0), leaf(LARGEST), 2.0, leaf(3.0), leaf(4.0)]
    np.testing.assert_allclose(np.asarray(after.levels[0]).reshape(-1)[:19], expected, rtol=1e-5)
    assert float(after.highest[0]) == pytest.approx(leaf(LARGEST), rel=1e-5)
    zero = p.update(state, draw_of(list(range(19)) * 2), jnp.zeros(38))
    assert p.look(zero, KEY(), 32)[0].valid.all()  # some row can always be drawn
    invalid = p.update(state, draw._replace(valid=jnp.zeros(7, bool)), jnp.ones(7))
    assert_bit_equal(invalid, state)


def test_rows_that_cannot_be_drawn_get_no_priority() -> None:
    """The draw is older than the rows that have replaced its rows."""
    p = program(20, 4, 0, 3, 1)
    state = filled(p, 4, 7, 1)
    empty = np.flatnonzero(np.asarray(state.levels[0]).reshape(-1)[:20] == 0)
    assert {5, 6, 7} <= set(empty.tolist())  # the three newest, 25 to 27
    after = p.update(state, draw_of(empty.tolist()), jnp.full(len(empty), 9.0))
    assert_bit_equal(after, state)


@pytest.mark.parametrize("parts", [([0, 1], [2]), ([2], [0], [1])], ids=["in order", "in any order"])
def test_a_round_may_come_in_parts(parts: tuple[list[int], ...]) -> None:
    """The state is then that of one add.

    Before the last part, neither the round's rows nor the rows that it overwrites can be drawn.
    """
    p = program(10, 4, 1, 1)
    whole = in_parts = p.replay.init(EXAMPLE)
    stored: deque[tuple[int, np.ndarray]] = deque(maxlen=10)
    for i in range(6):
        rows = numbered_rows(4 * i, 4)
        for part in parts:
            in_parts = p.add(in_parts, jax.tree.map(lambda x, part=part: x[:, part], rows), np.array(part) + ENVS)
            if part is not parts[-1]:
                left = [*stored][max(0, len(stored) + 4 - 12) :][1:-1]
                allowed = {(number % 12, env) for number, valid in left for env in range(ENVS) if valid[env]}
                entries = np.asarray(in_parts.levels[0]).reshape(ENVS, -1)
                assert {(int(row), int(env)) for env, row in np.argwhere(entries > 0)} == allowed
        stored.extend(zip(range(4 * i, 4 * i + 4), rows.valid, strict=True))
        whole = p.add(whole, rows, ALL)
        assert_bit_equal(in_parts, whole)


def test_a_device_may_hold_a_share_of_the_environments() -> None:
    """Split along ``env_axes``, each part draws from its lanes."""
    p = program(10, 4, 1, 1)
    state = filled(p, 4, 5)
    cut = lambda x, axis: jnp.take(x, jnp.array([1, 2]), axis)  # noqa: E731
    ring = state.ring._replace(
        **{name: jax.tree.map(partial(cut, axis=axis), getattr(state.ring, name)) for name, axis in RING.items()}
    )
    share = PrioritisedState(ring, tuple(cut(x, 0) for x in state.levels), cut(state.highest, 0))
    share = p.add(share, jax.tree.map(lambda x: x[:, 1:], numbered_rows(20, 4)), np.array([2, 3]))
    alone = p.add(state, numbered_rows(20, 4), ALL)
    for part, all_ in zip(share.levels, alone.levels, strict=True):
        np.testing.assert_array_equal(part, all_[1:])
    draw, row = p.look(share, KEY(), 64)
    np.testing.assert_array_equal(row.name[:, 1], draw.env + 1)


def test_each_device_has_the_trees_of_its_environments() -> None:
    sizes = {"num_envs": ENVS, "batch_size": 24, "buffer_size": 240}
    agent = small_dqn(probes.truncation(), replay=Prioritized(), **sizes)
    state = jax.eval_shape(agent.init, KEY())
    axes = env_axes(agent, state).learner.replay
    assert ({*axes.levels}, axes.highest, axes.ring.valid) == ({0}, 0, 1)
    assert agent.spec["settings"]["replay"] == {"name": "prioritized", "exponent": 0.6, "importance_exponent": 0.4}
    assert "replay" not in small_dqn(probes.truncation()).spec["settings"]


def trees(capacity: int, num_envs: int, rows_per_add: int, /, *, before: int, after: int) -> Replay:
    """Build a replay that a spec can name."""
    return prioritised_replay()(capacity, num_envs, rows_per_add, before=before, after=after)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "asked"), [("dqn", {"replay": "prioritized"}), ("sac", {"replay": trees})])
def test_devices_learn_from_their_own_trees(algorithm: str, asked: dict[str, Any]) -> None:
    """Two devices under shard_map: after some updates each node is still the sum of its children, in every lane."""
    agent = data_parallel(small(algorithm, "tests.helpers.probes:truncation", **asked), 2)
    step, state = jit(agent.step), agent.init(KEY())
    for _ in range(3):
        state, metrics = step(state)
    assert np.isfinite(float(metrics["losses/td_loss"].sum))
    rows, nodes = (np.asarray(level) for level in state.learner.replay.levels)
    np.testing.assert_allclose(nodes[:, 0, : rows.shape[1]], rows.sum(-1), rtol=1e-6)
    assert all(len(np.unique(lane)) > 3 for lane in rows)  # priorities were written in all of them


@pytest.mark.slow
def test_states_of_different_age_side_by_side() -> None:
    p = program(10, 4, 1, 1)
    young, old = filled(p, 4, 2), filled(p, 4, 5)
    both = jax.tree.map(lambda *x: jnp.stack(x), young, old)

    def step(state: Any, key: Any) -> Any:
        state = p.replay.add(state, jax.tree.map(jnp.asarray, numbered_rows(100, 4)), jnp.arange(ENVS))
        draw = p.replay.draw(state, key, 16)
        return draw, p.replay.update(state, draw, jnp.arange(16.0))

    keys = jax.random.split(KEY(), 2)
    together = jit(jax.vmap(step))(both, keys)
    for i, state in enumerate((young, old)):
        assert_bit_equal(jax.tree.map(lambda x, i=i: x[i], together), jit(step)(state, keys[i]))


def test_exponents_of_zero() -> None:
    """α = 0 gives all rows equal priorities, β = 0 gives all draws equal weights."""
    p = program(10, 4, 1, 1, priority_exponent=0.0)
    state = filled(p, 4, 5)
    draw, _ = p.look(state, KEY(), 16)
    np.testing.assert_array_equal(p.update(state, draw, jnp.arange(16.0)).levels[0], state.levels[0])
    p = program(10, 4, 1, 1, importance_exponent=0.0)
    state = p.update(state, draw, jnp.arange(16.0))
    np.testing.assert_array_equal(p.look(state, KEY(), 16)[0].weight, np.ones(16))


def test_what_does_not_fit_is_refused() -> None:
    for name in ("priority_exponent", "importance_exponent"):
        for value in (-0.1, 1.5, float("nan")):
            with pytest.raises(ValueError, match=rf"^{name}=.* must be a number in \[0, 1\]"):
                prioritised_replay(**{name: value})
    with pytest.raises(ValueError, match=r"^capacity=2 must be an integer >= 3"):
        prioritised_replay()(2, 3, 4, before=1, after=1)
    p = program(10, 4, 1, 1)
    with pytest.raises(ValueError, match=r"priorities has shape \(2, 3\) and must have one number for each of the draw's \(2,\)"):
        p.replay.update(p.replay.init(EXAMPLE), draw_of([1, 2]), jnp.zeros((2, 3)))


# ------------------------------------------------------------------------------------------------------------------------ cost

CAPACITY = 12_345
NODES = -(-CAPACITY // FANOUT)
"""Sizes that occur nowhere else in the program."""


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [None, 2])
def test_neither_ring_nor_tree_is_ever_copied(num_seeds: int | None) -> None:
    """In a compiled scan of DQN's step, which draws, reads and updates in its scan over gradient steps."""
    sizes = {"num_envs": 1, "rollout_length": 1, "batch_size": 8, "replay_ratio": 16, "buffer_size": CAPACITY}
    agent = small_dqn(probes.truncation(), replay=Prioritized(), **sizes)
    init, step = agent.init, agent.step
    if num_seeds is not None:
        init, step = (lambda key: jax.vmap(agent.init)(jax.random.split(key, num_seeds))), jax.vmap(agent.step)
    loop = jax.jit(lambda state: jax.lax.scan(lambda s, _: step(s), state, length=3), donate_argnums=(0,))
    compiled = loop.lower(jax.eval_shape(init, KEY())).compile(compiler_options=COMPILE_FAST)
    text = compiled.as_text()
    for shape in (f"{CAPACITY},1", f"1,{NODES},{FANOUT}"):
        assert re.search(rf"\[(?:\d+,)?{shape}[\],]", text)
        assert not re.findall(rf"\[(?:\d+,)?{shape}[^=]*copy(?:-start)?\(", text)
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * CAPACITY  # bytes: less than the leaves


def test_rows_one_by_one_copy_no_tree() -> None:
    """In a compiled scan that adds a row, draws and updates directly, like a loop without gradient steps."""
    p = prioritised_replay()(CAPACITY, 1, 1, before=0, after=1)

    def once(state: PrioritisedState, key: jax.Array) -> tuple[PrioritisedState, jax.Array]:
        state = p.add(state, jax.tree.map(lambda x: x[None, None], EXAMPLE), jnp.arange(1))
        draw = p.draw(state, key, 8)
        return p.update(state, draw, p.take(state, draw, 1).number.astype(jnp.float32)), draw.weight

    state, keys = jax.eval_shape(p.init, EXAMPLE), jax.random.split(KEY(), 3)
    text = jax.jit(lambda state: jax.lax.scan(once, state, keys), donate_argnums=0).lower(state).compile().as_text()
    assert re.search(rf"\[1,{NODES},{FANOUT}\]", text)
    assert not re.findall(rf"\[1,{NODES},{FANOUT}\][^=]*copy(?:-start)?\(", text)
