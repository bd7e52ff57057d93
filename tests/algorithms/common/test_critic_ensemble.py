"""Ensembles of critics: random batches of an update, subsets, and the minimum.

See tests/algorithms/test_sac_loss.py for losses.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import ddpg, sac, td3
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, Ensemble, action_values, min_over_subset
from jaxrl.algorithms.common.critics.updates import CriticBatch, batch_of, draw_updates, learn_critics
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.replay.options import Prioritized
from jaxrl.replay.prioritised import prioritised_replay
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, small, to_numpy

jit = partial(jax.jit, compiler_options=COMPILE_FAST)


@cache
def drawn() -> Any:
    """Draw 100 updates of five critics, in 50 groups of two, on an environment whose Box is [0, 4]."""
    settings = {"critics": Ensemble(size=5, subset=2), "policy_delay": 2, "replay_ratio": 400}
    agent = small("sac", probes.target_action(), **settings)
    setup = agent.algorithm.learn.args[0]  # type: ignore[union-attr]
    learner = jit(agent.init)(jax.random.key(0)).learner
    return agent, setup, learner, to_numpy(jit(partial(draw_updates, setup))(learner, 0.9))


@pytest.mark.slow
def test_what_an_update_draws() -> None:
    _, _, _, updates = drawn()
    assert updates.batch.reward.shape == (50, 2, 32) and updates.noise.shape == (50, 2, 2, 32, 1)
    noise = updates.noise.ravel()
    assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1) < 0.05
    assert len(np.unique(noise)) > 0.99 * noise.size
    valid = updates.batch.valid
    # The reward is −(a − 3)². The action in [−1, 1] is the environment's action, mapped back from its bounds.
    action = updates.batch.action[valid][:, 0]
    np.testing.assert_allclose(updates.batch.reward[valid], -((2 * action - 1) ** 2), atol=1e-4)
    assert action.min() < -0.5 and action.max() > 0.5


def test_subsets_are_drawn_anew_without_replacement_and_all_alike() -> None:
    chosen = drawn()[-1].chosen.reshape(100, 5)
    np.testing.assert_array_equal(chosen.sum(1), 2)
    assert len(np.unique(chosen, axis=0)) == 10  # all pairs of five
    assert (np.abs(chosen.mean(0) - 0.4) < 0.2).all()


def test_the_least_is_of_the_chosen() -> None:
    values = jnp.array([[3.0, -1.0], [1.0, 5.0], [2.0, 0.0]])
    np.testing.assert_array_equal(min_over_subset(values, jnp.array([True, False, True])), [2, -1])
    np.testing.assert_array_equal(min_over_subset(values[..., None], jnp.array([False, True, False])), [[1], [5]])


@pytest.mark.slow
def test_an_ensemble_is_its_critics_one_by_one() -> None:
    """Each critic uses separate parameters and, given a key, separate dropout."""
    _, setup, learner, updates = drawn()
    batch = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), updates.batch)
    assert isinstance(learner.params, ActorCriticPair)
    together = action_values(setup, learner.params.critic, batch.inputs, batch.action)
    inputs = batch.inputs._replace(obs=(batch.inputs.obs, batch.action))
    for i in range(5):
        alone = setup.critic.apply(jax.tree.map(lambda x, i=i: x[i], learner.params.critic), (), inputs)[1]
        np.testing.assert_allclose(together[i], alone, atol=1e-5)
    assert len(np.unique(np.asarray(together[:, 0]))) == 5


@pytest.mark.slow
def test_each_critic_drops_units_of_its_own() -> None:
    agent = small("sac", probes.target_action(), critic={"hidden_sizes": (32,), "dropout": 0.5}, critics=Ensemble(size=4))
    setup = agent.algorithm.learn.args[0]  # type: ignore[union-attr]

    def values(key: Any) -> Any:
        learner = agent.algorithm.init(key, jax.tree.map(jnp.float32, agent.hyperparams))
        same = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), learner.params.critic)
        batch = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), drawn()[-1].batch)
        return [action_values(setup, same, batch.inputs, batch.action, k)[:, 0] for k in (None, key)]

    without, dropped = jit(values)(jax.random.key(0))
    assert len(np.unique(without)) == 1 and len(np.unique(dropped)) == 4


# ---------------------------------------------------------------------------------------------------------- prioritised replay

PRIORITISED = prioritised_replay(priority_exponent=0.5, importance_exponent=0.7)


def setup_of(agent: Any) -> Any:
    return agent.algorithm.learn.args[-1]


@pytest.mark.slow
def test_updates_draw_one_after_the_other_by_the_priorities_of_those_before() -> None:
    agent = small("sac", probes.target_action(), replay=PRIORITISED, policy_delay=2, replay_ratio=16)  # two groups of two
    setup, learner = setup_of(agent), jit(agent.init)(jax.random.key(0)).learner

    def one(total: Any, now: CriticBatch) -> Any:
        errors = jnp.abs(now.batch.action[:, 0])
        return total + (errors * now.batch.weight).sum(), {"total": total, PRIORITIES: errors}

    @jit
    def in_a_loop(learner: Any) -> Any:
        total, replay, totals = jnp.float32(0), learner.replay, []
        for number in range(4):
            key = jax.random.fold_in(jax.random.fold_in(learner.key, learner.version), number)
            drawn = setup.replay.draw(replay, key, 32)
            batch = batch_of(setup, learner, replay, drawn, 0.9)
            totals.append(total)
            total += (jnp.abs(batch.action[:, 0]) * batch.weight).sum()
            replay = setup.replay.update(replay, drawn, jnp.abs(batch.action[:, 0]))
        return (total, replay), jnp.stack(totals), batch

    @jit
    def in_groups(learner: Any) -> Any:
        carry, totals, updates = (jnp.float32(0), learner.replay), [], draw_updates(setup, learner, 0.9)
        for group in range(2):
            of_group = jax.tree.map(lambda x, group=group: x[group], updates)
            carry, metrics, last = learn_critics(setup, learner, 0.9, one, carry, of_group)
            totals.append(metrics["total"])
        return carry, jnp.concatenate(totals), last.batch

    expected = in_a_loop(learner)
    assert_bit_equal(in_groups(learner), expected)
    assert len(np.unique(expected[0][1].levels[0])) > 5


def target_of(name: str, setup: Any, learner: Any, now: CriticBatch) -> Any:
    if name != "sac":
        module: Any = {"td3": td3, "ddpg": ddpg}[name]
        return module.target(setup, setup.current(learner), learner.target_params, now)
    temperature = jnp.exp(learner.log_temperature)
    return sac.target(setup, learner.params.actor, learner.target_params.critic, temperature, now)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_a_prioritised_replay_is_learnt_from_and_told_the_errors(name: str) -> None:
    """In one update: the loss is weighted, and the new priorities of the drawn rows are their mean |Q(s, a) − y|. The weights are
    those of the replay, for an exponent of 1, raised to the option's exponent."""
    settings = {"replay": Prioritized(exponent=0.5, importance_exponent=0.7), "critics": Ensemble(size=2)}
    agent = small(name, probes.target_action(), **settings, policy_delay=1, replay_ratio=4)
    setup = setup_of(agent)

    @jit
    def by_hand(learner: Any) -> Any:
        now = jax.tree.map(lambda x: x[0, 0], draw_updates(setup, learner, setup.current(learner).gamma))
        drawn = setup.replay.draw(learner.replay, now.draw_key, 32)
        now = now._replace(batch=batch_of(setup, learner, learner.replay, drawn, setup.current(learner).gamma))
        values = action_values(setup, learner.params.critic, now.batch.inputs, now.batch.action)
        return drawn, jnp.abs(values - target_of(name, setup, learner, now))

    learn = jit(agent.algorithm.learn)
    learner, _ = learn(jit(agent.init)(jax.random.key(0)).learner)
    (drawn, errors), (after, metrics) = to_numpy(by_hand(learner)), learn(learner)
    weight, valid = drawn.weight**0.7, drawn.valid
    assert valid.all() and weight.min() < 0.9
    assert float(metrics["losses/td_loss"].sum) == pytest.approx(0.5 * (weight * errors**2).mean(1).sum(), rel=1e-4)
    assert PRIORITIES not in metrics
    leaves = np.asarray(after.replay.levels[0]).reshape(4, -1)
    for row, env in {*zip(drawn.row.tolist(), drawn.env.tolist(), strict=True)}:
        largest = errors.mean(0)[(drawn.row == row) & (drawn.env == env)].max()
        assert leaves[env, row] == pytest.approx((largest + 1e-6) ** 0.5, rel=1e-3)
