"""Running statistics against NumPy over the valid rows, and over the rows of episodes."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.models import encode_space
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.running_statistics import (
    RewardStatistics,
    RunningMoments,
    Statistics,
    add_episodes,
    init_moments,
    init_statistics,
    no_rows,
    normalize,
    normalize_inputs,
    scale_rewards,
    update_moments,
    update_statistics,
)
from jaxrl.spaces.trees import zeros
from jaxrl.types import Rollout, StepInput

T, B = 6, 4
EXAMPLE = {"position": jnp.zeros(3), "picture": jnp.zeros((2, 2), jnp.uint8), "height": jnp.zeros(())}
PRIOR = 1e-4
update = jax.jit(update_moments)


def make_rows(seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = {
        "position": rng.normal([3.0, -50.0, 0.01], [1.0, 5.0, 0.001], (T, B, 3)).astype(np.float32),
        "picture": rng.integers(0, 256, (T, B, 2, 2)).astype(np.uint8),
        "height": rng.normal(size=(T, B)).astype(np.float32),
    }
    return rows, rng.random((T, B)) < 0.7


def oracle(batches: list[tuple[dict[str, np.ndarray], np.ndarray]]) -> tuple[float, Any, Any]:
    """Compute count, means and variances over all valid rows and a prior of 1e-4 rows with mean 0 and variance 1."""
    count = PRIOR + sum(where.sum() for _, where in batches)
    means, variances = {}, {}
    for name in EXAMPLE:
        x = np.concatenate([rows[name][where] for rows, where in batches]).astype(np.float64)
        means[name] = x.sum(0) / count
        variances[name] = (PRIOR * (1 + means[name] ** 2) + ((x - means[name]) ** 2).sum(0)) / count
    return count, means, variances


def assert_moments(moments: RunningMoments, expected: Any, rtol: float = 1e-4) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), tuple(moments), tuple(expected))


def test_moments_are_those_of_the_valid_rows() -> None:
    batches = [make_rows(seed) for seed in range(5)]
    moments = init_moments(EXAMPLE)
    for i, (rows, where) in enumerate(batches):
        moments = update(moments, rows, where)
        assert_moments(moments, oracle(batches[: i + 1]))


def test_the_order_of_merging_does_not_matter() -> None:
    batches = [make_rows(seed) for seed in range(4)]
    orders = [batches, batches[::-1], [batches[i] for i in (2, 0, 3, 1)]]
    results = []
    for order in orders:
        moments = init_moments(EXAMPLE)
        for rows, where in order:
            moments = update(moments, rows, where)
        results.append(moments)
    for other in results[1:]:
        assert_moments(other, results[0])


def test_one_batch_or_its_parts() -> None:
    rows, where = make_rows(3)
    whole = update(init_moments(EXAMPLE), rows, where)
    moments = init_moments(EXAMPLE)
    for t in range(T):
        moments = update_moments(moments, jax.tree.map(lambda x, t=t: x[t], rows), where[t])
    assert_moments(moments, whole)


def test_invalid_rows_have_no_influence() -> None:
    rows, where = make_rows(0)
    changed = jax.tree.map(lambda x: np.where(where.reshape(T, B, *[1] * (x.ndim - 2)), x, 77).astype(x.dtype), rows)
    a, b = (update(init_moments(EXAMPLE), x, where) for x in (rows, changed))
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_invalid_rows_have_no_influence_even_if_they_are_not_finite(garbage: float) -> None:
    """A simulation that breaks ends its episode with an observation that is not finite, which is in the reset row."""
    where = jnp.ones((T, B), bool).at[2, 1].set(False)
    rows = jnp.where(where, 1.0, garbage)
    moments = update_moments(init_moments(jnp.zeros(())), rows, where)  # under jit XLA may turn a product into a select
    assert np.isfinite(moments.mean) and np.isfinite(moments.variance)
    assert float(moments.mean) == pytest.approx(1.0, rel=1e-3)


def test_nothing_valid_changes_nothing() -> None:
    rows, where = make_rows(0)
    before = update(init_moments(EXAMPLE), rows, where)
    assert_moments(update(before, rows, np.zeros_like(where)), before, rtol=1e-6)
    fresh = init_moments(EXAMPLE)
    assert_moments(update(fresh, rows, np.zeros_like(where)), fresh, rtol=1e-6)


def test_a_large_offset_does_not_cancel() -> None:
    """E[x²] − E[x]² in f32 would be wrong here."""
    moments = init_moments(jnp.zeros(()))
    rng = np.random.default_rng(0)
    x = (1e4 + rng.normal(size=(40, 2000))).astype(np.float32)
    for part in x:
        moments = update(moments, part, np.ones(2000, bool))
    prior = 1e8 * PRIOR / x.size  # the contribution of the prior's mean of 0
    assert float(moments.variance) == pytest.approx(x.astype(np.float64).var() + prior, rel=0.02)


def test_devices_together_see_all_rows() -> None:
    rows, where = make_rows(5)
    whole = update(init_moments(EXAMPLE), rows, where)
    halves = jax.tree.map(lambda x: np.stack([x[:, :2], x[:, 2:]]), (rows, where))
    per_device = jax.vmap(partial(update_moments, axis_name="d"), in_axes=(None, 0, 0), axis_name="d")
    both = per_device(init_moments(EXAMPLE), *halves)
    for device in range(2):
        assert_moments(jax.tree.map(lambda x, d=device: x[d], both), whole)


def test_normalize_centres_scales_and_clips() -> None:
    moments = RunningMoments(jnp.float32(10), {"a": jnp.array([1.0, -2.0])}, {"a": jnp.array([4.0, 0.25])})
    x = np.array([[[3.0, -2.0], [1.0, -1.0]], [[1e6, -1e6], [-1.0, -3.0]]])
    expected = [[[1.0, 0.0], [0.0, 2.0]], [[10.0, -10.0], [-1.0, -2.0]]]
    np.testing.assert_allclose(normalize(moments, {"a": x})["a"], expected, rtol=1e-6)
    np.testing.assert_allclose(normalize(moments, {"a": x}, clip=1.5)["a"].max(), 1.5)


def test_normalize_takes_whole_numbers_and_constants() -> None:
    moments = RunningMoments(jnp.float32(1), jnp.float32(250), jnp.float32(100))
    out = normalize(moments, jnp.array([0, 255], jnp.uint8), clip=100.0)
    np.testing.assert_allclose(out, [-25.0, 0.5])  # no wrap-around at 0 − 250
    constant = RunningMoments(jnp.float32(1), jnp.float32(3), jnp.float32(0))
    np.testing.assert_array_equal(normalize(constant, jnp.array([3.0])), [0.0])


def test_before_any_row_nothing_changes() -> None:
    x = jnp.array([-2.0, 0.5])
    np.testing.assert_allclose(normalize(init_moments(jnp.zeros(2)), x), x)


# --------------------------------------------------------------------------------------------------------------------- episodes

LENGTHS = np.array([6, 1, 4, 0])
"""Rows of each of the B episodes."""


@jax.jit
def of_episodes(moments: RunningMoments, rows: Any, lengths: Any) -> Any:
    """Return the moments of each episode, and the moments updated with all, from rows [T, B]."""
    each = no_rows(moments, B)
    for t in range(T):
        each = each.plus(jax.tree.map(lambda x, t=t: x[t], rows), t < lengths)
    return each, add_episodes(moments, each)


def test_moments_of_episodes_are_those_of_their_rows() -> None:
    """Of each episode, and of two generations together, also if an episode has no rows."""
    (rows, _), (others, _) = make_rows(0), make_rows(1)
    each, moments = of_episodes(init_moments(EXAMPLE), rows, LENGTHS)
    wheres = [np.arange(T)[:, None] < lengths for lengths in (LENGTHS, LENGTHS[::-1])]
    assert_moments(moments, oracle([(rows, wheres[0])]))
    assert_moments(of_episodes(moments, others, LENGTHS[::-1])[1], oracle([(rows, wheres[0]), (others, wheres[1])]))
    for name, b in itertools.product(EXAMPLE, range(B)):
        own = rows[name][: LENGTHS[b], b].astype(np.float64)
        mean = own.mean(0) if len(own) else np.zeros(own.shape[1:])
        np.testing.assert_allclose(each.mean[name][b], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(each.square[name][b], ((own - mean) ** 2).sum(0), rtol=1e-3, atol=1e-6)


def test_moments_of_episodes_do_not_depend_on_the_batch() -> None:
    rows, _ = make_rows(2)
    several, _ = of_episodes(init_moments(EXAMPLE), rows, LENGTHS)
    same = jax.tree.map(lambda x: np.broadcast_to(x[:, 2:3], x.shape), rows)
    alike, _ = of_episodes(init_moments(EXAMPLE), same, np.full(B, LENGTHS[2]))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[2], y[0]), several, alike)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 77.0])
def test_rows_after_the_end_of_an_episode_have_no_influence(garbage: float) -> None:
    rows = make_rows(3)[0]["position"]
    ended = (np.arange(T)[:, None] >= LENGTHS)[..., None]
    clean, broken = (of_episodes(init_moments(jnp.zeros(3)), np.where(ended, x, rows), LENGTHS) for x in (0.0, garbage))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(broken))
    jax.tree.map(np.testing.assert_array_equal, broken, clean)


def test_an_episode_that_is_not_finite_is_left_out() -> None:
    rows = make_rows(3)[0]["position"]
    broken = rows.copy()
    broken[0, 0] = np.nan
    lengths = np.where(np.arange(B) == 0, 0, LENGTHS)
    assert LENGTHS[0] > 0
    found, expected = (of_episodes(init_moments(jnp.zeros(3)), x, n)[1] for x, n in ((broken, LENGTHS), (rows, lengths)))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_large_offset_does_not_cancel_in_episodes() -> None:
    """Neither within an episode nor between episodes, whose means differ by less than their rows do."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(100, 400, 200)
    x = (1e4 + rng.normal(size=(200, 1)) / 10 + rng.normal(size=(200, 400))).astype(np.float32)
    first = (1e4 + rng.normal(size=500)).astype(np.float32)
    moments = RunningMoments(jnp.float32(len(first)), jnp.float32(first.mean(dtype=float)), jnp.float32(first.var(dtype=float)))

    def row(each: Any, column: Any) -> tuple[Any, None]:
        t, seen = column
        return each.plus(seen, t < lengths), None

    each, _ = jax.jit(lambda columns: jax.lax.scan(row, no_rows(moments, 200), columns))((jnp.arange(400), jnp.asarray(x.T)))
    np.testing.assert_array_equal(each.count, lengths)
    found = add_episodes(moments, each)
    seen = np.concatenate([first, *(own[:length] for own, length in zip(x, lengths, strict=True))]).astype(np.float64)
    assert float(found.count) == len(seen)
    assert float(found.mean) == pytest.approx(seen.mean(), rel=1e-6)
    assert float(found.variance) == pytest.approx(seen.var(), rel=0.01)


def test_parts_without_moments_are_left_out_of_episodes() -> None:
    """Discrete parts and masks have none."""
    seen = {"x": spaces.Box(-9, 9, (2,), np.float32), "n": spaces.Discrete(3), "action_mask": spaces.MultiBinary(4)}
    moments: Any = init_statistics(spaces.Dict(seen), None).observations
    each = no_rows(moments, 2)
    assert each.mean.keys() == seen.keys() and each.mean["n"] is each.mean["action_mask"] is each.square["n"] is None
    row = {"x": jnp.array([[1.0, 2.0], [3.0, -4.0]]), "n": jnp.array([0, 2]), "action_mask": jnp.ones((2, 4), jnp.int8)}
    after = add_episodes(moments, each.plus(row, jnp.array([True, True])))
    assert after.mean["n"] is None and after.variance["action_mask"] is None
    np.testing.assert_allclose(after.mean["x"], [2.0, -1.0], rtol=1e-3)
    np.testing.assert_allclose(after.variance["x"], [1.0, 9.0], rtol=1e-3)

    alone: Any = init_statistics(spaces.Discrete(3), None).observations
    nothing = no_rows(alone, 2)
    for where in ([True, True], [False, True]):
        nothing = nothing.plus(jnp.array([0, 2]), jnp.array(where))
    assert float(add_episodes(alone, nothing).count) == pytest.approx(3 + PRIOR) and nothing.mean is None


def test_episodes_without_rows_change_nothing() -> None:
    before = update(init_moments(EXAMPLE), *make_rows(0))
    _, after = of_episodes(before, make_rows(1)[0], np.zeros(B, int))
    assert_moments(after, before, rtol=1e-6)


# -------------------------------------------------------------------------------------------------------- in a learner's state


def test_return_statistics_go_on_from_rollout_to_rollout() -> None:
    """Against a loop per environment, identified by its id, which restarts with each episode."""
    rng, size, rows = np.random.default_rng(0), 3, 7
    statistics = Statistics((), RewardStatistics(jnp.zeros(size), init_moments(jnp.zeros(()))))
    env_id = np.array([5, 3, 4], np.int32)  # the environments of a second device, in some order
    running, seen = dict.fromkeys(env_id.tolist(), 0.0), []
    valid = np.ones(size, bool)
    take = jax.jit(lambda statistics, rollout: update_statistics(statistics, rollout, jnp.float32(0.8), None))
    for _ in range(3):
        reward, is_first, valids = np.zeros((rows, size)), np.zeros((rows + 1, size), bool), np.zeros((rows, size), bool)
        for t in range(rows):
            is_first[t] = ~valid
            valid = np.where(valid, rng.random(size) < 0.7, True)
            valids[t], reward[t] = valid, rng.normal(size=size) * valid
            for b, i in enumerate(env_id.tolist()):
                if valid[b]:
                    running[i] = reward[t, b] + 0.8 * running[i] * (not is_first[t, b])
                    seen.append(running[i])
        inputs = first_input(jnp.zeros((rows + 1, size)), spaces.Discrete(2), 1)._replace(is_first=jnp.asarray(is_first))
        flags = jnp.zeros((rows, size), bool)
        rollout = Rollout(
            inputs, flags, jnp.float32(reward), flags, flags, (), jnp.asarray(valids), (), jnp.asarray(env_id), jnp.int32(0)
        )
        statistics = take(statistics, rollout)
    moments = statistics.rewards.moments
    assert float(moments.count) == pytest.approx(len(seen), rel=1e-4)
    assert float(moments.variance) == pytest.approx(np.var(seen), rel=1e-3)
    np.testing.assert_allclose(statistics.rewards.returns[env_id % size], [running[i] for i in env_id.tolist()], rtol=1e-5)


def test_padding_takes_no_time_in_the_discounted_return() -> None:
    """A rollout that was cut short ends with invalid rows; the next one continues the episode."""
    statistics = Statistics((), RewardStatistics(jnp.zeros(1), init_moments(jnp.zeros(()))))
    valid, reward = jnp.array([[True], [True], [False], [False]]), jnp.array([[1.0], [2.0], [0.0], [0.0]])
    is_first, flags = jnp.zeros((5, 1), bool).at[0].set(True), jnp.zeros((4, 1), bool)
    inputs = first_input(jnp.zeros((5, 1)), spaces.Discrete(2), 1)._replace(is_first=is_first)
    rollout = Rollout(inputs, flags, reward, flags, flags, (), valid, (), jnp.zeros(1, jnp.int32), jnp.int32(0))
    after = update_statistics(statistics, rollout, 0.5, None)
    assert after.rewards.returns.tolist() == [2.0 + 0.5 * 1.0] and float(after.rewards.moments.count) == pytest.approx(
        2, rel=1e-3
    )


def test_observations_count_once_where_they_were_acted_on() -> None:
    """Row t counts its own observation. The observation that it reached belongs to the next row, or does not count."""
    rows, valid = make_rows(0)
    obs = jax.tree.map(lambda x: np.concatenate([x, 99 + 0 * x[:1]]), rows)
    flags, none = np.zeros((T, B), bool), jnp.zeros((T + 1, B))
    rollout = Rollout(
        StepInput(obs, none, none, none > 0), flags, none[1:], flags, flags, (), valid, (), jnp.arange(B), jnp.int32(0)
    )
    statistics = update_statistics(Statistics(init_moments(EXAMPLE), ()), rollout, 0.9, None)
    assert_moments(statistics.observations, oracle([(rows, valid)]))


SPACES = {
    "box": spaces.Box(-9, 9, (2,), np.float32),
    "picture": spaces.Box(0, 255, (2,), np.uint8),
    "discrete": spaces.Discrete(2),
    "multi discrete": spaces.MultiDiscrete([2, 2]),
    "multi binary": spaces.MultiBinary(2),
}


@pytest.mark.parametrize("kind", SPACES)
def test_normalised_observations_can_still_be_told_apart(kind: str) -> None:
    """Also by the built-in networks, which one-hot encode discrete values and divide images by 255."""
    space = SPACES[kind]
    obs = jnp.stack([jnp.zeros(space.shape), jnp.ones(space.shape)]).astype(zeros(space).dtype)
    statistics = seen(init_statistics(space, None), obs)
    encoded = encode_space(space, normalize_inputs(statistics, first_input(obs, spaces.Discrete(2), 2)).obs)
    if kind in ("box", "picture"):
        np.testing.assert_allclose(encoded, [[-1, -1], [1, 1]], rtol=1e-3)
    else:
        np.testing.assert_array_equal(encoded, encode_space(space, obs))


def seen(statistics: Statistics, obs: Any) -> Statistics:
    """Return ``statistics`` updated with these observations, [2]."""
    return statistics._replace(observations=update_moments(statistics.observations, obs, jnp.ones(2, bool)))


MASKS = [
    spaces.MultiBinary(4),
    spaces.Box(0, 1, (4,), np.int8),
    spaces.Box(0, 1, (4,), np.bool_),
    spaces.Box(0, 1, (4,), np.float32),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_masks_are_not_normalised(mask: spaces.Space) -> None:
    """For every space that declares them. Other parts of the observation are normalised."""
    space = spaces.Dict({"x": SPACES["box"], "action_mask": mask})
    masks = jnp.array([[1, 0, 0, 1], [0, 1, 1, 1]]).astype(zeros(mask).dtype)
    obs = {"x": jnp.array([[0.0, 2.0], [4.0, -2.0]]), "action_mask": masks}
    inputs = normalize_inputs(seen(init_statistics(space, None), obs), first_input(obs, spaces.Discrete(4), 2))
    np.testing.assert_allclose(inputs.obs["x"], [[-1, 1], [1, -1]], atol=1e-3)
    np.testing.assert_array_equal(inputs.obs["action_mask"], masks)


def test_nothing_is_normalised_unless_asked_for() -> None:
    statistics = init_statistics(None, None)
    assert statistics == ((), (), ())
    inputs = first_input(jnp.ones((2, 3)), spaces.Discrete(2), 2)
    assert normalize_inputs(statistics, inputs) is inputs
    assert scale_rewards(statistics, inputs.prev_reward) is inputs.prev_reward


def test_rewards_are_scaled_and_not_shifted() -> None:
    statistics = init_statistics(None, 2)
    moments = statistics.rewards.moments._replace(mean=jnp.float32(7), variance=jnp.float32(4))
    statistics = statistics._replace(rewards=statistics.rewards._replace(moments=moments))
    np.testing.assert_allclose(scale_rewards(statistics, jnp.array([0.0, 1.0, -6.0])), [0.0, 0.5, -3.0])


def test_rows_of_another_shape_are_refused() -> None:
    """Each of these would broadcast."""
    moments = init_moments(jnp.zeros(3))
    with pytest.raises(AssertionError, match="shape"):
        update_moments(moments, jnp.zeros((4, 1)), jnp.ones(4, bool))
    with pytest.raises(AssertionError, match="shape"):
        normalize(moments, jnp.zeros((3, 1)))
