"""Agents with conservative Q-learning: Cal-QL's returns against NumPy, the learnt weight, identities, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxrl
from jaxrl.algorithms.common.critics.ensemble import action_values
from jaxrl.algorithms.common.critics.updates import draw_updates as plain_draws
from jaxrl.algorithms.common.offline.conservative import CQL, LagrangeCQL, Multiplier
from jaxrl.algorithms.common.offline.conservative_updates import discounted_returns, draw_updates
from jaxrl.algorithms.cql import SETTINGS
from jaxrl.algorithms.sac import SACHyperparams
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.action_noise import standard_normal
from jaxrl.options import Quantiles
from jaxrl.replay.dataset import make_dataset
from jaxrl.replay.dataset_replay import attach
from jaxrl.replay.transitions import ReplayRow
from jaxrl.rollout.autoreset import next_input
from tests.helpers.agents import assert_bit_equal, assert_close
from tests.helpers.datasets import random_dataset

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
dataset = cache(random_dataset)
"""Episodes of 20 rows that terminate in turn; the others are cut off."""
SMALL: dict[str, Any] = {"updates": 4, "batch_size": 16, "model": {"hidden_sizes": (8,)}, "anneal": False}


def offline(env: str = "Pendulum-v1", algorithm: str = "sac", **settings: Any) -> Any:
    make = getattr(jaxrl, f"make_{algorithm}")
    return make(env, data=dataset(env), **{**SMALL, **settings})


def setup_of(agent: Any) -> Any:
    return agent.algorithm.learn.args[-1]


# ---------------------------------------------------------------------------------------------------------- returns of the data


def returns_by_hand(rows: ReplayRow, beyond: np.ndarray, gamma: float) -> np.ndarray:
    """Sum from the last row to the first; 0 where a row is not valid."""
    found = np.zeros(len(rows.valid))
    for i in reversed(range(len(rows.valid))):
        if rows.valid[i]:
            is_last = not rows.valid[i + 1]
            after = 0.0 if rows.terminated[i] else beyond[i + 1] if is_last else found[i + 1]
            found[i] = rows.reward[i] + gamma * after
    return found


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_returns_bootstrap_where_an_episode_was_cut_off(gamma: float) -> None:
    """And end with a termination. Episodes have from one row to 12."""
    rng = np.random.default_rng(0)
    lengths = [1, 1, 12, 3, 7, 1]
    valid = np.concatenate([[True] * n + [False] for n in lengths])
    last = np.append(~valid[1:], False) & valid
    terminated = last & np.repeat([True, False, False, True, False, True], np.array(lengths) + 1)
    rows = ReplayRow((), (), np.where(valid, rng.normal(size=len(valid)), 0), terminated, valid)  # type: ignore[arg-type]
    beyond = 10 * rng.normal(size=len(valid))
    found = jit(discounted_returns)(rows, jnp.asarray(beyond, jnp.float32), gamma)
    np.testing.assert_allclose(np.asarray(found)[valid], returns_by_hand(rows, beyond, gamma)[valid], rtol=1e-4, atol=1e-4)


def test_an_update_has_the_returns_of_its_rows() -> None:
    """Last observations have the least target critic's value of an action of the policy. γ is data: two in one program."""
    agent, data = offline(conservative=CQL(calibrated=True, cloning_updates=6), policy_delay=2), dataset("Pendulum-v1")
    setup, gammas = setup_of(agent), jnp.array([0.5, 0.97])

    def run(learner: Any, data: Any) -> Any:
        learner = attach(learner, data)
        later = learner._replace(version=learner.version + 1)
        draws = jax.vmap(lambda gamma: draw_updates(setup, learner, gamma))(gammas)
        plain, second = plain_draws(setup, learner, gammas[0]), draw_updates(setup, later, gammas[0])
        ends = jnp.append(data.starts[1:], len(data.returns_to_go)) - 1
        before, reached = (data.records[at, 0].unpack() for at in (ends - 1, ends))
        inputs = next_input(reached.obs, before.action, before.reward, before.valid)
        output = setup.model.apply(learner.params.actor, (), inputs)[1]
        action = output.at(standard_normal(setup.stream(learner, 2), output.mean.shape))[0]
        value = action_values(setup, learner.target_params.critic, inputs, action).min(0)
        return draws, plain, second.cloning, ends, value, setup.draw(learner).row

    draws, plain, second, ends, value, row = jit(run)(agent.init(KEY()).learner, data)
    assert_bit_equal(jax.tree.map(lambda x: x[0], tuple(draws)[:5]), tuple(plain))
    rows, beyond = jax.device_get(data.rows()), np.full(len(data.returns_to_go), np.nan)
    beyond[np.asarray(ends)] = value
    assert rows.terminated.any() and (rows.terminated.sum() < data.info.episodes)
    for i, gamma in enumerate((0.5, 0.97)):
        expected = returns_by_hand(rows, beyond, gamma)[np.asarray(row)].reshape(2, 2, 16)
        np.testing.assert_allclose(draws.reference[i], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(rows.reward[np.asarray(row)], np.asarray(plain.batch.reward).ravel())
    assert draws.cloning[0].all() and second.tolist() == [[True, True], [False, False]]  # the first six of eight updates


@pytest.mark.slow
def test_rows_that_the_agent_collects_have_no_return() -> None:
    """Half of each batch is from the data, in the order of ``mixed_replay``."""
    sizes: dict[str, Any] = {"online": True, "num_envs": 2, "rollout_length": 8, "buffer_size": 64, "replay_ratio": 4.0}
    agent, data = offline(**{**sizes, "updates": 100}, conservative=CQL(samples=2, calibrated=True)), dataset("Pendulum-v1")

    def run(state: Any, data: Any) -> Any:
        after, metrics = agent.step(state, data)
        learner = attach(after.learner, data)
        draws = draw_updates(setup_of(agent), learner, jnp.float32(0.9))
        return draws.reference, draws.batch.reward, metrics["losses/conservative_gap"].sum

    reference, reward, gap = jit(run)(agent.init(KEY()), data)
    of_data = np.isin(reward, jax.device_get(data.rows()).reward)
    assert of_data.mean() == 0.5 and np.isfinite(gap)
    np.testing.assert_array_equal(np.isfinite(reference), of_data)
    with pytest.raises(ValueError, match=r"calibrated=True needs draws that do not depend on priorities"):
        offline(**{**sizes, "updates": 100}, conservative=CQL(calibrated=True), replay="prioritized")


@pytest.mark.slow
def test_the_bound_raises_the_term() -> None:
    """With a reward of 100 at each step, it is above all values of new critics."""
    rows = jax.device_get(dataset("Pendulum-v1").rows())
    data = make_dataset(rows._replace(reward=np.where(rows.valid, np.float32(100), 0)), jaxrl.make_env("Pendulum-v1"))
    gaps = []
    for calibrated in (False, True):
        agent = jaxrl.make_sac("Pendulum-v1", data=data, conservative=CQL(calibrated=calibrated), **{**SMALL, "updates": 1})
        _, metrics = jit(agent.step)(agent.init(KEY()), data)
        gaps.append(float(metrics["losses/conservative_gap"].sum))
    assert gaps[1] > gaps[0] + 90


# ------------------------------------------------------------------------------------------------------------- the learnt weight


def test_the_weight_follows_the_threshold() -> None:
    """The first step of Adam is its step size: up where the term exceeds τ, else down. Two thresholds in one program."""
    option, hp = LagrangeCQL(), SACHyperparams(conservative_weight=2.0, conservative_learning_rate=0.1)

    def once(threshold: Any) -> Any:
        mine = hp._replace(conservative_threshold=threshold)
        state = option.init(jax.tree.map(jnp.float32, mine))
        after = option.adapted(mine, state, jnp.float32(1.5))
        return option.weight_at(mine, state), option.weight_at(mine, after)

    before, after = jit(jax.vmap(once))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(before, 2.0, rtol=1e-6)
    np.testing.assert_allclose(after, [2 * np.exp(0.1), 2 * np.exp(-0.1)], rtol=1e-5)
    huge = Multiplier(jnp.float32(80.0), optax.adam(0.1).init(jnp.float32(80.0)))
    assert float(option.weight_at(hp, huge)) == pytest.approx(1e6)


def test_the_learnt_weight_is_state(tmp_path: Path) -> None:
    """Two thresholds in one program. A saved state continues bit for bit."""
    agent, data = offline(conservative=LagrangeCQL(initial=0.5, learning_rate=0.1)), dataset("Pendulum-v1")
    thresholds = jnp.array([-100.0, 100.0])
    assert "multiplier" in agent.algorithm.transferable_fields
    step = jit(jax.vmap(agent.step, in_axes=(0, None)))
    states = jit(jax.vmap(lambda threshold: agent.init(KEY(), {"conservative_threshold": threshold})))(thresholds)
    np.testing.assert_allclose(np.exp(states.learner.multiplier.log_weight), 0.5, rtol=1e-6)
    states, metrics = step(states, data)
    weights = np.exp(states.learner.multiplier.log_weight)
    np.testing.assert_allclose(weights, 0.5 * np.exp([0.4, -0.4]), rtol=0.02)
    logged = metrics["losses/conservative_weight"]
    assert ((logged.sum / logged.count)[0] > 0.5 > (logged.sum / logged.count)[1]) and (logged.count == 4).all()
    jaxrl.save(tmp_path, states, 1)
    restored, _ = jaxrl.restore(tmp_path, jax.eval_shape(lambda: states))
    assert_bit_equal(step(restored, data)[0], step(states, data)[0])


# -------------------------------------------------------------------------------------------------------------------- identities


@pytest.mark.parametrize("env", [pytest.param("Pendulum-v1", marks=pytest.mark.slow), "CartPole-v1"])
def test_a_weight_of_0_is_sac(env: str) -> None:
    """With the entropy in targets. The weight is data: another one in the same program differs."""
    agent = offline(env, conservative=CQL(backup_entropy=True))
    step = jit(jax.vmap(agent.step, in_axes=(0, None)))
    states, _ = step(jax.vmap(lambda w: agent.init(KEY(), {"conservative_weight": w}))(jnp.array([0.0, 3.0])), dataset(env))
    plain = offline(env)
    expected, metrics = jit(plain.step)(plain.init(KEY()), dataset(env))
    found = states.learner._replace(hyperparams=(), key=())
    assert_close(jax.tree.map(lambda x: x[0], found), expected.learner._replace(hyperparams=(), key=()), atol=1e-4)
    kernels = [jax.tree.leaves(x.params.critic)[-1] for x in (states.learner, expected.learner)]
    assert np.abs(np.asarray(kernels[0][1]) - np.asarray(kernels[1])).max() > 1e-4
    assert not [name for name in metrics if "conservative" in name] and "conservative" not in plain.spec["settings"]


def test_a_weight_of_0_is_dqn() -> None:
    agent, plain, data = offline("CartPole-v1", "dqn", conservative="cql"), offline("CartPole-v1", "dqn"), dataset("CartPole-v1")
    assert agent.hyperparams.conservative_weight == 1.0
    found, _ = jit(agent.step)(agent.init(KEY(), {"conservative_weight": 0.0}), data)
    expected, _ = jit(plain.step)(plain.init(KEY()), data)
    assert_close(found.learner.params, expected.learner.params)


@pytest.mark.parametrize(
    "settings",
    [
        {"critics": Quantiles(num_quantiles=5, dropped=1), "conservative": CQL(samples=2, calibrated=True)},
        pytest.param(
            {"conservative": CQL(weighted=False, cloning_updates=2), "policy_delay": 2, "critic": {"dropout": 0.1}},
            marks=pytest.mark.slow,
        ),
        pytest.param({"conservative": {"name": "lagrange", "threshold": 5.0}, "n_step": 3}, marks=pytest.mark.slow),
    ],
)
def test_options_learn_and_have_a_spec(settings: dict[str, Any]) -> None:
    agent, data = offline(**settings), dataset("Pendulum-v1")
    state, metrics = jit(agent.step)(agent.init(KEY()), data)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state.learner.params))
    assert np.isfinite(float(metrics["losses/conservative_gap"].sum))
    assert jaxrl.build(agent.spec, data=data).spec == agent.spec


@pytest.mark.slow
def test_a_term_without_data_learns_from_replay() -> None:
    sizes = {"num_envs": 2, "rollout_length": 8, "learning_starts": 32, "replay_ratio": 4.0, "buffer_size": 200}
    agent = jaxrl.make_sac("Pendulum-v1", conservative=CQL(samples=2), **{**SMALL, **sizes, "updates": 100})
    state, metrics = jit(lambda key: agent.step(agent.init(key)))(KEY())
    assert np.isfinite(float(metrics["losses/conservative_gap"].sum)) and int(state.learner.version) == 1


def test_cql_is_sac_with_all_of_it_but_what_is_given() -> None:
    data = dataset("Pendulum-v1")
    agent = jaxrl.make_cql("Pendulum-v1", data=data, batch_size=16, learning_rate=0.5, model={"activation": "tanh"})
    network = {"hidden_sizes": (256, 256, 256), "activation": "tanh"}
    settings = {**SETTINGS, "batch_size": 16, "learning_rate": 0.5, "model": network}
    assert agent.spec == jaxrl.make_sac("Pendulum-v1", data=data, **settings).spec
    given = agent.spec["settings"]
    assert (given["learning_rate"], given["actor_learning_rate"], given["temperature"]["learning_rate"]) == (0.5, 1e-4, 1e-4)
    for mine in ({"weight": 0.5}, CQL(weight=0.5), {"name": "cql", "weight": 0.5}):
        assert jaxrl.make_cql("Pendulum-v1", conservative=mine).hyperparams.conservative_weight == 0.5
    other = jaxrl.make_cql("Pendulum-v1", conservative="lagrange", model=None)
    assert other.spec["settings"]["conservative"]["name"] == "lagrange"


# -------------------------------------------------------------------------------------------------------- options that do not fit


@pytest.mark.parametrize(
    "env, settings, message",
    [
        ("CartPole-v1", {"conservative": CQL(samples=4)}, r"samples=4 has no effect on Discrete\(2\): the sum over its actions"),
        ("CartPole-v1", {"conservative": CQL(weighted=False)}, r"weighted=False has no effect on Discrete\(2\)"),
        ("CartPole-v1", {"conservative": CQL(calibrated=True)}, r"calibrated=True is for Box actions.*not for Discrete\(2\)"),
        ("Pendulum-v1", {"conservative": "clq"}, r"conservative='clq' is unknown\. Did you mean 'cql'\?"),
        (
            "Pendulum-v1",
            {"conservative": LagrangeCQL(), "schedules": {"conservative_weight": lambda i: 1.0}},
            r"schedules\['conservative_weight'\] has no effect with LagrangeCQL, which starts at it",
        ),
    ],
)
def test_options_that_do_not_fit(env: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        offline(env, **settings)


def test_one_message_for_each_mistake() -> None:
    with pytest.raises(ValueError, match="calibrated=True bounds values by the returns of a dataset: give data=…"):
        jaxrl.make_sac("Pendulum-v1", conservative=CQL(calibrated=True))
    with pytest.raises(ValueError, match=r"CQL: weight=-1 is not allowed"):
        CQL(weight=-1)
    with pytest.raises(ValueError, match=r"LagrangeCQL: initial=0 is not allowed"):
        LagrangeCQL(initial=0)
    with pytest.raises(ValueError, match=r"CQL: samples=0 must be an integer >= 1"):
        CQL(samples=0)
    with pytest.raises(TypeError, match=r"LagrangeCQL has no field 'weight'"):
        LagrangeCQL(weight=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"conservative=.*must be Conservative\(…\) or None"):
        offline("CartPole-v1", "dqn", conservative=CQL())
    with pytest.raises(TypeError, match=r"unknown keyword 'conservative_weight'\. Did you mean 'conservative'\?"):
        offline(conservative_weight=2.0)
    agent = offline(conservative=CQL())
    with pytest.raises(ValueError, match="conservative_weight=-1 is not allowed"):
        agent.init(KEY(), {"conservative_weight": -1.0})
