"""DDPG with joint actions (MADDPG): what critics see, and targets and losses by hand with agents that are over."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.common import deterministic_policy as shared
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, action_values
from jaxrl.algorithms.common.critics.updates import draw_updates
from jaxrl.algorithms.ddpg import DDPGHyperparams, target
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.wrappers.agents import central_state
from jaxrl.models import action_value, deterministic_policy, per_agent
from jaxrl.options import Prioritized
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.rollout.agents import joint_actions
from jaxrl.training import evaluate_pure, run_iterations
from tests.helpers.datasets import random_dataset
from tests.helpers.teams import LIVES, mortal

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
KEY = partial(jax.random.key, 0)
MORTAL = "tests.helpers.teams:mortal|central_state"
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "rollout_length": 5,
    "batch_size": 10,
    "replay_ratio": 4,
    "learning_starts": 20,
    "buffer_size": 600,
    "model": {"hidden_sizes": (8,)},
    "critic": {"hidden_sizes": (8,)},
}


def test_joint_actions_by_hand() -> None:
    """Lanes are (environment, agent); each has its own action from the first argument, and those of its team from the second."""
    own, others = np.arange(12.0).reshape(6, 2), -np.arange(12.0).reshape(6, 2)
    joint = joint_actions(jnp.asarray(own), jnp.asarray(others), 3)
    assert joint.shape == (6, 6)
    for environment in range(2):
        for agent in range(3):
            team = [(own if other == agent else others)[3 * environment + other] for other in range(3)]
            np.testing.assert_array_equal(joint[3 * environment + agent], np.concatenate(team))
    slopes = jax.jacobian(lambda action: joint_actions(action, jnp.asarray(others), 3).sum(-1))(jnp.asarray(own))
    np.testing.assert_array_equal(slopes.sum(-1), 2 * np.eye(6))


@cache
def drawn(cut: tuple[bool, ...] = ()) -> tuple[Any, Any, Any]:
    """Return a setup, its learner, and the inputs of an update, on an environment whose agents end one after another."""
    agent = jaxrl.make_maddpg(central_state(mortal(truncates=cut)), **SMALL)
    setup = agent.algorithm.learn.args[1]
    state, _ = jit(lambda key: run_iterations(agent, agent.init(key), 4))(KEY())
    updates = jit(lambda learner: draw_updates(setup, learner, jnp.float32(0.9)))(state.learner)
    return setup, state.learner, jax.tree.map(lambda x: x[0, 0], updates)


def test_rows_are_those_of_whole_teams() -> None:
    """Observations are (t, agent, episode); agents live 1, 3 and 2 rows, and are left out after that."""
    setup, _, update = drawn()
    batch, lives = update.batch, np.array(LIVES)
    assert setup.joint_agents == 3 and batch.valid.shape == (30,)
    seen, valid = np.asarray(batch.inputs.obs["observation"]).reshape(10, 3, 3), np.asarray(batch.valid).reshape(10, 3)
    time, found = seen[..., 0], valid.any(-1)
    assert found.sum() > 5 and not valid[found].all()
    np.testing.assert_array_equal(valid[found], (time < lives)[found])
    np.testing.assert_array_equal(time, np.broadcast_to(time[:, :1], (10, 3)))
    np.testing.assert_array_equal(seen[..., 1], np.broadcast_to(np.arange(3), (10, 3)))
    np.testing.assert_array_equal(np.asarray(batch.action).reshape(10, 3, 2).sum(-1), valid)
    ends = np.asarray(batch.discount).reshape(10, 3) == 0
    np.testing.assert_array_equal(ends[valid], (time + 1 == lives)[valid])


def by_hand(setup: Any, critic: Any, inputs: Any, joint: np.ndarray, lane: int) -> float:
    """Return the critic's value of one lane with these actions of its team, f32[6]."""
    row = jax.tree.map(lambda x: x[lane : lane + 1], inputs)
    row = row._replace(obs=(row.obs, jnp.asarray(joint[None], jnp.float32)))
    return float(setup.critic.apply(jax.tree.map(lambda x: x[0], critic), (), row)[1][0])


@pytest.mark.parametrize("cut", [(False, False, False), (True, True, True)])
def test_targets_leave_out_agents_that_are_over(cut: tuple[bool, ...]) -> None:
    """Others see the actions of those that play on; after the team's end, of the last, if it was cut."""
    setup, learner, update = drawn(cut)
    targets = jax.tree.map(lambda x: x + 0.05, learner.target_params)
    y = np.asarray(jit(lambda targets: target(setup, DDPGHyperparams(), targets, update))(targets))
    batch, seen = update.batch, 0
    actions, _ = shared.policy_actions(setup, targets.actor, batch.next_inputs, jax.random.fold_in(update.key, 4))
    for lane in np.flatnonzero(batch.valid):
        agent, row = lane % 3, int(batch.inputs.obs["observation"][lane, 0])
        team = np.zeros((3, 2))
        for other in range(3):
            lives_on = row + 1 < LIVES[other]
            last = row + 1 == LIVES[other] == max(LIVES)
            if other == agent or lives_on or (last and cut[other]):
                team[other] = actions[lane - agent + other]
        ends = row + 1 == LIVES[agent] and not cut[agent]
        beyond = 0.0 if ends else by_hand(setup, targets.critic, batch.next_inputs, team.ravel(), lane)
        np.testing.assert_allclose(y[lane], batch.reward[lane] + 0.9 * beyond, rtol=1e-4, atol=1e-5)
        seen |= 1 << row
    assert seen == 0b111


def test_the_policy_climbs_the_value_of_its_own_action() -> None:
    """Its loss is −E[Q(s, a₁, …, μ(oᵢ), …)] with the drawn actions of the others, plus the penalty of logits."""
    setup, learner, update = drawn()
    loss, _ = shared.actor_loss(setup, learner.params.actor, learner.params.critic, update)
    batch, key = update.batch, jax.random.fold_in(update.key, 3)
    action, penalty = (np.asarray(x) for x in shared.policy_actions(setup, learner.params.actor, batch.inputs, key))
    total = []
    for lane in np.flatnonzero(batch.valid):
        team = np.asarray(batch.action).reshape(10, 3, 2)[lane // 3].copy()
        team[lane % 3] = action[lane]
        total.append(by_hand(setup, learner.params.critic, batch.inputs, team.ravel(), lane) - penalty[lane])
    np.testing.assert_allclose(loss, -np.mean(total), rtol=1e-4)


def test_critics_see_the_state() -> None:
    setup, learner, update = drawn()
    inputs, obs = update.batch.inputs, update.batch.inputs.obs
    other = inputs._replace(obs={**obs, "privileged_state": obs["privileged_state"] + 1})
    values = [action_values(setup, learner.params.critic, x, update.batch.action) for x in (inputs, other)]
    assert not np.allclose(*values)
    policies = [setup.model.apply(learner.params.actor, (), x)[1].logits for x in (inputs, other)]
    np.testing.assert_array_equal(*policies)


def test_updates_count_environments() -> None:
    """A batch has ``batch_size`` rows of environments, so the number of updates does not depend on that of agents."""
    setup = drawn()[0]
    assert setup.config.updates_per_iteration == 4


@pytest.mark.slow
def test_networks_of_each_agent() -> None:
    def separate(network: Any, **settings: Any) -> Any:
        return partial(per_agent, network=partial(network, hidden_sizes=(8,), **settings))

    networks = {"model": separate(deterministic_policy), "critic": separate(action_value, privileged=True)}
    agent = jaxrl.make_maddpg("tests.helpers.teams:mortal|agent_id|central_state", **{**SMALL, **networks})
    state, metrics = jit(agent.step)(agent.init(KEY()))
    assert {x.shape[0] for x in jax.tree.leaves(state.learner.params.actor)} == {3}
    assert {x.shape[:2] for x in jax.tree.leaves(state.learner.params.critic)} == {(1, 3)}
    assert np.isfinite(float(metrics["losses/td_loss"]))


@pytest.mark.slow
def test_a_box_of_actions_and_two_critics() -> None:
    """TD3 takes joint actions too (MATD3: Ackermann et al. 2019)."""
    agent = jaxrl.make_td3("tests.helpers.teams:wanderers|central_state", joint_actions=True, **SMALL)
    setup = agent.algorithm.learn.args[1]
    assert setup.critic_actions.shape == (3,)
    state, metrics = jit(agent.step)(agent.init(KEY()))
    assert np.isfinite(float(metrics["losses/td_loss"])) and isinstance(state.learner.params, ActorCriticPair)


@pytest.mark.slow
def test_a_team_learns_actions_that_depend_on_each_other() -> None:
    """The climbing game (Claus & Boutilier 1998) with a penalty of 0: the best joint action alone pays 10."""
    env = "jaxrl:MatrixGame?payoff=penalty&k=-10&repeat=1|agent_id|central_state"
    rates = {"learning_rate": 1e-2, "actor_learning_rate": 1e-2, "tau": 0.05, "max_grad_norm": 10.0, "gamma": 0.9}
    sizes = {**SMALL, "num_envs": 16, "rollout_length": 4, "batch_size": 64, "replay_ratio": 4, "buffer_size": 30_000}
    agent = jaxrl.make_maddpg(env, **sizes, **rates)

    def seed(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 1_000)
        return evaluate_pure(agent, state, key, 2).episodic_return.mean()

    found = np.asarray(jit(jax.vmap(seed))(jax.random.split(KEY(), 4)))
    assert (found >= 2.0).all()


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="joint_actions=True is for environments of several agents, and this one has one agent"):
        jaxrl.make_ddpg("Pendulum-v1", joint_actions=True)
    with pytest.raises(ValueError, match="joint_actions=True needs n_step=1, and rows drawn with equal probability"):
        jaxrl.make_maddpg(MORTAL, **SMALL, n_step=2)
    with pytest.raises(ValueError, match="joint_actions=True needs n_step=1, and rows drawn with equal probability"):
        jaxrl.make_maddpg(MORTAL, **SMALL, replay=Prioritized())
    with pytest.raises(ValueError, match="joint_actions=True needs n_step=1, and rows drawn with equal probability"):
        jaxrl.make_maddpg(MORTAL, **SMALL, replay=prioritised_replay())
    with pytest.raises(ValueError, match=r"replay_ratio=1.1 gives .* and replay_ratio is divided by their number\)"):
        jaxrl.make_maddpg(MORTAL, **{**SMALL, "replay_ratio": 3.3})
    with pytest.raises(ValueError, match="use_previous=True is for critics of the environment's actions"):
        jaxrl.make_maddpg(MORTAL, **{**SMALL, "critic": {"use_previous": True}})
    boxes = "tests.helpers.teams:wanderers"
    for online in (False, True):
        with pytest.raises(ValueError, match="joint_actions=True has no effect with data="):
            jaxrl.make_td3(boxes, joint_actions=True, data=random_dataset("Pendulum-v1"), online=online)
    with pytest.raises(ValueError, match="privileged=True needs observations that are a Dict with 'privileged_state'"):
        jaxrl.make_maddpg("tests.helpers.teams:mortal", **SMALL)
