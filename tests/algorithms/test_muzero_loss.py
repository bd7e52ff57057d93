"""MuZero: distributions of values, targets and loss, against NumPy and SciPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl.algorithms.common.planning.latent_loss import muzero_loss
from jaxrl.algorithms.common.planning.latent_model import (
    ENDS,
    OTHER_PLAYER,
    SAME_PLAYER,
    Support,
    to_unit,
    turn_values,
)
from jaxrl.algorithms.common.planning.model_targets import Searched, Targets, targets
from jaxrl.algorithms.common.value_rescaling import Rescale
from jaxrl.builder.replay_setup import PRIORITIES
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.replay.sequence import Sequences
from jaxrl.rollout.inputs import without_history
from tests.helpers.latent_models import BINS, SUPPORT, linear_model, linear_params

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
GAMMA = 0.9


# --------------------------------------------------------------------------------------------------------------- distributions


@pytest.mark.parametrize("rescale", [None, Rescale(eps=0.01)], ids=["plain", "sqrt"])
def test_two_bins_share_a_value(rescale: Any) -> None:
    """And their mean is the value, for any within the limit; values beyond it are those of the last bins."""
    support = Support(20.0, 7, rescale)
    h = (lambda x: x) if rescale is None else lambda x: np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 0.01 * x
    bins = np.linspace(-h(20.0), h(20.0), 7)
    np.testing.assert_allclose(support.bins, bins, rtol=1e-5)
    values = np.array([[-20.0, -3.3, 0.0], [0.7, 19.0, 50.0]], np.float32)
    probabilities = np.asarray(support.encode(jnp.asarray(values)))
    assert probabilities.shape == (2, 3, 7)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-5)
    assert ((probabilities > 1e-6).sum(-1) <= 2).all()
    np.testing.assert_allclose((probabilities * bins).sum(-1), np.clip(h(values), bins[0], bins[-1]), rtol=1e-4, atol=1e-5)
    back = support.decode(jnp.log(jnp.maximum(probabilities, 1e-30)))
    np.testing.assert_allclose(back, np.clip(values, -20, 20), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rescale", [None, Rescale(eps=0.01)])
def test_a_normal_distribution_around_a_value_has_its_mean(rescale: Any) -> None:
    """HL-Gauss: the mass of each bin against SciPy's, and back to the value, unless it is near the limit."""
    support = Support(20.0, 41, rescale, sigma=0.75)
    h = (lambda x: x) if rescale is None else lambda x: np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 0.01 * x
    values, width = np.array([[-12.0, -3.3], [0.7, 15.0]], np.float32), 2 * h(20.0) / 40
    edges = h(20.0) * np.linspace(-1, 1, 41)[:, None, None] + width * np.array([-0.5, 0.5])[:, None, None, None]
    low, high = (scipy.stats.norm(h(values), 0.75 * width).cdf(x) for x in edges)
    probabilities = np.asarray(support.encode(jnp.asarray(values)))
    np.testing.assert_allclose(probabilities, np.moveaxis(high - low, 0, -1), atol=1e-4)
    np.testing.assert_allclose(support.decode(jnp.log(jnp.maximum(probabilities, 1e-30))), values, rtol=2e-3, atol=1e-3)
    beyond = np.asarray(support.encode(jnp.float32([20.0, 99.0])))
    np.testing.assert_allclose(beyond.sum(-1), 1.0, rtol=1e-5)
    assert np.isfinite(beyond).all() and (beyond.argmax(-1) == 40).all()


def test_latent_states_are_scaled_to_the_unit_interval() -> None:
    state = to_unit(jnp.array([[-3.0, 1.0, 5.0], [2.0, 2.0, 2.0]]))
    np.testing.assert_allclose(state, [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]])


def test_what_follows_is_an_expected_factor() -> None:
    """0 for an end, 1 for the same player, −1 for the other."""
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    assert turn_values(jnp.asarray(logits)) == pytest.approx(0.1, abs=1e-6)
    assert turn_values(jnp.asarray(np.log(np.array([0.25, 0.75], np.float32)))) == pytest.approx(0.75, abs=1e-6)


# --------------------------------------------------------------------------------------------------------------------- targets

STEPS, N_STEP = 3, 2
LENGTH = STEPS + N_STEP


def window(*, terminated: int | None = None, truncated: int | None = None, players: Any = None) -> tuple[Sequences, Searched]:
    """Return a drawn sequence [LENGTH, 1] that ends at a row, and what searches found. Rows have rewards 1, 2, 3, …"""
    rows, flag = np.arange(LENGTH), np.zeros(LENGTH, bool)
    end = terminated if truncated is None else truncated
    valid = flag == (rows == (LENGTH if end is None else end + 1))
    column = lambda x: jnp.asarray(x)[:, None]  # noqa: E731
    obs: Any = {"observation": jnp.zeros((LENGTH + 1, 1, 1))}
    if players is not None:
        obs["player"] = column(np.array(players))
    batch = Sequences(
        without_history(obs, jnp.zeros((LENGTH + 1, 1))),
        column(rows % 2),
        column(np.where(valid, rows + 1.0, 0.0).astype(np.float32)),
        column(rows == (-1 if terminated is None else terminated)),
        column(rows == (-1 if truncated is None else truncated)),
        column(valid),
        carry=(),
        weight=jnp.ones(1),
    )
    policy = np.eye(2, dtype=np.float32)[np.arange(LENGTH + 1) % 2][:, None]
    return batch, Searched(jnp.asarray(policy), column(10.0 * np.arange(LENGTH + 1, dtype=np.float32)))


def wanted(**ends: Any) -> Targets:
    batch, found = window(**ends)
    find = jit(partial(targets, gamma=GAMMA, steps=STEPS, n_step=N_STEP))
    return jax.tree.map(lambda x: np.asarray(x)[:, 0], find(batch, found))


def test_targets_within_an_episode() -> None:
    target = wanted()
    returns = [(t + 1) + GAMMA * (t + 2) + GAMMA**2 * 10 * (t + 2) for t in range(STEPS + 1)]
    np.testing.assert_allclose(target.value, returns, rtol=1e-5)
    np.testing.assert_allclose(target.reward, [1, 2, 3])
    assert target.turn.tolist() == [SAME_PLAYER] * 3
    assert target.policy.argmax(-1).tolist() == [0, 1, 0, 1]
    assert target.in_episode.all() and target.known.all()


def test_targets_beyond_a_termination_are_absorbing() -> None:
    """Row 1 ends the episode: what follows has no value, no reward and no policy to learn."""
    target = wanted(terminated=1)
    np.testing.assert_allclose(target.value, [1 + GAMMA * 2, 2, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(target.reward, [1, 2, 0])
    assert target.turn.tolist() == [SAME_PLAYER, ENDS, ENDS]
    assert target.in_episode.tolist() == [True, True, False, False]
    assert target.known.all()


def test_nothing_is_known_beyond_a_truncation() -> None:
    """Row 1 is the last: the return bootstraps from the value reached, and the steps after it enter no loss."""
    target = wanted(truncated=1)
    np.testing.assert_allclose(target.value[:2], [1 + GAMMA * 2 + GAMMA**2 * 20, 2 + GAMMA * 20], rtol=1e-5)
    assert target.turn.tolist()[:2] == [SAME_PLAYER, SAME_PLAYER]
    assert target.in_episode.tolist() == target.known.tolist() == [True, True, False, False]


def test_targets_of_games_have_the_sign_of_the_player() -> None:
    """Players 0, 1, 1, 0, 1, 0 move; a reward belongs to the player that moved."""
    target = wanted(players=[0, 1, 1, 0, 1, 0])
    assert target.turn.tolist() == [OTHER_PLAYER, SAME_PLAYER, OTHER_PLAYER]
    returns = [1 - GAMMA * 2 - GAMMA**2 * 20, 2 + GAMMA * 3 - GAMMA**2 * 30, 3 - GAMMA * 4 + GAMMA**2 * 40]
    np.testing.assert_allclose(target.value, [*returns, 4 - GAMMA * 5 + GAMMA**2 * 50], rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------------------ loss


def unit(x: np.ndarray) -> np.ndarray:
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    return (x - low) / (high - low)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def two_bins(x: float) -> np.ndarray:
    place = np.clip(x, -4, 4) / 2 + 2
    low = min(int(np.floor(place)), BINS - 2)
    probabilities = np.zeros(BINS)
    probabilities[low], probabilities[low + 1] = 1 - (place - low), place - low
    return probabilities


def drawn(rng: np.random.Generator, number: int = 5) -> tuple[Sequences, Targets]:
    obs = rng.normal(size=(LENGTH + 1, number, 4)).astype(np.float32)
    inputs = without_history(jnp.asarray(obs), jnp.zeros((LENGTH + 1, number)))
    action = jnp.asarray(rng.integers(0, 2, (LENGTH, number)).astype(np.int32))
    in_episode = np.cumprod(rng.random((STEPS + 1, number)) < 0.8, axis=0).astype(bool)
    in_episode[:, 0] = True
    known = in_episode | (np.arange(number) == 1)
    target = Targets(
        rng.dirichlet(np.ones(2), (STEPS + 1, number)).astype(np.float32),
        rng.normal(size=(STEPS + 1, number)).astype(np.float32) * 2,
        rng.normal(size=(STEPS, number)).astype(np.float32),
        rng.integers(0, 2, (STEPS, number)).astype(np.int32),
        in_episode,
        known,
    )
    nothing = jnp.zeros((LENGTH, number))
    weight = jnp.asarray(rng.random(number).astype(np.float32))
    return Sequences(inputs, action, nothing, nothing > 0, nothing > 0, nothing == 0, (), weight), target


def test_loss_against_numpy() -> None:
    rng = np.random.default_rng(0)
    params, (batch, target) = linear_params(rng), drawn(rng)
    loss, logged = jit(lambda *args: muzero_loss(linear_model(), 0.3, *args, None))(params, batch, target)

    total, values = [], []
    for i in range(5):
        state = unit(np.asarray(batch.inputs.obs)[0, i] @ params.representation["state"])
        each, weights = 0.0, [1.0] + [1 / STEPS] * STEPS
        for k in range(STEPS + 1):
            prior, value = (log_softmax(state @ params.prediction[name]) for name in ("logits", "value"))
            if target.in_episode[k, i]:
                each -= weights[k] * (target.policy[k, i] @ prior)
            if target.known[k, i]:
                each -= weights[k] * 0.3 * (two_bins(target.value[k, i]) @ value)
            if k == 0:
                values.append(np.exp(value) @ np.linspace(-4, 4, BINS))
            if k < STEPS:
                x = np.concatenate([state, np.eye(2)[int(batch.action[k, i])]])
                if target.known[k, i]:
                    each -= two_bins(target.reward[k, i]) @ log_softmax(x @ params.dynamics["reward"]) / STEPS
                    each -= log_softmax(x @ params.dynamics["turn"])[target.turn[k, i]] / STEPS
                state = unit(x @ params.dynamics["state"])
        total.append(each * float(batch.weight[i]))
    valid = target.in_episode[0]
    assert 0 < valid.sum() < 5
    assert float(loss) == pytest.approx(np.array(total)[valid].mean(), rel=1e-4)
    priorities = np.where(valid, np.abs(np.array(values) - target.value[0]), 0.0)
    np.testing.assert_allclose(logged[PRIORITIES], priorities, rtol=1e-4, atol=1e-5)


def test_each_step_of_the_model_halves_the_gradient() -> None:
    """The loss of the reward at step K reaches the representation through K halvings."""
    rng = np.random.default_rng(1)
    model, params, (batch, target) = linear_model(), linear_params(rng), drawn(rng)
    nothing = jnp.zeros_like(target.known)

    def plain(state: Any) -> Any:
        """Unroll without halving, and return the loss of the last reward."""
        for k in range(STEPS):
            output = model.step(params, state, batch.action[k])
            state = output.state
        chosen = SUPPORT.encode(jnp.asarray(target.reward[STEPS - 1]))
        return -(chosen * jax.nn.log_softmax(output.reward)).sum(-1).mean() / STEPS

    def whole(kernel: Any) -> Any:
        changed = params._replace(representation={"state": kernel})
        only = target._replace(in_episode=nothing.at[0].set(True), known=nothing.at[STEPS - 1].set(True))
        only = only._replace(policy=jnp.zeros_like(only.policy), turn=jnp.full_like(only.turn, 2))
        unweighted = batch._replace(weight=jnp.ones_like(batch.weight))
        return muzero_loss(model, 0.0, changed, unweighted, only, None)[0]

    kernel = params.representation["state"]
    inputs = jax.tree.map(lambda x: x[0], batch.inputs)
    expected = jit(jax.grad(lambda kernel: plain(model.represent(params._replace(representation={"state": kernel}), inputs))))
    np.testing.assert_allclose(jit(jax.grad(whole))(kernel), expected(kernel) / 2**STEPS, rtol=1e-3, atol=1e-7)
