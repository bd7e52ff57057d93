"""Games of pgx: the contract, whose reward a reward is, and equality with jaxrl's own games."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.envs import check_env
from jaxrl.envs.backends import pgx
from jaxrl.envs.checks.check_env import COMPILE_FAST
from tests.helpers.agents import small

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


@pytest.mark.parametrize(
    "name",
    [
        "tic_tac_toe",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("kuhn_poker", "2048", "backgammon", "animal_shogi")),
    ],
)
def test_games_keep_the_contract(name: str) -> None:
    env: Any = jaxrl.make_env(f"pgx:{name}")
    assert env.players == (1 if name == "2048" else 2) and name in pgx.list_names()
    check_env(env, steps=20)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("tic_tac_toe", "TicTacToe"), pytest.param("connect_four", "ConnectFour", marks=pytest.mark.slow)]
)
def test_games_equal_those_of_jaxrl(theirs: str, ours: str) -> None:
    """Move by move, in random games: boards, masks, rewards and ends. The first player has another number in half of them."""
    both: list[Any] = [jaxrl.make_env(f"pgx:{theirs}"), jaxrl.make_env(f"jaxrl:{ours}")]
    resets = [jit(jax.vmap(partial(lambda env, key: env.reset(key, ()), env))) for env in both]
    steps = [jit(jax.vmap(partial(lambda env, state, action: env.step(KEY(), state, action, ()), env))) for env in both]
    keys, rng = jax.random.split(KEY(), 64), np.random.default_rng(0)
    states, observations = zip(*(reset(keys) for reset in resets), strict=True)
    first = np.asarray(observations[0]["player"])
    assert 10 < first.sum() < 54
    alive = np.ones(64, bool)
    for _ in range(42):
        mask = np.asarray(observations[0]["action_mask"], bool)
        np.testing.assert_array_equal(mask[alive], np.asarray(observations[1]["action_mask"], bool)[alive])
        np.testing.assert_array_equal(*(np.asarray(obs["observation"])[alive] for obs in observations))
        np.testing.assert_array_equal((np.asarray(observations[0]["player"]) ^ first)[alive], observations[1]["player"][alive])
        action = jnp.asarray(np.argmax(rng.random(mask.shape) * (mask + 1e-9), 1), jnp.int32)
        states, reached = zip(*(step(state, action) for step, state in zip(steps, states, strict=True)), strict=True)
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(*(np.asarray(getattr(each, name))[alive] for each in reached))
        observations = [each.obs for each in reached]
        alive &= ~np.asarray(reached[0].terminated)
        if not alive.any():
            break
    assert not alive.any()


def test_a_forbidden_move_loses() -> None:
    env: Any = jaxrl.make_env("pgx:tic_tac_toe")
    state, _ = env.reset(KEY(), ())
    for expected in (0.0, -1.0):
        state, reached = env.step(KEY(), state, jnp.int32(4), ())
        assert float(reached.reward) == expected and bool(reached.terminated) == (expected != 0)


def test_an_agent_plays_chance_and_hidden_cards() -> None:
    """Kuhn poker: rewards of both players, and hands that the other does not see."""
    agent = small("pqn", "pgx:kuhn_poker")
    _, metrics = jit(agent.step)(jit(agent.init)(KEY()))
    assert abs(float(metrics["charts/episodic_return"])) <= 2 and np.isfinite(float(metrics["losses/td_loss"]))


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("pgx:bridge_bidding", "pgx:bridge_bidding has 4 players: games have one or two"),
        ("pgx:connect_for", "connect_four"),
        ("pgx:tic_tac_toe?size=4", "size"),
    ],
)
def test_unknown_games(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jaxrl.make_env(env_id)
