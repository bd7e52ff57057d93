"""IQL: expectiles and weights with known answers, its losses against NumPy, a chain that asks for stitching, probes, datasets."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import make_iql
from jaxrl.algorithms import iql
from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup, Ensemble
from jaxrl.algorithms.common.critics.updates import CriticBatch, draw_updates
from jaxrl.algorithms.common.offline.advantage_weights import Binary, Expectile, Exponential, Sampled, expectile_loss
from jaxrl.algorithms.common.offline.datasets import reward_scale, seen
from jaxrl.algorithms.iql import IQLConfig, IQLHyperparams
from jaxrl.distributions import Categorical, Normal
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import ActorCriticOutput
from jaxrl.replay.dataset import make_dataset
from jaxrl.replay.dataset_replay import WithData
from jaxrl.replay.transitions import ReplayRow
from jaxrl.rollout.autoreset import first_input
from jaxrl.runtime.datasets.layouts import Spaces
from jaxrl.training import run_iterations
from tests.helpers import probes
from tests.helpers.agents import SMALL_ACTOR_CRITIC, Tiny, assert_close, small
from tests.helpers.datasets import random_dataset
from tests.helpers.hosted import hosted
from tests.helpers.oracles.actor_critic import (
    ACTIONS,
    CRITICS,
    OBSERVATIONS,
    REPLAY,
    SETTINGS,
    D,
    N,
    actor_critic_setup,
    case,
    check_q_probe,
    double,
    learn_q_probes,
    model,
)
from tests.helpers.oracles.policy_gradient import slope
from tests.helpers.probe_set import PROBES


def value_of(agent: Any, learner: Any, inputs: Any) -> Any:
    """Return V. Q is learnt for actions that were taken alone."""
    return iql.outputs(agent.algorithm.learn.args[-1], learner.params.actor, inputs)[1]


TINY = Tiny(
    settings={**SETTINGS, "model": SMALL_ACTOR_CRITIC, "cosine": False},
    value=value_of,
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 64}),
    value_rate="actor_learning_rate",
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
HP = IQLHyperparams(expectile=0.8, beta=2.0, weight_limit=3.0)


# --------------------------------------------------------------------------------------------------------- expectiles, weights


@pytest.mark.parametrize("level", [0.1, 0.5, 0.7, 0.99])
@pytest.mark.parametrize("p", [0.2, 0.5])
def test_the_minimum_is_the_expectile(level: float, p: float) -> None:
    """Of q₁ with probability p and q₀: (τ·p·q₁ + (1−τ)(1−p)·q₀) / (τ·p + (1−τ)(1−p))."""
    low, high = -1.0, 3.0
    expected = (level * p * high + (1 - level) * (1 - p) * low) / (level * p + (1 - level) * (1 - p))

    def loss(v: Any) -> Any:
        return p * expectile_loss(high - v, level) + (1 - p) * expectile_loss(low - v, level)

    assert float(jax.grad(loss)(expected)) == pytest.approx(0, abs=1e-5)
    assert float(loss(expected)) < min(float(loss(expected - 0.1)), float(loss(expected + 0.1)))


def test_weights() -> None:
    advantage = jnp.array([-1.0, 0.0, 0.3, 0.5, 1e6, -1e6])
    expected = [np.exp(-2), 1, np.exp(0.6), np.exp(1), 3, 0]
    np.testing.assert_allclose(Exponential().weights(advantage, HP), expected, rtol=1e-6)
    np.testing.assert_allclose(Exponential().weights(advantage, HP._replace(beta=0.0)), 1.0)
    assert Binary().weights(advantage, HP).tolist() == [0, 0, 1, 1, 1, 0]


# ---------------------------------------------------------------------------------------------------------------------- losses


def setup_of(policy: str, **options: Any) -> ActorCriticSetup[Any]:
    """Return a setup of linear networks: for a Box mean and log_std of a Normal, for Discrete actions logits; and V."""

    def outputs(p: Any, obs: Any) -> ActorCriticOutput:
        if policy == "categorical":
            return ActorCriticOutput(Categorical(obs @ p["logits"]), obs @ p["v"])
        return ActorCriticOutput(Normal(obs @ p["mean"], jnp.broadcast_to(p["log_std"], (len(obs), D))), obs @ p["v"])

    own = actor_critic_setup(
        IQLConfig(critics=Ensemble(size=CRITICS), **options), "categorical" if policy == "categorical" else "squashed"
    )
    parts: dict[str, Any] = {"replay": REPLAY, "critic": own.critic, "critic_actions": own.action_space}
    return ActorCriticSetup(OBSERVATIONS, own.action_space, model(outputs), own.config, **parts)


def case_of(policy: str, seed: int) -> tuple[Any, Any, Any, CriticBatch]:
    actor, critic, target_critic, now = case("categorical" if policy == "categorical" else "deterministic", seed)
    rng = np.random.default_rng(seed + 100)
    actor = {**actor, "v": rng.normal(size=3).astype(np.float32)}
    if policy != "categorical":
        actor["log_std"] = rng.normal(size=D).astype(np.float32) * 0.3
    return actor, critic, target_critic, now


@cache
def program(policy: str, **options: Any) -> Any:
    own = setup_of(policy, **options)

    def run(actor: Any, critic: Any, target_critic: Any, now: CriticBatch, hp: IQLHyperparams) -> Any:
        y = iql.target(own, actor, target_critic, now)
        of_critics, _ = iql.critic_loss(own, critic, y, now)
        of_actor = jax.value_and_grad(lambda p: iql.actor_loss(own, hp, p, target_critic, now), has_aux=True)(actor)
        return y, of_critics, of_actor

    return jit(run)


def q_of(policy: str, critics: Any, x: np.ndarray, action: Any, chosen: Any) -> float:
    """Compute the least chosen critic's value."""
    if policy == "categorical":
        return (x @ double(critics["x"]))[..., int(action)][chosen].min()
    each = [
        x @ double(critics["x"][i]) + action @ double(critics["a"][i]) + action**2 @ double(critics["a2"][i])
        for i in range(CRITICS)
    ]
    return np.array(each)[chosen].min()


def log_prob(policy: str, actor: Any, x: np.ndarray, action: Any) -> float:
    if policy == "categorical":
        logits = x @ actor["logits"]
        return logits[int(action)] - np.log(np.exp(logits).sum())
    mean, std = np.tanh(x @ actor["mean"]), np.exp(actor["log_std"])
    return (-0.5 * ((action - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("policy", ["normal", "categorical"])
def test_losses_and_gradients_are_the_papers(policy: str, seed: int) -> None:
    actor, critic, target_critic, now = case_of(policy, seed)
    y, of_critics, ((loss, metrics), gradient) = program(policy)(actor, critic, target_critic, now, HP)
    batch, where, chosen = now.batch, np.asarray(now.batch.valid), np.asarray(now.chosen)
    following, x, action = double(batch.next_inputs.obs), double(batch.inputs.obs), np.asarray(batch.action)
    expected = double(batch.reward) + double(batch.discount) * (following @ double(actor["v"]))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)

    def td() -> float:
        each = [[q_of(policy, critic, x[i], action[i], np.arange(CRITICS) == c) for c in range(CRITICS)] for i in range(N)]
        return (0.5 * double(batch.weight)[:, None] * (np.array(each) - expected[:, None]) ** 2).sum(1)[where].mean()

    q = np.array([q_of(policy, target_critic, x[i], action[i], chosen) for i in range(N)])
    weight = np.minimum(np.exp(2.0 * (q - x @ double(actor["v"]))), 3.0)  # a constant

    def by_hand(p: Any) -> float:
        error = q - x @ p["v"]
        value = (np.where(error < 0, 0.2, 0.8) * error**2)[where].mean()
        return value - (weight * np.array([log_prob(policy, p, x[i], action[i]) for i in range(N)]))[where].mean()

    assert float(of_critics) == pytest.approx(td(), rel=1e-4)
    in_double = jax.tree.map(double, actor)
    assert float(loss) == pytest.approx(by_hand(in_double), rel=1e-4)
    assert_close(gradient, jax.tree.map(np.float32, slope(by_hand, in_double)), atol=2e-3)
    assert float(metrics["losses/weight"]) == pytest.approx(weight[where].mean(), rel=1e-4)


def test_a_beta_of_0_is_behaviour_cloning() -> None:
    """The policy's gradient is that of the mean log-likelihood, whatever the critics."""
    actor, critic, target_critic, now = case_of("categorical", 0)
    _, _, (_, gradient) = program("categorical")(actor, critic, target_critic, now, HP._replace(beta=0.0))
    x, where = double(now.batch.inputs.obs), np.asarray(now.batch.valid)

    def likelihood(p: Any) -> float:
        return -np.array([log_prob("categorical", p, x[i], now.batch.action[i]) for i in range(N)])[where].mean()

    expected = slope(likelihood, {"logits": double(actor["logits"])})["logits"]
    np.testing.assert_allclose(gradient["logits"], expected, atol=1e-3)


def test_sampled_values_are_means_over_the_policy() -> None:
    """With many samples, V(s) is Σ π(a | s)·min Q⁻(s, a), in advantages and, with one sample, in targets. V is not learnt."""
    actor, critic, target_critic, now = case_of("categorical", 1)
    y, _, ((_, metrics), gradient) = program("categorical", value=Sampled(4000))(actor, critic, target_critic, now, HP)
    x, where, chosen = double(now.batch.inputs.obs), np.asarray(now.batch.valid), np.asarray(now.chosen)
    p = np.exp(x @ double(actor["logits"]))
    p /= p.sum(1, keepdims=True)
    least = np.array([[q_of("categorical", target_critic, x[i], a, chosen) for a in range(ACTIONS)] for i in range(N)])
    q = least[np.arange(N), np.asarray(now.batch.action)]
    assert float(metrics["losses/advantage"]) == pytest.approx((q - (p * least).sum(1))[where].mean(), abs=0.05)
    assert not np.asarray(gradient["v"]).any() and "losses/value_loss" not in metrics
    following = double(now.batch.next_inputs.obs)
    possible = np.array([[q_of("categorical", target_critic, following[i], a, chosen) for a in range(ACTIONS)] for i in range(N)])
    reached = (double(y) - double(now.batch.reward))[:, None] - double(now.batch.discount)[:, None] * possible
    assert (np.abs(reached).min(1) < 1e-3).all()


# ---------------------------------------------------------------------------------------------------------------------- chains

CHAIN = Spaces(spaces.Box(0.0, 1.0, (5,), np.float32), spaces.Discrete(2), "chain")
"""States 0 and 3 lead to 1, where action 0 ends in 2 with a reward of 0 and action 1 in 4 with a reward of 1."""


def chain_data() -> Any:
    states, actions, rewards, ends = [0, 1, 2, 3, 1, 4], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 0], [0, 1, 0, 0, 1, 0]
    one_hot = np.eye(5, dtype=np.float32)[states]
    rows = ReplayRow(
        one_hot,
        np.array(actions, np.int32),
        np.array(rewards, np.float32),
        np.array(ends, bool),
        np.array([1, 1, 0, 1, 1, 0], bool),
    )  # type: ignore[arg-type]
    return make_dataset(rows, CHAIN)


def test_stitching_on_a_chain() -> None:
    """V(1) is the expectile τ of {0, 1}, and Q(0, a) = γ·τ although no episode goes from 0 to 4. With τ near 1 that is the best
    value in the data. The policy takes the good action in 1."""
    env = hosted(probes.constant_reward())._replace(
        observation_space=CHAIN.observation_space, action_space=CHAIN.action_space, name="chain"
    )
    linear = {"model": {"hidden_sizes": ()}, "critic": {"hidden_sizes": ()}, "tau": 0.05}
    rates = {"learning_rate": 0.02, "actor_learning_rate": 0.02, "gamma": 0.5, "cosine": False, "weight": Exponential(beta=10.0)}
    plain = {"scale_rewards": False, "normalize_observations": False, "batch_size": 32, "updates": 100}
    data = chain_data()
    agent = make_iql(env, data=data, **linear, **rates, **plain)
    level = jnp.array([0.5, 0.9])

    def train(level: Any, data: Any) -> Any:
        stepping = agent._replace(step=lambda state: agent.step(state, data))
        return run_iterations(stepping, agent.init(KEY(), {"expectile": level}), 25)[0].learner

    learners = jit(jax.vmap(train, in_axes=(0, None)))(level, data)
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    inputs = first_input(jnp.eye(5), env.action_space, 5)
    for i, tau in enumerate((0.5, 0.9)):
        params = jax.tree.map(lambda x, i=i: x[i], learners.params)
        output, value = iql.outputs(setup, params.actor, inputs)
        q = iql.action_values(setup, params.critic, inputs)[0]
        assert float(value[1]) == pytest.approx(tau, abs=0.06)
        assert float(q[1, 0]) == pytest.approx(0, abs=0.05) and float(q[1, 1]) == pytest.approx(1, abs=0.05)
        assert float(q[0, 0]) == pytest.approx(0.5 * tau, abs=0.05) and float(q[3, 1]) == pytest.approx(0.5 * tau, abs=0.05)
        assert int(output.mode()[1]) == 1 and float(jax.nn.softmax(output.logits)[1, 1]) > 0.9


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, Any]:
    return learn_q_probes(partial(small, "iql", learning_rate=0.01, actor_learning_rate=0.01, value=Expectile(0.95), gamma=0.9))


@pytest.mark.parametrize("name", PROBES)
def test_probes(name: str) -> None:
    check_q_probe(name, *learnt()[name])


# -------------------------------------------------------------------------------------------------------------------- datasets


@pytest.mark.slow
def test_observations_are_normalised_and_rewards_scaled_as_in_the_data() -> None:
    """Statistics are the data's, and stay. A policy carries them, and acts on raw observations."""
    data = random_dataset("Pendulum-v1")
    agent = make_iql("Pendulum-v1", data=data, updates=2, batch_size=16, model={"hidden_sizes": (8,)})
    state = agent.init(KEY())
    after, _ = jit(agent.step)(state, data)
    moments = after.learner.statistics.observations
    rows = jax.device_get(data.rows())
    np.testing.assert_allclose(moments.mean, rows.obs[rows.valid].mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.sqrt(moments.variance), rows.obs[rows.valid].std(0), rtol=1e-4)
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    draws = jax.tree.map(lambda x: x[0, 0], draw_updates(setup, after.learner._replace(replay=WithData((), data)), 0.9))
    batch = seen(after.learner.statistics, draws, reward_scale(setup))
    low, high = data.info.returns
    np.testing.assert_allclose(batch.batch.reward, draws.batch.reward * 1000 / (high - low), rtol=1e-5)
    scaled = (draws.batch.inputs.obs - moments.mean) / np.sqrt(moments.variance)
    np.testing.assert_allclose(batch.batch.inputs.obs, np.clip(scaled, -10, 10), rtol=1e-3, atol=1e-3)
    plain = make_iql("Pendulum-v1", data=data, normalize_observations=False, scale_rewards=False, model={"hidden_sizes": (8,)})
    assert plain.init(KEY()).learner.statistics == ()
    assert small("iql", "CartPole-v1").init(KEY()).learner.statistics == ()


def test_the_policys_rate_follows_half_a_cosine() -> None:
    """Steps of plain gradient descent on the policy shrink with it, and those of the critics do not."""
    data = random_dataset("Pendulum-v1", rows=40)
    settings = {"batch_size": 16, "model": {"hidden_sizes": (8,)}, "optimizer": sgd, "updates": 1}
    agent = make_iql("Pendulum-v1", data=data, **settings)
    state = agent.init(KEY(), {"total_steps": 4.0, "actor_learning_rate": 1e-2, "learning_rate": 1e-2})
    rates = []
    for _ in range(4):
        before, (state, metrics) = state, jit(agent.step)(state, data)
        norms = []
        for part, name in (("actor", "losses/actor_grad_norm"), ("critic", "losses/grad_norm")):
            old, new = (getattr(x.learner.params, part) for x in (before, state))
            moved = float(optax.tree.norm(jax.tree.map(lambda x, y: x - y, new, old)))
            norms.append(moved / float(metrics[name]) / 1e-2)
        rates.append(norms)
    np.testing.assert_allclose(np.array(rates)[:, 0], 0.5 * (1 + np.cos(np.pi * np.arange(4) / 4)), rtol=1e-3)
    np.testing.assert_allclose(np.array(rates)[:, 1], 1.0, rtol=1e-3)


def sgd(hyperparams: Any) -> Any:
    return optax.sgd(hyperparams.learning_rate)


@pytest.mark.parametrize("settings", [{}, {"value": Sampled(2), "weight": Binary()}, {"weight": {"beta": 1.0}}])
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_options_learn_from_data(env: str, settings: dict[str, Any]) -> None:
    data = random_dataset(env)
    agent = make_iql(env, data=data, updates=4, batch_size=16, model={"hidden_sizes": (8,)}, **settings)
    state, metrics = jit(agent.step)(agent.init(KEY()), data)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state.learner.params)) and int(state.learner.version) == 1
    assert ("losses/value_loss" in metrics) == (not isinstance(settings.get("value"), Sampled))


def test_options_are_data() -> None:
    agent = small("iql", "CartPole-v1", value=Expectile(0.9), weight=Exponential(beta=1.0))
    assert (agent.hyperparams.expectile, agent.hyperparams.beta) == (0.9, 1.0)
    with pytest.raises(ValueError, match=r"Exponential: beta=-1 is not allowed"):
        Exponential(beta=-1)
    with pytest.raises(TypeError, match=r"must give an ActorCriticOutput"):
        jaxrl.make_iql("CartPole-v1", model=jaxrl.models.q_network)
    with pytest.raises(TypeError, match="memoryless"):
        jaxrl.make_iql("CartPole-v1", model={"core": "gru"})
