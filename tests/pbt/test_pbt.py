"""Population-based training: who is replaced, what changes, and that a population is an agent like any other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl import pbt
from jaxrl.parallel import data_parallel, env_axes, make_mesh
from jaxrl.pbt.builder import ranges_of
from jaxrl.pbt.population import RESAMPLED, RETURN, Population
from jaxrl.runtime.checkpoint.transfer import Source, warm_start
from jaxrl.runtime.evaluation.load_policy import load_policies
from jaxrl.types import Agent, AgentState, Mean

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "rollout_length": 4,
    "num_epochs": 1,
    "num_minibatches": 1,
    "anneal": False,
    "model": {"hidden_sizes": [4]},
}
SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "gamma": {"low": 0.8, "high": 0.999, "log": "complement"},
    "ent_coef": {"low": 0.0, "high": 0.1},
}
ROWS = 8 * 4
"""Rows of an iteration of a population of four."""


@pytest.fixture(scope="module")
def ppo() -> Agent:
    return jaxrl.make_ppo("CartPole-v1", **SMALL)


@pytest.fixture(scope="module")
def population(ppo: Agent) -> Agent:
    return pbt.make(ppo, SPACE, members=4, ready=3)


@pytest.fixture(scope="module")
def stepped(population: Agent) -> AgentState:
    """A population after ten iterations."""
    step, state = jax.jit(population.step), population.init(jax.random.key(0))
    for _ in range(10):
        state, _ = step(state)
    return state


def plain(tree: Any) -> Any:
    """Replace typed PRNG keys by their data."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def alone(members: int = 16, quantile: float = 0.25) -> Population:
    """Return the functions of a population, to call them one by one."""
    agent = jaxrl.make_ppo("CartPole-v1", **SMALL)
    return Population(agent, ranges_of(agent, SPACE), members, 5, quantile, 8, None)


SIXTEEN = alone()


@given(
    st.lists(st.one_of(st.floats(-100, 100, width=32), st.just(math.nan)), min_size=16, max_size=16),
    st.lists(st.booleans(), min_size=16, max_size=16),
    st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60)
def test_the_worst_continue_from_the_best(scores: list[float], alive: list[bool], seed: int) -> None:
    parent = np.asarray(SIXTEEN._parents(jnp.array(scores), jnp.array(alive), jax.random.key(seed)))
    known = [i for i in range(16) if alive[i] and not math.isnan(scores[i])]
    best = sorted((scores[i] for i in known), reverse=True)[:4]
    worst = [i for i in range(16) if not alive[i]] + sorted(known, key=lambda i: scores[i])
    for i in range(16):
        if parent[i] != i:
            assert parent[i] in known and scores[parent[i]] in best  # a member that is alive, among the best
            assert not alive[i] or scores[i] < scores[parent[i]]  # and better
            assert not alive[i] or scores[i] <= scores[worst[3]]  # the replaced one is among the worst
    assert sum(parent != np.arange(16)) <= 4
    if known and len(known) >= 8 and len({*scores}) == 16 and all(alive):
        assert sum(parent != np.arange(16)) == 4


def test_members_without_an_episode_are_left_alone() -> None:
    parent = SIXTEEN._parents(jnp.full(16, jnp.nan), jnp.ones(16, bool), jax.random.key(0))
    assert parent.tolist() == [*range(16)]


def test_hyperparameters_change_by_their_rule_and_stay_in_range() -> None:
    many = 4000
    wide = alone(many)
    start = {"learning_rate": 1e-2, "gamma": 0.99, "ent_coef": 0.05}
    hyperparams = wide.agent.hyperparams._replace(**{name: jnp.full(many, x, jnp.float32) for name, x in start.items()})
    copied = jnp.arange(many) % 2 == 0
    new = wide._explored(hyperparams, copied, jax.random.key(1))
    moves = {"learning_rate": (0.8e-2, 1.25e-2), "gamma": (1 - 0.8e-2, 1 - 1.25e-2), "ent_coef": (0.03, 0.07)}
    kinds = []
    for name, ends in moves.items():
        values = np.asarray(getattr(new, name), np.float64)
        assert (values[1::2] == np.float32(start[name])).all()  # of those that were not copied
        values, (low, high) = values[::2], (SPACE[name]["low"], SPACE[name]["high"])
        assert (values >= np.float32(low)).all() and (values <= np.float32(high)).all()
        kind = [int(np.isclose(values, end, rtol=1e-5, atol=1e-6)) for values in values for end in ends]
        kind = np.array(kind).reshape(-1, 2)
        np.testing.assert_allclose(kind.mean(0), (1 - RESAMPLED) / 2, atol=0.03)
        kinds.append(kind[:, 0])
    # Each hyperparameter has its own draw: they do not move together.
    assert np.abs(np.corrcoef(kinds) - np.eye(3)).max() < 0.1


def test_first_draws_fill_the_ranges(ppo: Agent) -> None:
    state = pbt.make(ppo, SPACE, members=64).init(jax.random.key(0))
    rates = np.asarray(state.learner.hyperparams.learning_rate)
    assert len({*rates.tolist()}) == 64 and 1e-4 <= rates.min() < 3e-4 and 3e-2 < rates.max() <= 1e-1
    assert np.median(rates) == pytest.approx(10**-2.5, rel=0.6)
    assert np.asarray(state.learner.hyperparams.vf_coef).tolist() == [np.float32(ppo.hyperparams.vf_coef)] * 64


def test_an_iteration_counts_the_rows_of_all_members(population: Agent, stepped: AgentState) -> None:
    assert population.steps_per_iteration == ROWS and int(stepped.iteration) == 10 and int(stepped.learner.generation) == 3
    _, metrics = jax.jit(population.step)(stepped)
    assert int(metrics["pbt/alive"].count) == 4 and float(metrics["pbt/alive"].sum) == 4.0
    assert "pbt/learning_rate" in metrics and "losses/value_loss" in metrics


def test_copies_have_learners_of_their_parents_but_own_environments(ppo: Agent) -> None:
    """With one iteration a generation and no changes of the parameters, a copy has exactly its parent's learner."""
    still = pbt.make(ppo, {"learning_rate": {"low": 1e-9, "high": 1e-8}}, members=4, ready=2, quantile=0.25)
    step, state = jax.jit(still.step), still.init(jax.random.key(3))
    for _ in range(20):
        before = state
        state, _ = step(state)
        copied = np.flatnonzero(np.asarray(state.learner.lineage.parent[int(state.learner.generation)]) != np.arange(4))
        if int(state.learner.generation) > int(before.learner.generation) and len(copied):
            break
    child, parent = copied[0], int(state.learner.lineage.parent[int(state.learner.generation), copied[0]])
    take = lambda i, tree: jax.tree.map(lambda x: x[i], tree)  # noqa: E731
    keys = np.asarray(jax.random.key_data(state.learner.members.key))
    assert len(np.unique(keys, axis=0)) == 4  # a copy does not draw as its parent
    members = state.learner.members._replace(key=jnp.zeros(4))
    chex.assert_trees_all_equal(*(plain(take(i, members)) for i in (child, parent)))
    assert float(state.learner.score[child]) == float(state.learner.score[parent])
    assert not np.array_equal(state.actor.input.obs[child], state.actor.input.obs[parent])


def test_members_step_with_other_keys_than_they_began_with(ppo: Agent, population: Agent) -> None:
    """``init`` splits a member's key, and ``step`` folds numbers into it, which gives equal keys where the first are the same."""

    def step(state: AgentState) -> Any:
        return state._replace(learner=state.learner._replace(key=state.key)), {RETURN: Mean(jnp.zeros(()), jnp.zeros(()))}

    functions = Population(ppo._replace(step=step), ranges_of(ppo, SPACE), 4, 3, 0.25, 8, None)
    state = population.init(jax.random.key(5))
    stepped = jax.random.key_data(jax.jit(functions.step)(state)[0].learner.members.key)
    began = jax.random.key_data(functions._keys(state.key, jnp.arange(4)))
    assert len(np.unique(np.concatenate([began, stepped]), axis=0)) == 8


def test_a_member_that_diverges_stops_and_is_replaced(ppo: Agent) -> None:
    mixed = pbt.make(ppo, {"learning_rate": {"low": 1e-4, "high": 1e-3}}, members=4, ready=8)
    state = mixed.init(jax.random.key(0))
    rates = state.learner.hyperparams.learning_rate.at[2].set(1e38)
    state = state._replace(learner=state.learner._replace(hyperparams=state.learner.hyperparams._replace(learning_rate=rates)))
    step = jax.jit(mixed.step)
    for _ in range(6):
        state, metrics = step(state)
    assert state.learner.alive.tolist() == [True, True, False, True] and float(metrics["pbt/alive"].sum) == 3.0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.learner.params))
    assert np.isfinite(float(metrics["losses/value_loss"].sum))
    for _ in range(10):
        state, _ = step(state)
    assert state.learner.alive.all() and float(state.learner.hyperparams.learning_rate[2]) <= 1e-3


def test_chunks_and_resuming_change_nothing(population: Agent, tmp_path: Path) -> None:
    keywords: dict[str, Any] = {"eval_episodes": 4, "quiet": True, "tensorboard": False}
    whole, history = jaxrl.run(population, 10 * ROWS, chunk_iterations=10, **keywords)
    chunked, _ = jaxrl.run(population, 10 * ROWS, chunk_iterations=1, **keywords)
    chex.assert_trees_all_equal(plain(whole), plain(chunked))
    jaxrl.run(population, 4 * ROWS, out=tmp_path / "run", **keywords)
    resumed, _ = jaxrl.run(population, 10 * ROWS, out=tmp_path / "run", **keywords)
    same = plain(whole)._replace(learner=whole.learner._replace(hyperparams=resumed.learner.hyperparams, members=()))
    chex.assert_trees_all_equal(plain(resumed)._replace(learner=resumed.learner._replace(members=())), same)
    chex.assert_trees_all_equal(plain(resumed.learner.members), plain(whole.learner.members))
    assert history["pbt/alive"].tolist() == [[math.nan], [1.0]] or history["pbt/alive"][-1] == 1.0
    policy = jaxrl.load_policy(tmp_path / "run")
    assert policy(np.zeros(4, np.float32)) in (0, 1)
    last = load_policies(tmp_path / "run", which="last").policies
    chex.assert_trees_all_equal(last, jax.vmap(population.algorithm.policy)(resumed.learner))
    assert jaxrl.load_policy(tmp_path / "run", which="last")(np.zeros(4, np.float32)) in (0, 1)
    again = jaxrl.build(population.spec)
    assert again.spec == population.spec and again.num_envs == population.num_envs


@pytest.mark.slow
def test_populations_by_vmap(population: Agent) -> None:
    keys = jax.random.split(jax.random.key(1), 2)
    step = jax.jit(jax.vmap(population.step))
    both = jax.vmap(population.init)(keys)
    single, one_step = population.init(keys[1]), jax.jit(population.step)
    for _ in range(3):
        both, _ = step(both)
        single, _ = one_step(single)
    chex.assert_trees_all_close(plain(jax.tree.map(lambda x: x[1], both)), plain(single), rtol=2e-3, atol=2e-3)
    assert both.learner.lineage.parent[1].tolist() == single.learner.lineage.parent.tolist()


def test_games_of_two_players_are_refused() -> None:
    with pytest.raises(ValueError, match=r"self-play in .*TicTacToe say who wins, not how well both play: compare agents by"):
        pbt.make(jaxrl.make_ppo("jaxrl:TicTacToe", **SMALL), SPACE)


def test_devices_that_do_not_divide_the_members(population: Agent) -> None:
    if len(jax.devices()) > 1:
        with pytest.raises(ValueError, match=r"num_envs=3 must be a multiple of a member's 2: devices divide the members"):
            data_parallel(pbt.make(jaxrl.make_ppo("CartPole-v1", **SMALL), SPACE, members=3), make_mesh({"data": 2}))


@pytest.mark.slow
def test_members_divided_over_devices(population: Agent) -> None:
    spread = data_parallel(population, make_mesh({"data": 2}))
    step, one_step = jax.jit(spread.step), jax.jit(population.step)
    states, single = spread.init(jax.random.key(0)), population.init(jax.random.key(0))
    for _ in range(7):
        states, metrics = step(states)
        single, of_one = one_step(single)
        if int(single.learner.generation) == 0:
            chex.assert_trees_all_close(plain(states), plain(single), rtol=2e-3, atol=2e-3)
    assert states.learner.lineage.parent.tolist() == single.learner.lineage.parent.tolist()
    assert int(metrics["pbt/alive"].count) == int(of_one["pbt/alive"].count) == 4


def test_the_schedule_follows_the_ancestors(population: Agent, stepped: AgentState) -> None:
    schedule = pbt.schedule_of(population, stepped, member=1)
    lineage, at, wanted = jax.tree.map(np.asarray, stepped.learner.lineage), 1, []
    for generation in (3, 2, 1, 0):
        wanted.insert(0, lineage.values[generation, at])
        at = lineage.parent[generation, at]
    assert schedule.every == 3 and [*schedule.values] == [*SPACE]
    np.testing.assert_array_equal(np.transpose([*schedule.values.values()]), wanted)
    now = float(stepped.learner.hyperparams.learning_rate[1])
    assert schedule.values["learning_rate"][-1] == pytest.approx(now)
    assert pbt.schedule_of(population, stepped) == pbt.schedule_of(population, stepped, int(pbt.best_member(stepped.learner)))


def test_a_schedule_is_replayed(ppo: Agent) -> None:
    schedule = pbt.Schedule(2, {"learning_rate": [0.01, 0.001, 0.0]})
    replayed = pbt.replay(ppo, schedule)
    assert jaxrl.build(replayed.spec).spec == replayed.spec
    step, plain_step, state = jax.jit(replayed.step), jax.jit(ppo.step), replayed.init(jax.random.key(0))
    wanted = ppo.init(jax.random.key(0))
    for rate in (0.01, 0.01, 0.001, 0.001, 0.0, 0.0):
        state, _ = step(state)
        rates = wanted.learner.hyperparams._replace(learning_rate=jnp.float32(rate))
        wanted, _ = plain_step(wanted._replace(learner=wanted.learner._replace(hyperparams=rates)))
    chex.assert_trees_all_equal(plain(state), plain(wanted))
    assert jaxrl.build(replayed.spec, num_envs=2).num_envs == 2


def test_a_replay_is_in_the_generation_of_the_population_after_a_warm_up() -> None:
    dqn = jaxrl.make_dqn("CartPole-v1", num_envs=2, rollout_length=4, buffer_size=64, batch_size=4, learning_starts=40)
    assert dqn.algorithm.warmup_iterations == 5

    def step(state: AgentState) -> Any:
        return state._replace(iteration=state.iteration + 1), {RETURN: Mean(jnp.zeros(()), jnp.zeros(()))}

    still, rates = dqn._replace(step=step), [0.5, 0.25, 0.125, 0.0625, 0.03125]
    population = pbt.make(still, {"learning_rate": {"low": 1e-5, "high": 1.0}}, members=2, ready=3)
    replayed = pbt.replay(still, pbt.Schedule(3, {"learning_rate": rates}))
    members, one = population.init(jax.random.key(0)), replayed.init(jax.random.key(0))
    step_members, step_one = jax.jit(population.step), jax.jit(replayed.step)
    used, wanted = [], []
    for _ in range(10):
        wanted.append(rates[int(members.learner.generation)])
        (members, _), (one, _) = step_members(members), step_one(one)
        used.append(float(one.learner.hyperparams.learning_rate))
    assert used == wanted == [0.5] + [0.25] * 3 + [0.125] * 3 + [0.0625] * 3


def test_members_do_not_share_hyperparameters_of_the_space(ppo: Agent, population: Agent) -> None:
    text = r"hyperparams\['learning_rate'\] has no effect, because learning_rate is in the space of this population"
    key = jax.random.key(0)
    for wrong in ({"learning_rate": 0.5}, ppo.hyperparams._replace(learning_rate=0.5)):
        with pytest.raises(ValueError, match=text):
            population.init(key, wrong)
    with pytest.raises(ValueError, match=text):
        jaxrl.run(population, ROWS, seeds=2, hyperparams={"learning_rate": [0.5, 0.25]}, quiet=True)
    for right in ({"vf_coef": 0.3}, ppo.hyperparams, ppo.hyperparams._replace(vf_coef=0.3)):
        jax.eval_shape(lambda key, right=right: population.init(key, right), key)


def test_a_lineage_without_room_is_one_line(ppo: Agent) -> None:
    short = pbt.make(ppo, SPACE, members=2, ready=1, generations=2)
    state = short.init(jax.random.key(0))
    for _ in range(3):
        state, _ = jax.jit(short.step)(state)
    with pytest.raises(ValueError, match="room for 2 generations, and there were 3: make the population with generations=4"):
        pbt.schedule_of(short, state)


def test_a_population_does_not_start_from_another_run(population: Agent, stepped: AgentState) -> None:
    with pytest.raises(ValueError, match="init_from=a run: a population cannot start from another run"):
        warm_start(stepped, Source("a run", {}), population.algorithm.transferable_fields)


@pytest.mark.slow
def test_the_replay_of_a_copy_marks_that_its_next_rows_do_not_follow() -> None:
    dqn = jaxrl.make_dqn("CartPole-v1", num_envs=2, rollout_length=2, buffer_size=64, batch_size=4, learning_starts=8)
    assert dqn.algorithm.mark_discontinuity is not None
    functions = Population(dqn, ranges_of(dqn, {"learning_rate": {"low": 1e-4, "high": 1e-2}}), 4, 2, 0.25, 8, None)
    state = pbt.make(dqn, {"learning_rate": {"low": 1e-4, "high": 1e-2}}, members=4, ready=2).init(jax.random.key(0))
    members, copied = state.learner.members, jnp.array([False, True, False, False])
    marked = functions._marked(members, copied)
    for i in range(4):
        one = jax.tree.map(lambda x, i=i: x[i], members)
        wanted = dqn.algorithm.mark_discontinuity(one) if copied[i] else one
        chex.assert_trees_all_equal(plain(jax.tree.map(lambda x, i=i: x[i], marked)), plain(wanted))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(plain(marked), plain(members))


def test_devices_divide_members_and_not_their_replay() -> None:
    """A member's replay has an axis of environments too, behind that of members."""
    dqn = jaxrl.make_dqn("CartPole-v1", num_envs=2, rollout_length=2, buffer_size=64, batch_size=4, learning_starts=8)
    population = pbt.make(dqn, {"learning_rate": {"low": 1e-4, "high": 1e-2}}, members=4, axis_name="d")
    axes = env_axes(population, jax.eval_shape(population.init, jax.random.key(0)))
    assert {*jax.tree.leaves(axes.learner.members)} == {0}


@pytest.mark.slow
def test_members_with_replay_and_a_warm_up() -> None:
    dqn = jaxrl.make_dqn("CartPole-v1", num_envs=2, rollout_length=2, buffer_size=64, batch_size=4, learning_starts=8)
    population = pbt.make(dqn, {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}, members=2, ready=2)
    states, history = jaxrl.run(population, 2 * 200, eval_episodes=4, quiet=True)
    assert int(states.learner.generation[0]) > 5 and np.isfinite(history["losses/td_loss"][-1]).all()
    assert history["rows"][-1] >= 400


@pytest.mark.parametrize(
    ("space", "keywords", "text"),
    [
        ({}, {}, "space must have a hyperparameter"),
        ({"learning_rat": {"low": 0, "high": 1}}, {}, "unknown hyperparameter 'learning_rat'. Did you mean 'learning_rate'"),
        ({"num_envs": {"low": 1, "high": 2}}, {}, "unknown hyperparameter 'num_envs'"),
        ({"gamma": [0.9]}, {}, r"space\['gamma'\]=\[0.9\] must be a range"),
        ({"gamma": {"low": 0.9, "high": 1.9}}, {}, r"gamma=1.9 is not allowed"),
        ({"gamma": {"low": 0.9, "high": 0.8}}, {}, r"must be below"),
        (SPACE, {"members": 1}, "members=1 must be an integer >= 2"),
        (SPACE, {"ready": 0}, "ready=0 must be an integer >= 1"),
        (SPACE, {"quantile": 0.6}, r"quantile=0.6 is not allowed: it must be a number in \(0, 0.5\]"),
    ],
)
def test_wrong_arguments_are_one_line(ppo: Agent, space: Any, keywords: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        pbt.make(ppo, space, **keywords)


def test_agents_that_cannot_be_members() -> None:
    with pytest.raises(TypeError, match="needs a pure environment"):
        pbt.make(jaxrl.make_ppo("gymnasium:CartPole-v1", **SMALL), SPACE)
    with pytest.raises(ValueError, match="needs an agent that learns from rollouts"):
        pbt.make(jaxrl.make_es("CartPole-v1"), {"learning_rate": {"low": 0.1, "high": 0.2}})
