"""PPO's loss against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats
from gymnasium import spaces

from jaxrl.algorithms.common.ppo_objectives import Batch, Clip, KLPenalty
from jaxrl.algorithms.ppo import PPOConfig, PPOHyperparams, mean_noise_keys, ppo_loss, with_mean_noise
from jaxrl.distributions import Categorical
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import ActorCriticOutput
from jaxrl.optimize.minibatches import shuffled
from jaxrl.rollout.autoreset import first_input
from jaxrl.types import Model
from tests.helpers.agents import assert_bit_equal
from tests.helpers.loss_cases import N, linear_model, loss_case, policy_of

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""


# ------------------------------------------------------------------------------------------------------------------------ loss


def numpy_loss(discrete: bool, params: Any, batch: Batch, hp: Any, config: PPOConfig) -> dict[str, float]:
    """Compute the loss (Schulman et al. 2017, eq. 7 and 9) over the valid rows in double precision."""
    x, w, v = (np.asarray(a, np.float64) for a in (batch.inputs.obs, params["w"], params["v"]))
    valid, out, value = batch.valid, x @ w, x @ v
    out = out + batch.noise if config.mean_noise else out
    if discrete:
        log_p = out - np.log(np.exp(out).sum(-1, keepdims=True))
        log_prob, entropy = log_p[np.arange(N), batch.action], -(np.exp(log_p) * log_p).sum(-1)
    else:
        frozen = scipy.stats.norm(out, np.exp(params["log_std"]))
        log_prob, entropy = frozen.logpdf(batch.action).sum(-1), frozen.entropy().sum(-1)
    advantage = np.asarray(batch.advantage, np.float64)[valid]
    if config.normalize_advantages:
        advantage = (advantage - advantage.mean()) / np.sqrt(advantage.var() + 1e-8)
    log_ratio = (log_prob - batch.log_prob)[valid]
    ratio = np.exp(log_ratio)
    clip = config.surrogate if isinstance(config.surrogate, Clip) else None
    if clip is None:
        surrogate = ratio * advantage - BETA * numpy_kl(discrete, batch.policy, out, params["log_std"])[valid]
    else:
        surrogate = np.minimum(ratio * advantage, np.clip(ratio, 1 - hp.clip_eps, 1 + hp.clip_eps) * advantage)
    policy_loss = -surrogate.mean()
    target, old, new = batch.target[valid], batch.value[valid], value[valid]
    errors = (new - target) ** 2
    if clip and clip.value_loss:
        errors = np.maximum(errors, (old + np.clip(new - old, -hp.clip_eps, hp.clip_eps) - target) ** 2)
    value_loss = 0.5 * errors.mean()
    clipfrac = {"losses/clipfrac": (np.abs(ratio - 1) > hp.clip_eps).mean()} if clip else {}
    return clipfrac | {
        "total": policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy[valid].mean(),
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy[valid].mean(),
        "losses/approx_kl": (ratio - 1 - log_ratio).mean(),
    }


def numpy_kl(discrete: bool, old: Any, out: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    """Compute KL(old ‖ new): Σ p log(p / q) by scipy, or for each Gaussian component in closed form."""
    if discrete:
        p, q = (scipy.special.softmax(np.asarray(x, np.float64), -1) for x in (old.logits, out))
        return scipy.stats.entropy(p, q, axis=-1)
    mean, std, new = np.asarray(old.mean, np.float64), np.exp(np.float64(old.log_std)), np.exp(np.float64(log_std))
    return (np.log(new / std) + (std**2 + (mean - out) ** 2) / (2 * new**2) - 0.5).sum(-1)


def floats(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


BETA = 0.6
HP = PPOHyperparams(clip_eps=0.15, ent_coef=0.3, vf_coef=0.7)


@cache
def loss_and_gradient(discrete: bool, config: PPOConfig) -> Callable[..., Any]:
    def loss(params: Any, batch: Batch) -> Any:
        learner = SimpleNamespace(kl_coef=BETA)
        return ppo_loss(linear_model(discrete), config, HP, params, only_minibatch(config, batch), None, learner)

    return jit(jax.value_and_grad(loss, has_aux=True))


def only_minibatch(config: PPOConfig, batch: Batch) -> Batch:
    """Return all rows as the only minibatch of an epoch."""
    return jax.tree.map(lambda x: x[0], shuffled(batch, np.arange(N)[None], config.normalize_advantages))


CONFIGS = [PPOConfig(normalize_advantages=a, surrogate=Clip(value_loss=c)) for a in (False, True) for c in (False, True)]


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "clipped value", "normalised", "both"])
def test_the_loss_is_the_papers(discrete: bool, config: PPOConfig) -> None:
    for seed in range(3):
        params, batch = loss_case(discrete, seed)
        (total, metrics), _ = loss_and_gradient(discrete, config)(params, batch)
        expected = numpy_loss(discrete, params, batch, HP, config)
        assert {"total": float(total), **floats(metrics)} == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert 0 < expected["losses/clipfrac"] < 1  # both sides of the clip occur


@pytest.mark.parametrize("discrete", [True, False])
def test_the_loss_with_a_penalty_is_the_papers(discrete: bool) -> None:
    """Schulman et al. 2017, eq. 8. Rows that are not valid may have an old policy that is not finite."""
    config, (params, batch), (other, _) = PPOConfig(surrogate=KLPenalty()), loss_case(discrete), loss_case(discrete, 1)
    batch = batch._replace(policy=jax.tree.map(np.asarray, policy_of(discrete, other, batch.inputs.obs)))
    function = loss_and_gradient(discrete, config)
    (total, metrics), gradient = function(params, batch)
    expected = numpy_loss(discrete, params, batch, HP, config)
    assert {"total": float(total), **floats(metrics)} == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_bit_equal(function(params, with_other_invalid_rows(batch, np.nan)), ((total, metrics), gradient))


def test_the_loss_with_noise_on_the_mean() -> None:
    """Rahman and Xue 2022: log-probability and entropy are those of the policy with the noise."""
    config, (params, batch) = PPOConfig(mean_noise=0.5), loss_case(discrete=False)
    noisy = with_mean_noise(config, batch, jax.random.key(3))
    assert noisy.noise.shape == batch.action.shape and 0.4 < np.abs(noisy.noise).max() <= 0.5
    noisy = jax.tree.map(np.asarray, noisy)
    (total, metrics), _ = loss_and_gradient(False, config)(params, noisy)
    expected = numpy_loss(False, params, noisy, HP, config)
    assert {"total": float(total), **floats(metrics)} == pytest.approx(expected, rel=1e-4, abs=1e-5)
    without = numpy_loss(False, params, batch, HP, PPOConfig())
    assert expected["losses/policy_loss"] != pytest.approx(without["losses/policy_loss"], rel=0.01)


def test_each_epoch_and_each_device_draws_other_noise() -> None:
    config = PPOConfig(mean_noise=0.5, num_epochs=3)
    keys = mean_noise_keys(config, jax.random.key(0), None)
    on_devices = jax.vmap(lambda _: mean_noise_keys(config, jax.random.key(0), "data"), axis_name="data")(np.arange(2))
    drawn = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in [*keys, *on_devices.ravel()]}  # type: ignore[misc, union-attr]
    assert len(drawn) == 9
    assert mean_noise_keys(PPOConfig(), jax.random.key(0), None) is None


def with_other_invalid_rows(batch: Batch, garbage: float) -> Batch:
    """Replace everything except ``valid`` in the rows that are not valid."""

    def change(x: np.ndarray) -> np.ndarray:
        x = np.array(x)
        x[~batch.valid] = garbage if x.dtype.kind == "f" else x.dtype.type(1)
        return x

    return jax.tree.map(change, batch)._replace(valid=batch.valid)


def test_invalid_rows_have_no_influence() -> None:
    params, batch = loss_case(discrete=True)
    function = loss_and_gradient(True, CONFIGS[3])
    assert_bit_equal(function(params, batch), function(params, with_other_invalid_rows(batch, 7.0)))


@pytest.mark.parametrize("discrete", [True, False])
def test_invalid_rows_have_no_influence_even_if_they_are_not_finite(discrete: bool) -> None:
    """A simulation that breaks ends its episode with an observation that is not finite, which is in the reset row."""
    params, batch = loss_case(discrete)
    function = loss_and_gradient(discrete, CONFIGS[0])
    assert_bit_equal(function(params, batch), function(params, with_other_invalid_rows(batch, np.nan)))


def test_a_minibatch_without_valid_rows_changes_nothing() -> None:
    params, batch = loss_case(discrete=True)
    for config in CONFIGS:
        (total, metrics), gradient = loss_and_gradient(True, config)(params, batch._replace(valid=np.zeros(N, bool)))
        assert float(total) == 0 and not any(np.any(x) for x in jax.tree.leaves(gradient))
        assert set(floats(metrics).values()) == {0.0}


def test_where_the_surrogate_is_clipped_no_gradient_flows() -> None:
    """The ratio is far above 1 with a positive advantage, or far below 1 with a negative one."""
    params, batch = loss_case(discrete=True)
    config, sign = PPOConfig(normalize_advantages=False), np.where(np.arange(N) % 2, 1, -1)
    log_prob = np.asarray(policy_of(True, params, batch.inputs.obs).log_prob(batch.action)) - 2.0 * sign
    flat = batch._replace(log_prob=log_prob.astype(np.float32), advantage=sign.astype(np.float32))
    only_policy = PPOHyperparams(ent_coef=0.0, vf_coef=0.0)

    @jit
    def policy_gradient(batch: Batch) -> Any:
        return jax.grad(lambda p: ppo_loss(linear_model(True), config, only_policy, p, batch, None)[0])(params)["w"]

    assert not np.any(policy_gradient(flat))
    assert np.any(policy_gradient(flat._replace(advantage=-flat.advantage)))  # with the opposite sign there is a gradient


def test_where_the_value_loss_is_clipped_no_gradient_flows() -> None:
    """In all rows within the clip there is a gradient, for any rounding of the old value and the change."""
    rng, rows = np.random.default_rng(0), 1000
    old, target = (rng.normal(size=rows).astype(np.float32) for _ in range(2))
    value = old + rng.uniform(-2 * HP.clip_eps, 2 * HP.clip_eps, rows).astype(np.float32)
    zeros = np.zeros(rows, np.float32)
    policy = Categorical(np.zeros((rows, 2), np.float32))
    apply = lambda params, carry, inputs: (carry, ActorCriticOutput(policy, params))  # noqa: E731
    model = Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]
    inputs = first_input(zeros[:, None], spaces.Discrete(2), rows)
    batch = Batch(inputs, (), np.zeros(rows, np.int32), zeros, zeros, target, old, np.ones(rows, bool))
    config, hp = PPOConfig(surrogate=Clip(value_loss=True)), HP._replace(vf_coef=1.0, ent_coef=0.0)
    gradient = rows * jit(jax.grad(lambda value: ppo_loss(model, config, hp, value, batch, None)[0]))(value)

    change = value - old
    near = old + np.clip(change, -HP.clip_eps, HP.clip_eps)
    raised = (np.abs(change) > HP.clip_eps) & (np.abs(near - target) > np.abs(value - target))
    assert 0.2 < raised.mean() < 0.3
    np.testing.assert_allclose(gradient, np.where(raised, 0.0, value - target), rtol=1e-4, atol=1e-6)
