"""Loaded policies: one compiled call per observation, equal to ``algorithm.act``, greedy and exploring."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.builder.stand_in import stand_in
from jaxrl.rollout.inputs import example_input
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.types import Agent, Policy
from tests.helpers.agents import RECURRENT, cartpole, small_ppo

PARTS = spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float32), "y": spaces.Box(0, 255, (1,), np.uint8)})


@pytest.fixture(scope="module")
def plain() -> tuple[Agent, Policy]:
    agent = cartpole("ppo")
    return agent, agent.algorithm.policy(agent.init(jax.random.key(0)).learner)


@pytest.fixture(scope="module")
def recurrent() -> tuple[Agent, Policy]:
    """A recurrent agent with a Dict observation, and its policy."""
    agent = small_ppo(stand_in("parts", PARTS, spaces.Discrete(3)), model=RECURRENT)
    return agent, agent.algorithm.policy(agent.init(jax.random.key(0)).learner)


class Counted:
    """A loaded policy that counts traces of ``act`` and calls of compiled programs."""

    def __init__(self, made: tuple[Agent, Policy], **settings: Any) -> None:
        agent, policy = made
        self.traces = self.calls = 0

        def act(*args: Any, explore: bool) -> Any:
            self.traces += 1
            return agent.algorithm.act(*args, explore=explore)

        counting = agent._replace(algorithm=agent.algorithm._replace(act=act))
        self.policy = LoadedPolicy(counting, policy, seed=0, step=0, **settings)
        program = self.policy._act

        def call(*args: Any, **keywords: Any) -> Any:
            # Other computations would be further programs: arguments are only NumPy arrays and results of programs.
            assert all(isinstance(x, np.ndarray | np.generic | jax.Array) for x in jax.tree.leaves(args))
            assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(args[2]._replace(prev_action=())))
            self.calls += 1
            return program(*args, **keywords)

        self.policy._act = call  # type: ignore[assignment]


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("batch", [(), (5,)])
def test_one_compiled_call_per_step(explore: bool, batch: tuple[int, ...], plain: Any) -> None:
    counted = Counted(plain, explore=explore, key=jax.random.key(7))
    rng = np.random.default_rng(0)
    for number in range(20):
        action = counted.policy(rng.normal(size=(*batch, 4)))
        assert type(action) is (np.ndarray if batch else np.int32) and action.shape == batch
        assert counted.calls == number + 1
    assert counted.traces == 1


@pytest.mark.slow
@pytest.mark.parametrize("explore", [False, True])
def test_a_recurrent_policy_acts_as_the_algorithm_does(explore: bool, recurrent: Any) -> None:
    """Over a batch of Dict observations, with rewards, for two episodes, and with a single trace."""
    agent, policy = recurrent
    counted = Counted(recurrent)
    act = jax.jit(agent.algorithm.act, static_argnames="explore")
    rng = np.random.default_rng(1)
    for _ in range(2):
        carry = agent.algorithm.initial_carry(3)
        inputs = jax.tree.map(lambda x: jnp.repeat(x, 3, 0), example_input(PARTS, agent.env.action_space))
        for t in range(4):
            obs = {"x": rng.normal(size=(3, 2)), "y": rng.integers(0, 255, (3, 1), np.uint8)}
            rewards, key = rng.normal(size=3), jax.random.key(t)
            inputs = inputs._replace(obs={"x": jnp.asarray(obs["x"], jnp.float32), "y": jnp.asarray(obs["y"])})
            if t:
                inputs = inputs._replace(prev_reward=jnp.asarray(rewards, jnp.float32), is_first=jnp.zeros(3, bool))
            carry, action, _ = act(policy, carry, inputs, jnp.arange(3), key, explore=explore)
            inputs = inputs._replace(prev_action=action)
            np.testing.assert_array_equal(counted.policy(obs, explore=explore, key=key, prev_reward=rewards), action)
        counted.policy.reset()
    assert counted.traces == 1 and counted.calls == 8


def test_exploring_by_default_draws_anew_each_time(plain: Any) -> None:
    agent, policy = plain
    obs = np.zeros((256, 4), np.float32)
    explorer, again = (LoadedPolicy(agent, policy, seed=0, step=0, explore=True, key=jax.random.key(7)) for _ in range(2))
    first, second = explorer(obs), explorer(obs)
    assert set(first.tolist()) == {0, 1} and (first != second).any()
    np.testing.assert_array_equal(again(obs), first)  # determined by the key
    np.testing.assert_array_equal(explorer(obs, key=jax.random.key(3)), again(obs, key=jax.random.key(3)))
    assert len(set(explorer(obs, explore=False).tolist())) == 1


def test_a_key_is_needed_and_checked(plain: Any) -> None:
    agent, policy = plain
    explorer = LoadedPolicy(agent, policy, seed=0, step=0, explore=True)
    with pytest.raises(
        ValueError, match=r"explore=True needs a random key: pass key=jax.random.key\(…\) to load_policy, or a new"
    ):
        explorer(np.zeros(4))
    for wrong in (0, jax.random.PRNGKey(0), jax.random.split(jax.random.key(0))):
        with pytest.raises(TypeError, match="key must be one typed key"):
            explorer(np.zeros(4), key=wrong)


def test_parts_of_an_observation_are_checked(recurrent: Any) -> None:
    policy = Counted(recurrent).policy
    x, y = np.zeros(2, np.float32), np.zeros(1, np.uint8)
    with pytest.raises(TypeError, match=r"obs must be structured as Dict.*, not as one array"):
        policy(x)
    with pytest.raises(TypeError, match=r"obs must be structured as Dict \{'x': float32\[2\].*, not "):
        policy({"x": x})
    with pytest.raises(TypeError, match=r"obs\['y'\] has dtype float64 instead of uint8"):
        policy({"x": x, "y": np.zeros(1)})
    with pytest.raises(ValueError, match=r"obs\['x'\] has shape \(3,\): it must be \(2,\), or \(batch, 2\)"):
        policy({"x": np.zeros(3), "y": y})
    with pytest.raises(ValueError, match="obs has leaves with and without a batch axis, or of different sizes"):
        policy({"x": x[None], "y": y})
