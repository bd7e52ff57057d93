"""IMPALA: loss and gradient against NumPy, values learnt from stale rollouts, probes with older policies, memory, invalid
settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import make_impala
from jaxrl.algorithms.a2c import A2CConfig, A2CHyperparams, a2c_loss
from jaxrl.algorithms.impala import IMPALAConfig, IMPALAHyperparams, impala_loss
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.intrinsic.part import ADVANTAGE
from jaxrl.metrics import identity, merge, to_floats
from jaxrl.models import q_network
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.collect import collect
from jaxrl.runtime.evaluation.evaluate import evaluate
from jaxrl.training import run_iterations
from jaxrl.types import Agent, Max, Rollout
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_ACTOR_CRITIC, Tiny, assert_close, outputs_of, small
from tests.helpers.loss_cases import linear_model
from tests.helpers.oracles.policy_gradient import B, T, episodes, log_probs, losses, rollout_case, slope, values
from tests.helpers.probe_set import PROBES, Learnt, learn_probes

TINY = Tiny(
    settings={"num_envs": 4, "rollout_length": 8, "anneal": False, "model": SMALL_ACTOR_CRITIC},
    value=lambda *given: outputs_of(*given).value,
    one_gradient=("CartPole-v1", {}),
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
small_impala = partial(small, "impala")
HP = IMPALAHyperparams(gamma=0.8, vtrace_lambda=0.7, rho_bar=1.2, c_bar=0.9, ent_coef=0.3, vf_coef=0.6)


# ------------------------------------------------------------------------------------------------------------------------ loss


def stale_case(discrete: bool, seed: int) -> tuple[dict[str, np.ndarray], Rollout]:
    """Return ``rollout_case`` with another acting policy. Rows that are not valid have NaN log-probabilities."""
    params, rollout = rollout_case(discrete, seed)
    other, _ = rollout_case(discrete, seed + 100)
    log_prob = np.where(rollout.valid, log_probs(discrete, other, rollout)[0], np.nan)
    return params, rollout._replace(extras={"log_prob": log_prob.astype(np.float32)})


def traced(rollout: Rollout, value: np.ndarray, ratio: np.ndarray, hp: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compute ``(targets, advantages)`` as a double sum over the rest of each episode (Espeholt et al.

    2018, sections 4.1 and 4.2).
    """
    target, advantage = np.zeros((T, B)), np.zeros((T, B))
    rho, c = np.minimum(hp.rho_bar, ratio), hp.vtrace_lambda * np.minimum(hp.c_bar, ratio)
    for b, start, stop in episodes(rollout):
        reached = np.where(rollout.terminated[start:stop, b], 0.0, value[start + 1 : stop + 1, b])
        delta = rollout.reward[start:stop, b] + hp.gamma * reached - value[start:stop, b]
        for s in range(start, stop):
            sums = [hp.gamma ** (t - s) * np.prod(c[s:t, b]) * rho[t, b] * delta[t - start] for t in range(s, stop)]
            target[s, b] = value[s, b] + sum(sums)
        for s in range(start, stop):
            last = s == stop - 1
            beyond = reached[s - start] + (0 if last else hp.vtrace_lambda * (target[s + 1, b] - value[s + 1, b]))
            advantage[s, b] = rho[s, b] * (rollout.reward[s, b] + hp.gamma * beyond - value[s, b])
    return target, advantage


@cache
def loss_and_gradient(discrete: bool) -> Any:
    loss = partial(impala_loss, linear_model(discrete), IMPALAConfig(), axis_name=None)
    return jit(jax.value_and_grad(lambda params, hp, rollout: loss(hp, params, rollout), has_aux=True))


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("hp", [HP, HP._replace(vtrace_lambda=1.0, rho_bar=1.0, c_bar=1.0), HP._replace(rho_bar=1e6, c_bar=1e6)])
def test_loss_and_gradient_are_the_papers(discrete: bool, hp: IMPALAHyperparams) -> None:
    for seed in range(2):
        params, rollout = stale_case(discrete, seed)
        (total, metrics), gradient = loss_and_gradient(discrete)(params, hp, rollout)
        log_ratio = np.where(rollout.valid, log_probs(discrete, params, rollout)[0] - rollout.extras["log_prob"], 0.0)
        ratio = np.exp(log_ratio)
        assert (ratio > 1.5).any() and (ratio < 0.5).any()
        target, advantage = traced(rollout, values(params, rollout), ratio, hp)
        # Ratios, advantages and targets are constants of the gradient.
        rest = (rollout, advantage, target, rollout.valid, hp)
        found = {"total": float(total), **{name: float(x) for name, x in metrics.items()}}
        own = {"losses/approx_kl": -log_ratio, "losses/rho": np.minimum(ratio, hp.rho_bar)}
        expected = losses(discrete, params, *rest) | {name: x[rollout.valid].mean() for name, x in own.items()}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
        moved = slope(lambda p, rest=rest: losses(discrete, p, *rest)["total"], params)
        assert_close(gradient, jax.tree.map(np.float32, moved), atol=1e-3)


def test_advantages_of_an_intrinsic_reward_count_as_their_rows_do() -> None:
    params, rollout = stale_case(True, 0)
    bonus = np.random.default_rng(0).normal(size=(T, B)).astype(np.float32)
    given = rollout._replace(extras={**rollout.extras, ADVANTAGE: bonus})
    (_, before), (_, after) = (loss_and_gradient(True)(params, HP, each)[0] for each in (rollout, given))
    log_prob = log_probs(True, params, rollout)[0]
    rho = np.minimum(np.exp(log_prob - rollout.extras["log_prob"]), HP.rho_bar)
    name, expected = "losses/policy_loss", -(rho * bonus * log_prob)[rollout.valid].mean()
    assert float(after[name] - before[name]) == pytest.approx(expected, rel=1e-3)


# -------------------------------------------------------------------------------------------------------------- stale rollouts

MU, PI, REWARD = np.array([0.25, 0.75]), np.array([0.5, 0.5]), np.array([4.0, 0.0])
"""For two actions: their frequency in the rollout, their probability in the learning policy, and their reward."""
GAMMA = 0.5
CHAIN = A2CHyperparams(gamma=GAMMA, gae_lambda=1.0, ent_coef=0.0, vf_coef=1.0)


def chain() -> Rollout:
    """Build rollouts of two rows and an end, with each pair of actions as often as the policy μ takes it."""
    often = np.repeat([0, 1], [1, 3])
    action = np.stack(np.meshgrid(often, often)).reshape(2, -1).astype(np.int32)  # [T, B]
    seen = np.broadcast_to(np.eye(3, dtype=np.float32)[:, None], (3, 16, 3))
    nothing, ends = np.zeros((2, 16), bool), np.arange(2)[:, None] == np.ones(16)
    return Rollout(
        inputs=first_input(seen, spaces.Discrete(2), 16),
        action=action,
        reward=REWARD[action].astype(np.float32),
        terminated=ends,
        truncated=nothing,
        extras={"log_prob": np.log(MU)[action].astype(np.float32)},
        valid=~nothing,
        carry=(),
        env_id=np.arange(16, dtype=np.int32),
        version=np.zeros(16, np.int32),
    )


@cache
def fixed_point(loss: Any, config: Any) -> Any:
    """Return hyperparams -> the values [start, second] at which the loss is stationary, and the policy's gradient there."""

    def solve(hp: Any) -> Any:
        params = {"w": jnp.log(jnp.tile(jnp.asarray(PI, jnp.float32), (3, 1))), "v": jnp.zeros(3), "log_std": jnp.zeros(2)}
        slope = jax.grad(lambda params: loss(linear_model(True), config, hp, params, chain(), None)[0])
        # Half of the rows have each observation, so twice the gradient is that of the observation's mean squared error.
        step = lambda _, v: v - 0.5 * slope({**params, "v": v})["v"]  # noqa: E731
        v = jax.lax.fori_loop(0, 200, step, params["v"])
        return v[:2], slope({**params, "v": v})["w"]

    return jit(solve)


def gradient_of(policy: np.ndarray, value: float, advantage_beyond: np.ndarray) -> np.ndarray:
    """Compute −∇ E[log π · A] with respect to the logits of π, with actions drawn from ``policy``, halved as a mean over two
    rows."""
    advantage = REWARD + advantage_beyond - value
    return -0.5 * policy @ (advantage[:, None] * (np.eye(2) - PI))


@pytest.mark.parametrize("bars", [(1e3, 1e3), (1e3, 1.0), (1.0, 1.0), (0.5, 0.5)])
def test_a_stale_rollout_teaches_the_values_of_the_policy_that_learns(bars: tuple[float, float]) -> None:
    """Espeholt et al. 2018, eq. 3: the fixed point is V of the policy ∝ min(ρ̄·μ, π), which is π for a high ρ̄, for any c̄."""
    hp = IMPALAHyperparams(gamma=GAMMA, ent_coef=0.0, vf_coef=1.0, rho_bar=bars[0], c_bar=bars[1])
    value, slope = fixed_point(impala_loss, IMPALAConfig())(hp)
    kept = np.minimum(bars[0] * MU, PI)
    earned = (kept / kept.sum()) @ REWARD
    np.testing.assert_allclose(value, [earned * (1 + GAMMA), earned], rtol=1e-3)
    if bars[0] > 2:  # as if π itself had acted
        np.testing.assert_allclose(earned, PI @ REWARD)
        expected = gradient_of(PI, PI @ REWARD, np.zeros(2))
        np.testing.assert_allclose(slope[:2], np.stack([expected] * 2), rtol=1e-3)


def test_a2c_takes_it_for_its_own() -> None:
    """The error that IMPALA corrects: A2C learns the values and the gradient of μ."""
    value, slope = fixed_point(a2c_loss, A2CConfig())(CHAIN)
    np.testing.assert_allclose(value, [MU @ REWARD * (1 + GAMMA), MU @ REWARD], rtol=1e-3)
    assert abs(float(value[1]) - PI @ REWARD) > 0.9
    np.testing.assert_allclose(slope[1], gradient_of(MU, MU @ REWARD, np.zeros(2)), rtol=1e-3)


@pytest.mark.parametrize("discrete", [True, False])
def test_a_fresh_rollout_teaches_as_a2c_does(discrete: bool) -> None:
    params, rollout = rollout_case(discrete)
    fresh = rollout._replace(extras={"log_prob": log_probs(discrete, params, rollout)[0].astype(np.float32)})
    hp = A2CHyperparams(gamma=0.8, gae_lambda=0.7, ent_coef=0.3, vf_coef=0.6)
    expected = jit(jax.grad(lambda p: a2c_loss(linear_model(discrete), A2CConfig(), hp, p, fresh, None)[0]))(params)
    gradient = loss_and_gradient(discrete)(params, HP._replace(rho_bar=1.0, c_bar=1.0), fresh)[1]
    assert_close(gradient, expected, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------- probes

LAG = 8
"""Number of updates during which the same policy acts."""


def lagging(agent: Agent, state: Any, iterations: int) -> Any:
    """Do ``run_iterations`` with rollouts of policies that are up to LAG − 1 updates old."""
    env_id, algorithm = jnp.arange(agent.num_envs, dtype=jnp.int32), agent.algorithm

    def step(state: Any, acting: Any) -> Any:
        key = jax.random.fold_in(state.key, state.iteration)
        rest = (state.env_params, env_id, key, agent.rollout_length)
        actor, rollout, logged = collect(algorithm, agent.env, acting, state.actor, *rest)
        learner, learnt = algorithm.update(state.learner, rollout)
        lag = {"lag": Max((state.learner.version - rollout.version).max().astype(jnp.float32))}
        return state._replace(learner=learner, actor=actor, iteration=state.iteration + 1), {**logged, **learnt, **lag}

    def body(i: Any, carry: Any) -> Any:
        state, acting, metrics = carry
        acting = jax.tree.map(partial(jnp.where, i % LAG == 0), algorithm.policy(state.learner), acting)
        state, new = step(state, acting)
        return state, acting, merge(metrics, new)

    acting = algorithm.policy(state.learner)
    start = (state, acting, identity(jax.eval_shape(step, state, acting)[1]))
    state, _, metrics = jax.lax.fori_loop(0, iterations, body, start)
    return state, metrics


@cache
def learnt() -> dict[str, Learnt]:
    return learn_probes("impala", 400, train=lagging)


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    """With rollouts of older policies."""
    PROBES[probe][1](learnt()[probe])


@pytest.mark.slow
def test_a_gru_remembers_a_cue() -> None:
    """With rollouts of older policies, from the carry that they had. A policy without memory has a mean return of 0."""
    agent = small_impala(probes.memory(), model=RECURRENT, num_envs=32, rollout_length=20, learning_rate=1e-2, gamma=0.9)

    def run(key: Any) -> Any:
        state, metrics = lagging(agent, agent.init(key), 400)
        return evaluate(agent, state, key, 256).episodic_return.mean(), metrics

    score, metrics = jit(run)(KEY())
    logged = to_floats(metrics)
    assert float(score) > 0.95 and logged["lag"] == LAG - 1
    assert logged["losses/rho"] < 0.995 and logged["losses/approx_kl"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "settings"), [(probes.target_action, {}), (probes.two_choices, {}), (probes.memory, {"model": RECURRENT})]
)
def test_the_policy_that_acted_has_ratios_of_1(env: Any, settings: dict[str, Any]) -> None:
    """Continuous, masked, and recurrent from within episodes: learning computes the log-probabilities that acting stored."""
    agent: Agent = small_impala(env(), **settings)
    logged = to_floats(jit(lambda key: run_iterations(agent, agent.init(key), 2)[1])(KEY()))
    assert logged["losses/rho"] == pytest.approx(1.0, abs=1e-5) and logged["losses/approx_kl"] == pytest.approx(0.0, abs=1e-5)


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_length": 0}, "rollout_length=0 must be an integer >= 1"),
        ({"vtrace_lambda": 1.5}, r"vtrace_lambda=1.5 is not allowed: it must be a number in \[0, 1\]"),
        ({"rho_bar": 0}, "rho_bar=0 is not allowed"),
        ({"c_bar": -1.0}, "c_bar=-1 is not allowed"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_impala(probes.truncation(), **settings)


@pytest.mark.parametrize(
    ("name", "here"),
    [("vtrace_clip_rho_threshold", "rho_bar"), ("clip_c_threshold", "c_bar"), ("gae_lambda", "vtrace_lambda")],
)
def test_settings_as_others_call_them(name: str, here: str) -> None:
    with pytest.raises(TypeError, match=rf"unknown keyword '{name}'\. It is called '{here}' here"):
        small_impala(probes.truncation(), **{name: 1.0})


def test_models_that_are_none() -> None:
    for model in (5, q_network):
        with pytest.raises(TypeError, match=r"^model="):
            make_impala(probes.truncation(), model=model)
