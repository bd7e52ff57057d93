"""AlphaZero: search with exact values, loss against NumPy, targets, symmetries, and games that it must not lose."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.alphazero import SearchSetup, make_alphazero
from jaxrl.algorithms.common.planning.search_loss import SearchedRow, alphazero_loss, reflected
from jaxrl.algorithms.common.planning.tree_search import PUCT, Gumbel, Node, search
from jaxrl.distributions import Categorical
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import ActorCriticOutput
from jaxrl.replay import Draw
from jaxrl.rollout.collect import collect, simulator_of
from jaxrl.rollout.inputs import example_input
from jaxrl.training import evaluate_pure, run_iterations
from jaxrl.types import Model
from tests.helpers import probes
from tests.helpers.agents import SMALL_ACTOR_CRITIC, Tiny, outputs_of, small
from tests.helpers.oracles.tic_tac_toe import Solved, lost, solved

TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 8,
        "batch_size": 16,
        "buffer_size": 128,
        "replay_ratio": 1.0,
        "learning_starts": 32,
        "simulations": 4,
        "anneal": False,
        "model": SMALL_ACTOR_CRITIC,
    },
    value=lambda agent, learner, inputs: outputs_of(agent, learner, inputs).value,
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 32}),
)
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
TIC_TAC_TOE = "jaxrl:TicTacToe"


@cache
def game() -> Any:
    return jaxrl.make_env(TIC_TAC_TOE)


# ---------------------------------------------------------------------------------------------------------------------- search


def exact_expand(table: Solved) -> Any:
    """Return ``Expand`` of Tic-tac-toe whose values are exact, and whose priors are equal for all allowed moves."""
    values = jnp.asarray(table.value, jnp.float32)

    def node(obs: Any, terminated: Any) -> Node:
        board = obs["observation"].reshape(9, 2)
        number = ((board[:, 0] + 2 * board[:, 1]) @ (3 ** jnp.arange(9))).astype(jnp.int32)
        return Node(jnp.where(obs["action_mask"] > 0, 0.0, -1e9), jnp.where(terminated, 0.0, values[number]))

    def expand(key: Any, state: Any, action: Any) -> Any:
        state, reached = game().step(key, state, action, ())
        return state, reached.reward, jnp.where(reached.terminated, 0.0, -1.0), node(reached.obs, reached.terminated)

    return node, expand


@pytest.mark.slow
@pytest.mark.parametrize("method", [Gumbel(), PUCT()], ids=lambda method: method.name)
def test_search_with_exact_values_finds_the_best_moves(method: Any) -> None:
    """In at least 95 % of all 4,520 positions, with a network that knows no move from another."""
    table = solved()
    node, expand = exact_expand(table)

    def best(state: Any, obs: Any, key: Any) -> Any:
        return search(method, expand, node(obs, False), state, obs, key, 64, explore=False)

    keys = jax.random.split(KEY(), len(table.best))
    found = jit(jax.vmap(best))(table.states, observations(table.states), keys)
    right = table.best[np.arange(len(table.best)), found.action]
    assert right.mean() >= 0.95
    # The values that the search found have the right sign where the game is decided.
    exact = table.value[table.number]
    decided = exact != 0
    assert (np.sign(found.value)[decided] == exact[decided]).mean() >= 0.95
    np.testing.assert_allclose(found.policy.sum(-1), 1.0, rtol=1e-4)
    assert not (found.policy * ~table.allowed).any()


def bandit(method: Any, rewards: np.ndarray, logits: np.ndarray, simulations: int, explore: bool = False) -> Any:
    """Search for the best of several actions with known rewards."""

    def expand(key: Any, position: Any, action: Any) -> Any:
        nothing = Node(jnp.zeros(len(rewards)), jnp.zeros(()))
        return position, jnp.asarray(rewards)[action], jnp.zeros(()), nothing

    node = Node(jnp.asarray(logits), jnp.asarray(float(rewards.mean())))
    run = partial(search, method, expand, node, jnp.zeros(()), (), simulations=simulations, explore=explore)
    return jit(jax.vmap(lambda key: run(key=key)))(jax.random.split(KEY(), 256))


def test_gumbel_search_improves_the_policy() -> None:
    """The value of the improved policy is at least that of the prior (Danihelka et al. 2022, section 3), with 4 simulations."""
    rng = np.random.default_rng(0)
    rewards, logits = rng.uniform(-1, 1, 6).astype(np.float32), rng.normal(size=6).astype(np.float32)
    prior = np.exp(logits) / np.exp(logits).sum()
    found = bandit(Gumbel(), rewards, logits, 4, explore=True)
    assert rewards[found.action].mean() > prior @ rewards + 0.1
    assert (np.asarray(found.policy) @ rewards > prior @ rewards).all()
    assert len(np.unique(found.action)) > 1  # it explores
    greedy = bandit(Gumbel(), rewards, logits, 32)
    assert (np.asarray(greedy.action) == rewards.argmax()).all()


@pytest.mark.slow
def test_searches_do_not_depend_on_their_batch() -> None:
    agent = small("alphazero", TIC_TAC_TOE)
    state = jit(agent.init)(KEY())
    policy, actor = agent.algorithm.policy(state.learner), state.actor

    @jit
    def act(actor: Any, ids: Any) -> Any:
        simulator = simulator_of(game(), actor.env_state, ())
        return agent.algorithm.act(policy, (), actor.input, ids, KEY(), explore=True, simulator=simulator)

    ids = jnp.arange(4)
    whole = act(actor, ids)
    for i in (1, 3):
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], actor)
        alone = act(one, ids[i : i + 1])
        assert alone[1][0] == whole[1][i]
        np.testing.assert_allclose(alone[2]["search_policy"][0], whole[2]["search_policy"][i], rtol=1e-4, atol=1e-6)


# --------------------------------------------------------------------------------------------------------------- loss, targets


def linear() -> Model:
    def apply(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        return carry, ActorCriticOutput(Categorical(inputs.obs @ params["w"]), inputs.obs @ params["v"])

    return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]


def test_loss_and_gradient_against_numpy() -> None:
    rng = np.random.default_rng(1)
    number, features, actions = 12, 3, 4
    params = {"w": rng.normal(size=(features, actions)).astype(np.float32), "v": rng.normal(size=features).astype(np.float32)}
    weights = rng.dirichlet(np.ones(actions), number).astype(np.float32)
    weights[0] = [1, 0, 0, 0]
    valid = np.arange(number) % 4 != 2
    obs, value = (rng.normal(size=size).astype(np.float32) for size in ((number, features), number))
    rows = SearchedRow(obs, weights, value, valid)
    env: Any = jaxrl.make_env("CartPole-v1")
    setup: Any = SearchSetup(env.observation_space, env.action_space, linear(), None, replay=None)  # type: ignore[arg-type]
    broken = rows._replace(obs=np.where(valid[:, None], rows.obs, np.nan))
    (loss, logged), gradient = jit(jax.value_and_grad(partial(alphazero_loss, setup, 0.7), has_aux=True))(params, broken)

    logits, value = obs @ params["w"], obs @ params["v"]
    log_prob = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    cross_entropy, error = -(weights * log_prob).sum(-1), (rows.value - value) ** 2
    assert loss == pytest.approx((cross_entropy + 0.7 * error)[valid].mean(), rel=1e-5)
    assert float(logged["losses/value_loss"]) == pytest.approx(error[valid].mean(), rel=1e-5)
    assert float(logged["losses/policy_loss"]) == pytest.approx(cross_entropy[valid].mean(), rel=1e-5)
    slope_w = rows.obs[valid].T @ (np.exp(log_prob) - weights)[valid] / valid.sum()
    slope_v = rows.obs[valid].T @ (2 * 0.7 * (value - rows.value))[valid] / valid.sum()
    np.testing.assert_allclose(gradient["w"], slope_w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient["v"], slope_v, rtol=1e-4, atol=1e-6)


def targets_of(agent: Any, learner: Any, rollout: Any) -> np.ndarray:
    """Return the targets of values that ``observe`` stores, f32[T, B]."""
    position, replay = int(learner.replay.position), agent.algorithm.observe.args[0].replay
    length, lanes = rollout.valid.shape
    rows, env = np.repeat(np.arange(position, position + length), lanes), np.tile(np.arange(lanes), length)
    drawn = Draw(*(jnp.asarray(x, jnp.int32) for x in (rows, env)), jnp.ones(rows.size), jnp.ones(rows.size, bool))
    stored = jit(lambda learner: replay.take(agent.algorithm.observe(learner, rollout).replay, drawn, 0).value)(learner)
    return np.asarray(stored).reshape(length, lanes)


def test_targets_are_outcomes_for_the_player_to_move() -> None:
    """Of finished games; games that go on bootstrap from the network's value."""
    agent = small("alphazero", TIC_TAC_TOE, num_envs=8, rollout_length=16, buffer_size=256, epsilon=0.0)
    state = jit(agent.init)(KEY())
    policy = agent.algorithm.policy(state.learner)
    gather = jit(lambda actor: collect(agent.algorithm, agent.env, policy, actor, (), jnp.arange(8), KEY(), 16))  # type: ignore[arg-type]
    _, rollout, _ = gather(state.actor)
    stored = targets_of(agent, state.learner, rollout)
    at_random = np.asarray(rollout.extras["at_random"])
    assert not at_random.any()
    player, ends = np.asarray(rollout.inputs.obs["player"]), np.asarray(rollout.terminated)
    checked = 0
    for lane in range(8):
        for end in np.flatnonzero(ends[:, lane]):
            start = max([t + 2 for t in np.flatnonzero(ends[:end, lane])], default=0)
            outcome = rollout.reward[end, lane]
            for t in range(start, end + 1):
                wanted = outcome if player[t, lane] == player[end, lane] else -outcome
                assert stored[t, lane] == pytest.approx(float(wanted), abs=1e-5)
                checked += 1
    assert checked > 40


@pytest.mark.slow
def test_targets_do_not_look_beyond_random_moves() -> None:
    """A random move's target is the value that its search found, and so is what the row before it bootstraps from."""
    agent = small("alphazero", TIC_TAC_TOE, num_envs=8, rollout_length=16, buffer_size=256, epsilon=0.5)
    state = jit(agent.init)(KEY())
    policy = agent.algorithm.policy(state.learner)
    _, rollout, _ = jit(lambda actor: collect(agent.algorithm, agent.env, policy, actor, (), jnp.arange(8), KEY(), 16))(
        state.actor
    )  # type: ignore[arg-type]
    target = targets_of(agent, state.learner, rollout)
    found, at_random = (np.asarray(rollout.extras[name]) for name in ("root_value", "at_random"))
    valid, ends = np.asarray(rollout.valid), np.asarray(rollout.terminated)
    assert 0.3 < at_random[valid].mean() < 0.7
    np.testing.assert_allclose(target[at_random & valid], found[at_random & valid], rtol=1e-5)
    before = np.zeros_like(at_random)
    before[:-1] = at_random[1:] & valid[1:]
    before &= valid & ~ends & ~at_random
    after = np.concatenate([found[1:], found[:1]])
    np.testing.assert_allclose(target[before], -after[before], rtol=1e-5)
    assert before.sum() > 10


def test_a_reflected_row_is_a_position_of_the_same_game() -> None:
    env = game()
    state, _ = env.reset(KEY(), ())
    for action in (0, 4, 5):
        state, reached = env.step(KEY(), state, jnp.int32(action), ())
    weights = jnp.arange(9.0)
    row = SearchedRow(reached.obs, weights, jnp.float32(0.5), jnp.array(True))
    seen = set()
    for i in range(64):
        other = reflected(env.symmetries, row, jax.random.key(i))
        free = 1 - np.asarray(other.obs["observation"]).reshape(9, 2).sum(-1)
        np.testing.assert_array_equal(other.obs["action_mask"], free)
        # What the search said of a square follows the square.
        for square in range(9):
            assert bool(free[square]) == bool(row.obs["action_mask"][int(other.policy[square])])
        seen.add(tuple(np.asarray(other.policy).tolist()))
        assert other.value == 0.5
    assert len(seen) == 8


# -------------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.slow
def test_an_environment_of_one_player() -> None:
    """The probe of action choice: the network learns what the search finds."""
    agent = small(
        "alphazero", probes.action_choice(), gamma=0.9, learning_rate=0.02, num_envs=8, replay_ratio=4.0, buffer_size=256
    )

    def train(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 20)
        return state, evaluate_pure(agent, state, key, 4).episodic_return

    state, returns = jit(train)(KEY())
    assert returns.tolist() == [1.0] * 4
    inputs = example_input(agent.env.observation_space, agent.env.action_space)
    output = outputs_of(agent, state.learner, inputs)
    assert output.policy.logits[0].argmax() == 1 and output.value[0] > 0.8


def test_without_a_simulator_the_network_acts() -> None:
    agent = small("alphazero", TIC_TAC_TOE)
    state = jit(agent.init)(KEY())
    policy = agent.algorithm.policy(state.learner)
    _, action, extras = agent.algorithm.act(policy, (), state.actor.input, jnp.arange(4), KEY(), explore=False)
    output = outputs_of(agent, state.learner, state.actor.input)
    np.testing.assert_array_equal(action, output.policy.mode())
    np.testing.assert_allclose(extras["root_value"], output.value, rtol=1e-6)


def observations(states: Any) -> Any:
    """Return the observations of positions of Tic-tac-toe, [N]."""
    own, other = (np.take_along_axis(states.stones, x[:, None, None], 1)[:, 0] for x in (states.player, 1 - states.player))
    board = np.stack([own, other], -1).reshape(-1, 3, 3, 2).astype(np.float32)
    return {"observation": board, "action_mask": (~(own | other)).astype(np.int8), "player": states.player}


def searched(agent: Any, learner: Any) -> Any:
    """Return the greedy moves of the agent, with search, in all positions."""
    table, env = solved(), game()
    number = len(table.best)
    first = example_input(env.observation_space, env.action_space)
    inputs = jax.tree.map(lambda x: jnp.broadcast_to(x[0], (number, *x.shape[1:])), first)._replace(
        obs=observations(table.states)
    )
    policy, simulator = agent.algorithm.policy(learner), simulator_of(env, table.states, ())
    ids = jnp.arange(number)
    return agent.algorithm.act(policy, (), inputs, ids, KEY(), explore=False, simulator=simulator)[1]


@pytest.mark.slow
def test_tic_tac_toe_is_never_lost() -> None:
    """Against every line of play, from both sides, for four seeds (greedy, 16 simulations)."""
    model = {"encoder": "flat", "hidden_sizes": (256, 256)}
    agent = make_alphazero(TIC_TAC_TOE, simulations=16, replay_ratio=8.0, model=model)

    def train(key: Any) -> Any:
        return run_iterations(agent, agent.init(key), 75)[0].learner

    learners = jax.jit(jax.vmap(train))(jax.random.split(KEY(), 4))
    moves = jax.jit(jax.vmap(partial(searched, agent)))(learners)
    table = solved()
    for each in np.asarray(moves):
        chosen = dict(zip(table.number.tolist(), each.tolist(), strict=True))
        assert [lost(chosen, side) for side in range(2)] == [0, 0]
        assert table.best[np.arange(len(each)), each].mean() >= 0.99


# ---------------------------------------------------------------------------------------------------------------------- errors


def test_environments_on_the_host_are_refused() -> None:
    agent = small("alphazero", "gymnasium:CartPole-v1")
    with pytest.raises(ValueError, match="AlphaZero plans with the environment itself, and gymnasium:CartPole-v1 is on the host"):
        jaxrl.run(agent, 64, quiet=True)
    with pytest.raises(ValueError, match="plans with the environment itself"):
        jaxrl.evaluate(agent, agent.init(KEY()), KEY(), 2)


def test_several_agents_are_refused() -> None:
    with pytest.raises(ValueError, match="AlphaZero plans for one agent or two players, and jaxrl:TwoStep has 2 agents"):
        make_alphazero("jaxrl:TwoStep")


def test_models_with_memory_are_refused() -> None:
    with pytest.raises(TypeError, match="learns from single rows, so its model must be memoryless"):
        make_alphazero(TIC_TAC_TOE, model={"core": "gru"})
    with pytest.raises(ValueError, match="use_previous=True has no effect: it learns from positions, without the moves before"):
        make_alphazero(TIC_TAC_TOE, model={"use_previous": True})
