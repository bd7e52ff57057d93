"""MPC: the loss of its dynamics and the returns that they predict, against NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.algorithms.common.planning.dynamics import (
    DynamicsBatch,
    DynamicsStatistics,
    LearnedDynamics,
    dynamics_loss,
    learned_returns,
    targets,
)
from jaxrl.algorithms.mpc import MPCSetup
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.action_noise import standard_normal
from jaxrl.models import StepPrediction
from jaxrl.optimize.gradients import mean_gradient
from jaxrl.options import EnsembleDynamics
from jaxrl.rollout.running_statistics import RunningMoments
from jaxrl.types import Model
from tests.helpers.agents import assert_close

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)


def linear_model(terminates: bool = True) -> Model:
    """Build dynamics that are linear in (observation, action), with constant variances."""

    def apply(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        x = jnp.concatenate(inputs.obs, -1)
        mean = x @ params["w"]
        constant = lambda name: jnp.broadcast_to(params[name], mean.shape)  # noqa: E731
        logit = x @ params["t"] if terminates else jnp.full(x.shape[:-1], -30.0)
        return carry, StepPrediction(mean, constant("s"), constant("width"), logit)

    return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]


def linear_params(rng: np.random.Generator, size: int, n: int = 2, d: int = 1) -> dict[str, np.ndarray]:
    shapes = {"w": (n + d, n + 1), "s": (n + 1,), "width": (n + 1,), "t": (n + d,)}
    return {name: rng.normal(size=(size, *shape)).astype(np.float32) for name, shape in shapes.items()}


STATISTICS = DynamicsStatistics(
    RunningMoments(np.float32(9), np.float32([0.5, -1.0]), np.float32([4.0, 0.25])),
    RunningMoments(np.float32(9), np.float32([0.1, 0.2, -3.0]), np.float32([1.0, 9.0, 0.16])),
)  # type: ignore[arg-type]


def normalised(moments: RunningMoments, x: np.ndarray) -> np.ndarray:
    return (x - moments.mean) / np.sqrt(moments.variance)


def test_targets_are_finite_after_a_termination_and_do_not_wrap() -> None:
    obs, reached = np.float32([[1, 2], [3, 4]]), np.float32([[np.nan, 5], [np.inf, 1]])
    found = targets(obs, np.float32([7, 8]), reached, np.array([True, False]))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, [[0, 3, 7], [np.inf, -3, 8]])  # only a termination hides what is not finite
    small = np.uint8([[10]]), np.float32([0]), np.uint8([[5]])
    np.testing.assert_array_equal(targets(*small, np.array([False])), [[-5, 0]])  # type: ignore[arg-type]


def test_loss_and_gradient_against_numpy() -> None:
    """Two networks, each on rows of its own, some of them not valid."""
    rng, size, rows = np.random.default_rng(0), 2, 7
    params = linear_params(rng, size)
    draw = lambda *shape: rng.normal(size=(size, rows, *shape)).astype(np.float32)  # noqa: E731
    valid, terminated = rng.random((size, rows)) < 0.7, rng.random((size, rows)) < 0.4
    batch = DynamicsBatch(draw(2), draw(1), draw(2), draw(), terminated, valid)
    broken = batch._replace(obs=np.where(valid[..., None], batch.obs, np.nan), reward=np.where(valid, batch.reward, np.inf))
    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    setup: Any = MPCSetup(box, box, linear_model(), None, replay=None)  # type: ignore[arg-type]
    loss_of = jit(jax.value_and_grad(partial(dynamics_loss, setup, 0.05, STATISTICS), has_aux=True))
    (loss, logged), gradient = loss_of(params, broken)

    x = np.concatenate([normalised(STATISTICS.observations, batch.obs), batch.action], -1)
    change = np.concatenate([batch.next_obs - batch.obs, batch.reward[..., None]], -1)
    wanted, mean = normalised(STATISTICS.targets, change), np.einsum("erx,exy->ery", x, params["w"])
    s, error = params["s"][:, None], (wanted - mean) ** 2
    nll = 0.5 * (error * np.exp(-s) + s).sum(-1)
    logit = np.einsum("erx,ex->er", x, params["t"])
    ends = np.where(terminated, np.log1p(np.exp(-logit)), np.log1p(np.exp(logit)))
    expected = (nll + ends)[valid].mean() + 0.05 * np.broadcast_to(params["width"].sum(-1)[:, None], (size, rows))[valid].mean()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert float(logged["losses/dynamics_loss"]) == pytest.approx(nll[valid].mean(), rel=1e-5)
    assert float(logged["losses/dynamics_error"]) == pytest.approx(error.mean(-1)[valid].mean(), rel=1e-5)
    assert float(logged["losses/termination_loss"]) == pytest.approx(ends[valid].mean(), rel=1e-5)
    count, weight = valid.sum(), valid.astype(np.float32)
    slope_w = np.einsum("er,erx,ery->exy", weight, x, (mean - wanted) * np.exp(-s)) / count
    slope_s = np.einsum("er,ery->ey", weight, 0.5 * (1 - error * np.exp(-s))) / count
    slope_t = np.einsum("er,erx->ex", weight * (1 / (1 + np.exp(-logit)) - terminated), x) / count
    for name, slope in {"w": slope_w, "s": slope_s, "t": slope_t}.items():
        np.testing.assert_allclose(gradient[name], slope, rtol=2e-4, atol=1e-5, err_msg=name)


def test_two_devices_have_the_gradient_of_one() -> None:
    """Each has half of the rows, with different numbers of valid ones."""
    rng, size, rows = np.random.default_rng(5), 2, 8
    params, box = linear_params(rng, size), spaces.Box(-1.0, 1.0, (1,), np.float32)
    draw = lambda *shape: rng.normal(size=(size, rows, *shape)).astype(np.float32)  # noqa: E731
    valid = np.broadcast_to(np.arange(rows) < 5, (size, rows))
    batch = DynamicsBatch(draw(2), draw(1), draw(2), draw(), draw() > 0, valid)

    def gradient(axis_name: str | None, batch: Any) -> Any:
        setup: Any = MPCSetup(box, box, linear_model(), None, axis_name=axis_name, replay=None)  # type: ignore[arg-type]
        return mean_gradient(lambda params: dynamics_loss(setup, 0.05, STATISTICS, params, batch), params, axis_name)[0]  # type: ignore[arg-type]

    halves = jax.tree.map(lambda x: np.stack(np.split(x, 2, axis=1)), batch)
    shared = jit(jax.vmap(partial(gradient, "d"), axis_name="d"))(halves)
    assert_close(jax.tree.map(lambda x: x[0], shared), jit(partial(gradient, None))(batch))


def learned(params: Any, reward: Any = None, terminates: bool = True) -> LearnedDynamics:
    return LearnedDynamics(linear_model(terminates), params, STATISTICS, jnp.float32(0.9), reward, lambda x: 2.0 * x)


@pytest.mark.parametrize("given", [False, True], ids=["learned reward", "given reward"])
def test_predicted_returns_against_numpy(given: bool) -> None:
    """TS∞: particle p of network e has the noise of (e, p) and the weights of e in all steps."""
    rng, option = np.random.default_rng(1), EnsembleDynamics(size=3, particles=2)
    params = linear_params(rng, option.size)
    obs, sequences = np.float32([0.3, -0.7]), rng.uniform(-1, 1, (4, 5, 1)).astype(np.float32)
    reward = (lambda obs, action, after: obs[0] + action[0] * after[1]) if given else None
    found = jit(partial(learned_returns, learned(params, reward), option))(obs, KEY(), sequences)

    noise = np.asarray(standard_normal(KEY(), (5, option.size, option.particles, 1, 2)))
    expected = np.zeros(4)
    for i, sequence in enumerate(sequences):
        for e in range(option.size):
            for p in range(option.particles):
                state, weight = obs.astype(np.float64), 1.0
                for h, action in enumerate(sequence):
                    x = np.concatenate([np.clip(normalised(STATISTICS.observations, state), -10, 10), action])
                    raw = STATISTICS.targets.mean + np.sqrt(STATISTICS.targets.variance) * (x @ params["w"][e])
                    deviation = np.sqrt(STATISTICS.targets.variance[:2]) * np.exp(0.5 * params["s"][e][:2])
                    after = state + raw[:2] + deviation * noise[h, e, p, 0]
                    expected[i] += weight * (state[0] + 2.0 * action[0] * after[1] if given else raw[2])
                    weight *= 0.9 / (1 + np.exp(x @ params["t"][e]))
                    state = after
    np.testing.assert_allclose(found, expected / (option.size * option.particles), rtol=1e-4)


def test_a_particle_keeps_its_network() -> None:
    """The mean over two networks is that of the returns of each alone, not of a trajectory that changes between them."""
    params = linear_params(np.random.default_rng(2), 2)
    params["s"][:] = -40.0  # no noise
    obs, sequences = np.float32([0.1, 0.2]), np.random.default_rng(3).uniform(-1, 1, (3, 6, 1)).astype(np.float32)

    @jit
    def returns(params: Any) -> Any:
        size = len(params["w"])
        return learned_returns(learned(params), EnsembleDynamics(size=size), obs, KEY(), sequences)

    each = [returns(jax.tree.map(lambda x, i=i: x[i : i + 1], params)) for i in range(2)]
    np.testing.assert_allclose(returns(params), (each[0] + each[1]) / 2, rtol=1e-4)
    assert (np.abs(each[0] - each[1]) > 0.1).all()
