"""Hindsight replay against a list of all rows: episodes of any length, ends, seams, resumes, and sizes that do not divide."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.parallel import env_axes
from jaxrl.replay import Replay
from jaxrl.replay.hindsight import HindsightState, hindsight_replay
from jaxrl.replay.options import Final, Future, Prioritized
from jaxrl.replay.transitions import ReplayRow, Transitions, transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.training_loop.on_chunk import Chunk
from jaxrl.training import freezing, run_iterations
from tests.helpers.agents import assert_bit_equal, run_steps, small_dqn
from tests.helpers.hosted import hosted

ENVS, BATCH = 3, 1000
ALL = np.arange(ENVS)
OFFSETS = (-1, 0, 1, 2)
EXAMPLE = ReplayRow(
    {name: jnp.zeros(2) for name in ("observation", "achieved_goal", "desired_goal")},
    jnp.int32(0),
    jnp.float32(0),
    jnp.array(False),
    jnp.array(False),
)


def compute_reward(achieved: Any, desired: Any) -> tuple[Any, Any]:
    """Reward for goals that are (row, lane), so any two differ."""
    return 1000.0 * achieved[0] + desired[0], (achieved[0] + desired[0]) % 3 == 0


def rows_from(start: int, valid: np.ndarray) -> ReplayRow:
    """Return distinct rows. Each has achieved (its number, its lane), and its desired goal is (−1, its lane)."""
    number, lane = np.meshgrid(np.arange(start, start + len(valid)), np.arange(valid.shape[1]), indexing="ij")
    named = np.stack([number, lane], -1).astype(np.float32)
    desired = np.stack([np.full_like(number, -1), lane], -1).astype(np.float32)
    obs = {"observation": named, "achieved_goal": named, "desired_goal": desired}
    return ReplayRow(obs, number.astype(np.int32), (number / 7).astype(np.float32), valid & (number % 5 == 0), valid)


class Ours(NamedTuple):
    replay: Replay
    add: Any
    mark_discontinuity: Any
    look: Any


@cache
def made(capacity: int, rows_per_add: int, strategy: str = "future", share: float = 0.5) -> Ours:
    make = hindsight_replay(uniform_replay, compute_reward, strategy=strategy, share=share)
    replay = make(capacity, ENVS, rows_per_add, before=1, after=2)

    def look(state: HindsightState, key: Any) -> Any:
        draw = replay.draw(state, key, BATCH)
        return draw, [replay.take(state, draw, offset) for offset in OFFSETS]

    return Ours(replay, *(jax.jit(f, compiler_options=COMPILE_FAST) for f in (replay.add, replay.mark_discontinuity, look)))


class Oracle:
    """All rows ever added, with the number of their episode in the lane: [rows, ENVS]."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: Any = None
        self.episode = np.zeros((0, ENVS), int)
        self.ended = np.ones(ENVS, bool)

    @property
    def count(self) -> int:
        return len(self.episode)

    def add(self, rows: ReplayRow) -> None:
        self.rows = rows if self.rows is None else jax.tree.map(lambda *x: np.concatenate(x), self.rows, rows)
        for ok in rows.valid:
            before = self.episode[-1] if self.count else np.full(ENVS, -1)
            self.episode = np.concatenate([self.episode, (before + self.ended)[None]])
            self.ended = ~ok

    def mark_discontinuity(self) -> None:
        self.ended = np.ones(ENVS, bool)
        if self.count:
            self.rows.valid[-1] = False

    def drawable(self) -> set[tuple[int, int]]:
        """Return the rows with one row before and three after: the last of a window's two rows needs a row that it reached."""
        numbers = range(max(0, self.count - self.capacity) + 1, self.count - 3)
        return {(number, lane) for number in numbers for lane in ALL.tolist() if self.rows.valid[number, lane]}

    def goals(self, number: int, lane: int, strategy: str) -> set[int]:
        mine = np.flatnonzero(self.episode[:, lane] == self.episode[number, lane]).tolist()
        reached = {n for n in mine[1:] if n >= self.count - self.capacity}
        return {"future": {n for n in reached if n > number}, "final": {mine[-1]}, "episode": reached}[strategy]

    def check(self, seen: Any, strategy: str) -> tuple[set[Any], set[Any]]:
        """Check all draws against the list. Return ``(rows drawn, (row, lane, goal) of relabelled rows)``."""
        draw, window = jax.device_get(seen)
        number, lane = window[1].action[draw.valid], draw.env[draw.valid]
        (goal, goals_lane), relabelled = draw.extras.goal[draw.valid].T, draw.extras.relabelled[draw.valid]
        np.testing.assert_array_equal(goals_lane[relabelled], lane[relabelled])
        for offset, row in zip(OFFSETS, window, strict=True):
            row, at = jax.tree.map(lambda x: x[draw.valid], row), number + offset
            stored = jax.tree.map(lambda x, at=at: x[at, lane], self.rows)
            ours = relabelled & (self.episode[at, lane] == self.episode[number, lane])
            stored.obs["desired_goal"][ours, 0] = goal[ours]
            reward, terminated = compute_reward((at + 1, lane), (goal, lane))
            ours &= stored.valid
            stored.reward[ours], stored.terminated[ours] = reward[ours], terminated[ours]
            assert_bit_equal(row, stored)
        names = zip(number.tolist(), lane.tolist(), goal.astype(int).tolist(), relabelled.tolist(), strict=True)
        taken = {(n, e, g) for n, e, g, new in names if new}
        assert taken <= {(n, e, g) for n, e, _ in taken for g in self.goals(n, e, strategy)}
        return {*zip(number.tolist(), lane.tolist(), strict=True)}, taken


SIZES = [(10, 4, "future"), (9, 1, "episode"), (7, 7, "final")]
"""(capacity, rows per add, strategy): sizes that do not divide, single rows, and an add that fills a lane."""

EPISODES = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05, 0.3, 0.7]), st.sets(st.integers(0, 12), max_size=4))
"""A seed, the share of invalid rows, and the adds after which the environments begin anew."""


@pytest.mark.parametrize("capacity, rows_per_add, strategy", SIZES)
@settings(max_examples=6, deadline=None)
@given(episodes=EPISODES)
def test_goals_are_of_the_same_episode(capacity: int, rows_per_add: int, strategy: str, episodes: Any) -> None:
    """After every add, until the ring has wrapped twice: each row that can be drawn, and only goals of its episode.

    Rewards and ends in the whole window follow from these goals.
    """
    seed, share, seams = episodes
    ours, oracle, rng = made(capacity, rows_per_add, strategy), Oracle(capacity), np.random.default_rng(seed)
    state = ours.replay.init(EXAMPLE)
    for i in range(2 * capacity // rows_per_add + 3):
        rows = rows_from(oracle.count, rng.random((rows_per_add, ENVS)) >= share)
        state = ours.add(state, rows, ALL)
        oracle.add(jax.tree.map(np.copy, rows))
        if i in seams:
            state = ours.mark_discontinuity(state)
            oracle.mark_discontinuity()
        drawn, _ = oracle.check(ours.look(state, jax.random.key(seed % 1000 + i)), strategy)
        assert drawn == oracle.drawable()


def filled(ours: Ours, oracle: Oracle, valid: np.ndarray, rows_per_add: int) -> HindsightState:
    state = ours.replay.init(EXAMPLE)
    for start in range(0, len(valid), rows_per_add):
        rows = rows_from(start, valid[start : start + rows_per_add])
        state = ours.add(state, rows, ALL)
        oracle.add(rows)
    return state


def ends_at(length: int, *invalid: int) -> np.ndarray:
    valid = np.ones((length, ENVS), bool)
    valid[[*invalid]] = False
    return valid


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_every_goal_of_the_episode_is_taken(strategy: str) -> None:
    """The first episode began before the stored rows, and the last one continues after them."""
    ours, oracle = made(11, 3, strategy), Oracle(11)
    state = filled(ours, oracle, ends_at(24, 17, 19), 3)
    drawn, taken = oracle.check(ours.look(state, jax.random.key(1)), strategy)
    assert drawn == {(n, lane) for n in (14, 15, 16, 18, 20) for lane in ALL}
    assert taken == {(n, lane, goal) for n, lane in drawn for goal in oracle.goals(n, lane, strategy)}


@pytest.mark.slow
def test_each_later_state_is_as_likely_and_so_is_each_share() -> None:
    ours, oracle = made(10, 4), Oracle(10)
    state = filled(ours, oracle, ends_at(12, 10), 4)  # reset rows: 10; stored: 2 to 11
    draw, window = jax.device_get(ours.look(state, jax.random.key(0)))
    at_three = draw.valid & (window[1].action == 3)
    goals = draw.extras.goal[at_three, 0]
    counts = np.array([(goals == goal).sum() for goal in range(4, 11)])
    assert counts.sum() == at_three.sum() > 100 and np.ptp(counts) < 6 * np.sqrt(counts.mean())
    assert abs(draw.extras.relabelled.mean() - 0.5) < 0.06


def test_an_episode_may_be_longer_than_its_lane() -> None:
    ours, oracle = made(9, 1), Oracle(9)
    state = filled(ours, oracle, ends_at(40, 38), 1)
    drawn, taken = oracle.check(ours.look(state, jax.random.key(0)), "future")
    assert {n for n, _ in drawn} == {32, 33, 34, 35, 36} and {goal for *_, goal in taken} == {33, 34, 35, 36, 37, 38}


def test_rows_are_numbered_round_32_bits() -> None:
    ours, valid = made(10, 4), ends_at(24, 7, 16)
    young = old = ours.replay.init(EXAMPLE)
    old = old._replace(number=old.number + jnp.int32(2**31 - 10))
    for start in range(0, 24, 4):
        young, old = (ours.add(state, rows_from(start, valid[start : start + 4]), ALL) for state in (young, old))
        (draw, _), (same, _) = (ours.look(state, jax.random.key(start)) for state in (young, old))
        found = np.asarray(draw.valid)
        assert_bit_equal(*(jax.tree.map(lambda x, found=found: x[found], x) for x in (draw, same)))
    assert (old.number < 0).all() and found.any()


@pytest.mark.parametrize("parts", [([0, 1], [2]), ([2], [0], [1])], ids=["in order", "in any order"])
def test_a_round_may_come_in_parts(parts: tuple[list[int], ...]) -> None:
    """The state is then that of one add. Before the last part, draws have goals of their episodes too."""
    ours, oracle = made(10, 4, "episode"), Oracle(10)
    whole = in_parts = ours.replay.init(EXAMPLE)
    valid = np.random.default_rng(0).random((40, ENVS)) > 0.2
    for start in range(0, 40, 4):
        rows = rows_from(start, valid[start : start + 4])
        for part in parts:
            if part is not parts[0] and start:
                draw, (_, row, *_) = jax.device_get(ours.look(in_parts, jax.random.key(start)))
                for i in np.flatnonzero(draw.valid):
                    number, goal = int(row.action[i]), int(draw.extras.goal[i, 0])
                    episode = np.concatenate([[0], np.cumsum(~valid[:, draw.env[i]])])  # of row n: the number of ends before it
                    assert start - 10 <= number < start and episode[number] == episode[goal] and goal >= start - 12
            in_parts = ours.add(in_parts, jax.tree.map(lambda x, part=part: x[:, part], rows), np.array(part) + ENVS)
        whole = ours.add(whole, rows, ALL)
        assert_bit_equal(in_parts, whole)
        oracle.add(rows)
    oracle.check(ours.look(whole, jax.random.key(0)), "episode")


def test_returns_of_several_steps_are_those_of_one_goal() -> None:
    """r₀ + γ·r₁ for the new goal, and nothing after the row that reaches it."""
    ours, oracle = made(11, 3, "future", 1.0), Oracle(11)
    state = filled(ours, oracle, ends_at(24, 17, 19), 3)

    @partial(jax.jit, compiler_options=COMPILE_FAST)
    def sample(key: Any) -> tuple[Any, Transitions]:
        draw = ours.replay.draw(state, key, BATCH)
        return draw, transitions(ours.replay, state, draw, 0.5, 2)

    draw, batch = jax.device_get(sample(jax.random.key(0)))
    stopped = 0
    for i in np.flatnonzero(draw.valid):
        number, lane = int(batch.action[i]), int(draw.env[i])
        goal = (int(draw.extras.goal[i, 0]), lane)
        (first, reached), (second, again) = (compute_reward((number + k, lane), goal) for k in (1, 2))
        goes_on = oracle.rows.valid[number + 1, lane] and not reached
        stopped += reached
        steps = 1 + goes_on
        assert batch.reward[i] == first + (0.5 * second if goes_on else 0)
        assert batch.discount[i] == (0 if reached or (goes_on and again) else 0.5**steps)
        assert batch.next_inputs.obs["observation"][i].tolist() == [number + steps, lane]
        for inputs in (batch.inputs, batch.next_inputs):
            assert inputs.obs["desired_goal"][i].tolist() == [*goal]
    assert 0 < stopped < draw.valid.sum()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^strategy='last' must be one of 'future', 'final', 'episode'$"):
        hindsight_replay(uniform_replay, compute_reward, strategy="last")
    with pytest.raises(ValueError, match=r"^share=1.5 is not allowed: it must be a number in \[0, 1\]$"):
        hindsight_replay(uniform_replay, compute_reward, share=1.5)
    ours = made(10, 4)
    state = ours.replay.init(EXAMPLE)
    draw, _ = ours.look(state, jax.random.key(0))
    assert not draw.valid.any()
    with pytest.raises(ValueError, match=r"^offset=3 must be from -1 to 2: build this replay with a larger before or after"):
        ours.replay.take(state, draw, 3)
    with pytest.raises(ValueError, match="takes 4 rows at a time, not 3"):
        ours.replay.add(state, rows_from(0, ends_at(3)), ALL)
    with pytest.raises(ValueError, match="must be consecutive environments"):
        ours.replay.add(state, rows_from(0, ends_at(4)), np.array([2, 1, 0]))


# ---------------------------------------------------------------------------------------------------------------- in an algorithm

SMALL = {"num_envs": 2, "rollout_length": 4, "batch_size": 8, "n_step": 2, "buffer_size": 64, "learning_starts": 16}


def test_a_setting_of_every_algorithm_with_replay() -> None:
    """It is stored in the spec only if it is set. On several devices, lanes stay with their environments."""
    agent = small_dqn("jaxrl:BitFlip?n=4", **SMALL, hindsight=Final(share=0.25))
    assert agent.spec["settings"]["hindsight"] == {"name": "final", "share": 0.25}
    assert jaxrl.build(agent.spec).spec == agent.spec
    assert "hindsight" not in small_dqn("jaxrl:BitFlip?n=4", **SMALL).spec["settings"]
    state = jax.eval_shape(agent.init, jax.random.key(0))
    axes = env_axes(agent, state).learner.replay
    assert (axes.first, axes.episode, axes.number, axes.ended, axes.replay.valid) == (1, 0, 0, 0, 1)


@pytest.mark.parametrize(
    "env, settings, message",
    [
        (
            "CartPole-v1",
            {"hindsight": "future"},
            "^hindsight='future' needs a goal environment, with compute_reward, but gymnax:CartPole-v1 is not one: its "
            "observations must be a Dict of observation, achieved_goal and desired_goal",
        ),
        (
            "jaxrl:BitFlip|flatten_observation",
            {"hindsight": "final"},
            r"jaxrl:BitFlip\|flatten_observation is not one: .* the wrappers flatten_observation and select_observation remove",
        ),
        (
            "jaxrl:BitFlip|action_repeat(2)",
            {"hindsight": "final"},
            "the wrapper action_repeat removes it, because it sums rewards",
        ),
        (
            "jaxrl:BitFlip",
            {"hindsight": "future", "buffer_size": 8},
            r"^buffer_size=8 is too small: .* n_step \+ 3 = 5 rows of each environment \(10\)$",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(env: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_dqn(env, **{**SMALL, **settings})


@pytest.mark.slow
def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    agent = small_dqn("jaxrl:BitFlip?n=4", **SMALL, hindsight="episode")
    half, _ = run_steps(agent, agent.init(jax.random.key(0)), 9)  # the ring of 32 rows per lane has wrapped
    jaxrl.save(tmp_path, half, 9)
    restored, _ = jaxrl.restore(tmp_path, jax.eval_shape(agent.init, jax.random.key(0)))
    assert_bit_equal(restored, half)
    (whole, metrics), (again, same) = (run_steps(agent, state, 3) for state in (half, restored))
    assert_bit_equal((again, same), (whole, metrics))
    assert (np.asarray(whole.learner.replay.number) == 12 * 4 + 16 / 2).all()


@pytest.mark.slow
def test_what_a_run_learnt_in_hindsight_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its agent is built again on an environment with known spaces only."""
    agent = small_dqn("jaxrl:BitFlip?n=4", **SMALL, hindsight="future")
    out = tmp_path / "run"
    jaxrl.run(agent, 40, seeds=1, out=out, eval_every=1, eval_episodes=2, quiet=True, tensorboard=False)
    obs = {name: np.array([0, 1, 0, 1], np.int8) for name in ("observation", "achieved_goal", "desired_goal")}
    for which in ("best", "last"):
        assert jaxrl.load_policy(out, which=which)(obs) in range(4)
    assert main(["eval", str(out), "--episodes", "2"]) == 0
    assert "BitFlip" in capsys.readouterr().out


CAPACITY = 12_345
"""A size that occurs nowhere else in the program."""


@pytest.mark.slow
def test_neither_ring_nor_table_is_copied() -> None:
    """In the compiled scan of a step: the cost of a draw does not depend on the capacity."""
    sizes = {"num_envs": 1, "rollout_length": 1, "batch_size": 8, "learning_starts": 10, "buffer_size": CAPACITY}
    agent = small_dqn("jaxrl:BitFlip?n=4", **sizes, hindsight="episode")
    loop = jax.jit(lambda state: jax.lax.scan(lambda s, _: agent.step(s), state, length=3), donate_argnums=0)
    compiled = loop.lower(jax.eval_shape(agent.init, jax.random.key(0))).compile(compiler_options=COMPILE_FAST)
    text = compiled.as_text()
    for entries in (CAPACITY, CAPACITY + 1):
        assert f"[{entries},1" in text
        assert not re.findall(rf"\[{entries},1[^=]*copy(?:-start)?\(", text)
    assert compiled.memory_analysis().temp_size_in_bytes < CAPACITY


# ---------------------------------------------------------------------------------------------------------------- frozen seeds

BOTH: dict[str, Any] = {"hindsight": Future(), "replay": Prioritized(), "buffer_size": 4 * 200}
"""Settings with a buffer that no run here fills, and both kinds of tables."""


def wild(state: Any) -> Any:
    hyperparams = state.learner.hyperparams
    rates = jnp.full_like(hyperparams.learning_rate, jnp.inf)
    return state._replace(learner=state.learner._replace(hyperparams=hyperparams._replace(learning_rate=rates)))


def without_rows(replay: HindsightState) -> HindsightState:
    ring = replay.replay.ring._replace(records=(), valid=())
    return replay._replace(replay=replay.replay._replace(ring=ring))


@pytest.mark.slow
def test_of_a_frozen_seed_everything_but_the_rows_stands_still() -> None:
    agent = small_dqn("jaxrl:BitFlip?n=3", **BOTH)

    def run(key: Any) -> Any:
        before = wild(agent.init(key))
        after, alive = run_iterations(freezing(agent), (before, jnp.array(True)), 3)[0]
        return before, after, alive, agent.step(before)[0]

    before, after, alive, broken = jax.jit(run, compiler_options=COMPILE_FAST)(jax.random.key(0))
    assert not alive
    assert_bit_equal(without_rows(after.learner.replay), without_rows(before.learner.replay))
    moved = [np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (broken.learner.replay, before.learner.replay)), strict=True)]
    assert sum(moved) > 6, "what broke it had moved tables and priorities"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["pure", "host"])
def test_a_seed_that_is_revived_goes_on_behind_a_seal(where: str) -> None:
    """Its rows are numbered in order, each belongs to its episode, and the newest row before the seal has no successor.

    The other seed is not affected.
    """
    env = jaxrl.make_env("jaxrl:BitFlip?n=3")
    agent = small_dqn(hosted(env)._replace(compute_reward=env.compute_reward) if where == "host" else env, **BOTH)
    warmup, newest = agent.algorithm.warmup_iterations, list[int]()

    def calm(chunk: Chunk) -> Any:
        if chunk.iteration != warmup + 4:
            return None
        assert chunk.record["diverged"].tolist() == [False, True]
        newest.append(2 * int(chunk.states.iteration[1]) - 1)
        learner = chunk.states.learner
        rates = np.full(2, 1e-3, np.float32)
        return chunk.states._replace(learner=learner._replace(hyperparams=learner.hyperparams._replace(learning_rate=rates)))

    settings: dict[str, Any] = {"seeds": [3, 4], "chunk_iterations": 2, "eval_every": 0, "quiet": True}
    steps = (warmup + 8) * agent.steps_per_iteration
    states, history = jaxrl.run(agent, steps, hyperparams={"learning_rate": [1e-3, 1e38]}, on_chunk=calm, **settings)
    assert not history["diverged"][-1].any()
    sealed = []
    for seed in range(2):
        replay: HindsightState = jax.tree.map(lambda x, seed=seed: np.asarray(x[seed]), states.learner.replay)
        size = int(replay.replay.ring.size)
        rows = jax.tree.map(lambda x, size=size: np.asarray(x[:size]), replay.replay.ring.records.unpack())
        np.testing.assert_array_equal(np.diff(rows.number, axis=0), 1)
        np.testing.assert_array_equal(np.diff(rows.episode, axis=0), ~rows.valid[:-1])
        begins = np.concatenate([np.ones((1, 4), bool), ~rows.valid[:-1]])
        t, lane = np.nonzero(begins)
        np.testing.assert_array_equal(replay.first[rows.episode[t, lane], lane], rows.number[t, lane])
        np.testing.assert_array_equal(replay.number, size)
        sealed.append(np.argwhere(rows.row.valid & ~rows.valid)[:, 0].tolist())
    assert sealed[0] == [] and {*sealed[1]} == {*newest}
