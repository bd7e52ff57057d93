"""ES: members, budgets, returns that are NaN, seeds, spaces, probes, invalid settings. Its update is in ``test_es_update``."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.agent import with_total_steps
from jaxrl.distributions import Categorical
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.metrics import to_floats
from jaxrl.models import actor_critic, from_linen, greedy_policy
from jaxrl.options import LowRankNoise
from jaxrl.parallel import check_devices
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.inputs import example_input
from jaxrl.training import freezing, run_iterations
from jaxrl.types import Agent, Env, Model, TimeStep
from tests.helpers import probes
from tests.helpers.agents import Tiny, assert_bit_equal, assert_close, jitted, run_steps, small, to_numpy
from tests.helpers.networks import shapes_of_a_step, values_for
from tests.helpers.oracles.evolution import dense, member_params
from tests.helpers.probe_set import probe_set
from tests.helpers.walk import BOX_WALK, WALK, Ground, walked

SMALL_POLICY = partial(greedy_policy, hidden_sizes=(8,))

TINY = Tiny(
    settings={"members": 8, "episodes": 2, "horizon": 16, "model": SMALL_POLICY}, value=None, one_gradient=("CartPole-v1", {})
)

KEY = partial(jax.random.key, 0)
small_es: Any = partial(small, "es")
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
MEMBERS, EPISODES, ROWS = 8, 2, 16


@cache
def walker() -> Agent:
    """Linear policies with a large σ, so that members differ."""
    return small_es(WALK, model={"hidden_sizes": ()}, sigma=0.5)


@cache
def side_by_side() -> Any:
    """Return the step of several seeds, compiled once."""
    return jit(jax.vmap(walker().step))


# ------------------------------------------------------------------------------------------------------------------------ acting


def choice_of(kernel: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """Return obs -> action in NumPy."""
    return lambda seen: int(np.argmax(np.clip((seen - mean) / np.sqrt(variance + 1e-8), -10, 10) @ kernel + bias))


STARTS = np.linspace(-0.7, 0.7, MEMBERS).astype(np.float32)


@pytest.mark.parametrize("explore", [False, True])
def test_evaluation_plays_the_mean_and_exploring_a_member_in_each_environment(explore: bool) -> None:
    """Against NumPy, with statistics of observations that are not the initial ones."""
    agent, ground = walker(), Ground(start=STARTS, spread=0.0, noise=0.0)
    state = agent.init(KEY())
    moments = state.learner.statistics.observations._replace(mean=jnp.array([0.3, 0.5]), variance=jnp.array([0.2, 0.4]))
    learner = state.learner._replace(params=values_for(state.learner.params), version=jnp.int32(3))
    state = state._replace(learner=learner._replace(statistics=learner.statistics._replace(observations=moments)))
    policy = agent.algorithm.policy(state.learner)
    mean = jax.tree.map(lambda x: jnp.broadcast_to(x, (MEMBERS, *x.shape)), policy.params)
    layers = to_numpy(member_params(agent, policy, MEMBERS) if explore else mean)["params"]["head"]["logits"]
    policies = [choice_of(*layer, *moments[1:]) for layer in zip(layers["kernel"], layers["bias"], strict=True)]
    episodes = [walked(float(start), choose, 50) for start, choose in zip(STARTS, policies, strict=True)]
    found = jaxrl.evaluate(agent, state, KEY(), MEMBERS, explore=explore, env_params=ground, max_steps=50)
    assert found.episodic_length.tolist() == [x.episodic_length for x in episodes]
    assert found.finished.tolist() == [x.finished for x in episodes]
    np.testing.assert_allclose(found.episodic_return, [x.episodic_return for x in episodes], rtol=1e-4)
    assert len({x.episodic_length for x in episodes}) > 2


@pytest.mark.parametrize("noise", ["low_rank", pytest.param("normal", marks=pytest.mark.slow)])
def test_an_environment_has_the_actions_of_the_member_with_its_number(noise: str) -> None:
    """Modulo the number of members, also with memory; and the mean is another."""
    agent = small_es(BOX_WALK, noise=noise, sigma=0.5, model={"hidden_sizes": (8,), "core": "gru", "core_size": 4})
    algorithm, ids = agent.algorithm, jnp.array([5, 0, MEMBERS + 1, 7])
    policy, key = algorithm.policy(agent.init(KEY()).learner), KEY()
    inputs = first_input(jax.random.normal(KEY(), (4, 2)), agent.env.action_space, 4)
    carry = jnp.full((4, 4), 0.3)
    inputs = inputs._replace(is_first=jnp.array([True, False, False, False]))
    after, action, extras = jit(partial(algorithm.act, explore=True))(policy, carry, inputs, ids, key)
    assert extras == () and len(np.unique(action)) == 4
    for i, member in enumerate([5, 0, 1, 7]):
        own = algorithm.members(policy, jnp.int32(member))  # type: ignore[misc]
        expected = algorithm.act(own._replace(params=dense(own.params)), carry, inputs, ids, key, explore=False)
        np.testing.assert_allclose(action[i], expected[1][i], atol=1e-5)
        np.testing.assert_allclose(after[i], expected[0][i], atol=1e-5)
    _, mean, _ = algorithm.act(policy, carry, inputs, ids, key, explore=False)
    assert np.abs(mean - action).min() > 1e-3
    assert_bit_equal(mean, algorithm.act(policy, carry, inputs, ids + 3, jax.random.key(9), explore=False)[1])


def test_generations_have_new_members_and_new_draws() -> None:
    """Where nothing is learnt: draws, if actions have no effect, and members, if nothing is drawn."""
    for ground in (Ground(stride=0.0), Ground(spread=0.0, noise=0.0)):
        state, returns = walker().init(KEY(), {"learning_rate": 0.0}, ground), []
        for _ in range(3):
            state, metrics = jitted(walker().step)(state)
            returns.append(float(metrics["charts/episodic_return"].sum))
        assert len(set(returns)) == 3


# ------------------------------------------------------------------------------------------------------------------------ budget


def rows_of(metrics: Any) -> np.ndarray:
    return np.asarray(metrics["charts/valid_rows"].sum)


def test_a_spent_budget_freezes_the_state() -> None:
    """All bits but the number of the iteration, and metrics then count nothing. The last generation may exceed it."""
    agent = walker()
    state, budget, frozen = agent.init(KEY(), {"max_env_steps": 100}), 100, 0
    for generation in range(4):
        before, (state, metrics) = state, jitted(agent.step)(state)
        played = int(state.learner.rows - before.learner.rows)
        assert rows_of(metrics) == played and int(metrics["charts/valid_rows"].count) == MEMBERS * EPISODES * ROWS
        if int(before.learner.rows) < budget:
            assert played > 0 and int(state.learner.version) == generation + 1
            continue
        assert_bit_equal(state._replace(iteration=before.iteration), before)
        assert int(state.iteration) == generation + 1
        assert {name for name, x in to_floats(metrics).items() if x is not None} == {"charts/valid_rows"} and played == 0
        frozen += 1
    assert 0 < frozen < 3


def test_seeds_side_by_side_have_separate_budgets() -> None:
    """The first stops after one generation; the others play as they do alone."""
    agent, keys = walker(), jax.random.split(jax.random.key(1), 3)
    init = jax.vmap(lambda key, budget: agent.init(key, {"max_env_steps": budget}))
    states, counted = init(keys, jnp.array([1.0, 0.0, 120.0])), []
    for _ in range(3):
        states, metrics = side_by_side()(states)
        counted.append(rows_of(metrics))
    rows = np.stack(counted)
    assert rows[0].all() and not rows[1:, 0].any() and rows[:, 1].all() and rows[1, 2] and not rows[2, 2]
    np.testing.assert_array_equal(states.learner.rows, rows.sum(0))
    np.testing.assert_allclose(states.learner.statistics.observations.count, 1e-4 + rows.sum(0))
    assert states.learner.version.tolist() == [1, 3, 2] and states.iteration.tolist() == [3, 3, 3]
    for i, budget in enumerate([1, 0, 120]):
        alone, _ = run_steps(agent, agent.init(keys[i], {"max_env_steps": budget}), 3)
        assert_close(jax.tree.map(lambda x, i=i: x[i], states), alone)


# --------------------------------------------------------------------------------------------------------- returns that are NaN


def broken(always: bool = False) -> Env:
    """One step, whose reward is 1 for action 1 and NaN for action 0, or for both."""

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        reward = jnp.where(always | (action == 0), jnp.nan, 1.0)
        return state, TimeStep(jnp.zeros(1), reward, jnp.array(True), jnp.array(False))

    return probes.action_choice()._replace(step=step)


def test_a_nan_return_is_the_lowest_and_freezes_nothing() -> None:
    agent = freezing(small_es(broken(), members=16, sigma=0.5, learning_rate=0.3))
    carry, step, shares = (agent.init(KEY()), jnp.array(True)), jit(agent.step), []
    for _ in range(10):
        carry, metrics = step(carry)
        assert bool(carry[1])
        logged = to_floats(metrics)
        assert {logged[f"charts/episodic_return{x}"] for x in ("", "_min", "_max")} == {1.0}
        shares.append(int(metrics["charts/episodic_return"].count) / 32)
    state = carry[0]
    assert shares[0] < 0.8 and shares[-1] == 1 and int(state.learner.version) == 10
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(to_numpy(state.learner.params)))


@pytest.mark.parametrize("strategy", ["openai", "ars"])
def test_a_generation_of_nan_moves_nothing(strategy: str) -> None:
    agent = freezing(small_es(broken(always=True), strategy=strategy, weight_decay=0.0))
    (state, alive), metrics = jit(agent.step)((agent.init(KEY()), jnp.array(True)))
    assert bool(alive) and int(state.learner.rows) == MEMBERS * EPISODES
    assert_bit_equal(state.learner.params, agent.init(KEY()).learner.params)
    assert to_floats(metrics)["charts/episodic_return"] is None and to_floats(metrics)["losses/grad_norm"] == 0


# ------------------------------------------------------------------------------------------------------------------------- seeds


def test_seeds_and_hyperparameters_side_by_side_equal_each_alone() -> None:
    """σ, learning rate and weight decay are data: three generations of three seeds in one program."""
    agent, keys = walker(), jax.random.split(jax.random.key(2), 3)
    values = {"sigma": [0.5, 0.1, 2.0], "learning_rate": [0.03, 0.3, 0.0], "weight_decay": [0.005, 0.5, 0.1]}
    states = jax.vmap(agent.init)(keys, {name: jnp.array(x) for name, x in values.items()})
    for _ in range(3):
        states, metrics = side_by_side()(states)
    for i in range(3):
        alone, logged = run_steps(agent, agent.init(keys[i], {name: x[i] for name, x in values.items()}), 3)
        assert_close(jax.tree.map(lambda x, i=i: x[i], states), alone)
        one = jax.tree.map(lambda x, i=i: x[i], metrics)
        assert to_floats(one) == pytest.approx(to_floats(logged), rel=1e-4)
        assert to_floats(one)["charts/sigma"] == pytest.approx(values["sigma"][i])
    assert side_by_side()._cache_size() == 1 and jitted(agent.step)._cache_size() == 1
    assert_bit_equal(alone.learner.params, agent.init(keys[2]).learner.params)  # a learning rate of 0


# ------------------------------------------------------------------------------------------------------------------------ spaces


def acting_in(actions: spaces.Space, **settings: Any) -> np.ndarray:
    """Return the actions of 32 members with a large σ."""
    env = probes.constant_reward()._replace(action_space=actions)
    agent = small_es(env, members=32, sigma=2.0, **settings)
    inputs = first_input(jnp.ones((32, 1)), actions, 32)
    act = jit(partial(agent.algorithm.act, explore=True))
    action = np.asarray(act(agent.algorithm.policy(agent.init(KEY()).learner), (), inputs, jnp.arange(32), KEY())[1])
    assert all(actions.contains(each.astype(actions.dtype)) for each in action)
    assert action.dtype == (np.float32 if isinstance(actions, spaces.Box) else np.int32)
    return action


def test_actions_of_discrete_spaces() -> None:
    assert set(acting_in(spaces.Discrete(3)).tolist()) == {0, 1, 2}
    several = acting_in(spaces.MultiDiscrete([2, 3]))
    assert several.shape == (32, 2) and {tuple(x) for x in several.tolist()} == {(a, b) for a in range(2) for b in range(3)}


def test_actions_of_boxes_are_clipped_or_squashed() -> None:
    """A Box without bounds has the outputs themselves, and one with bounds on some sides is clipped there."""
    bounds = spaces.Box(np.array([0, -2], np.float32), np.array([4, -1], np.float32))
    clipped, squashed = acting_in(bounds), acting_in(bounds, model={"squash": True, "hidden_sizes": (8,)})
    at_bounds = [((x == bounds.low) | (x == bounds.high)).mean() for x in (clipped, squashed)]
    assert at_bounds[0] > 0.3 and at_bounds[1] < 0.1
    assert np.ptp(squashed, axis=0) == pytest.approx([4, 1], abs=0.1)
    free = acting_in(spaces.Box(-np.inf, np.inf, (2, 3), np.float32))
    assert free.shape == (32, 2, 3) and free.min() < -2 and free.max() > 2
    half = acting_in(spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 1], np.float32)))
    assert (half[:, 0] == 0).any() and half[:, 0].max() > 1 and (half[:, 1] == 1).any() and half[:, 1].min() < -1


def test_forbidden_actions_are_never_taken() -> None:
    """They cost 100. Statistics leave the mask and discrete parts out."""
    agent = small_es(probes.two_choices(), members=16, episodes=8, sigma=3.0)  # of both signs
    state, metrics = jit(agent.step)(agent.init(KEY()))
    assert float(metrics["charts/episodic_return_min"]) == 0 and float(metrics["charts/episodic_return_max"]) == 1
    observed = state.learner.statistics.observations
    assert observed.mean["action_mask"] is None and float(observed.count) == pytest.approx(128, rel=1e-4)
    assert abs(float(observed.mean["sign"][0])) < 0.9


def test_images_and_discrete_observations() -> None:
    """On shapes alone."""
    picture = spaces.Box(0, 255, (10, 10, 2), np.uint8)
    shape = spaces.Dict({"image": picture, "n": spaces.Discrete(3)})
    for space in (shape, spaces.Discrete(5)):
        seen = example_input(space, spaces.Discrete(2)).obs
        first = jax.tree.map(lambda x: x[0], seen)
        env = Env(
            lambda key, params: (jnp.zeros(()), first),  # noqa: B023
            lambda key, state, action, params: (state, TimeStep(first, jnp.ones(()), jnp.array(True), jnp.array(False))),  # noqa: B023
            space,
            spaces.Discrete(2),
        )
        agent = small_es(env, noise="low_rank")
        state, metrics = shapes_of_a_step(agent)
        before = jax.eval_shape(agent.init, KEY())
        assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), before)
        assert metrics["charts/episodic_return"].sum.shape == ()


# ------------------------------------------------------------------------------------------------------------------------ probes


@pytest.mark.parametrize("strategy", ["openai", pytest.param("ars", marks=pytest.mark.slow)])
def test_probes_of_actions_are_learnt(strategy: str) -> None:
    """The action that is always right, and the one that depends on the observation, in one program."""
    both = probe_set(probes.action_choice(), probes.action_by_observation())
    agent = small_es(both, strategy=strategy, members=32, episodes=8, horizon=1, learning_rate=0.2, sigma=0.3)

    def run(which: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(KEY(), None, which), 15)
        seen = jnp.array([[-1.0], [0.0], [1.0]])
        inputs, policy = first_input(seen, both.action_space, 3), agent.algorithm.policy(state.learner)
        return agent.algorithm.act(policy, (), inputs, jnp.arange(3), KEY(), explore=False)[1], agent.step(state)[1]

    actions, metrics = jit(jax.vmap(run))(jnp.arange(2))
    assert actions[0, 1] == 1 and actions[1, [0, 2]].tolist() == [0, 1]
    returns = np.asarray(metrics["charts/episodic_return"].sum / metrics["charts/episodic_return"].count)
    assert (returns > 0.8).all()


@pytest.mark.parametrize("env", ["CartPole-v1", "jaxrl:Spread"])
def test_the_learning_rate_is_annealed_over_the_generations(env: str) -> None:
    """Also where environments have several agents, whose sizes count environments."""
    agent = small_es(env, members=4, episodes=1, horizon=5, learning_rate=0.03, anneal=True)
    setup = agent.algorithm.policy.args[0]  # type: ignore[attr-defined]
    learner = jit(agent.init)(KEY(), with_total_steps(agent, None, 10 * agent.steps_per_iteration)).learner
    rates = [float(setup.current(learner._replace(version=jnp.int32(n))).learning_rate) for n in (0, 5, 10)]
    np.testing.assert_allclose(rates, [0.03, 0.015, 0.0], atol=1e-8)


@pytest.mark.slow
def test_probe_target_action() -> None:
    """A Box: the action that earns most lies within its bounds."""
    agent = small_es(probes.target_action(), members=32, episodes=1, horizon=1, sigma=0.1, learning_rate=0.1)
    state, _ = jit(partial(run_iterations, agent))(agent.init(KEY()), 50)
    inputs = first_input(jnp.zeros((1, 1)), agent.env.action_space, 1)
    policy = agent.algorithm.policy(state.learner)
    action = agent.algorithm.act(policy, (), inputs, jnp.arange(1), KEY(), explore=False)[1]
    assert float(action[0, 0]) == pytest.approx(3.0, abs=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["normal", "low_rank"])
def test_a_gru_remembers_a_cue(noise: str) -> None:
    agent = small_es(
        probes.memory(),
        noise=noise,
        members=64,
        episodes=16,
        horizon=8,
        sigma=0.3,
        learning_rate=0.1,
        model={"hidden_sizes": (8,), "core": "gru", "core_size": 8},
    )
    state, _ = jit(partial(run_iterations, agent))(agent.init(KEY()), 60)
    assert float(jaxrl.evaluate(agent, state, KEY(), 256).episodic_return.mean()) > 0.95


# --------------------------------------------------------------------------------------------------------------- invalid settings


class Foreign(nn.Module):
    """A user's network, of flax's own layers."""

    @nn.compact
    def __call__(self, inputs: Any) -> Any:
        return Categorical(nn.Dense(2)(inputs.obs))


FOREIGN = from_linen(Foreign())


def gives(output: Any) -> Model:
    """Build a model with this output for each row."""
    whole = lambda inputs: jax.tree.map(lambda x: jnp.zeros((*inputs.is_first.shape, *x.shape)), output)  # noqa: E731
    apply = lambda params, carry, inputs, key=None: (carry, whole(inputs))  # noqa: E731
    return Model(lambda key, inputs: {"w": jnp.zeros(2)}, apply, apply, lambda batch_size: ())


ONE_STEP = "horizon must be given for tests.helpers.probes:constant_reward, which has no step limit: use horizon=1000"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"members": 7}, ValueError, "^members=7 must be even: members are pairs with opposite noise$"),
        ({"members": 0}, ValueError, "members=0 must be an integer >= 1"),
        ({"episodes": 0}, ValueError, "episodes=0 must be an integer >= 1"),
        ({"horizon": 0}, ValueError, f"^{ONE_STEP}$"),
        ({"horizon": -1}, ValueError, "horizon=-1 must be an integer >= 0"),
        (
            {"members": 2**20, "episodes": 2**8, "horizon": 2**8},
            ValueError,
            r"^members=1048576 \* episodes=256 \* horizon=256 is 68719476736 rows per iteration, .* 32 bits: use fewer$",
        ),
        (
            {"model": FOREIGN, "noise": "low_rank"},
            TypeError,
            "^noise='low_rank' needs the dense layers of jaxrl's networks, and model=.* fails with .*: use noise='normal'$",
        ),
        ({"model": gives(jnp.zeros(2))}, TypeError, r"^model=.* must give a Categorical of size 2 for Discrete\(2\); .* float32"),
        ({"model": gives(Categorical(jnp.zeros(3)))}, TypeError, r"must give a Categorical of size 2 .*float32\[1, 3\]"),
        ({"model": actor_critic}, TypeError, "^model=actor_critic must give a Categorical of size 2"),
        (
            {"strategy": {"name": "openai", "shaping": "rank"}},
            ValueError,
            "^strategy=OpenAI: shaping='rank' must be one of 'centered_rank'",
        ),
        ({"strategy": "cma"}, ValueError, "^strategy='cma' is unknown. Allowed: 'openai', 'ars' or 'evosax'.$"),
        ({"strategy": {"name": "ars", "elite_share": 0}}, ValueError, "^strategy=ARS: elite_share=0 is not allowed"),
        ({"noise": "gauss"}, ValueError, "^noise='gauss' is unknown. Allowed: 'normal', 'sign' or 'low_rank'.$"),
        ({"noise": {"name": "low_rank", "rank": 0}}, ValueError, "^noise=LowRankNoise: rank=0 must be an integer >= 1"),
        ({"sigma": 0}, ValueError, "^sigma=0 is not allowed"),
        ({"sigma_decay": 0.0}, ValueError, "^sigma_decay=0 is not allowed"),
        ({"max_env_steps": 0.5}, ValueError, "^max_env_steps=0.5 is not allowed: it must be an integer"),
        ({"max_env_steps": 2**31}, ValueError, "^max_env_steps=2.* is not allowed: it must be an integer in"),
        ({"num_envs": 4}, TypeError, r"^make_es\(\) got an unknown keyword 'num_envs'"),
        ({"gamma": 0.9}, TypeError, r"^make_es\(\) got an unknown keyword 'gamma'"),
        ({"normalize_observations": 1}, TypeError, "^normalize_observations=1 must be True or False"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_does_not_fit_is_said_in_one_line(settings: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        small_es(probes.constant_reward(), **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("env", "output", "message"),
    [
        (
            probes.two_choices(),
            Categorical(jnp.zeros(2)),
            r"must give a MultiCategorical of size \(2, 3\) for MultiDiscrete\(\[2 3",
        ),
        (
            probes.target_action(),
            Categorical(jnp.zeros(1)),
            r"must give actions f32\[batch, 1\] for Box\(0.0, 4.0, .*Categorical",
        ),
        (probes.target_action(), jnp.zeros(2), r"must give actions f32\[batch, 1\] for Box\(0.0, 4.0, .*float32\[1, 2\]"),
    ],
)
def test_outputs_for_other_spaces_are_refused(env: Env, output: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^model=.* {message}") as raised:
        small_es(env, model=gives(output))
    assert "\n" not in str(raised.value)


def test_a_custom_model_fits_with_other_noise() -> None:
    """A limit of the environment is the horizon by default."""
    assert small_es("Pendulum-v1", horizon=0).rollout_length == 200 and small_es("CartPole-v1", horizon=0).rollout_length == 500
    assert small_es("Pendulum-v1", horizon=0).spec["settings"]["horizon"] == 200  # a loaded policy has no environment to ask
    assert small_es(probes.constant_reward()._replace(max_episode_steps=9), horizon=0).rollout_length == 9
    assert small_es(probes.constant_reward()._replace(max_episode_steps=9), horizon=5).rollout_length == 5
    agent = small_es(probes.constant_reward(), model=FOREIGN, noise="sign")
    assert (agent.num_envs, agent.episodes, agent.steps_per_iteration) == (16, 2, 256)
    assert small_es(probes.constant_reward(), noise=LowRankNoise(rank=4)).spec["settings"]["noise"] == {
        "name": "low_rank",
        "rank": 4,
    }


def test_rollouts_are_refused() -> None:
    agent = walker()
    with pytest.raises(
        TypeError, match=r"^this algorithm learns from the episodes of a population, not from rollouts: use learn_f"
    ):
        agent.algorithm.update(None, None)  # type: ignore[arg-type]


def test_devices_have_equal_shares_of_pairs() -> None:
    with pytest.raises(ValueError, match=r"^members=6 must be a multiple of the number of devices, 4$"):
        check_devices(small_es(WALK, members=6), 4)
    with pytest.raises(
        ValueError, match=r"^each of 2 devices would have members=3, but members=3 must be even: members are pairs"
    ):
        check_devices(small_es(WALK, members=6), 2)
    check_devices(small_es(WALK, members=8), 2)


# ---------------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.learning
def test_cartpole_with_default_settings() -> None:
    """All of four seeds balance for 500 rows after 1M rows each, by greedy evaluation of 128 episodes at the end."""
    agent = jaxrl.make_es("CartPole-v1")

    def run(seed: Any) -> Any:
        state = agent.init(jax.random.key(seed), {"max_env_steps": 1_000_000})
        state, _ = run_iterations(agent, state, 40)
        return state.learner.rows, jaxrl.evaluate(agent, state, jax.random.key(100), 128).episodic_return.mean()

    rows, returns = jax.jit(jax.vmap(run))(jnp.arange(4))
    assert (rows >= 1_000_000).all() and (rows < 1_256_000).all()
    assert (returns == 500).all(), returns
