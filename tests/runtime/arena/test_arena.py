"""Games of all pairs: sides, openings, results and ratings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.envs.builtin.line_games import LineGameState
from jaxrl.rollout.inputs import first_input
from jaxrl.runtime.arena.arena import arena, results_of
from jaxrl.runtime.arena.entrants import Entrant, look_ahead_entrant, random_entrant, random_outcome
from jaxrl.runtime.arena.games import play_games, schedule
from jaxrl.runtime.arena.ratings import intervals, ratings
from jaxrl.types import Env, TimeStep
from tests.helpers.agents import small
from tests.helpers.probes import two_players

TIC_TAC_TOE = "jaxrl:TicTacToe"
KEY = partial(jax.random.key, 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "ppo"
    agent = small("ppo", TIC_TAC_TOE)
    jaxrl.run(agent, 4 * agent.steps_per_iteration, out=folder, eval_episodes=2, tensorboard=False, quiet=True)
    return folder


# ----------------------------------------------------------------------------------------------------------------------- games


def test_each_pair_plays_both_sides_from_the_same_openings() -> None:
    plan = schedule(3, 4)
    games = list(zip(*(x.tolist() for x in plan), strict=True))
    assert games[:4] == [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)] and len(games) == len({*games}) == 12
    for i in range(3):
        for side in (plan.first, plan.second):
            assert (side == i).sum() == 4


def constant(action: int) -> Entrant:
    return Entrant(lambda policy, carry, inputs, state, game, key: (carry, jnp.full_like(game, action)))


def test_the_player_to_move_decides() -> None:
    """Player 0 moves first and player 1 twice, so the payoffs of ``two_players`` tell who moved when."""
    env, plan = two_players(), schedule(2, 2)
    entrants = [constant(0), constant(1)]
    played = play_games(env, entrants, [(), ()], plan, KEY(), opening_moves=0)
    # Player 0 gets the opposite of what player 1 gets: of payoffs[0][1] as "zero", and of payoffs[1][0] as "one".
    assert played.episodic_return.tolist() == [1.0, 1.0] and played.episodic_length.tolist() == [3, 3]
    found = results_of(["zero", "one"], np.asarray(played.episodic_return), plan.first, plan.second)
    assert found.wins.tolist() == [[0, 1], [1, 0]] and found.losses.tolist() == [[0, 1], [1, 0]] and not found.draws.any()


def test_openings_are_the_same_for_all_pairs() -> None:
    """Moves that all take alike make equal games of equal openings, and the openings differ."""
    env: Any = jaxrl.make_env(TIC_TAC_TOE)

    def first_free(policy: Any, carry: Any, inputs: Any, state: Any, game: Any, key: Any) -> Any:
        return carry, jnp.argmax(inputs.obs["action_mask"], -1).astype(jnp.int32)

    entrants, plan = [Entrant(first_free) for _ in "abc"], schedule(3, 16)
    played = jax.jit(partial(play_games, env, entrants, games=plan, opening_moves=3))([(), (), ()], key=KEY())
    results: dict[int, set[tuple[float, int]]] = {}
    for opening, result, length in zip(plan.opening, *map(np.asarray, played[:2]), strict=True):
        results.setdefault(int(opening), set()).add((float(result), int(length)))
    assert len(results) == 8 and all(len(each) == 1 for each in results.values())
    assert len({*map(frozenset, results.values())}) > 1


def test_carries_belong_to_their_games() -> None:
    """A player that counts its rows acts by the count, in all of its games alike."""
    env = two_players()

    def counts(policy: Any, carry: Any, inputs: Any, state: Any, game: Any, key: Any) -> Any:
        return carry + 1, (carry == 0).astype(jnp.int32)

    counting = Entrant(counts, (), lambda batch_size: jnp.zeros(batch_size, jnp.int32))
    played = play_games(env, [counting, constant(0)], [(), ()], schedule(2, 4), KEY(), opening_moves=0)
    # It opens with action 1 as player 0, and as player 1 it answers with action 0, since its count has begun.
    assert played.episodic_return.tolist() == [1.0, 1.0, -1.0, -1.0]


def test_players_without_training() -> None:
    found = arena(TIC_TAC_TOE, ["random", "one_ply", "two_ply"], games=200)
    assert found.names == ["random", "one_ply", "two_ply"]
    assert ((found.wins + found.draws + found.losses) == 200 * (1 - np.eye(3))).all()
    np.testing.assert_array_equal(found.wins, found.losses.T)
    assert found.score("one_ply", "random") > 0.6 and found.score("two_ply", "one_ply") > 0.6
    assert found.score("two_ply", "random") == pytest.approx(1 - found.score("random", "two_ply"))
    assert found.ratings[0] == 0 and 0 < found.ratings[1] < found.ratings[2]
    assert (found.intervals[:, 0] <= found.ratings).all() and (found.ratings <= found.intervals[:, 1]).all()
    again = arena(TIC_TAC_TOE, ["random", "one_ply", "two_ply"], games=200)
    np.testing.assert_array_equal(found.wins, again.wins)
    other = arena(TIC_TAC_TOE, ["random", "one_ply", "two_ply"], games=200, seed=1)
    assert (other.wins != found.wins).any()


@pytest.mark.slow
@pytest.mark.parametrize("again", [True, False])
def test_a_win_of_the_same_player_is_no_threat(again: bool) -> None:
    """After action 0 the next move wins: of the same player, or of the other."""

    def observe(state: Any) -> Any:
        return {"player": jnp.where(again, 0, jnp.minimum(state, 1)), "action_mask": jnp.ones(2, jnp.int8)}

    def reset(key: Any, params: Any) -> Any:
        return jnp.int32(0), observe(jnp.int32(0))

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        after = jnp.where(state == 0, 1 + action, state)
        return after, TimeStep(observe(after), jnp.where(state == 1, 1.0, 0.0), state > 0, jnp.array(False))

    seen = spaces.Dict({"player": spaces.Discrete(2), "action_mask": spaces.MultiBinary(2)})
    env = Env(reset, step, seen, spaces.Discrete(2), (), "double", players=2)
    state, obs = jax.vmap(reset, in_axes=(0, None))(jax.random.split(KEY(), 16), ())
    inputs = first_input(obs, env.action_space, 16)
    _, action = look_ahead_entrant(env, 2).act((), (), inputs, state, jnp.arange(16), KEY())
    assert action.tolist() == [0 if again else 1] * 16


def test_search_without_a_network() -> None:
    """It beats random play, and more simulations beat fewer."""
    found = arena(TIC_TAC_TOE, ["random", "mcts:5", "mcts:100"], games=60)
    assert found.score("mcts:100", "random") > 0.85 and found.score("mcts:100", "mcts:5") > 0.6
    for wrong in ("mcts:", "mcts:0", "mcts:x"):
        with pytest.raises(ValueError, match=f"player '{wrong}' must end with its number of simulations"):
            arena(TIC_TAC_TOE, ["random", wrong])


def test_the_outcome_of_random_games() -> None:
    """From the view of the player to move: the mean outcome is that of an exact calculation, and 0 if the game is over."""
    env: Any = jaxrl.make_env(TIC_TAC_TOE)
    # The first player has squares 0, 1, 4 and 5, the second 2, 3, 6; it is the second one's move, with 7 and 8 free.
    stones = np.zeros((2, 9), bool)
    stones[0, [0, 1, 4, 5]], stones[1, [2, 3, 6]] = True, True
    state = LineGameState(jnp.asarray(stones), jnp.int32(1))
    _, obs = env.reset(KEY(), ())
    obs = {**obs, "action_mask": jnp.asarray(~stones.any(0), jnp.int8), "player": jnp.int32(1)}
    play = jax.jit(jax.vmap(lambda key, over: random_outcome(env, state, obs, over, key), in_axes=(0, None)))
    # 7 lets the first player take 8, which completes 0, 4, 8; after 8 it takes 7 and completes 1, 4, 7.
    assert np.asarray(play(jax.random.split(KEY(), 64), False)).tolist() == [-1.0] * 64
    assert not np.asarray(play(jax.random.split(KEY(), 4), True)).any()
    fresh, obs = env.reset(KEY(), ())
    from_start = jax.jit(jax.vmap(lambda key: random_outcome(env, fresh, obs, jnp.array(False), key)))
    assert float(from_start(jax.random.split(KEY(), 4_000)).mean()) == pytest.approx(0.585 - 0.288, abs=0.04)


def test_random_play_has_no_favourite() -> None:
    """Against itself by another name: half of the points, and each allowed move equally often."""
    found = arena("jaxrl:ConnectFour", {"a": "random", "b": "random"}, games=2_000)
    assert found.score("a", "b") == pytest.approx(0.5, abs=0.05)
    env: Any = jaxrl.make_env(TIC_TAC_TOE)
    _, obs = env.reset(KEY(), ())
    obs = {**obs, "action_mask": jnp.array([0, 1, 0, 0, 1, 0, 0, 1, 0], jnp.int8)}
    inputs: Any = jaxrl.StepInput(jax.tree.map(lambda x: jnp.broadcast_to(x, (900, *x.shape)), obs), 0, 0, 0)  # type: ignore[arg-type]
    _, action = random_entrant(env).act((), (), inputs, (), jnp.arange(900), KEY())
    count = np.bincount(action, minlength=9)
    assert count[[1, 4, 7]].sum() == 900 and (np.abs(count[[1, 4, 7]] - 300) < 60).all()


def test_random_play_is_rated_0_by_any_name() -> None:
    found = arena(TIC_TAC_TOE, {"random": "one_ply", "chance": "random"}, games=8)
    assert found.ratings[1] == 0 != found.ratings[0] and not found.intervals[1].any()
    with pytest.raises(ValueError, match=r"unknown player 'chanc'. Did you mean 'chance'"):
        found.score("random", "chanc")


def test_policies_play(trained: Path) -> None:
    agent = small("ppo", TIC_TAC_TOE)
    state = agent.init(KEY())
    recurrent = small("r2d2", TIC_TAC_TOE)
    policy = jaxrl.load_policy(trained, which="last")
    players = {"run": str(trained), "policy": policy, "state": (agent, state), "memory": (recurrent, recurrent.init(KEY()))}
    found = arena(TIC_TAC_TOE, players, games=8)
    # The same policy by two names: the one that begins wins as often.
    assert found.wins[0, 1] == found.losses[0, 1] and found.score("run", "state") == found.score("policy", "state")


@pytest.mark.slow
def test_policies_that_plan_search_unless_told_otherwise(tmp_path: Path) -> None:
    """A search finds the winning move, which a network that has not learnt does not."""
    agent = small("alphazero", TIC_TAC_TOE, simulations=32)
    jaxrl.run(agent, 2 * agent.steps_per_iteration, out=tmp_path / "az", eval_episodes=2, tensorboard=False, quiet=True)
    alone, searching = (jaxrl.load_policy(tmp_path / "az", search=search) for search in (False, True))
    players = {"run": str(tmp_path / "az"), "search": searching, "alone": alone, "random": "random"}
    found = arena(TIC_TAC_TOE, players, games=60)
    assert min(found.score(name, "random") for name in ("run", "search")) > 0.75 > found.score("alone", "random")

    env: Any = jaxrl.make_env(TIC_TAC_TOE)
    state, _ = env.reset(KEY(), ())
    for action in (0, 3, 1, 4):
        state, reached = env.step(KEY(), state, jnp.int32(action), ())
    assert searching(reached.obs, env_state=state) == 2  # completes the first row
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), (reached.obs, state))
    assert searching(batch[0], env_state=batch[1]).tolist() == [2, 2]
    for policy, given, fix in ((searching, None, "pass env_state=state"), (alone, state, "load it with search=True")):
        with pytest.raises(ValueError, match=fix):
            policy(reached.obs, env_state=given)


def test_search_has_no_effect_without_a_plan(trained: Path) -> None:
    with pytest.raises(ValueError, match="search=True has no effect: PPO does not plan with the environment"):
        jaxrl.load_policy(trained, search=True)


# --------------------------------------------------------------------------------------------------------------------- ratings


def test_ratings_are_the_likeliest() -> None:
    """Two players: the rating difference has a closed form, with one more draw. Three: expected points equal the points."""
    points, games = np.array([[0, 75.0], [25, 0]]), np.array([[0, 100], [100, 0]])
    share = (75 + 0.5) / 101
    assert ratings(points, games)[1] == pytest.approx(-400 * np.log10(share / (1 - share)))
    rng = np.random.default_rng(0)
    games = np.array([[0, 30, 50], [30, 0, 20], [50, 20, 0]])
    won = rng.integers(0, 20, (3, 3)) * (1 - np.eye(3))
    won = np.triu(won) + np.tril(games - np.triu(won).T) * (1 - np.eye(3))
    rated = ratings(won, games, anchor=2)
    assert rated[2] == 0
    chance = 1 / (1 + 10 ** ((rated[None] - rated[:, None]) / 400))
    expected = ((games + 1) * (1 - np.eye(3)) * chance).sum(1)
    np.testing.assert_allclose(expected, won.sum(1) + 1, rtol=1e-6)


def test_ratings_are_finite_if_one_wins_all() -> None:
    rated = ratings(np.array([[0, 1000.0], [0, 0]]), np.array([[0, 1000], [1000, 0]]))
    assert rated[0] == 0 and -1500 < rated[1] < -1000


def test_intervals_become_narrow_with_games() -> None:
    widths = []
    for number in (40, 4_000):
        results = np.tile([1.0, 1.0, 0.0, 0.5], number // 4)
        side = np.zeros(number, int)
        low, high = intervals(results, side, side + 1, 2)[1]
        assert low < ratings(np.array([[0, number * 0.625], [number * 0.375, 0]]), number * (1 - np.eye(2)))[1] < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 5


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "CartPole-v1", "players": ["random", "one_ply"]}, "CartPole-v1 is not a game of two players"),
        ({"players": ["random"]}, r"players=\['random'\] must be at least two"),
        ({"players": "random"}, "players='random' must be names -> players, or a sequence of players"),
        ({"players": ["random", "one_ply"], "games": 3}, "games=3 must be even"),
        ({"players": ["random", "one_ply"], "games": 0}, "games"),
        ({"players": ["random", "one_ply"], "opening_moves": -1}, "opening_moves"),
        (
            {"players": {"random": "random", "me": 3}},
            "player 'me' is 3: use 'random', 'one_ply', 'two_ply', 'mcts:100', the folder of a run",
        ),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        arena(**{"env": TIC_TAC_TOE, **arguments})


def test_players_of_another_game(trained: Path) -> None:
    with pytest.raises(ValueError, match=r"player 'run' was trained with observations .* and those of jaxrl:ConnectFour are"):
        arena("jaxrl:ConnectFour", {"run": trained, "random": "random"})
    with pytest.raises(FileNotFoundError):
        arena(TIC_TAC_TOE, ["random", "no/such/run"])
