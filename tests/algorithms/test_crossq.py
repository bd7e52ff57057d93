"""CrossQ: its loss against NumPy, update schedule and statistics against a loop, saved policies, probes, invalid settings."""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import make_crossq
from jaxrl.algorithms import crossq
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, Ensemble
from jaxrl.algorithms.common.critics.network_state import STATISTICS, network_variables
from jaxrl.algorithms.common.critics.updates import draw_updates
from jaxrl.algorithms.common.soft_policy import actor_loss
from jaxrl.algorithms.common.temperature import FixedTemperature, LearnedTemperature
from jaxrl.algorithms.crossq import CrossQConfig, CrossQHyperparams
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import action_value, policy_network
from jaxrl.optimize.gradients import mean_gradient
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.outputs import split_variables
from jaxrl.types import Model, Variables
from tests.helpers import probes
from tests.helpers.agents import Tiny, assert_bit_equal, assert_close, small
from tests.helpers.oracles.actor_critic import (
    BOX,
    FEATURES,
    OBSERVATIONS,
    SETTINGS,
    D,
    N,
    actor_critic_setup,
    case,
    check_q_probe,
    double,
    learn_q_probes,
    squashed_by_hand,
    values_of,
)
from tests.helpers.oracles.policy_gradient import slope
from tests.helpers.probe_set import PROBES

TINY = Tiny(
    settings={
        **{name: x for name, x in SETTINGS.items() if name != "tau"},
        "replay_ratio": 12,
        "temperature": LearnedTemperature(initial=1e-3),
        "model": partial(policy_network, hidden_sizes=(8,)),
    },
    value=values_of,
    boxed=True,
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
small_crossq = partial(small, "crossq")


# ------------------------------------------------------------------------------------------------------------------------ loss

HIDDEN, EPS, ALPHA = 4, 1e-3, 0.3


def hidden(params: Any, obs: Any, action: Any) -> Any:
    return jnp.tanh(jnp.concatenate([obs, action], -1) @ params["w"])


def normalised_critic() -> Model:
    """(tanh(x·W) − mean) / std · v, with moments of the valid rows in training."""

    def apply(variables: Variables, carry: Any, inputs: Any, key: Any = None) -> Any:
        features, learnt = hidden(variables.params, *inputs.obs), variables.statistics
        return carry, (features - learnt["mean"]) / jnp.sqrt(learnt["variance"] + EPS) @ variables.params["v"]

    def train(variables: Variables, inputs: Any, valid: Any, key: Any = None, axis_name: str | None = None) -> Any:
        features = hidden(variables.params, *inputs.obs)
        mean = lambda x: jnp.where(valid[:, None], x, 0).sum(0) / valid.sum()  # noqa: E731
        learnt = {"mean": mean(features), "variance": mean((features - mean(features)) ** 2)}
        return apply(Variables(variables.params, learnt), (), inputs)[1], learnt

    return Model(None, apply, apply, lambda batch: (), train)  # type: ignore[arg-type]


@cache
def program() -> Any:
    """Return the loss and the gradient of three critics, of which targets use two."""
    setup = actor_critic_setup(CrossQConfig(critics=Ensemble(size=3, subset=2)), "squashed")
    setup = dataclasses.replace(setup, critic=normalised_critic())

    def run(params: Any, statistics: Any, actor: Any, now: Any) -> Any:
        of_params = lambda p: crossq.critic_loss(setup, Variables(p, statistics), actor, jnp.float32(ALPHA), now)  # noqa: E731
        return jax.value_and_grad(of_params, has_aux=True)(params)

    return jit(run)


def critics(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(100 + seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    params = {"w": 0.5 * normal(3, FEATURES + D, HIDDEN), "v": normal(3, HIDDEN)}
    return params, {"mean": normal(3, HIDDEN), "variance": np.exp(normal(3, HIDDEN))}


def rows_by_hand(actor: Any, now: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the critics' inputs [2N, FEATURES + D], which of them are valid, and the next actions' log-probabilities [N]."""
    actor = {name: double(w) for name, w in actor.items()}
    following = [squashed_by_hand(actor, double(now.batch.next_inputs.obs[i]), double(now.noise[0, i])) for i in range(N)]
    obs = np.concatenate([double(now.batch.inputs.obs), double(now.batch.next_inputs.obs)])
    action = np.concatenate([double(now.batch.action), np.array([action for action, _ in following])])
    return np.concatenate([obs, action], -1), np.tile(now.batch.valid, 2), np.array([x for _, x in following])


def joint_by_hand(params: Any, rows: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return the values of each critic for both halves of the rows, [3, 2N], and the moments."""
    features = np.tanh(np.einsum("ni,cih->cnh", rows, params["w"]))
    mean, variance = features[:, valid].mean(1), features[:, valid].var(1)
    normal = (features - mean[:, None]) / np.sqrt(variance[:, None] + EPS)
    return np.einsum("cnh,ch->cn", normal, params["v"]), {"mean": mean, "variance": variance}


@pytest.mark.parametrize("seed", range(3))
def test_one_pass_over_both_halves_of_the_batch_and_constant_targets(seed: int) -> None:
    """The gradient is that of finite differences with the moments of both halves, and with y as a constant."""
    (actor, _, _, now), (params, statistics) = case("squashed", seed), critics(seed)
    (loss, metrics), gradient = program()(params, statistics, actor, now)
    rows, valid, log_prob = rows_by_hand(actor, now)
    both, moments = joint_by_hand({name: double(w) for name, w in params.items()}, rows, valid)
    least = both[np.asarray(now.chosen), N:].min(0)
    y = double(now.batch.reward) + double(now.batch.discount) * (least - ALPHA * log_prob)
    where = np.asarray(now.batch.valid)

    def by_hand(params: Any) -> float:
        errors = joint_by_hand(params, rows, valid)[0][:, :N] - y
        return float((0.5 * double(now.batch.weight) * errors**2).sum(0)[where].mean())

    assert float(loss) == pytest.approx(by_hand({name: double(w) for name, w in params.items()}), rel=1e-4)
    assert_close(gradient, jax.tree.map(np.float32, slope(by_hand, params)), atol=2e-3)
    assert_close(metrics[STATISTICS], jax.tree.map(np.float32, moments), atol=1e-4)
    assert float(metrics["losses/q_values"]) == pytest.approx(both[:, :N][:, where].mean(), rel=1e-3)
    np.testing.assert_allclose(metrics[PRIORITIES], np.where(where, np.abs(both[:, :N] - y).mean(0), 0), rtol=1e-3, atol=1e-4)


def test_draws_that_are_not_valid_have_no_influence() -> None:
    (actor, _, _, now), (params, statistics) = case("squashed", 1), critics(1)
    other = jax.tree.map(np.array, now.batch)
    for x in jax.tree.leaves(other._replace(valid=())):
        x[~now.batch.valid] = 7.0
    assert_bit_equal(*(program()(params, statistics, actor, now._replace(batch=batch)) for batch in (now.batch, other)))


def test_a_last_observation_that_is_not_finite_after_a_termination_counts_as_zeros() -> None:
    """It would make all moments NaN."""
    (actor, _, _, now), (params, statistics) = case("squashed", 2), critics(2)
    over = now.batch.discount[:, None] == 0
    assert (over[:, 0] & now.batch.valid).any()
    batches = (
        now.batch._replace(next_inputs=now.batch.next_inputs._replace(obs=np.where(over, x, now.batch.next_inputs.obs)))
        for x in (np.float32(0), np.float32(np.nan))
    )
    zeros, broken = (program()(params, statistics, actor, now._replace(batch=batch)) for batch in batches)
    assert_bit_equal(zeros, broken)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(broken))


def test_two_devices_have_the_gradient_and_the_statistics_of_one() -> None:
    """Each has half of the rows, with different numbers of valid ones."""
    config = CrossQConfig(critics=Ensemble(size=3))
    critic = action_value(OBSERVATIONS, BOX, hidden_sizes=(HIDDEN,), batch_renorm=True)
    alone = dataclasses.replace(actor_critic_setup(config, "squashed"), critic=critic)
    shared = dataclasses.replace(alone, axis_name="d")
    (actor, _, _, now) = case("squashed", 4)
    noise = jnp.asarray(now.noise)
    inputs = now.batch.inputs._replace(obs=(now.batch.inputs.obs, now.batch.action))
    params, statistics = split_variables(jit(jax.vmap(critic.init, (0, None)))(jax.random.split(KEY(), 3), inputs))

    def gradient(setup: Any, batch: Any, noise: Any) -> Any:
        update = now._replace(batch=batch, noise=noise)
        loss = lambda p: crossq.critic_loss(setup, Variables(p, statistics), actor, jnp.float32(ALPHA), update)  # noqa: E731
        found, logged = mean_gradient(loss, params, setup.axis_name)
        return found, logged[STATISTICS]

    halves = jax.tree.map(lambda x: jnp.asarray(x).reshape(2, N // 2, *x.shape[1:]), now.batch)
    each = noise.reshape(2, 2, N // 2, D).swapaxes(0, 1)
    both = jit(jax.vmap(partial(gradient, shared), axis_name="d"))(halves, each)
    one = jit(partial(gradient, alone))(now.batch, noise)
    assert len({int(n) for n in halves.valid.sum(1)}) == 2
    for device in range(2):
        assert_close(jax.tree.map(lambda x, i=device: x[i], both), one, atol=1e-4)


# ------------------------------------------------------------------------------------------------------------- update schedule


def sgd(hyperparams: Any) -> optax.GradientTransformation:
    return optax.sgd(hyperparams.learning_rate)


@pytest.mark.slow
def test_updates_are_those_of_a_loop() -> None:
    """Two groups: three updates of the critics, and one of the policy and the temperature. Statistics learn in each of them."""
    rates = {"learning_rate": 0.05, "actor_learning_rate": 0.02, "temperature": LearnedTemperature(0.5, learning_rate=0.1)}
    agent = small_crossq(probes.action_by_observation(), optimizer=sgd, replay_ratio=24, **rates)
    setup = agent.algorithm.learn.args[0]  # type: ignore[union-attr]

    def run(key: Any) -> Any:
        start = agent.init(key).learner
        return start, agent.algorithm.learn(start), draw_updates(setup, start, 0.99)  # type: ignore[misc]

    start, (learner, metrics), draws = jit(run)(KEY())
    assert draws.batch.reward.shape == (2, 3, 32)

    @jit
    def critic_gradient(critic: Any, learnt: Any, actor: Any, alpha: Any, now: Any) -> Any:
        of_params = lambda p: crossq.critic_loss(setup, Variables(p, learnt), actor, alpha, now)  # noqa: E731
        gradient, logged = jax.grad(of_params, has_aux=True)(critic)
        return gradient, logged[STATISTICS]

    @jit
    def actor_gradient(actor: Any, learnt: Any, critic: Any, alpha: Any, now: Any) -> Any:
        of_params = lambda p: actor_loss(setup, Variables(p, learnt), critic, alpha, now)  # noqa: E731
        return jax.grad(of_params, has_aux=True)(actor)

    (actor, critic), learnt, log_alpha = start.params, start.statistics, start.log_temperature
    adam = optax.adam(0.1)
    adam_state = adam.init(log_alpha)
    for g in range(2):
        alpha = jnp.exp(log_alpha)
        for i in range(3):
            now = jax.tree.map(lambda x, g=g, i=i: x[g, i], draws)
            slope, changed = critic_gradient(critic, learnt.critic, Variables(actor, learnt.actor), alpha, now)
            critic, learnt = jax.tree.map(lambda p, g: p - 0.05 * g, critic, slope), learnt._replace(critic=changed)
        slope, logged = actor_gradient(actor, learnt.actor, Variables(critic, learnt.critic), alpha, now)
        actor, learnt = jax.tree.map(lambda p, g: p - 0.02 * g, actor, slope), learnt._replace(actor=logged[STATISTICS])
        step, adam_state = adam.update(alpha * (logged["losses/entropy"] + 1.0), adam_state)
        log_alpha += step
    assert_close(learner.params, ActorCriticPair(actor, critic), atol=1e-4)
    assert_close(learner.statistics, learnt, atol=1e-4)
    assert float(learner.log_temperature) == pytest.approx(float(log_alpha), abs=1e-4)
    counts = [{int(n) for n in np.ravel(steps_of(part))} for part in learner.statistics]
    assert counts == [{2}, {6}] and int(metrics["losses/td_loss"].count) == 6 and int(metrics["losses/actor_loss"].count) == 2


def steps_of(statistics: Any) -> np.ndarray:
    """Return the numbers of batches that the layers have learnt from."""
    leaves = jax.tree.leaves_with_path(statistics)
    return np.stack([np.asarray(x) for path, x in leaves if "steps" in jax.tree_util.keystr(path)])


def test_no_target_networks_and_beta_one_half() -> None:
    agent = small_crossq(probes.target_action())
    learner = jax.eval_shape(agent.init, KEY()).learner
    assert not hasattr(learner, "target_params") and agent.hyperparams.adam_b1 == 0.5
    assert agent.algorithm.transferable_fields == ("params", "statistics", "log_temperature")


# ------------------------------------------------------------------------------------------------------------------ statistics


@pytest.mark.slow
def test_a_policy_saves_its_statistics_and_a_run_starts_from_them(tmp_path: Path) -> None:
    agent = make_crossq("Pendulum-v1", **TINY.settings)
    states, _ = jaxrl.run(agent, 120, seeds=[3], out=tmp_path, eval_every=3, eval_episodes=2, quiet=True, tensorboard=False)
    learner = jax.tree.map(lambda x: x[0], states.learner)
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    inputs = first_input(jnp.asarray(obs), agent.env.action_space, 6)

    def greedy(learner: Any) -> np.ndarray:
        policy = agent.algorithm.policy(learner)
        assert policy.params.critic == policy.statistics.critic == ()
        return np.asarray(agent.algorithm.act(policy, (), inputs, jnp.arange(6), KEY(), explore=False)[1])

    loaded = jaxrl.load_policy(tmp_path, which="last")
    np.testing.assert_allclose(loaded(obs), greedy(learner), atol=1e-6)
    new = jit(agent.algorithm.init)(KEY(), CrossQHyperparams()).statistics
    assert np.abs(loaded(obs) - greedy(learner._replace(statistics=new))).max() > 1e-3
    assert loaded.arrays()["statistics/actor/batch_stats/torso/renorm_0/mean"].shape == (8,)
    best = jaxrl.load_policy(tmp_path)
    assert (steps_of(best.policy.statistics.actor) == best.policy.version).all()  # one update of the policy per iteration

    started, _ = jaxrl.run(agent, 80, seeds=[4], init_from=tmp_path, init_which="last", eval_every=0, quiet=True)
    more = steps_of(started.learner.statistics.actor) - steps_of(learner.statistics.actor)
    assert (more == int(started.learner.version[0])).all() and (more > 0).all()


def test_networks_without_statistics_are_taken_too() -> None:
    """For ablations. ``policy_network`` and ``action_value`` are the algorithm's networks, so their arguments are completed."""
    shapes = lambda agent: jax.eval_shape(agent.init, KEY()).learner.statistics  # noqa: E731
    plain = {"model": {"hidden_sizes": (8,), "batch_renorm": False}}
    assert shapes(small_crossq(probes.target_action(), **plain, critic=None)) == ()
    policy_alone = shapes(small_crossq(probes.target_action(), critic={"hidden_sizes": (8,), "batch_renorm": False}))
    assert policy_alone.critic == () and policy_alone.actor
    explicit = small_crossq(probes.target_action(), model=partial(policy_network, hidden_sizes=(8,), batch_renorm=False))
    assert shapes(explicit).actor == () and shapes(explicit).critic


@pytest.mark.slow
def test_learning_without_statistics_in_one_network() -> None:
    agent = small_crossq(probes.target_action(), model={"hidden_sizes": (8,), "batch_renorm": False})
    state, metrics = jit(agent.step)(jit(agent.init)(KEY()))
    assert state.learner.statistics.actor == () and np.isfinite(metrics["losses/td_loss"].sum)


def test_sizes_and_spec() -> None:
    def widths(**given: Any) -> list[int]:
        agent = make_crossq("Pendulum-v1", **given)
        again = jaxrl.build(agent.spec)
        assert again.spec == agent.spec
        learner = jax.eval_shape(lambda: again.algorithm.init(KEY(), CrossQHyperparams()))
        assert jax.tree.leaves(learner.statistics.actor) and jax.tree.leaves(learner.statistics.critic)
        params = learner.params
        return [p["params"]["torso"][f"hidden_{i}"]["bias"].shape[-1] for p in (params.actor, params.critic) for i in range(2)]

    assert widths() == [256, 256, 1024, 1024]
    assert widths(critic={"hidden_sizes": (8, 4)}) == [256, 256, 8, 4]
    assert widths(model={"hidden_sizes": (8, 8)}) == [8, 8, 8, 8]
    assert widths(critic=partial(action_value, hidden_sizes=(8, 4))) == [256, 256, 8, 4]


@pytest.mark.parametrize("critics", [{"name": "quantiles", "num_quantiles": 5, "dropped": 1}, {"size": 3, "subset": 2}])
@pytest.mark.slow
def test_critics_and_optimism_as_in_sac(critics: Any) -> None:
    networks = {"model": {"hidden_sizes": (8,)}, "critic": {"hidden_sizes": (8,), "dropout": 0.1}}
    agent = small_crossq(probes.target_action(), critics=critics, exploration="optimistic", replay="prioritized", **networks)
    state, _ = jit(agent.step)(jit(agent.init)(KEY()))
    state, metrics = jit(agent.step)(state)
    assert np.isfinite(metrics["losses/td_loss"].sum)
    policy = agent.algorithm.policy(state.learner)
    assert_bit_equal(network_variables(policy), network_variables(state.learner))


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, Any]:
    """With a temperature that keeps the policy wide: normalised critics know no other actions than its own."""
    rates = {"gamma": 0.9, "learning_rate": 0.01, "actor_learning_rate": 0.005, "temperature": FixedTemperature(0.1)}
    critic = partial(action_value, hidden_sizes=(32,))
    return learn_q_probes(partial(small_crossq, learning_starts=120, critic=critic, **rates))


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    check_q_probe(probe, *learnt()[probe])


# ------------------------------------------------------------------------------------------------------------ invalid settings


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(TypeError, match="CrossQ needs a Box action space"):
        make_crossq("CartPole-v1")
    assert isinstance(make_crossq("Pendulum-v1").env.action_space, spaces.Box)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replay_ratio": 8}, "policy_delay=3 must divide the 2 updates of an iteration"),
        ({"adam_b1": 1.0}, r"adam_b1=1 is not allowed: it must be a number in \[0, 0.999\]"),
        ({"optimizer": optax.adam(1e-3), "adam_b1": 0.9}, "adam_b1=0.9 has no effect, because optimizer=.* does not use it"),
        ({"temperature": LearnedTemperature(discrete_entropy=0.5)}, "discrete_entropy=0.5 has no effect on Box"),
        ({"model": {"batch_renorm": "yes"}}, "batch_renorm='yes' must be True or False"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        small_crossq(probes.target_action(), **settings)


def test_there_is_no_tau() -> None:
    with pytest.raises(TypeError, match=r"make_crossq\(\) got an unknown keyword 'tau'"):
        small_crossq(probes.target_action(), tau=0.1)
