"""Parameters for each group of agents: rows take those of their agent, in any order, with memory too."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import actor_critic, per_agent, policy_network, q_network
from jaxrl.rollout.autoreset import first_input

SPACE = spaces.Dict({"observation": spaces.Box(-1.0, 1.0, (2,), np.float32), "agent_id": spaces.Discrete(3)})
CHOICE = spaces.Discrete(2)
TEAM = "tests.helpers.teams:mortal|select_observation(0, 1)|agent_id"
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
KEY = partial(jax.random.key, 0)


def inputs_of(agents: list[int], seed: int = 0) -> Any:
    obs = jax.random.normal(jax.random.key(seed), (len(agents), 2))
    return first_input({"observation": obs, "agent_id": jnp.array(agents)}, CHOICE, len(agents))


@pytest.mark.parametrize("core", [None, "gru"])
def test_each_row_takes_the_parameters_of_its_group(core: str | None) -> None:
    network = partial(actor_critic, core=core, hidden_sizes=(4,))
    model, alone = per_agent(SPACE, CHOICE, network, groups=(0, 1, 0)), network(SPACE, CHOICE)
    params, agents = model.init(KEY(), inputs_of([0])), [2, 1, 0, 1]
    assert {x.shape[0] for x in jax.tree.leaves(params)} == {2}
    inputs, carry = inputs_of(agents), model.initial_carry(4)
    for _ in range(2):
        after, found = jit(model.apply)(params, carry, inputs)
        for row, agent in enumerate(agents):
            own = jax.tree.map(lambda x, agent=agent: x[(0, 1, 0)[agent]], params)
            expected = alone.apply(own, carry, inputs)
            for x, y in zip(jax.tree.leaves((after, found)), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(x[row], y[row], rtol=1e-5, atol=1e-6)
        carry, inputs = after, inputs._replace(is_first=jnp.zeros(4, bool))


@pytest.mark.slow
def test_sequences_are_unrolled() -> None:
    model = per_agent(SPACE, CHOICE, partial(actor_critic, core="gru", hidden_sizes=(4,)))
    params, rows = model.init(KEY(), inputs_of([0])), [inputs_of([0, 2, 1], seed) for seed in range(3)]
    rows = [row._replace(is_first=jnp.full(3, t == 0)) for t, row in enumerate(rows)]
    carry, found = model.unroll(params, model.initial_carry(3), jax.tree.map(lambda *x: jnp.stack(x), *rows))
    each = model.initial_carry(3)
    for t, row in enumerate(rows):
        each, output = model.apply(params, each, row)
        np.testing.assert_allclose(found.value[t], output.value, rtol=1e-5, atol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), carry, each)


def test_agents_of_other_groups_have_no_gradient() -> None:
    model = per_agent(SPACE, CHOICE, partial(q_network, hidden_sizes=(4,)))
    params = model.init(KEY(), inputs_of([0]))
    gradient = jax.grad(lambda params: model.apply(params, (), inputs_of([1, 1]))[1].sum())(params)
    for x in jax.tree.leaves(gradient):
        assert not x[0].any() and not x[2].any()
    assert any(x[1].any() for x in jax.tree.leaves(gradient))


def test_an_agent_learns_with_it() -> None:
    network = partial(per_agent, network=partial(actor_critic, hidden_sizes=(4,)), groups=(0, 0, 1))
    agent = jaxrl.make_ppo(TEAM, num_envs=2, rollout_length=4, num_minibatches=2, model=network)
    before = agent.init(KEY())
    after, _ = jit(agent.step)(before)
    changed = jax.tree.map(lambda x, y: np.asarray(x != y).reshape(2, -1).any(1), before.learner.params, after.learner.params)
    assert all(x.all() for x in jax.tree.leaves(changed))
    assert jaxrl.build(agent.spec).spec == agent.spec


@pytest.mark.parametrize(
    ("space", "arguments", "words"),
    [
        (SPACE["observation"], {}, "per_agent needs observations that are a Dict with 'agent_id'"),
        (SPACE, {"groups": (0, 1)}, r"groups=\(0, 1\) has 2 entries, and there are 3 agents"),
        (SPACE, {"groups": (0, 2, 2)}, r"groups=\(0, 2, 2\) must be numbers from 0 without gaps"),
        (SPACE, {"groups": ()}, r"groups=\(\) has 0 entries"),
    ],
)
def test_what_is_refused(space: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        per_agent(space, CHOICE, actor_critic, **arguments)


def test_statistics_are_refused() -> None:
    with pytest.raises(TypeError, match="learns statistics: leave batch_renorm out"):
        per_agent(SPACE, CHOICE, partial(policy_network, batch_renorm=True))


def test_numbers_of_agents() -> None:
    env: Any = jaxrl.make_env(TEAM)
    _, obs = env.reset(KEY(), ())
    assert env.observation_space["agent_id"] == spaces.Discrete(3) and obs["agent_id"].tolist() == [0, 1, 2]
    assert obs["observation"].shape == (3, 2)
    jaxrl.check_env(env, steps=10)
    for name, words in (("CartPole-v1", "is for environments of several agents"), (TEAM, "have an 'agent_id' already")):
        with pytest.raises(ValueError, match=words):
            jaxrl.make_env(f"{name}|agent_id")
