"""MPO: its improved policy, dual and losses against NumPy, updates of an iteration against a loop, probes, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from jaxrl import make_mpo
from jaxrl.algorithms import mpo
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, Ensemble
from jaxrl.algorithms.common.critics.updates import draw_updates
from jaxrl.algorithms.common.policy_improvement import Duals, divergences, improved, temperature_loss
from jaxrl.algorithms.mpo import OF_POLICY, OF_TARGET, MPOConfig, MPOHyperparams
from jaxrl.distributions import Categorical, Normal, TanhNormal
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.action_noise import standard_normal
from jaxrl.models import policy_network
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, Tiny, assert_close, small
from tests.helpers.oracles.actor_critic import (
    ACTIONS,
    BOX,
    CRITICS,
    SETTINGS,
    D,
    N,
    actor_critic_setup,
    case,
    check_q_probe,
    double,
    learn_q_probes,
    q_by_hand,
    values_of,
)
from tests.helpers.oracles.policy_gradient import slope
from tests.helpers.probe_set import PROBES

TINY = Tiny(
    settings={**SETTINGS, "model": partial(policy_network, hidden_sizes=(8,))},
    value=values_of,
    # A single transition. Draws of actions have an influence on the policy alone, which does not learn.
    one_gradient=(
        "tests.helpers.probes:constant_reward?num_actions=1",
        {"batch_size": 64, "actor_learning_rate": 0, "dual_learning_rate": 0},
    ),
    boxed=True,
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
small_mpo = partial(small, "mpo")
SAMPLES = 5


def discrete_mpo(env: Any, **settings: Any) -> Agent:
    return make_mpo(env, **{**TINY.settings, **settings})


# -------------------------------------------------------------------------------------------------------------- improved policy


@pytest.mark.parametrize("is_prior", [True, False])
def test_the_temperature_puts_the_improved_policy_at_its_divergence(is_prior: bool) -> None:
    """The dual is least at a temperature where the mean KL divergence of q from π⁻ is ε, as SciPy finds it too."""
    rng, epsilon = np.random.default_rng(0), 0.1
    values = (3 * rng.normal(size=(ACTIONS, N))).astype(np.float32)
    logits = rng.normal(size=(ACTIONS, N)).astype(np.float32)
    log_prior = logits - logsumexp(logits, 0) if is_prior else np.full((ACTIONS, N), -np.log(ACTIONS))
    prior: Any = jnp.asarray(log_prior) if is_prior else 0.0

    def dual(x: Any) -> Any:
        eta = jax.nn.softplus(x)
        return temperature_loss(improved(values, eta, prior)[1].mean(), eta, epsilon)

    found = jit(lambda x: jax.lax.fori_loop(0, 3000, lambda _, x: x - 0.1 * jax.grad(dual)(x), x))(jnp.float32(3.0))
    eta = float(jax.nn.softplus(found))
    by_hand = lambda t: t * epsilon + t * logsumexp(double(values) / t + log_prior, 0).mean()  # noqa: E731
    assert eta == pytest.approx(minimize_scalar(by_hand, bounds=(0.1, 50), method="bounded").x, rel=1e-2)
    weights = double(improved(values, eta, prior)[0])
    np.testing.assert_allclose(weights.sum(0), 1, rtol=1e-5)
    assert (weights * (np.log(weights) - log_prior)).sum(0).mean() == pytest.approx(epsilon, rel=2e-2)


def test_divergences_are_those_of_mean_and_deviation() -> None:
    """Their sum is the KL divergence of two Gaussians where one of both is the same."""
    rng = np.random.default_rng(0)
    mean, other, log_std, wider = rng.normal(size=(4, N, D)).astype(np.float32)
    of_mean, _ = divergences(TanhNormal(mean, log_std), TanhNormal(other, log_std))
    np.testing.assert_allclose(of_mean.sum(0), Normal(mean, log_std).kl(Normal(other, log_std)), rtol=1e-4)
    nothing, of_deviation = divergences(TanhNormal(mean, log_std), TanhNormal(mean, wider))
    np.testing.assert_allclose(of_deviation.sum(0), Normal(mean, log_std).kl(Normal(mean, wider)), rtol=1e-4)
    assert of_mean.shape == of_deviation.shape == (D, N) and not np.asarray(nothing).any()
    logits = rng.normal(size=(2, N, ACTIONS)).astype(np.float32)
    (found,) = divergences(*(Categorical(each) for each in logits))
    np.testing.assert_allclose(found, Categorical(logits[0]).kl(Categorical(logits[1])), atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------- losses


def old_values(kind: str, actor: Any, critics: Any, inputs: Any, update: Any, stream: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return, row by row, the target policy's parameters and samples before squashing, and the values of these [K, N]."""
    key = jax.random.fold_in(update.key, stream)
    noise = double(standard_normal(key, (SAMPLES, N, D)))
    drawn, values = np.zeros((SAMPLES, N, D)), np.zeros((ACTIONS if kind == "categorical" else SAMPLES, N))
    chosen = np.asarray(update.chosen)
    for i in range(N):
        x = double(inputs.obs[i])
        if kind == "categorical":
            values[:, i] = np.einsum("f,cfa->ca", x, double(critics["x"]))[chosen].min(0)
            continue
        mean, log_std = x @ double(actor["mean"]), x @ double(actor["log_std"])
        drawn[:, i] = mean + np.exp(log_std) * noise[:, i]
        for k in range(SAMPLES):
            values[k, i] = q_by_hand(critics, x, np.tanh(drawn[k, i]))[chosen].min()
    return (lambda p, name: double(inputs.obs) @ double(p[name])), drawn, values


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - logsumexp(x, -1, keepdims=True)


@pytest.mark.parametrize("kind", ["squashed", "categorical"])
def test_targets_and_losses_are_the_papers(kind: str) -> None:
    own = actor_critic_setup(MPOConfig(samples=SAMPLES, critics=Ensemble(CRITICS, subset=2)), kind)
    actor, critic, target_critic, now = case(kind, 3)
    old_actor, hp = case(kind, 7)[0], MPOHyperparams()
    sizes: Any = ((D,), (D,)) if kind == "squashed" else ((),)
    duals = Duals(jnp.float32(1.5), tuple(jnp.full(size, 0.7 + i) for i, size in enumerate(sizes)))
    targets = ActorCriticPair(old_actor, target_critic)

    def run(actor: Any, duals: Any) -> Any:
        of_policy, of_duals = mpo.policy_losses(own, hp, targets, now)
        y = mpo.target(own, targets, now)
        by_policy = jax.value_and_grad(partial(of_policy, duals), has_aux=True)(actor)
        by_duals = jax.value_and_grad(partial(of_duals, actor), has_aux=True)(duals)
        return y, mpo.critic_loss(own, critic, y, now)[0], by_policy, by_duals

    y, td, ((loss, logged), slopes), ((dual_loss, _), dual_slopes) = jit(run)(actor, duals)
    of, _, following = old_values(kind, old_actor, target_critic, now.batch.next_inputs, now, OF_TARGET)
    prior = np.exp(log_softmax(of(old_actor, "logits"))).T if kind == "categorical" else 1 / SAMPLES
    np.testing.assert_allclose(y, now.batch.reward + now.batch.discount * (prior * following).sum(0), rtol=1e-4, atol=1e-4)
    valid, weight = np.asarray(now.batch.valid), np.asarray(now.batch.weight)
    rows = (
        [q_by_hand(critic, double(now.batch.inputs.obs[i]), double(now.batch.action[i])) for i in range(N)]
        if kind == "squashed"
        else [
            np.einsum("f,cf->c", double(now.batch.inputs.obs[i]), double(critic["x"])[:, :, now.batch.action[i]])
            for i in range(N)
        ]
    )
    expected = 0.5 * (weight * (np.array(rows).T - double(y)) ** 2)[:, valid].mean(-1).sum()
    assert float(td) == pytest.approx(expected, rel=1e-4)

    of, drawn, values = old_values(kind, old_actor, target_critic, now.batch.inputs, now, OF_POLICY)
    eta, *alphas = (np.log1p(np.exp(double(x))) for x in (duals.temperature, *duals.multipliers))
    bounds = (hp.mean_kl, hp.deviation_kl) if kind == "squashed" else (hp.discrete_kl,)

    def by_hand(p: Any) -> tuple[float, list[np.ndarray], float]:
        """Return the loss of the actions, the divergences and the improvement."""
        if kind == "categorical":
            log_old, log_new = (
                log_softmax(x @ double(q["logits"]))
                for x, q in ((double(now.batch.inputs.obs), old_actor), (double(now.batch.inputs.obs), p))
            )
            scaled = values / eta + log_old.T
            q = np.exp(scaled - logsumexp(scaled, 0))
            apart = [(np.exp(log_old) * (log_old - log_new)).sum(-1)[valid].mean()]
            return -(q * log_new.T).sum(0)[valid].mean(), apart, logsumexp(scaled, 0)[valid].mean()
        q = np.exp(values / eta - logsumexp(values / eta, 0))
        m0, s0, m1, s1 = of(old_actor, "mean"), of(old_actor, "log_std"), of(p, "mean"), of(p, "log_std")
        density = lambda m, s: (-0.5 * ((drawn - m) / np.exp(s)) ** 2 - s - 0.5 * np.log(2 * np.pi)).sum(-1)  # noqa: E731
        loss = -(q * (density(m1, s0) + density(m0, s1))).sum(0)[valid].mean()
        of_mean = (0.5 * ((m1 - m0) / np.exp(s0)) ** 2)[valid].mean(0)
        of_std = (s1 - s0 + 0.5 * np.exp(2 * (s0 - s1)) - 0.5)[valid].mean(0)
        return loss, [of_mean, of_std], (logsumexp(values / eta, 0) - np.log(SAMPLES))[valid].mean()

    plain, apart, improvement = by_hand(actor)
    total = lambda p: by_hand(p)[0] + sum((a * k).sum() for a, k in zip(alphas, by_hand(p)[1], strict=True))  # noqa: E731
    assert float(logged["losses/actor_loss"]) == pytest.approx(plain, rel=1e-4)
    assert float(loss) == pytest.approx(total(actor), rel=1e-4)
    assert_close(slopes, jax.tree.map(np.float32, slope(total, actor)), atol=2e-3)
    expected = eta * (hp.improvement_kl + improvement)
    expected += sum((a * (bound - k)).sum() for a, bound, k in zip(alphas, bounds, apart, strict=True))
    assert float(dual_loss) == pytest.approx(expected, rel=1e-4)
    share = 1 / (1 + np.exp(-np.array([0.7, 1.7])))
    for found, bound, k, slope_ in zip(dual_slopes.multipliers, bounds, apart, share, strict=False):
        np.testing.assert_allclose(found, slope_ * (bound - k), rtol=1e-3, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- update schedule


@pytest.mark.slow
def test_updates_are_those_of_a_loop() -> None:
    """Two updates of the critics, then one of the policy, the duals and all targets, twice."""
    settings = {"optimizer": lambda hp: optax.sgd(hp.learning_rate), "replay_ratio": 16, "policy_delay": 2}
    agent = small_mpo(probes.action_by_observation(), **settings, learning_rate=0.05, actor_learning_rate=0.02)
    setup = agent.algorithm.learn.args[0]  # type: ignore[union-attr]

    def run(key: Any) -> Any:
        start = agent.init(key).learner
        return start, agent.algorithm.learn(start), draw_updates(setup, start, 0.99)  # type: ignore[misc]

    start, (learner, _), draws = jit(run)(KEY())
    hp, (actor, critic), targets, duals = start.hyperparams, start.params, start.target_params, start.duals
    assert float(jax.nn.softplus(duals.temperature)) == pytest.approx(10.0, rel=1e-4)
    assert [round(float(jax.nn.softplus(x)[0])) for x in duals.multipliers] == [10, 1000]
    adam = optax.adam(hp.dual_learning_rate)
    state = adam.init(duals)
    for g in range(2):
        for i in range(2):
            now = jax.tree.map(lambda x, g=g, i=i: x[g, i], draws)
            y = mpo.target(setup, targets, now)
            gradient = jax.grad(partial(mpo.critic_loss, setup), has_aux=True)(critic, y, now)[0]
            critic = jax.tree.map(lambda p, g: p - 0.05 * g, critic, gradient)
        of_policy, of_duals = mpo.policy_losses(setup, hp, targets, now)
        step, state = adam.update(jax.grad(partial(of_duals, actor), has_aux=True)(duals)[0], state)
        gradient = jax.grad(partial(of_policy, duals), has_aux=True)(actor)[0]
        actor = jax.tree.map(lambda p, g: p - 0.02 * g, actor, gradient)
        duals = optax.apply_updates(duals, step)
        targets = jax.tree.map(lambda p, t: t + 0.1 * (p - t), ActorCriticPair(actor, critic), targets)
    assert_close(learner.params, ActorCriticPair(actor, critic), atol=1e-4)
    assert_close(learner.target_params, targets, atol=1e-4)
    assert_close(learner.duals, duals, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------- probes


RATES = {"gamma": 0.9, "learning_rate": 0.02, "actor_learning_rate": 0.02, "learning_starts": 120, "tau": 0.05}
LOOSE = {"mean_kl": 0.1, "deviation_kl": 0.01, "temperature": 1.0}


@cache
def learnt(kind: str) -> dict[str, Any]:
    if kind == "box":
        return learn_q_probes(partial(small_mpo, **RATES, **LOOSE))
    return learn_q_probes(partial(discrete_mpo, **RATES, discrete_kl=0.1, temperature=1.0))


@pytest.mark.parametrize("kind", ["box", pytest.param("discrete", marks=pytest.mark.slow)])
@pytest.mark.parametrize("probe", PROBES)
def test_probe(kind: str, probe: str) -> None:
    check_q_probe(probe, *learnt(kind)[probe])


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_delay": 3}, "policy_delay=3 must divide the 2 updates of an iteration"),
        ({"samples": 0}, "samples=0 must be an integer >= 1"),
        ({"mean_kl": 0.0}, "mean_kl=0 is not allowed: it must be a finite number > 0"),
        ({"discrete_kl": 0.1}, r"discrete_kl=0\.1 has no effect on Box"),
        ({"schedules": {"discrete_kl": lambda i: 1.0}}, r"schedules\['discrete_kl'\] has no effect on Box"),
        ({"schedules": {"temperature": lambda i: 1.0}}, r"schedules\['temperature'\] has no effect on η, .*improvement_kl"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_mpo(probes.target_action(), **settings)


def test_settings_of_the_other_kind_of_actions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mean_kl=0\.1 has no effect on Discrete\(2\)"):
        discrete_mpo(probes.truncation(), mean_kl=0.1)
    with pytest.raises(ValueError, match=r"samples=4 has no effect on Discrete\(2\): sums over it are exact"):
        discrete_mpo(probes.truncation(), samples=4)


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match="MPO needs a Box or Discrete action space"):
        small_mpo(probes.two_choices())
    with pytest.raises(TypeError, match="its model must be memoryless"):
        small_mpo(probes.target_action(), model=RECURRENT)
    with pytest.raises(ValueError, match="bounds on all sides"):
        small_mpo(probes.target_action()._replace(action_space=spaces.Box(-np.inf, np.inf, (1,), np.float32)))
    assert BOX.shape == (D,)
