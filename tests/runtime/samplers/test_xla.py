"""Rollouts of host environments collected by one compiled program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.runtime.samplers.by_name import SAMPLERS
from jaxrl.types import Agent
from tests.helpers.agents import assert_close

ROWS = 6


def small(env: str, **settings: Any) -> Agent:
    return jaxrl.make_a2c(env, num_envs=3, rollout_length=ROWS, **{"model": {"hidden_sizes": (8,)}, **settings})


def learnt(agent: Agent, seeds: list[int]) -> tuple[Any, Any]:
    """Return policies of new learners, and their keys."""
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    return jax.vmap(lambda key: agent.algorithm.policy(agent.init(key).learner))(keys), keys


@pytest.mark.slow
@pytest.mark.parametrize("env", ["envpool:CartPole-v1?max_episode_steps=4", "envpool:HalfCheetah-v4"])
def test_the_rollouts_are_those_of_the_plain_loop(env: str) -> None:
    """For two seeds, one after the other, over ends. HalfCheetah has 64-bit numbers in C++."""
    agent = small(env)
    policy, keys = learnt(agent, [0, 5])
    plain, compiled = (SAMPLERS[name](agent, [0, 5]) for name in ("sync", "xla"))
    for i in range(3):
        key = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
        (expected, logged), (rollout, same) = (sampler.collect(policy, key) for sampler in (plain, compiled))
        assert_close(rollout, expected)
        assert_close(same, logged)
    assert np.asarray(rollout.truncated).any() == ("CartPole" in env)
    plain.close()
    compiled.close()


@pytest.mark.slow
def test_one_seed_without_an_axis() -> None:
    agent = small("envpool:CartPole-v1", model={"core": "gru", "core_size": 8, "hidden_sizes": (8,)})
    policy, keys = learnt(agent, [3])
    policy, key = jax.tree.map(lambda x: x[0], policy), keys[0]
    rollouts = [SAMPLERS[name](agent, 3).collect(policy, key)[0] for name in ("sync", "xla")]
    assert_close(*rollouts)


@pytest.mark.slow
def test_a_run_collects_so() -> None:
    settings: dict[str, Any] = {"quiet": True, "eval_every": 0}
    states, history = jaxrl.run(small("envpool:CartPole-v1"), 10 * 3 * ROWS, sampler="xla", **settings)
    plain, _ = jaxrl.run(small("envpool:CartPole-v1"), 10 * 3 * ROWS, **settings)
    assert_close(states.learner.params, plain.learner.params)
    assert history["rows"][-1] == 10 * 3 * ROWS


@pytest.mark.parametrize(
    "value, message", [(np.nan, r"^envpool:Pendulum-v1: action holds NaN"), (3.0, r"^envpool:Pendulum-v1: action is outside")]
)
def test_actions_that_the_environments_must_not_see(value: float, message: str) -> None:
    agent = small("envpool:Pendulum-v1")
    act = agent.algorithm.act

    def wrong(policy: Any, carry: Any, now: Any, env_id: Any, key: Any, *, explore: bool) -> Any:
        carry, action, extras = act(policy, carry, now, env_id, key, explore=explore)
        return carry, jnp.full_like(action, value), extras

    agent = agent._replace(algorithm=agent.algorithm._replace(act=wrong))
    sampler = SAMPLERS["xla"](agent, [0])
    with pytest.raises(ValueError, match=message):
        sampler.collect(*learnt(agent, [0]))


def test_environments_that_no_program_steps() -> None:
    with pytest.raises(TypeError, match=r"^sampler='xla' needs environments that a compiled program can step, which gymnasium"):
        SAMPLERS["xla"](small("gymnasium:CartPole-v1"), [0])
    with pytest.raises(ValueError, match=r"^sampler='xla' is for environments on the host, and gymnax:CartPole-v1 runs in JAX"):
        jaxrl.run(small("CartPole-v1"), 64, sampler="xla", quiet=True)


def test_a_limit_that_only_jaxrl_knows_is_refused() -> None:
    agent = small("envpool:CartPole-v1")
    agent = agent._replace(env=agent.env._replace(max_episode_steps=2))
    with pytest.raises(RuntimeError, match=r"^envpool:CartPole-v1: an episode continued past max_episode_steps=2, and"):
        SAMPLERS["xla"](agent, [0]).collect(*learnt(agent, [0]))


def test_another_device_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match=r"^sampler='xla' steps environments from within a program on the CPU, and .* on gpu"):
        SAMPLERS["xla"](small("envpool:CartPole-v1"), [0])
