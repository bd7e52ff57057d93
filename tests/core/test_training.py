"""Training and evaluation as pure functions: iterations, metrics, and exactly one episode per environment."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import make_train
from jaxrl.agent import bind
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.metrics import masked_max, masked_mean, merge, scalar, to_floats
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.evaluation.evaluate import evaluate
from jaxrl.settings.validation import NonNegative, Unit
from jaxrl.training import freezing, num_iterations, run_iterations
from jaxrl.types import Agent, AgentState, Algorithm, Env, Policy, Rollout, StepInput, TimeStep
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, run_steps, small_ppo

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""


# An algorithm that compiles quickly: these tests do not depend on the algorithm.


class Rates(NamedTuple):
    learning_rate: NonNegative = 0.5
    gamma: Unit = 0.9


class Tally(NamedTuple):
    params: Any
    opt_state: Any
    hyperparams: Rates
    statistics: Any
    key: Any
    version: Any
    observed: Any


def tally(env: Env, warmup_iterations: int = 0) -> Agent:
    """Return an agent whose parameter sums rewards.

    It explores by coin tosses; its greedy actions alternate, by a carry that counts rows.
    """

    def init(key: Any, hyperparams: Rates) -> Tally:
        return Tally(jax.random.uniform(key), (), hyperparams, (), key, jnp.int32(0), jnp.int32(0))

    def policy(learner: Tally) -> Policy:
        return Policy(learner.params, (), (), learner.version)

    def act(policy: Policy, carry: Any, inputs: StepInput, env_id: Any, key: Any, *, explore: bool) -> Any:
        carry = jnp.where(inputs.is_first, 0, carry) + 1
        coins = jax.vmap(jax.random.bernoulli)(fold_each(key, env_id))
        return carry, (coins if explore else carry % 2).astype(jnp.int32), ()

    def observe(learner: Tally, rollout: Rollout) -> Tally:
        return learner._replace(observed=learner.observed + rollout.valid.sum(dtype=jnp.int32))

    def update(learner: Tally, rollout: Rollout) -> Any:
        gain = learner.hyperparams.learning_rate * jnp.where(rollout.valid, rollout.reward, 0).sum()
        metrics = {
            "losses/gain": scalar(gain),
            "losses/action": masked_mean(rollout.action, rollout.valid),
            "losses/best": masked_max(rollout.reward, rollout.valid),
        }
        learner = observe(learner, rollout)
        return learner._replace(params=learner.params + gain, version=learner.version + 1), metrics

    carry = partial(jnp.zeros, dtype=jnp.int32)
    algorithm = Algorithm(init, policy, act, update, carry, observe=observe, warmup_iterations=warmup_iterations)
    return bind(algorithm, env, num_envs=4, rollout_length=8, hyperparams=Rates())


def parrot(every: int = 5) -> Env:
    """Reward equal to the action; truncated every ``every`` steps."""

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        state, reached = probes.truncation().step(key, state, action, params)
        return state, reached._replace(reward=action.astype(jnp.float32))

    return probes.truncation(every)._replace(step=step)


@cache
def agent() -> Agent:
    """32 rows per iteration, without warm-up."""
    return tally(parrot())


@cache
def initial() -> AgentState:
    return agent().init(KEY())


@cache
def warmed() -> Agent:
    return tally(parrot(), warmup_iterations=2)


# -------------------------------------------------------------------------------------------------- number of iterations


@pytest.mark.parametrize("total, expected", [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (1000, 32)])
def test_totals_are_rounded_up(total: int, expected: int) -> None:
    assert num_iterations(agent(), total) == expected


def test_the_warm_up_counts() -> None:
    assert [num_iterations(warmed(), total) for total in (65, 96, 97, 800)] == [1, 1, 2, 23]
    assert num_iterations(warmed(), 96, exact_steps=True) == 1
    for total in (1, 64):
        with pytest.raises(
            ValueError, match=rf"total_steps={total} leaves nothing after the warm-up of 64 rows: use at least 96"
        ):
            num_iterations(warmed(), total)


def test_the_warm_up_collects_and_observes_and_learns_nothing() -> None:
    state = warmed().init(KEY())
    assert (int(state.iteration), int(state.learner.version)) == (2, 0)
    assert float(state.learner.params) == float(initial().learner.params)
    assert int(state.learner.observed) == int(state.warmup_rows) == 4 * 14  # of 16 rows each; rows 5 and 11 are resets
    # The environments have advanced: the first iteration continues where the warm-up ended.
    without, _ = run_steps(agent(), initial(), 2)
    assert_bit_equal(state.actor, without.actor)
    train = jit(make_train(warmed(), 4 * 32))
    after, metrics = train(KEY())
    assert int(after.iteration) == 4 and metrics["losses/gain"].sum.shape == (2,)


def test_exact_steps_refuses_to_round() -> None:
    assert num_iterations(agent(), 64, exact_steps=True) == 2
    with pytest.raises(ValueError, match=r"total_steps=70 is not a multiple of num_envs \* rollout_length = 32.*use 64 or 96"):
        num_iterations(agent(), 70, exact_steps=True)
    with pytest.raises(ValueError, match=r"total_steps=5 is not a multiple.*use 32"):
        make_train(agent(), 5, exact_steps=True)


@pytest.mark.parametrize("total", [0, -1, 1e6 + 0.5, "1000", None, True])
def test_totals_that_are_none(total: Any) -> None:
    with pytest.raises(ValueError, match=r"total_steps=.* must be an integer >= 1"):
        make_train(agent(), total)


@pytest.mark.parametrize("every", [0, -2, 1.5])
def test_metrics_every_nothing(every: Any) -> None:
    with pytest.raises(ValueError, match=f"metrics_every={every} must be an integer >= 1"):
        make_train(agent(), 1000, metrics_every=every)


# -------------------------------------------------------------------------------------------------------------- training


@cache
def seven() -> tuple[AgentState, Any]:
    """Return the state after seven iterations, one call of step each, and the metrics of each."""
    state, metrics = initial(), []
    for _ in range(7):
        state, new = run_steps(agent(), state, 1)
        metrics.append(new)
    return state, metrics


@pytest.mark.parametrize("every", [1, 3, 100])
def test_train_is_repeated_steps(every: int) -> None:
    """Seven iterations, with one entry per iteration, per 3 with a tail of one, and per more than all."""
    state, metrics = jit(make_train(agent(), 7 * 32, metrics_every=every))(KEY())
    expected_state, each = seven()
    assert_bit_equal(state, expected_state)
    parts = [each[i : i + every] for i in range(0, 7, every)]
    for i, part in enumerate(parts):
        merged = part[0]
        for more in part[1:]:
            merged = merge(merged, more)
        got = jax.tree.map(lambda x, i=i: x[i], metrics)
        assert to_floats(got) == pytest.approx(to_floats(merged), rel=1e-5)
        jax.tree.map(lambda x, y: np.testing.assert_equal(x.dtype, y.dtype), got, merged)
    assert {x.shape for x in jax.tree.leaves(metrics)} == {(len(parts),)}


def test_one_compile_serves_any_number_of_iterations() -> None:
    chunk = jit(partial(run_iterations, agent()))
    none, nothing = chunk(initial(), 0)
    assert_bit_equal(none, initial())
    assert set(to_floats(nothing).values()) == {None}
    three, _ = chunk(initial(), 3)
    whole, metrics = chunk(three, jnp.int32(4))
    assert_bit_equal(whole, seven()[0])
    assert int(metrics["charts/valid_rows"].count) == 4 * 32
    assert chunk._cache_size() <= 2  # a Python number and an i32 array

    states = jax.tree.map(lambda x: jnp.stack([x, x]), initial())
    both, _ = jit(jax.vmap(partial(run_iterations, agent()), in_axes=(0, None)))(states, 2)
    assert both.iteration.tolist() == [2, 2]


def test_a_state_that_breaks_stays_what_it_was() -> None:
    """Two seeds under vmap. One of them breaks in its fourth iteration: by its parameters, or only by its losses."""
    base = agent()

    def step(state: AgentState) -> Any:
        after, metrics = base.step(state)
        broken = jnp.where((state.iteration == 3) & (state.learner.hyperparams.gamma == 0), jnp.nan, 0.0)
        by_losses = state.learner.hyperparams.learning_rate == 0
        params = after.learner.params + jnp.where(by_losses, 0.0, broken)
        gain = metrics["losses/gain"]
        metrics |= {"losses/gain": gain._replace(sum=gain.sum + jnp.where(by_losses, broken, 0.0))}
        return after._replace(learner=after.learner._replace(params=params)), metrics

    breaking = freezing(base._replace(step=step))
    advance = jit(jax.vmap(lambda carry, n: run_iterations(breaking, carry, n), in_axes=(0, None)))
    plain = jit(jax.vmap(lambda state, n: run_iterations(base, state, n)[0], in_axes=(0, None)))
    hyperparams = Rates(jnp.array([0.5, 0.5, 0.0]), jnp.array([0.9, 0.0, 0.0]))
    start = jax.vmap(lambda hp: base.init(KEY(), hp))(hyperparams)

    (whole, alive), metrics = advance((start, jnp.ones(3, bool)), 7)
    assert alive.tolist() == [True, False, False]
    three, seven_ = plain(start, 3), plain(start, 7)
    expected = jax.tree.map(lambda a, b: jnp.concatenate([a[:1], b[1:]]), seven_, three)
    assert_bit_equal(whole, expected)
    assert metrics["charts/valid_rows"].count.tolist() == [7 * 32, 3 * 32, 3 * 32]
    assert np.isfinite(metrics["losses/gain"].sum).tolist() == [True, True, False]

    carry = (start, jnp.ones(3, bool))
    for n in (2, 1, 3, 1):
        carry, metrics = advance(carry, n)
    assert_bit_equal(carry[0], whole)
    assert metrics["charts/valid_rows"].count.tolist() == [32, 0, 0] and metrics["losses/gain"].count.tolist() == [1, 0, 0]
    (still, alive), metrics = advance((start, jnp.array([False, True, True])), 2)  # a seed that was frozen before
    assert alive.tolist() == [False, True, True] and metrics["charts/valid_rows"].count.tolist() == [0, 64, 64]
    assert_bit_equal(jax.tree.map(lambda x: x[0], still), jax.tree.map(lambda x: x[0], start))


def test_entries_of_metrics_that_32_bits_cannot_count_are_refused() -> None:
    large = agent()._replace(num_envs=2**16, rollout_length=2**10)
    make_train(large, 2**40, metrics_every=31)
    with pytest.raises(ValueError, match=r"metrics_every=32 merges 2147483648 rows into one entry, .* use at most 31"):
        make_train(large, 2**40, metrics_every=32)


def test_train_takes_hyperparameters_and_environment_parameters() -> None:
    pure = make_train(agent(), 32)
    train = jit(pure)
    state, metrics = train(KEY(), {"gamma": 0.5}, probes.Cut(2))
    assert float(state.learner.hyperparams.gamma) == 0.5
    assert to_floats(metrics)["charts/episodic_length"] == 2
    whole, _ = train(KEY(), Rates(0.25, 0.75), probes.Cut(2))
    assert whole.learner.hyperparams == (0.25, 0.75)
    over_rates = jit(jax.vmap(lambda rate: pure(KEY(), {"learning_rate": rate})[0].learner.params))
    gains = over_rates(jnp.array([0.5, 1.0])) - initial().learner.params
    assert gains[1] == pytest.approx(2 * float(gains[0]))
    with pytest.raises(ValueError, match="env_params must have the structure"):
        train(KEY(), None, {"every": 2})
    with pytest.raises(TypeError, match="Did you mean 'gamma'"):
        train(KEY(), {"gama": 0.5})


def test_init_wants_one_typed_key() -> None:
    for wrong in (0, jnp.array([0, 1], jnp.uint32), np.zeros(2, np.uint32), None):
        with pytest.raises(TypeError, match=r"key must be a typed key, as jax\.random\.key\(0\) makes"):
            agent().init(wrong)
    with pytest.raises(TypeError, match=r"one key, not a batch of shape \(2,\): use jax\.vmap"):
        agent().init(jax.random.split(KEY(), 2))


# ------------------------------------------------------------------------------------------------------------ evaluation


def lottery() -> Env:
    """Episodes of 1 or 9 steps with reward 1 each, equally likely.

    The mean return is 5, and 9 of 10 steps are in long episodes. Counting the episodes that finish first in a fixed time would
    count mostly short ones. An end is reported only once: later steps do not repeat it.
    """

    def reset(key: Any, params: Any) -> Any:
        length = jnp.where(jax.random.bernoulli(key), 1, 9)
        return (jnp.int32(0), length), jnp.zeros(1)

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        time, length = state[0] + 1, state[1]
        return (time, length), TimeStep(jnp.zeros(1), jnp.float32(1), time == length, jnp.array(False))

    return Env(reset, step, spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2), (), "lottery")


def test_exactly_one_episode_per_environment() -> None:
    lucky = tally(lottery())
    result = jit(lambda state, key: evaluate(lucky, state, key, 200))(lucky.init(KEY()), KEY())
    assert set(np.unique(result.episodic_length)) == {1, 9}
    np.testing.assert_array_equal(result.episodic_return, result.episodic_length)
    assert result.finished.all()
    assert abs(float((result.episodic_length == 9).mean()) - 0.5) < 4 * 0.5 / 200**0.5
    assert result.episodic_return.dtype == jnp.float32 and result.episodic_length.dtype == jnp.int32


def test_an_episode_that_does_not_end_is_given_up() -> None:
    cuts = probes.Cut(jnp.array([2, 5, 6, 100]))
    result = jit(lambda s: evaluate(agent(), s, KEY(), 4, env_params=cuts, max_steps=5))(initial())
    np.testing.assert_array_equal(result.episodic_length, [2, 5, 5, 5])
    np.testing.assert_array_equal(result.episodic_return, [1, 3, 3, 3])  # the returns so far: every second action is 1
    np.testing.assert_array_equal(result.finished, [True, True, False, False])


def test_a_limit_of_the_environment_ends_episodes() -> None:
    limited = tally(parrot(100)._replace(max_episode_steps=3))
    result = evaluate(limited, limited.init(KEY()), KEY(), 2)
    np.testing.assert_array_equal(result.episodic_length, [3, 3])
    assert result.finished.all()


@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_limits_that_are_none(limit: Any) -> None:
    with pytest.raises(ValueError, match=f"max_steps={limit} must be an integer >= 1"):
        evaluate(agent(), initial(), KEY(), 2, max_steps=limit)


def test_numbers_of_episodes_that_are_none() -> None:
    with pytest.raises(ValueError, match="num_episodes=0 must be an integer >= 1"):
        evaluate(agent(), initial(), KEY(), 0)


def test_explore_acts_as_in_training() -> None:
    run = jit(lambda s, explore: evaluate(agent(), s, KEY(), 40, explore=explore).episodic_return, static_argnums=1)
    np.testing.assert_array_equal(run(initial(), False), np.full(40, 3.0))  # 1, 0, 1, 0, 1: the carry is used
    coins = run(initial(), True)
    assert len(np.unique(coins)) > 3 and abs(float(coins.mean()) - 2.5) < 4 * (5 / 4 / 40) ** 0.5


def test_evaluation_takes_a_policy_or_a_state() -> None:
    by_state = evaluate(agent(), initial(), KEY(), 3)
    policy = agent().algorithm.policy(initial().learner)
    assert isinstance(policy, Policy)
    assert_bit_equal(evaluate(agent(), policy, KEY(), 3), by_state)
    np.testing.assert_array_equal(by_state.episodic_length, [5, 5, 5])
    # A state has environment parameters, a policy does not.
    state = agent().init(KEY(), None, probes.Cut(2))
    np.testing.assert_array_equal(evaluate(agent(), state, KEY(), 3).episodic_length, [2, 2, 2])
    np.testing.assert_array_equal(evaluate(agent(), state, KEY(), 3, env_params=probes.Cut(4)).episodic_length, [4, 4, 4])
    own = agent().init(KEY(), None, probes.Cut(jnp.array([1, 2, 3, 4])))
    with pytest.raises(ValueError, match=r"differ between its environments: give evaluate env_params="):
        evaluate(agent(), own, KEY(), 3)


def test_a_policy_plays_where_the_environment_indexes_tables_of_numpy() -> None:
    """As in Acrobot's table of torques."""
    base = probes.truncation(3)

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        state, reached = base.step(key, state, action, base.params)
        return state, reached._replace(reward=params["reward"][action])

    agent = small_ppo(base._replace(step=step, params={"reward": np.array([2.0, 2.0], np.float32)}))
    state = agent.init(KEY())
    policy = agent.algorithm.policy(state.learner)
    np.testing.assert_array_equal(evaluate(agent, policy, KEY(), 2).episodic_return, [6.0, 6.0])


def test_evaluation_over_seeds_and_keys() -> None:
    """Under vmap each seed gets its result from a single evaluation, although the loops end at different times.

    Other keys give other episodes.
    """
    walk = tally(random_walk())
    keys = jax.random.split(jax.random.key(4), 2)
    states = jit(jax.vmap(walk.init))(keys)
    run = partial(evaluate, walk, num_episodes=5, explore=True)
    both: Evaluation = jit(jax.vmap(lambda s, k: run(s, k)))(states, keys)
    solo = jit(lambda s, k: run(s, k))
    for i in range(2):
        alone = solo(jax.tree.map(lambda x, i=i: x[i], states), keys[i])
        assert_bit_equal(jax.tree.map(lambda x, i=i: x[i], both), alone)
        np.testing.assert_array_equal(alone.episodic_return, alone.episodic_length)
    assert both.episodic_length[0].max() != both.episodic_length[1].max()  # else the two loops would not differ
    assert len(np.unique(both.episodic_length)) > 3


def random_walk() -> Env:
    """From 0 by ±1, as the action says, until ±3: lengths vary widely. The reward is 1."""

    def reset(key: Any, params: Any) -> Any:
        return jnp.int32(0), jnp.zeros(1)

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        state = state + 2 * action - 1
        return state, TimeStep(jnp.zeros(1), jnp.float32(1), jnp.abs(state) >= 3, jnp.array(False))

    return Env(reset, step, spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2), (), "random walk")


def test_an_episode_does_not_depend_on_how_many_there_are() -> None:
    walk = tally(random_walk())
    run = jit(lambda n, s: evaluate(walk, s, KEY(), n, explore=True).episodic_length, static_argnums=0)
    six = run(6, walk.init(KEY()))
    np.testing.assert_array_equal(six[:3], run(3, walk.init(KEY())))
    assert len(np.unique(six)) > 2
