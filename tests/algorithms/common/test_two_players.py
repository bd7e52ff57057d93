"""Games of two players: what one gains the other loses, in every kind of return."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.replay.transitions import ReplayRow, transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.returns import discounts, gae, lambda_returns, n_step_returns, vtrace
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.training import evaluate_pure, run_iterations
from jaxrl.types import StepInput
from tests.helpers.agents import algorithms, small
from tests.helpers.hosted import hosted
from tests.helpers.probes import two_players

GAMMA = 0.9
PLAYER = np.array([0, 1, 1, 0, 0, 0])
"""Player to move in each row of a game of four moves, in the row of its reset, and in the first row of the next game."""
REWARD = np.array([1.0, 2.0, -3.0, 4.0, 0.0])
LEARN_GAMES: tuple[str, ...] = ("ppo", "pqn", "dqn", "r2d2")


class Rows(NamedTuple):
    inputs: StepInput
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray


def rows(*, truncated: bool = False) -> Any:
    ends, column = np.arange(5) == 3, partial(np.expand_dims, axis=1)
    obs = {"player": jnp.asarray(column(PLAYER))}
    inputs = StepInput(obs, jnp.zeros((6, 1), int), jnp.zeros((6, 1)), jnp.zeros((6, 1), bool))
    flags = (ends & (not truncated), ends & truncated, np.arange(5) != 4)
    return Rows(inputs, *(column(flag) for flag in flags))


def test_discounts_change_sign_with_the_player() -> None:
    """A move of the same player follows rows 1 and 4; row 3 ends the game."""
    discount, trace = discounts(rows(), GAMMA, 0.8)
    np.testing.assert_allclose(discount[:, 0], [-GAMMA, GAMMA, -GAMMA, 0, 0])
    np.testing.assert_allclose(trace[:, 0], [0.8, 0.8, 0.8, 0, 0])
    discount, _ = discounts(rows(truncated=True), GAMMA)
    np.testing.assert_allclose(discount[:, 0], [-GAMMA, GAMMA, -GAMMA, GAMMA, 0])


def test_returns_of_a_game_by_hand() -> None:
    reward, value = (jnp.asarray(x, jnp.float32)[:, None] for x in (REWARD, [5.0, 6.0, 7.0, 8.0, 9.0]))
    game, valid = rows(), rows().valid
    last, third = 4.0, -3.0 - GAMMA * 4.0
    second = 2.0 + GAMMA * third
    wanted = [1.0 - GAMMA * second, second, third, last, 0.0]
    given = (reward, *discounts(game, GAMMA), value, valid)
    np.testing.assert_allclose(lambda_returns(*given)[:, 0], wanted, rtol=1e-6)
    two_rows = [1.0 - GAMMA * (2.0 + GAMMA * 6.0), 2.0 + GAMMA * (-3.0 - GAMMA * 7.0), third, last, 0.0]
    np.testing.assert_allclose(n_step_returns(*given, n=2)[:, 0], two_rows, rtol=1e-6)
    before = jnp.concatenate([jnp.full((1, 1), 0.1), value[:-1]])
    advantage = gae(reward, *discounts(game, GAMMA), before, value, valid)
    np.testing.assert_allclose((advantage + before * valid)[:, 0], wanted, rtol=1e-6)
    on_policy = vtrace(reward, *discounts(game, GAMMA), before, value, jnp.zeros_like(reward), valid)
    np.testing.assert_allclose(on_policy.target[:, 0], wanted, rtol=1e-6)


@pytest.mark.parametrize("n_step", [1, 2, 3, 4])
def test_returns_from_replay_by_hand(n_step: int) -> None:
    replay = uniform_replay(10, 1, 10, before=1, after=n_step)
    game = rows()
    column = lambda x: jnp.asarray(np.concatenate([x, x]))  # noqa: E731
    stored = ReplayRow(
        {"player": column(np.asarray(game.inputs.obs["player"])[:5])},
        jnp.zeros((10, 1), jnp.int32),
        column(REWARD[:, None].astype(np.float32)),
        column(game.terminated),
        column(game.valid),
    )
    state = replay.add(replay.init(jax.tree.map(lambda x: x[0, 0], stored)), stored, jnp.arange(1))
    draw = jax.jit(partial(replay.draw, batch_size=64), compiler_options=COMPILE_FAST)(state, jax.random.key(0))
    found = transitions(replay, state, draw, GAMMA, n_step)
    checked = set()
    for row, reward, discount in zip(np.asarray(draw.row) % 5, found.reward, found.discount, strict=True):
        total, factor, mover = 0.0, 1.0, PLAYER[row]
        for t in range(row, min(row + n_step, 4)):
            total += factor * (1 if PLAYER[t] == mover else -1) * REWARD[t]
            factor *= GAMMA
        reaches_end = row + n_step >= 4
        sign = 1 if PLAYER[min(row + n_step, 4)] == mover else -1
        assert reward == pytest.approx(total, rel=1e-5)
        assert discount == pytest.approx(0.0 if reaches_end else sign * factor, rel=1e-5)
        checked.add(int(row))
    assert checked >= {0, 1}


def test_the_return_of_an_episode_is_that_of_player_0() -> None:
    """On both kinds of environment: whatever player 1 gets for its last move is what player 0 loses."""
    agents = [
        jaxrl.make_ppo(env, num_envs=4, rollout_length=8, num_minibatches=1) for env in (two_players(), hosted(two_players()))
    ]
    state = agents[0].init(jax.random.key(0))
    _, metrics = jax.jit(agents[0].step, compiler_options=COMPILE_FAST)(state)
    sampler = HostSampler(agents[1], 0)
    rollout, on_host = sampler.collect(agents[1].algorithm.policy(agents[1].init(jax.random.key(0)).learner), jax.random.key(1))
    sampler.close()
    ended = np.asarray(rollout.terminated)
    assert float(on_host["charts/episodic_return"]) == pytest.approx(-np.asarray(rollout.reward)[ended].mean())
    assert -1 <= float(metrics["charts/episodic_return_min"]) <= float(metrics["charts/episodic_return_max"]) <= 1


@pytest.mark.slow
@algorithms(LEARN_GAMES, ["ppo", "a2c", "reinforce", "impala", "pqn", "dqn", "r2d2", "sac", "muzero"])
def test_both_players_learn_to_play_best(algorithm: str) -> None:
    """Player 0 gains ½ only if both choose their best moves; ``two_players`` says what happens without the sign."""
    settings: dict[str, Any] = {"gamma": GAMMA, "learning_rate": 0.02, "num_envs": 16, "rollout_length": 8}
    more: dict[str, dict[str, Any]] = {
        "dqn": {"n_step": 2, "exploration_steps": 2_000},
        "r2d2": {"exploration_steps": 2_000, "buffer_size": 1_024},
        "muzero": {"value_limit": 1.0, "rescale": None, "simulations": 8, "learning_starts": 1_024, "buffer_size": 2_048},
    }
    agent = small(algorithm, two_players(), **settings, **more.get(algorithm, {}))

    def train(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 120)
        return evaluate_pure(agent, state, key, 1).episodic_return

    returns = jax.jit(jax.vmap(train), compiler_options=COMPILE_FAST)(jax.random.split(jax.random.key(0), 4))
    np.testing.assert_array_equal(returns.ravel(), [0.5] * 4)
