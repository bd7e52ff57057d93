"""Conservative Q-learning: a bandit whose fixed point is known, integrals against quadrature, losses against NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from gymnasium import spaces

import jaxrl
from jaxrl.algorithms import sac
from jaxrl.algorithms.common.critics.ensemble import Ensemble
from jaxrl.algorithms.common.offline import conservative_updates
from jaxrl.algorithms.common.offline.conservative import CQL, Conservative, Penalty, conservative_term, sampled_gap
from jaxrl.algorithms.common.offline.conservative_updates import ConservativeBatch, penalty, values_of_data
from jaxrl.algorithms.common.q_heads import C51, IQN, QR, HLGauss, Scalar
from jaxrl.algorithms.dqn import DQNConfig, dqn_loss
from jaxrl.algorithms.sac import SACConfig, SACHyperparams
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.action_noise import standard_normal
from jaxrl.models import q_network
from jaxrl.optimize import sgd
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.replay.transitions import ReplayRow, Transitions
from jaxrl.rollout.autoreset import first_input
from jaxrl.runtime.datasets.layouts import Spaces
from jaxrl.training import run_iterations
from tests.helpers import probes
from tests.helpers.agents import assert_close
from tests.helpers.hosted import hosted
from tests.helpers.oracles.actor_critic import (
    ACTIONS,
    CRITICS,
    D,
    N,
    actor_critic_setup,
    case,
    double,
    q_by_hand,
    squashed_by_hand,
)
from tests.helpers.oracles.policy_gradient import slope

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
ALPHA, SAMPLES = 0.3, 4


# ---------------------------------------------------------------------------------------------------------------------- a bandit

BETA, REWARDS = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.0, 2.0])
BANDIT: Any = Spaces(spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(3), "bandit")


def fixed_point(weight: float) -> np.ndarray:
    """Solve β(a)·(Q − r) + α·(softmax Q − β) = 0 by Newton's method."""
    q = REWARDS.copy()
    for _ in range(50):
        p = scipy.special.softmax(q)
        q -= np.linalg.solve(np.diag(BETA) + weight * (np.diag(p) - np.outer(p, p)), BETA * (q - REWARDS) + weight * (p - BETA))
    return q


def bandit_data() -> Dataset:
    """Ten episodes of one step, in which the actions have the shares β."""
    action = np.repeat(np.repeat(np.arange(3), (10 * BETA).round().astype(int)), 2).astype(np.int32)
    first = np.arange(20) % 2 == 0
    rows = ReplayRow(np.ones((20, 1), np.float32), action, REWARDS[action].astype(np.float32), first, first)  # type: ignore[arg-type]
    return make_dataset(rows, BANDIT)


def test_values_of_a_bandit_are_at_the_fixed_point() -> None:
    """For three weights in one program. With a weight of 0 they are the rewards; otherwise those of rare actions are lower."""
    data, weights = bandit_data(), jnp.array([0.0, 0.1, 1.0])
    env = hosted(probes.constant_reward())._replace(
        observation_space=BANDIT.observation_space, action_space=BANDIT.action_space, name="bandit"
    )
    settings: dict[str, Any] = {
        "n_step": 1,
        "batch_size": 50,
        "updates": 100,
        "learning_rate": 0.2,
        "optimizer": sgd,
        "bootstrap": "greedy",
    }
    agent = jaxrl.make_dqn(env, data=data, model={"hidden_sizes": ()}, conservative=Conservative(), **settings)

    def train(weight: Any, data: Any) -> Any:
        stepping = agent._replace(step=lambda state: agent.step(state, data))
        state = agent.init(KEY(), {"conservative_weight": weight, "total_steps": 1000.0})
        params = run_iterations(stepping, state, 10)[0].learner.params
        setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
        return setup.model.apply(params, (), first_input(jnp.ones((1, 1)), BANDIT.action_space, 1))[1][0]

    found = jit(jax.vmap(train, in_axes=(0, None)))(weights, data)
    expected = np.array([fixed_point(float(weight)) for weight in weights])
    np.testing.assert_allclose(expected[0], REWARDS)
    assert expected[2, 2] < REWARDS[2] - 0.5 and expected[2, 0] > REWARDS[0]  # of the rarest and of the most frequent action
    np.testing.assert_allclose(found, expected, atol=0.03)


HEADS: dict[str, Any] = {"scalar": Scalar(), "c51": C51(5, -3, 3), "hl_gauss": HLGauss(5, -3, 3), "qr": QR(4), "iqn": IQN(4)}


@pytest.mark.parametrize("head", HEADS)
def test_the_term_of_dqn_is_over_the_allowed_actions(head: str) -> None:
    """The loss of each head plus α·(log Σ exp Q − Q(s, a)), as a mean over valid draws, weighted as they are."""
    space = spaces.Dict({"x": spaces.Box(-1, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(ACTIONS)})
    rng = np.random.default_rng(0)
    config = DQNConfig(head=HEADS[head], conservative=Conservative())
    model = config.network(q_network)(space, spaces.Discrete(ACTIONS), hidden_sizes=(8,))  # type: ignore[call-arg]
    mask = rng.random((N, ACTIONS)) < 0.6
    action = rng.integers(ACTIONS, size=N)
    mask[np.arange(N), action] = True
    inputs = first_input(
        {"x": jnp.asarray(rng.normal(size=(N, 3)), jnp.float32), "action_mask": jnp.asarray(mask, jnp.int8)},
        spaces.Discrete(ACTIONS),
        N,
    )
    weight, valid = rng.uniform(0.2, 1, N).astype(np.float32), rng.random(N) < 0.7
    ones = jnp.ones(N)
    of_rows = (jnp.asarray(action, jnp.int32), ones, 0.9 * ones, jnp.asarray(weight), jnp.asarray(valid))
    batch, params = Transitions(inputs, inputs, *of_rows), jit(model.init)(KEY(), inputs)

    def both(params: Any) -> Any:
        own = dqn_loss(model, config, params, params, batch, None, None, [partial(conservative_term, 0.7)])
        plain, _ = dqn_loss(model, DQNConfig(head=HEADS[head]), params, params, batch, None)
        return own, plain, config.head.functions.values(model.apply(params, (), inputs)[1], inputs.obs)

    (loss, logged), plain, q = jit(both)(params)
    gap = [scipy.special.logsumexp(double(q)[i, mask[i]]) - double(q)[i, action[i]] for i in range(N)]
    expected = (weight * gap)[valid].mean()
    assert float(logged["losses/conservative_gap"]) == pytest.approx(expected, rel=1e-4)
    assert float(loss - plain) == pytest.approx(0.7 * expected, rel=1e-3)
    assert float(logged["losses/td_loss"]) == pytest.approx(float(plain), rel=1e-5)


# --------------------------------------------------------------------------------------------------------- integrals, and losses


def setup_of(policy: str, option: Any) -> Any:
    return actor_critic_setup(SACConfig(critics=Ensemble(size=CRITICS, subset=2), conservative=option), policy)


def extended(now: Any, reference: Any = (), cloning: Any = ()) -> ConservativeBatch:
    return ConservativeBatch(**now._asdict(), reference=reference, cloning=cloning)


def term_of(option: Any, seed: int, reference: Any = ()) -> tuple[Any, ...]:
    """Return parameters of the policy and the critics, the update, the inputs of its term, the term f32[CRITICS, N], the targets,
    and the loss with its gradient."""
    own, (actor, critic, target_critic, now) = setup_of("squashed", option), case("squashed", seed)

    def run(update: Any) -> Any:
        term = penalty(own, SACHyperparams(conservative_weight=0.7), (), actor, update)
        y = sac.target(own, actor, target_critic, jnp.float32(ALPHA), update)
        loss = jax.value_and_grad(lambda p: sac.critic_loss(own, p, y, update, term), has_aux=True)(critic)
        return update, term, values_of_data(own, critic, update, term)[1], y, loss

    return actor, critic, *jit(run)(extended(now, reference))


def grid() -> tuple[np.ndarray, np.ndarray]:
    """Return actions [n, 2] and weights [n] of a quadrature over the Box."""
    x, w = np.polynomial.legendre.leggauss(40)
    return np.stack(np.meshgrid(x, x), -1).reshape(-1, 2), np.outer(w, w).ravel()


def density(actor: Any, x: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Compute π(a | s) for actions [n, D] by the change of variables."""
    mean, log_std = x @ double(actor["mean"]), x @ double(actor["log_std"])
    z = (np.arctanh(action) - mean) / np.exp(log_std)
    return np.exp(-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2)).prod(-1)


@pytest.mark.parametrize("weighted", [True, False])
def test_with_many_samples_the_term_is_an_integral(weighted: bool) -> None:
    """With weights it is log ∫ exp Q da, and without that of the mean over the three distributions."""
    actor, critic, update, _, gap, *_ = term_of(CQL(samples=20_000, weighted=weighted), 0)
    actions, weights = grid()
    for i in range(3):
        x, following = (double(inputs.obs[i]) for inputs in (update.batch.inputs, update.batch.next_inputs))
        policies = density(actor, x, actions) + density(actor, x if update.batch.discount[i] == 0 else following, actions)
        integrals = [np.exp(q_by_hand(critic, x, actions)) @ (weights * share) for share in (1.0, (0.25 + policies) / 3)]
        integral, mean = (np.log(each) - q_by_hand(critic, x, double(update.batch.action[i])) for each in integrals)
        np.testing.assert_allclose(gap[:, i], integral if weighted else mean, atol=0.05)
        assert (np.abs(integral - mean) > 0.2).all()


def test_the_estimate_of_the_integral_has_no_bias() -> None:
    """With two samples of each distribution, its mean over many draws is ∫ exp Q da. The policy is wide: a few rare actions of a
    narrow one have most of the weight."""
    own, (actor, critic, _, now) = setup_of("squashed", CQL(samples=2)), case("squashed", 3)
    hp, actor = SACHyperparams(), {"mean": 0.2 * actor["mean"], "log_std": 0 * actor["log_std"]}

    def once(key: Any) -> Any:
        update = extended(now._replace(key=key))
        _, gap = values_of_data(own, critic, update, penalty(own, hp, (), actor, update))
        return jnp.exp(gap)  # type: ignore[arg-type]

    found = np.asarray(jit(jax.vmap(once))(jax.random.split(KEY(), 4000)), np.float64)
    actions, weights = grid()
    for i in range(N):
        q, of_data = (q_by_hand(critic, double(now.batch.inputs.obs[i]), a) for a in (actions, double(now.batch.action[i])))
        expected = np.exp(q) @ weights / np.exp(of_data)
        error = found[:, :, i].std(0) / np.sqrt(len(found))
        assert (np.abs(found[:, :, i].mean(0) - expected) < 5 * error + 1e-3 * expected).all()


REFERENCE = np.random.default_rng(7).normal(size=N).astype(np.float32)


@pytest.mark.parametrize("option", [CQL(samples=SAMPLES), CQL(samples=SAMPLES, weighted=False, calibrated=True)])
def test_the_critics_loss_is_the_papers(option: CQL) -> None:
    """Actions, densities, the loss and its gradient. In Cal-QL values of the policy's actions are at least the returns."""
    reference = REFERENCE if option.calibrated else ()
    actor, critic, update, term, gap, y, ((loss, logged), gradient) = term_of(option, 1, reference)
    keys = jax.random.split(jax.random.fold_in(update.key, 3), 3)
    np.testing.assert_array_equal(term.action[:SAMPLES], jax.random.uniform(keys[0], (SAMPLES, N, D), minval=-1.0))
    noise = {group: double(standard_normal(keys[group], (SAMPLES, N, D))) for group in (1, 2)}
    log_density = np.full((3, SAMPLES, N), -2 * np.log(2))
    for group, inputs in ((1, update.batch.inputs), (2, update.batch.next_inputs)):
        for i in range(N):
            at = inputs if update.batch.discount[i] else update.batch.inputs
            for j in range(SAMPLES):
                action, log_density[group, j, i] = squashed_by_hand(
                    {name: double(w) for name, w in actor.items()}, double(at.obs[i]), noise[group][j, i]
                )
                np.testing.assert_allclose(term.action[group * SAMPLES + j, i], action, atol=1e-5)
    if option.weighted:
        np.testing.assert_allclose(term.log_density, log_density.reshape(-1, N), rtol=1e-4, atol=1e-4)
    where, x = np.asarray(update.batch.valid), double(update.batch.inputs.obs)

    def by_hand(params: Any) -> tuple[float, np.ndarray]:
        of_data = np.array([q_by_hand(params, x[i], double(update.batch.action[i])) for i in range(N)]).T
        q = np.stack([q_by_hand(params, x[i], double(term.action[:, i])) for i in range(N)], -1)
        if option.calibrated:
            q[:, SAMPLES:] = np.maximum(q[:, SAMPLES:], REFERENCE)
        q = q - log_density.reshape(-1, N) if option.weighted else np.concatenate([q, of_data[:, None]], 1)
        gap = np.log(np.exp(q).mean(1)) - of_data
        each = double(update.batch.weight) * (0.5 * (of_data - double(y)) ** 2 + 0.7 * gap)
        return each.sum(0)[where].mean(), gap

    np.testing.assert_allclose(gap, by_hand(critic)[1], rtol=1e-4, atol=1e-4)
    assert float(loss) == pytest.approx(by_hand(critic)[0], rel=1e-4)
    assert_close(gradient, jax.tree.map(np.float32, slope(lambda p: by_hand(p)[0], critic)), atol=2e-3)
    mean = (double(update.batch.weight) * double(gap))[:, where].mean()
    assert float(logged["losses/conservative_gap"]) == pytest.approx(mean, rel=1e-4)
    assert float(logged["losses/conservative_weight"]) == pytest.approx(0.7)


def test_the_bound_is_for_actions_of_the_policy_alone() -> None:
    """With returns above all values, the term of these is constant, so its gradient is that of the uniform actions."""
    term = Penalty(jnp.ones(()), (), (), jnp.array([-jnp.inf, -jnp.inf, 5.0, 5.0, 5.0, 5.0])[:, None])
    values = jnp.full((1, 6, 1), -2.0)
    gap, slopes = jit(jax.value_and_grad(lambda v: sampled_gap(v, jnp.zeros((1, 1)), term).sum()))(values)
    share = np.exp([-2, -2, 5, 5, 5, 5, 0])
    assert float(gap) == pytest.approx(np.log(share.mean()), rel=1e-5)
    np.testing.assert_allclose(slopes[0, :, 0], [*(share / share.sum())[:2], 0, 0, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("policy", ["squashed", "categorical"])
def test_targets_have_no_entropy_unless_asked_for(policy: str) -> None:
    actor, _, target_critic, now = case(policy, 2)

    @jit
    def of_all(alpha: Any) -> Any:
        options = (CQL(), CQL(backup_entropy=True), None)
        return [sac.target(setup_of(policy, option), actor, target_critic, alpha, now) for option in options]

    hard, soft, plain = of_all(jnp.float32(ALPHA))
    np.testing.assert_array_equal(soft, plain)
    np.testing.assert_allclose(hard, of_all(jnp.float32(0.0))[2], rtol=1e-5, atol=1e-5)
    assert (np.abs(hard - plain) > 1e-3).any()


def test_the_term_of_discrete_actions_is_exact() -> None:
    own, (actor, critic, target_critic, now) = setup_of("categorical", CQL()), case("categorical", 1)
    where, x, action = np.asarray(now.batch.valid), double(now.batch.inputs.obs), np.asarray(now.batch.action)

    def by_hand(params: Any) -> float:
        q = np.array([x @ double(w) for w in params["x"]])
        of_data = q[:, np.arange(N), action]
        each = 0.5 * (of_data - double(y)) ** 2 + 0.7 * (np.log(np.exp(q).sum(-1)) - of_data)
        return (double(now.batch.weight) * each).sum(0)[where].mean()

    def run(critic: Any) -> Any:
        term = penalty(own, SACHyperparams(conservative_weight=0.7), (), actor, now)
        y = sac.target(own, actor, target_critic, jnp.float32(ALPHA), now)
        return y, jax.value_and_grad(lambda p: sac.critic_loss(own, p, y, now, term), has_aux=True)(critic)

    y, ((loss, _), gradient) = jit(run)(critic)
    assert float(loss) == pytest.approx(by_hand(critic), rel=1e-4)
    assert_close(gradient, jax.tree.map(np.float32, slope(by_hand, critic)), atol=2e-3)


@pytest.mark.parametrize("policy", ["squashed", "categorical"])
def test_a_policy_clones_the_data_at_first(policy: str) -> None:
    """E[α·log π(a′ | s) − log π(a | s)], and later the loss of SAC."""
    own, (actor, critic, _, now) = setup_of(policy, CQL(cloning_updates=5)), case(policy, 1)

    @jit
    def of(actor: Any, cloning: Any) -> Any:
        loss = lambda p: conservative_updates.actor_loss(own, p, critic, jnp.float32(ALPHA), extended(now, (), cloning))  # noqa: E731
        return jax.value_and_grad(loss, has_aux=True)(actor)

    plain = sac.soft_policy.actor_loss(own, actor, critic, jnp.float32(ALPHA), now)[0]
    assert float(of(actor, False)[0][0]) == pytest.approx(float(plain), rel=1e-6)
    where, x = np.asarray(now.batch.valid), double(now.batch.inputs.obs)

    def by_hand(params: Any) -> float:
        if policy == "categorical":
            log_p = np.log(scipy.special.softmax(x @ params["logits"], -1))
            each = ALPHA * (np.exp(log_p) * log_p).sum(-1) - log_p[np.arange(N), np.asarray(now.batch.action)]
        else:
            own = np.array([squashed_by_hand(params, x[i], double(now.noise[1, i]))[1] for i in range(N)])
            of_data = [density(params, x[i], double(now.batch.action[i])[None])[0] for i in range(N)]
            each = ALPHA * own - np.log(of_data)
        return each[where].mean()

    (loss, _), gradient = of(actor, True)
    assert float(loss) == pytest.approx(by_hand(jax.tree.map(double, actor)), rel=1e-4)
    assert_close(gradient, jax.tree.map(np.float32, slope(by_hand, jax.tree.map(double, actor))), atol=3e-3)
