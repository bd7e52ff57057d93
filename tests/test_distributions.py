"""Distributions against scipy.stats, and what masks and batches may and may not change."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from jaxrl.distributions import MASKED, Categorical, Normal, pick, sample_each

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


def test_categorical_samples_have_their_frequencies() -> None:
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    actions = jax.vmap(Categorical(logits).sample)(jax.random.split(jax.random.key(0), 4000))
    assert scipy.stats.chisquare(np.bincount(actions, minlength=3), [400, 800, 2800]).pvalue > 1e-3


def masked() -> tuple[jax.Array, jax.Array]:
    """Logits that favour forbidden actions, and the mask: rows with one, two and four of five allowed."""
    mask = jnp.array([[0, 0, 1, 0, 0], [1, 0, 0, 0, 1], [1, 1, 0, 1, 1]], bool)
    return jnp.where(mask, -5.0, 20.0), mask


def test_masked_actions_are_never_drawn() -> None:
    logits, mask = masked()
    d = Categorical(jnp.where(mask, logits, MASKED))
    actions = jax.vmap(d.sample)(jax.random.split(jax.random.key(0), 2000))
    assert mask[jnp.arange(3), actions].all()
    assert mask[jnp.arange(3), d.mode()].all()
    for row in range(3):  # all allowed ones do occur
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
    np.testing.assert_array_equal(pick(values, index), np.take_along_axis(LOGITS, np.asarray(index)[..., None], -1)[..., 0])
    np.testing.assert_array_equal(jax.grad(lambda v: pick(v, index).sum())(values), jax.nn.one_hot(index, 5))


def test_logits_of_minus_infinity_are_forbidden_too() -> None:
    """A network of one's own may mask this way."""
    logits = jnp.array([0.0, -jnp.inf, 0.0])
    assert float(Categorical(logits).log_prob(jnp.int32(2))) == pytest.approx(-np.log(2))


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


@pytest.mark.parametrize(
    "make", [lambda: Categorical(jnp.asarray(LOGITS[:, 0])), lambda: Normal(*(x[:, 0] for x in gaussian(3)))]
)
def test_sample_each_depends_on_its_own_row_and_key_alone(make: Callable[[], Categorical | Normal]) -> None:
    d, keys = make(), jax.random.split(jax.random.key(3), 4)
    whole = sample_each(d, keys)
    order = jnp.array([2, 0, 3])
    np.testing.assert_array_equal(sample_each(jax.tree.map(lambda x: x[order], d), keys[order]), whole[order])
    assert (sample_each(d, jax.random.split(jax.random.key(4), 4)) != whole).any()


def test_sample_each_draws_a_normal_row_as_the_row_itself_does() -> None:
    d, keys = Normal(*(x[:, 0] for x in gaussian(3))), jax.random.split(jax.random.key(3), 4)
    for b, drawn in enumerate(sample_each(d, keys)):  # alone, an exp may round otherwise than in a vector
        np.testing.assert_allclose(Normal(d.mean[b], d.log_std[b]).sample(keys[b]), drawn, rtol=1e-6)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_sample_each_draws_with_the_probabilities_of_the_logits(impl: str) -> None:
    """From the keys that acting folds: one key, environments 0, 1, 2, …; and from one environment over many rows."""
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


@pytest.mark.parametrize("n", [362, 4672], ids=["go 19x19", "chess"])
def test_no_masked_action_is_drawn_from_thousands(n: int) -> None:
    """Where rounded sums fall from one entry to the next, and everywhere else; and the others as often as they should be."""
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
    """Each of these would otherwise give numbers, of the wrong rows."""
    logits, mean = jnp.zeros((3, 4)), jnp.zeros((3, 2))
    keys = jax.random.split(jax.random.key(0), 1)
    for call in (
        lambda: pick(logits, jnp.zeros(1, jnp.int32)),
        lambda: Categorical(logits).log_prob(jnp.zeros((3, 1), jnp.int32)),
        lambda: Categorical(logits).quantile(jnp.zeros(1)),
        lambda: Normal(mean, mean).log_prob(jnp.zeros(2)),
        lambda: Normal(mean, mean[:1]).log_prob(mean),
        lambda: sample_each(Categorical(logits), keys),
    ):
        with pytest.raises(AssertionError, match="shape"):
            call()
