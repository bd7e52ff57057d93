"""Categorical critics (D4PG): targets, loss and the policy's loss against NumPy, a probe, invalid settings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import td3
from jaxrl.algorithms.common import deterministic_policy
from jaxrl.algorithms.common.critics.distributional import Atoms
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair
from jaxrl.algorithms.td3 import TD3Config, TD3Hyperparams
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.options import Prioritized
from jaxrl.rollout.autoreset import first_input
from jaxrl.training import run_iterations
from tests.helpers import probes
from tests.helpers.agents import small
from tests.helpers.oracles.actor_critic import CRITICS, N, actor_critic_setup, case, model

K, LOW, HIGH = 6, -2.0, 3.0
ATOMS = np.linspace(LOW, HIGH, K)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


def projected_by_hand(probabilities: np.ndarray, reward: float, discount: float) -> np.ndarray:
    """Divide the mass at r + γ·z between the two nearest atoms, one atom at a time."""
    mass, width = np.zeros(K), (HIGH - LOW) / (K - 1)
    for p, z in zip(probabilities, ATOMS, strict=True):
        place = (np.clip(reward + discount * z, LOW, HIGH) - LOW) / width
        low, share = min(int(place), K - 2), place - min(int(place), K - 2)
        mass[low] += p * (1 - share)
        mass[low + 1] += p * share
    return mass


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_targets_and_losses_are_the_papers() -> None:
    """Targets are those of the critic with the least mean; after a termination the reward, even where outputs are NaN."""
    config = TD3Config(critics=Atoms(CRITICS, K, LOW, HIGH))
    rng = np.random.default_rng(0)
    online, target = (rng.normal(size=(CRITICS, N, K)).astype(np.float32) for _ in range(2))
    own = replace(actor_critic_setup(config, "deterministic"), critic=model(lambda p, obs: p + 0 * obs[1].sum()))
    actor, _, _, now = case("deterministic", 1)
    ended = np.asarray(now.batch.discount) == 0
    assert ended.any() and not ended.all()
    broken = np.where(ended[:, None], np.nan, target)

    def run(target: Any) -> Any:
        y = td3.target(own, TD3Hyperparams(), ActorCriticPair(actor, target), now)
        return y, deterministic_policy.critic_loss(own, online, y, now), deterministic_policy.actor_loss(own, actor, online, now)

    y, (loss, logged), (policy_loss, _) = jit(run)(broken)
    means = softmax(target) @ ATOMS
    expected = np.array(
        [
            projected_by_hand(softmax(target[means[:, i].argmin(), i]), float(now.batch.reward[i]), float(now.batch.discount[i]))
            for i in range(N)
        ]
    )
    np.testing.assert_allclose(y, expected, atol=1e-5)
    entropy = -(expected * np.log(softmax(online))).sum(-1)
    valid, weight = np.asarray(now.batch.valid), np.asarray(now.batch.weight)
    assert float(loss) == pytest.approx((weight * entropy)[:, valid].mean(-1).sum(), rel=1e-4)
    divergence = entropy + np.where(expected > 0, expected * np.log(np.where(expected > 0, expected, 1)), 0).sum(-1)
    np.testing.assert_allclose(logged[PRIORITIES], np.where(valid, divergence.mean(0), 0), atol=1e-5)
    values = softmax(online) @ ATOMS
    assert float(logged["losses/q_values"]) == pytest.approx(values[:, valid].mean(), rel=1e-4)
    assert float(policy_loss) == pytest.approx(-values[0, valid].mean(), rel=1e-4)


def test_a_distribution_is_learnt_and_its_mean_maximised() -> None:
    """With n-step returns and priorities, as in D4PG: the reward is greatest at an action of 3 from 0 to 4."""
    settings = {"critic": {"hidden_sizes": (8,)}, "critics": Atoms(num_atoms=21, v_min=-10, v_max=1), "replay": Prioritized()}
    rates = {"learning_rate": 0.02, "actor_learning_rate": 0.02, "exploration_noise": 0.3, "n_step": 3, "learning_starts": 120}
    agent = small("ddpg", probes.target_action(), **settings, **rates)
    state, _ = jit(lambda key: run_iterations(agent, agent.init(key), 300))(jax.random.key(0))
    policy = agent.algorithm.policy(state.learner)
    inputs = first_input(jnp.zeros((1, 1)), agent.env.action_space, 1)
    action = agent.algorithm.act(policy, (), inputs, jnp.arange(1), jax.random.key(0), explore=False)[1]
    assert float(action[0, 0]) == pytest.approx(3, abs=0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critics": {"name": "atoms", "v_min": 3, "v_max": 3}}, "v_min=3 must be below v_max=3: atoms are the returns between"),
        ({"critics": {"name": "atoms", "num_atoms": 1}}, "num_atoms=1 must be an integer >= 2"),
        (
            {"critics": Atoms(), "model": {"core": "gru"}, "replay_ratio": 1024},
            r"critics=Atoms\(\) needs networks without memory",
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small("td3", probes.target_action(), **{"critic": None, "buffer_size": 1024, **settings})
