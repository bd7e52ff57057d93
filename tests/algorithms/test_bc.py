"""Behaviour cloning: its loss, the best episodes of a dataset, what it converges to, and what it refuses."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import make_bc
from jaxrl.algorithms.common.offline.cloning import cloning_loss
from jaxrl.distributions import Categorical, MultiCategorical
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import greedy_policy, policy_network
from jaxrl.replay.dataset import make_dataset
from jaxrl.replay.dataset_replay import WithData, dataset_replay
from jaxrl.replay.transitions import ReplayRow
from jaxrl.rollout.autoreset import first_input
from jaxrl.runtime.datasets.layouts import Spaces
from tests.helpers import probes
from tests.helpers.agents import Tiny, small
from tests.helpers.datasets import random_dataset
from tests.helpers.hosted import hosted

TINY = Tiny(
    settings={"updates": 2, "batch_size": 16, "model": partial(greedy_policy, hidden_sizes=(8,))},
    value=None,
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
LINE = spaces.Box(-1.0, 1.0, (1,), np.float32)


def episodes(actions: list[list[Any]], rewards: list[list[float]], action_space: spaces.Space) -> Any:
    """Return a dataset of episodes whose observations are their number, from −1 to 1."""
    rows = list[ReplayRow]()
    for i, (taken, given) in enumerate(zip(actions, rewards, strict=True)):
        number, length = np.float32(2 * i / max(1, len(actions) - 1) - 1), len(taken)
        kind = np.float32 if isinstance(action_space, spaces.Box) else np.int32
        shaped = np.asarray(taken, kind).reshape(length, *action_space.shape)  # type: ignore[misc]
        padded = np.append(shaped, np.zeros_like(shaped[:1]), axis=0)
        rewards_of = np.append(np.asarray(given, np.float32), np.float32(0))
        valid = np.arange(length + 1) < length
        rows.append(ReplayRow(np.full((length + 1, 1), number), padded, rewards_of, np.zeros(length + 1, bool), valid))
    joined: Any = jax.tree.map(lambda *x: np.concatenate(x), *rows)
    return make_dataset(joined, Spaces(LINE, action_space, "line"))


def env_of(action_space: spaces.Space) -> Any:
    """Return an environment with these spaces, which is never stepped."""
    return hosted(probes.constant_reward())._replace(observation_space=LINE, action_space=action_space, name="line")


def test_losses() -> None:
    rng = np.random.default_rng(0)
    logits, action = rng.normal(size=(5, 3)).astype(np.float32), rng.integers(3, size=5)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(cloning_loss(Categorical(logits), action), -np.log(p[np.arange(5), action]), rtol=1e-5)
    both = MultiCategorical.from_flat(jnp.asarray(np.concatenate([logits, logits[:, :2]], 1)), [3, 2])
    second = -np.log(np.exp(logits[:, 1]) / np.exp(logits[:, :2]).sum(1))
    pairs = np.stack([action, np.ones(5, int)], 1)
    np.testing.assert_allclose(cloning_loss(both, pairs), -np.log(p[np.arange(5), action]) + second, rtol=1e-5)
    given, taken = rng.normal(size=(2, 5, 2)).astype(np.float32)
    np.testing.assert_allclose(cloning_loss(given, taken), ((given - taken) ** 2).mean(1), rtol=1e-5)


# --------------------------------------------------------------------------------------------------------------- best episodes


def test_draws_are_of_the_best_episodes() -> None:
    """Returns are 1, 3, 2 and 3; of equal returns the earlier episode comes first."""
    data = episodes([[0.1], [0.2, 0.2], [0.3], [0.4, 0.4, 0.4]], [[1], [1, 2], [2], [1, 1, 1]], LINE)
    assert data.origins.tolist() == [2, 3, 7, 8, 9, 5, 0] and data.rows_of_best.tolist() == [2, 5, 6, 7]
    for best, rows in ((1.0, {0, 2, 3, 5, 7, 8, 9}), (0.75, {2, 3, 5, 7, 8, 9}), (0.6, {2, 3, 7, 8, 9}), (0.01, {2, 3})):
        draw = dataset_replay(best=best).draw(WithData((), data), KEY(), 200)
        assert {*np.asarray(draw.row).tolist()} == rows, best


@pytest.mark.parametrize("best, expected", [(1.0, 0.0), (0.5, 0.8)])
def test_of_two_behaviours_it_clones_the_better_one_or_their_mean(best: float, expected: float) -> None:
    data = episodes([[-0.8], [0.8], [0.8], [-0.8]], [[0], [1], [1], [0]], LINE)
    settings = {"best": best, "model": {"hidden_sizes": ()}, "learning_rate": 0.02, "normalize_observations": False}
    agent = make_bc(env_of(LINE), data=data, updates=300, batch_size=512, **settings)
    state, _ = jit(agent.step)(agent.init(KEY()), data)
    policy = agent.algorithm.policy(state.learner)
    _, action, _ = agent.algorithm.act(policy, (), first_input(jnp.zeros((1, 1)), LINE, 1), jnp.arange(1), KEY(), explore=False)
    assert float(action[0, 0]) == pytest.approx(expected, abs=0.1)


def test_frequencies_of_discrete_actions_are_learnt_and_drawn() -> None:
    """Three of four actions are 2. The best action is 2; with exploration, actions are drawn as often as in the data."""
    space = spaces.Discrete(3)
    data = episodes([[2, 2, 0, 2], [2, 2, 0, 2]], [[0] * 4, [0] * 4], space)
    settings = {"model": {"hidden_sizes": ()}, "learning_rate": 0.02, "normalize_observations": False}
    agent = make_bc(env_of(space), data=data, updates=300, batch_size=512, **settings)
    state, metrics = jit(agent.step)(agent.init(KEY()), data)
    policy, many = agent.algorithm.policy(state.learner), 4000
    inputs = first_input(jnp.zeros((many, 1)), space, many)
    drawn, best = (
        jit(partial(agent.algorithm.act, explore=e))(policy, (), inputs, jnp.arange(many), KEY())[1] for e in (True, False)
    )
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / many, [0.25, 0, 0.75], atol=0.04)
    assert (np.asarray(best) == 2).all() and float(metrics["losses/cloning_loss"]) > 0.5


# -------------------------------------------------------------------------------------------------------------- units, refusals


def test_actions_are_learnt_in_the_networks_units() -> None:
    """Pendulum's torques are in [−2, 2]: a policy that plays 2 has the output 1."""
    env = jaxrl.make_env("Pendulum-v1")
    rows = jax.device_get(random_dataset(env).rows())
    data = make_dataset(rows._replace(action=np.where(rows.valid[:, None], np.float32(2), rows.action)), env)
    agent = make_bc(env, data=data, updates=300, batch_size=32, model={"hidden_sizes": ()}, learning_rate=0.05)
    state, _ = jit(agent.step)(agent.init(KEY()), data)
    inputs = first_input(jnp.asarray(rows.obs[:4]), env.action_space, 4)
    _, action, _ = agent.algorithm.act(agent.algorithm.policy(state.learner), (), inputs, jnp.arange(4), KEY(), explore=False)
    np.testing.assert_allclose(action, 2.0, atol=0.1)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2]), spaces.Box(-np.inf, np.inf, (2,), np.float32)])
def test_other_spaces_of_actions(space: spaces.Space) -> None:
    data = episodes([[[1, 1]] * 3, [[0, 1]] * 2], [[0] * 3, [0] * 2], space)
    agent = make_bc(env_of(space), data=data, **TINY.settings)
    state, metrics = jit(agent.step)(agent.init(KEY()), data)
    assert np.isfinite(float(metrics["losses/cloning_loss"])) and int(state.learner.version) == 1


def test_what_it_refuses() -> None:
    data = random_dataset("CartPole-v1")
    with pytest.raises(TypeError, match=r"make_bc\(\) learns from a dataset alone: give data=jaxrl\.load_dataset\(FILE\)"):
        make_bc("CartPole-v1")
    with pytest.raises(ValueError, match=r"best=0 is not allowed: it must be a number in \(0, 1\]"):
        make_bc("CartPole-v1", data=data, best=0)
    with pytest.raises(TypeError, match=r"unknown keyword 'num_envs'"):
        make_bc("CartPole-v1", data=data, num_envs=4)
    with pytest.raises(TypeError, match=r"model=policy_network must give actions f32\[batch, 1\]"):
        make_bc("Pendulum-v1", data=random_dataset("Pendulum-v1"), model=policy_network)
    with pytest.raises(ValueError, match=r"axis_name='d' cannot be used with data="):
        make_bc("CartPole-v1", data=data, axis_name="d")


def test_the_weights_of_seeds_differ_and_a_rate_is_data() -> None:
    agent = small("bc", "CartPole-v1")
    states = jax.vmap(agent.init)(jax.random.split(KEY(), 2), {"learning_rate": jnp.array([0.0, 0.1])})
    after, _ = jit(jax.vmap(agent.step, in_axes=(0, None)))(states, agent.data)
    before, now = (jax.tree.leaves(x.learner.params)[0] for x in (states, after))
    kernels = jax.tree.leaves(states.learner.params)[1]
    assert (before[0] == now[0]).all() and (before[1] != now[1]).any() and (kernels[0] != kernels[1]).any()
