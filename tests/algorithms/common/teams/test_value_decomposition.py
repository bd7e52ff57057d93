"""The team's value: rows of teams by hand, sums and mixers against NumPy, targets, and what each can express."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.algorithms.common.teams.mixers import SUM, monotonic_mixer
from jaxrl.algorithms.common.teams.value_decomposition import MixedParams, TeamValue, of_first, team_rows, team_value
from jaxrl.algorithms.pqn import PQNHyperparams, pqn_loss, targets
from jaxrl.algorithms.r2d2 import r2d2_loss
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.options import QMIX, VDN
from jaxrl.replay.sequence import sequence_replay, sequences
from jaxrl.returns import bootstrap_mask
from jaxrl.rollout.autoreset import first_input, next_input
from jaxrl.rollout.collect import collect
from jaxrl.rollout.inputs import zero_invalid
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
    """Agents live 1, 3 and 2 rows, so agent 1 is the last. A row on which an agent is cut is truncated: no trace leads beyond."""
    rollout, _ = rollout_of(mortal(truncates=cut))
    team = team_rows(rollout, 3)
    np.testing.assert_array_equal(team.valid[:, 0], [1, 1, 1, 0, 1, 1, 1, 0, 1])
    np.testing.assert_array_equal(team.terminated[:, 0], np.array([0, 0, 1, 0, 0, 0, 1, 0, 0]) * (not cut[1]))
    first, last = np.array([1, 0, 0, 0, 1, 0, 0, 0, 1]) * cut[0], np.array([0, 0, 1, 0, 0, 0, 1, 0, 0]) * cut[1]
    np.testing.assert_array_equal(team.truncated[:, 1], first | last)
    np.testing.assert_allclose(team.reward[:4, 0], [(1 + 11 + 21) / 3, (12 + 22) / 3, 13 / 3, 0], rtol=1e-6)


def test_sums() -> None:
    rollout, _ = rollout_of(mortal(truncates=(True, False, False)), 4)
    reached = jnp.arange(1.0, 25.0).reshape(4, 6)
    # Rows 1: agent 0 is cut, and the others live. 2: agent 2 terminated. 3: agent 1 terminated. 4: the reset.
    np.testing.assert_allclose(TeamValue(3, SUM).reached((), rollout, reached)[:, 0], [1 + 2 + 3, 8, 0, 0])
    alive = jnp.array([True, False, True, True])
    assert TeamValue(2, SUM).chosen((), jnp.array([1.0, 2.0, 3.0, 4.0]), alive, ()).tolist() == [1.0, 7.0]


@pytest.mark.parametrize("first", [False, True])
def test_targets_are_lambda_returns_of_the_sum(first: bool) -> None:
    """Returns end at a row on which an agent is cut, with the values reached there, of this agent too."""
    env = mortal(truncates=(first, True, False))
    rollout, (agent, params) = rollout_of(env)
    hp = PQNHyperparams(gamma=0.9, q_lambda=LAM)
    model = agent.algorithm.update.args[0].model
    value = TeamValue(3, SUM)
    batch, error = targets(model, params, rollout, hp, value)
    q = np.asarray(jax.vmap(lambda inputs: model.apply(params, (), inputs)[1])(rollout.inputs)).reshape(10, 2, 3, 2)
    lives, ends, cut = (np.asarray(x).reshape(9, 2, 3) for x in (rollout.valid, rollout.terminated, rollout.truncated))
    expected = np.zeros((9, 2))
    for n in range(2):
        for t in reversed(range(9)):
            if not lives[t, n].any():
                continue
            beyond = sum(q[t + 1, n, a].max() for a in range(3) if lives[t, n, a] and not ends[t, n, a])
            goes_on = (lives[t, n] & ~ends[t, n] & ~cut[t, n]).any() and not (lives[t, n] & cut[t, n]).any() and t < 8
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
    loss, _ = pqn_loss(model, params, batch, None, value)
    np.testing.assert_allclose(loss, 0.5 * ((expected - total)[valid] ** 2).mean(), rtol=1e-3)


@pytest.mark.parametrize("decomposition", [VDN(), QMIX(4, 4)], ids=["vdn", "qmix"])
def test_sequences_have_the_targets_and_the_loss_of_rows(decomposition: Any) -> None:
    """A network whose memory changes nothing learns from sequences of teams what it learns from their rows."""
    env = mortal_state()
    agent = small("pqn", env, num_envs=2, rollout_length=9, num_minibatches=1, decomposition=decomposition)
    state, setup = jit(agent.init)(KEY()), agent.algorithm.update.args[0]
    policy, lanes = agent.algorithm.policy(state.learner), jnp.arange(6, dtype=jnp.int32)
    rollout = jit(lambda actor: collect(agent.algorithm, env, policy, actor, (), lanes, KEY(), 9))(state.actor)[1]
    hp, value, params = PQNHyperparams(gamma=0.9, q_lambda=LAM), team_value(setup), state.learner.params
    plain = setup.model
    unroll = lambda params, carry, inputs, key=None: (carry, jax.vmap(lambda row: plain.apply(params, (), row)[1])(inputs))  # noqa: E731
    with_memory, carry = plain._replace(unroll=unroll), jnp.arange(12.0).reshape(6, 2)
    rows, error = targets(plain, params, rollout, hp, value)
    sequences_of, error_of = targets(with_memory, params, rollout._replace(carry=carry), hp, value)
    for x, y in ((rows.target, sequences_of.target), (rows.valid, sequences_of.valid)):
        np.testing.assert_allclose(x.reshape(9, 2).T, y, rtol=1e-5)
    valid = np.asarray(sequences_of.valid)
    np.testing.assert_allclose(error.reshape(9, 2).T[valid], error_of[valid], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(sequences_of.carry, carry.reshape(2, 3, 2))
    np.testing.assert_array_equal(sequences_of.alive, np.asarray(rows.alive).reshape(9, 2, 3).swapaxes(0, 1))
    found, expected = (
        pqn_loss(model, params, batch, None, value) for model, batch in ((with_memory, sequences_of), (plain, rows))
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, expected)
    gradients = (
        jax.grad(lambda p, m=m, b=b: pqn_loss(m, p, b, None, value)[0])(params)
        for m, b in ((with_memory, sequences_of), (plain, rows))
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), *gradients)


def test_the_state_is_that_of_the_first_agent_alive() -> None:
    lanes = {"x": jnp.arange(12.0).reshape(6, 2), "y": jnp.arange(6)}
    found = of_first(jnp.array([[False, False, True], [False, True, True]]), lanes)
    np.testing.assert_array_equal(found["x"], [[4, 5], [8, 9]])
    np.testing.assert_array_equal(found["y"], [2, 4])


@pytest.mark.parametrize("hypernetwork_size", [0, 5])
def test_the_mixer_is_the_papers(hypernetwork_size: int) -> None:
    rng, space = np.random.default_rng(0), spaces.Box(-1.0, 1.0, (4,), np.float32)
    mixer = monotonic_mixer(space, 3, 6, hypernetwork_size)
    params = mixer.init(KEY(), np.zeros(4, np.float32))
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)
    values, state = rng.normal(size=(7, 3)), rng.normal(size=(7, 4)).astype(np.float32)
    layers = params["params"]
    assert set(layers) == {"first", "first_bias", "last", "value", "value_hidden"} | (
        {"first_hidden", "last_hidden"} if hypernetwork_size else set()
    )

    def layer(name: str, x: Any) -> Any:
        return x @ np.float64(layers[name]["kernel"]) + layers[name]["bias"]

    def weights(name: str, state: Any) -> Any:
        seen = np.maximum(layer(f"{name}_hidden", state), 0) if hypernetwork_size else state
        return np.abs(layer(name, seen))

    for q, s, found in zip(values, state, mixer.apply(params, jnp.float32(values), state), strict=True):
        hidden = q @ weights("first", s).reshape(3, 6) + layer("first_bias", s)
        hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
        expected = hidden @ weights("last", s) + layer("value", np.maximum(layer("value_hidden", s), 0))[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    slopes = jax.vmap(jax.grad(lambda q, s: mixer.apply(params, q, s)))(jnp.float32(values), state)
    assert slopes.min() >= 0 and slopes.max() > 0.1


def test_an_agent_that_is_over_has_no_part_in_the_mixture() -> None:
    agent = small("r2d2", mortal_state(), **SEQUENCES, decomposition=QMIX(4, 4))
    setup = agent.algorithm.learn.args[0]
    value, params = TeamValue(3, QMIX(4, 4).mixer(agent.env.observation_space, 3)), agent.init(KEY()).learner.params
    assert isinstance(params, MixedParams)
    obs = jax.tree.map(jnp.asarray, {"observation": np.ones((6, 3), np.float32), "privileged_state": np.ones((6, 9), np.float32)})
    alive = jnp.array([True, False, True, False, False, True])
    values = jnp.arange(6.0)
    other = values.at[jnp.array([1, 3, 4])].set(100.0)
    obs_after = {**obs, "privileged_state": obs["privileged_state"].at[jnp.array([1, 3, 4])].set(7.0)}
    both = value.chosen(params, values, alive, obs), value.chosen(params, other, alive, obs_after)
    np.testing.assert_array_equal(*both)
    assert setup.model.apply(params, setup.model.initial_carry(6), first(setup, obs))[1].shape == (6, 2)


def first(setup: Any, obs: Any) -> Any:
    return first_input(obs, setup.action_space, 6)


def mortal_state() -> Any:
    return jaxrl.make_env("tests.helpers.teams:mortal|central_state")


SEQUENCES: dict[str, Any] = {
    "num_envs": 2,
    "rollout_length": 3,
    "batch_size": 4,
    "sequence_length": 6,
    "n_step": 1,
    "replay_ratio": 8,
}


@pytest.mark.slow
def test_sequences_of_a_team_are_drawn_together() -> None:
    """Every sequence holds the rows of all agents of one environment, which are known by their observations (t, i, episode)."""
    agent = small("r2d2", mortal_state(), **SEQUENCES, decomposition=VDN(), buffer_size=120)
    setup = agent.algorithm.learn.args[0]
    state, _ = jit(lambda state: run_iterations(agent, state, 4))(agent.init(KEY()))
    replay = state.learner.replay
    draw = setup.replay.draw(replay, KEY(), 8)
    found = sequences(setup.replay, replay, draw, 6, 3)
    seen = np.asarray(found.inputs.obs["observation"]).reshape(7, 8, 3, 3)
    lives = np.asarray(found.valid).reshape(6, 8, 3)
    np.testing.assert_array_equal(seen[..., 1], np.broadcast_to([0, 1, 2], (7, 8, 3)))
    np.testing.assert_array_equal(seen[..., 0], np.broadcast_to(seen[..., :1, 0], (7, 8, 3)))
    np.testing.assert_array_equal(seen[..., 2], np.broadcast_to(seen[..., :1, 2], (7, 8, 3)))
    assert len({*map(int, draw.env)}) == 2 and not (np.asarray(draw.env) % 3).any()
    # An episode has rows 0, 1, 2 and a reset, where agents live 1, 3 and 2 rows.
    time = seen[:6, :, 0, 0]
    np.testing.assert_array_equal(lives, time[..., None] < np.array([1, 3, 2]))
    (carry,) = jax.tree.leaves(found.carry)
    (stored,) = jax.tree.leaves(draw.extras)
    np.testing.assert_array_equal(carry, np.asarray(stored).reshape(24, -1))
    after = setup.replay.update(replay, draw, jnp.array([1e6, *[1.0] * 7]))
    again = setup.replay.draw(after, KEY(), 16)
    assert ((again.row == draw.row[0]) & (again.env == draw.env[0])).mean() > 0.9


def test_the_loss_of_sequences_is_that_of_the_sum() -> None:
    """One gradient step of VDN on sequences, with targets row by row in NumPy."""
    agent = small("r2d2", mortal(truncates=(False, True, False)), **SEQUENCES, decomposition=VDN(), buffer_size=120, rescale=None)
    setup = agent.algorithm.learn.args[0]
    state, _ = jit(lambda state: run_iterations(agent, state, 4))(agent.init(KEY()))
    learner, value = state.learner, TeamValue(3, SUM)
    batch = sequences(setup.replay, learner.replay, setup.replay.draw(learner.replay, KEY(), 8), setup.config.rows_behind, 3)
    other = jax.tree.map(lambda x: x + 0.1, learner.params)
    loss, metrics = r2d2_loss(setup.model, setup.config, 0.9, 0.9, learner.params, other, batch, None, value)
    seen = batch._replace(inputs=zero_invalid(batch.inputs, bootstrap_mask(batch))).inputs
    q, target = (np.asarray(setup.model.unroll(p, batch.carry, seen)[1]).reshape(7, 8, 3, 2) for p in (learner.params, other))
    lives, ends, action, reward = (
        np.asarray(x).reshape(6, 8, 3) for x in (batch.valid, batch.terminated, batch.action, batch.reward)
    )
    errors = np.full((6, 8), np.nan)
    for n in range(8):
        for t in range(6):
            acting = [a for a in range(3) if lives[t, n, a]]
            if acting:
                on = [a for a in acting if not ends[t, n, a]]
                beyond = sum(target[t + 1, n, a, q[t + 1, n, a].argmax()] for a in on)
                total = sum(q[t, n, a, action[t, n, a]] for a in acting)
                errors[t, n] = total - (reward[t, n].mean() + 0.9 * beyond)
    np.testing.assert_allclose(loss, np.nanmean(0.5 * errors**2 * np.asarray(batch.weight)[::3]), rtol=1e-4)
    size = np.abs(errors)
    np.testing.assert_allclose(metrics["priorities"], 0.9 * np.nanmax(size, 0) + 0.1 * np.nanmean(size, 0), rtol=1e-4)


def test_updates_count_teams() -> None:
    """The same settings give as many updates, and warm up as long, whatever the number of agents."""
    made = [small("r2d2", mortal(lives), **SEQUENCES, decomposition=VDN()) for lives in ((1, 1), (1, 3, 2))]
    assert {agent.algorithm.learn.args[0].config.updates_per_iteration for agent in made} == {2}


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decomposition=VDN\(\) is for environments of several agents, and this one has one"):
        jaxrl.make_pqn("CartPole-v1", decomposition="vdn")
    with pytest.raises(ValueError, match=r"decomposition=QMIX\(.*\) is for environments of several agents"):
        jaxrl.make_qmix("CartPole-v1")
    with pytest.raises(ValueError, match=r"decomposition=QMIX\(.*\) needs observations that are a Dict with 'privileged_state'"):
        jaxrl.make_qmix(mortal())
    with pytest.raises(TypeError, match=r"must store sequences .* as jaxrl.replay.sequence.sequence_replay\(num_agents=3\) does"):
        jaxrl.make_r2d2(mortal(), decomposition=VDN(), replay=sequence_replay())
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


def team_values(agent: Any, learner: Any, game: int) -> Any:
    """Return Q_tot f32[2, 2] of all joint actions in game 2A or 2B, which the first agent's action leads to."""
    setup = agent.algorithm.learn.args[0]
    value = TeamValue(2, setup.config.decomposition.mixer(agent.env.observation_space, 2))
    state, obs = agent.env.reset(KEY(), ())
    start = first_input(obs, agent.env.action_space, 2)
    action = jnp.array([game, 0])
    _, reached = agent.env.step(KEY(), state, action, ())
    there = next_input(reached.obs, action, jnp.zeros(2), jnp.ones(2, bool))
    inputs = jax.tree.map(lambda *x: jnp.stack(x), start, there)
    q = setup.model.unroll(learner.params, setup.model.initial_carry(2), inputs)[1][1]
    of = lambda a, b: value.chosen(learner.params, jnp.stack([q[0, a], q[1, b]]), jnp.ones(2, bool), reached.obs)[0]  # noqa: E731
    return jnp.array([[of(a, b) for b in range(2)] for a in range(2)])


@pytest.mark.slow
def test_a_monotonic_mixture_finds_the_better_game() -> None:
    """The same game: QMIX finds 8 with all of eight seeds, and its values are the payoffs (Rashid et al. 2018, table 2)."""
    sizes = {"num_envs": 8, "rollout_length": 6, "sequence_length": 6, "replay_ratio": 16, "learning_starts": 200}
    rates = {"epsilon_end": 1.0, "target_update_interval": 50, "anneal": False, "buffer_size": 8_000}
    model = {"hidden_sizes": (32,), "core_size": 32}
    agent = jaxrl.make_qmix("jaxrl:TwoStep|agent_id|central_state", model=model, **sizes, **rates)

    def seed(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 500)
        games = jnp.stack([team_values(agent, state.learner, game) for game in range(2)])
        return evaluate_pure(agent, state, key, 2).episodic_return.mean(), games

    found, games = jit(jax.vmap(seed))(jax.random.split(KEY(), 8))
    np.testing.assert_allclose(found, [8.0] * 8)
    np.testing.assert_allclose(games, np.broadcast_to([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], (8, 2, 2, 2)), atol=0.1)


@pytest.mark.slow
def test_rollouts_learn_a_monotonic_mixture() -> None:
    """PQN with QMIX's mixer finds 8 as well."""
    settings = {"num_envs": 16, "rollout_length": 32, "num_minibatches": 8, "epsilon_end": 1.0, "gamma": 0.99, "anneal": False}
    env = "jaxrl:TwoStep|agent_id|central_state"
    agent = jaxrl.make_pqn(env, decomposition=QMIX(), model={"hidden_sizes": (32,)}, q_lambda=0.0, **settings)

    def seed(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 200)
        return evaluate_pure(agent, state, key, 2).episodic_return.mean()

    np.testing.assert_allclose(jit(jax.vmap(seed))(jax.random.split(KEY(), 8)), [8.0] * 8)
