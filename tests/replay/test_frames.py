"""Stacks of frames rebuilt from single frames, against the environment's stacks."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.wrappers import frame_stack
from jaxrl.replay.frames import frame_replay
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.size import replay_bytes
from jaxrl.replay.transitions import ReplayRow
from jaxrl.replay.uniform import uniform_replay
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, small_dqn

ENVS, ROWS, ADD, CAPACITY = 2, 60, 6, 40
"""The ring wraps, and its capacity is not a multiple of an add."""
ALL = np.arange(ENVS)


def history(num_frames: int, axis: int, seal_at: int) -> ReplayRow:
    """Return rows [ROWS, ENVS] with distinct stacked frames u8[2, 3]. An episode's first frame is repeated."""
    rng = np.random.default_rng(num_frames)
    ends = rng.random((ROWS, ENVS)) < 0.2
    valid = np.ones((ROWS, ENVS), bool)
    for t in range(1, ROWS):
        ends[t] &= ~ends[t - 1]
        valid[t] = ~ends[t - 1]
    valid[seal_at] = False
    frame = rng.integers(0, 256, (ROWS, ENVS, 2, 3)).astype(np.uint8)
    first = np.zeros((ROWS, ENVS), int)
    for t in range(1, ROWS):
        first[t] = np.where(valid[t - 1], first[t - 1], t)
    obs = np.concatenate(
        [frame[np.maximum(np.arange(ROWS)[:, None] - age, first), ALL] for age in range(num_frames - 1, -1, -1)], 2 + axis % 2
    )
    number = np.broadcast_to(np.arange(ROWS)[:, None], valid.shape)
    return ReplayRow(obs, number.astype(np.int32), np.zeros(valid.shape, np.float32), ends, valid)


@pytest.mark.parametrize(
    "num_frames, axis, inside", [(4, -1, uniform_replay), (2, 0, uniform_replay), (3, 1, prioritised_replay())]
)
def test_stacks_are_what_the_environment_showed(num_frames: int, axis: int, inside: Any) -> None:
    """Across ends and a seal, and until the ring has wrapped."""
    seal_at = 3 * ADD - 1
    rows = history(num_frames, axis, seal_at)
    replay = frame_replay(num_frames, inside, axis=axis)(CAPACITY, ENVS, ADD, before=1, after=2)
    state = replay.init(jax.tree.map(lambda x: jnp.asarray(x[0, 0]), rows))
    add, mark_discontinuity = (jax.jit(f, compiler_options=COMPILE_FAST) for f in (replay.add, replay.mark_discontinuity))

    @partial(jax.jit, compiler_options=COMPILE_FAST)
    def look(state: Any, key: Any) -> Any:
        draw = replay.draw(state, key, 900)
        moved = jnp.arange(900, dtype=jnp.int32) % 4 - 1
        return draw, [replay.take(state, draw, offset) for offset in (-1, 0, 1, 2)], replay.take(state, draw, moved)

    stored = 0
    for start in range(0, ROWS, ADD):
        part = jax.tree.map(lambda x, start=start: x[start : start + ADD], rows)
        if start <= seal_at < start + ADD:  # only because of the seal
            part.valid[seal_at - start] = True
        state = add(state, jax.tree.map(jnp.asarray, part), ALL)
        if start <= seal_at < start + ADD:
            state = mark_discontinuity(state)
            rows.valid[seal_at] = False
        stored = start + ADD
        draw, parts, moved = jax.device_get(look(state, jax.random.key(start)))
        found, number = draw.valid, parts[1].action
        whole = range(max(0, stored - CAPACITY) + num_frames, stored - 2)
        allowed = {(t, e) for t in whole for e in ALL.tolist() if rows.valid[t, e]}
        assert {(int(t), int(e)) for t, e in zip(number[found], draw.env[found], strict=True)} == allowed
        for offset, taken in zip((-1, 0, 1, 2), parts, strict=True):
            np.testing.assert_array_equal(taken.obs[found], rows.obs[number[found] + offset, draw.env[found]])
        chosen = np.arange(900) % 4
        expected = np.stack([taken.obs for taken in parts])[chosen, np.arange(900)]
        np.testing.assert_array_equal(moved.obs, expected)
    assert allowed and parts[0].obs.dtype == np.uint8


@pytest.mark.slow
def test_it_learns_what_a_replay_of_whole_stacks_does() -> None:
    """The same agent on a stacked environment has bit-equal transitions for the same draws, with less memory."""
    env = frame_stack(probes.truncation(), 4)
    plain = small_dqn(env, replay=lambda *sizes, before, after: uniform_replay(*sizes, before=before + 3, after=after))
    framed = small_dqn(env, replay=frame_replay(4))
    assert replay_bytes(framed) == replay_bytes(plain) - 3 * 4 * 240
    step = [
        jax.jit(lambda key, agent=agent: agent.step(agent.init(key)), compiler_options=COMPILE_FAST) for agent in (plain, framed)
    ]
    (ours, _), (theirs, _) = (program(jax.random.key(0)) for program in step)
    assert_bit_equal(ours.learner.params, theirs.learner.params)


def test_an_agent_with_frames_can_be_rebuilt() -> None:
    made = small_dqn(frame_stack(probes.truncation(), 4), replay=frame_replay(4))
    again = jaxrl.build(made.spec, env=made.env)
    assert again.spec["parts"]["replay"] == made.spec["parts"]["replay"] and replay_bytes(again) == replay_bytes(made)


def test_observations_that_are_no_stacks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_frames=1 must be an integer >= 2"):
        frame_replay(1)
    row = ReplayRow(jnp.zeros((2, 6)), jnp.int32(0), jnp.float32(0), jnp.array(False), jnp.array(False))
    for num_frames, axis in ((4, -1), (3, 0), (2, 2)):
        replay = frame_replay(num_frames, axis=axis)(40, ENVS, ADD, before=1, after=1)
        with pytest.raises(
            ValueError, match=rf"observations of shape \[2, 6\] do not hold {num_frames} frames along axis {axis}"
        ):
            replay.init(row)
    with pytest.raises(ValueError, match="needs observations that are one array, not dict: use another replay"):
        frame_replay(2)(40, ENVS, ADD, before=1, after=1).init(row._replace(obs={"x": row.obs}))
