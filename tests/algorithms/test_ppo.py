"""PPO: whole updates against NumPy, probes, normalisation, memory, schedules, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from jaxrl import make_ppo
from jaxrl.algorithms.common.ppo_objectives import Batch
from jaxrl.algorithms.ppo import PPOConfig, PPOHyperparams, ppo_loss, targets
from jaxrl.metrics import to_floats
from jaxrl.models import actor_critic, q_network
from jaxrl.optimize.minibatches import standardized
from jaxrl.returns import discounts, gae
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.running_statistics import init_statistics, normalize_inputs
from jaxrl.types import Agent, Model, Rollout
from tests.helpers import probes
from tests.helpers.agents import (
    RECURRENT,
    SMALL_ACTOR_CRITIC,
    Tiny,
    assert_bit_equal,
    assert_close,
    outputs_of,
    small_ppo,
    to_numpy,
)
from tests.helpers.ppo_cases import KEY, clock, jit, one_rollout, sample, small_model, whole_batch
from tests.helpers.probe_set import PROBES, SEEN, Learnt, learn_probes, learner_of

pytestmark = pytest.mark.expensive(80)

TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 8,
        "num_epochs": 2,
        "num_minibatches": 2,
        "anneal": False,
        "model": SMALL_ACTOR_CRITIC,
    },
    value=lambda *given: outputs_of(*given).value,
    one_gradient=("CartPole-v1", {"num_epochs": 1, "num_minibatches": 1}),
)

FEATURES = 3


# -------------------------------------------------------------------------------------------------------------- whole updates


@pytest.mark.slow
def test_one_update_is_one_step_down_the_gradient() -> None:
    """Advantages and λ-returns of all rows come from the values before learning. The last input gives V after the rollout."""
    agent, (state, rollout) = whole_batch(), sample()
    after, metrics = jit(agent.algorithm.update)(state.learner, rollout)

    model = small_model(agent.env)
    value = np.asarray(jit(model.unroll)(state.learner.params, (), rollout.inputs)[1].value)
    advantage = np.asarray(gae(rollout.reward, *discounts(rollout, 0.9, 0.95), value[:-1], value[1:], rollout.valid))
    flat = lambda x: np.asarray(x).reshape(-1, *x.shape[2:])  # noqa: E731
    batch = Batch(
        jax.tree.map(lambda x: flat(x[:-1]), rollout.inputs),
        (),
        flat(rollout.action),
        flat(rollout.extras["log_prob"]),
        flat(advantage),
        flat(advantage + value[:-1]),
        flat(value[:-1]),
        flat(rollout.valid),
    )
    made = make_targets(model, state.learner, rollout)
    assert_close(made, batch, atol=1e-4)
    loss = partial(ppo_loss, model, PPOConfig(), state.learner.hyperparams, axis_name=None)
    part = batch._replace(advantage=standardized(batch.advantage, batch.valid))
    gradient, _ = jit(jax.grad(loss, has_aux=True))(state.learner.params, part)
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, state.learner.params, gradient)
    assert_close(after.params, expected, atol=1e-5)
    assert to_floats(metrics)["losses/grad_norm"] == pytest.approx(float(optax.tree.norm(gradient)), rel=1e-4)
    assert (int(after.version), int(state.learner.version)) == (1, 0)


@partial(jit, static_argnums=0)
def make_targets(model: Model, learner: Any, rollout: Rollout) -> Batch:
    return targets(model, PPOConfig(), learner, rollout, learner.hyperparams)


def test_invalid_rows_of_a_rollout_have_no_influence() -> None:
    """Their action, probability, reward and flags have no influence; after a termination, their observation neither."""
    agent, (state, rollout) = whole_batch(), sample()
    other = lambda x, y: jnp.where(rollout.valid, x, y)  # noqa: E731
    changed = rollout._replace(
        action=other(rollout.action, 1 - rollout.action),
        reward=other(rollout.reward, 50.0),
        terminated=other(rollout.terminated, True),
        extras={**rollout.extras, "log_prob": other(rollout.extras["log_prob"], -9.0)},
    )
    obs = rollout.inputs.obs.at[:-1].set(jnp.where(rollout.valid[..., None], rollout.inputs.obs[:-1], 5.0))
    elsewhere = lambda r: r._replace(inputs=r.inputs._replace(obs=obs))  # noqa: E731
    update = jit(lambda learner, rollout: agent.algorithm.update(learner, rollout)[0].params)
    params = update(state.learner, rollout)
    assert_bit_equal(update(state.learner, elsewhere(changed)), params)
    # After a truncation the reset row's observation counts: it is the episode's last one, and its V is bootstrapped.
    cut = rollout._replace(truncated=rollout.terminated, terminated=jnp.zeros_like(rollout.terminated))
    moved = [jax.tree.leaves(to_numpy(update(state.learner, r))) for r in (cut, elsewhere(cut))]
    assert any(np.any(x != y) for x, y in zip(*moved, strict=True))


def test_extra_losses_are_added_and_logged() -> None:
    agent, with_extra, (state, rollout) = whole_batch(), whole_batch(extra=True), sample()
    plain, _ = jit(agent.algorithm.update)(state.learner, rollout)
    extra, metrics = jit(with_extra.algorithm.update)(state.learner, rollout)
    # The gradient of ½·|p|² is p itself.
    assert_close(extra.params, jax.tree.map(lambda a, p: a - 0.1 * p, plain.params, state.learner.params), atol=1e-5)
    assert to_floats(metrics)["losses/names"] == pytest.approx(float(rollout.inputs.obs[:-1, ..., 0].sum()), abs=1e-3)


def test_every_row_is_used_once_per_epoch() -> None:
    """Three epochs of four minibatches. Rows are identified by their observations."""
    agent, (state, rollout) = whole_batch(extra=True, num_epochs=3, num_minibatches=4), sample()
    names = np.random.default_rng(0).permutation(rollout.valid.size).astype(np.float32).reshape(rollout.valid.shape)
    obs = rollout.inputs.obs.at[:-1, ..., 0].set(names)
    _, metrics = jit(agent.algorithm.update)(state.learner, rollout._replace(inputs=rollout.inputs._replace(obs=obs)))
    assert int(metrics["losses/names"].count) == 12
    assert float(metrics["losses/size"].sum) == 12 * names.size / 4
    assert float(metrics["losses/names"].sum) == 3 * names.sum()
    assert float(metrics["losses/squares"].sum) == 3 * (names**2).sum()


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, Learnt]:
    return learn_probes("ppo", 80, num_epochs=4)


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    PROBES[probe][1](learnt()[probe])


def test_probe_target_action() -> None:
    """With clipping, and with a Gaussian that is squashed within the bounds."""
    squash = partial(SMALL_ACTOR_CRITIC, squash=True)
    for settings in ({}, {"model": squash}):
        action = jit(learner_of("ppo", probes.target_action(), 80, num_epochs=4, ent_coef=0.0, **settings))(KEY(), ())[0]
        assert float(action[1, 0]) == pytest.approx(3.0, abs=0.3)


def test_probe_two_choices() -> None:
    """A MultiDiscrete space with a mask, which is always respected. At an end no action is allowed."""
    seen = {"sign": SEEN[[0, 2]], "action_mask": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], np.int8)}
    action, probability, value, least = jit(learner_of("ppo", probes.two_choices(), 80, seen, num_epochs=4))(KEY(), ())
    assert action.tolist() == [[1, 1], [1, 2]] and action.dtype == jnp.int32
    assert (probability > 0.8).all() and (value > 0.8).all() and float(least) >= 0


@pytest.mark.parametrize("model", [SMALL_ACTOR_CRITIC, RECURRENT])
def test_actions_of_several_dimensions_have_the_shape_of_their_space(model: Any) -> None:
    """For a MultiDiscrete space and a Box, in the environment's actions and in the model's previous action."""
    for kind in (spaces.MultiDiscrete([[2, 3], [4, 2], [2, 2]]), spaces.Box(np.float32(0), np.float32(1), (3, 2))):
        env = probes.constant_reward()
        env = env._replace(
            action_space=kind,
            step=lambda key, state, action, params, step=env.step: step(
                key, state, jnp.zeros(()) * (action @ jnp.ones((2, 3))), params
            ),
        )
        agent = small_ppo(env, model=model)
        state, _ = jax.eval_shape(lambda key, agent=agent: agent.step(agent.init(key)), KEY())
        assert state.actor.input.prev_action.shape == (4, 3, 2)


# --------------------------------------------------------------------------------------------------------------- normalisation


@cache
def normalizing() -> Agent:
    sizes = {"num_epochs": 1, "num_minibatches": 1, "gamma": 0.5, "learning_rate": 0.01}
    return small_ppo(clock(), normalize_observations=True, normalize_rewards=True, **sizes)


def test_the_warm_up_seeds_the_statistics_with_valid_rows() -> None:
    """8 rows in 4 environments: times 0 1 2 [3] 0 1 2 [3], with reset rows in brackets."""
    state = jit(normalizing().init)(KEY())
    assert normalizing().algorithm.warmup_iterations == 1 and small_ppo(clock()).algorithm.warmup_iterations == 0
    observations, rewards, values = state.learner.statistics
    assert values == ()
    assert float(observations.count) == pytest.approx(4 * 6, rel=1e-4)
    np.testing.assert_allclose(observations.mean, [55.0], rtol=1e-4)
    np.testing.assert_allclose(observations.variance, [25 * 2 / 3], rtol=2e-2)
    returns = [1, 4 + 0.5, 9 + 0.5 * 4.5]  # γ = ½: the running discounted return of each row, then from 0 again
    assert float(rewards.moments.mean) == pytest.approx(np.mean(returns), rel=1e-3)
    assert float(rewards.moments.variance) == pytest.approx(np.var(returns), rel=1e-2)
    np.testing.assert_allclose(rewards.returns, np.zeros(4))  # the last row was a reset
    assert (int(state.learner.version), int(state.iteration)) == (0, 1)


def test_return_statistics_use_the_gamma_that_learning_uses() -> None:
    halved_then_off = {"gamma": lambda iteration: jnp.where(iteration < 2, 0.5, 0.0)}
    sizes = {"num_epochs": 1, "num_minibatches": 1, "gamma": 0.5}
    agent = small_ppo(clock(), normalize_rewards=True, schedules=halved_then_off, **sizes)
    state = jit(agent.init)(KEY())
    returns = [1, 4 + 0.25, 9 + 0.25 * 4.25]  # γ = ½ · ½
    assert float(state.learner.statistics.rewards.moments.mean) == pytest.approx(np.mean(returns), rel=1e-3)
    rollout, update = one_rollout(agent)(state), jit(agent.algorithm.update)
    for version, gamma in ((0, 0.25), (1, 0.0)):
        learner = state.learner._replace(version=jnp.int32(version), statistics=init_statistics(None, 4))
        moments = update(learner, rollout)[0].statistics.rewards.moments
        returns = [1, 4 + gamma, 9 + gamma * (4 + gamma)]
        assert float(moments.mean) == pytest.approx(np.mean(returns), rel=1e-3)


SHIFTING = probes.Cut(5)
"""Episodes of six rows including the reset, so that each rollout of eight rows contains different rows."""


def test_acting_and_learning_use_the_same_statistics() -> None:
    """So before the first gradient step every ratio is 1, although the statistics change with each iteration."""
    agent = normalizing()
    state, step = jit(agent.init)(KEY(), None, SHIFTING), jit(agent.step)
    for _ in range(3):
        before = state.learner.statistics.observations
        state, metrics = step(state)
        closed, after = to_floats(metrics), state.learner.statistics.observations
        assert closed["losses/approx_kl"] == pytest.approx(0, abs=1e-6) and closed["losses/clipfrac"] == 0
        assert float(after.count - before.count) == pytest.approx(float(metrics["charts/valid_rows"].sum), rel=1e-3)
        assert abs(float(after.mean[0] - before.mean[0])) > 0.1


def test_rewards_are_scaled_by_the_statistics_that_acted_and_stay_raw_in_the_log() -> None:
    agent = normalizing()
    state = jit(agent.init)(KEY(), None, SHIFTING)
    rollout = one_rollout(agent)(state)
    batch = make_targets(small_model(agent.env), state.learner, rollout)
    inputs = normalize_inputs(state.learner.statistics, rollout.inputs)
    value = small_model(agent.env).unroll(state.learner.params, (), inputs)[1].value
    scaled = rollout.reward / np.sqrt(float(state.learner.statistics.rewards.moments.variance))
    expected = gae(scaled, *discounts(rollout, 0.5, 0.95), value[:-1], value[1:], rollout.valid)
    np.testing.assert_allclose(batch.advantage, expected.reshape(-1), rtol=1e-4, atol=1e-4)
    after, metrics = jit(agent.step)(state)
    assert to_floats(metrics)["charts/episodic_return"] == 1 + 4 + 9 + 16 + 25
    moments = [s.learner.statistics.rewards.moments for s in (state, after)]
    assert float(moments[1].variance) != pytest.approx(float(moments[0].variance), rel=0.02)  # otherwise any statistics would do


# ---------------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.slow
def test_a_recurrent_model_learns_from_the_carry_that_acted() -> None:
    """So before the first gradient step every ratio is 1, although rollouts begin in the middle of episodes."""
    agent = small_ppo(probes.memory(), model=RECURRENT, num_epochs=1, num_minibatches=1, rollout_length=6, learning_rate=0.05)
    state, step = jit(agent.init)(KEY()), jit(agent.step)
    for _ in range(3):
        state, metrics = step(state)
        assert to_floats(metrics)["losses/approx_kl"] == pytest.approx(0, abs=1e-6)
        assert to_floats(metrics)["losses/grad_norm"] > 0
    assert np.any(state.actor.carry) and np.asarray(state.actor.episode.episodic_length).any()

    # Values and advantages start from that carry too.
    rollout, model = one_rollout(agent)(state), RECURRENT(agent.env.observation_space, agent.env.action_space)
    value = jit(model.unroll)(state.learner.params, state.actor.carry, rollout.inputs)[1].value
    batch = make_targets(model, state.learner, rollout)
    np.testing.assert_allclose(batch.value, value[:-1].T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        batch.advantage,
        gae(rollout.reward, *discounts(rollout, 0.99, 0.95), value[:-1], value[1:], rollout.valid).T,
        rtol=1e-3,
        atol=1e-4,
    )
    assert_bit_equal(batch.carry, state.actor.carry)


def test_the_loss_of_sequences_is_that_of_their_rows() -> None:
    model = RECURRENT(spaces.Box(-1, 1, (FEATURES,), np.float32), spaces.Discrete(4))
    rng, (n, t) = np.random.default_rng(0), (3, 5)
    normal = lambda *shape: jnp.float32(rng.normal(size=shape))  # noqa: E731
    inputs = first_input(normal(n, t, FEATURES), spaces.Discrete(4), n)._replace(
        prev_action=jnp.asarray(rng.integers(4, size=(n, t)), jnp.int32),
        prev_reward=normal(n, t),
        is_first=jnp.asarray(rng.random((n, t)) < 0.3),
    )
    params = jit(model.init)(KEY(), jax.tree.map(lambda x: x[:, 0], inputs))
    action, valid = jnp.asarray(rng.integers(4, size=(n, t)), jnp.int32), jnp.asarray(rng.random((n, t)) < 0.7)
    batch = Batch(inputs, normal(n, 16), action, normal(n, t) - 1.4, normal(n, t), normal(n, t), normal(n, t), valid)
    total, _ = jit(lambda p, b: ppo_loss(model, PPOConfig(), PPOHyperparams(), p, b, None))(params, batch)

    outputs, apply = [], jit(model.apply)
    for i in range(n):  # one sequence at a time, one row at a time
        carry = np.asarray(batch.carry)[i : i + 1]
        for row in range(t):
            carry, output = apply(params, carry, jax.tree.map(lambda x, i=i, row=row: np.asarray(x)[i, row][None], inputs))
            outputs.append(output)
    output = jax.tree.map(lambda *x: jnp.concatenate(x), *outputs)
    known = Model(None, None, None, None)._replace(apply=lambda params, carry, inputs: (carry, output))  # type: ignore[arg-type]
    flat = jax.tree.map(lambda x: x.reshape(n * t, *x.shape[2:]), batch._replace(carry=()))
    assert float(total) == pytest.approx(float(ppo_loss(known, PPOConfig(), PPOHyperparams(), params, flat, None)[0]), rel=1e-4)


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_minibatches": 3}, r"num_minibatches=3 must divide num_envs \* rollout_length=32"),
        ({"num_minibatches": 64}, "num_minibatches=64 must divide"),
        (
            {"num_minibatches": 8, "model": RECURRENT},
            r"num_minibatches=8 must divide num_envs=4 \(a recurrent model learns from whole",
        ),
        ({"num_minibatches": 0}, "num_minibatches=0 must be an integer >= 1"),
        ({"num_epochs": -1}, "num_epochs=-1 must be an integer >= 1"),
        ({"num_envs": 0}, "num_envs=0 must be an integer >= 1"),
        ({"rollout_length": 0}, "rollout_length=0 must be an integer >= 1"),
        ({"total_steps": -1}, "total_steps=-1 is not allowed: it must be an integer >= 0"),
        ({"schedules": {"lr": optax.linear_schedule(1, 0, 3)}}, r"schedules\['lr'\] does not name a hyperparameter"),
        ({"schedules": {"learning_rates": optax.linear_schedule(1, 0, 3)}}, "Did you mean 'learning_rate'"),
    ],
)
def test_sizes_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_ppo(clock(), **settings)


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"schedules\['gamma'\]=0.5 must be a function of the iteration"):
        small_ppo(clock(), schedules={"gamma": 0.5})
    for wrong in (3, None, object(), {"env": "CartPole-v1"}):
        with pytest.raises(TypeError, match="env must be an id such as 'CartPole-v1', an Env, a HostEnv, or a Gymnasium class"):
            small_ppo(wrong)
    with pytest.raises(TypeError, match=r"must be a jaxrl\.Model\(.*\), or a function of \(observation_space, action_space\)"):
        small_ppo(clock(), model=lambda *spaces: 3)


@pytest.mark.parametrize(
    "model",
    [
        5,
        "gru",
        q_network,
        lambda o, _: actor_critic(o, spaces.Discrete(7)),
        lambda o, _: actor_critic(o, spaces.Box(-1, 1, (2,), np.float32)),
        lambda o, _: actor_critic(o, spaces.MultiDiscrete([2])),
        lambda o, _: actor_critic(o, spaces.Box(-1, 1, (2,), np.float32), squash=True),
    ],
    ids=["number", "name", "values only", "seven actions", "another kind of actions", "several dimensions", "squashed"],
)
def test_models_that_are_none(model: Any) -> None:
    with pytest.raises(TypeError, match=r"^model="):
        make_ppo(clock(), model=model)
