"""Populations that play: members alone and together, in chunks, left out, over devices; limits, seeds and metrics."""

from __future__ import annotations

import itertools
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agent import bind
from jaxrl.metrics import to_floats
from jaxrl.parallel import data_parallel
from jaxrl.rollout import play
from jaxrl.types import Agent, Episodes
from tests.helpers.agents import assert_bit_equal, slow_unless, small
from tests.helpers.key_uses import DRAWN, twice, uses_of
from tests.helpers.walk import WALK, Ground, walk

M, E, ROWS = 16, 3, 16
KEY = partial(jax.random.key, 0)
KINDS: dict[str, dict[str, Any]] = {
    "normal": {},
    "low_rank": {"noise": "low_rank"},
    "sign": {"noise": "sign"},
    "gru": {"noise": "low_rank", "model": {"hidden_sizes": (8,), "core": "gru", "core_size": 4}},
}
DIVISIONS = ("members left out", "chunks", "both")
QUICK = {("normal", "members left out"), ("normal", "chunks")}


def kinds(*quick: str) -> Any:
    """Parametrize over ``KINDS``. All but ``quick`` are slow."""
    return pytest.mark.parametrize("kind", [pytest.param(kind, marks=slow_unless(kind in quick)) for kind in KINDS])


def agent_of(kind: str = "normal", env: Any = WALK) -> Agent:
    """Build a new agent, whose programs are traced again."""
    return small("es", env, members=M, episodes=E, horizon=ROWS, sigma=1.0, learning_rate=0.3, **KINDS[kind])


def player(agent: Agent) -> Any:
    """Return (policy, key, member i32[M], env_params, limit) -> Episodes, compiled."""

    def playing(policy: Any, key: Any, member: Any, env_params: Any, limit: Any) -> Episodes:
        observed = policy.statistics.observations
        return play.play_members(agent.algorithm, agent.env, policy, key, member, E, env_params, limit, observed)

    return jax.jit(playing)


MOVES = ((1, 0.0), (1, 0.125), (2, 0.125))


@cache
def normal_players() -> tuple[Any, Any]:
    """Return a compiled ``player`` and a policy."""
    agent = agent_of()
    return player(agent), agent.algorithm.policy(agent.init(KEY()).learner)


def episodes_of(members: np.ndarray = np.arange(M), limit: int = ROWS, key: int = 0, **ground: Any) -> Episodes:  # noqa: B008
    playing, policy = normal_players()
    params = jax.tree.map(jnp.float32, Ground(**ground))
    return jax.device_get(playing(policy, jax.random.key(key), jnp.asarray(members, jnp.int32), params, jnp.int32(limit)))


# ----------------------------------------------------------------------------------------------------------- members and draws


def test_episodes_are_ordered_by_member() -> None:
    members = np.array([3, 9, 0, 5])
    some, whole = episodes_of(members), episodes_of()
    np.testing.assert_array_equal(some.member, np.repeat(members, E))
    np.testing.assert_array_equal(whole.member, np.repeat(np.arange(M), E))
    assert (some.version == 0).all() and some.version.shape == some.member.shape
    of_both = whole.episodic_return.reshape(M, E)
    assert len(np.unique(of_both)) > M
    np.testing.assert_array_equal(some.episodic_return.reshape(4, E), of_both[members])


def test_all_members_have_the_same_draws() -> None:
    """If actions have no effect, members do not differ; episodes and keys do."""
    returns = [episodes_of(stride=0.0, key=key).episodic_return.reshape(M, E) for key in (0, 1)]
    for each in returns:
        np.testing.assert_array_equal(each, np.broadcast_to(each[0], each.shape))
    assert len(np.unique(returns)) == 2 * E


def test_rows_have_new_draws() -> None:
    """The first and the second move of each episode differ, and no two episodes start alike."""
    still = {"stride": 0.0, "edge": 8.0}
    start, first, second = (episodes_of(limit=rows, noise=noise, **still).episodic_return[:E] for rows, noise in MOVES)
    moves = np.stack([first - start, second - 2 * first])  # returns are sums of positions: x₁, then x₁ + x₂
    assert (moves[0] != moves[1]).all() and len(np.unique(start)) == E


def test_an_environment_parameter_for_each_episode() -> None:
    """Episodes that start beyond the edge end at once, at a position that no member has chosen."""
    found = episodes_of(start=np.array([5.0, 0.0, -7.0]), spread=0.0, noise=0.0, stride=0.0)
    np.testing.assert_array_equal(found.episodic_length.reshape(M, E), np.broadcast_to([1, ROWS, 1], (M, E)))
    np.testing.assert_array_equal(found.finished.reshape(M, E), np.broadcast_to([True, False, True], (M, E)))


def test_episodes_stop_at_the_limit_and_count_as_they_stand() -> None:
    """An episode of more than three rows stops there, with its return so far; one that ends in its third row has finished."""
    whole, stopped = episodes_of(noise=0.0), episodes_of(noise=0.0, limit=3)
    longer = whole.episodic_length > 3
    assert 0 < longer.sum() < M * E and (whole.episodic_length == 3).any() and not whole.finished.all()
    np.testing.assert_array_equal(stopped.episodic_length, np.minimum(whole.episodic_length, 3))
    np.testing.assert_array_equal(stopped.finished, ~longer)
    np.testing.assert_array_equal(stopped.episodic_return[~longer], whole.episodic_return[~longer])
    assert (stopped.episodic_return != whole.episodic_return)[longer].any()
    assert (whole.finished | (whole.episodic_length == ROWS)).all() and np.isfinite(whole.episodic_return).all()
    nothing = episodes_of(limit=0)
    assert not nothing.episodic_length.any() and not nothing.episodic_return.any() and not nothing.finished.any()


@kinds("normal", "low_rank")
def test_members_alone_play_what_they_play_together(kind: str) -> None:
    """All bits of all fields, those of the moments of observations too."""
    agent = agent_of(kind)
    playing, policy = player(agent), agent.algorithm.policy(agent.init(KEY()).learner)
    ground = jax.tree.map(jnp.float32, Ground())
    together = playing(policy, KEY(), jnp.arange(M), ground, jnp.int32(ROWS))
    alone = [playing(policy, KEY(), jnp.array([m]), ground, jnp.int32(ROWS)) for m in range(M)]
    assert_bit_equal(jax.tree.map(lambda *parts: jnp.concatenate(parts), *alone), together)
    assert len(np.unique(together.episodic_length)) > 4


def test_no_random_number_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environments of a member in two generations of three rows. Learning draws the noise of members again."""

    def bounded(goes_on: Any, body: Any, at: Any) -> Any:
        return jax.lax.scan(lambda at, _: (body(at), None), at, length=3)[0]

    monkeypatch.setattr(jax.lax, "while_loop", bounded)
    agent = agent_of()
    algorithm = agent.algorithm._replace(
        members=lambda policy, member: policy,
        learn_from=lambda learner, episodes: (learner._replace(version=learner.version + 1), {}),
    )
    sizes = {"num_envs": E, "rollout_length": 3, "episodes": E}  # one member: all have the same draws
    uses = uses_of(bind(algorithm, walk(), hyperparams=agent.hyperparams, **sizes))
    assert sum(use.how == DRAWN for use in uses) > 3 and not twice(uses)


# ------------------------------------------------------------------------------------------------------------ divided populations


def after_generations(agent: Agent, number: int = 3) -> Any:
    """Return the state after some generations, and the metrics of all."""
    state, step, metrics = agent.init(KEY()), jax.jit(agent.step), []
    for _ in range(number):
        state, logged = step(state)
        metrics.append(logged)
    return jax.device_get(state), jax.device_get(metrics)


@cache
def undivided(kind: str) -> Any:
    return after_generations(agent_of(kind))


@pytest.mark.parametrize(
    ("kind", "division"),
    [pytest.param(*case, marks=slow_unless(case in QUICK)) for case in itertools.product(KINDS, DIVISIONS)],
)
def test_divisions_change_no_bit(kind: str, division: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the state and of metrics, after three generations: chunks of four members, and members left out from four down."""
    expected, agent = undivided(kind), agent_of(kind)
    if division != "members left out":
        monkeypatch.setattr(play, "chunk_size", lambda members, numbers, most: 4)
    if division != "chunks":
        monkeypatch.setattr(play, "FEWEST", 1)
    assert_bit_equal(after_generations(agent), expected)


@kinds("normal")
def test_devices_change_no_bit(kind: str) -> None:
    """Of the state, after three generations on two devices, and all rows are counted."""
    expected, metrics = undivided(kind)
    shared, logged = after_generations(data_parallel(agent_of(kind), 2))
    assert_bit_equal(shared, expected)
    for ours, theirs in zip(logged, metrics, strict=True):
        assert_bit_equal(ours["charts/valid_rows"], theirs["charts/valid_rows"])
        assert to_floats(ours) == pytest.approx(to_floats(theirs), rel=1e-5)


@pytest.mark.slow
def test_seeds_side_by_side_learn_from_the_same_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops of all seeds run until the last has finished, and the first generation of each is that alone."""
    monkeypatch.setattr(play, "FEWEST", 2)
    agent, keys = agent_of(), jax.random.split(jax.random.key(3), 3)
    step = jax.jit(agent.step)
    _, together = jax.jit(jax.vmap(agent.step))(jax.vmap(agent.init)(keys))
    alone = [step(agent.init(key))[1] for key in keys]
    rows = [int(metrics["charts/valid_rows"].sum) for metrics in alone]
    assert len(set(rows)) > 1 and together["charts/valid_rows"].sum.tolist() == rows
    np.testing.assert_allclose(
        together["charts/episodic_return"].sum, [float(x["charts/episodic_return"].sum) for x in alone], rtol=1e-5
    )


def test_members_that_have_finished_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the rows that environments compute: all members until three quarters have finished, then that quarter."""
    counted = []

    def rows_computed() -> int:
        counted.clear()
        env = walk()

        def step(key: Any, state: Any, *args: Any) -> Any:
            jax.debug.callback(lambda _: counted.append(1), state[0])
            return env.step(key, state, *args)

        agent = agent_of(env=env._replace(step=step))
        _, metrics = jax.jit(agent.step)(agent.init(KEY()))
        jax.effects_barrier()
        rows.append(int(metrics["charts/valid_rows"].sum))
        return len(counted)

    rows: list[int] = []
    whole = rows_computed()
    assert whole == M * E * ROWS
    monkeypatch.setattr(play, "FEWEST", 2)
    left = rows_computed()
    assert rows[0] == rows[1] < left < 0.9 * whole


@pytest.mark.parametrize(("kind", "expected"), [("normal", 16 + 8 + 16 + 2), ("low_rank", (2 + 8) + 8 + (8 + 2) + 2)])
def test_a_member_holds_what_it_does_not_share(kind: str, expected: int) -> None:
    """A hidden layer of 8 units: with noise of low rank kernels are shared, and statistics always."""
    agent = agent_of(kind)
    policy = jax.eval_shape(lambda: agent.algorithm.policy(agent.init(KEY()).learner))
    assert play.numbers_of_member(agent.algorithm, policy) == expected


@pytest.mark.parametrize(
    ("members", "parameters", "expected"),
    [(12, 1, 12), (12, 8, 12), (12, 9, 6), (12, 30, 3), (12, 1000, 1), (7, 20, 1), (1, 1, 1)],
)
def test_chunks_divide_the_members_and_fit(members: int, parameters: int, expected: int) -> None:
    assert play.chunk_size(members, parameters, 100) == expected


# ------------------------------------------------------------------------------------------------------------------------ metrics


def test_metrics_leave_out_what_is_nan_and_what_was_not_played() -> None:
    returns, lengths = np.array([1.0, np.nan, 3.0, -9.0], np.float32), np.array([2, 4, 6, 0], np.int32)
    episodes = Episodes(returns, lengths, lengths > 0, np.arange(4), np.zeros(4, np.int32))
    metrics = play.population_metrics(jax.tree.map(jnp.asarray, episodes), 40)
    assert to_floats(metrics) == {
        "charts/episodic_return": 2.0,
        "charts/episodic_length": 4.0,
        "charts/episodic_return_min": 1.0,
        "charts/episodic_return_max": 3.0,
        "charts/valid_rows": 0.3,
    }
    assert (int(metrics["charts/valid_rows"].sum), int(metrics["charts/valid_rows"].count)) == (12, 40)
    nothing = play.population_metrics(episodes._replace(episodic_length=jnp.zeros(4, jnp.int32)), 40)
    assert {name for name, x in to_floats(nothing).items() if x is not None} == {"charts/valid_rows"}
