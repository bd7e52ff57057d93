"""Annealing, schedules, clipping and single tracing: the optimizer as PPO uses it."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import make_train
from jaxrl.algorithms.ppo import (
    PPOConfig,
    PPOHyperparams,
)
from jaxrl.algorithms.sac import SACHyperparams
from jaxrl.metrics import to_floats
from jaxrl.optimize import clipped_adam, clipped_rmsprop
from jaxrl.optimize.gradients import accumulated_gradient, valid_mean, valid_means
from jaxrl.optimize.schedules import scheduled
from jaxrl.parallel import make_mesh
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, assert_close, small_ppo
from tests.helpers.ppo_cases import jit, sample, whole_batch

KEY = partial(jax.random.key, 0)


def test_means_over_valid_rows() -> None:
    rng = np.random.default_rng(0)
    a, b, valid = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.random((3, 4)) < 0.6
    rows = {"a": jnp.where(valid, a, jnp.nan), "b": jnp.float32(b)}  # invalid rows may hold any value
    expected = {"a": a[valid].mean(), "b": b[valid].mean()}
    loss, logged = valid_means(rows["b"], rows, jnp.asarray(valid))
    assert {"loss": float(loss), **{k: float(x) for k, x in logged.items()}} == pytest.approx(
        {"loss": expected["b"], **expected}, rel=1e-5
    )
    assert float(valid_mean(jnp.asarray(valid))(rows["a"])) == pytest.approx(expected["a"], rel=1e-5)
    gradient = jax.grad(lambda x: valid_means(x, {**rows, "x": x}, jnp.asarray(valid))[0])(rows["a"])
    np.testing.assert_allclose(gradient, valid / valid.sum(), rtol=1e-6)  # and not of logged values
    loss, logged = valid_means(rows["b"], rows, jnp.zeros((3, 4), bool))
    assert (float(loss), float(logged["a"]), float(logged["b"])) == (0.0, 0.0, 0.0)


@pytest.mark.slow
def test_the_gradient_of_parts_is_that_of_the_whole() -> None:
    """Parts have different numbers of valid rows, one has none, and a loss may add terms that do not depend on rows."""
    rng, (n, d) = np.random.default_rng(0), (12, 3)
    x, y, w = rng.normal(size=(n, d)), rng.normal(size=n), rng.normal(size=d)
    valid = np.array([1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0], bool)  # of three parts 3, 1 and 2; of six 2 1 0 1 1 1

    def loss(params: Any, batch: Any, axis_name: str | None) -> Any:
        mean, error = valid_mean(batch["valid"], axis_name), batch["x"] @ params["w"] - batch["y"]
        total = mean(error**2) + 0.5 * (params["w"] ** 2).sum()
        return total, {"total": total, "two": 2}

    batch = jax.tree.map(jnp.asarray, {"x": x, "y": y, "valid": valid})
    error = (x @ w - y)[valid]
    expected = {"w": 2 * (error[:, None] * x[valid]).mean(0) + w}
    for parts in (1, 3, 6):
        gradient, logged = accumulated_gradient(loss, {"w": jnp.asarray(w)}, batch, batch["valid"], parts)
        assert_close(gradient, jax.tree.map(np.float32, expected), atol=1e-5)
        assert float(logged["total"]) == pytest.approx((error**2).mean() + 0.5 * (w**2).sum(), rel=1e-5)
        assert float(logged["two"]) == pytest.approx(2)
    none = {**batch, "valid": jnp.zeros(n, bool)}
    gradient, _ = accumulated_gradient(loss, {"w": jnp.asarray(w)}, none, none["valid"], 3)
    np.testing.assert_allclose(gradient["w"], w, rtol=1e-5)
    with pytest.raises(ValueError, match="accumulation_steps=5 must divide the 12 items of a minibatch on each device"):
        accumulated_gradient(loss, {"w": jnp.asarray(w)}, batch, batch["valid"], 5)


def test_devices_meet_as_often_for_many_parts_as_for_few() -> None:
    """Each all-reduce costs a network delay: two hosts have one per gradient, not one per part of a gradient."""

    def loss(params: Any, batch: Any, axis_name: str | None) -> Any:
        total = valid_mean(batch["valid"], axis_name)((batch["x"] * params) ** 2)
        return total, {"total": total}

    def gradient(params: Any, batch: Any, parts: int) -> Any:
        return accumulated_gradient(loss, params, batch, batch["valid"], parts, "d")[0]

    x, valid = jnp.arange(16.0), jnp.arange(16) % 5 > 0
    batch, mesh, split = {"x": x, "valid": valid}, make_mesh({"d": 2}), jax.P("d")
    for parts in (2, 8):
        shared = jax.shard_map(
            lambda params, batch, parts=parts: gradient(params, batch, parts),
            mesh=mesh,
            in_specs=(jax.P(), split),
            out_specs=jax.P(),
        )
        program = str(jax.make_jaxpr(shared)(jnp.float32(3), batch))
        assert len(re.findall(r"= psum\w*\[", program)) == 2
        assert float(jax.jit(shared)(jnp.float32(3), batch)) == pytest.approx(float(6 * (x**2)[valid].mean()))


@pytest.mark.slow
def test_annealing_falls_to_zero_at_total_steps() -> None:
    agent, (state, rollout) = whole_batch(anneal=True), sample()
    known = state.learner._replace(hyperparams=state.learner.hyperparams._replace(total_steps=jnp.float32(5 * 32)))
    update = jit(agent.algorithm.update)
    for iteration in range(7):
        learner, metrics = update(known._replace(version=jnp.int32(iteration)), rollout)
        assert to_floats(metrics)["charts/learning_rate"] == pytest.approx(max(0.1 * (1 - iteration / 5), 0), abs=1e-7)
    assert_bit_equal(learner.params, state.learner.params)  # with a learning rate of 0
    _, metrics = update(state.learner._replace(version=jnp.int32(6)), rollout)
    assert to_floats(metrics)["charts/learning_rate"] == pytest.approx(0.1)  # traced, with an unknown length


def test_annealing_is_of_all_learning_rates() -> None:
    hp = SACHyperparams(learning_rate=0.1, actor_learning_rate=0.2, temperature_learning_rate=0.3, total_steps=320)
    now = scheduled(hp, {"actor_learning_rate": lambda i: 0.5}, jnp.int32(5), annealed_rows=32)
    assert float(now.learning_rate) == pytest.approx(0.05) and float(now.temperature_learning_rate) == pytest.approx(0.15)
    assert float(now.actor_learning_rate) == pytest.approx(0.1) and now._replace(**hp._asdict()) == hp


@pytest.mark.slow
def test_annealing_waits_for_a_length_and_gives_way_to_a_schedule() -> None:
    """Stepping by hand without a length, or with a schedule of the learning rate, uses the given rate."""
    assert PPOConfig().anneal
    schedule = {"learning_rate": optax.linear_schedule(1, 0, 8)}
    for settings, expected in (({}, 0.1), ({"total_steps": 4 * 32}, 0.05), ({"total_steps": 64, "schedules": schedule}, 0.075)):
        agent, (state, rollout) = whole_batch(**{"anneal": True, **settings}), sample()
        total_steps = jnp.float32(settings.get("total_steps", 0))
        learner = state.learner._replace(hyperparams=state.learner.hyperparams._replace(total_steps=total_steps))
        _, metrics = jit(agent.algorithm.update)(learner._replace(version=jnp.int32(2)), rollout)
        assert to_floats(metrics)["charts/learning_rate"] == pytest.approx(expected)


@pytest.mark.slow
def test_schedules_count_the_warm_up() -> None:
    """So both end with the run: at 1/5 of the rate in the last of its five iterations."""
    for settings in ({"anneal": True}, {"schedules": {"learning_rate": optax.linear_schedule(1, 0, 5)}}):
        agent = small_ppo(probes.memory(), normalize_observations=True, num_epochs=1, num_minibatches=1, **settings)
        assert agent.algorithm.warmup_iterations == 1
        _, metrics = jit(make_train(agent, 5 * 32))(KEY())
        np.testing.assert_allclose(metrics["charts/learning_rate"].sum, 1e-3 * np.array([0.8, 0.6, 0.4, 0.2]), rtol=1e-5)


def twice_at_three(iteration: Any) -> Any:
    return jnp.where(iteration == 3, 2.0, 0.0)


@pytest.mark.slow
def test_schedules_are_factors_by_iteration_and_reach_the_optimiser() -> None:
    state, rollout = sample()
    plain, scheduled = (jit(whole_batch(schedules=s).algorithm.update) for s in (None, {"learning_rate": twice_at_three}))
    expected, _ = plain(state.learner, rollout)
    for iteration, factor in ((0, 0), (3, 2), (4, 0)):
        learner, metrics = scheduled(state.learner._replace(version=jnp.int32(iteration)), rollout)
        assert to_floats(metrics)["charts/learning_rate"] == pytest.approx(0.1 * factor)
        moved = jax.tree.map(lambda p, q, f=factor: p + f * (q - p), state.learner.params, expected.params)
        assert_close(learner.params, moved, atol=1e-6)
        assert learner.hyperparams == state.learner.hyperparams  # the state keeps the base values


def test_scheduled() -> None:
    schedules = {"learning_rate": optax.linear_schedule(1, 0, 4), "ent_coef": lambda i: 2.0 + i}
    for i, rate in enumerate([1.0, 0.75, 0.5, 0.25, 0.0, 0.0]):
        now = scheduled(PPOHyperparams(learning_rate=8.0, ent_coef=1.0), schedules, jnp.int32(i))
        assert (float(now.learning_rate), float(now.ent_coef), now.gamma) == (8 * rate, 2 + i, 0.99)


@pytest.mark.slow
def test_the_gradient_is_clipped_by_its_global_norm() -> None:
    """Two steps of Adam by hand (the first one alone does not depend on the scale): large gradients shrink as a whole, small ones
    do not."""
    hp = PPOHyperparams(learning_rate=0.1, max_grad_norm=1.0)
    gradients = [{"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}, {"a": np.array([0.1, 0.2]), "b": np.array([[-0.3]])}]
    optimiser = clipped_adam(hp)
    state = optimiser.init(jax.tree.map(jnp.asarray, gradients[0]))
    m = v = {"a": np.zeros(2), "b": np.zeros((1, 1))}
    for t, gradient in enumerate(gradients, 1):
        updates, state = optimiser.update(jax.tree.map(jnp.asarray, gradient), state)
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        clipped = {name: g / max(norm, 1.0) for name, g in gradient.items()}
        m = {name: 0.9 * m[name] + 0.1 * g for name, g in clipped.items()}
        v = {name: 0.999 * v[name] + 0.001 * g**2 for name, g in clipped.items()}
        for name in gradient:
            expected = -0.1 * (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.999**t)) + 1e-5)
            np.testing.assert_allclose(updates[name], expected, rtol=1e-4)
    optaxs = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    kept = optaxs.init(jax.tree.map(jnp.asarray, gradients[0]))
    assert jax.tree.structure(state) == jax.tree.structure(kept) and int(state[1][0].count) == 2  # old checkpoints resume


@pytest.mark.slow
def test_one_trace_serves_all_hyperparameters_and_parameters() -> None:
    agent = small_ppo(probes.truncation(), num_epochs=1)
    step = jit(agent.step)
    for given, cut in (
        (None, None),
        ({"gamma": 0.5, "ent_coef": 0}, None),
        (None, probes.Cut(np.int64(3))),
        (None, probes.Cut(2)),
    ):
        state = agent.init(KEY(), given, cut)
        for _ in range(2):
            state, _ = step(state)
    assert step._cache_size() == 1


@pytest.mark.slow
def test_rmsprop_is_the_papers() -> None:
    """Mnih et al. 2016, section 4, over three gradients, where the second is clipped."""
    hp = PPOHyperparams(learning_rate=0.1, max_grad_norm=1.0)
    gradients = np.array([[0.3, -0.2, 0.1], [3.0, 4.0, 0.0], [-0.1, 0.0, 0.5]])
    params, optimise = jnp.zeros(3), clipped_rmsprop(hp)
    state = optimise.init(params)
    theta, g = np.zeros(3), np.zeros(3)
    for gradient in gradients:
        updates, state = optimise.update(jnp.float32(gradient), state, params)
        params = optax.apply_updates(params, updates)
        clipped = gradient / max(1.0, np.linalg.norm(gradient))
        g = 0.99 * g + 0.01 * clipped**2
        theta = theta - 0.1 * clipped / np.sqrt(g + 1e-5)
        np.testing.assert_allclose(params, theta, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_ppo_cuts_large_minibatches_unless_a_loss_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is the same up to rounding."""
    large = {"num_envs": 512, "rollout_length": 4, "num_epochs": 1, "num_minibatches": 2}
    agent = small_ppo("CartPole-v1", **large)
    state = jit(agent.init)(jax.random.key(0))
    whole = jit(agent.step)(state)
    cut: list[int] = []
    monkeypatch.setattr("jaxrl.xla.cache_blocking.parts_in_cache", lambda *args, rows: cut.append(rows) or 8)
    assert_close(jit(small_ppo("CartPole-v1", **large).step)(state), whole, atol=1e-5)
    assert {*cut} == {1024}
    cut.clear()
    jax.eval_shape(small_ppo("CartPole-v1", **large, extra_losses=lambda params, batch: (0.0, {})).step, state)
    assert not cut
