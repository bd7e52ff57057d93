"""Quantile critics: truncation and loss against NumPy, SAC's target and policy loss with them, invalid settings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import make_sac
from jaxrl.algorithms import sac
from jaxrl.algorithms.common import soft_policy
from jaxrl.algorithms.common.critics.distributional import Quantiles, quantile_loss, truncated
from jaxrl.algorithms.sac import SACConfig
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import action_value
from tests.helpers import probes
from tests.helpers.agents import assert_close, run_steps, small
from tests.helpers.oracles.actor_critic import CRITICS, N, actor_critic_setup, case, double, model, squashed_by_hand
from tests.helpers.oracles.policy_gradient import slope

K, DROPPED = 5, 2
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


def test_the_largest_of_all_critics_together_are_dropped() -> None:
    values = np.array([[[5.0, 1.0, 3.0]], [[4.0, 9.0, 8.0]]])
    np.testing.assert_array_equal(truncated(jnp.asarray(values), 1), [[1, 3, 4, 5]])
    np.testing.assert_array_equal(truncated(jnp.asarray(values), 0), [[1, 3, 4, 5, 8, 9]])


def by_hand(values: np.ndarray, target: np.ndarray, batch: Any) -> float:
    total = 0.0
    for i in np.flatnonzero(batch.valid):
        for e in range(CRITICS):
            for k in range(K):
                for y in target[i]:
                    u = y - values[e, i, k]
                    huber = 0.5 * u**2 if abs(u) < 1 else abs(u) - 0.5
                    total += batch.weight[i] * abs((k + 0.5) / K - (u < 0)) * huber / (K * len(target[i]))
    return float(total / batch.valid.sum())


@pytest.mark.slow
def test_the_loss_and_its_gradient_are_the_papers() -> None:
    rng, batch = np.random.default_rng(0), case("squashed", 0)[-1].batch
    values, target = (2 * rng.normal(size=shape).astype(np.float32) for shape in ((CRITICS, N, K), (N, 7)))
    (loss, metrics), gradient = jit(jax.value_and_grad(partial(quantile_loss, axis_name=None), has_aux=True))(
        values, target=target, batch=batch
    )
    assert float(loss) == pytest.approx(by_hand(double(values), double(target), batch), rel=1e-4)
    assert float(metrics["losses/q_values"]) == pytest.approx(values[:, np.asarray(batch.valid)].mean(), rel=1e-4)
    errors = np.abs(double(target)[None, :, None] - double(values)[..., None]).mean((0, 2, 3))
    np.testing.assert_allclose(metrics[PRIORITIES], np.where(batch.valid, errors, 0), rtol=1e-4)
    expected = slope(lambda p: by_hand(p["values"], double(target), batch), {"values": values})["values"]
    assert_close(gradient, np.float32(expected), atol=1e-3)


def test_quantiles_of_a_distribution_are_found() -> None:
    """With many targets of one row, the loss is minimal near their quantiles (not exactly, since Huber's loss differs from
    |x|)."""
    batch = jax.tree.map(lambda x: jnp.asarray(x)[:1], case("squashed", 0)[-1].batch)
    batch = batch._replace(valid=jnp.ones(1, bool), weight=jnp.ones(1))
    target = 40 * jax.random.normal(jax.random.key(0), (1, 500))

    def step(values: Any, _: None) -> Any:
        return values - 20 * jax.grad(lambda v: quantile_loss(v, target, batch, None)[0])(values), None

    values, _ = jit(lambda start: jax.lax.scan(step, start, length=1000))(jnp.zeros((1, 1, K)))
    np.testing.assert_allclose(values[0, 0], np.quantile(target, (np.arange(K) + 0.5) / K), atol=2.0)


def test_targets_and_the_policy_of_sac() -> None:
    """The critics' quantiles do not depend on the input.

    Targets pool them without the largest, minus the entropy; the policy uses the mean.
    """
    config = SACConfig(critics=Quantiles(CRITICS, K, dropped=DROPPED), actor_value="mean")
    constant = model(lambda p, obs: jnp.broadcast_to(p, (N, K)))
    own = replace(actor_critic_setup(config, "squashed"), critic=constant)
    actor, _, _, now = case("squashed", 1)
    quantiles = np.random.default_rng(0).normal(size=(CRITICS, K)).astype(np.float32)

    def run(*given: Any) -> Any:
        return sac.target(own, actor, *given), soft_policy.actor_loss(own, actor, *given)

    y, (loss, _) = jit(run)(quantiles, jnp.float32(0.3), now)
    kept = np.sort(quantiles.ravel())[: CRITICS * (K - DROPPED)]
    actor = {name: double(w) for name, w in actor.items()}
    log_prob = [
        [squashed_by_hand(actor, double(inputs.obs[i]), double(now.noise[j, i]))[1] for i in range(N)]
        for j, inputs in enumerate((now.batch.next_inputs, now.batch.inputs))
    ]
    expected = now.batch.reward[:, None] + now.batch.discount[:, None] * (kept - 0.3 * np.array(log_prob[0])[:, None])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert float(loss) == pytest.approx(np.mean(0.3 * np.array(log_prob[1])[now.batch.valid]) - quantiles.mean(), rel=1e-4)


SETTINGS = {"critic": partial(action_value, hidden_sizes=(8,), num_outputs=K), "critics": Quantiles(num_quantiles=K)}


@pytest.mark.slow
def test_an_agent_with_quantile_critics_learns() -> None:
    agent = small("sac", probes.truncation(), **SETTINGS)
    before = agent.init(jax.random.key(0))
    after, metrics = run_steps(agent, before, 2)
    assert np.isfinite(float(metrics["losses/td_loss"].sum))
    assert after.learner.params.critic["params"]["value"]["bias"].shape == (2, K)


def test_critics_that_give_something_else_are_refused() -> None:
    with pytest.raises(TypeError, match=r"critic=.* must give 7 numbers f32\[batch, 7\] for each observation and action"):
        small("sac", probes.target_action(), **{**SETTINGS, "critics": Quantiles(num_quantiles=7)})


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"critics='quantiles' are for Box actions, and the environment has Discrete\(2\)"):
        make_sac(probes.truncation(), critics=Quantiles())
