"""DQN: replayed transitions, update schedule against a loop, exploration, probes, invalid settings."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from jaxrl import make_dqn
from jaxrl.algorithms.dqn import (
    DQNConfig,
    DQNHyperparams,
    Transitions,
    dqn_loss,
    transitions,
)
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.metrics import to_floats
from jaxrl.models import actor_critic, q_network
from jaxrl.optimize.learner import TargetLearner
from jaxrl.replay import Draw, Replay
from jaxrl.replay.options import Prioritized
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.collect import collect
from jaxrl.training import run_iterations
from jaxrl.types import Agent, Rollout, StepInput, TimeStep
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_Q_NETWORK, Tiny, assert_bit_equal, assert_close, outputs_of, small_dqn, to_numpy
from tests.helpers.probe_set import probe_set

pytestmark = pytest.mark.expensive(80)

TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 2,
        "batch_size": 32,
        "replay_ratio": 8,
        "buffer_size": 240,
        "learning_starts": 64,
        "target_update_interval": 3,
        "n_step": 1,
        "anneal": False,
        "model": SMALL_Q_NETWORK,
    },
    value=outputs_of,
    one_gradient=(
        "tests.helpers.probes:constant_reward?num_actions=1",
        {"batch_size": 64},
    ),  # a single transition, so draws have no influence
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""


# ------------------------------------------------------------------------------------------------------- replayed transitions


STREAMS = {
    "truncation": probes.truncation,
    "memory": probes.memory,
    "limit": lambda: probes.observed_value()._replace(max_episode_steps=1),
}


@cache
def stream(name: str, rollouts: int = 3, rows: int = 8) -> tuple[Agent, Rollout, TargetLearner]:
    """Return rollouts of the same environments, [rollouts, rows, 3], and a learner that observed them."""
    env = STREAMS[name]()
    agent = small_dqn(env, num_envs=3, rollout_length=rows, batch_size=24, buffer_size=3 * rollouts * rows, learning_starts=0)

    def run(key: Any) -> Any:
        state = agent.init(key)

        def one(carry: Any, key: Any) -> Any:
            actor, learner = carry
            policy = agent.algorithm.policy(learner)
            actor, rollout, _ = collect(agent.algorithm, env, policy, actor, env.params, jnp.arange(3), key, rows)
            return (actor, agent.algorithm.observe(learner, rollout)), rollout

        return jax.lax.scan(one, (state.actor, state.learner), jax.random.split(key, rollouts))

    (_, learner), parts = jit(run)(KEY())
    return agent, jax.tree.map(np.asarray, parts._replace(env_id=parts.valid, version=parts.valid, carry=())), learner


@pytest.mark.parametrize("name", STREAMS)
def test_transitions_are_what_the_policy_saw(name: str) -> None:
    """Each row that can be drawn has inputs t and t + 1 of the rollout, including the last observation of an episode."""
    _, rollouts, learner = stream(name)
    rows, envs = 24, 3
    row, env = (x.reshape(-1) for x in np.meshgrid(np.arange(1, rows - 1), np.arange(envs), indexing="ij"))
    replay = uniform_replay(rows, envs, 8, before=1)
    valid = np.asarray(learner.replay.valid[row, env])
    draw = Draw(jnp.asarray(row), jnp.asarray(env), jnp.ones(len(row)), jnp.asarray(valid))
    drawn = transitions(replay, learner.replay, draw, 0.9)
    assert valid.any() and not valid.all()

    def at(tree: Any, offset: int) -> Any:
        """Return row ``row + offset`` of the whole stream. The last input of a rollout is the first of the next."""
        n = row + offset
        return jax.tree.map(lambda x: x[n // 8, n % 8, env][valid], tree)

    ours = jax.tree.map(lambda x: np.asarray(x)[valid], drawn)
    assert_bit_equal(ours.inputs, at(rollouts.inputs, 0))
    assert_bit_equal(ours.next_inputs, at(rollouts.inputs, 1))
    for got, expected in ((ours.action, rollouts.action), (ours.reward, rollouts.reward)):
        np.testing.assert_array_equal(got, at(expected, 0))
    np.testing.assert_array_equal(ours.discount, np.where(at(rollouts.terminated, 0), 0, np.float32(0.9)))
    if name == "truncation":
        assert ours.discount.all() and at(rollouts.truncated, 0).any()  # so truncated rows do bootstrap


def test_replay_keeps_raw_rows_in_the_types_of_the_environment() -> None:
    picture = spaces.Box(0, 255, (2, 2), np.uint8)
    env = probes.constant_reward()._replace(
        reset=lambda key, params: (jnp.int32(0), jnp.full((2, 2), 200, jnp.uint8)),
        step=lambda key, state, action, params: (
            state,
            TimeStep(jnp.full((2, 2), 200, jnp.uint8), jnp.float32(250), jnp.array(True), jnp.array(False)),
        ),
        observation_space=picture,
    )
    state = jit(small_dqn(env).init)(KEY())
    rows = state.learner.replay.records.unpack()
    assert rows.obs.dtype == jnp.uint8 and rows.obs.shape == (60, 4, 2, 2)
    np.testing.assert_array_equal(rows.obs[:16], 200)  # 64 rows of warm-up in 4 environments
    assert (rows.reward[:16][rows.valid[:16]] == 250).all() and not rows.valid[16:].any()


# ------------------------------------------------------------------------------------------------------------- update schedule


def sgd(hyperparams: Any) -> optax.GradientTransformation:
    return optax.sgd(hyperparams.learning_rate)


def counting_sgd(hyperparams: Any) -> optax.GradientTransformation:
    return optax.chain(optax.sgd(hyperparams.learning_rate), optax.scale_by_schedule(lambda count: 1.0))


@pytest.mark.parametrize(
    "interval, tau, first_version",
    [
        (3, 1.0, 0),
        (3, 0.25, 0),
        (1, 0.1, 0),
        (7, 0.5, 1_500_000_001),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 1.0, 0), (7, 0.5, 0))),
    ],
)
def test_the_target_changes_by_the_number_of_updates(interval: int, tau: float, first_version: int) -> None:
    """Two updates per iteration, also late in a run, when the number of updates exceeds 32 bits."""
    learn = jit(cadence(interval).algorithm.learn)
    start, draw, gradient = by_hand()
    hyperparams = start.hyperparams._replace(tau=jnp.float32(tau))
    learner = start._replace(hyperparams=hyperparams, version=jnp.int32(first_version))
    params = target = learner.params
    changes = 0
    for version in range(first_version, first_version + 5):
        drawn = draw(learner, version)
        for i in range(2):
            batch = jax.tree.map(lambda x, i=i: x[16 * i : 16 * (i + 1)], drawn)
            params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient(params, target, batch))
            if (2 * version + i + 1) % interval == 0:
                target = jax.tree.map(lambda p, t: t + tau * (p - t), params, target)
                changes += 1
        learner, _ = learn(learner)
        assert_close(learner.params, params, atol=1e-4)
        assert_close(learner.target_params, target, atol=1e-4)
        if tau == 1.0 and (2 * version + 2) % interval == 0:
            assert_bit_equal(learner.target_params, learner.params)  # a copy, not an approximation
    assert changes == (2 * first_version % interval + 10) // interval > 0
    assert int(learner.version) == first_version + 5


def cadence(interval: int, **settings: Any) -> Agent:
    sizes = {"batch_size": 16, "replay_ratio": 4, "target_update_interval": interval, "learning_rate": 0.05}
    return small_dqn(probes.action_by_observation(), optimizer=sgd, **sizes, **settings)


@cache
def by_hand() -> Any:
    """Return a learner after its warm-up, its draws at a version, and the gradient of one batch of them."""
    agent, replay = cadence(1), uniform_replay(60, 4, 2, before=1)
    model = SMALL_Q_NETWORK(agent.env.observation_space, agent.env.action_space)
    loss = partial(dqn_loss, model, DQNConfig(), axis_name=None)

    def draw(learner: TargetLearner, version: Any) -> Transitions:
        drawn = replay.draw(learner.replay, jax.random.fold_in(learner.key, version), 2 * 16)
        return transitions(replay, learner.replay, drawn, 0.99)

    def gradient(params: Any, target: Any, batch: Transitions) -> Any:
        return jax.grad(loss, has_aux=True)(params, target, batch=batch)[0]

    return jit(agent.init)(KEY()).learner, jit(draw), jit(gradient)


@pytest.mark.slow
def test_priorities_follow_what_each_update_learns() -> None:
    """Drawn, learnt and written update by update, as in a loop. The exponent of the weights rises to 1 at total_steps."""
    agent = cadence(3, replay=Prioritized(exponent=0.7, importance_exponent=0.5), anneal=True, total_steps=320)
    replay = prioritised_replay(priority_exponent=0.7, importance_exponent=1.0)(60, 4, 2, before=1, after=1)
    draw, update = jit(replay.draw, static_argnums=2), jit(replay.update)
    read = jit(lambda state, drawn: transitions(replay, state, drawn, 0.99))
    model = SMALL_Q_NETWORK(agent.env.observation_space, agent.env.action_space)
    differentiate = jit(jax.value_and_grad(partial(dqn_loss, model, DQNConfig(), axis_name=None), has_aux=True))
    learner, learn = jit(agent.init)(KEY()).learner, jit(agent.algorithm.learn)
    for version in range(4):
        left = 1 - 8 * (8 + version) / 320
        beta, rate = 1 - 0.5 * left, 0.05 * left
        params, target, state = learner.params, learner.target_params, learner.replay
        for i in range(2):
            key = jax.random.fold_in(jax.random.fold_in(learner.key, version), i)
            drawn = draw(state, key, 16)
            batch = read(state, drawn)
            (_, aux), gradient = differentiate(params, target, batch=batch._replace(weight=np.asarray(batch.weight) ** beta))
            state = update(state, drawn, aux["priorities"])
            params = jax.tree.map(lambda p, g, rate=rate: p - rate * g, params, gradient)
            if (2 * version + i + 1) % 3 == 0:
                target = params
        learner, metrics = learn(learner)
        assert_close(learner.params, params, atol=1e-4)
        assert_close(learner.replay.levels, state.levels, atol=1e-3)
        assert "priorities" not in metrics
    assert len(np.unique(learner.replay.levels[0])) > 5  # most rows of the batches have new priorities


def test_fields_of_priorities_have_no_effect_on_another_replay() -> None:
    with pytest.raises(TypeError, match=r"^replay='uniform' has no field 'exponent'. It is a field of Prioritized"):
        small_dqn(probes.truncation(), **{"replay": uniform_replay, "replay.exponent": 0.3})


@pytest.mark.slow
def test_weights_of_a_custom_replay_stay() -> None:
    """Its exponent of the weights is its own."""
    custom = prioritised_replay(priority_exponent=0.7, importance_exponent=1.0)
    agents = [small_dqn(probes.truncation(), replay=replay) for replay in (custom, Prioritized(0.7, importance_exponent=1.0))]
    states = [jit(agent.step)(jit(agent.init)(KEY()))[0] for agent in agents]
    assert_bit_equal(states[0].learner, states[1].learner)


def test_the_replay_ratio_is_exact() -> None:
    """Rows drawn per row collected, by counting both: updates in the optimizer, and rows added to replay."""
    asked: list[int] = []

    def counting_replay(*sizes: int, **window: int) -> Replay:
        replay = uniform_replay(*sizes, **window)

        def draw(state: Any, key: Any, batch_size: int) -> Draw:
            asked.append(batch_size)
            return replay.draw(state, key, batch_size)

        return replay._replace(draw=draw)

    sizes = {"batch_size": 24, "replay_ratio": 9, "buffer_size": 4 * 31}
    agent = small_dqn(probes.truncation(), replay=counting_replay, optimizer=counting_sgd, **sizes)
    state, metrics = jit(lambda key: run_iterations(agent, agent.init(key), 10))(KEY())
    assert set(asked) == {72}  # per iteration of 8 rows
    count = next(x for x in jax.tree.leaves(state.learner.opt_state) if x.dtype == jnp.int32)
    assert int(count) == 10 * 3
    assert int(metrics["losses/td_loss"].count) == 30
    assert int(metrics["charts/valid_rows"].count) == 80
    # The buffer holds the requested 31 rows of each environment, in a ring of whole adds.
    assert int(state.learner.replay.size) == 31 and state.learner.replay.valid.shape == (32, 4)


@pytest.mark.parametrize("ratio, updates", [(4, 1), (8, 2), (12.0, 3), (400, 100)])
def test_ratios_that_fit(ratio: float, updates: int) -> None:
    config = DQNConfig(num_envs=4, rollout_length=2, batch_size=32, replay_ratio=ratio)
    config.check()
    assert config.updates_per_iteration == updates


@pytest.mark.parametrize("ratio", [1, 2, 5, 4.1])
def test_ratios_that_do_not_fit_name_one_that_does(ratio: float) -> None:
    message = rf"replay_ratio={ratio:g} gives .* must be a whole number >= 1: use a multiple of 4"
    with pytest.raises(ValueError, match=message) as caught:
        small_dqn(probes.truncation(), replay_ratio=ratio)
    (step,) = re.findall(r"multiple of ([\d.]+),", str(caught.value))
    for times in (1, 3):
        small_dqn(probes.truncation(), replay_ratio=times * float(step))


@pytest.mark.parametrize("sizes", [{"num_envs": 3, "rollout_length": 4, "batch_size": 32}, {"num_envs": 3, "batch_size": 128}])
def test_ratios_that_are_no_round_numbers_are_named_well_enough(sizes: dict[str, int]) -> None:
    settings = {"buffer_size": 300, **sizes}
    with pytest.raises(ValueError, match="use a multiple of") as caught:
        small_dqn(probes.truncation(), replay_ratio=1, **settings)
    (step,) = re.findall(r"multiple of ([\d.]+),", str(caught.value))
    small_dqn(probes.truncation(), replay_ratio=float(step), **settings)


@pytest.mark.parametrize("ratio", [float("inf"), "8", None, 0, -4, float("nan")])
def test_ratios_that_are_no_numbers(ratio: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^replay_ratio={ratio!r}"):
        small_dqn(probes.truncation(), replay_ratio=ratio)


@pytest.mark.parametrize("starts, iterations", [(0, 0), (1, 1), (8, 1), (9, 2), (64, 8), (65, 9)])
def test_the_warm_up_collects_at_least_learning_starts(starts: int, iterations: int) -> None:
    assert small_dqn(probes.truncation(), learning_starts=starts).algorithm.warmup_iterations == iterations


def test_without_a_warm_up_the_first_updates_are_harmless() -> None:
    """With two rows, no row has a neighbour on both sides: nothing is learnt, and nothing breaks."""
    agent = small_dqn(probes.truncation(), learning_starts=0)
    before, after, metrics = jit(lambda key: ((state := agent.init(key)).learner.params, *agent.step(state)))(KEY())
    assert_bit_equal(after.learner.params, before)
    assert to_floats(metrics)["losses/td_loss"] == 0


def test_update_is_learn_after_observe() -> None:
    agent, rollouts, learner = stream("truncation")
    rollout = jax.tree.map(lambda x: jnp.asarray(x[0]), rollouts)._replace(env_id=jnp.arange(3), version=jnp.int32(0))
    algorithm = agent.algorithm
    assert_bit_equal(
        jit(algorithm.update)(learner, rollout), jit(lambda l, r: algorithm.learn(algorithm.observe(l, r)))(learner, rollout)
    )
    observed = algorithm.observe(learner, rollout)
    assert_bit_equal(observed._replace(replay=learner.replay), learner)  # only replay changes


# ----------------------------------------------------------------------------------------------------------------- exploration


@cache
def shared() -> Agent:
    return small_dqn(probes.truncation(), epsilon_start=0.9, epsilon_end=0.1, exploration_steps=40)


def test_epsilon_falls_linearly_after_the_warm_up() -> None:
    agent = shared()
    state = jit(agent.init)(KEY())
    for version in (0, 1, 3, 5, 6, 1000):
        policy = agent.algorithm.policy(state.learner._replace(version=jnp.int32(version)))
        rows = version * 8
        assert float(policy.exploration) == pytest.approx(0.9 - 0.8 * min(rows / 40, 1.0), abs=1e-6)
        assert int(policy.version) == version


@pytest.mark.parametrize("name", ["epsilon_start", "exploration_steps"])
def test_schedules_of_epsilon_have_an_effect(name: str) -> None:
    plain, changed = (
        small_dqn(probes.truncation(), exploration_steps=100, schedules=schedules) for schedules in (None, {name: lambda i: 0.5})
    )
    learner = jit(plain.init)(KEY()).learner._replace(version=jnp.int32(2))
    assert float(changed.algorithm.policy(learner).exploration) != float(plain.algorithm.policy(learner).exploration)


def test_agents_keep_to_the_mask() -> None:
    """Greedy and exploring, without training: in row b only action b mod 3 is allowed."""
    space = spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32), "action_mask": spaces.MultiBinary(3)})
    free = {"x": jnp.zeros(1), "action_mask": jnp.ones(3, jnp.int8)}
    over = TimeStep(free, jnp.float32(1), jnp.array(True), jnp.array(False))
    env = probes.constant_reward(num_actions=3)._replace(
        reset=lambda key, params: (jnp.int32(0), free),
        step=lambda key, state, action, params: (state, over),
        observation_space=space,
    )
    algorithm = small_dqn(env).algorithm
    allowed = jnp.arange(60) % 3
    obs = {"x": jax.random.normal(KEY(), (60, 1)), "action_mask": jax.nn.one_hot(allowed, 3, dtype=jnp.int8)}

    def act(key: Any, explore: bool) -> Any:
        learner = algorithm.init(key, DQNHyperparams())
        return algorithm.act(
            algorithm.policy(learner), (), first_input(obs, env.action_space, 60), jnp.arange(60), key, explore=explore
        )[1]

    for explore in (False, True):
        np.testing.assert_array_equal(jit(act, static_argnums=1)(KEY(), explore), allowed)


# ---------------------------------------------------------------------------------------------------------------------- probes


PROBES = {
    "constant reward": probes.constant_reward,
    "discounting": probes.discounting,
    "observed value": probes.observed_value,
    "action choice": probes.action_choice,
    "action by observation": probes.action_by_observation,
}


@cache
def learnt(n_step: int = 1) -> dict[str, np.ndarray]:
    """Return Q-values [3, 2] at the observations −1, 0 and 1, after training on each of the probes."""
    env = probe_set(*(make() for make in PROBES.values()))
    agent = small_dqn(env, gamma=0.9, learning_rate=0.02, learning_starts=120, target_update_interval=10, n_step=n_step)
    model = SMALL_Q_NETWORK(env.observation_space, env.action_space)

    def run(which: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(KEY(), None, which), 300)
        return model.apply(state.learner.params, (), first_input(jnp.array([[-1.0], [0.0], [1.0]]), env.action_space, 3))[1]

    return dict(zip(PROBES, np.asarray(jit(jax.vmap(run))(jnp.arange(len(PROBES)))), strict=True))


@pytest.mark.slow
def test_probes_with_returns_longer_than_their_episodes() -> None:
    values = learnt(n_step=3)
    np.testing.assert_allclose(values["constant reward"][1], [1.0, 1.0], atol=0.05)
    np.testing.assert_allclose(values["discounting"][1:], [[0.9, 0.9], [1.0, 1.0]], atol=0.05)
    np.testing.assert_allclose(values["action by observation"][[0, 2]], [[1.0, -1.0], [-1.0, 1.0]], atol=0.1)


def test_probe_constant_reward() -> None:
    np.testing.assert_allclose(learnt()["constant reward"][1], [1.0, 1.0], atol=0.05)


def test_probe_discounting() -> None:
    np.testing.assert_allclose(learnt()["discounting"][1:], [[0.9, 0.9], [1.0, 1.0]], atol=0.05)


def test_probe_observed_value() -> None:
    np.testing.assert_allclose(learnt()["observed value"][[0, 2]], [[-1.0, -1.0], [1.0, 1.0]], atol=0.1)


def test_probe_action_choice() -> None:
    np.testing.assert_allclose(learnt()["action choice"][1], [-1.0, 1.0], atol=0.05)


def test_probe_action_by_observation() -> None:
    np.testing.assert_allclose(learnt()["action by observation"][[0, 2]], [[1.0, -1.0], [-1.0, 1.0]], atol=0.1)


# -------------------------------------------------------------------------------------------------- state, invalid arguments


def test_params_and_target_are_equal_and_apart_at_the_start() -> None:
    learner = jit(shared().init)(KEY()).learner
    assert_bit_equal(learner.params, learner.target_params)
    for p, t in zip(jax.tree.leaves(learner.params), jax.tree.leaves(learner.target_params), strict=True):
        assert p.unsafe_buffer_pointer() != t.unsafe_buffer_pointer()  # else a donated state would be refused


@pytest.mark.slow
def test_one_trace_serves_all_hyperparameters() -> None:
    step, epsilons = jit(shared().step), []
    for given, cut in ((None, None), ({"gamma": 0.5, "tau": 1}, probes.Cut(2))):
        state = shared().init(KEY(), given, cut)
        for _ in range(2):
            state, metrics = step(state)
            epsilons.append(to_floats(metrics)["charts/epsilon"])
    np.testing.assert_allclose(epsilons, [0.9, 0.74] * 2, rtol=1e-5)  # of the one that acted
    assert step._cache_size() == 1


@pytest.mark.slow
def test_annealing_ends_with_the_run_of_which_the_warm_up_is_a_part() -> None:
    """Twenty iterations, and eight of them only collect."""
    agent = small_dqn(probes.truncation(), anneal=True, total_steps=160)
    assert agent.algorithm.warmup_iterations == 8
    learner = agent.algorithm.init(KEY(), agent.hyperparams._replace(learning_rate=0.1))
    learn = jit(agent.algorithm.learn)
    rates = [learn(learner._replace(version=jnp.int32(version)))[1]["charts/learning_rate"].sum for version in (0, 6, 11, 12)]
    np.testing.assert_allclose(rates, [0.1 * 12 / 20, 0.1 * 6 / 20, 0.1 / 20, 0.0], atol=1e-8)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_envs": 0}, "num_envs=0 must be an integer >= 1"),
        ({"batch_size": 0}, "batch_size=0 must be an integer >= 1"),
        ({"target_update_interval": 0}, "target_update_interval=0 must be an integer >= 1"),
        ({"learning_starts": -1}, "learning_starts=-1 must be an integer >= 0"),
        ({"buffer_size": 241}, "buffer_size=241 must be a multiple of num_envs=4"),
        ({"buffer_size": 28, "learning_starts": 0}, r"buffer_size=28 is too small: it must hold a batch \(32\)"),
        (
            {"buffer_size": 8, "batch_size": 8, "learning_starts": 0},
            r"buffer_size=8 is too small: .*n_step \+ 2 = 3 rows of each",
        ),
        (
            {"buffer_size": 32, "rollout_length": 16, "learning_starts": 0},
            r"buffer_size=32 is too small: .*one iteration \(64\)",
        ),
        ({"learning_starts": 248}, "learning_starts=248 must be at most buffer_size=240"),
        ({"total_steps": -5}, "total_steps=-5 is not allowed: it must be an integer >= 0"),
        (
            {"schedules": {"epsilon": optax.linear_schedule(1, 0, 3)}},
            r"schedules\['epsilon'\] does not name .* Did you mean 'epsilon_",
        ),
    ],
)
def test_sizes_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_dqn(probes.truncation(), **settings)


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"DQN needs a Discrete .*:target_action has Box.*: make_ppo takes Discrete.*and Box"):
        small_dqn(probes.target_action())
    with pytest.raises(TypeError, match=r"has MultiDiscrete\(\[2 3\]\): make the action space Discrete\(6\), one action"):
        small_dqn(probes.truncation()._replace(action_space=spaces.MultiDiscrete([2, 3])))
    with pytest.raises(TypeError, match=r"its model must be memoryless"):
        small_dqn(probes.truncation(), model=RECURRENT)
    with pytest.raises(TypeError, match=r"must be a jaxrl\.Model\(.*\), or a function"):
        small_dqn(probes.truncation(), model=lambda *spaces: None)


@pytest.mark.parametrize(
    "model", [5, actor_critic, lambda o, a: q_network(o, spaces.Discrete(7))], ids=["number", "policy", "seven"]
)
def test_models_that_are_none(model: Any) -> None:
    with pytest.raises(TypeError, match=r"^model="):
        make_dqn(probes.truncation(), model=model)


def test_inputs_of_the_first_row_are_those_of_a_fresh_start() -> None:
    """On the first row of an episode, acting gets the input of ``first_input``."""
    _, rollouts, _ = stream("memory")
    first = rollouts.inputs.is_first
    inputs = StepInput(*(x[first] for x in rollouts.inputs))
    assert len(inputs.obs) > 6
    assert not inputs.prev_action.any() and not inputs.prev_reward.any()
    assert to_numpy(inputs.obs)[:, 0].all()  # the cue is shown only in the first row
