"""SAC's losses and their gradients against NumPy, for both kinds of actions."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.algorithms import sac
from jaxrl.algorithms.common import soft_policy
from jaxrl.algorithms.common.critics.ensemble import Ensemble
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.algorithms.sac import SACConfig, SACHyperparams
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.envs.checks.check_env import COMPILE_FAST
from tests.helpers.agents import assert_bit_equal, assert_close
from tests.helpers.oracles.actor_critic import (
    ACTIONS,
    BOX,
    CRITICS,
    N,
    actor_critic_setup,
    case,
    double,
    q_by_hand,
    squashed_by_hand,
)
from tests.helpers.oracles.policy_gradient import slope

KINDS = ("squashed", "categorical")
ALPHA = 0.3


@cache
def programs(policy: str, actor_value: str = "min") -> Any:
    """Return ``(target, loss and gradient of the critics, loss and gradient of the policy)`` in one program."""
    config = SACConfig(critics=Ensemble(size=CRITICS, subset=2), actor_value=actor_value)  # type: ignore[arg-type]
    own = actor_critic_setup(config, policy)

    def run(actor: Any, critic: Any, target_critic: Any, now: CriticBatch) -> Any:
        y = sac.target(own, actor, target_critic, jnp.float32(ALPHA), now)
        of_critics = jax.value_and_grad(lambda p: sac.critic_loss(own, p, y, now), has_aux=True)(critic)
        of_policy = jax.value_and_grad(lambda p: soft_policy.actor_loss(own, p, critic, jnp.float32(ALPHA), now), has_aux=True)(
            actor
        )
        return y, of_critics, of_policy

    return jax.jit(run, compiler_options=COMPILE_FAST)


def values_by_hand(policy: str, actor: Any, critics: Any, inputs: Any, noise: Any, reduce: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compute V(s) and the entropy, row by row."""
    actor, values, entropies = {name: double(w) for name, w in actor.items()}, [], []
    for i in range(N):
        x = double(inputs.obs[i])
        if policy == "categorical":
            logits = x @ actor["logits"]
            p = np.exp(logits) / np.exp(logits).sum()
            q = reduce(np.array([x @ double(w) for w in critics["x"]]))
            entropies.append(-(p * np.log(p)).sum())
            values.append(p @ (q - ALPHA * np.log(p)))
        else:
            action, log_prob = squashed_by_hand(actor, x, double(noise[i]))
            entropies.append(-log_prob)
            values.append(reduce(q_by_hand(critics, x, action)) - ALPHA * log_prob)
    return np.array(values), np.array(entropies)


def targets_by_hand(policy: str, actor: Any, target_critic: Any, now: CriticBatch) -> np.ndarray:
    least = lambda q: q[np.asarray(now.chosen)].min(0)  # noqa: E731
    value, _ = values_by_hand(policy, actor, target_critic, now.batch.next_inputs, now.noise[0], least)
    return double(now.batch.reward) + double(now.batch.discount) * value


@pytest.mark.parametrize("policy", KINDS)
def test_critics_regress_to_the_soft_value_of_what_was_reached(policy: str) -> None:
    for seed in range(3):
        actor, critic, target_critic, now = case(policy, seed)
        y, ((loss, metrics), gradient), _ = programs(policy)(actor, critic, target_critic, now)
        expected = targets_by_hand(policy, actor, target_critic, now)
        where = np.asarray(now.batch.valid)
        np.testing.assert_allclose(y[where], expected[where], rtol=1e-4, atol=1e-4)

        def by_hand(params: Any, policy: str = policy, now: CriticBatch = now, where: Any = where, y: Any = expected) -> Any:
            rows = [(double(now.batch.inputs.obs[i]), now.batch.action[i]) for i in range(N)]
            if policy == "categorical":
                q = np.array([[x @ w[:, a] for w in params["x"]] for x, a in rows])
            else:
                q = np.array([q_by_hand(params, x, double(a)) for x, a in rows])
            error = (0.5 * double(now.batch.weight)[:, None] * (q - y[:, None]) ** 2).sum(1)
            return error[where].mean(), q[where].mean(), np.where(where, np.abs(q - y[:, None]).mean(1), 0)

        assert float(loss) == pytest.approx(by_hand(critic)[0], rel=1e-4)
        np.testing.assert_allclose(metrics.pop(PRIORITIES), by_hand(critic)[2], rtol=1e-3, atol=1e-5)
        logged = {"losses/td_loss": by_hand(critic)[0], "losses/q_values": by_hand(critic)[1]}
        assert {name: float(x) for name, x in metrics.items()} == pytest.approx(logged, rel=1e-4)
        assert_close(gradient, jax.tree.map(np.float32, slope(lambda p: by_hand(p)[0], critic)), atol=1e-3)


@pytest.mark.parametrize("policy, actor_value", [("squashed", "min"), ("squashed", "mean"), ("categorical", "min")])
def test_the_policy_maximises_the_soft_value(policy: str, actor_value: str) -> None:
    reduce = {"min": lambda q: q.min(0), "mean": lambda q: q.mean(0)}[actor_value]
    for seed in range(3):
        actor, critic, target_critic, now = case(policy, seed)
        _, _, ((loss, metrics), gradient) = programs(policy, actor_value)(actor, critic, target_critic, now)
        where = np.asarray(now.batch.valid)

        def by_hand(params: Any, now: CriticBatch = now, critic: Any = critic, where: Any = where) -> Any:
            value, entropy = values_by_hand(policy, params, critic, now.batch.inputs, now.noise[1], reduce)
            return -value[where].mean(), entropy[where].mean()

        assert float(loss) == pytest.approx(by_hand(actor)[0], rel=1e-4)
        assert float(metrics["losses/entropy"]) == pytest.approx(by_hand(actor)[1], rel=1e-4)
        assert_close(gradient, jax.tree.map(np.float32, slope(lambda p: by_hand(p)[0], actor)), atol=1e-3)


@pytest.mark.parametrize("policy", KINDS)
def test_draws_that_are_not_valid_carry_no_weight(policy: str) -> None:
    """Values that are not finite have been replaced by 0 before: see ``draw_updates``."""
    actor, critic, target_critic, now = case(policy, 1)
    other = jax.tree.map(np.array, now.batch)
    for x in jax.tree.leaves(other._replace(valid=())):
        x[~now.batch.valid] = 7.0 if x.dtype.kind == "f" else 1
    run = programs(policy)
    ours, theirs = (run(actor, critic, target_critic, now._replace(batch=batch))[1:] for batch in (now.batch, other))
    assert_bit_equal(ours, theirs)


def test_a_last_observation_that_is_not_finite_has_no_influence_after_a_termination() -> None:
    actor, critic, target_critic, now = case("squashed", 2)
    broken = np.where(now.batch.discount[:, None] == 0, np.nan, now.batch.next_inputs.obs)
    batch = now.batch._replace(next_inputs=now.batch.next_inputs._replace(obs=broken.astype(np.float32)))
    run = programs("squashed")
    assert_bit_equal(*(run(actor, critic, target_critic, now._replace(batch=b)) for b in (now.batch, batch)))


def test_the_temperature_follows_the_papers_gradient() -> None:
    """Gradient of E[−α·log π − α·H̄] by log α, with finite differences. α rises if the entropy is below its target."""
    log_prob, goal, log_alpha = np.array([-0.4, 1.5, 0.3]), -2.0, -0.7
    loss = lambda x: (-np.exp(x) * log_prob - np.exp(x) * goal).mean()  # noqa: E731
    expected = (loss(log_alpha + 1e-5) - loss(log_alpha - 1e-5)) / 2e-5
    found = soft_policy.temperature_gradient(jnp.float32(log_alpha), jnp.float32(-log_prob.mean()), goal)
    assert float(found) == pytest.approx(expected, rel=1e-4)
    assert float(soft_policy.temperature_gradient(jnp.float32(0), jnp.float32(goal - 1), goal)) < 0


def test_targets_of_the_entropy() -> None:
    hp = SACHyperparams(box_entropy=0.5, discrete_entropy=0.25)
    assert float(soft_policy.target_entropy(BOX, hp)) == -1.0
    assert float(soft_policy.target_entropy(spaces.Discrete(ACTIONS), hp)) == pytest.approx(0.25 * np.log(ACTIONS))
