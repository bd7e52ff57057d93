"""SAC: update schedule against a loop, acting, the temperature, probes of both kinds of actions, invalid settings."""

from __future__ import annotations

import itertools
import re
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from gymnasium import spaces

import jaxrl
from jaxrl import make_sac
from jaxrl.agent import bind
from jaxrl.algorithms import sac
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, Ensemble
from jaxrl.algorithms.common.critics.updates import draw_updates
from jaxrl.algorithms.common.soft_policy import actor_loss
from jaxrl.algorithms.common.temperature import FixedTemperature, LearnedTemperature
from jaxrl.algorithms.sac import SACHyperparams
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import action_value, actor_critic, policy_network, q_network
from jaxrl.rollout.autoreset import first_input
from jaxrl.training import freezing, run_iterations
from jaxrl.types import Agent, TimeStep
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, Tiny, assert_bit_equal, assert_close, run_steps, small, to_numpy
from tests.helpers.hosted import hosted
from tests.helpers.oracles.actor_critic import SETTINGS, check_q_probe, learn_q_probes, values_of
from tests.helpers.probe_set import PROBES

TINY = Tiny(
    settings={**SETTINGS, "temperature": LearnedTemperature(initial=1e-3), "model": partial(policy_network, hidden_sizes=(8,))},
    value=values_of,
    # A single transition, whose action in model units is 0: draws have no influence on the critics, and the others do not change.
    one_gradient=(
        "tests.helpers.probes:constant_reward?num_actions=1",
        {"batch_size": 64, "actor_learning_rate": 0, "temperature": LearnedTemperature(1e-3, learning_rate=0)},
    ),
    boxed=True,
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
small_sac = partial(small, "sac")


def discrete_sac(env: Any, **settings: Any) -> Agent:
    return make_sac(env, **{**TINY.settings, **settings})


# ------------------------------------------------------------------------------------------------------------- update schedule


def sgd(hyperparams: Any) -> optax.GradientTransformation:
    return optax.sgd(hyperparams.learning_rate)


def learnt_once(agent: Agent, setup: Any) -> Any:
    """Return ``(learner after the warm-up, (learner, metrics) after an iteration's updates, their draws)``, in one program."""

    def run(key: Any) -> Any:
        start = agent.init(key).learner
        return start, agent.algorithm.learn(start), draw_updates(setup, start, 0.99)  # type: ignore[misc]

    return jit(run)(KEY())


@pytest.mark.slow
def test_updates_are_those_of_a_loop() -> None:
    """Four updates of three critics, and one of the policy and the temperature after every second one."""
    settings = {"optimizer": sgd, "replay_ratio": 16, "policy_delay": 2, "critics": Ensemble(size=3, subset=2)}
    rates = {"learning_rate": 0.05, "actor_learning_rate": 0.02}
    temperature = LearnedTemperature(initial=0.5, learning_rate=0.1)
    agent = small_sac(probes.action_by_observation(), **settings, **rates, temperature=temperature)
    setup = agent.algorithm.learn.args[0]  # type: ignore[union-attr]
    start, (learner, metrics), draws = learnt_once(agent, setup)
    assert draws.batch.reward.shape == (2, 2, 32) and draws.noise.shape == (2, 2, 2, 32, 1)
    assert (draws.chosen.sum(-1) == 2).all()

    @jit
    def critic_gradient(actor: Any, critic: Any, target: Any, alpha: Any, now: Any) -> Any:
        y = sac.target(setup, actor, target, alpha, now)
        return jax.grad(partial(sac.critic_loss, setup), has_aux=True)(critic, y, now)[0]

    actor_gradient = jit(jax.grad(partial(actor_loss, setup), has_aux=True))
    (actor, critic), target, log_alpha = start.params, start.target_params.critic, start.log_temperature
    assert float(log_alpha) == pytest.approx(np.log(0.5)) and start.target_params.actor == ()
    adam = optax.adam(0.1)
    adam_state = adam.init(log_alpha)
    for g in range(2):
        alpha = jnp.exp(log_alpha)
        for i in range(2):
            now = jax.tree.map(lambda x, g=g, i=i: x[g, i], draws)
            slope = critic_gradient(actor, critic, target, alpha, now)
            critic = jax.tree.map(lambda p, g: p - 0.05 * g, critic, slope)
            target = jax.tree.map(lambda p, t: t + 0.1 * (p - t), critic, target)
        slope, logged = actor_gradient(actor, critic, alpha, now)
        actor = jax.tree.map(lambda p, g: p - 0.02 * g, actor, slope)
        step, adam_state = adam.update(alpha * (logged["losses/entropy"] + 1.0), adam_state)
        log_alpha += step
    assert_close(learner.params, ActorCriticPair(actor, critic), atol=1e-4)
    assert_close(learner.target_params.critic, target, atol=1e-4)
    assert float(learner.log_temperature) == pytest.approx(float(log_alpha), abs=1e-4)
    assert int(learner.version) == 1 and int(metrics["losses/td_loss"].count) == 4
    assert int(metrics["losses/actor_loss"].count) == int(metrics["losses/temperature"].count) == 2


# ---------------------------------------------------------------------------------------------------------------------- acting


def asymmetric() -> Any:
    """A Box of two numbers with different bounds."""
    box = spaces.Box(np.array([0, -2], np.float32), np.array([4, -1], np.float32))
    return probes.target_action()._replace(action_space=box)


@cache
def acting(version: int) -> Any:
    """Return exploring and greedy actions of 4,000 environments by an untrained policy."""
    agent = small_sac(asymmetric())
    algorithm = agent.algorithm

    def run(key: Any) -> Any:
        policy = algorithm.policy(algorithm.init(key, SACHyperparams())._replace(version=jnp.int32(version)))
        given = (policy, (), first_input(jnp.zeros((4000, 1)), agent.env.action_space, 4000), jnp.arange(4000), key)
        return policy, algorithm.act(*given, explore=True)[1], algorithm.act(*given, explore=False)[1]

    return jax.tree.map(np.asarray, jit(run)(KEY()))


def test_until_the_first_update_actions_are_uniform_between_the_bounds() -> None:
    _, actions, _ = acting(0)
    for component, low, width in ((0, 0, 4), (1, -2, 1)):
        assert scipy.stats.kstest(actions[:, component], scipy.stats.uniform(low, width).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.06


def test_later_actions_are_squashed_gaussians_and_greedy_ones_their_medians() -> None:
    policy, actions, greedy = acting(1)
    inputs = first_input(jnp.zeros((1, 1)), asymmetric().action_space, 1)
    model = TINY.settings["model"](asymmetric().observation_space, asymmetric().action_space)
    d = model.apply(jax.tree.map(jnp.asarray, policy.params.actor), (), inputs)[1]
    before = np.arctanh(np.clip((actions - [2, -1.5]) / [2, 0.5], -1 + 1e-6, 1 - 1e-6))
    for i in range(2):
        normal = scipy.stats.norm(float(d.mean[0, i]), float(jnp.exp(d.log_std[0, i])))
        assert scipy.stats.kstest(before[:, i], normal.cdf).pvalue > 1e-3
    np.testing.assert_allclose(greedy[0], np.array([2, -1.5]) + np.array([2, 0.5]) * np.tanh(d.mean[0]), atol=1e-5)
    assert all(asymmetric().action_space.contains(action) for action in actions[:50])


def test_an_actor_has_no_critics() -> None:
    policy, _, _ = acting(1)
    assert policy.params.critic == () and jax.tree.leaves(policy.params.actor)


def test_random_actions_keep_to_the_mask() -> None:
    """In row b only action b mod 3 is allowed."""
    space = spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32), "action_mask": spaces.MultiBinary(3)})
    free = {"x": jnp.zeros(1), "action_mask": jnp.ones(3, jnp.int8)}
    over = TimeStep(free, jnp.float32(1), jnp.array(True), jnp.array(False))
    env = probes.constant_reward(num_actions=3)._replace(
        reset=lambda key, params: (jnp.int32(0), free),
        step=lambda key, state, action, params: (state, over),
        observation_space=space,
    )
    algorithm = discrete_sac(env).algorithm
    allowed = jnp.arange(60) % 3
    obs = {"x": jax.random.normal(KEY(), (60, 1)), "action_mask": jax.nn.one_hot(allowed, 3, dtype=jnp.int8)}

    def act(key: Any) -> Any:
        learner = algorithm.init(key, SACHyperparams())
        inputs = first_input(obs, spaces.Discrete(3), 60)
        given = ((), inputs, jnp.arange(60), key)
        random, drawn = (algorithm.policy(learner._replace(version=jnp.int32(n))) for n in (0, 1))
        return [algorithm.act(p, *given, explore=e)[1] for p, e in ((random, True), (drawn, True), (drawn, False))]

    for actions in jit(act)(KEY()):
        np.testing.assert_array_equal(actions, allowed)


def test_held_noise_repeats_a_random_action() -> None:
    """Each draw of the warm-up is used for three rows. The environment's previous action shows it."""
    agent = small_sac(probes.endless(), hold_noise=3, rollout_length=9, num_envs=2, batch_size=36, learning_starts=9)
    rows = jit(agent.init)(KEY()).learner.replay.records.unpack()
    action = np.asarray(rows.action)[:9, :, 0]
    np.testing.assert_array_equal(action.reshape(3, 3, 2), np.repeat(action[::3, None], 3, 1))
    assert len(np.unique(action)) == 6


# ---------------------------------------------------------------------------------------------------------------------- probes


LEARNING = {"gamma": 0.9, "learning_rate": 0.02, "actor_learning_rate": 0.02, "learning_starts": 120}


def moved(env: Any) -> Any:
    """Convert Discrete actions to a Box from 1 to 5."""
    boxed = probes.as_box(env)
    step = lambda key, state, action, params: boxed.step(key, state, (action - 3.0) / 2.0, params)  # noqa: E731
    return boxed._replace(step=step, action_space=spaces.Box(1.0, 5.0, (1,), np.float32))  # type: ignore[arg-type]


@cache
def learnt(kind: str) -> dict[str, Any]:
    """For a Box from 1 to 5, and for Discrete actions."""
    return learn_q_probes(
        partial({"box": lambda env, **s: small_sac(moved(env), **s), "discrete": discrete_sac}[kind], **LEARNING)
    )


@pytest.mark.parametrize("kind", ["box", pytest.param("discrete", marks=pytest.mark.slow)])
@pytest.mark.parametrize("probe", PROBES)
def test_probe(kind: str, probe: str) -> None:
    check_q_probe(probe, *learnt(kind)[probe])


@pytest.mark.slow
def test_probe_target_action() -> None:
    """A Box from 0 to 4."""
    agent = small_sac(probes.target_action(), **LEARNING)

    def run(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 300)
        policy, inputs = agent.algorithm.policy(state.learner), first_input(jnp.zeros((1, 1)), agent.env.action_space, 1)
        return agent.algorithm.act(policy, (), inputs, jnp.arange(1), key, explore=False)[1]

    assert float(jit(run)(KEY())[0, 0]) == pytest.approx(3, abs=0.3)


# ---------------------------------------------------------------------------------------------------- state, invalid arguments


@pytest.mark.slow
def test_discrete_seeds_in_a_batch_are_those_alone() -> None:
    agent = discrete_sac("CartPole-v1")
    keys = jax.random.split(KEY(), 2)
    states = jax.vmap(agent.init)(keys)
    step = jax.jit(jax.vmap(agent.step))
    for _ in range(3):
        states, _ = step(states)
    alone, _ = run_steps(agent, agent.init(keys[1]), 3)
    assert_close(jax.tree.map(lambda x: x[1], states), alone)


class Broken(NamedTuple):
    """The environment's data, the observation from which actions are NaN, and the temperature."""

    reward: Any = 1.0
    obs: Any = 0.0
    action_from: Any = 9.0
    temperature: Any = 0.2


BROKEN = (
    Broken(),
    Broken(temperature=0.4),
    Broken(reward=np.nan),
    Broken(reward=np.inf),
    Broken(reward=-np.inf),
    Broken(obs=np.nan),
    Broken(action_from=0.0),
)


@cache
def broken() -> Any:
    """For each of ``BROKEN``, with its fixed temperature: the state after the warm-up, and the state and metrics after a step."""
    base = small_sac(probes.truncation(), temperature=FixedTemperature())

    def step(key: Any, time: Any, action: Any, params: Broken) -> Any:
        reached = jnp.broadcast_to(jnp.float32(params.obs), (1,))
        return time, TimeStep(reached, jnp.float32(params.reward), jnp.array(False), jnp.array(False))

    def act(params: Broken, *given: Any, explore: bool) -> Any:
        carry, action, extras = base.algorithm.act(*given, explore=explore)
        return carry, jnp.where(given[2].obs >= params.action_from, jnp.nan, action), extras

    def run(params: Broken) -> Any:
        algorithm, env = base.algorithm._replace(act=partial(act, params)), base.env._replace(step=step, params=params)
        settings = {"num_envs": base.num_envs, "rollout_length": base.rollout_length, "hyperparams": base.hyperparams}
        agent = bind(algorithm, env, **settings)  # type: ignore[arg-type]
        before = agent.init(KEY(), {"temperature": params.temperature}, params)
        return before, freezing(agent).step((before, jnp.array(True)))  # type: ignore[arg-type]

    return jit(jax.vmap(run))(Broken(*map(jnp.float32, zip(*BROKEN, strict=True))))


@pytest.mark.slow
def test_a_seed_whose_data_is_not_finite_is_frozen() -> None:
    """All but its replay, which contains the bad data. Other seeds continue."""
    before, ((after, alive), metrics) = broken()
    np.testing.assert_array_equal(alive, [True, True, False, False, False, False, False])
    np.testing.assert_array_equal(np.isfinite(metrics["losses/td_loss"].sum), alive)
    stored = [jax.tree.map(lambda x, i=i: np.asarray(x[i]), after.learner.replay).records.unpack() for i in range(len(BROKEN))]
    assert [np.isfinite(rows.reward).all() for rows in stored] == [True, True, False, False, False, True, True]
    assert [np.isfinite(rows.obs).all() for rows in stored] == [True, True, True, True, True, False, True]
    assert [np.isfinite(rows.action).all() for rows in stored] == [True, True, True, True, True, True, False]
    np.testing.assert_array_equal(after.learner.version, alive)
    frozen = lambda state: jax.tree.map(lambda x: x[2:], state._replace(learner=state.learner._replace(replay=())))  # noqa: E731
    assert_bit_equal(frozen(after), frozen(before))


def test_a_fixed_temperature_stays_and_is_data() -> None:
    """Two temperatures in one program."""
    _, ((after, _), metrics) = broken()
    logged = metrics["losses/temperature"]
    np.testing.assert_allclose((logged.sum / logged.count)[:2], [0.2, 0.4], rtol=1e-6)
    np.testing.assert_allclose(after.learner.log_temperature[:2], np.log([0.2, 0.4]), rtol=1e-6)


@pytest.mark.slow
def test_a_run_reports_the_seed_whose_rewards_break(capsys: pytest.CaptureFixture[str]) -> None:
    """On the host, after 120 rows of seed 7, where 64 are the warm-up. Seed 6 trains to the end."""
    env = hosted(probes.truncation())

    def breaking(num_envs: int, seed: int) -> Any:
        envs = env.open(num_envs, seed)
        original, rows = envs.step, itertools.count()

        def step(action: Any) -> Any:
            row = original(action)
            return row._replace(reward=row.reward + np.float32(np.nan if next(rows) >= 30 and seed == 7 else 0))

        envs.step = step  # type: ignore[method-assign]
        return envs

    agent = small_sac(env._replace(open=breaking))
    states, history = jaxrl.run(agent, 160, seeds=[6, 7], eval_every=0, chunk_iterations=5)
    assert "seed 7: environments 0, 1, 2, 3 gave rewards that are NaN or infinite by step" in capsys.readouterr().out
    np.testing.assert_array_equal(history["diverged"][[0, -1]], [[False, False], [False, True]])
    assert np.isfinite(history["losses/td_loss"][1:, 0]).all() and np.isnan(history["losses/td_loss"][-1, 1])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(to_numpy(states.learner.params)))


def test_one_message_for_each_mistake() -> None:
    free = probes.target_action()._replace(action_space=spaces.Box(-np.inf, np.inf, (1,), np.float32))
    with pytest.raises(ValueError, match=r"target_action has Box.*bounds on all sides.*make_ppo"):
        small_sac(free)
    with pytest.raises(TypeError, match=r"SAC needs a Box or Discrete action space; .*MultiDiscrete"):
        small_sac(probes.two_choices())
    with pytest.raises(TypeError, match="must give a TanhNormal policy"):
        small_sac(probes.target_action(), model=RECURRENT, replay_ratio=1024, buffer_size=1024)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"replay_ratio": 5}, r"replay_ratio=5 gives 1.25 updates per iteration .* use a multiple of 4"),
        ({"policy_delay": 3}, "policy_delay=3 must divide the 2 updates of an iteration"),
        ({"critic": {"dropout": 1.0}}, "dropout=1 is not allowed: it must be a number in"),
        (
            {"optimizer": optax.adam(1e-3), "actor_learning_rate": 0.1},
            "actor_learning_rate=0.1 has no effect with an optimizer that",
        ),
        (
            {"optimizer": optax.adam(1e-3), "schedules": {"actor_learning_rate": lambda i: 1.0}},
            r"schedules\['actor_learning_rate'\] has no effect with an optimizer that does not use learning_rate",
        ),
        ({"actor_value": "max"}, "actor_value='max' must be one of 'min', 'mean'"),
        ({"temperature": LearnedTemperature(discrete_entropy=0.5)}, r"discrete_entropy=0.5 has no effect on Box"),
        (
            {"schedules": {"temperature": lambda i: 1.0}},
            r"schedules\['temperature'\] has no effect with LearnedTemperature, which starts at it: use FixedTemperature\(\)",
        ),
        ({"schedules": {"discrete_entropy": lambda i: 1.0}}, r"schedules\['discrete_entropy'\] has no effect on Box"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_sac(probes.target_action(), **settings)


def test_a_temperature_that_is_not_positive_is_refused_as_data() -> None:
    agent = small_sac(probes.target_action())
    with pytest.raises(ValueError, match="temperature=0 is not allowed: it must be a finite number > 0"):
        agent.init(KEY(), {"temperature": 0.0})
    with pytest.raises(ValueError, match="temperature=-1 is not allowed"):
        jaxrl.run(agent, 160, seeds=2, hyperparams={"temperature": [1.0, -1.0]})


def test_settings_of_the_other_kind_of_actions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"box_entropy=2 has no effect on Discrete\(2\)"):
        discrete_sac(probes.truncation(), temperature=LearnedTemperature(box_entropy=2))
    with pytest.raises(ValueError, match="hold_noise=3 needs a Box action space"):
        discrete_sac(probes.truncation(), hold_noise=3)


@pytest.mark.parametrize(
    "part, given, message",
    [
        ("model", actor_critic, "must give a TanhNormal policy of size 1"),
        ("model", 5, "model=5 must be"),
        ("critic", 5, "critic=5 must be"),
        ("critic", q_network, "a Q-network needs a Discrete space"),
        (
            "critic",
            partial(action_value, num_outputs=2),
            r"must give a value f32\[batch\] for each observation and action; .* float32\[1, 2\]",
        ),
        ("critic", RECURRENT, "must be memoryless"),
    ],
)
def test_parts_of_the_wrong_kind(part: str, given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        small_sac(probes.target_action(), **{part: given})


def test_arguments_of_the_policy_are_the_critics_too() -> None:
    def widths(**given: Any) -> list[int]:
        agent = make_sac("Pendulum-v1", **given)
        again = jaxrl.build(agent.spec)
        assert again.spec == agent.spec
        params = jax.eval_shape(lambda: again.algorithm.init(KEY(), SACHyperparams())).params
        sizes = [p["params"]["torso"]["hidden_0"]["bias"].shape[-1] for p in (params.actor, params.critic)]
        return [*sizes, len(jax.tree.leaves(params.critic))]

    assert widths() == [256, 256, 6]
    assert widths(model={"hidden_sizes": (8, 8)}) == [8, 8, 6]
    assert widths(model={"hidden_sizes": (8, 8)}, critic={"layer_norm": True}) == [8, 8, 10]
    assert widths(model={"hidden_sizes": (8, 8)}, critic={"hidden_sizes": (4, 4), "dropout": 0.1}) == [8, 4, 6]
    with pytest.raises(TypeError, match=r"critic=.*action_value takes no 'drop_out'\. Did you mean 'dropout'\?"):
        make_sac("Pendulum-v1", critic={"drop_out": 0.1})


def test_params_and_targets_are_equal_and_apart_at_the_start() -> None:
    agent = small_sac(probes.truncation())
    learner = jit(agent.algorithm.init)(KEY(), SACHyperparams())
    assert_bit_equal(learner.params.critic, learner.target_params.critic)
    for p, t in zip(jax.tree.leaves(learner.params), jax.tree.leaves(learner.target_params), strict=False):
        assert p.unsafe_buffer_pointer() != t.unsafe_buffer_pointer()  # else a donated state would be refused
    kernels = [x for path, x in jax.tree.leaves_with_path(learner.params.critic) if re.search("kernel", str(path))]
    assert all((x[0] != x[1]).any() for x in kernels)  # critics differ
