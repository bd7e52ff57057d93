"""Datasets: rows in one lane, their ends, returns and digests, the replay that draws them, and rows that are refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.replay.dataset import DatasetInfo, make_dataset
from jaxrl.replay.dataset_replay import WithData, attach, dataset_replay, detach
from jaxrl.replay.transitions import ReplayRow, transitions
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.running_statistics import Statistics, normalize_inputs
from jaxrl.runtime.datasets.layouts import Spaces

LINE = Spaces(spaces.Box(-10.0, 10.0, (1,), np.float32), spaces.Discrete(2), "line")
KEY = jax.random.key(0)


def rows_of(valid: list[int], terminated: list[int], reward: list[float] | None = None, lanes: int = 0) -> ReplayRow:
    """Return rows whose observations count up from 0."""
    number = len(valid)
    rows = ReplayRow(
        np.arange(number, dtype=np.float32)[:, None],
        np.arange(number, dtype=np.int32) % 2,
        np.asarray(reward if reward is not None else np.arange(number), np.float32),
        np.asarray(terminated, bool),
        np.asarray(valid, bool),
    )
    if not lanes:
        return rows
    shaped: Any = jax.tree.map(lambda x: np.swapaxes(x.reshape(lanes, number // lanes, *x.shape[1:]), 0, 1), rows)
    return shaped


TWO_EPISODES = rows_of([1, 1, 0, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0])
"""One that terminates, and one that is cut off; rows 2 and 6 hold last observations."""


def test_what_is_computed_once() -> None:
    data = make_dataset(TWO_EPISODES, LINE)
    assert data.origins.tolist() == [3, 4, 5, 0, 1] and data.rows_of_best.tolist() == [3, 5]
    assert data.starts.tolist() == [0, 3]
    assert data.returns_to_go.tolist() == [1.0, 1.0, 0.0, 12.0, 9.0, 5.0, 0.0]
    info = data.info
    assert (info.rows, info.episodes, info.returns) == (5, 2, (1.0, 12.0))
    (mean,), (std,) = info.moments["obs"]
    assert (mean, std) == pytest.approx((np.mean([0, 1, 3, 4, 5]), np.std([0, 1, 3, 4, 5])))
    assert info.observation_space == LINE.observation_space and info.action_space == LINE.action_space
    assert repr(data) == "Dataset(5 rows of 2 episodes, from memory)"
    np.testing.assert_array_equal(data.rows().obs, TWO_EPISODES.obs)


def test_leaves_that_are_not_floats_have_no_moments() -> None:
    both = spaces.Dict({"image": spaces.Box(0, 255, (2,), np.uint8), "x": spaces.Box(-1.0, 1.0, (1,), np.float32)})
    rows = rows_of([1, 1, 0], [0, 0, 0])
    obs = {"image": np.full((3, 2), 200, np.uint8), "x": np.array([[0.5], [-0.5], [0.0]], np.float32)}
    info = make_dataset(rows._replace(obs=obs), Spaces(both, spaces.Discrete(2), "both")).info
    moments = info.running_moments()
    assert moments.mean["image"] is None and moments.variance["image"] is None
    seen = normalize_inputs(Statistics(moments, ()), first_input(obs, spaces.Discrete(2), 3))
    np.testing.assert_array_equal(seen.obs["image"], obs["image"])
    np.testing.assert_allclose(seen.obs["x"], obs["x"] / 0.5, rtol=1e-5)


def drawn(data: Any, origin: int, n_step: int = 1, gamma: float = 0.5) -> Any:
    replay = dataset_replay(before=1, after=n_step)
    state = WithData((), data)
    draw = replay.draw(state, KEY, 200)
    assert {*np.asarray(draw.row).tolist()} == {*np.asarray(data.origins).tolist()} and bool(draw.valid.all())
    draw = jax.tree.map(lambda x: x[:1], draw)._replace(row=jnp.array([origin], jnp.int32))
    return jax.tree.map(lambda x: x[0], transitions(replay, state, draw, gamma, n_step))


def test_an_end_by_limit_bootstraps_and_a_termination_does_not() -> None:
    data = make_dataset(TWO_EPISODES, LINE)
    ended, cut, within = drawn(data, 1), drawn(data, 5), drawn(data, 3)
    assert float(ended.discount) == 0 and float(cut.discount) == float(within.discount) == 0.5
    assert cut.next_inputs.obs.tolist() == [6.0] and within.next_inputs.obs.tolist() == [4.0]
    assert bool(drawn(data, 0).inputs.is_first) and bool(drawn(data, 3).inputs.is_first) and not bool(within.next_inputs.is_first)


def test_returns_of_several_rows_stop_at_the_end() -> None:
    data = make_dataset(TWO_EPISODES, LINE)
    far = drawn(data, 4, n_step=3)
    assert float(far.reward) == 4 + 0.5 * 5 and float(far.discount) == 0.25 and far.next_inputs.obs.tolist() == [6.0]
    over = drawn(data, 0, n_step=3)
    assert float(over.reward) == 0.5 and float(over.discount) == 0


def test_rows_of_several_environments_become_one_lane() -> None:
    """The last row of a lane, whose next observation is unknown, only gives the observation that the row before it reached."""
    rows = rows_of([1, 0, 1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], lanes=2)
    data = make_dataset(rows, LINE)
    assert data.rows().obs[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6] and data.rows().valid.tolist() == [1, 0, 1, 0, 1, 1, 0]
    assert data.starts.tolist() == [0, 2, 4] and data.info.episodes == 3


def test_an_action_that_the_mask_forbids_is_refused() -> None:
    """Its logit would be −1e9. A row that is not valid may have any action."""
    space = spaces.Dict({"action_mask": spaces.MultiBinary(2)})
    rows = rows_of([1, 1, 0], [0, 0, 0])._replace(obs={"action_mask": np.array([[1, 0], [1, 1], [1, 0]], np.int8)})
    env = Spaces(space, spaces.Discrete(2), "masked")
    make_dataset(rows._replace(action=np.array([0, 1, 1], np.int32)), env)
    with pytest.raises(ValueError, match="row 0 of environment 0 has an action that its action_mask forbids"):
        make_dataset(rows._replace(action=np.array([1, 1, 0], np.int32)), env)


def test_a_share_of_the_episodes_is_rounded_down() -> None:
    """0.29 times 100 episodes is less than 29 in floating point."""
    data = make_dataset(rows_of([1, 0] * 100, [1, 0] * 100), LINE)
    for best, number in ((0.29, 29), (0.299, 29), (0.001, 1)):
        draw = dataset_replay(best=best).draw(WithData((), data), KEY, 1000)
        assert {*np.asarray(draw.row).tolist()} == {*np.asarray(data.origins)[:number].tolist()}


def test_episodes_of_one_step() -> None:
    data = make_dataset(rows_of([1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 0, 0]), LINE)
    assert data.starts.tolist() == [0, 2, 4] and data.info.rows == 3
    assert [float(drawn(data, i).discount) for i in (0, 2, 4)] == [0, 0, 0.5]


def test_a_digest_is_of_what_is_learnt_from() -> None:
    digest = make_dataset(TWO_EPISODES, LINE).info.digest
    action = TWO_EPISODES.action.copy()
    action[2] = 1  # a row that is not valid
    assert make_dataset(TWO_EPISODES._replace(action=action), LINE).info.digest == digest
    action[0] = 1
    assert make_dataset(TWO_EPISODES._replace(action=action), LINE).info.digest != digest
    reward = TWO_EPISODES.reward.copy()
    reward[5] += 1
    assert make_dataset(TWO_EPISODES._replace(reward=reward), LINE).info.digest != digest


def test_a_description_is_plain_data() -> None:
    info = make_dataset(TWO_EPISODES, LINE, path="a.npz").info
    again = DatasetInfo.read(info.as_plain())
    assert again == info and hash(again) == hash(info) and again.as_plain() == info.as_plain()
    moments = again.running_moments()
    np.testing.assert_allclose(moments.mean, [2.6], rtol=1e-6)
    np.testing.assert_allclose(moments.variance, np.var([0, 1, 3, 4, 5]), rtol=1e-5)
    for wrong in ({}, {"dataset": {}}, {"dataset": 3}, None):
        with pytest.raises(ValueError, match="does not describe a dataset"):
            DatasetInfo.read(wrong)


def test_it_is_a_pytree_that_compiles_once() -> None:
    """Two reads of the same data use one program; other data of the same shapes another."""
    calls = []

    @jax.jit
    def total(data: Any) -> Any:
        calls.append(1)
        return data.returns_to_go.sum()

    one, same = make_dataset(TWO_EPISODES, LINE), make_dataset(TWO_EPISODES, LINE, path="b.npz")
    assert total(one) == total(same) == 28 and len(calls) == 1


def test_seeds_share_it() -> None:
    """Under vmap over draws the data are gathered from, and not copied."""
    data, replay = make_dataset(TWO_EPISODES, LINE), dataset_replay(before=1, after=1)

    def batch(key: Any, data: Any) -> Any:
        state = WithData((), data)
        return replay.take(state, replay.draw(state, key, 4), 0).obs

    found = jax.vmap(batch, in_axes=(0, None))(jax.random.split(KEY, 3), data)
    assert found.shape == (3, 4, 1) and len({*np.asarray(found).ravel().tolist()}) > 2


class Learner:
    """A learner of one field."""

    def __init__(self, replay: Any) -> None:
        self.replay = replay

    def _replace(self, replay: Any) -> Learner:
        return Learner(replay)


def test_data_are_attached_for_a_step() -> None:
    data = make_dataset(TWO_EPISODES, LINE)
    learner = attach(Learner(dataset_replay().init(None)), data)
    assert learner.replay.data is data and detach(learner).replay == WithData((), ())
    with pytest.raises(TypeError, match="a dataset takes no rows"):
        dataset_replay().add(learner.replay, TWO_EPISODES, jnp.arange(1))
    with pytest.raises(ValueError, match="offset=2 must be from 0 to 1"):
        dataset_replay().take(learner.replay, dataset_replay().draw(learner.replay, KEY, 1), 2)


@pytest.mark.parametrize(
    "rows, message",
    [
        (rows_of([0, 0], [0, 0]), "needs at least one transition"),
        (rows_of([1, 1, 0], [1, 0, 0]), "row 0 terminates an episode, so the next row must not be valid"),
        (rows_of([1, 0], [0, 0], [np.nan, 0]), "row 0 of environment 0 has a reward that is not finite"),
        (rows_of([1, 0], [0, 0])._replace(obs=np.full((2, 1), np.inf, np.float32)), "obs that is not finite"),
        (rows_of([1, 0], [0, 0])._replace(action=np.array([2, 0], np.int32)), r"an action outside Discrete\(2\)"),
        (
            rows_of([1, 0], [0, 0])._replace(obs=np.zeros((2, 2), np.float32)),
            r"obs is float32\[2, 1, 2\], but for line it must be",
        ),
        (rows_of([1, 0], [0, 0])._replace(reward=np.zeros(2)), "reward is float64"),
    ],
)
def test_what_is_refused(rows: ReplayRow, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_dataset(rows, LINE)
