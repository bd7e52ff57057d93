"""TD3: its target and losses against NumPy, its update schedule against a loop, both kinds of noise, probes, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from gymnasium import spaces

from jaxrl import make_td3
from jaxrl.algorithms import td3
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, Ensemble
from jaxrl.algorithms.common.critics.updates import CriticBatch, draw_updates
from jaxrl.algorithms.common.deterministic_policy import actor_loss, critic_loss
from jaxrl.algorithms.common.offline.policy_cloning import Cloning, ReBRAC
from jaxrl.algorithms.td3 import TD3Config, TD3Hyperparams
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.options import OU, Gaussian
from jaxrl.models import deterministic_policy, policy_network
from jaxrl.replay.dataset_replay import attach
from jaxrl.rollout.autoreset import first_input
from tests.helpers import probes
from tests.helpers.agents import Tiny, assert_bit_equal, assert_close, small
from tests.helpers.datasets import random_dataset
from tests.helpers.oracles.actor_critic import (
    CRITICS,
    SETTINGS,
    N,
    actor_critic_setup,
    case,
    check_q_probe,
    double,
    learn_q_probes,
    q_by_hand,
    values_of,
)
from tests.helpers.oracles.policy_gradient import slope
from tests.helpers.probe_set import PROBES

TINY = Tiny(
    settings={**SETTINGS, "model": partial(deterministic_policy, hidden_sizes=(8,))},
    value=values_of,
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 64, "policy_delay": 1}),
    boxed=True,
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
small_td3 = partial(small, "td3")
HP = TD3Hyperparams(target_noise=0.6, target_noise_clip=0.5)


# ---------------------------------------------------------------------------------------------------------------------- losses


@cache
def program() -> Any:
    own = actor_critic_setup(TD3Config(critics=Ensemble(size=CRITICS)), "deterministic")

    def run(actor: Any, critic: Any, target_critic: Any, now: CriticBatch) -> Any:
        y = td3.target(own, HP, ActorCriticPair(actor, target_critic), now)
        of_critics = jax.value_and_grad(lambda p: critic_loss(own, p, y, now), has_aux=True)(critic)
        of_policy = jax.value_and_grad(lambda p: actor_loss(own, p, critic, now), has_aux=True)(actor)
        return y, of_critics, of_policy

    return jit(run)


def test_targets_are_smoothed_and_take_the_least_critic() -> None:
    clipped = 0
    for seed in range(3):
        actor, critic, target_critic, now = case("deterministic", seed)
        y, *_ = program()(actor, critic, target_critic, now)
        for i in np.flatnonzero(now.batch.valid):
            x, noise = double(now.batch.next_inputs.obs[i]), np.clip(0.6 * double(now.noise[0, i]), -0.5, 0.5)
            before = np.tanh(x @ double(actor["mean"])) + noise
            clipped += np.any(np.abs(before) > 1)
            least = q_by_hand(target_critic, x, np.clip(before, -1, 1))[np.asarray(now.chosen)].min()
            assert float(y[i]) == pytest.approx(now.batch.reward[i] + now.batch.discount[i] * least, rel=1e-4, abs=1e-4)
    assert clipped


def test_losses_and_gradients_are_the_papers() -> None:
    for seed in range(2):
        actor, critic, target_critic, now = case("deterministic", seed)
        y, ((loss, metrics), of_critics), ((own_loss, _), of_policy) = program()(actor, critic, target_critic, now)
        where, x = np.asarray(now.batch.valid), double(now.batch.inputs.obs)

        def td(params: Any, now: CriticBatch = now, where: Any = where, x: Any = x, y: Any = y) -> float:
            q = np.array([q_by_hand(params, x[i], double(now.batch.action[i])) for i in range(N)])
            return (0.5 * double(now.batch.weight)[:, None] * (q - double(y)[:, None]) ** 2).sum(1)[where].mean()

        def climb(params: Any, where: Any = where, x: Any = x, critic: Any = critic) -> float:
            return -np.array([q_by_hand(critic, row, np.tanh(row @ params["mean"]))[0] for row in x])[where].mean()

        assert float(loss) == pytest.approx(td(critic), rel=1e-4) == pytest.approx(float(metrics["losses/td_loss"]), rel=1e-4)
        assert float(own_loss) == pytest.approx(climb({"mean": double(actor["mean"])}), rel=1e-4)
        assert_close(of_critics, jax.tree.map(np.float32, slope(td, critic)), atol=1e-3)
        assert_close(of_policy, jax.tree.map(np.float32, slope(climb, actor)), atol=1e-3)


# ------------------------------------------------------------------------------------------------------------- update schedule


def sgd(hyperparams: Any) -> optax.GradientTransformation:
    return optax.sgd(hyperparams.learning_rate)


def test_updates_are_those_of_a_loop() -> None:
    """Four updates of both critics. The policy and all targets move after every second one."""
    agent = small_td3(
        probes.action_by_observation(),
        optimizer=sgd,
        replay_ratio=16,
        policy_delay=2,
        learning_rate=0.05,
        actor_learning_rate=0.02,
    )
    own = agent.algorithm.learn.args[1]  # type: ignore[union-attr]

    def run(key: Any) -> Any:
        start = agent.init(key).learner
        return start, agent.algorithm.learn(start), draw_updates(own, start, 0.99)  # type: ignore[misc]

    start, (learner, metrics), draws = jit(run)(KEY())

    @jit
    def critic_gradient(targets: Any, critic: Any, now: Any) -> Any:
        y = td3.target(own, start.hyperparams, targets, now)
        return jax.grad(partial(critic_loss, own), has_aux=True)(critic, y, now)[0]

    actor_gradient = jit(jax.grad(partial(actor_loss, own), has_aux=True))
    (actor, critic), targets = start.params, start.target_params
    assert_bit_equal(start.params, targets)
    for g in range(2):
        for i in range(2):
            now = jax.tree.map(lambda x, g=g, i=i: x[g, i], draws)
            critic = jax.tree.map(lambda p, g: p - 0.05 * g, critic, critic_gradient(targets, critic, now))
        actor = jax.tree.map(lambda p, g: p - 0.02 * g, actor, actor_gradient(actor, critic, now)[0])
        targets = jax.tree.map(lambda p, t: t + 0.1 * (p - t), ActorCriticPair(actor, critic), targets)
    assert_close(learner.params, ActorCriticPair(actor, critic), atol=1e-4)
    assert_close(learner.target_params, targets, atol=1e-4)
    assert int(metrics["losses/td_loss"].count) == 4 and int(metrics["losses/actor_loss"].count) == 2


# ----------------------------------------------------------------------------------------------------------------------- noise


@cache
def acted(noise: Any) -> Any:
    """Return exploring actions of 2,000 environments in 6 rows of a Box from 0 to 4, after the first update, and the greedy
    action. A new episode begins with row 4."""
    agent = small_td3(probes.target_action(), noise=noise, exploration_noise=0.05)
    algorithm, env_id = agent.algorithm, jnp.arange(2000)

    def run(key: Any) -> Any:
        learner = algorithm.init(key, agent.hyperparams)._replace(version=jnp.int32(1))
        learner = learner._replace(hyperparams=jax.tree.map(jnp.float32, learner.hyperparams))
        policy, carry, actions = algorithm.policy(learner), algorithm.initial_carry(2000), []
        for t in range(6):
            inputs = first_input(jnp.zeros((2000, 1)), agent.env.action_space, 2000)
            inputs = inputs._replace(is_first=jnp.full(2000, t in (0, 4)))
            carry, action, _ = algorithm.act(policy, carry, inputs, env_id, jax.random.fold_in(key, t), explore=True)
            actions.append(action[:, 0])
        unmoved, greedy, _ = algorithm.act(policy, carry, inputs, env_id, key, explore=False)
        return jnp.stack(actions), greedy, carry, unmoved

    return jax.tree.map(np.asarray, jit(run)(KEY()))


def test_gaussian_noise_is_independent() -> None:
    actions, greedy, *_ = acted(Gaussian())
    noise = (actions - greedy[0, 0]) / 2
    for row in noise:
        assert scipy.stats.kstest(row, scipy.stats.norm(0, 0.05).cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(noise) - np.eye(6)).max() < 0.09


def test_ornstein_uhlenbeck_noise_has_its_moments_and_begins_anew_with_an_episode() -> None:
    """x ← (1 − θ)·x + σ·ε from 0 has the variance σ²·Σ (1 − θ)²ᵏ; the covariance of rows t < u is (1 − θ)ᵘ⁻ᵗ times that at t."""
    actions, greedy, carry, unmoved = acted(OU(theta=0.3))
    noise, expected = (actions - greedy[0, 0]) / 2, np.zeros((6, 6))
    for rows in (range(4), range(4, 6)):
        for t in rows:
            variance = 0.05**2 * sum(0.7 ** (2 * k) for k in range(t - rows[0] + 1))
            for u in range(t, rows[-1] + 1):
                expected[t, u] = expected[u, t] = 0.7 ** (u - t) * variance
    np.testing.assert_allclose(np.cov(noise), expected, atol=0.1 * expected.max())
    np.testing.assert_array_equal(carry, unmoved)  # greedy acting does not change it
    np.testing.assert_allclose(noise[-1], carry[:, 0], atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, Any]:
    rates = {"gamma": 0.9, "learning_rate": 0.02, "actor_learning_rate": 0.01, "learning_starts": 120}
    return learn_q_probes(partial(small_td3, noise="ou", exploration_noise=0.3, **rates))


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    check_q_probe(probe, *learnt()[probe])


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"policy_delay": 3}, "policy_delay=3 must divide the 2 updates of an iteration"),
        ({"replay_ratio": 5}, "replay_ratio=5 gives 1.25 updates per iteration"),
        ({"target_noise": -0.1}, "target_noise=-0.1 is not allowed"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_td3(probes.target_action(), **settings)


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"TD3 needs a Box action space; .* has Discrete"):
        make_td3(probes.truncation())
    with pytest.raises(ValueError, match=r"bounds on all sides"):
        small_td3(probes.target_action()._replace(action_space=spaces.Box(0, np.inf, (1,), np.float32)))
    with pytest.raises(TypeError, match=r"model=policy_network must give actions f32\[batch, 1\]"):
        small_td3(probes.target_action(), model=policy_network)


# --------------------------------------------------------------------------------------------------------------------- cloning


@pytest.mark.parametrize("alpha", [0.5, 2.5])
def test_cloning_is_the_papers(alpha: float) -> None:
    """−λ·Q + (π − a)², where λ = α / mean|Q| is a constant: the gradient is that of the loss with λ frozen."""
    own = actor_critic_setup(TD3Config(critics=Ensemble(size=CRITICS), cloning=Cloning(alpha)), "deterministic")
    hp = HP._replace(cloning_alpha=alpha)
    actor, critic, _, now = case("deterministic", 1)
    (loss, logged), gradient = jit(jax.value_and_grad(lambda p: actor_loss(own, p, critic, now, hp), has_aux=True))(actor)
    where, x, action = np.asarray(now.batch.valid), double(now.batch.inputs.obs), double(now.batch.action)

    def value(params: Any) -> np.ndarray:
        return np.array([q_by_hand(critic, row, np.tanh(row @ params["mean"]))[0] for row in x])[where]

    frozen = alpha / np.abs(value({"mean": double(actor["mean"])})).mean()

    def by_hand(params: Any) -> float:
        distance = ((np.tanh(x @ params["mean"]) - action) ** 2).mean(1)[where].mean()
        return distance - frozen * value(params).mean()

    assert float(loss) == pytest.approx(by_hand({"mean": double(actor["mean"])}), rel=1e-4)
    assert_close(gradient, jax.tree.map(np.float32, slope(by_hand, {"mean": double(actor["mean"])})), atol=1e-3)
    assert float(logged["losses/cloning_loss"]) > 0


def test_rebrac_is_the_papers() -> None:
    """Both losses, where the distances are sums over the components, and the last observations have no next action."""
    own = actor_critic_setup(TD3Config(critics=Ensemble(size=CRITICS), cloning=ReBRAC(0.3, 0.7)), "deterministic")
    hp = HP._replace(rebrac_actor_weight=0.3, rebrac_critic_weight=0.7)
    actor, critic, target_critic, now = case("deterministic", 1)
    rng = np.random.default_rng(1)
    next_valid = rng.random(N) < 0.6
    following = np.where(next_valid[:, None], rng.uniform(-1, 1, now.batch.action.shape), np.nan).astype(np.float32)
    now = now._replace(batch=now.batch._replace(next_action=following, next_valid=next_valid))
    targets = ActorCriticPair(actor, target_critic)
    y = jit(lambda t, u: td3.target(own, hp, t, u))(targets, now)
    plain = jit(lambda t, u: td3.target(actor_critic_setup(TD3Config(critics=Ensemble(size=CRITICS)), "deterministic"), hp, t, u))
    noise = np.clip(hp.target_noise * double(now.noise[0]), -hp.target_noise_clip, hp.target_noise_clip)
    action = np.clip(np.tanh(double(now.batch.next_inputs.obs) @ actor["mean"]) + noise, -1, 1)
    distance = np.where(next_valid, ((action - following) ** 2).sum(1), 0.0)
    np.testing.assert_allclose(y, plain(targets, now) - double(now.batch.discount) * 0.7 * distance, rtol=1e-4, atol=1e-5)

    loss, logged = jit(lambda p: actor_loss(own, p, critic, now, hp))(actor)
    where, x = np.asarray(now.batch.valid), double(now.batch.inputs.obs)
    value = np.array([q_by_hand(critic, row, np.tanh(row @ actor["mean"]))[0] for row in x])[where]
    distance = ((np.tanh(x @ actor["mean"]) - double(now.batch.action)) ** 2).sum(1)[where].mean()
    assert float(loss) == pytest.approx(0.3 * distance - value.mean() / np.abs(value).mean(), rel=1e-4)
    assert float(logged["losses/cloning_loss"]) == pytest.approx(distance, rel=1e-4)


def test_rebrac_learns_from_next_actions_in_the_networks_units() -> None:
    """Pendulum's torques are in [−2, 2]."""
    data = random_dataset("Pendulum-v1")
    agent = make_td3("Pendulum-v1", data=data, updates=2, batch_size=32, model={"hidden_sizes": (8,)}, cloning=ReBRAC())
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    learner = attach(agent.init(KEY()).learner, data)
    batch = jit(lambda learner: draw_updates(setup, learner, 0.99).batch)(learner)
    rows = jax.device_get(data.rows())
    every, valid = batch.next_action.reshape(-1), np.asarray(batch.next_valid).reshape(-1)
    assert not valid.all() and valid.any() and np.isin(2 * every[valid], rows.action[rows.valid]).all()
    _, metrics = jit(agent.step)(agent.init(KEY()), data)
    assert 0 < float(metrics["losses/cloning_loss"]) < np.inf


def test_cloning_does_not_depend_on_the_scale_of_rewards() -> None:
    """Critics that are 100 times as large give the same gradient of the policy, and without cloning 100 times as large a one."""
    actor, critic, _, now = case("deterministic", 2)
    large = jax.tree.map(lambda x: 100 * x, critic)
    found = []
    for cloning in (Cloning(), ReBRAC(1.0, 0.0), None):
        own = actor_critic_setup(TD3Config(critics=Ensemble(size=CRITICS), cloning=cloning), "deterministic")
        slopes = jit(jax.grad(lambda p, c, own=own: actor_loss(own, p, c, now, HP)[0]))
        found.append([slopes(actor, each)["mean"] for each in (critic, large)])
    for scaled in found[:2]:
        np.testing.assert_allclose(scaled[0], scaled[1], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(100 * found[2][0], found[2][1], rtol=1e-3)


@pytest.mark.parametrize("kind", [Cloning(), ReBRAC(1.0, 0.0)])
def test_cloning_on_two_devices_is_that_of_the_whole_batch(kind: Any) -> None:
    """The values' mean size is over all devices. Here those of the second are 100 times as large."""
    value, difference = jnp.array([[1.0, 1.0], [100.0, 100.0]]), jnp.zeros((2, 2, 3))

    def of_device(value: Any, difference: Any) -> Any:
        return jax.grad(lambda v: kind.loss(HP, v, difference, jnp.mean, "d")[0])(value)

    found = jax.vmap(of_device, axis_name="d")(value, difference) / 2  # gradients are means over devices
    whole = jax.grad(lambda v: kind.loss(HP, v, difference.reshape(4, 3), jnp.mean, None)[0])(value.ravel())
    np.testing.assert_allclose(found.ravel(), whole, rtol=1e-5)


def test_what_cloning_refuses() -> None:
    with pytest.raises(ValueError, match=r"cloning=ReBRAC\(\) reads next actions, which sequences do not hold"):
        make_td3("Pendulum-v1", model={"core": "gru"}, cloning="rebrac", batch_size=32)


def test_observations_of_a_dataset_are_normalised_for_acting_and_learning() -> None:
    data = random_dataset("Pendulum-v1")
    settings = {"updates": 2, "batch_size": 16, "model": {"hidden_sizes": (8,)}, "cloning": "td3_bc"}
    agent = make_td3("Pendulum-v1", data=data, **settings)
    raw = make_td3("Pendulum-v1", data=data, normalize_observations=False, **settings)
    state = agent.init(KEY())
    rows = jax.device_get(data.rows())
    mean, std = rows.obs[rows.valid].mean(0), rows.obs[rows.valid].std(0)
    np.testing.assert_allclose(state.learner.statistics.observations.mean, mean, rtol=1e-4, atol=1e-5)
    assert raw.init(KEY()).learner.statistics == () == small_td3("Pendulum-v1").init(KEY()).learner.statistics
    obs = jnp.asarray(rows.obs[:5])
    seen = [first_input(x, agent.env.action_space, 5) for x in (obs, (obs - mean) / std)]
    policy = agent.algorithm.policy(state.learner)
    _, normalised, _ = agent.algorithm.act(policy, (), seen[0], jnp.arange(5), KEY(), explore=False)
    _, by_hand, _ = raw.algorithm.act(policy._replace(statistics=()), (), seen[1], jnp.arange(5), KEY(), explore=False)
    np.testing.assert_allclose(normalised, by_hand, rtol=1e-4, atol=1e-5)
    learners = [jit(each.step)(each.init(KEY()), data)[0].learner for each in (agent, raw)]
    assert not np.allclose(*(jax.tree.leaves(x.params.critic)[0] for x in learners))
