"""Decision transformer: the return that its network sees, sequences of a dataset, returns that follow what is asked for."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from gymnasium import spaces

import jaxrl
from jaxrl import make_dt
from jaxrl.algorithms import dt
from jaxrl.distributions import Categorical
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import greedy_policy
from jaxrl.replay import Draw
from jaxrl.replay.dataset import make_dataset
from jaxrl.replay.dataset_replay import WithData
from jaxrl.replay.transitions import ReplayRow
from jaxrl.rollout.autoreset import first_input
from jaxrl.training import run_iterations
from jaxrl.types import Env, Model, StepInput, TimeStep
from tests.helpers.agents import Tiny, small
from tests.helpers.datasets import random_dataset
from tests.helpers.hosted import hosted

TINY = Tiny(
    settings={
        "updates": 2,
        "batch_size": 4,
        "sequence_length": 5,
        "model": partial(greedy_policy, hidden_sizes=(8,), core="attention", core_size=8, context=3, attention_layers=1),
    },
    value=None,
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
LENGTH = 3
LINE = spaces.Box(-1.0, 1.0, (1,), np.float32)


def adding(action_space: spaces.Space = LINE) -> Env:
    """Return an environment whose rewards are its actions, in episodes of three rows; observations say which row it is."""

    def observed(t: Any) -> Any:
        return jnp.asarray(t, jnp.float32)[None] / LENGTH

    def reset(key: Any, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), observed(0)

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        reward = jnp.asarray(action, jnp.float32).reshape(())
        return state + 1, TimeStep(observed(state + 1), reward, state + 1 >= LENGTH, jnp.zeros((), bool))

    like = jaxrl.make_env("tests.helpers.probes:target_action")
    assert isinstance(like, Env)
    return like._replace(reset=reset, step=step, observation_space=LINE, action_space=action_space, name="adding")


def episodes(number: int, action_space: spaces.Space = LINE) -> Any:
    """Return a dataset of random actions in ``adding``."""
    rng = np.random.default_rng(0)
    t = np.tile(np.arange(LENGTH + 1), number)
    if isinstance(action_space, spaces.Box):
        action = rng.uniform(-1, 1, (len(t), 1)).astype(np.float32)
    else:
        action = rng.integers(3, size=len(t)).astype(np.int32)
    reward = action.reshape(-1).astype(np.float32)
    rows = ReplayRow((t / LENGTH).astype(np.float32)[:, None], action, reward, t == LENGTH - 1, t < LENGTH)
    return make_dataset(rows, adding(action_space))


# ----------------------------------------------------------------------------------------------------------------------- model


def echo() -> Model:
    """Return a model whose output is the return that it sees."""

    def apply(params: Any, carry: Any, inputs: StepInput, key: Any = None) -> Any:
        return carry, inputs.obs[dt.RETURN_KEY]

    return Model(lambda key, inputs: jnp.zeros(()), apply, apply, lambda batch_size: ())


@pytest.mark.parametrize("nested", [False, True])
def test_the_network_sees_the_return_less_the_rewards_so_far(nested: bool) -> None:
    model, rewards = dt.conditioned(echo(), nested, 10.0), np.array([[0.0, 0.0], [1.0, -2.0], [3.0, 0.5]], np.float32)
    obs = np.zeros((3, 2, 1), np.float32)
    inputs = StepInput({"x": obs} if nested else obs, obs, rewards, np.zeros((3, 2), bool))  # type: ignore[arg-type]
    carry = (model.initial_carry(2)[0], jnp.array([10.0, 5.0]))
    (_, last), seen = model.unroll((), carry, inputs)
    seen = seen[..., 0]
    expected = np.array([10.0, 5.0]) - np.cumsum(rewards, 0)
    np.testing.assert_allclose(seen, expected / 10, rtol=1e-6)
    np.testing.assert_allclose(last, expected[-1], rtol=1e-6)
    for t in range(3):
        carry, one = model.apply((), carry, jax.tree.map(lambda x, t=t: x[t], inputs))
        np.testing.assert_allclose(one[:, 0], expected[t] / 10, rtol=1e-6)


def test_an_action_mask_stays_where_heads_find_it() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": LINE})
    assert list(dt.seen_space(space)) == ["action_mask", "return_to_go", "x"]
    assert list(dt.seen_space(LINE)) == ["observation", "return_to_go"]


def test_acting_begins_each_episode_with_the_return_that_is_asked_for() -> None:
    agent = make_dt(adding(), data=episodes(4), **{**TINY.settings, "model": {"core": None, "hidden_sizes": ()}})
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    unbounded = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    echoing = dataclasses.replace(setup, model=dt.conditioned(echo(), False, 1.0), action_space=unbounded)
    state = agent.init(KEY(), {"target_fraction": 0.5})
    low, high = agent.data.info.returns
    policy = agent.algorithm.policy(state.learner)
    assert float(policy.exploration) == pytest.approx((low + high) / 2)
    inputs = StepInput(jnp.zeros((2, 1)), jnp.zeros((2, 1)), jnp.array([0.0, 0.25]), jnp.array([True, False]))
    carry = ((), jnp.array([99.0, 7.0]))
    (_, to_go), shown, _ = dt.act(echoing, policy._replace(statistics=()), carry, inputs, jnp.arange(2), KEY(), explore=False)
    np.testing.assert_allclose(to_go, [(low + high) / 2, 6.75], rtol=1e-6)
    np.testing.assert_allclose(shown[:, 0], to_go, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------------------- sequences


def test_sequences_end_with_their_episode() -> None:
    agent = make_dt(adding(), data=(data := episodes(4)), **TINY.settings)
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    rows, row = jax.device_get(data.rows()), np.array([0, 5, 14], np.int32)
    draw = Draw(row, np.zeros(3, np.int32), np.ones(3, np.float32), np.ones(3, bool))  # type: ignore[arg-type]
    batch = jit(lambda state, draw: dt.sequences(setup, state, draw))(WithData((), data), draw)
    assert batch.valid.tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    for i, (at, length) in enumerate(((0, 3), (5, 2), (14, 1))):
        part = slice(at, at + length)
        np.testing.assert_array_equal(batch.inputs.obs[i, :length], rows.obs[part])
        np.testing.assert_array_equal(batch.action[i, :length], rows.action[part])
        np.testing.assert_array_equal(batch.to_go[i, :length], data.returns_to_go[part])
        starts = np.isin(np.arange(at, at + length), data.starts)
        assert batch.inputs.is_first[i, :length].tolist() == starts.tolist()
        before = np.where(starts, 0, rows.reward[np.arange(at, at + length) - 1])
        np.testing.assert_array_equal(batch.inputs.prev_reward[i, :length], before)


def test_training_shows_the_same_returns_as_acting_would() -> None:
    """Through a sequence that begins within an episode, the network sees the data's returns to go."""
    agent = make_dt(adding(), data=(data := episodes(4)), **TINY.settings)
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    draw = Draw(jnp.array([0, 5, 8]), jnp.zeros(3, jnp.int32), jnp.ones(3), jnp.ones(3, bool))
    batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), dt.sequences(setup, WithData((), data), draw))
    model = dt.conditioned(echo(), False, 1.0)
    start = batch.to_go[0] + batch.inputs.prev_reward[0]
    seen = model.unroll((), ((), start), batch.inputs)[1][..., 0]
    valid = np.asarray(batch.valid)
    np.testing.assert_allclose(np.asarray(seen)[valid], np.asarray(batch.to_go)[valid], rtol=1e-5, atol=1e-6)


def test_the_loss_is_a_mean_over_rows_of_the_episode() -> None:
    own = make_dt(adding(), data=episodes(4), **{**TINY.settings, "model": {"core": None, "hidden_sizes": ()}})
    setup = own.algorithm.learn.args[-1]  # type: ignore[union-attr]
    draw = Draw(jnp.array([0, 5]), jnp.zeros(2, jnp.int32), jnp.ones(2), jnp.ones(2, bool))
    batch = dt.sequences(setup, WithData((), own.data), draw)
    params = own.init(KEY()).learner.params
    start = batch.to_go[:, 0] + batch.inputs.prev_reward[:, 0]
    in_time = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch.inputs)
    output = np.swapaxes(setup.model.unroll(params, ((), start), in_time)[1], 0, 1)
    where = np.asarray(batch.valid)
    expected = ((output - np.asarray(batch.action)) ** 2).mean(-1)[where].mean()
    spoiled = batch._replace(action=jnp.where(batch.valid[..., None], batch.action, 1e6))
    for each in (batch, spoiled):
        assert float(dt.loss(setup, params, each)[0]) == pytest.approx(float(expected), rel=1e-5)


# -------------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"core": None, "hidden_sizes": (32,)}, id="without a core"),
        pytest.param({"core_size": 16, "context": 3, "attention_layers": 1, "hidden_sizes": (16,)}, id="attention"),
        pytest.param({"core": "gru", "core_size": 16}, id="gru", marks=pytest.mark.slow),
    ],
)
def test_returns_follow_the_return_that_is_asked_for(model: dict[str, Any]) -> None:
    """Ten members ask for returns between those of the data."""
    env = adding()
    settings = {"updates": 100, "sequence_length": 3, "batch_size": 64, "learning_rate": 3e-3}
    agent = make_dt(env, data=episodes(200), model=model, **settings)
    fractions = jnp.linspace(0.1, 0.9, 10)

    def train(data: Any) -> Any:
        stepping = agent._replace(step=lambda state: agent.step(state, data))
        return run_iterations(stepping, agent.init(KEY()), 8)[0]

    state = jit(train)(agent.data)

    @jit
    @jax.vmap
    def played(fraction: Any) -> Any:
        learner = state.learner._replace(hyperparams=state.learner.hyperparams._replace(target_fraction=fraction))
        policy, carry = agent.algorithm.policy(learner), agent.algorithm.initial_carry(1)
        env_state, obs = env.reset(KEY(), ())
        inputs, total = first_input(obs[None], env.action_space, 1), 0.0
        for _ in range(LENGTH):
            carry, action, _ = agent.algorithm.act(policy, carry, inputs, jnp.arange(1), KEY(), explore=False)
            env_state, (obs, reward, *_) = env.step(KEY(), env_state, action[0], ())
            inputs, total = StepInput(obs[None], action, reward[None], jnp.zeros(1, bool)), total + reward
        return policy.exploration, total

    asked, returns = played(fractions)
    assert scipy.stats.spearmanr(asked, returns).statistic >= 0.9
    assert np.abs(np.asarray(asked) - np.asarray(returns)).mean() < 0.35


def test_discrete_actions_follow_too() -> None:
    space = spaces.Discrete(3)
    agent = make_dt(
        adding(space), data=episodes(50, space), model={"core": None, "hidden_sizes": (16,)}, updates=3, sequence_length=3
    )
    state, metrics = jit(agent.step)(agent.init(KEY()), agent.data)
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    inputs = first_input(jnp.zeros((2, 1)), space, 2)
    output = setup.model.apply(state.learner.params, setup.model.initial_carry(2), inputs)[1]
    assert isinstance(output, Categorical) and 0 < float(metrics["losses/cloning_loss"]) < 2


# -------------------------------------------------------------------------------------------------------------- runs, refusals


@pytest.mark.slow
def test_a_policy_with_memory_is_loaded_and_evaluated(tmp_path: Any) -> None:
    agent = small("dt", "CartPole-v1")
    _, history = jaxrl.run(agent, 4, seeds=2, out=tmp_path / "run", quiet=True, eval_episodes=2, tensorboard=False)
    assert np.isfinite(history["evaluation/episodic_return"][-1]).all()
    policy = jaxrl.load_policy(tmp_path / "run", which="last")
    assert int(policy(np.zeros(4, np.float32))) in (0, 1)
    resumed, _ = jaxrl.resume(tmp_path / "run", total_steps=6, quiet=True, data=agent.data)
    assert resumed.iteration.tolist() == [3, 3]


def test_what_it_refuses() -> None:
    with pytest.raises(TypeError, match=r"make_dt\(\) learns from a dataset alone"):
        make_dt("CartPole-v1")
    with pytest.raises(ValueError, match=r"sequence_length=0 must be an integer >= 1"):
        make_dt("CartPole-v1", data=random_dataset("CartPole-v1"), sequence_length=0)
    with pytest.raises(ValueError, match=r"the dataset has observations"):
        make_dt(hosted(jaxrl.make_env("Pendulum-v1")), data=random_dataset("CartPole-v1"))
