"""Replay of recent rows: ages of draws against the paper's formula, in agents, and invalid settings."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.options import Recent
from jaxrl.replay.recent import recent_replay
from jaxrl.replay.transitions import ReplayRow
from jaxrl.replay.uniform import uniform_replay
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, run_steps, small

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
ROWS, LANES, DRAWS = 1_000, 2, 8_192


def ages(eta: float, least: int, lanes: int = LANES) -> np.ndarray:
    """Return the ages of drawn rows, in rows of a lane since the newest that can be drawn.

    Args:
      lanes: those of a device, of the ``LANES`` of all.
    """
    replay = recent_replay(eta, least)(ROWS, LANES, ROWS, before=1, after=1)
    flat = jnp.zeros((ROWS, LANES))
    rows = ReplayRow(flat, flat.astype(jnp.int32), flat, flat > 0, flat < 1)
    state = replay.add(replay.init(jax.tree.map(lambda x: x[0, 0], rows)), rows, jnp.arange(LANES, dtype=jnp.int32))
    share = {name: jax.tree.map(lambda x: x[:, :lanes], getattr(state, name)) for name in state.env_axes}
    drawn = jit(replay.draw, static_argnums=2)(state._replace(**share), jax.random.key(0), DRAWS)
    assert drawn.valid.all() and {*np.unique(drawn.env)} == {*range(lanes)}
    return np.asarray(ROWS - 2 - drawn.row)


def test_later_draws_are_of_newer_rows() -> None:
    """Each draw is uniform over its share of the rows, so its mean age is half of that share."""
    eta, found = 0.998, ages(0.998, 1)
    share = eta ** (1000 * np.arange(DRAWS) / DRAWS)
    assert (found <= np.ceil(share * ROWS)).all()
    for part in np.split(np.arange(DRAWS), 8):
        assert found[part].mean() == pytest.approx(ROWS * share[part].mean() / 2, rel=0.1)


def test_a_number_of_rows_is_always_drawn_from() -> None:
    last = ages(0.9, 400)[-DRAWS // 4 :]
    assert last.max() < 200 and last.mean() == pytest.approx(100, rel=0.1)


def test_the_number_is_of_the_rows_of_all_devices() -> None:
    """A device with half of the lanes draws from half as many of its rows, so from rows of the same ages."""
    assert ages(0.9, 400, lanes=1)[-DRAWS // 4 :].max() == ages(0.9, 400)[-DRAWS // 4 :].max()


def test_with_one_all_rows_are_drawn_alike() -> None:
    def learnt(**settings: object) -> object:
        agent = small("dqn", probes.truncation(), **settings)
        return run_steps(agent, jit(agent.init)(jax.random.key(0)), 2)[0].learner

    assert_bit_equal(learnt(replay=Recent(eta=1.0)), learnt(replay=uniform_replay))


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="eta=0 is not allowed"):
        Recent(eta=0.0)
    with pytest.raises(ValueError, match=r"replay=Recent\(.* draws single rows, and a model with memory learns from sequences"):
        small(
            "sac", probes.truncation(), replay=Recent(), model={"core": "gru"}, critic=None, replay_ratio=1024, buffer_size=1024
        )
