"""DDPG: its target against NumPy, relaxed Discrete actions, probes. test_td3.py tests what it shares with TD3."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import make_ddpg
from jaxrl.algorithms import ddpg
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair
from jaxrl.algorithms.common.critics.updates import batch_of
from jaxrl.algorithms.ddpg import DDPGConfig, DDPGHyperparams
from jaxrl.distributions import Categorical
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import deterministic_policy
from jaxrl.options import OU, GumbelSoftmax
from jaxrl.rollout.autoreset import first_input
from jaxrl.training import run_iterations
from tests.helpers import probes
from tests.helpers.agents import Tiny, small
from tests.helpers.oracles.actor_critic import (
    SETTINGS,
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
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 64}),
    boxed=True,
)
small_ddpg = partial(small, "ddpg")
KEY = partial(jax.random.key, 0)


def test_targets_are_those_of_the_target_networks() -> None:
    """Without noise, and with one critic: the case's second."""
    own = actor_critic_setup(DDPGConfig(), "deterministic")
    run = jax.jit(
        lambda *given: ddpg.target(own, DDPGHyperparams(), ActorCriticPair(*given[:2]), given[2]), compiler_options=COMPILE_FAST
    )
    for seed in range(3):
        actor, _, critics, now = case("deterministic", seed)
        second = jax.tree.map(lambda x: x[1:2], critics)
        y = run(actor, second, now._replace(chosen=jnp.ones(1, bool)))
        for i in np.flatnonzero(now.batch.valid):
            x = double(now.batch.next_inputs.obs[i])
            value = q_by_hand(critics, x, np.tanh(x @ double(actor["mean"])))[1]
            assert float(y[i]) == pytest.approx(now.batch.reward[i] + now.batch.discount[i] * value, rel=1e-4, abs=1e-4)


@cache
def learnt() -> dict[str, Any]:
    rates = {"gamma": 0.9, "learning_rate": 0.02, "actor_learning_rate": 0.01, "learning_starts": 120}
    return learn_q_probes(partial(small_ddpg, exploration_noise=0.5, **rates))


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    check_q_probe(probe, *learnt()[probe])


# ------------------------------------------------------------------------------------------------------------ Discrete actions


def test_relaxed_samples_are_actions_with_the_gradient_of_a_softmax() -> None:
    logits = np.float32([[0.3, -1.0, 0.8, 1e-3 - 1e9], [0.0, 2.0, 0.5, 0.1]])
    relaxation = GumbelSoftmax(temperature=0.7, logit_penalty=0.1)
    drawn = jax.vmap(lambda key: relaxation.sample(Categorical(jnp.asarray(logits)), key))(jax.random.split(KEY(), 20_000))
    assert set(np.unique(np.asarray(drawn))) == {0.0, 1.0} and (np.asarray(drawn).sum(-1) == 1).all()
    np.testing.assert_allclose(drawn.mean(0), jax.nn.softmax(logits), atol=0.015)
    noise, weights = np.asarray(jax.random.gumbel(KEY(), (2, 4))), np.arange(8.0).reshape(2, 4)

    def relaxed(params: Any) -> Any:
        x = params["logits"]
        soft = np.exp((x + noise) / 0.7)
        return ((soft / soft.sum(-1, keepdims=True)) * weights).sum()

    found = jax.grad(lambda x: (relaxation.sample(Categorical(x), KEY()) * weights).sum())(jnp.asarray(logits[1:]).repeat(2, 0))
    numeric = slope(relaxed, {"logits": logits[1:].repeat(2, 0)})["logits"]
    np.testing.assert_allclose(found.sum(-1), 0, atol=1e-5)
    np.testing.assert_allclose(found, numeric, atol=1e-3)
    penalty = relaxation.penalty(Categorical(jnp.asarray(logits)))
    np.testing.assert_allclose(penalty, [0.1 * np.mean(np.square(logits[0, :3])), 0.1 * np.mean(np.square(logits[1]))], rtol=1e-5)


@pytest.mark.slow
def test_critics_take_discrete_actions_one_hot() -> None:
    agent = make_ddpg(probes.action_choice(), **{**TINY.settings, "critic": {"hidden_sizes": (8,)}})
    setup = agent.algorithm.learn.args[1]
    state, _ = jax.jit(agent.step, compiler_options=COMPILE_FAST)(agent.init(KEY()))
    batch = batch_of(setup, state.learner, state.learner.replay, setup.replay.draw(state.learner.replay, KEY(), 32), 0.9)
    rows = np.asarray(batch.action)[np.asarray(batch.valid)]
    assert rows.shape[1:] == (2,) and set(rows.sum(-1)) == {1.0} and set(rows.argmax(-1)) == {0, 1}


@pytest.mark.slow
def test_discrete_actions_are_learnt() -> None:
    """The better of two actions, and the action that an observation names."""
    for probe, best in ((probes.action_choice(), [1, 1]), (probes.action_by_observation(), [0, 1])):
        rates = {"learning_rate": 0.02, "actor_learning_rate": 0.01, "learning_starts": 120, "gamma": 0.9}
        agent = make_ddpg(probe, **{**TINY.settings, **rates, "rollout_length": 4, "num_envs": 16, "batch_size": 32})
        state, _ = jax.jit(lambda key, agent=agent: run_iterations(agent, agent.init(key), 300), compiler_options=COMPILE_FAST)(
            KEY()
        )
        inputs, policy = (
            first_input(np.float32([[-1.0], [1.0]]), agent.env.action_space, 2),
            agent.algorithm.policy(state.learner),
        )
        assert agent.algorithm.act(policy, (), inputs, jnp.arange(2), KEY(), explore=False)[1].tolist() == best


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"DDPG needs a Box or Discrete action space; .* has MultiDiscrete"):
        make_ddpg(probes.truncation()._replace(action_space=spaces.MultiDiscrete([2, 2])))
    with pytest.raises(ValueError, match=r"noise=OU\(.*\) has no effect with Discrete\(2\), whose actions are drawn"):
        make_ddpg(probes.truncation(), noise=OU())
    with pytest.raises(ValueError, match=r"make_ddpg needs networks without memory with Discrete\(2\): leave the core out"):
        make_ddpg(probes.truncation(), model={"core": "gru"}, batch_size=8)
    with pytest.raises(ValueError, match=r"exploration_noise=0.5 has no effect with Discrete\(2\)"):
        make_ddpg(probes.truncation(), exploration_noise=0.5)
    with pytest.raises(ValueError, match=r"schedules\['exploration_noise'\] has no effect with Discrete\(2\)"):
        make_ddpg(probes.truncation(), schedules={"exploration_noise": lambda i: 1.0})
    with pytest.raises(ValueError, match=r"relaxation=GumbelSoftmax\(.*\) has no effect with Box"):
        make_ddpg("Pendulum-v1", relaxation=GumbelSoftmax(0.5))
    with pytest.raises(TypeError, match="must give a Categorical policy of size 2 for Discrete"):
        make_ddpg(probes.truncation(), model=lambda obs, action: deterministic_policy(obs, spaces.Box(-1, 1, (2,))))
    with pytest.raises(TypeError, match=r"make_ddpg\(\) got an unknown keyword 'target_noise'"):
        small_ddpg(probes.target_action(), target_noise=0.1)
