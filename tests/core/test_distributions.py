"""Distributions against scipy.stats and numerical integration, and the effects of masks and batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from gymnasium import spaces

from jaxrl.distributions import LACKING, MASKED, Categorical, MultiCategorical, Normal, TanhNormal, sample_each, select_actions
from jaxrl.spaces.trees import bounds

LOGITS = np.random.default_rng(0).normal(scale=3.0, size=(4, 2, 5)).astype(np.float32)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)


def test_categorical_log_prob() -> None:
    actions = np.random.default_rng(1).integers(5, size=(4, 2)).astype(np.int32)
    got = Categorical(LOGITS).log_prob(actions)
    for i in np.ndindex(4, 2):
        frozen = scipy.stats.rv_discrete(values=(np.arange(5), PROBABILITIES[i] / PROBABILITIES[i].sum(dtype=np.float64)))
        assert got[i] == pytest.approx(frozen.logpmf(actions[i]), rel=1e-4, abs=1e-5)


def test_categorical_entropy_and_mode() -> None:
    d = Categorical(LOGITS)
    np.testing.assert_allclose(d.entropy(), scipy.stats.entropy(PROBABILITIES, axis=-1), rtol=1e-4)
    np.testing.assert_array_equal(d.mode(), PROBABILITIES.argmax(-1))
    assert d.mode().dtype == d.sample(jax.random.key(0)).dtype == jnp.int32
    assert d.sample(jax.random.key(0)).shape == (4, 2)


def test_categorical_does_not_mind_a_shift_of_its_logits() -> None:
    for shift in (-1e4, 1e4):
        np.testing.assert_allclose(Categorical(LOGITS + shift).entropy(), Categorical(LOGITS).entropy(), rtol=1e-2)


def test_categorical_gradients_are_differences() -> None:
    """Central differences in float64. Second derivatives are compared with differences of the gradients."""
    actions, h = np.random.default_rng(1).integers(5, size=(4, 2)), 1e-5
    steps = h * np.eye(5)[:, None, None]

    def log_p(x: np.ndarray) -> np.ndarray:
        return scipy.special.log_softmax(x.astype(np.float64), -1)

    def log_prob(x: np.ndarray) -> np.ndarray:
        return np.take_along_axis(log_p(x), np.broadcast_to(actions, x.shape[:-1])[..., None], -1)[..., 0]

    def entropy(x: np.ndarray) -> np.ndarray:
        return scipy.special.entr(np.exp(log_p(x))).sum(-1)

    ours: list[Callable[[Any], Any]] = [lambda x: Categorical(x).log_prob(actions), lambda x: Categorical(x).entropy()]
    for function, expected in zip(ours, (log_prob, entropy), strict=True):
        gradient = jax.jit(jax.grad(lambda x, f=function: f(x).sum()))
        difference = (expected(LOGITS + steps) - expected(LOGITS - steps)) / (2 * h)
        np.testing.assert_allclose(gradient(LOGITS), np.moveaxis(difference, 0, -1), atol=1e-4)
        along = (gradient(LOGITS + 0.01) - gradient(LOGITS), gradient(LOGITS * 1.01) - gradient(LOGITS * 0.99))
        second = jax.jvp(gradient, (LOGITS,), (LOGITS,))[1]
        np.testing.assert_allclose(along[0], 0, atol=1e-5)
        np.testing.assert_allclose(second, along[1] / 0.02, atol=2e-3)


def test_categorical_samples_have_their_frequencies() -> None:
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    actions = jax.vmap(Categorical(logits).sample)(jax.random.split(jax.random.key(0), 4000))
    assert scipy.stats.chisquare(np.bincount(actions, minlength=3), [400, 800, 2800]).pvalue > 1e-3


def masked() -> tuple[jax.Array, jax.Array]:
    """Return logits that favour forbidden actions, and the mask. Its rows allow one, two and four of five actions."""
    mask = jnp.array([[0, 0, 1, 0, 0], [1, 0, 0, 0, 1], [1, 1, 0, 1, 1]], bool)
    return jnp.where(mask, -5.0, 20.0), mask


def test_masked_actions_are_never_drawn() -> None:
    logits, mask = masked()
    d = Categorical(jnp.where(mask, logits, MASKED))
    actions = jax.vmap(d.sample)(jax.random.split(jax.random.key(0), 2000))
    assert mask[jnp.arange(3), actions].all()
    assert mask[jnp.arange(3), d.mode()].all()
    for row in range(3):  # all allowed actions occur
        assert set(np.unique(actions[:, row])) == set(np.flatnonzero(mask[row]))


def test_masked_actions_add_nothing_and_gradients_stay_finite() -> None:
    logits, mask = masked()

    def entropy(x: jax.Array) -> jax.Array:
        return Categorical(jnp.where(mask, x, MASKED)).entropy()

    def log_prob(x: jax.Array) -> jax.Array:
        return Categorical(jnp.where(mask, x, MASKED)).log_prob(jnp.array([2, 4, 0]))

    np.testing.assert_allclose(entropy(logits), np.log([1, 2, 4]), atol=1e-6)
    np.testing.assert_allclose(log_prob(logits), -np.log([1, 2, 4]), atol=1e-6)
    for function in (entropy, log_prob):
        gradient = jax.grad(lambda x, f=function: f(x).sum())(logits)
        assert jnp.isfinite(gradient).all()
        assert (gradient[~mask] == 0).all()
    forbidden = jax.grad(lambda x: Categorical(jnp.where(mask, x, MASKED)).log_prob(jnp.array([0, 1, 2])).sum())(logits)
    assert jnp.isfinite(forbidden).all()


def test_pick_is_indexing() -> None:
    values, index = jnp.asarray(LOGITS), jnp.asarray(np.random.default_rng(2).integers(5, size=(4, 2)), jnp.int32)
    np.testing.assert_array_equal(
        select_actions(values, index), np.take_along_axis(LOGITS, np.asarray(index)[..., None], -1)[..., 0]
    )
    np.testing.assert_array_equal(jax.grad(lambda v: select_actions(v, index).sum())(values), jax.nn.one_hot(index, 5))


def test_logits_of_minus_infinity_are_forbidden_too() -> None:
    """Custom networks may mask this way. The gradient of a loss must be finite."""
    logits, other = jnp.array([0.0, -jnp.inf, 0.0]), jnp.array([0.0, -jnp.inf, np.log(3)])
    d, q = Categorical(logits), Categorical(other)
    assert float(d.log_prob(jnp.int32(2))) == pytest.approx(-np.log(2))
    assert float(d.entropy()) == pytest.approx(np.log(2))
    assert float(d.kl(q)) == pytest.approx(scipy.stats.entropy([0.5, 0.5], [0.25, 0.75]))
    assert float(Categorical(jnp.zeros(3)).kl(d)) > 1e9  # instead of infinity
    for function in (lambda x: Categorical(x).entropy(), lambda x: Categorical(x).kl(q), lambda x: q.kl(Categorical(x))):
        assert jnp.isfinite(jax.grad(function)(logits)).all()


def test_categorical_kl() -> None:
    other = np.random.default_rng(3).normal(size=LOGITS.shape).astype(np.float32)
    expected = scipy.stats.entropy(PROBABILITIES, scipy.special.softmax(np.float64(other), -1), axis=-1)
    np.testing.assert_allclose(Categorical(LOGITS).kl(Categorical(other)), expected, rtol=1e-4)
    np.testing.assert_allclose(Categorical(LOGITS).kl(Categorical(LOGITS + 7)), 0, atol=1e-5)
    with pytest.raises(AssertionError, match="shape"):
        Categorical(LOGITS).kl(Categorical(LOGITS[:1]))


def test_actions_masked_in_both_add_nothing_to_the_divergence() -> None:
    logits, mask = masked()
    other = jnp.where(mask, jnp.arange(5.0), 9.0)
    p, q = (np.where(mask, np.exp(np.float64(x)), 0) for x in (logits, other))
    divergence = lambda x: Categorical(jnp.where(mask, x, MASKED)).kl(Categorical(jnp.where(mask, other, MASKED)))  # noqa: E731
    np.testing.assert_allclose(divergence(logits), scipy.stats.entropy(p, q, axis=-1), rtol=1e-4, atol=1e-6)
    gradient = jax.grad(lambda x: divergence(x).sum())(logits)
    assert jnp.isfinite(gradient).all() and not gradient[~mask].any()
    assert float(Categorical(jnp.zeros(2)).kl(Categorical(jnp.array([0.0, MASKED])))) > 1e8


def test_where_a_mask_forbids_every_action_all_are_as_likely() -> None:
    """A traced program cannot raise here. All ways to draw agree."""
    d = Categorical(jnp.full((2000, 4), MASKED))
    np.testing.assert_allclose(d.entropy(), np.log(4), rtol=1e-6)
    np.testing.assert_allclose(d.log_prob(jnp.zeros(2000, jnp.int32)), -np.log(4), rtol=1e-6)
    assert not d.mode().any()
    for drawn in (d.sample(jax.random.key(0)), sample_each(d, jax.random.split(jax.random.key(0), 2000))):
        assert scipy.stats.chisquare(np.bincount(drawn, minlength=4)).pvalue > 1e-3


# ------------------------------------------------------------------------------------------------------------ multi-categorical


NVEC = (2, 5, 3)
FLAT = np.random.default_rng(5).normal(scale=2.0, size=(4, 3, sum(NVEC))).astype(np.float32)
EACH = np.split(FLAT, np.cumsum(NVEC)[:-1], axis=-1)
JOINT = np.einsum("...i,...j,...k->...ijk", *(scipy.special.softmax(np.float64(x), -1) for x in EACH)).reshape(4, 3, -1)
"""Probabilities of all combinations of actions, in the order of ``np.unravel_index``."""


def test_multi_categorical_is_the_joint_distribution_of_its_dimensions() -> None:
    d = MultiCategorical.from_flat(FLAT, NVEC)
    assert d.logits.shape == (4, 3, 3, 5) and (d.logits[..., 0, 2:] == LACKING).all()
    for index in range(math.prod(NVEC)):
        action = jnp.broadcast_to(jnp.array(np.unravel_index(index, NVEC), jnp.int32), (4, 3, 3))
        np.testing.assert_allclose(d.log_prob(action), np.log(JOINT[..., index]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d.entropy(), scipy.stats.entropy(JOINT, axis=-1), rtol=1e-4)
    best = np.stack(np.unravel_index(JOINT.argmax(-1), NVEC), -1)
    np.testing.assert_array_equal(d.mode(), best)
    other = MultiCategorical.from_flat(FLAT[::-1], NVEC)
    np.testing.assert_allclose(d.kl(other), scipy.stats.entropy(JOINT, JOINT[::-1], axis=-1), rtol=1e-4)
    assert d.mode().dtype == d.sample(jax.random.key(0)).dtype == jnp.int32


def test_multi_categorical_samples_have_their_frequencies_however_they_are_drawn() -> None:
    n, d = 6000, MultiCategorical.from_flat(jnp.asarray(FLAT[0, 0]), NVEC)
    keys = jax.random.split(jax.random.key(1), n)
    batch = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), d)
    for drawn in (jax.vmap(d.sample)(keys), sample_each(batch, keys)):
        counts = np.bincount(np.ravel_multi_index(np.asarray(drawn).T, NVEC), minlength=math.prod(NVEC))
        assert scipy.stats.chisquare(counts, n * JOINT[0, 0] / JOINT[0, 0].sum()).pvalue > 1e-3


def test_multi_categorical_keeps_to_the_mask_and_to_the_choices_that_there_are() -> None:
    """Also if one dimension has no allowed action. It is then unrestricted."""
    mask = jnp.array([[1, 0, 0, 0, 1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 1, 1, 1, 0, 0, 0]], bool)
    logits = jnp.where(mask, jnp.asarray(FLAT[0, :2]), MASKED)
    d = MultiCategorical.from_flat(logits, NVEC)
    drawn = np.asarray(jax.vmap(d.sample)(jax.random.split(jax.random.key(0), 2000)))
    assert (drawn < np.array(NVEC)).all() and (drawn[:, 0, 0] == 0).all() and (drawn[:, 0, 2] == 1).all()
    assert set(np.unique(drawn[:, 0, 1])) == {2, 3}
    for dimension, choices in ((0, 2), (2, 3)):
        assert scipy.stats.chisquare(np.bincount(drawn[:, 1, dimension], minlength=choices)).pvalue > 1e-3
    expected = (
        scipy.stats.entropy(scipy.special.softmax(FLAT[0, 0, 4:6])),
        np.log(2) + scipy.stats.entropy(scipy.special.softmax(FLAT[0, 1, 2:7])) + np.log(3),
    )
    np.testing.assert_allclose(d.entropy(), expected, rtol=1e-4)
    assert d.log_prob(d.mode()).shape == (2,) and (d.mode() < jnp.array(NVEC)).all()


def test_multi_categorical_gradients_reach_what_is_there_and_allowed_alone() -> None:
    mask = jnp.array([1, 1, 0, 0, 1, 1, 0, 0, 0, 0], bool)  # the last dimension allows nothing

    def loss(flat: Any) -> Any:
        d = MultiCategorical.from_flat(jnp.where(mask, flat, MASKED), NVEC)
        other = MultiCategorical.from_flat(jnp.where(mask, 0.5 * flat, MASKED), NVEC)
        return d.entropy() + d.log_prob(jnp.array([1, 2, 0])) + d.kl(other)

    gradient = jax.grad(loss)(jnp.asarray(FLAT[0, 0]))
    assert jnp.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient != 0, mask)


# --------------------------------------------------------------------------------------------------------------------- gaussians


def gaussian(size: int) -> Normal:
    rng = np.random.default_rng(size)
    return Normal(*(jnp.asarray(rng.normal(size=(4, 2, size)), jnp.float32) for _ in range(2)))


@pytest.mark.parametrize("size", [1, 3])
def test_normal_log_prob_entropy_and_mode(size: int) -> None:
    d = gaussian(size)
    action = np.random.default_rng(9).normal(size=d.mean.shape).astype(np.float32)
    frozen = scipy.stats.norm(np.asarray(d.mean, np.float64), np.exp(np.asarray(d.log_std, np.float64)))
    np.testing.assert_allclose(d.log_prob(action), frozen.logpdf(action).sum(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(d.entropy(), frozen.entropy().sum(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(d.mode(), d.mean)
    assert d.log_prob(action).shape == d.entropy().shape == (4, 2)


def test_normal_kl_is_the_integral() -> None:
    given = (0.3, 0.7), (-1.0, 1.8)
    p, q = (scipy.stats.norm(*each) for each in given)
    expected = scipy.integrate.quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), -10, 10)[0]
    one, two = (Normal(jnp.array([m]), jnp.log(jnp.array([s]))) for m, s in given)
    assert float(one.kl(two)) == pytest.approx(expected, rel=1e-5)
    assert float(one.kl(one)) == 0
    both = (
        jax.tree.map(lambda a, b: jnp.concatenate([a, b]), one, two),
        jax.tree.map(lambda a, b: jnp.concatenate([b, b]), one, two),
    )
    assert float(both[0].kl(both[1])) == pytest.approx(expected, rel=1e-5)  # sums over components
    with pytest.raises(AssertionError, match="shape"):
        one.kl(both[0])


def test_normal_samples_have_their_moments() -> None:
    d = Normal(jnp.array([1.0, -2.0]), jnp.log(jnp.array([0.5, 3.0])))
    samples = np.asarray(jax.vmap(d.sample)(jax.random.split(jax.random.key(0), 4000)))
    for i, (mean, std) in enumerate([(1.0, 0.5), (-2.0, 3.0)]):
        assert scipy.stats.kstest(samples[:, i], scipy.stats.norm(mean, std).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.06  # components are independent


def test_normal_gradient_is_the_score() -> None:
    d = gaussian(2)
    action = d.mean + 0.3
    mean, log_std = jax.grad(lambda d: d.log_prob(action).sum())(d)
    np.testing.assert_allclose(mean, 0.3 / jnp.exp(d.log_std) ** 2, rtol=1e-3)
    np.testing.assert_allclose(log_std, (0.3 / jnp.exp(d.log_std)) ** 2 - 1, rtol=1e-3, atol=1e-4)


LOW, HIGH = np.array([-3.0, 0.0, 2.0], np.float32), np.array([-1.0, 0.01, 1e4], np.float32)
MEAN, STD = np.array([-1.2, 0.4, 2.0]), np.array([0.3, 1.0, 2.5])


def squashed(low: Any = LOW, high: Any = HIGH) -> TanhNormal:
    return TanhNormal(*(jnp.asarray(x, jnp.float32) for x in (MEAN, np.log(STD))), *map(jnp.asarray, (low, high)))


def test_tanh_normal_is_the_density_of_what_it_draws() -> None:
    """By change of variables in double precision, and by the probability of each part of an interval."""
    d, half = squashed(), (np.float64(HIGH) - LOW) / 2
    unit = np.random.default_rng(0).uniform(-0.999, 0.999, size=(50, 3))
    x = np.arctanh(unit)
    expected = (scipy.stats.norm(MEAN, STD).logpdf(x) - np.log(half * (1 - unit**2))).sum(-1)
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (50, 3)), d)
    np.testing.assert_allclose(many.log_prob(jnp.float32(LOW + half * (unit + 1))), expected, rtol=1e-3, atol=1e-3)

    samples = np.float64(jax.vmap(d.sample)(jax.random.split(jax.random.key(0), 4000)))
    for i in range(3):
        unit = np.clip((samples[:, i] - LOW[i]) / half[i] - 1, -1, 1)
        with np.errstate(divide="ignore"):
            assert scipy.stats.kstest(np.arctanh(unit), scipy.stats.norm(MEAN[i], STD[i]).cdf).pvalue > 1e-3

    grid = np.linspace(-8, 8, 4001)  # grid of x, fine where the density of the action is steep
    actions = np.tanh(grid)
    density = np.exp(
        TanhNormal(*(jnp.full((4001, 1), x, jnp.float32) for x in (0.4, 0.2))).log_prob(jnp.float32(actions)[:, None])
    )
    assert scipy.integrate.trapezoid(density, actions) == pytest.approx(1, abs=1e-3)


def test_tanh_normal_without_bounds_is_in_model_units() -> None:
    d = TanhNormal(*squashed()[:2])
    bounded = squashed(-np.ones(3, np.float32), np.ones(3, np.float32))
    action = jnp.array([0.3, -0.999, 0.9999])
    assert float(d.log_prob(action)) == pytest.approx(float(bounded.log_prob(action)), rel=1e-5)
    np.testing.assert_allclose(d.entropy(), bounded.entropy(), rtol=1e-6)
    key = jax.random.key(0)
    np.testing.assert_allclose(d.sample(key), bounded.sample(key), atol=1e-6)
    np.testing.assert_allclose(d.mode(), np.tanh(MEAN), rtol=1e-5)
    np.testing.assert_allclose(squashed().mode(), LOW + (np.tanh(MEAN) + 1) * (HIGH - LOW) / 2, rtol=1e-3)


def test_tanh_normal_never_leaves_the_box_and_its_log_prob_is_finite_on_the_bounds() -> None:
    """Checked exactly, as gymnasium does, for distant means and for bounds that are large, small, hard to represent or of zero
    width."""
    rng = np.random.default_rng(0)
    ends = np.sort((rng.normal(size=(2, 500)) * 10.0 ** rng.integers(-6, 7, (2, 500))).astype(np.float32), axis=0)
    ends[:, 0], ends[:, 1], ends[:, 2] = (-3.0, -0.8), (-3e38, 3e38), (2.0, 2.0)
    box = spaces.Box(*ends)
    low, high = bounds(box)
    for mean in (-1e4, -9.0, 0.0, 9.0, 1e4):
        d = TanhNormal(jnp.full(500, mean), jnp.ones(500), jnp.asarray(low), jnp.asarray(high))
        for action in (d.sample(jax.random.key(1)), d.mode(), d.low, d.high):
            assert action is not None and box.contains(np.asarray(action))
            value, gradient = jax.value_and_grad(lambda d, action=action: d.log_prob(action))(d)
            assert jnp.isfinite(value) and all(jnp.isfinite(x).all() for x in (gradient.mean, gradient.log_std))
        if abs(mean) == 1e4:
            np.testing.assert_array_equal(d.mode(), low if mean < 0 else high)


def test_tanh_normal_ratios_hold_near_the_bounds() -> None:
    """Algorithms need log π − log μ of the same action, for any rounding of that action."""
    x = np.array([-7.0, -5.0, 5.0, 7.0])[:, None]
    action = jnp.float32(np.tanh(x))
    new, old = (TanhNormal(jnp.full((4, 1), m), jnp.full((4, 1), math.log(s))) for m, s in ((0.5, 1.5), (0.0, 2.0)))
    expected = (scipy.stats.norm(0.5, 1.5).logpdf(x) - scipy.stats.norm(0, 2).logpdf(x))[:, 0]
    np.testing.assert_allclose(new.log_prob(action) - old.log_prob(action), expected, rtol=0.02)


@pytest.mark.parametrize("std, error", [(0.1, 2e-5), (1.0, 2e-5), (2.0, 4e-3), (3.0, 0.03)])
def test_tanh_normal_entropy_is_near_the_integral(std: float, error: float) -> None:
    """Within the error given in its docstring."""

    def entropy(mean: float) -> float:
        x = np.linspace(mean - 12 * std, mean + 12 * std, 200_001)
        p = scipy.stats.norm(mean, std)
        slope = 2 * (np.log(2) - np.abs(x) - np.log1p(np.exp(-2 * np.abs(x))))
        return float(p.entropy() + scipy.integrate.trapezoid(p.pdf(x) * slope, x))

    means = np.linspace(-4, 4, 9)
    expected = [entropy(mean) for mean in means]
    d = TanhNormal(jnp.float32(means)[:, None], jnp.full((9, 1), math.log(std)))
    np.testing.assert_allclose(d.entropy(), expected, atol=error + 1e-5)
    low, high = (jnp.broadcast_to(x, (9, 3)) for x in (LOW, HIGH))
    three = TanhNormal(jnp.tile(d.mean, 3), jnp.tile(d.log_std, 3), low, high)
    np.testing.assert_allclose(three.entropy(), 3 * np.array(expected) + np.log((HIGH - LOW) / 2).sum(), atol=3 * error + 1e-4)
    assert all(jnp.isfinite(x).all() for x in jax.grad(lambda d: d.entropy().sum())(three))


@pytest.mark.slow
def test_tanh_normal_at_noise_is_a_draw_with_its_log_probability() -> None:
    """A draw has the density that integrates to 1, also if the action rounds to a bound, and its gradient is finite."""
    for mean, std in ((0.4, 0.7), (-1.0, 2.0)):
        x = np.linspace(-14, 14, 40_001)
        d = TanhNormal(
            *(jnp.full((len(x), 1), v, jnp.float32) for v in (mean, math.log(std))),
            jnp.full((len(x), 1), -2.0),
            jnp.ones((len(x), 1)),
        )
        action, log_prob = d.at(jnp.float32((x - mean) / std)[:, None])
        exact = 1.5 * np.tanh(x) - 0.5
        np.testing.assert_allclose(action[:, 0], exact, atol=1e-5)
        assert np.trapezoid(np.exp(np.float64(log_prob)), exact) == pytest.approx(1, abs=1e-4)
        inside = np.abs(x) < 3
        np.testing.assert_allclose(log_prob[inside], d.log_prob(action)[inside], atol=1e-3)
    # 1 - tanh² is e^-58 here, which float32 rounds to 0.
    far = TanhNormal(jnp.full((1, 1), 30.0), jnp.zeros((1, 1)))
    action, log_prob = far.at(jnp.zeros((1, 1)))
    assert float(action[0, 0]) == 1 and float(log_prob[0]) == pytest.approx(-0.5 * math.log(2 * math.pi) + 60 - 2 * math.log(2))
    slope = jax.grad(lambda mean: TanhNormal(mean, far.log_std).at(jnp.zeros((1, 1)))[1].sum())(far.mean)
    assert float(slope[0, 0]) == pytest.approx(2.0)


def test_tanh_normal_kl_is_the_integral() -> None:
    """Over actions. Squashing both distributions in the same way does not change it."""
    (m1, s1), (m2, s2) = (0.2, 0.5), (-0.4, 0.8)
    one, two = (TanhNormal(*(jnp.full((20_001, 1), x) for x in (m, math.log(s)))) for m, s in ((m1, s1), (m2, s2)))
    action = np.tanh(np.linspace(-4, 4, 20_001))
    p, q = (np.float64(d.log_prob(jnp.float32(action)[:, None])) for d in (one, two))
    expected = scipy.integrate.trapezoid(np.exp(p) * (p - q), action)
    np.testing.assert_allclose(one.kl(two), expected, rtol=1e-3)
    np.testing.assert_array_equal(one.kl(one), 0)


# ------------------------------------------------------------------------------------------------------------------------- rows


ROWS: list[Callable[[], Any]] = [
    lambda: Categorical(jnp.asarray(LOGITS[:, 0])),
    lambda: MultiCategorical.from_flat(jnp.asarray(FLAT[:, 0]), NVEC),
    lambda: Normal(*(x[:, 0] for x in gaussian(3))),
    lambda: TanhNormal(*(x[:, 0] for x in gaussian(3)), *(jnp.broadcast_to(x, (4, 3)) for x in (LOW, HIGH))),  # type: ignore[arg-type]
]


@pytest.mark.slow
@pytest.mark.parametrize("make", ROWS)
def test_sample_each_depends_on_its_own_row_and_key_alone(make: Callable[[], Any]) -> None:
    d, keys = make(), jax.random.split(jax.random.key(3), 4)
    whole = sample_each(d, keys)
    order = jnp.array([2, 0, 3])
    np.testing.assert_array_equal(sample_each(jax.tree.map(lambda x: x[order], d), keys[order]), whole[order])
    assert (sample_each(d, jax.random.split(jax.random.key(4), 4)) != whole).any()


def test_sample_each_draws_a_normal_row_as_the_row_itself_does() -> None:
    d, keys = Normal(*(x[:, 0] for x in gaussian(3))), jax.random.split(jax.random.key(3), 4)
    for b, drawn in enumerate(sample_each(d, keys)):  # a single exp may round differently than in a vector
        np.testing.assert_allclose(Normal(d.mean[b], d.log_std[b]).sample(keys[b]), drawn, rtol=1e-6)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_sample_each_draws_with_the_probabilities_of_the_logits(impl: str) -> None:
    """With keys folded as in acting: one key for environments 0, 1, 2, …; and one environment over many rows."""
    n, logits = 6000, jnp.array([0.3, MASKED, -1.0, 1.2, -3.0])
    expected = n * scipy.special.softmax(np.asarray(logits, np.float64))
    key = jax.random.key(7, impl=impl)
    over_environments = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n))
    over_rows = jax.vmap(lambda row: jax.random.fold_in(row, 0))(jax.random.split(key, n))
    for keys in (over_environments, over_rows):
        drawn = np.asarray(sample_each(Categorical(jnp.broadcast_to(logits, (n, 5))), keys))
        counts = np.bincount(drawn, minlength=5)
        assert counts[1] == 0  # masked
        allowed = [0, 2, 3, 4]
        assert scipy.stats.chisquare(counts[allowed], expected[allowed]).pvalue > 1e-3
        assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / np.sqrt(n)


def test_quantiles_are_the_inverse_of_the_cumulative_distribution() -> None:
    d = Categorical(jnp.log(jnp.array([0.25, 0.5, 0.25])))
    u = jnp.array([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 0.9999])
    np.testing.assert_array_equal(jax.vmap(d.quantile)(u), [0, 0, 1, 1, 2, 2])


@pytest.mark.slow
@pytest.mark.parametrize("n", [362, 4672], ids=["go 19x19", "chess"])
def test_no_masked_action_is_drawn_from_thousands(n: int) -> None:
    """Also where rounded cumulative sums decrease from one entry to the next. The other actions have the right frequencies."""
    rng = np.random.default_rng(0)
    allowed = rng.random((4, n)) < 0.02
    logits = jnp.where(allowed, rng.normal(size=(4, n)).astype(np.float32), MASKED)
    quantiles = jax.jit(jax.vmap(lambda logits, u: jax.vmap(Categorical(logits).quantile)(u)))

    sums = jnp.cumsum(jax.nn.softmax(logits), -1)
    falls = jnp.concatenate([sums[:, :1] > 1, sums[:, 1:] < sums[:, :-1]], -1)
    around = [sums / sums[:, -1:] + i * 2.0**-24 for i in (-1, 0, 1)]
    u = jnp.clip(jnp.concatenate([*around, jnp.full((4, 1), 0.6135876), jnp.zeros((4, 1))], -1), 0.0, 1 - 2.0**-23)
    drawn = quantiles(logits, u)
    assert np.take_along_axis(allowed, np.asarray(drawn), 1).all()
    assert n < 1000 or falls.any()

    u = np.tile((np.arange(2**13) / 2**13).astype(np.float32), (4, 1))
    drawn = np.asarray(quantiles(logits, u))
    expected = np.cumsum(np.exp(np.where(allowed, np.float64(logits), -np.inf)), -1)
    expected /= expected[:, -1:]
    counted = np.stack([np.cumsum(np.bincount(row, minlength=n)) for row in drawn]) / 2**13
    np.testing.assert_allclose(counted, expected, atol=1.01 / 2**13)


def test_the_largest_uniform_number_draws_no_masked_action() -> None:
    """Rounding can leave the sum of the probabilities below or above 1."""
    rng, u = np.random.default_rng(0), jnp.float32(1 - 2.0**-23)
    logits = jnp.asarray(rng.normal(size=(2000, 9)) * 3, jnp.float32).at[:, 6:].set(MASKED)
    highest = Categorical(logits).quantile(jnp.full(2000, u))
    assert (highest <= 5).all() and (highest >= 0).all()
    first = Categorical(logits[:, ::-1]).quantile(jnp.zeros(2000))
    np.testing.assert_array_equal(first, 3)  # nor does 0


def test_shapes_that_would_broadcast_are_refused() -> None:
    """Otherwise each of these would return numbers for the wrong rows."""
    logits, mean = jnp.zeros((3, 4)), jnp.zeros((3, 2))
    keys = jax.random.split(jax.random.key(0), 1)
    for call in (
        lambda: select_actions(logits, jnp.zeros(1, jnp.int32)),
        lambda: Categorical(logits).log_prob(jnp.zeros((3, 1), jnp.int32)),
        lambda: Categorical(logits).quantile(jnp.zeros(1)),
        lambda: Normal(mean, mean).log_prob(jnp.zeros(2)),
        lambda: Normal(mean, mean[:1]).log_prob(mean),
        lambda: MultiCategorical(logits).log_prob(jnp.zeros(1, jnp.int32)),
        lambda: MultiCategorical.from_flat(logits, (2, 3)),
        lambda: TanhNormal(mean, mean).log_prob(jnp.zeros(2)),
        lambda: TanhNormal(mean, mean, mean[0], mean[0] + 1).log_prob(mean),
        lambda: sample_each(Categorical(logits), keys),
    ):
        with pytest.raises(AssertionError, match=r"shape|dimension"):
            call()
