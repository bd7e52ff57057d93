"""PQN for Box actions: λ-returns, losses and gradients against NumPy, probes, noise, devices, seeds, resume, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import make_pqn
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair
from jaxrl.algorithms.pqn import PQNConfig, PQNHyperparams
from jaxrl.algorithms.pqn_box import PQNBoxRows, PQNBoxSetup, actor_loss, critic_loss, targets
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.optimize import clipped_adam
from jaxrl.options import VDN, Spread
from jaxrl.parallel import data_parallel
from jaxrl.rollout.autoreset import first_input
from jaxrl.types import Agent, Model
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, assert_close, run_steps
from tests.helpers.hosted import hosted
from tests.helpers.oracles.actor_critic import check_q_probe, double, learn_q_probes
from tests.helpers.oracles.policy_gradient import FEATURES, B, T, peng_returns, rollout_case, slope
from tests.helpers.probe_set import PROBES
from tests.helpers.probes import as_box

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
D = 2
BOX = spaces.Box(-2, 2, (D,), np.float32)
HP = PQNHyperparams(gamma=0.8, q_lambda=0.7)
SMALL: dict[str, Any] = {"num_envs": 4, "rollout_length": 8, "num_epochs": 2, "num_minibatches": 2, "anneal": False}


def small_box(env: Any = "Pendulum-v1", **settings: Any) -> Agent:
    return make_pqn(env, **{**SMALL, "model": {"hidden_sizes": (8,)}, **settings})


def by_hand_setup() -> Any:
    """Return a setup whose policy is tanh(w·s), and whose critic is c·s + (k·s)·Σ (a − 0.3)²."""

    def action(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        return carry, jnp.tanh(inputs.obs @ params["w"])

    def value(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        obs, action = inputs.obs
        return carry, obs @ params["c"] + (obs @ params["k"]) * ((action - 0.3) ** 2).sum(-1)

    models = [Model(None, function, function, lambda batch: ()) for function in (action, value)]  # type: ignore[arg-type]
    observed = spaces.Box(-9, 9, (FEATURES,), np.float32)
    parts: Any = (observed, BOX, models[0], PQNConfig(), clipped_adam, {}, (), None)
    return PQNBoxSetup(*parts, critic=models[1])


def act_by_hand(actor: Any, obs: np.ndarray) -> np.ndarray:
    return np.tanh(double(obs) @ double(actor["w"]))


def value_by_hand(critic: Any, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    return double(obs) @ double(critic["c"]) + (double(obs) @ double(critic["k"])) * ((double(action) - 0.3) ** 2).sum(-1)


def case(seed: int = 0) -> tuple[ActorCriticPair, Any]:
    rng, (_, rollout) = np.random.default_rng(seed), rollout_case(False, seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    spread = lambda x: x if x.ndim == 3 else np.broadcast_to(x, (T + 1, B))  # noqa: E731
    inputs = jax.tree.map(lambda x: spread(np.asarray(x)), rollout.inputs)
    rollout = rollout._replace(inputs=inputs, extras={"raw_action": np.tanh(normal(T, B, D))})
    return ActorCriticPair({"w": normal(FEATURES, D)}, {"c": normal(FEATURES), "k": normal(FEATURES)}), rollout


# ------------------------------------------------------------------------------------------------------------------------ loss


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_targets_are_lambda_returns_of_the_policys_action(lam: float) -> None:
    params, rollout = case()
    batch, error = jit(partial(targets, by_hand_setup()))(params, rollout, HP._replace(q_lambda=lam))
    obs, action = np.asarray(rollout.inputs.obs), np.asarray(rollout.extras["raw_action"])
    reached = value_by_hand(params.critic, obs, act_by_hand(params.actor, obs))
    valid, expected = rollout.valid, peng_returns(rollout, reached[..., None], 0.8, lam)
    np.testing.assert_allclose(np.reshape(batch.target, (T, B))[valid], expected[valid], rtol=1e-4, atol=1e-4)
    expected -= value_by_hand(params.critic, obs[:-1], action)
    np.testing.assert_allclose(np.reshape(error, (T, B))[valid], expected[valid], rtol=1e-4, atol=1e-4)


def test_each_loss_has_a_gradient_for_its_network() -> None:
    params, rollout = case(1)
    setup, valid = by_hand_setup(), np.asarray(rollout.valid).ravel()
    obs, action = np.asarray(rollout.inputs.obs)[:-1].reshape(-1, FEATURES), rollout.extras["raw_action"].reshape(-1, D)
    target = np.random.default_rng(0).normal(size=T * B).astype(np.float32)
    inputs = first_input(jnp.asarray(obs), BOX, T * B)
    batch = PQNBoxRows(inputs, jnp.asarray(action), jnp.asarray(target), jnp.asarray(valid))
    found, gradient = jit(jax.value_and_grad(lambda critic: critic_loss(setup, critic, batch)[0]))(params.critic)

    def of_critic(critic: Any) -> float:
        return float((0.5 * (value_by_hand(critic, obs, action) - double(target)) ** 2)[valid].mean())

    assert float(found) == pytest.approx(of_critic(params.critic), rel=1e-5)
    assert_close(gradient, jax.tree.map(np.float32, slope(of_critic, params.critic)), atol=1e-3)
    found, gradient = jit(jax.value_and_grad(lambda actor: actor_loss(setup, actor, params.critic, batch)[0]))(params.actor)

    def of_actor(actor: Any) -> float:
        return float(-value_by_hand(params.critic, obs, act_by_hand(actor, obs))[valid].mean())

    assert float(found) == pytest.approx(of_actor(params.actor), rel=1e-5)
    assert_close(gradient, jax.tree.map(np.float32, slope(of_actor, params.actor)), atol=1e-3)


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, Any]:
    settings: dict[str, Any] = {"gamma": 0.9, "learning_rate": 3e-3, "epsilon_end": 0.5, "exploration_steps": 1_000}
    settings |= {"num_envs": 8, "num_epochs": 4, "num_minibatches": 4, "model": {"hidden_sizes": (16,)}}

    def value(agent: Agent, learner: Any, inputs: Any, action: Any) -> Any:
        setup = agent.algorithm.update.args[0]  # type: ignore[attr-defined]
        return setup.value(learner.params.critic, inputs, jnp.full((len(inputs.is_first), 1), action))

    return learn_q_probes(lambda env: small_box(as_box(env), **settings), 300, value)


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    check_q_probe(probe, *learnt()[probe])


# ---------------------------------------------------------------------------------------------------------------------- acting


def test_noise_has_the_deviation_epsilon() -> None:
    agent = small_box(exploration=Spread(), num_envs=4, epsilon_start=0.1, epsilon_end=0.1)
    learner = jit(agent.init)(KEY()).learner
    policy = agent.algorithm.policy(learner)
    obs = jnp.zeros((4, 3))
    inputs, ids = first_input(obs, agent.env.action_space, 4), jnp.arange(4)
    act = jit(jax.vmap(lambda key: agent.algorithm.act(policy, (), inputs, ids, key, explore=True)[2]["raw_action"][:, 0]))
    drawn = act(jax.random.split(KEY(), 400))
    greedy = agent.algorithm.act(policy, (), inputs, ids, KEY(), explore=False)[1]
    assert np.ptp(np.asarray(greedy)) == 0
    expected = 0.1 ** (1 + Spread().exponent * np.arange(4) / 3)
    np.testing.assert_allclose(np.std(drawn, axis=0), expected, rtol=0.15)


def test_actions_are_within_the_bounds() -> None:
    agent = small_box(epsilon_end=1.0)
    state, metrics = run_steps(agent, jit(agent.init)(KEY()), 2)
    assert np.isfinite(float(metrics["losses/actor_loss"].sum)) and int(state.iteration) == 2


# ---------------------------------------------------------------------------------------------- devices, seeds, resumed runs


@pytest.mark.slow
def test_two_devices_learn_as_one() -> None:
    agent = small_box(num_epochs=1, num_minibatches=1)
    shared = data_parallel(agent, 2)
    state = shared.init(KEY())
    state, _ = jax.jit(shared.step)(state)
    solo, _ = run_steps(agent, agent.init(KEY()), 1)
    assert_close(state.learner.params, solo.learner.params)
    assert_close(state.actor, solo.actor)


@pytest.mark.slow
def test_seeds_are_those_alone_and_runs_resume(tmp_path: Path) -> None:
    agent = small_box()
    both, _ = jit(jax.vmap(agent.step))(jit(jax.vmap(agent.init))(jax.random.split(KEY(), 2)))
    one, _ = run_steps(agent, jit(agent.init)(jax.random.split(KEY(), 2)[1]), 1)
    assert_close(jax.tree.map(lambda x: x[1], both.learner.params), one.learner.params)
    quiet: dict[str, Any] = {"quiet": True, "seeds": 2, "tensorboard": False}
    whole, _ = jaxrl.run(agent, 128, **quiet)
    jaxrl.run(agent, 64, out=tmp_path / "run", **quiet)
    resumed, _ = jaxrl.resume(tmp_path / "run", total_steps=128, quiet=True)
    assert_bit_equal(resumed, whole)
    assert jaxrl.load_policy(tmp_path / "run")(np.zeros(3, np.float32)).shape == (1,)


# ------------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decomposition": VDN()}, "decomposition=VDN.* is for Discrete actions"),
        ({"model": {"core": "gru"}}, "must be memoryless"),
        ({"num_minibatches": 7}, "num_minibatches=7 must divide"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        small_box(**settings)


def test_a_box_needs_bounds() -> None:
    env = hosted(probes.constant_reward())._replace(action_space=spaces.Box(-np.inf, np.inf, (1,), np.float32), name="open")
    with pytest.raises(ValueError, match=r"open has Box.* with bounds on all sides"):
        small_box(env)
