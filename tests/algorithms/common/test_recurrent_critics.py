"""Policies and critics with memory: sequences against transitions and NumPy, the action outside of the core, probes, refusals."""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import make_sac
from jaxrl.algorithms import ddpg, sac, td3
from jaxrl.algorithms.common import deterministic_policy, soft_policy
from jaxrl.algorithms.common.critics.updates import batch_of, draw_updates
from jaxrl.algorithms.common.temperature import FixedTemperature
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.options import OU
from jaxrl.models import action_value, policy_network
from jaxrl.models import deterministic_policy as deterministic_network
from jaxrl.options import CQL, Future, Optimistic, Prioritized, Quantiles
from jaxrl.parallel import data_parallel
from jaxrl.replay import Draw
from jaxrl.replay.sequence import sequence_replay
from jaxrl.replay.transitions import transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.inputs import zero_invalid
from jaxrl.rollout.outputs import Window, outputs_of
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.training import run_iterations
from jaxrl.types import Agent, Model, StepInput
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, assert_close, run_steps, small
from tests.helpers.datasets import random_dataset

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
SIZES = {"num_envs": 4, "rollout_length": 4, "batch_size": 8, "sequence_length": 4, "replay_ratio": 4, "learning_starts": 64}
GRU = {"core": "gru", "hidden_sizes": (8,), "core_size": 8}


def recurrent(rule: str, env: Any = None, **settings: Any) -> Agent:
    """Return a small agent with memory."""
    return small(rule, env or probes.truncation(), **{**SIZES, "model": GRU, "critic": None, **settings})


# ------------------------------------------------------------------------------------------------- sequences against transitions


def disguised(network: Any) -> Any:
    """Return a function of the spaces that makes a network with a carry, which has no influence."""

    def make(observation_space: Any, action_space: Any) -> Model:
        model = network(observation_space, action_space)

        def apply(params: Any, carry: Any, inputs: StepInput, key: Any = None) -> Any:
            return carry + 1.0, model.apply(params, (), inputs)[1]

        unroll = lambda params, carry, inputs, key=None: jax.lax.scan(lambda c, x: apply(params, c, x), carry, inputs)  # noqa: E731
        return Model(model.init, apply, unroll, lambda batch_size: jnp.zeros((batch_size, 1)))

    return make


POLICIES = {"sac": policy_network, "td3": deterministic_network, "ddpg": deterministic_network}


def both_batches(setup: Any, learner: Any, gamma: float, n_step: int) -> tuple[Any, Any]:
    """Return a batch of sequences, and the transitions of the same rows, without noise on actions."""
    config, state = setup.config, learner.replay
    update = jax.tree.map(lambda x: x[0, 0], draw_updates(setup, learner, gamma))
    update = update._replace(noise=jnp.zeros_like(update.noise))
    draw = setup.draw_batches(state, update.draw_key)
    sequences = update._replace(batch=batch_of(setup, learner, state, draw, gamma))

    rows, lanes = config.sequence_length, setup.config.num_envs
    plain = uniform_replay(config.buffer_size // lanes, lanes, config.rollout_length, before=1, after=n_step)
    first = draw.row + config.burn_in
    each = (first + jnp.arange(rows)[:, None]) % (config.buffer_size // lanes)
    many = Draw(each.ravel(), jnp.tile(draw.env, rows), jnp.tile(draw.weight, rows), jnp.tile(draw.valid, rows))
    found = transitions(plain, state.rows, many, gamma, n_step)
    found = found._replace(valid=many.valid & plain.take(state.rows, many, 0).valid)
    found = zero_invalid(found, found.valid)
    found = found._replace(action=from_environment(setup.action_space, found.action))
    return sequences, update._replace(batch=found, noise=update.noise[:, : rows * config.batch_size])


@pytest.mark.parametrize(
    ("rule", "n_step"),
    [("sac", 1), pytest.param("sac", 3, marks=pytest.mark.slow), ("td3", 3), pytest.param("ddpg", 1, marks=pytest.mark.slow)],
)
def test_without_an_influence_of_the_carry_losses_are_those_of_transitions(rule: str, n_step: int) -> None:
    """Of the same rows, at time limits and terminations too."""
    networks = (partial(POLICIES[rule], hidden_sizes=(8,)), partial(action_value, hidden_sizes=(8,)))
    hidden: dict[str, Any] = dict(zip(("model", "critic"), map(disguised, networks), strict=True))
    env = probes.discounting() if n_step == 1 else probes.truncation()
    agent = recurrent(rule, env, **hidden, n_step=n_step, burn_in=2, learning_starts=96)
    with_carries = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    model, critic = (network(agent.env.observation_space, agent.env.action_space) for network in networks)
    without = dataclasses.replace(with_carries, model=model, critic=critic)

    def losses(setup: Any, learner: Any, update: Any) -> Any:
        (actor, critic), hp = learner.params, learner.hyperparams
        if rule == "sac":
            y = sac.target(setup, actor, learner.target_params.critic, jnp.float32(0.3), update)
            policy = soft_policy.actor_loss(setup, actor, critic, jnp.float32(0.3), update)[0]
            return y, sac.critic_loss(setup, critic, y, update)[0], policy
        y = {"td3": td3, "ddpg": ddpg}[rule].target(setup, hp, learner.target_params, update)
        policy = deterministic_policy.actor_loss(setup, actor, critic, update, hp)[0]
        return y, deterministic_policy.critic_loss(setup, critic, y, update)[0], policy

    def run(key: Any) -> Any:
        learner = agent.init(key).learner
        one, two = both_batches(with_carries, learner, 0.9, n_step)
        return one.batch.valid, two.batch, losses(with_carries, learner, one), losses(without, learner, two)

    valid, batch, (y, *found), (expected_y, *expected) = jit(run)(KEY())
    np.testing.assert_array_equal(valid, batch.valid)
    assert 8 < int(valid.sum()) < valid.size and len(np.unique(np.asarray(batch.discount)[np.asarray(valid)])) >= 2
    np.testing.assert_allclose(np.where(valid, y, 0), np.where(valid, expected_y, 0), atol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_quantiles_of_sequences_have_returns_each() -> None:
    """Each of a target's quantiles is discounted and added to the rewards."""
    agent = recurrent("sac", n_step=2, critics=Quantiles(num_quantiles=5, dropped=1), temperature=FixedTemperature(0.1))
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]

    def run(key: Any) -> Any:
        learner = agent.init(key).learner
        update = jax.tree.map(lambda x: x[0, 0], draw_updates(setup, learner, 0.9))
        update = update._replace(batch=batch_of(setup, learner, learner.replay, setup.draw_batches(learner.replay, key), 0.9))
        mean = sac.target(setup, learner.params.actor, learner.target_params.critic, jnp.float32(0.1), update)
        return update.batch.returns, mean

    rows, y = jit(run)(KEY())
    assert y.shape == (4 * 8, 2 * 4) and rows.reward.shape == (5, 8)
    assert (np.diff(np.asarray(y), axis=-1) >= 0).all()  # the same order as the quantiles


# ------------------------------------------------------------------------------------------------------------------- networks


def linear() -> Model:
    """Model with carry ← ½·carry + x·W, which is 0 at the start of an episode, and outputs carry·V."""

    def apply(params: Any, carry: Any, inputs: StepInput, key: Any = None) -> Any:
        carry = 0.5 * jnp.where(inputs.is_first[:, None], 0.0, carry) + inputs.obs @ params["w"]
        return carry, carry @ params["v"]

    unroll = lambda params, carry, inputs, key=None: jax.lax.scan(lambda c, row: apply(params, c, row), carry, inputs)  # noqa: E731
    return Model(None, apply, unroll, lambda batch_size: jnp.zeros((batch_size, 2)))  # type: ignore[arg-type]


@pytest.mark.parametrize("of_policy", [True, False])
def test_a_window_begins_with_the_carry_of_acting_or_of_an_episode(of_policy: bool) -> None:
    """The policy's is stored; that of critics is not. No gradient flows through the rows before the start."""
    rng = np.random.default_rng(0)
    obs, carry = rng.normal(size=(5, 3, 4)).astype(np.float32), rng.normal(size=(3, 2)).astype(np.float32)
    is_first = np.zeros((5, 3), bool)
    is_first[3, 1] = is_first[0, 2] = True
    params = {"w": rng.normal(size=(4, 2)).astype(np.float32), "v": rng.normal(size=(2, 3)).astype(np.float32)}
    nothing = np.zeros((5, 3), np.float32)
    window = Window(StepInput(obs, nothing, nothing, is_first), carry, 2)
    of = lambda params: outputs_of(linear(), params, window, of_policy=of_policy)  # noqa: E731
    now, expected = np.where(of_policy, carry, 0.0), []
    for t in range(5):
        now = 0.5 * np.where(is_first[t, :, None], 0, now) + obs[t] @ params["w"]
        expected.append(now @ params["v"])
        if t == 1:
            constant = now
    np.testing.assert_allclose(of(params), np.concatenate(expected[2:]), atol=1e-5)

    def after(w: Any) -> Any:
        now, total = constant, 0.0
        for t in range(2, 5):
            now = 0.5 * jnp.where(is_first[t, :, None], 0, now) + obs[t] @ w
            total += (now @ params["v"]).sum()
        return total

    slope = jax.grad(lambda params: of(params).sum())(params)["w"]
    np.testing.assert_allclose(slope, jax.grad(after)(params["w"]), rtol=1e-4)


@pytest.mark.parametrize("core", ["gru", "lstm", "attention", pytest.param("s5", marks=pytest.mark.slow)])
def test_the_value_of_a_row_depends_on_its_own_action_alone(core: str) -> None:
    """And on all earlier observations: actions enter after the core."""
    observations, actions = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
    critic = action_value(observations, actions, core=core, hidden_sizes=(8,), core_size=8)
    inputs = first_input((jnp.zeros((1, 3)), jnp.zeros((1, 2))), actions, 1)
    params = jit(critic.init)(KEY(), inputs)
    rows = jax.tree.map(lambda x: jnp.repeat(x[None], 4, 0), inputs)
    rows = rows._replace(is_first=jnp.arange(4)[:, None] == 0)

    def values(obs: Any, action: Any) -> Any:
        return critic.unroll(params, critic.initial_carry(1), rows._replace(obs=(obs, action)))[1][:, 0]

    given = (jax.random.normal(KEY(), (4, 1, 3)), jax.random.normal(jax.random.key(1), (4, 1, 2)))
    of_obs, of_action = (np.abs(x).sum((-2, -1)) for x in jit(jax.jacobian(values, argnums=(0, 1)))(*given))
    np.testing.assert_array_equal(of_action > 0, np.eye(4, dtype=bool))
    np.testing.assert_array_equal(of_obs > 0, np.tri(4, dtype=bool))


# ---------------------------------------------------------------------------------------------------------------------- learning


@cache
def recalled(rule: str, **settings: Any) -> np.ndarray:
    """Return the greedy answers to the memory probe's question after both cues, in a Box from −1 to 1."""
    sizes = {"num_envs": 16, "rollout_length": 4, "batch_size": 16, "sequence_length": 8, "replay_ratio": 8, "buffer_size": 6400}
    rates = {"gamma": 0.9, "learning_rate": 0.01, "actor_learning_rate": 0.01, "learning_starts": 128}
    agent = recurrent(rule, probes.memory(), **sizes, **rates, **settings)
    obs = np.zeros((4, 2, 2), np.float32)
    obs[0, :, 0], obs[3, :, 1] = (-1, 1), 1

    def run(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 250)
        policy, carry = agent.algorithm.policy(state.learner), agent.algorithm.initial_carry(2)
        inputs = first_input(jnp.asarray(obs[0]), agent.env.action_space, 2)
        for row in obs:
            inputs = inputs._replace(obs=jnp.asarray(row))
            carry, action, _ = agent.algorithm.act(policy, carry, inputs, jnp.arange(2), key, explore=False)
            inputs = inputs._replace(prev_action=action, is_first=jnp.zeros(2, bool))
        return action

    return np.asarray(jit(run)(KEY()))[:, 0]


@pytest.mark.parametrize("rule", ["sac", pytest.param("td3", marks=pytest.mark.slow)])
def test_memory_is_learnt(rule: str) -> None:
    """A cue that was seen three rows before decides the action."""
    settings: dict[str, Any] = {"temperature": FixedTemperature(0.05)} if rule == "sac" else {"exploration_noise": 0.5}
    answers = recalled(rule, **settings)
    assert answers[0] < 0 < answers[1]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sac", "td3"])
def test_prioritised_sequences_have_priorities_of_their_own(rule: str) -> None:
    agent = recurrent(rule, replay=Prioritized(), policy_delay=1)
    state, _ = run_steps(agent, jit(agent.init)(KEY()), 4)
    assert len(np.unique(np.asarray(state.learner.replay.starts.levels[0]))) > 5


@pytest.mark.slow
def test_seeds_in_a_batch_are_those_alone() -> None:
    agent = recurrent("sac", probes.memory())
    keys = jax.random.split(KEY(), 2)
    states = jax.vmap(agent.init)(keys)
    step = jax.jit(jax.vmap(agent.step))
    for _ in range(3):
        states, _ = step(states)
    alone, _ = run_steps(agent, agent.init(keys[1]), 3)
    assert_close(jax.tree.map(lambda x: x[1], states), alone)


@pytest.mark.parametrize("core", ["gru", *(pytest.param(core, marks=pytest.mark.slow) for core in ("attention", "s5"))])
def test_two_devices_have_the_gradient_of_one(core: str) -> None:
    """All sequences are the same, so draws have no influence."""
    settings = {**SIZES, "replay_ratio": 2, "buffer_size": 240, "tau": 0.1, "anneal": False, "temperature": FixedTemperature(0.1)}
    memory = {"core": core, "hidden_sizes": (8,), "core_size": 8}
    alone = make_sac("tests.helpers.probes:constant_reward?num_actions=1", model=memory, **settings)
    both = data_parallel(alone, 2)
    learners = [run_steps(agent, agent.init(KEY()), 1)[0].learner for agent in (alone, both)]
    assert_close(learners[1].params, learners[0].params)
    assert int(learners[0].version) == 1


@pytest.mark.slow
def test_held_noise_goes_with_memory() -> None:
    """The stored carry is the model's alone."""
    held, plain = (recurrent("sac", probes.memory(), hold_noise=hold) for hold in (3, 1))
    shapes = [jax.eval_shape(agent.init, KEY()).learner.replay for agent in (held, plain)]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes[0]) == jax.tree.map(lambda x: (x.shape, x.dtype), shapes[1])
    state, metrics = run_steps(held, jit(held.init)(KEY()), 2)
    assert np.isfinite(float(metrics["losses/td_loss"].sum)) and int(state.learner.version) == 2


@pytest.mark.slow
def test_a_critic_without_memory_may_see_what_the_policy_remembers() -> None:
    """Its values of single rows are learnt from sequences too."""
    agent = recurrent("sac", probes.memory(), critic={"core": None})
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    assert not jax.tree.leaves(setup.critic.initial_carry(1)) and jax.tree.leaves(setup.model.initial_carry(1))
    _, metrics = run_steps(agent, jit(agent.init)(KEY()), 2)
    assert np.isfinite(float(metrics["losses/td_loss"].sum))


def test_a_critic_without_memory_takes_no_arguments_of_the_policys_core() -> None:
    agent = recurrent("sac", model={**GRU, "core": "attention", "context": 3}, critic={"core": None})
    critic = agent.spec["parts"]["critic"]
    assert critic["core"] is None and "context" not in critic


def test_a_replay_of_sequences_may_be_given() -> None:
    given = recurrent("sac", replay=sequence_replay(uniform_replay))
    learners = [jit(agent.init)(KEY()).learner for agent in (given, recurrent("sac"))]
    assert_bit_equal(*learners)


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {}, "burn_in": 2, "sequence_length": 0}, r'burn_in=2 has no effect on a model without .*\{"core": "gru"\}'),
        ({"model": {}}, "sequence_length=4 has no effect on a model without memory"),
        ({"replay_ratio": 3}, r"replay_ratio=3 gives 1\.5 updates .* / \(batch_size \* sequence_length\)\)"),
        ({"buffer_size": 28, "learning_starts": 0}, "buffer_size=28 is too small: a sequence of .* use at least 48"),
        ({"conservative": CQL()}, r"conservative=CQL\(.* needs networks without memory"),
        ({"exploration": Optimistic()}, r"exploration=Optimistic\(.* needs networks without memory"),
        ({"model": {**GRU, "core_size": 0}}, "core_size=0"),
        ({"critic": {"dropout": 0.1}}, "core='gru' and dropout=0.1 are mutually exclusive"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recurrent("sac", **settings)


def test_other_settings_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"noise=OU\(\) has a carry, and so has the model"):
        recurrent("ddpg", noise=OU())
    with pytest.raises(ValueError, match=r"^data=… has no carries"):
        make_sac("Pendulum-v1", data=random_dataset("Pendulum-v1"), model=GRU)
    with pytest.raises(ValueError, match="hindsight='future' relabels single rows"):
        recurrent("sac", "jaxrl:Reach", hindsight=Future())
    with pytest.raises(TypeError, match=r"^the critic must be memoryless .* critics with memory need a policy with memory"):
        recurrent("sac", model={"hidden_sizes": (8,)}, critic=GRU, sequence_length=0)
    with pytest.raises(TypeError, match=r"^replay=.*, which must store sequences that begin with each rollout"):
        recurrent("td3", replay=uniform_replay)
    with pytest.raises(ValueError, match="core='gru' and batch_renorm=True are mutually exclusive"):
        small("crossq", probes.truncation(), model=GRU, critic=None)
