"""MuZero: distributions, targets and loss against NumPy, search with a known model, reanalysis, games, bad input."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrl
from jaxrl.algorithms.common.planning.latent_loss import muzero_loss
from jaxrl.algorithms.common.planning.latent_model import (
    ENDS,
    OTHER_PLAYER,
    SAME_PLAYER,
    LatentModel,
    LatentParams,
    Support,
    to_unit,
    turn_values,
)
from jaxrl.algorithms.common.planning.model_targets import Searched, Targets, targets
from jaxrl.algorithms.common.planning.tree_search import Gumbel
from jaxrl.algorithms.common.value_rescaling import Rescale
from jaxrl.algorithms.muzero import make_muzero, reanalyzed, search_all
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import latent_dynamics, q_network, representation
from jaxrl.models.dynamics.latent import DynamicsOutput, PredictionOutput
from jaxrl.replay.sequence import Sequences, sequences
from jaxrl.rollout.collect import collect
from jaxrl.rollout.inputs import example_input, without_history
from jaxrl.training import evaluate_pure, run_iterations
from jaxrl.types import Model, StepInput
from tests.helpers import probes
from tests.helpers.agents import Tiny, small

SMALL = {"hidden_sizes": (8,), "latent_size": 4}
TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 8,
        "batch_size": 16,
        "buffer_size": 128,
        "replay_ratio": 1.0,
        "learning_starts": 32,
        "simulations": 4,
        "unroll_steps": 2,
        "n_step": 3,
        "num_bins": 11,
        "anneal": False,
        "model": SMALL,
    },
    value=lambda agent, learner, inputs: setup_of(agent).model.apply(learner.params, (), inputs)[1].value,
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 32}),
)
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
GAMMA = 0.9


def setup_of(agent: Any) -> Any:
    return agent.algorithm.observe.args[0]


# --------------------------------------------------------------------------------------------------------------- distributions


@pytest.mark.parametrize("rescale", [None, Rescale(eps=0.01)], ids=["plain", "sqrt"])
def test_two_bins_share_a_value(rescale: Any) -> None:
    """And their mean is the value, for any within the limit; values beyond it are those of the last bins."""
    support = Support(20.0, 7, rescale)
    h = (lambda x: x) if rescale is None else lambda x: np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 0.01 * x
    bins = np.linspace(-h(20.0), h(20.0), 7)
    np.testing.assert_allclose(support.bins, bins, rtol=1e-5)
    values = np.array([[-20.0, -3.3, 0.0], [0.7, 19.0, 50.0]], np.float32)
    probabilities = np.asarray(support.encode(jnp.asarray(values)))
    assert probabilities.shape == (2, 3, 7)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-5)
    assert ((probabilities > 1e-6).sum(-1) <= 2).all()
    np.testing.assert_allclose((probabilities * bins).sum(-1), np.clip(h(values), bins[0], bins[-1]), rtol=1e-4, atol=1e-5)
    back = support.decode(jnp.log(jnp.maximum(probabilities, 1e-30)))
    np.testing.assert_allclose(back, np.clip(values, -20, 20), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rescale", [None, Rescale(eps=0.01)])
def test_a_normal_distribution_around_a_value_has_its_mean(rescale: Any) -> None:
    """HL-Gauss: the mass of each bin against SciPy's, and back to the value, unless it is near the limit."""
    support = Support(20.0, 41, rescale, sigma=0.75)
    h = (lambda x: x) if rescale is None else lambda x: np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 0.01 * x
    values, width = np.array([[-12.0, -3.3], [0.7, 15.0]], np.float32), 2 * h(20.0) / 40
    edges = h(20.0) * np.linspace(-1, 1, 41)[:, None, None] + width * np.array([-0.5, 0.5])[:, None, None, None]
    low, high = (scipy.stats.norm(h(values), 0.75 * width).cdf(x) for x in edges)
    probabilities = np.asarray(support.encode(jnp.asarray(values)))
    np.testing.assert_allclose(probabilities, np.moveaxis(high - low, 0, -1), atol=1e-4)
    np.testing.assert_allclose(support.decode(jnp.log(jnp.maximum(probabilities, 1e-30))), values, rtol=2e-3, atol=1e-3)
    beyond = np.asarray(support.encode(jnp.float32([20.0, 99.0])))
    np.testing.assert_allclose(beyond.sum(-1), 1.0, rtol=1e-5)
    assert np.isfinite(beyond).all() and (beyond.argmax(-1) == 40).all()


def test_latent_states_are_scaled_to_the_unit_interval() -> None:
    state = to_unit(jnp.array([[-3.0, 1.0, 5.0], [2.0, 2.0, 2.0]]))
    np.testing.assert_allclose(state, [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]])


def test_what_follows_is_an_expected_factor() -> None:
    """0 for an end, 1 for the same player, −1 for the other."""
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    assert turn_values(jnp.asarray(logits)) == pytest.approx(0.1, abs=1e-6)
    assert turn_values(jnp.asarray(np.log(np.array([0.25, 0.75], np.float32)))) == pytest.approx(0.75, abs=1e-6)


# --------------------------------------------------------------------------------------------------------------------- targets

STEPS, N_STEP = 3, 2
LENGTH = STEPS + N_STEP


def window(*, terminated: int | None = None, truncated: int | None = None, players: Any = None) -> tuple[Sequences, Searched]:
    """Return a drawn sequence [LENGTH, 1] that ends at a row, and what searches found. Rows have rewards 1, 2, 3, …"""
    rows, flag = np.arange(LENGTH), np.zeros(LENGTH, bool)
    end = terminated if truncated is None else truncated
    valid = flag == (rows == (LENGTH if end is None else end + 1))
    column = lambda x: jnp.asarray(x)[:, None]  # noqa: E731
    obs: Any = {"observation": jnp.zeros((LENGTH + 1, 1, 1))}
    if players is not None:
        obs["player"] = column(np.array(players))
    batch = Sequences(
        without_history(obs, jnp.zeros((LENGTH + 1, 1))),
        column(rows % 2),
        column(np.where(valid, rows + 1.0, 0.0).astype(np.float32)),
        column(rows == (-1 if terminated is None else terminated)),
        column(rows == (-1 if truncated is None else truncated)),
        column(valid),
        carry=(),
        weight=jnp.ones(1),
    )
    policy = np.eye(2, dtype=np.float32)[np.arange(LENGTH + 1) % 2][:, None]
    return batch, Searched(jnp.asarray(policy), column(10.0 * np.arange(LENGTH + 1, dtype=np.float32)))


def wanted(**ends: Any) -> Targets:
    batch, found = window(**ends)
    find = jit(partial(targets, gamma=GAMMA, steps=STEPS, n_step=N_STEP))
    return jax.tree.map(lambda x: np.asarray(x)[:, 0], find(batch, found))


def test_targets_within_an_episode() -> None:
    target = wanted()
    returns = [(t + 1) + GAMMA * (t + 2) + GAMMA**2 * 10 * (t + 2) for t in range(STEPS + 1)]
    np.testing.assert_allclose(target.value, returns, rtol=1e-5)
    np.testing.assert_allclose(target.reward, [1, 2, 3])
    assert target.turn.tolist() == [SAME_PLAYER] * 3
    assert target.policy.argmax(-1).tolist() == [0, 1, 0, 1]
    assert target.in_episode.all() and target.known.all()


def test_targets_beyond_a_termination_are_absorbing() -> None:
    """Row 1 ends the episode: what follows has no value, no reward and no policy to learn."""
    target = wanted(terminated=1)
    np.testing.assert_allclose(target.value, [1 + GAMMA * 2, 2, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(target.reward, [1, 2, 0])
    assert target.turn.tolist() == [SAME_PLAYER, ENDS, ENDS]
    assert target.in_episode.tolist() == [True, True, False, False]
    assert target.known.all()


def test_nothing_is_known_beyond_a_truncation() -> None:
    """Row 1 is the last: the return bootstraps from the value reached, and the steps after it enter no loss."""
    target = wanted(truncated=1)
    np.testing.assert_allclose(target.value[:2], [1 + GAMMA * 2 + GAMMA**2 * 20, 2 + GAMMA * 20], rtol=1e-5)
    assert target.turn.tolist()[:2] == [SAME_PLAYER, SAME_PLAYER]
    assert target.in_episode.tolist() == target.known.tolist() == [True, True, False, False]


def test_targets_of_games_have_the_sign_of_the_player() -> None:
    """Players 0, 1, 1, 0, 1, 0 move; a reward belongs to the player that moved."""
    target = wanted(players=[0, 1, 1, 0, 1, 0])
    assert target.turn.tolist() == [OTHER_PLAYER, SAME_PLAYER, OTHER_PLAYER]
    returns = [1 - GAMMA * 2 - GAMMA**2 * 20, 2 + GAMMA * 3 - GAMMA**2 * 30, 3 - GAMMA * 4 + GAMMA**2 * 40]
    np.testing.assert_allclose(target.value, [*returns, 4 - GAMMA * 5 + GAMMA**2 * 50], rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------------------ loss

BINS = 5
SUPPORT = Support(4.0, BINS, None)


def linear_model(actions: int = 2, size: int = 3, turns: int = 2) -> LatentModel:
    """Return networks that are matrices, with parameters under the names of their outputs."""

    def model(forward: Any) -> Model:
        apply = lambda params, carry, inputs, key=None: (carry, forward(params, inputs.obs))  # noqa: E731
        return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]

    def dynamics(params: Any, pair: Any) -> DynamicsOutput:
        x = jnp.concatenate([pair[0], jax.nn.one_hot(pair[1], actions)], -1)
        return DynamicsOutput(x @ params["state"], x @ params["reward"], x @ params["turn"])

    predict = lambda params, x: PredictionOutput(x @ params["logits"], x @ params["value"])  # noqa: E731
    space: Any = jaxrl.make_env("CartPole-v1").action_space
    return LatentModel(model(lambda params, obs: obs @ params["state"]), model(dynamics), model(predict), SUPPORT, space)


def linear_params(rng: np.random.Generator, features: int = 4, actions: int = 2, size: int = 3) -> Any:
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    dynamics = {"state": draw(size + actions, size), "reward": draw(size + actions, BINS), "turn": draw(size + actions, 2)}
    return LatentParams({"state": draw(features, size)}, dynamics, {"logits": draw(size, actions), "value": draw(size, BINS)})


def unit(x: np.ndarray) -> np.ndarray:
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    return (x - low) / (high - low)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def two_bins(x: float) -> np.ndarray:
    place = np.clip(x, -4, 4) / 2 + 2
    low = min(int(np.floor(place)), BINS - 2)
    probabilities = np.zeros(BINS)
    probabilities[low], probabilities[low + 1] = 1 - (place - low), place - low
    return probabilities


def drawn(rng: np.random.Generator, number: int = 5) -> tuple[Sequences, Targets]:
    obs = rng.normal(size=(LENGTH + 1, number, 4)).astype(np.float32)
    inputs = without_history(jnp.asarray(obs), jnp.zeros((LENGTH + 1, number)))
    action = jnp.asarray(rng.integers(0, 2, (LENGTH, number)).astype(np.int32))
    in_episode = np.cumprod(rng.random((STEPS + 1, number)) < 0.8, axis=0).astype(bool)
    in_episode[:, 0] = True
    known = in_episode | (np.arange(number) == 1)
    target = Targets(
        rng.dirichlet(np.ones(2), (STEPS + 1, number)).astype(np.float32),
        rng.normal(size=(STEPS + 1, number)).astype(np.float32) * 2,
        rng.normal(size=(STEPS, number)).astype(np.float32),
        rng.integers(0, 2, (STEPS, number)).astype(np.int32),
        in_episode,
        known,
    )
    nothing = jnp.zeros((LENGTH, number))
    weight = jnp.asarray(rng.random(number).astype(np.float32))
    return Sequences(inputs, action, nothing, nothing > 0, nothing > 0, nothing == 0, (), weight), target


def test_loss_against_numpy() -> None:
    rng = np.random.default_rng(0)
    params, (batch, target) = linear_params(rng), drawn(rng)
    loss, logged = jit(lambda *args: muzero_loss(linear_model(), 0.3, *args, None))(params, batch, target)

    total, values = [], []
    for i in range(5):
        state = unit(np.asarray(batch.inputs.obs)[0, i] @ params.representation["state"])
        each, weights = 0.0, [1.0] + [1 / STEPS] * STEPS
        for k in range(STEPS + 1):
            prior, value = (log_softmax(state @ params.prediction[name]) for name in ("logits", "value"))
            if target.in_episode[k, i]:
                each -= weights[k] * (target.policy[k, i] @ prior)
            if target.known[k, i]:
                each -= weights[k] * 0.3 * (two_bins(target.value[k, i]) @ value)
            if k == 0:
                values.append(np.exp(value) @ np.linspace(-4, 4, BINS))
            if k < STEPS:
                x = np.concatenate([state, np.eye(2)[int(batch.action[k, i])]])
                if target.known[k, i]:
                    each -= two_bins(target.reward[k, i]) @ log_softmax(x @ params.dynamics["reward"]) / STEPS
                    each -= log_softmax(x @ params.dynamics["turn"])[target.turn[k, i]] / STEPS
                state = unit(x @ params.dynamics["state"])
        total.append(each * float(batch.weight[i]))
    valid = target.in_episode[0]
    assert 0 < valid.sum() < 5
    assert float(loss) == pytest.approx(np.array(total)[valid].mean(), rel=1e-4)
    priorities = np.where(valid, np.abs(np.array(values) - target.value[0]), 0.0)
    np.testing.assert_allclose(logged[PRIORITIES], priorities, rtol=1e-4, atol=1e-5)


def test_each_step_of_the_model_halves_the_gradient() -> None:
    """The loss of the reward at step K reaches the representation through K halvings."""
    rng = np.random.default_rng(1)
    model, params, (batch, target) = linear_model(), linear_params(rng), drawn(rng)
    nothing = jnp.zeros_like(target.known)

    def plain(state: Any) -> Any:
        """Unroll without halving, and return the loss of the last reward."""
        for k in range(STEPS):
            output = model.step(params, state, batch.action[k])
            state = output.state
        chosen = SUPPORT.encode(jnp.asarray(target.reward[STEPS - 1]))
        return -(chosen * jax.nn.log_softmax(output.reward)).sum(-1).mean() / STEPS

    def whole(kernel: Any) -> Any:
        changed = params._replace(representation={"state": kernel})
        only = target._replace(in_episode=nothing.at[0].set(True), known=nothing.at[STEPS - 1].set(True))
        only = only._replace(policy=jnp.zeros_like(only.policy), turn=jnp.full_like(only.turn, 2))
        unweighted = batch._replace(weight=jnp.ones_like(batch.weight))
        return muzero_loss(model, 0.0, changed, unweighted, only, None)[0]

    kernel = params.representation["state"]
    inputs = jax.tree.map(lambda x: x[0], batch.inputs)
    expected = jit(jax.grad(lambda kernel: plain(model.represent(params._replace(representation={"state": kernel}), inputs))))
    np.testing.assert_allclose(jit(jax.grad(whole))(kernel), expected(kernel) / 2**STEPS, rtol=1e-3, atol=1e-7)


# ---------------------------------------------------------------------------------------------------------- search, reanalysis


def known_model(rewards: Any) -> LatentModel:
    """Return a model of a bandit: one action gives its reward and ends the episode."""
    model = linear_model()

    def dynamics(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        state, action = inputs.obs
        reward = jnp.log(jnp.maximum(SUPPORT.encode(jnp.asarray(rewards)[action]), 1e-9))
        return carry, DynamicsOutput(state, reward, jnp.broadcast_to(jnp.array([9.0, -9.0]), (*action.shape, 2)))

    def prediction(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        shape = inputs.obs.shape[:-1]
        return carry, PredictionOutput(jnp.zeros((*shape, 2)), SUPPORT.encode(jnp.full(shape, 3.0)))

    functions = lambda apply: Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]  # noqa: E731
    return dataclasses.replace(model, dynamics=functions(dynamics), prediction=functions(prediction))


@pytest.mark.parametrize("options", [{}, pytest.param({"search": Gumbel()}, marks=pytest.mark.slow)], ids=["puct", "gumbel"])
def test_search_follows_the_model(options: Any) -> None:
    """The action with the larger reward is chosen, and values beyond the end are left out."""
    agent = small("muzero", "CartPole-v1", simulations=16, **options)
    for rewards in ([1.0, -1.0], [-2.0, 1.5]):
        setup = dataclasses.replace(setup_of(agent), latent=known_model(np.array(rewards, np.float32)))
        inputs = without_history(jnp.ones((3, 4)), jnp.zeros(3))
        params = linear_params(np.random.default_rng(0))
        run = partial(search_all, setup, params, GAMMA, inputs, explore=False)
        found = jit(lambda keys, run=run: run(keys=keys))(jax.random.split(KEY(), 3))
        assert found.action.tolist() == [int(np.argmax(rewards))] * 3
        np.testing.assert_allclose(found.value, max(rewards), rtol=0.02)
        assert (found.policy.argmax(-1) == np.argmax(rewards)).all()


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "stored"])
def test_reanalysis_replaces_a_share_of_the_policies(fresh: bool) -> None:
    """By those of new searches; values are the network's, or those that were stored."""
    agent = small("muzero", "CartPole-v1", reanalyze=0.5, learning_starts=64, fresh_values=fresh, search=Gumbel())
    setup, config = setup_of(agent), setup_of(agent).config
    state = jit(lambda key: run_iterations(agent, agent.init(key), 2)[0])(KEY())

    def both(learner: Any) -> Any:
        draw = setup.replay.draw(learner.replay, KEY(), 8)
        batch = sequences(setup.replay, learner.replay, draw, config.rows_after)
        other = jax.tree.map(lambda x: x + 0.1, learner.params)
        values = setup.latent.act(other, (), batch.inputs)[1].value
        return batch, reanalyzed(setup, other, jnp.float32(GAMMA), batch, KEY()), values

    batch, found, values = jax.device_get(jit(both)(state.learner))
    np.testing.assert_allclose(found.value, values if fresh else batch.extras.value, rtol=1e-4)
    assert (np.abs(values - batch.extras.value) > 1e-3).any()
    last = config.unroll_steps + 1
    changed = (np.abs(found.policy - batch.extras.policy) > 1e-6).any(-1)
    assert changed[:last].any(0).sum() == 4 and changed[:last].any(0)[4:].any()  # not always the first ones
    np.testing.assert_array_equal(changed, np.arange(len(changed))[:, None] < last * changed.any(0))
    np.testing.assert_allclose(found.policy.sum(-1), 1.0, rtol=1e-4)


def test_rows_are_stored_with_what_searches_found() -> None:
    agent = small("muzero", "CartPole-v1", learning_starts=0)
    setup, state = setup_of(agent), jit(agent.init)(KEY())

    def stored(state: Any) -> Any:
        acting = agent.algorithm.policy(state.learner)
        _, rollout, _ = collect(agent.algorithm, agent.env, acting, state.actor, state.env_params, jnp.arange(4), KEY(), 8)  # type: ignore[arg-type]
        learner = agent.algorithm.observe(state.learner, rollout)
        draw = setup.replay.draw(learner.replay, KEY(), 16)
        return rollout, draw, sequences(setup.replay, learner.replay, draw, setup.config.rows_after)

    rollout, draw, batch = jax.device_get(jit(stored)(state))
    assert draw.valid.all() and len({*zip(draw.row.tolist(), draw.env.tolist(), strict=True)}) > 4
    for i, (row, env) in enumerate(zip(draw.row, draw.env, strict=True)):
        kept = slice(row, row + setup.config.rows_after + 1)
        np.testing.assert_array_equal(batch.extras.policy[:, i], rollout.extras.policy[kept, env])
        np.testing.assert_array_equal(batch.extras.value[:, i], rollout.extras.value[kept, env])
        np.testing.assert_array_equal(batch.inputs.obs[:, i], rollout.inputs.obs[kept, env])


# -------------------------------------------------------------------------------------------------------------------- learning


def trained(env: Any, iterations: int, **settings: Any) -> tuple[Any, Any, Any]:
    """Train a small agent; return it, its state and the returns of greedy episodes."""
    given: dict[str, Any] = {"num_envs": 8, "replay_ratio": 8.0, "buffer_size": 512, "learning_rate": 0.02, "gamma": GAMMA}
    agent = small("muzero", env, **{**given, "value_limit": 2.0, **settings})

    def train(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), iterations)
        return state, evaluate_pure(agent, state, key, 8).episodic_return

    return agent, *jit(train)(KEY())


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["uniform", "prioritized"])
def test_the_model_learns_rewards_ends_and_actions(replay: str) -> None:
    """On the probe whose reward depends on observation and action, and ends after one step."""
    mostly_random = {"learning_starts": 512, "buffer_size": 1024}
    agent, state, returns = trained(probes.action_by_observation(), 20, replay=replay, **mostly_random)
    assert returns.tolist() == [1.0] * 8
    latent, params = setup_of(agent).latent, state.learner.params
    inputs = example_input(agent.env.observation_space, agent.env.action_space)
    for sign in (-1.0, 1.0):
        output = latent.step(params, latent.represent(params, inputs._replace(obs=jnp.full((1, 1), sign))), jnp.array([1]))
        assert float(latent.support.decode(output.reward)[0]) == pytest.approx(sign, abs=0.3)
        assert float(turn_values(output.turn)[0]) < 0.1
        assert abs(float(latent.support.decode(latent.predict(params, output.state).value)[0])) < 0.3  # absorbing


@pytest.mark.slow
def test_values_see_through_time_limits() -> None:
    """A reward of 1 in every step of episodes that are only cut: V = 1 / (1 − γ) at γ = 0.5, and the model sees no end."""
    agent, state, _ = trained(probes.truncation(5), 40, gamma=0.5, learning_rate=0.01, value_limit=4.0)
    latent, params = setup_of(agent).latent, state.learner.params
    inputs = example_input(agent.env.observation_space, agent.env.action_space)
    first = latent.represent(params, inputs)
    assert float(latent.support.decode(latent.predict(params, first).value)[0]) == pytest.approx(2.0, abs=0.25)
    assert float(turn_values(latent.step(params, first, jnp.array([0])).turn)[0]) > 0.9


@pytest.mark.slow
def test_the_model_of_a_game_knows_whose_turn_follows() -> None:
    agent, state, _ = trained("jaxrl:TicTacToe", 40)
    latent, params = setup_of(agent).latent, state.learner.params
    inputs = example_input(agent.env.observation_space, agent.env.action_space)
    output = latent.step(params, latent.represent(params, inputs), jnp.array([4]))
    assert output.turn.shape == (1, 3)
    assert float(turn_values(output.turn)[0]) < -0.8


# ---------------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"model": {"core": "gru"}}, "representation takes no 'core'"),
        ({"dynamics": {"latent_size": 3}}, "dynamics={'latent_size': 3}: latent_dynamics takes no 'latent_size'"),
        ({"model": q_network, "dynamics": {}, "prediction": {}}, None),
        ({"dynamics": representation}, r"dynamics=representation: init\(key, inputs\) on the spaces"),
        ({"prediction": q_network}, "prediction=q_network must give PredictionOutput"),
        ({"prediction": 3}, "prediction=3 must be a jaxrl.Model"),
        ({"model": jaxrl.models.actor_critic}, r"model=actor_critic must give latent states f32\[batch, d\]"),
        ({"dynamics": partial(latent_dynamics, num_outputs=3)}, "must give DynamicsOutput"),
        ({"data": "file"}, r"make_muzero\(\) got an unknown keyword 'data'"),
    ],
)
def test_wrong_networks(keywords: Any, message: str | None) -> None:
    if message is None:  # any vectors are latent states
        assert setup_of(make_muzero("CartPole-v1", **keywords)).latent is not None
        return
    with pytest.raises(TypeError, match=message):
        make_muzero("CartPole-v1", **keywords)


def test_arguments_of_the_representation_apply_to_the_other_networks() -> None:
    """Those of layers do, those of images do not; a network's own arguments come first."""
    env = "jaxrl:ConnectFour"
    agent = make_muzero(
        env, model={"encoder": "minatar", "hidden_sizes": (16,), "latent_size": 8}, dynamics={"hidden_sizes": (4,)}
    )
    learner = jax.eval_shape(lambda key: agent.algorithm.init(key, agent.hyperparams), KEY())
    kernels = [params["params"]["torso"]["hidden_0"]["kernel"].shape for params in learner.params]
    assert [shape[1] for shape in kernels] == [16, 4, 16]
    assert kernels[1][0] == 8 + 7 and kernels[2][0] == 8
    assert jaxrl.build(agent.spec).spec == agent.spec
    assert jaxrl.build(agent.spec, learning_rate=0.1).spec["parts"] == agent.spec["parts"]


def test_a_small_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unroll_steps \+ n_step \+ 2 = 17 rows of each environment"):
        make_muzero("CartPole-v1", buffer_size=256, learning_starts=0, batch_size=16)


def test_a_share_that_is_no_whole_number_of_positions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reanalyze=0.1 of batch_size=128 is 12.8 positions, which must be a whole number"):
        make_muzero("CartPole-v1", reanalyze=0.1)
    make_muzero("CartPole-v1", reanalyze=0.07, batch_size=100, replay_ratio=100 / 8)  # 7.000000000000001


@pytest.mark.slow
def test_rows_of_a_file_lack_what_searches_found(tmp_path: Any) -> None:
    """Another algorithm learns from rows that MuZero stored; MuZero itself resumes from checkpoints."""
    agent, other = small("muzero", "CartPole-v1"), small("dqn", "CartPole-v1")
    state, empty = jit(agent.init)(KEY()), other.algorithm.init(KEY(), jax.tree.map(jnp.float32, other.hyperparams))
    jaxrl.save_replay(tmp_path / "rows.npz", state)
    loaded = jaxrl.load_replay(tmp_path / "rows.npz", other, empty)
    assert int(loaded.replay.size) == int(state.learner.replay.size) > 0
    with pytest.raises(TypeError, match=r"^MuZero stores further values with its rows, .* resume from a checkpoint"):
        jaxrl.load_replay(tmp_path / "rows.npz", agent, state)


def test_inputs_without_history_are_zeros() -> None:
    inputs = without_history(jnp.ones((2, 3)), jnp.ones(2))
    assert isinstance(inputs, StepInput) and not inputs.is_first.any() and not inputs.prev_reward.any()
