"""Optimistic exploration: bound and shift against NumPy for known critics, an agent's actions, invalid settings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import make_sac
from jaxrl.algorithms.common.critics.distributional import Quantiles
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, Ensemble
from jaxrl.algorithms.common.optimistic_exploration import Optimistic, OptimisticExploration, optimistic, shifted, upper_bound
from jaxrl.algorithms.sac import SACConfig
from jaxrl.distributions import TanhNormal
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.rollout.autoreset import first_input
from jaxrl.types import Policy
from tests.helpers import probes
from tests.helpers.agents import small, to_numpy
from tests.helpers.oracles.actor_critic import N, actor_critic_setup, case, double, model, q_by_hand
from tests.helpers.oracles.policy_gradient import slope

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
BETA, KL = 1.5, 0.3


def bound_by_hand(values: np.ndarray) -> np.ndarray:
    return values.mean(0) + BETA * values.std(0)


def test_the_upper_bound_is_deviations_above_the_mean() -> None:
    values = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    np.testing.assert_allclose(upper_bound(jnp.asarray(values), BETA), bound_by_hand(values), rtol=1e-5)
    two = upper_bound(jnp.array([1.0, 4.0]), 2.0)  # mean 2.5, distance 3
    assert float(two) == pytest.approx(2.5 + 2.0 * 1.5)


@pytest.mark.slow
def test_critics_that_agree_have_a_finite_gradient() -> None:
    gradient = jax.grad(upper_bound)(jnp.full(3, 5.0), BETA)
    np.testing.assert_allclose(gradient, np.full(3, 1 / 3), rtol=1e-6)


@cache
def case_shifted() -> tuple[Any, ...]:
    """Return the policy and critics of the case, and in NumPy the policy before and after its shift."""
    own = actor_critic_setup(None, "squashed")
    actor, critic, _, now = case("squashed", 0)

    def run(actor: Any, critic: Any, inputs: Any) -> Any:
        before = own.model.apply(actor, (), inputs)[1]

        def bound(action: Any) -> Any:
            return upper_bound(
                jax.vmap(lambda p: own.critic.apply(p, (), inputs._replace(obs=(inputs.obs, action)))[1])(critic), BETA
            )

        return before, shifted(before, bound, KL)

    return actor, critic, now.batch.inputs, *to_numpy(jit(run)(actor, critic, now.batch.inputs))


def test_the_mean_moves_along_the_gradient_of_the_bound() -> None:
    """μ + √(2δ)·Σg / √(gᵀΣg) (Ciosek et al. 2019, proposition 1), with g by finite differences, before squashing."""
    _, critic, inputs, before, after = case_shifted()
    for i in range(N):
        x = double(inputs.obs[i])
        bound = lambda p, x=x: bound_by_hand(q_by_hand(critic, x, np.tanh(p["mean"])))  # noqa: E731
        g, sigma = slope(bound, {"mean": before.mean[i]})["mean"], np.diag(np.exp(2 * double(before.log_std[i])))
        expected = before.mean[i] + np.sqrt(2 * KL) * sigma @ g / np.sqrt(g @ sigma @ g)
        np.testing.assert_allclose(after.mean[i], expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(after.log_std, before.log_std)


def test_the_shift_takes_all_of_its_divergence() -> None:
    *_, before, after = case_shifted()
    np.testing.assert_allclose(TanhNormal(*after[:2]).kl(TanhNormal(*before[:2])), np.full(N, KL), rtol=1e-3)


def test_linear_critics_give_it_in_closed_form() -> None:
    """In one dimension the shift is ±√(2δ)·σ for any slope, and 0 if the slope or the divergence is 0."""
    policy = TanhNormal(jnp.array([[0.3], [0.3], [0.3]]), jnp.log(jnp.full((3, 1), 0.5)))
    value = lambda action: jnp.array([1e-3, -1e3, 0.0]) * action[:, 0]  # noqa: E731
    moved = shifted(policy, value, 2.0)
    np.testing.assert_allclose(moved.mean[:, 0], [0.3 + 2 * 0.5, 0.3 - 2 * 0.5, 0.3], rtol=1e-5)
    np.testing.assert_array_equal(shifted(policy, value, 0.0).mean, policy.mean)


# ----------------------------------------------------------------------------------------------------------------------- agents


@cache
def acted() -> Any:
    """Act with a small agent on inputs of 500 environments: exploring with a limit of 0 and of KL, greedy, and before the first
    update."""
    agent = small("sac", probes.target_action(), exploration="optimistic")
    own, environments = agent.algorithm, 500
    inputs = first_input(jnp.linspace(-1, 1, environments)[:, None], agent.env.action_space, environments)

    def run(key: Any) -> Any:
        learner = own.init(key, jax.tree.map(jnp.float32, agent.hyperparams))

        def act(kl: float, version: int, explore: bool) -> Any:
            hyperparams = learner.hyperparams._replace(optimism_kl=jnp.float32(kl))
            policy = own.policy(learner._replace(hyperparams=hyperparams, version=jnp.int32(version)))
            return policy, own.act(policy, (), inputs, jnp.arange(environments), key, explore=explore)[1][:, 0]

        return act(0.0, 1, True), act(KL, 1, True), act(KL, 1, False), act(0.0, 1, False), act(KL, 0, True), act(0.0, 0, True)

    return agent, inputs, [(policy, to_numpy(action)) for policy, action in jit(run)(jax.random.key(0))]


@pytest.mark.slow
def test_an_agent_draws_about_the_shifted_mean() -> None:
    """The noise is the same, so the difference before squashing is the shift, √(2δ)·σ in one dimension."""
    agent, inputs, [(_, plain), (policy, actions), *_] = acted()
    before, after = (np.arctanh((double(x) - 2) / 2) for x in (plain, actions))  # a Box from 0 to 4
    own = agent.algorithm.learn.args[0].model  # type: ignore[union-attr]
    sigma = np.exp(double(own.apply(policy.params.actor, (), inputs)[1].log_std[:, 0]))
    inside = (np.abs(before) < 3) & (np.abs(after) < 3)  # float32 represents tanh well
    assert inside.sum() > 400
    np.testing.assert_allclose(np.abs(after - before)[inside], (np.sqrt(2 * KL) * sigma)[inside], rtol=0.02)


def test_greedy_and_random_actions_are_as_without_it() -> None:
    _, _, [*_, (_, greedy), (_, plain_greedy), (_, random), (_, plain_random)] = acted()
    np.testing.assert_array_equal(greedy, plain_greedy)
    np.testing.assert_array_equal(random, plain_random)
    assert len(np.unique(random)) > 490


def test_an_actor_gets_the_critics() -> None:
    _, _, [_, (policy, _), *_] = acted()
    assert isinstance(policy.params, ActorCriticPair) and len(jax.tree.leaves(policy.params.critic)) == 4
    assert float(policy.exploration.beta) == pytest.approx(4.66) and float(policy.exploration.kl) == pytest.approx(KL)


@pytest.mark.slow
def test_of_quantiles_the_means_count() -> None:
    """Means 1 + c·Σa of two critics are equal at action 0, so the bound rises with the mean of c."""
    spread = np.array([-1, 3], np.float32)
    critic = model(lambda p, obs: (p * obs[1].sum(-1))[:, None] + spread)
    config = SACConfig(critics=Quantiles(num_quantiles=2, dropped=1), exploration=Optimistic())
    own = replace(actor_critic_setup(config, "squashed"), critic=critic)
    output = TanhNormal(jnp.zeros((1, 2)), jnp.log(jnp.full((1, 2), 0.5)))
    inputs = first_input(jnp.zeros((1, 3)), own.action_space, 1)
    for slopes, sign in (([-1.0, 3.0], 1), ([-3.0, 1.0], -1)):
        policy = Policy(
            ActorCriticPair((), jnp.array(slopes)), (), OptimisticExploration(jnp.array(False), BETA, KL), jnp.int32(1)
        )
        moved = optimistic(own, policy, output, inputs)
        np.testing.assert_allclose(moved.mean[0], np.full(2, sign * 0.5 * np.sqrt(2 * KL / 2)), rtol=1e-5)


def test_one_critic_cannot_disagree() -> None:
    with pytest.raises(ValueError, match=r"critics of size=1 are too few for exploration=Optimistic\(\), .*: use 2 or more"):
        small("sac", probes.target_action(), exploration=Optimistic(), critics=Ensemble(size=1))


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"exploration='optimistic' is for Box actions, and the environment has Discrete\(2\)"):
        make_sac(probes.truncation(), exploration=Optimistic())
