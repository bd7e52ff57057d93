"""The team's value as a sum: rows of teams by hand, targets against NumPy, and what the sum can and cannot express."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.common.value_decomposition import sum_of_chosen, sum_of_reached, team_rows
from jaxrl.algorithms.pqn import PQNHyperparams, pqn_loss, targets
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.options import VDN
from jaxrl.rollout.collect import collect
from jaxrl.training import evaluate_pure, run_iterations
from tests.helpers.agents import small
from tests.helpers.teams import mortal

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
KEY = partial(jax.random.key, 0)
LAM = 0.6


def rollout_of(env: Any, rows: int = 9) -> tuple[Any, Any]:
    agent = small("pqn", env, num_envs=2, rollout_length=rows, num_minibatches=1, decomposition=VDN())
    state, lanes = agent.init(KEY()), jnp.arange(agent.num_lanes, dtype=jnp.int32)
    policy = agent.algorithm.policy(state.learner)
    found = jit(lambda actor: collect(agent.algorithm, env, policy, actor, (), lanes, KEY(), rows))(state.actor)
    return found[1], (agent, state.learner.params)


@pytest.mark.parametrize("cut", [(False, False, False), (False, True, False), (True, False, False)])
def test_rows_of_teams(cut: tuple[bool, bool, bool]) -> None:
    """Agents live 1, 3 and 2 rows, so agent 1 is the last: if it is truncated, so is the team."""
    rollout, _ = rollout_of(mortal(truncates=cut))
    team = team_rows(rollout, 3)
    np.testing.assert_array_equal(team.valid[:, 0], [1, 1, 1, 0, 1, 1, 1, 0, 1])
    np.testing.assert_array_equal(team.terminated[:, 0] | team.truncated[:, 0], [0, 0, 1, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(team.truncated[:, 1], np.array([0, 0, 1, 0, 0, 0, 1, 0, 0]) * cut[1])
    np.testing.assert_allclose(team.reward[:4, 0], [(1 + 11 + 21) / 3, (12 + 22) / 3, 13 / 3, 0], rtol=1e-6)


def test_sums() -> None:
    rollout, _ = rollout_of(mortal(truncates=(True, False, False)), 4)
    reached = jnp.arange(1.0, 25.0).reshape(4, 6)
    # Rows 1: agent 0 is cut, and the others live. 2: agent 2 terminated. 3: agent 1 terminated. 4: the reset.
    np.testing.assert_allclose(sum_of_reached(rollout, reached, 3)[:, 0], [1 + 2 + 3, 8, 0, 0])
    assert sum_of_chosen(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[True, False], [True, True]])).tolist() == [1.0, 7.0]


def test_targets_are_lambda_returns_of_the_sum() -> None:
    env = mortal(truncates=(False, True, False))
    rollout, (agent, params) = rollout_of(env)
    hp = PQNHyperparams(gamma=0.9, q_lambda=LAM)
    model = agent.algorithm.update.args[0].model
    batch, error = targets(model, params, rollout, hp, 3)
    q = np.asarray(jax.vmap(lambda inputs: model.apply(params, (), inputs)[1])(rollout.inputs)).reshape(10, 2, 3, 2)
    lives, ends, cut = (np.asarray(x).reshape(9, 2, 3) for x in (rollout.valid, rollout.terminated, rollout.truncated))
    expected = np.zeros((9, 2))
    for n in range(2):
        for t in reversed(range(9)):
            if not lives[t, n].any():
                continue
            beyond = sum(q[t + 1, n, a].max() for a in range(3) if lives[t, n, a] and not ends[t, n, a])
            goes_on = (lives[t, n] & ~ends[t, n] & ~cut[t, n]).any() and t < 8
            later = expected[t + 1, n] if goes_on else beyond
            if (lives[t, n] & ~ends[t, n]).any():
                beyond = LAM * later + (1 - LAM) * beyond
            expected[t, n] = np.asarray(rollout.reward).reshape(9, 2, 3)[t, n].mean() + 0.9 * beyond
    valid = lives.any(-1)
    np.testing.assert_array_equal(batch.valid.reshape(9, 2), valid)
    np.testing.assert_allclose(batch.target.reshape(9, 2)[valid], expected[valid], rtol=1e-4)
    chosen = np.take_along_axis(q[:9], np.asarray(rollout.action).reshape(9, 2, 3, 1), -1)[..., 0]
    total = np.where(lives, chosen, 0).sum(-1)
    np.testing.assert_allclose(error.reshape(9, 2)[valid], (expected - total)[valid], rtol=1e-3, atol=1e-3)
    loss, _ = pqn_loss(model, params, batch, None)
    np.testing.assert_allclose(loss, 0.5 * ((expected - total)[valid] ** 2).mean(), rtol=1e-3)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decomposition=VDN\(\) is for environments of several agents, and this one has one"):
        jaxrl.make_pqn("CartPole-v1", decomposition="vdn")
    with pytest.raises(ValueError, match="num_minibatches=3 must divide num_envs \\* rollout_length"):
        jaxrl.make_pqn(mortal(), decomposition=VDN(), num_envs=2, rollout_length=4, num_minibatches=3)


@pytest.mark.slow
def test_the_sum_prefers_the_safe_game() -> None:
    """Two-step game (Rashid et al. 2018, section 6.1): a sum of values finds 7 and not 8, with any of eight seeds."""
    settings = {"num_envs": 16, "rollout_length": 32, "num_minibatches": 8, "epsilon_end": 1.0, "gamma": 0.99, "anneal": False}
    agent = jaxrl.make_pqn("jaxrl:TwoStep|agent_id", decomposition=VDN(), model={"hidden_sizes": (32,)}, **settings)

    def seed(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 200)
        return evaluate_pure(agent, state, key, 2).episodic_return.mean()

    found = jit(jax.vmap(seed))(jax.random.split(KEY(), 8))
    np.testing.assert_allclose(found, [7.0] * 8)
