"""MuZero: search with a known model, reanalysis, storing, learning, games, bad input."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.common.planning.latent_model import LatentModel, turn_values
from jaxrl.algorithms.common.planning.tree_search import Gumbel
from jaxrl.algorithms.muzero import make_muzero, reanalyzed, search_all
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import latent_dynamics, q_network, representation
from jaxrl.models.dynamics.latent import DynamicsOutput, PredictionOutput
from jaxrl.replay.sequence import sequences
from jaxrl.rollout.collect import collect
from jaxrl.rollout.inputs import example_input, without_history
from jaxrl.training import evaluate_pure, run_iterations
from jaxrl.types import Model, StepInput
from tests.helpers import probes
from tests.helpers.agents import Tiny, small
from tests.helpers.latent_models import SUPPORT, linear_model, linear_params

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


@pytest.mark.parametrize("name", ["dynamics", "prediction"])
def test_networks_of_latent_states_have_no_previous_action(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}={{'use_previous': True}} has no effect"):
        make_muzero("CartPole-v1", **{name: {"use_previous": True}})


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
