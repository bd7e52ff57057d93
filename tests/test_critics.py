"""Ensembles of critics: what an update draws, subsets, and the least of them. Losses are in tests/test_sac_loss.py."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.critics import MOST_PACKED, Networks, action_values, draw_updates, least, networks
from jaxrl.envs.check import COMPILE_FAST
from tests import probes
from tests.agents import small, to_numpy

jit = partial(jax.jit, compiler_options=COMPILE_FAST)


@cache
def drawn() -> Any:
    """100 updates of five critics, in 50 groups of two, on an environment whose Box goes from 0 to 4."""
    settings = {"num_critics": 5, "num_target_critics": 2, "policy_delay": 2, "replay_ratio": 400}
    agent = small("sac", probes.target_action(), **settings)
    rule = agent.algorithm.learn.args[0]  # type: ignore[union-attr]
    learner = jit(agent.init)(jax.random.key(0)).learner
    return agent, rule, learner, to_numpy(jit(partial(draw_updates, rule))(learner, 0.9))


def test_what_an_update_draws() -> None:
    _, _, _, updates = drawn()
    assert updates.batch.reward.shape == (50, 2, 32) and updates.noise.shape == (50, 2, 2, 32, 1)
    noise = updates.noise.ravel()
    assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1) < 0.05
    assert len(np.unique(noise)) > 0.99 * noise.size
    valid = updates.batch.valid
    # Reward −(a − 3)², so an action in [−1, 1] is the environment's, taken back from its bounds.
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
    np.testing.assert_array_equal(least(values, jnp.array([True, False, True])), [2, -1])
    np.testing.assert_array_equal(least(values[..., None], jnp.array([False, True, False])), [[1], [5]])


def test_large_networks_learn_as_small_ones_do_with_their_leaves_apart() -> None:
    """The same steps of clipped Adam, whether the gradient is one vector or not."""
    _, rule, learner, _ = drawn()
    few = {"a": jnp.linspace(-1.0, 1.0, 7), "b": jnp.ones((2, 3))}
    many = few | {"c": jnp.zeros(MOST_PACKED)}  # without a slope

    def loss(params: Any) -> Any:
        return (params["a"] ** 4).sum() + (params["b"] * jnp.arange(6.0).reshape(2, 3)).sum(), {}

    packed, apart = networks(rule, Networks(few, many), learner.hyperparams)
    states = [net.optimise.init(net.pack(params)) for net, params in ((packed, few), (apart, many))]
    assert jax.tree.leaves(states[0])[1].shape == (13,) and len(jax.tree.leaves(states[1])) == 1 + 2 * 3
    for _ in range(3):
        few, states[0], metrics = packed.descend(loss, few, states[0], None)
        many, states[1], same = apart.descend(loss, many, states[1], None)
        np.testing.assert_allclose(metrics["losses/grad_norm"], same["losses/grad_norm"], rtol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), few, {name: many[name] for name in few})


def test_an_ensemble_is_its_critics_one_by_one() -> None:
    """Each by the parameters of its own, and dropping units of its own where it is given a key."""
    _, rule, learner, updates = drawn()
    batch = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), updates.batch)
    assert isinstance(learner.params, Networks)
    together = action_values(rule, learner.params.critic, batch.inputs, batch.action)
    inputs = batch.inputs._replace(obs=(batch.inputs.obs, batch.action))
    for i in range(5):
        alone = rule.critic.apply(jax.tree.map(lambda x, i=i: x[i], learner.params.critic), (), inputs)[1]
        np.testing.assert_allclose(together[i], alone, atol=1e-5)
    assert len(np.unique(np.asarray(together[:, 0]))) == 5


def test_each_critic_drops_units_of_its_own() -> None:
    agent = small("sac", probes.target_action(), critic={"hidden_sizes": (32,)}, critic_dropout=0.5, num_critics=4)
    rule = agent.algorithm.learn.args[0]  # type: ignore[union-attr]

    def values(key: Any) -> Any:
        learner = agent.algorithm.init(key, jax.tree.map(jnp.float32, agent.hyperparams))
        same = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), learner.params.critic)
        batch = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), drawn()[-1].batch)
        return [action_values(rule, same, batch.inputs, batch.action, k)[:, 0] for k in (None, key)]

    without, dropped = jit(values)(jax.random.key(0))
    assert len(np.unique(without)) == 1 and len(np.unique(dropped)) == 4
