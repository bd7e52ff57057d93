"""MPC: learned dynamics, time limits, plans in the environment itself, whole programs, errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.algorithms.common.planning.dynamics import (
    predict,
)
from jaxrl.algorithms.mpc import make_mpc
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import dynamics_network
from jaxrl.options import CEM, MPPI, EnsembleDynamics, RandomShooting, SimulatorDynamics
from jaxrl.rollout.collect import collect, simulator_of
from jaxrl.training import evaluate_pure, run_iterations
from jaxrl.types import Env, TimeStep
from tests.helpers import probes
from tests.helpers.agents import Tiny, assert_bit_equal, assert_close, slow_unless, small

TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 8,
        "batch_size": 16,
        "buffer_size": 128,
        "replay_ratio": 1.0,
        "learning_starts": 32,
        "horizon": 3,
        "planner": CEM(candidates=8, iterations=2, elites=2),
        "dynamics": EnsembleDynamics(size=2),
        "anneal": False,
        "model": partial(dynamics_network, hidden_sizes=(8,)),
    },
    value=None,
    boxed=True,
)
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
PENDULUM = "Pendulum-v1"


# ------------------------------------------------------------------------------------------------------------ learned dynamics


def linear_system(end: float = 99.0, cut: int = 7) -> Env:
    """s′ = A·s + B·a + c, reward −s₀² + a; ends by termination at |s₀| > ``end``, cut after ``cut`` steps."""
    matrix = jnp.array([[0.9, 0.2], [-0.1, 0.8]])

    def reset(key: Any, params: Any) -> Any:
        obs = jax.random.uniform(key, (2,), minval=-1.0)
        return (obs, jnp.zeros((), jnp.int32)), obs

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        obs, t = state
        after = matrix @ obs + jnp.array([0.1, 0.5]) * action[0] + jnp.array([0.0, 0.1])
        reward = -(obs[0] ** 2) + action[0]
        return (after, t + 1), TimeStep(after, reward, jnp.abs(after[0]) > end, t + 1 >= cut)

    box = spaces.Box(-10.0, 10.0, (2,), np.float32)
    return Env(reset, step, box, spaces.Box(-2.0, 2.0, (1,), np.float32), name="linear")


def trained(env: Env, iterations: int = 30, **settings: Any) -> Any:
    sizes = {"num_envs": 8, "rollout_length": 16, "batch_size": 64, "replay_ratio": 16.0, "buffer_size": 4096}
    model = partial(dynamics_network, hidden_sizes=(32,))
    agent = small("mpc", env, **{**sizes, "learning_starts": 1024, "learning_rate": 3e-3, "model": model, **settings})
    state, metrics = jit(lambda key: run_iterations(agent, agent.init(key), iterations))(KEY())
    return agent, state, metrics


def prediction(agent: Any, learner: Any, obs: Any, action: Any) -> tuple[Any, Any, Any]:
    """Return the mean over networks of ``(next obs, reward, probability of the end)``, action in [−1, 1]."""
    setup, moments = agent.algorithm.observe.args[0], learner.statistics.targets
    every = lambda x: jnp.broadcast_to(x, (setup.config.dynamics.size, *x.shape))  # noqa: E731
    output = jit(partial(predict, setup.model))(learner.params, learner.statistics, every(obs), every(action))
    raw = np.asarray(moments.mean + np.sqrt(moments.variance) * output.mean).mean(0)
    return obs + raw[:, :-1], raw[:, -1], np.asarray(jax.nn.sigmoid(output.terminated)).mean(0)


@pytest.mark.slow
def test_the_networks_learn_a_linear_system_and_which_steps_end_it() -> None:
    """Episodes are cut after 7 steps, which no network must take for an end; reset rows are not learned from."""
    env = linear_system(end=1.2)
    agent, state, _ = trained(env)
    rng = np.random.default_rng(4)
    obs, action = rng.uniform(-0.8, 0.8, (64, 2)).astype(np.float32), rng.uniform(-1, 1, (64, 1)).astype(np.float32)
    step = jax.vmap(lambda obs, action: env.step(KEY(), (obs, jnp.zeros((), jnp.int32)), action, ())[1])
    reached = step(obs, 2.0 * action)
    after, reward, probability = prediction(agent, state.learner, obs, action)
    np.testing.assert_allclose(after, reached.obs, atol=0.08)
    assert np.corrcoef(reward, reached.reward)[0, 1] > 0.98
    assert probability.mean() < 0.05 and not reached.terminated.any()
    obs = np.stack([rng.uniform(0.7, 1.1, 64), rng.uniform(0.5, 1.5, 64)], -1).astype(np.float32)
    ends = np.asarray(step(obs, 2.0 * action).terminated)
    assert 10 < ends.sum() < 54
    assert ((prediction(agent, state.learner, obs, action)[2] > 0.5) == ends).mean() > 0.85


def test_truncation_is_no_termination() -> None:
    """Episodes that are only cut: the predicted probability of an end falls towards 0, as the statistics do not see resets."""
    agent, state, metrics = trained(linear_system(cut=3), 10)
    assert float(metrics["losses/termination_loss"]) < 0.2
    obs = np.zeros((1, 2), np.float32)
    assert prediction(agent, state.learner, obs, np.zeros((1, 1), np.float32))[2] < 0.05
    # Of 3 + 1 rows of each episode, the one of the reset does not count.
    rows = (10 + agent.algorithm.warmup_iterations) * agent.steps_per_iteration
    assert float(state.learner.statistics.targets.count) == pytest.approx(0.75 * rows, rel=0.02)


@pytest.mark.slow
def test_statistics_are_those_of_valid_rows() -> None:
    agent = small("mpc", linear_system(cut=3))
    state = jit(agent.init)(KEY())
    policy = agent.algorithm.policy(state.learner)
    gather = jit(lambda actor: collect(agent.algorithm, agent.env, policy, actor, (), jnp.arange(4), KEY(), 8))  # type: ignore[arg-type]
    _, rollout, _ = gather(state.actor)
    start = agent.algorithm.init(KEY(), state.learner.hyperparams)
    found = agent.algorithm.observe(start, rollout).statistics
    valid, obs = np.asarray(rollout.valid), np.asarray(rollout.inputs.obs)
    assert 0 < (~valid).sum() < valid.size
    changes = np.concatenate([obs[1:] - obs[:-1], np.asarray(rollout.reward)[..., None]], -1)[valid]
    np.testing.assert_allclose(found.targets.mean, changes.mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.targets.variance, changes.var(0), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(found.observations.mean, obs[:-1][valid].mean(0), rtol=1e-3, atol=1e-4)


def test_each_network_learns_from_draws_of_its_own() -> None:
    agent = small("mpc", linear_system())
    setup = agent.algorithm.observe.args[0]
    state = jit(agent.init)(KEY())
    drawn = jit(setup.draw)(state.learner)
    number = setup.config.updates_per_iteration
    assert len(drawn.row) == number * 2 * 16
    rows = np.asarray(drawn.row * 4 + drawn.env).reshape(number, 2, 16)
    assert (rows[:, 0] != rows[:, 1]).any(1).all()


def test_the_warm_up_acts_at_random_and_then_plans() -> None:
    agent = small("mpc", linear_system())
    state = jit(agent.init)(KEY())
    random = state.learner._replace(version=jnp.int32(0))
    ids, inputs = jnp.arange(4), state.actor.input

    @partial(jit, static_argnames="explore")
    def act(learner: Any, key: Any, explore: bool) -> Any:
        return agent.algorithm.act(agent.algorithm.policy(learner), state.actor.carry, inputs, ids, key, explore=explore)[1]

    many = np.stack([act(random, jax.random.key(i), explore=True) for i in range(40)])
    assert np.abs(many).max() <= 2.0 and np.quantile(np.abs(many), 0.5) == pytest.approx(1.0, abs=0.2)
    later = random._replace(version=jnp.int32(3))
    for explore in (True, False):
        np.testing.assert_array_equal(act(later, KEY(), explore), act(random, KEY(), explore=False))


# ----------------------------------------------------------------------------------------------------------------------- plans


def test_a_plan_is_carried_over_until_an_episode_starts() -> None:
    """The carry is the plan without its first action; the next plan starts from it, and from zeros in a new episode."""
    agent = small("mpc", linear_system(), planner=CEM(candidates=8, iterations=1, elites=2, deviation=1e-6, smoothing=0.0))
    state = jit(agent.init)(KEY())
    policy, ids = agent.algorithm.policy(state.learner), jnp.arange(4)
    carry = jnp.broadcast_to(jnp.array([[0.1], [0.2], [0.3]]), (4, 3, 1))
    first = state.actor.input._replace(is_first=jnp.array([False, True, False, True]))
    after, action, _ = jit(partial(agent.algorithm.act, explore=False))(policy, carry, first, ids, KEY())
    np.testing.assert_allclose(action[:, 0], 2.0 * np.array([0.1, 0, 0.1, 0]), atol=1e-4)  # the environment's units
    np.testing.assert_allclose(after[:, :, 0], [[0.2, 0.3, 0], [0, 0, 0], [0.2, 0.3, 0], [0, 0, 0]], atol=1e-4)
    assert agent.algorithm.initial_carry(4).shape == (4, 3, 1)


@pytest.mark.parametrize("dynamics", [EnsembleDynamics(size=2), SimulatorDynamics()], ids=lambda x: x.name)
def test_plans_do_not_depend_on_their_batch(dynamics: Any) -> None:
    learns = {} if dynamics.name == "simulator" else TINY.settings
    settings = {"num_envs": 4, "horizon": 3, "planner": TINY.settings["planner"]}
    agent = make_mpc(PENDULUM, **{**learns, **settings, "dynamics": dynamics})
    state = jit(agent.init)(KEY())
    policy, actor = agent.algorithm.policy(state.learner), state.actor

    @jit
    def act(actor: Any, ids: Any) -> Any:
        planning = {"simulator": simulator_of(agent.env, actor.env_state, agent.env.params)} if agent.algorithm.plans else {}  # type: ignore[arg-type, union-attr]
        return agent.algorithm.act(policy, actor.carry, actor.input, ids, KEY(), explore=True, **planning)[:2]

    whole = act(actor, jnp.arange(4))
    for i in (1, 3):
        alone = act(jax.tree.map(lambda x, i=i: x[i : i + 1], actor), jnp.arange(i, i + 1))
        assert_close(alone, jax.tree.map(lambda x, i=i: x[i : i + 1], whole))


# ------------------------------------------------------------------------------------------------------ the environment itself


@pytest.mark.parametrize(
    "planner",
    [
        pytest.param(planner, id=planner.name, marks=slow_unless(planner.name == "cem"))
        for planner in (RandomShooting(candidates=256), CEM(), MPPI(iterations=8))
    ],
)
def test_with_the_environment_itself_the_best_action_is_taken(planner: Any) -> None:
    """One step, reward −(a − 3)², a in [0, 4]. The horizon reaches beyond the end, where rewards do not count."""
    agent = make_mpc(probes.target_action(), dynamics=SimulatorDynamics(), planner=planner, num_envs=4, horizon=2)
    state, _ = run_iterations(agent, agent.init(KEY()), 1)
    returns = jit(lambda state: evaluate_pure(agent, state, KEY(), 4).episodic_return)(state)
    assert returns.min() > -0.05 and int(state.learner.version) == 1


def test_rewards_beyond_a_termination_do_not_count_and_beyond_a_truncation_do() -> None:
    """A step ends the episode if its action is positive; later rewards of the simulator are NaN, but 1 after a truncation."""

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        ended = state | (action[0] > 0)
        reward = jnp.where(state, jnp.nan, jnp.where(action[0] > 0, 1.5, 1.0))
        return ended, TimeStep(jnp.zeros(1), reward, ended, jnp.array(True))

    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    env = Env(lambda key, params: (jnp.array(False), jnp.zeros(1)), step, box, box, name="ends")
    planner = RandomShooting(candidates=256)
    for horizon, positive in ((1, True), (3, False)):
        agent = make_mpc(env, dynamics=SimulatorDynamics(), planner=planner, num_envs=2, horizon=horizon, gamma=1.0)
        state = agent.init(KEY())
        simulator = simulator_of(env, state.actor.env_state, ())
        _, action, _ = jit(partial(agent.algorithm.act, explore=False, simulator=simulator))(
            agent.algorithm.policy(state.learner), state.actor.carry, state.actor.input, jnp.arange(2), KEY()
        )
        assert ((action > 0) == positive).all()


def test_a_plan_does_not_see_what_the_environment_will_draw() -> None:
    """A coin decides which of two actions gives 1; the best that a plan can do is to be right in half of the steps."""

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        heads = jax.random.bernoulli(key)
        return state, TimeStep(jnp.zeros(1), ((action[0] > 0) == heads).astype(jnp.float32), jnp.array(True), jnp.array(False))

    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    env = Env(lambda key, params: (jnp.zeros(()), jnp.zeros(1)), step, box, box, name="coin")
    agent = make_mpc(env, dynamics="simulator", planner=RandomShooting(candidates=16), num_envs=8, horizon=1)
    returns = jit(lambda key: evaluate_pure(agent, agent.init(key), key, 256).episodic_return)(KEY())
    assert 0.35 < returns.mean() < 0.65


# -------------------------------------------------------------------------------------------------------------- whole programs


@pytest.mark.slow
def test_seeds_equal_those_alone_and_a_resumed_run_is_bit_equal(tmp_path: Any) -> None:
    agent = small("mpc", PENDULUM)
    step, both = jit(agent.step), jit(jax.vmap(agent.step))
    keys = jax.random.split(KEY(), 2)
    states = jit(jax.vmap(agent.init))(keys)
    alone = jit(agent.init)(keys[1])
    for _ in range(3):
        states, alone = both(states)[0], step(alone)[0]
    assert_close(jax.tree.map(lambda x: x[1], states), alone, atol=1e-4)
    jaxrl.save(tmp_path, alone, 3, spec=agent.spec)
    restored, _ = jaxrl.restore(tmp_path, jax.eval_shape(agent.init, KEY()))
    assert_bit_equal(step(restored), step(alone))


@pytest.mark.slow
def test_it_learns_on_the_host(tmp_path: Any) -> None:
    agent = small("mpc", "gymnasium:Pendulum-v1", reward=swing_cost)
    states, history = jaxrl.run(agent, 128, quiet=True, out=tmp_path / "run")
    assert np.isfinite(history["losses/dynamics_loss"][-1]).all() and int(states.learner.version[0]) > 1
    policy = jaxrl.load_policy(tmp_path / "run", trust="tests")
    assert policy(np.zeros(3, np.float32)).shape == (1,)


def swing_cost(obs: Any, action: Any, next_obs: Any) -> Any:
    """The reward of Pendulum, of the observation before the step."""
    angle = jnp.arctan2(obs[1], obs[0])
    return -(angle**2 + 0.1 * obs[2] ** 2 + 0.001 * action[0] ** 2)


@pytest.mark.slow
def test_a_policy_of_the_environment_itself_is_loaded_with_search(tmp_path: Any) -> None:
    agent = make_mpc(PENDULUM, dynamics="simulator", planner={"candidates": 8, "elites": 2, "iterations": 1}, horizon=2)
    jaxrl.run(agent, 50, quiet=True, out=tmp_path / "run")
    env = agent.env
    env_state, obs = env.reset(KEY(), env.params)  # type: ignore[union-attr]
    policy = jaxrl.load_policy(tmp_path / "run", search=True)
    assert policy(np.asarray(obs), env_state=env_state).shape == (1,)
    with pytest.raises(
        ValueError, match=r"plans with the environment itself: load the policy with search=True and pass env_state"
    ):
        jaxrl.load_policy(tmp_path / "run")(np.asarray(obs))


# ---------------------------------------------------------------------------------------------------------------------- errors


def still(shape: tuple[int, ...], num_agents: int = 0) -> Env:
    """Return an environment in which nothing happens, with observations of this shape."""
    lead = (num_agents,) if num_agents else ()
    obs, nothing, no = jnp.zeros((*lead, *shape)), jnp.zeros(lead), jnp.zeros((), bool)
    spaces_of_each = spaces.Box(-1.0, 1.0, shape, np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
    step = lambda key, state, action, params: (state, TimeStep(obs, nothing, no, no))  # noqa: E731
    return Env(lambda key, params: (obs, obs), step, *spaces_of_each, name="still", num_agents=num_agents)


@pytest.mark.parametrize(
    "env, settings, error, words",
    [
        (linear_system(), {"dynamics": "simulator", "batch_size": 64}, ValueError, r"^batch_size=64 has no effect with dynamics"),
        (linear_system(), {"dynamics": "simulator", "learning_rate": 0.1}, ValueError, r"^learning_rate=0.1 has no effect with"),
        (linear_system(), {"dynamics": "simulator", "model": {}}, ValueError, r"^model={} has no effect with dynamics"),
        (linear_system(), {"dynamics": "simulator", "reward": swing_cost}, ValueError, r"^reward=swing_cost has no effect with"),
        (
            linear_system(),
            {"dynamics": "simulator", "schedules": {"learning_rate": lambda i: 1.0}},
            ValueError,
            r"^schedules\['learning_rate'\] has no effect with",
        ),
        (still((2, 2)), {}, ValueError, r"^still has the observations Box.*, and MPC learns the dynamics of vectors"),
        (
            linear_system()._replace(action_space=spaces.Box(-np.inf, np.inf, (1,), np.float32)),
            {},
            ValueError,
            "MPC draws actions from a Box of real numbers with bounds on all sides: give",
        ),
        (probes.action_choice(), {}, TypeError, "^MPC needs a Box action space"),
        (
            linear_system(),
            {"reward": lambda obs, action: 0.0},
            TypeError,
            r"^reward=<lambda>, called as \(obs, action, next_obs\)",
        ),
        (
            linear_system(),
            {"reward": lambda obs, action, after: obs},
            TypeError,
            "^reward=<lambda> gives .* must give one number",
        ),
        (linear_system(), {"reward": 3}, TypeError, r"^reward=3 must be a function \(obs, action, next_obs\) -> reward"),
        (linear_system(), {"model": jaxrl.models.action_value}, TypeError, "model=action_value"),
        (linear_system(), {"model": {"use_previous": True}}, ValueError, "^use_previous=True has no effect"),
        (linear_system(), {"planner": "cma"}, ValueError, "^planner='cma' is unknown"),
        (linear_system(), {"dynamics": {"name": "simulator", "size": 3}}, TypeError, "has no field 'size'"),
        (still((2,), num_agents=2), {}, ValueError, "MPC plans for one agent, and still has 2"),
    ],
)
def test_what_does_not_fit_is_refused(env: Any, settings: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        make_mpc(env, **settings)
    assert "\n" not in str(caught.value)


def test_environments_on_the_host_are_not_simulated() -> None:
    agent = make_mpc("gymnasium:Pendulum-v1", dynamics="simulator")
    with pytest.raises(ValueError, match="MPC plans with the environment itself, and gymnasium:Pendulum-v1 is on the host"):
        jaxrl.run(agent, 64, quiet=True)
