"""ES: the step of a generation against NumPy, for each noise and strategy, and whole generations against NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.algorithms.es import MOST_ROWS
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.evolution.strategies import SHAPINGS
from jaxrl.metrics import to_floats
from jaxrl.options import ARS, OpenAI
from jaxrl.types import Agent, Episodes
from tests.helpers.agents import assert_close, small, to_numpy
from tests.helpers.networks import values_for
from tests.helpers.oracles.evolution import ars_ascent, member_params, noise_of, openai_ascent
from tests.helpers.walk import WALK, Ground, walked

N, E, ROWS = 8, 4, 8
SIGMA, DECAY, RATE, DECREASE, SHIFT = 0.4, 0.8, 0.3, 0.05, 0.5
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
LINEAR: dict[str, Any] = {"model": {"hidden_sizes": ()}}


def agent_of(noise: str = "normal", strategy: Any = OpenAI(), **settings: Any) -> Agent:  # noqa: B008
    """Build an agent of gradient descent; ``ARS`` has it by default."""
    steps = {} if isinstance(strategy, ARS) else {"optimizer": lambda hp: optax.sgd(hp.learning_rate)}
    numbers = {"sigma": SIGMA, "sigma_decay": DECAY, "learning_rate": RATE, "weight_decay": DECREASE, "reward_shift": SHIFT}
    parts: dict[str, Any] = {"noise": noise, "strategy": strategy, "normalize_observations": False, **numbers, **steps}
    return small("es", WALK, **{"members": N, "episodes": E, "horizon": ROWS, **parts, **settings})


def half_after(iteration: Any) -> Any:
    return 1 / (1 + iteration)


def learner_of(agent: Agent, version: int = 0) -> Any:
    learner = agent.init(KEY()).learner
    return learner._replace(params=values_for(learner.params), version=jnp.int32(version))


def played(nan: bool = False) -> Episodes:
    """Return episodes whose returns are often equal; with ``nan``, one of the third member is NaN."""
    rng = np.random.default_rng(1)
    returns = (rng.integers(-2, 3, (N, E)) + np.arange(N)[:, None] // 2 * np.float32(0.5)).astype(np.float32)
    returns[6] = returns[1]
    lengths = rng.integers(1, 5, (N, E)).astype(np.int32)
    lengths[6] = lengths[1]
    if nan:
        returns[2, 1] = np.nan
    member = np.repeat(np.arange(N, dtype=np.int32), E)
    yes, zero = np.ones(N * E, bool), np.zeros(N * E, np.int32)
    return jax.tree.map(jnp.asarray, Episodes(returns.ravel(), lengths.ravel(), yes, member, zero))


def fitness_of(episodes: Episodes) -> np.ndarray:
    value = np.asarray(episodes.episodic_return, np.float64) - SHIFT * np.asarray(episodes.episodic_length)
    return value.reshape(N, E).mean(1)


def ascent_of(strategy: Any, fitness: np.ndarray, noise: Any, sigma: float) -> Any:
    if isinstance(strategy, ARS):
        return ars_ascent(strategy.elite_share, fitness, noise, sigma)
    return openai_ascent(strategy.shaping, fitness, noise, sigma)


CASES = [("normal", OpenAI(shaping=name)) for name in SHAPINGS]  # type: ignore[arg-type]
CASES += [("sign", OpenAI()), ("low_rank", OpenAI()), ("normal", ARS()), ("sign", ARS(elite_share=0.5))]


@pytest.mark.parametrize(("noise", "strategy"), CASES, ids=str)
def test_the_step_is_the_papers(noise: str, strategy: Any) -> None:
    """At two versions, with σ decayed and scheduled, for returns with and without a NaN."""
    agent = agent_of(noise, strategy, schedules={"sigma": half_after})
    learn_from = jit(agent.algorithm.learn_from)
    for version, nan in ((0, True), (2, False)):
        learner, episodes, sigma = learner_of(agent, version), played(nan), SIGMA * DECAY**version / (1 + version)
        policy = agent.algorithm.policy(learner)
        assert float(policy.exploration.sigma) == pytest.approx(sigma)
        ascent = ascent_of(strategy, fitness_of(episodes), noise_of(agent, policy, N, sigma), sigma)
        gradient = jax.tree.map(lambda up, theta: DECREASE * np.asarray(theta) - up, ascent, learner.params)
        expected = jax.tree.map(lambda theta, g: np.float32(theta - RATE * g), to_numpy(learner.params), gradient)
        new, metrics = learn_from(learner, episodes)
        assert_close(new.params, expected, atol=1e-4)
        assert np.abs(np.asarray(jax.tree.leaves(ascent)[0])).max() > 0.01
        assert int(new.version) == version + 1 and int(new.rows) == int(episodes.episodic_length.sum())
        numbers = {
            "losses/grad_norm": optax.tree.norm(gradient),
            "charts/sigma": sigma,
            "charts/parameter_norm": optax.tree.norm(expected),
            "charts/learning_rate": RATE,
        }
        assert to_floats(metrics) == pytest.approx({name: float(x) for name, x in numbers.items()}, rel=1e-3)


def test_pairs_have_opposite_noise_of_scale_sigma() -> None:
    """So the oracle above does not merely invert ``members``."""
    agent = agent_of(**LINEAR, members=2000)
    policy = agent.algorithm.policy(learner_of(agent))
    kernel = noise_of(agent, policy, 2000, SIGMA)["params"]["head"]["logits"]["kernel"]
    np.testing.assert_allclose(kernel[0::2], -kernel[1::2], atol=1e-5)
    assert np.abs(kernel.mean(0)).max() < 1e-6 and np.abs(kernel[0::2].std(0) - 1).max() < 4 / np.sqrt(2 * 1000)


def test_the_default_is_adam() -> None:
    """Two steps equal optax's along the gradients of gradient descent."""
    plain, agent = agent_of(), agent_of(optimizer=None)
    by_hand, learner = optax.adam(RATE, eps=1e-5), learner_of(agent)
    learn_from, gradient_step = jit(agent.algorithm.learn_from), jit(plain.algorithm.learn_from)
    expected, moments = learner.params, by_hand.init(learner.params)
    for version in range(2):
        stepped, _ = gradient_step(learner_of(plain, version)._replace(params=expected), played())
        gradient = jax.tree.map(lambda old, new: (old - new) / RATE, expected, stepped.params)
        updates, moments = by_hand.update(gradient, moments)
        expected = optax.apply_updates(expected, updates)
        learner, _ = learn_from(learner, played())
    assert_close(learner.params, expected, atol=1e-3)


def test_annealing_ends_with_the_run() -> None:
    """The learning rate falls linearly in the rows that ``horizon`` allows."""
    agent = agent_of(anneal=True)
    hyperparams = agent.init(KEY(), {"total_steps": 8 * N * E * ROWS}).learner.hyperparams
    learn_from = jit(agent.algorithm.learn_from)
    for version, rate in ((0, RATE), (2, RATE * 0.75), (8, 0.0)):
        learner = learner_of(agent, version)._replace(hyperparams=hyperparams)
        new, metrics = learn_from(learner, played())
        assert to_floats(metrics)["charts/learning_rate"] == pytest.approx(rate)
        moved = [(a != b).any() for a, b in zip(*map(jax.tree.leaves, (new.params, learner.params)), strict=True)]
        assert any(moved) == (rate > 0)


def test_counted_rows_do_not_overflow() -> None:
    agent = agent_of()
    learn_from, played_rows = jit(agent.algorithm.learn_from), int(played().episodic_length.sum())
    remaining: Any = agent.algorithm.remaining_rows
    for before, after in ((MOST_ROWS - played_rows, MOST_ROWS), (MOST_ROWS - 1, MOST_ROWS), (MOST_ROWS, MOST_ROWS), (5, None)):
        learner = learner_of(agent)._replace(rows=jnp.int32(before))
        new, _ = learn_from(learner, played())
        assert int(new.rows) == (after or before + played_rows)
        assert int(remaining(new)) == MOST_ROWS  # there is no limit
    limited = agent.init(KEY(), {"max_env_steps": MOST_ROWS}).learner
    assert int(remaining(limited)) == 2**31 - 128 and int(remaining(limited._replace(rows=jnp.int32(MOST_ROWS)))) == 0


# ----------------------------------------------------------------------------------------------------------- whole generations

STARTS = np.array([-0.6, 0.1, 0.45, 0.7], np.float32)


def test_generations_against_numpy() -> None:
    """Two generations of linear policies without noise in the environment: episodes, statistics and steps."""
    agent = agent_of(**LINEAR, normalize_observations=True, sigma=1.0)
    state = agent.init(KEY(), None, Ground(start=STARTS, spread=0.0, noise=0.0))
    step, observed, rows = jit(agent.step), [np.zeros((0, 2))], 0
    mean, variance = np.zeros(2), np.ones(2)
    for generation in range(2):
        policy, sigma = agent.algorithm.policy(state.learner), DECAY**generation
        params = to_numpy(member_params(agent, policy, N))["params"]["head"]["logits"]
        episodes = []
        for kernel, bias in zip(params["kernel"], params["bias"], strict=True):

            def choose(seen: np.ndarray, kernel: Any = kernel, bias: Any = bias) -> int:
                normal = np.clip((seen - mean) / np.sqrt(variance + 1e-8), -10, 10)  # noqa: B023
                return int(np.argmax(normal @ kernel + bias))

            episodes += [walked(float(start), choose, ROWS) for start in STARTS]
        returns, lengths = (np.array([x[i] for x in episodes]).reshape(N, E) for i in (0, 1))
        assert len(np.unique(lengths)) > 3 and not all(x.finished for x in episodes)
        ascent = openai_ascent("centered_rank", (returns - SHIFT * lengths).mean(1), noise_of(agent, policy, N, sigma), sigma)
        expected = jax.tree.map(
            lambda theta, up: np.float32((1 - RATE * DECREASE) * theta + RATE * up), to_numpy(policy.params), ascent
        )
        state, metrics = step(state)
        assert_close(state.learner.params, expected, atol=1e-4)

        observed += [x.observations for x in episodes]
        seen, prior, rows = np.concatenate(observed), 1e-4, rows + int(lengths.sum())
        count = prior + len(seen)
        mean = seen.sum(0) / count
        variance = (prior * (1 + mean**2) + ((seen - mean) ** 2).sum(0)) / count
        found = state.learner.statistics.observations
        assert int(state.learner.rows) == rows == len(seen) and float(found.count) == pytest.approx(count)
        np.testing.assert_allclose(found.mean, mean, atol=1e-5)
        np.testing.assert_allclose(found.variance, variance, rtol=1e-4)
        logged = to_floats(metrics)
        assert (int(metrics["charts/valid_rows"].sum), int(metrics["charts/valid_rows"].count)) == (lengths.sum(), N * E * ROWS)
        names = ["episodic_return", "episodic_return_min", "episodic_return_max", "episodic_length"]
        expected_log = [returns.mean(), returns.min(), returns.max(), lengths.mean()]
        assert [logged[f"charts/{name}"] for name in names] == pytest.approx(expected_log, rel=1e-4)
