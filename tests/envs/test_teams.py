"""Padding of agents with unequal spaces, against arrays written by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.agents import Team, pad
from jaxrl.envs import EnvError
from jaxrl.envs.teams import Padding, padding_of
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import AGENT_KEY
from jaxrl.spaces.goals import OBSERVATION
from jaxrl.types import TimeStep

KINDS = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
NARROW, WIDE = spaces.Box(-1.0, 2.0, (2,)), spaces.Box(-3.0, np.array([1.0, 5.0, np.inf], np.float32), (3,))
TWO, FOUR = spaces.Discrete(2), spaces.Discrete(4)


def boxes(*sizes: int, low: float = -1.0, high: float = 1.0) -> list[spaces.Space]:
    return [spaces.Box(low, high, (n,)) for n in sizes]


def masked(n: int, box: spaces.Box = NARROW) -> spaces.Dict:
    return spaces.Dict({OBSERVATION: box, MASK_KEY: spaces.MultiBinary(n)})


def duo(**changes: Any) -> Team:
    """Team of agents that observe the row, and the row and both actions. Each is rewarded with the action of the other."""

    def observations(row: Any, actions: Any) -> tuple[Any, Any]:
        first, second = (jnp.float32(action) for action in actions)
        return jnp.stack([row, -row]) / 10.0, jnp.stack([row, first, second])

    def reset(key: Any, params: Any) -> Any:
        row = jnp.zeros((), jnp.float32)
        return row, observations(row, (0, 0))

    def step(key: Any, row: Any, actions: Any, params: Any) -> Any:
        row, over = row + 1, row >= 4
        reward = jnp.stack([actions[1], actions[0]]).astype(jnp.float32)
        return row, TimeStep(observations(row, actions), reward, over, jnp.zeros(2, bool))

    def render(row: Any, actions: Any, params: Any) -> Any:
        colour = [int(row), *(map(int, actions) if actions else (9, 9))]
        return np.array([[colour]], np.uint8)

    wide = spaces.Box(-1.0, 9.0, (3,))
    return Team(reset, step, (NARROW, wide), (TWO, FOUR), (), "duo", 6, render, 5.0)._replace(**changes)


def stacked(padding: Padding, xp: Any, *observations: Any, lead: tuple[int, ...] = ()) -> Any:
    """Return the padded observations, of agents in ``lead`` equal environments, as NumPy arrays of the right kind."""

    def ahead(x: Any) -> Any:
        return xp.broadcast_to(xp.asarray(x), (*lead, *np.shape(x)))

    found = padding.observations([{k: ahead(v) for k, v in x.items()} if isinstance(x, dict) else ahead(x) for x in observations])
    for x in jax.tree.leaves(found):
        assert isinstance(x, np.ndarray if xp is np else jax.Array)
    return jax.tree.map(np.asarray, found)


@KINDS
@pytest.mark.parametrize("lead", [(), (2,), (4, 2)])
def test_observations_are_padded_and_numbered(xp: Any, lead: tuple[int, ...]) -> None:
    padding = padding_of([NARROW, WIDE], [TWO, TWO])
    expected = np.broadcast_to(np.float32([[7, 8, 0], [1, 2, 3]]), (*lead, 2, 3))
    found = stacked(padding, xp, np.float32([7, 8]), np.float32([1, 2, 3]), lead=lead)
    np.testing.assert_array_equal(found[OBSERVATION], expected, strict=True)
    np.testing.assert_array_equal(found[AGENT_KEY], np.broadcast_to(np.int32([0, 1]), (*lead, 2)), strict=True)
    bounds = np.float32([[-3, -3, -3], [2, 5, np.inf]])  # both agents and the zeros fit
    assert padding.observation_space == spaces.Dict({OBSERVATION: spaces.Box(*bounds), AGENT_KEY: spaces.Discrete(2)})  # type: ignore[arg-type]
    assert padding.action_space is TWO  # equal actions stay as they are, without a mask
    plain = padding_of([NARROW, WIDE], [TWO, TWO], agent_id=False)
    found = stacked(plain, xp, np.float32([7, 8]), np.float32([1, 2, 3]), lead=lead)
    np.testing.assert_array_equal(found, expected, strict=True)


@KINDS
@pytest.mark.parametrize("lead", [(), (3,)])
def test_masks_allow_each_agent_its_own_actions(xp: Any, lead: tuple[int, ...]) -> None:
    padding = padding_of([masked(2), NARROW, masked(4)], [TWO, spaces.Discrete(3), FOUR], agent_id=False)
    x = np.float32([1, 2])
    found = stacked(
        padding,
        xp,
        {OBSERVATION: x, MASK_KEY: np.int8([0, 1])},
        x,
        {OBSERVATION: x, MASK_KEY: np.int8([1, 1, 0, 1])},
        lead=lead,
    )
    mask = np.array([[0, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]], np.int8)
    np.testing.assert_array_equal(found[MASK_KEY], np.broadcast_to(mask, (*lead, 3, 4)), strict=True)
    np.testing.assert_array_equal(found[OBSERVATION], np.broadcast_to(x, (*lead, 3, 2)), strict=True)
    assert padding.observation_space == masked(4) and padding.action_space == FOUR
    taken = padding.actions(xp.broadcast_to(xp.asarray([1, 2, 3]), (*lead, 3)))
    assert [np.unique(action).tolist() for action in taken] == [[1], [2], [3]] and taken[0].shape == lead


@KINDS
def test_a_mask_of_one_agent_is_one_for_all(xp: Any) -> None:
    padding = padding_of([masked(2), NARROW], [TWO, TWO], agent_id=False)
    x = np.float32([1, 2])
    found = stacked(padding, xp, {OBSERVATION: x, MASK_KEY: np.int8([1, 0])}, x)
    assert found[MASK_KEY].tolist() == [[1, 0], [1, 1]]


@KINDS
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_an_agent_takes_the_first_numbers_of_a_box(xp: Any, lead: tuple[int, ...]) -> None:
    padding = padding_of([NARROW, NARROW], boxes(3, 1))
    assert padding.action_space == boxes(3)[0]
    action = xp.broadcast_to(xp.asarray([[1, 2, 3], [4, 5, 6]]), (*lead, 2, 3))
    first, second = padding.actions(action)
    assert first.shape == (*lead, 3) and second.shape == (*lead, 1)
    assert np.unique(first).tolist() == [1, 2, 3] and np.unique(second).tolist() == [4]


@KINDS
def test_equal_spaces_stay_as_they_are(xp: Any) -> None:
    image, push = spaces.Box(0, 255, (2, 3), np.uint8), spaces.Box(-1.0, 1.0, (2, 2))
    padding = padding_of([image, image], [push, push], agent_id=False)
    assert padding.observation_space is image and padding.action_space is push
    pictures = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    found = stacked(padding, xp, *pictures, lead=(4,))
    np.testing.assert_array_equal(found, np.broadcast_to(pictures, (4, 2, 2, 3)), strict=True)
    taken = padding.actions(xp.ones((4, 2, 2, 2)))
    assert [action.shape for action in taken] == [(4, 2, 2)] * 2
    numbered = stacked(padding_of([image, image], [push, push]), xp, *pictures)
    np.testing.assert_array_equal(numbered[OBSERVATION], pictures, strict=True)
    assert numbered[AGENT_KEY].tolist() == [0, 1]


PLACE = spaces.Dict({"goal": spaces.Discrete(3), "walls": spaces.MultiDiscrete([2, 5])})


@KINDS
@pytest.mark.parametrize("lead", [(), (4, 2)])
@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (spaces.Discrete(5), [np.int32(3), np.int32(4)]),
        (spaces.MultiDiscrete([3, 4]), [np.int32([1, 2]), np.int32([0, 3])]),
        (PLACE, [{"goal": np.int32(i), "walls": np.int32([i, 4])} for i in (0, 1)]),
    ],
)
def test_equal_agents_of_any_kind_get_a_number(xp: Any, lead: tuple[int, ...], space: spaces.Space, seen: list[Any]) -> None:
    padding = padding_of([space, space], [TWO, TWO])
    entries = dict(space.spaces) if isinstance(space, spaces.Dict) else {OBSERVATION: space}
    assert padding.observation_space == spaces.Dict({**entries, AGENT_KEY: TWO})
    found = stacked(padding, xp, *seen, lead=lead)
    assert {*found} == {*entries, AGENT_KEY}
    for name in entries:
        of_each = np.stack([each[name] if isinstance(each, dict) else each for each in seen])
        np.testing.assert_array_equal(found[name], np.broadcast_to(of_each, (*lead, *of_each.shape)), strict=True)
    np.testing.assert_array_equal(found[AGENT_KEY], np.broadcast_to(np.int32([0, 1]), (*lead, 2)), strict=True)


def test_masks_of_equal_agents_with_several_choices_stay() -> None:
    """A mask per dimension, which only Discrete actions lack."""
    space = spaces.Dict({OBSERVATION: TWO, MASK_KEY: spaces.MultiBinary(5)})
    padding = padding_of([space, space], [spaces.MultiDiscrete([2, 3])] * 2)
    found = stacked(padding, np, *[{OBSERVATION: np.int32(i), MASK_KEY: np.int8([1, 0, 1, i, 0])} for i in (0, 1)])
    assert found[MASK_KEY].tolist() == [[1, 0, 1, 0, 0], [1, 0, 1, 1, 0]] and found[OBSERVATION].tolist() == [0, 1]


@KINDS
def test_bytes_are_scaled_where_padding_makes_floats_of_them(xp: Any) -> None:
    """As networks scale uint8: by the highest bound of each agent."""
    image, plan = spaces.Box(0, 255, (1, 2), np.uint8), spaces.Box(0, 4, (3,), np.uint8)
    padding = padding_of([image, plan, NARROW], [TWO] * 3, agent_id=False)
    found = stacked(padding, xp, np.uint8([[51, 255]]), np.uint8([1, 4, 2]), np.float32([-1, 2]))
    np.testing.assert_allclose(found, np.float32([[0.2, 1, 0], [0.25, 1, 0.5], [-1, 2, 0]]), rtol=1e-6)
    bounds: Any = np.float32([[-1, -1, 0], [2, 2, 1]])
    assert padding.observation_space == spaces.Box(*bounds)


def test_a_padded_team_keeps_the_contract() -> None:
    env = pad(duo())
    jaxrl.check_env(env)
    assert (env.num_agents, env.name, env.max_episode_steps, env.render_fps) == (2, "duo", 6, 5.0)
    assert env.render is not None
    assert env.render(jnp.float32(3), None, ()).tolist() == [[[3, 9, 9]]]
    assert env.render(jnp.float32(3), jnp.array([1, 2]), ()).tolist() == [[[3, 1, 2]]]
    state, obs = env.reset(jax.random.key(0), ())
    assert obs[MASK_KEY].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    _, reached = env.step(jax.random.key(0), state, jnp.array([1, 3]), ())
    np.testing.assert_allclose(reached.obs[OBSERVATION], [[0.1, -0.1, 0], [1, 1, 3]])
    assert reached.obs[AGENT_KEY].tolist() == [0, 1]
    assert reached.reward.tolist() == [3, 1]


def test_agents_of_a_padded_team_are_lanes() -> None:
    agent = jaxrl.make_ppo(pad(duo()), num_envs=2, rollout_length=4, num_minibatches=1, model={"hidden_sizes": (4,)})
    state = jax.eval_shape(agent.init, jax.random.key(0))
    assert agent.num_lanes == 4 and state.actor.input.obs[OBSERVATION].shape == (4, 3)


def test_an_environment_that_gives_too_few_rewards_is_refused() -> None:
    team = duo()

    def step(*args: Any) -> Any:
        state, reached = team.step(*args)
        return state, reached._replace(reward=reached.reward[:1])

    with pytest.raises(EnvError, match=r"reward has shape \(1,\); with num_agents=2 it must have \(2,\)"):
        jaxrl.check_env(pad(team._replace(step=step)))


@pytest.mark.parametrize(
    "observation_spaces, action_spaces, message",
    [
        ([], [], "a team needs at least one agent: its tuples of spaces are empty"),
        ([NARROW], [TWO, TWO], "1 observation spaces and 2 action spaces: give one of each"),
        (
            [NARROW, NARROW],
            [TWO, boxes(2)[0]],
            r"actions differ in kind \(agent 0: Discrete\(2\), agent 1: Box.*\): pad joins Discrete actions that start at 0, or",
        ),
        (
            [NARROW, NARROW],
            [TWO, spaces.Discrete(3, start=1)],
            r"agent 1: Discrete\(3, start=1\)\): pad .* that start at 0",
        ),
        (
            [NARROW, NARROW],
            [spaces.Box(-1, 1, (2, 2)), spaces.Box(-1, 1, (2,))],
            "actions differ in kind .*, or Boxes of one axis",
        ),
        (
            [NARROW, NARROW],
            [*boxes(3), *boxes(2, high=2.0)],
            r"actions differ in their bounds \(agent 0: Box\(-1.0, 1.0, \(3,\), float32\), agent 1: .*\): scale them to the same",
        ),
        ([NARROW, NARROW], [*boxes(3, low=-2.0), *boxes(2)], "actions differ in their bounds"),
        ([NARROW, TWO], [TWO, TWO], r"agent 1 observes Discrete\(2\): pad takes a Box, or a Dict of a Box, 'observation', and"),
        (
            [spaces.Dict({OBSERVATION: NARROW, "goal": NARROW}), NARROW],
            [TWO, TWO],
            r"agent 0 observes Dict\('goal': .*: pad takes a Box, or a Dict of a Box, 'observation', and an 'action_mask'",
        ),
        ([spaces.Dict({"goal": NARROW}), NARROW], [TWO, TWO], "agent 0 observes Dict"),
        ([spaces.Dict({OBSERVATION: TWO}), TWO, NARROW], [TWO] * 3, "agent 0 observes Dict"),
        ([spaces.Dict({MASK_KEY: spaces.MultiBinary(2)})] * 2, [TWO] * 2, "agents observe Dict.*nothing for a network to see"),
        ([spaces.Dict({AGENT_KEY: TWO})] * 2, [TWO] * 2, "observations have an 'agent_id' already: use agent_id=False"),
        (
            [NARROW, masked(2)],
            boxes(2, 2),
            r"agent 1 has an action_mask, and its actions are Box.*: masks are for Discrete actions",
        ),
        (
            [masked(3), NARROW],
            [TWO, FOUR],
            r"the action_mask MultiBinary\(3\): use MultiBinary\(2\) for Discrete\(2\)",
        ),
    ],
)
def test_spaces_that_cannot_be_padded_are_refused(observation_spaces: Any, action_spaces: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pad(duo(observation_spaces=tuple(observation_spaces), action_spaces=tuple(action_spaces)))
