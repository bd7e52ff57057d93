"""A2C with counterfactual advantages (COMA): what critics see, and the loss by hand with agents that are over or cut off."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.common.teams.counterfactual import draws
from jaxrl.distributions import Categorical
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import actor_critic
from jaxrl.rollout.collect import collect
from jaxrl.training import evaluate_pure, run_iterations
from tests.helpers.teams import mortal

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
KEY = partial(jax.random.key, 0)
SMALL: dict[str, Any] = {"num_envs": 2, "rollout_length": 9, "model": {"hidden_sizes": (8,)}}
ROWS, LANES, AGENTS = 9, 6, 3


def others_by_hand(t: int, lane: int, action: np.ndarray, lives: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return what a critic sees of the team at input t: the actions of those that act, or if none does, of those that did not end
    by a termination before."""
    team = range(lane // AGENTS * AGENTS, (lane // AGENTS + 1) * AGENTS)
    acts = {j: t < ROWS and bool(lives[t, j]) for j in team}
    if not any(acts.values()):
        acts = {j: t > 0 and bool(lives[t - 1, j] and not ends[t - 1, j]) for j in team}
    seen = np.zeros((AGENTS, 2), np.float32)
    for i, j in enumerate(team):
        if acts[j] and j != lane:
            seen[i, action[t, j]] = 1.0
    return seen.ravel()


@pytest.mark.parametrize("cut", [(False, True, False), *(pytest.param((x,) * 3, marks=pytest.mark.slow) for x in (False, True))])
def test_the_loss_by_hand(cut: tuple[bool, bool, bool]) -> None:
    """Agents live 1, 3 and 2 rows; the rollout ends in the middle of an episode."""
    env = mortal(truncates=cut)
    agent = jaxrl.make_coma(env, **SMALL, gamma=0.9)
    state, lanes = agent.init(KEY()), jnp.arange(LANES, dtype=jnp.int32)
    policy = agent.algorithm.policy(state.learner)
    rollout = jit(lambda actor: collect(agent.algorithm, env, policy, actor, (), lanes, KEY(), ROWS))(state.actor)[1]
    gradients: Any = agent.algorithm.gradients
    loss, setup = gradients.args
    hp = setup.current(state.learner)
    found, metrics = jit(lambda params: loss(setup.model, setup.config, hp, params, rollout, None))(policy.params)

    network = loss.args[0].network
    lives, ends, truncated, reward = (
        np.asarray(x) for x in (rollout.valid, rollout.terminated, rollout.truncated, rollout.reward)
    )
    goes_on, was_cut = lives & ~ends & ~truncated, lives & truncated
    policies = np.asarray(jax.nn.softmax(setup.model.apply(policy.params, (), rollout.inputs)[1].policy.logits))
    drawn = np.asarray(draws(rollout, setup.model.apply(policy.params, (), rollout.inputs)[1].policy))
    action = np.concatenate([rollout.action, drawn[-1:]])
    acting = np.concatenate([lives, np.zeros((1, LANES), bool)]).reshape(ROWS + 1, 2, AGENTS).any(-1).repeat(AGENTS, -1)
    action = np.where(acting, action, drawn)
    q = np.zeros((ROWS + 1, LANES, 2))
    for t in range(ROWS + 1):
        seen = np.stack([others_by_hand(t, lane, action, lives, ends) for lane in range(LANES)])
        inputs = jax.tree.map(lambda x, t=t: x[t], rollout.inputs)
        obs = {"observation": inputs.obs, "privileged_state": jnp.asarray(seen)}
        q[t] = network.apply(policy.params, (), inputs._replace(obs=obs))[1].value
    taken = np.take_along_axis(q, action[..., None], -1)[..., 0]
    terms = []
    for lane in range(LANES):
        following = 0.0
        for t in reversed(range(ROWS)):
            if not lives[t, lane]:
                continue
            beyond = taken[t + 1, lane]
            if goes_on[t, lane] and t < ROWS - 1:
                beyond = 0.2 * beyond + 0.8 * following
            following = reward[t, lane] + (0.0 if ends[t, lane] else 0.9 * beyond)
            pi = policies[t, lane]
            advantage = taken[t, lane] - pi @ q[t, lane]
            error = following - taken[t, lane]
            terms.append(-np.log(pi[action[t, lane]]) * advantage + 0.25 * error**2 + 0.01 * (pi * np.log(pi)).sum())
    assert len(terms) == lives.sum() and was_cut.any() == any(cut)
    np.testing.assert_allclose(found, np.mean(terms), rtol=1e-4)
    assert float(metrics["losses/value_loss"]) > 0


def test_draws_are_those_of_the_policy_and_independent() -> None:
    logits = jnp.broadcast_to(jnp.log(jnp.array([0.2, 0.8])), (3, 4_000, 2))
    lanes = jnp.arange(4_000, dtype=jnp.int32)
    like: Any = SimpleNamespace(version=jnp.full(4_000, 10**7, jnp.int32), env_id=lanes)
    drawn = np.asarray(draws(like, Categorical(logits)), float)
    np.testing.assert_allclose(drawn.mean(1), 0.8, atol=0.03)
    for x, y in ((drawn[0], drawn[1]), (drawn[0, ::2], drawn[0, 1::2])):  # rows, and agents of a team
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.06
    half: Any = SimpleNamespace(version=like.version[2_000:], env_id=lanes[2_000:])  # a device's share
    np.testing.assert_array_equal(draws(half, Categorical(logits[:, 2_000:])), drawn[:, 2_000:])


def test_only_the_critic_sees_the_others() -> None:
    """The gradient of the value reaches the critic alone, and that of the policy the actor alone."""
    agent = jaxrl.make_coma(mortal(), **SMALL)
    loss = agent.algorithm.gradients.args[0]  # type: ignore[union-attr]
    critic, params = loss.args[0], agent.init(KEY()).learner.params
    inputs = jax.tree.map(lambda x: x[None], agent.init(KEY()).actor.input)
    inputs = inputs._replace(obs=jax.tree.map(jnp.sin, inputs.obs))  # hundreds would leave tanh without a slope

    def slopes(part: Any) -> set[str]:
        def outputs(params: Any, seen: bool = True) -> Any:
            action = jnp.zeros((1, LANES), jnp.int32)
            return part(critic.outputs(params, (), inputs, action, jnp.full((1, LANES), seen)))

        slope = jax.grad(lambda params: outputs(params).sum())(params)
        moved = {path[1].key for path, x in jax.tree.leaves_with_path(slope) if jnp.abs(x).max() > 0}
        return moved if jnp.array_equal(outputs(params), outputs(params, False)) else moved | {"others"}

    assert slopes(lambda output: output.value) == {"critic", "value", "others"}
    assert slopes(lambda output: output.policy.logits[..., 0]) == {"actor", "policy"}


@pytest.mark.slow
def test_a_recurrent_policy_and_a_state() -> None:
    model = {"core": "gru", "core_size": 8, "hidden_sizes": (8,)}
    agent = jaxrl.make_coma("tests.helpers.teams:mortal|central_state", **{**SMALL, "model": model})
    state, metrics = jit(agent.step)(agent.init(KEY()))
    assert np.isfinite(float(metrics["losses/value_loss"])) and len(jax.tree.leaves(state.actor.carry)) == 2


@pytest.mark.slow
def test_it_learns_the_safe_game_or_better() -> None:
    """Two-step game (Rashid et al. 2018, section 6.1)."""
    settings = {"num_envs": 16, "rollout_length": 16, "model": {"hidden_sizes": (32,)}, "learning_rate": 3e-3, "anneal": False}
    agent = jaxrl.make_coma("jaxrl:TwoStep|agent_id", **settings)

    def seed(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 300)
        return evaluate_pure(agent, state, key, 2).episodic_return.mean()

    found = np.asarray(jit(jax.vmap(seed))(jax.random.split(KEY(), 8)))
    assert (found >= 7.0).all()


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="counterfactual=True is for environments of several agents, and gymnax:CartPole"):
        jaxrl.make_coma("CartPole-v1")
    with pytest.raises(ValueError, match=r"counterfactual=True needs Discrete actions, and .* has Box"):
        jaxrl.make_coma("tests.helpers.teams:wanderers")
    with pytest.raises(ValueError, match="counterfactual=True and normalize_advantages=True are mutually exclusive"):
        jaxrl.make_coma(mortal(), normalize_advantages=True)
    with pytest.raises(ValueError, match="model: shared cannot be set with counterfactual=True"):
        jaxrl.make_coma(mortal(), model={"shared": True})
    with pytest.raises(TypeError, match=r"must give an ActorCriticOutput\(policy, value f32\[batch, 2\]\)"):
        jaxrl.make_coma(mortal(), model=lambda obs, action: actor_critic(obs, action))
