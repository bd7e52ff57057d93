"""Small environments of several agents: matrix games, the two-step game and the switch riddle, against answers by hand."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import check_env, describe_env, family_of, list_envs, make_env
from jaxrl.envs.builtin.matrix_game import MatrixGameParams
from jaxrl.envs.builtin.switch_riddle import NOTHING, SWITCH, TELL, SwitchRiddleState
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.checks.validate import picture_problem
from jaxrl.types import Env
from tests.helpers.oracles.switch_riddle import ascend

GAMES = ("jaxrl:MatrixGame?k=-10&payoff='penalty'", "jaxrl:SwitchRiddle?agents=4", "jaxrl:TwoStep")
PARTICLES = ("jaxrl:Reference", "jaxrl:SpeakerListener", "jaxrl:Spread?agents=2")
KEY = jax.random.key(0)


def team(env_id: str) -> Env:
    env = make_env(env_id)
    assert isinstance(env, Env)
    return env


def play(env: Env, *actions: Any) -> tuple[Any, list[Any]]:
    """Return the first observations and the time steps that follow these joint actions."""
    state, obs = env.reset(KEY, env.params)
    step, reached = jax.jit(env.step, compiler_options=COMPILE_FAST), []
    for action in actions:
        state, time_step = step(KEY, state, jnp.array(action), env.params)
        reached.append(jax.device_get(time_step))
    return np.asarray(obs), reached


@pytest.mark.parametrize("env_id", [*GAMES, PARTICLES[1], *(pytest.param(x, marks=pytest.mark.slow) for x in PARTICLES[::2])])
def test_teams_keep_the_contract(env_id: str) -> None:
    env = team(env_id)
    check_env(env)
    assert describe_env(env) == env.name == env_id
    assert env_id.partition("?")[0] in list_envs("jaxrl") and family_of(env_id) == "agents"


@pytest.mark.parametrize("env_id", [*GAMES, *PARTICLES])
def test_pictures_of_teams(env_id: str) -> None:
    env = team(env_id)
    assert env.render is not None
    state, _ = env.reset(jax.random.key(1), env.params)
    action = np.zeros(env.num_agents, int)
    action[-1] = 2 if env_id in PARTICLES else 1
    after, _ = jax.jit(env.step, compiler_options=COMPILE_FAST)(KEY, state, action, env.params)
    pictures = [env.render(state, None, env.params), env.render(after, action, env.params)]
    assert all(picture_problem(picture) is None for picture in pictures) and pictures[0].shape == pictures[1].shape
    assert not np.array_equal(*pictures)


# ------------------------------------------------------------------------------------------------------------------ matrix games


@pytest.mark.parametrize(
    "options, payoff",
    [
        ("payoff=climbing", [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]),
        ("payoff=penalty", [[-50, 0, 10], [0, 2, 0], [10, 0, -50]]),
        ("payoff=penalty&k=-100", [[-100, 0, 10], [0, 2, 0], [10, 0, -100]]),
        ("payoff=penalty&k=0", [[0, 0, 10], [0, 2, 0], [10, 0, 0]]),
    ],
)
def test_both_agents_get_the_entry_of_the_matrix(options: str, payoff: Any) -> None:
    env = team(f"jaxrl:MatrixGame?{options}&repeat=9")
    obs, reached = play(env, *itertools.product(range(3), range(3)))
    for row, entry in zip(reached, np.ravel(payoff), strict=True):
        assert row.reward.tolist() == [entry, entry] and not row.truncated
        np.testing.assert_array_equal(row.obs, obs)
    assert obs.tolist() == [[1], [1]]
    assert [bool(row.terminated) for row in reached] == [False] * 8 + [True]


def test_the_matrix_is_data() -> None:
    env = team("jaxrl:MatrixGame")
    state, _ = env.reset(KEY, env.params)
    other = MatrixGameParams(jnp.arange(9.0).reshape(3, 3))
    _, reached = env.step(KEY, state, jnp.array([2, 1]), other)
    assert reached.reward.tolist() == [7, 7] and not reached.terminated


# ------------------------------------------------------------------------------------------------------------- the two-step game


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_agent_chooses_the_matrix(first: int) -> None:
    """In the first step the second agent has no influence. The returns are those of Rashid et al. 2018, table 1."""
    payoff = ([[7, 7], [7, 7]], [[0, 1], [1, 8]])[first]
    env = team("jaxrl:TwoStep")
    for ignored, a, b in itertools.product(range(2), repeat=3):
        obs, (chosen, paid) = play(env, (first, ignored), (a, b))
        assert obs.tolist() == [[1, 0, 0]] * 2
        assert chosen.reward.tolist() == [0, 0] and not chosen.terminated and not chosen.truncated
        assert chosen.obs.tolist() == [[0, 1 - first, first]] * 2
        assert paid.reward.tolist() == [payoff[a][b]] * 2 and paid.terminated and not paid.truncated
        assert paid.obs.tolist() == [[0, 0, 0]] * 2


# ------------------------------------------------------------------------------------------------------------- the switch riddle


def riddle(agents: int = 3) -> Env:
    return team(f"jaxrl:SwitchRiddle?agents={agents}")


def state_on(day: int, inside: int, light: bool = False, been: Any = (0, 0, 0)) -> SwitchRiddleState:
    return SwitchRiddleState(jnp.int32(day), jnp.int32(inside), jnp.array(light), jnp.array(been, bool), jnp.array(False))


def test_only_the_agent_inside_acts_and_sees_the_light() -> None:
    env = riddle()
    step = jax.jit(env.step, compiler_options=COMPILE_FAST)
    for inside, light in itertools.product(range(3), (False, True)):
        for action in (NOTHING, SWITCH):
            actions = jnp.full(3, TELL).at[inside].set(action)  # the others are not heard
            after, reached = step(jax.random.key(inside), state_on(0, inside, light), actions, ())
            now = light ^ (action == SWITCH)
            assert bool(after.light) == now and after.been.tolist() == [i == inside for i in range(3)]
            assert reached.reward.tolist() == [0, 0, 0] and not reached.terminated and not reached.truncated
            here = np.arange(3) == int(after.inside)
            np.testing.assert_array_equal(reached.obs, np.column_stack([here, here & now]))


@pytest.mark.parametrize("been", [*itertools.product((False, True), repeat=3)])
def test_telling_is_right_once_all_have_been_inside(been: Any) -> None:
    """Today's agent counts."""
    _, reached = riddle().step(KEY, state_on(2, 1, been=been), jnp.array([NOTHING, TELL, NOTHING]), ())
    assert reached.reward.tolist() == [1.0 if been[0] and been[2] else -1.0] * 3 and reached.terminated


@pytest.mark.parametrize("agents", [2, 3, 5])
def test_the_riddle_ends_with_its_last_day(agents: int) -> None:
    days = 4 * agents - 6
    _, reached = play(riddle(agents), *[[NOTHING] * agents] * days)
    assert [bool(row.terminated) for row in reached] == [False] * (days - 1) + [True]
    assert not any(row.truncated or row.reward.any() for row in reached)


def test_agents_are_drawn_uniformly() -> None:
    env = riddle()
    keys = jax.random.split(KEY, 3000)
    first = jax.vmap(lambda key: env.reset(key, ())[0].inside)(keys)
    later = jax.vmap(lambda key: env.step(key, state_on(0, 0), jnp.zeros(3, jnp.int32), ())[0].inside)(keys)
    for inside in (first, later):
        np.testing.assert_allclose(np.bincount(inside, minlength=3) / 3000, 1 / 3, atol=0.03)


def test_agents_that_remember_alone_reach_the_bound() -> None:
    """The best responses of agents that know their observations alone end at what an agent that knows everything gets."""
    assert ascend(24) == pytest.approx(1 - 3 * (2 / 3) ** 6 + 3 * (1 / 3) ** 6)
    assert ascend(0, 2, 2) == pytest.approx(0.5)


@pytest.mark.parametrize("agents, days, value", [(2, 2, 0.5), (3, 6, 1 - 3 * (2 / 3) ** 6 + 3 * (1 / 3) ** 6)])
def test_the_bound_of_an_agent_that_knows_everything(agents: int, days: int, value: float) -> None:
    """Over all sequences of draws, telling as soon as all have been inside gets the probability that they are within the days."""
    env = riddle(agents)
    draws = jnp.array([*itertools.product(range(agents), repeat=days)])

    def episode(draws: Any) -> Any:
        def day(carry: Any, inside: Any) -> Any:
            state, over = carry
            state = state._replace(inside=inside)
            everyone = (state.been | (jnp.arange(agents) == inside)).all()
            state, reached = env.step(KEY, state, jnp.full(agents, jnp.where(everyone, TELL, NOTHING)), ())
            return (state, over | reached.terminated), jnp.where(over, 0.0, reached.reward[0])

        start, _ = env.reset(KEY, ())
        return jax.lax.scan(day, (start, jnp.zeros((), bool)), draws)[1].sum()

    returns = jax.jit(jax.vmap(episode), compiler_options=COMPILE_FAST)(draws)
    assert float(returns.mean()) == pytest.approx(value, abs=1e-6) and len(returns) == agents**days
    if agents == 3:
        assert value == pytest.approx(0.741, abs=5e-4)


# --------------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "env_id, message",
    [
        ("jaxrl:MatrixGame?payoff=stag", "jaxrl:MatrixGame: option payoff='stag' must be one of climbing, penalty"),
        ("jaxrl:MatrixGame?k=-10", "option k=-10 is the penalty of payoff=penalty; payoff=climbing has none"),
        ("jaxrl:MatrixGame?payoff=penalty&k=1", "option k=1 must be a number <= 0"),
        ("jaxrl:MatrixGame?payoff=penalty&k=-1e999", "option k=-inf must be a number <= 0"),
        ("jaxrl:MatrixGame?payoff=penalty&k=low", "option k='low' must be a number <= 0"),
        ("jaxrl:MatrixGame?repeat=0", "option repeat=0 must be an integer >= 1"),
        ("jaxrl:TwoStep?repeat=3", "jaxrl:TwoStep has no option 'repeat'.* It takes none."),
        ("jaxrl:SwitchRiddle?agents=1", "jaxrl:SwitchRiddle: option agents=1 must be an integer >= 2: one agent has 4 − 6 days"),
    ],
)
def test_wrong_options_of_games_are_refused(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(env_id)
