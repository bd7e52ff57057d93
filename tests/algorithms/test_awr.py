"""AWR: loss and gradient against NumPy, an iteration against a loop, probes, a dataset, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import make_awr
from jaxrl.algorithms.awr import AWRConfig, AWRHyperparams, awr_loss
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import actor_critic
from jaxrl.options import Binary, Exponential
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.sequence import Sequences, sequences
from jaxrl.returns import discounts
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_ACTOR_CRITIC, Tiny, assert_close, outputs_of, small
from tests.helpers.datasets import random_dataset
from tests.helpers.loss_cases import linear_model
from tests.helpers.oracles.policy_gradient import B, T, log_probs, rollout_case, slope, standardized, values
from tests.helpers.ppo_cases import sgd
from tests.helpers.probe_set import PROBES, Learnt, learn_probes, learner_of

TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 4,
        "batch_size": 8,
        "buffer_size": 160,
        "replay_ratio": 4.0,
        "learning_starts": 32,
        "n_step": 4,
        "anneal": False,
        "model": SMALL_ACTOR_CRITIC,
    },
    value=lambda *given: outputs_of(*given).value,
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 16}),
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
small_awr = partial(small, "awr")
HP = AWRHyperparams(gamma=0.8, gae_lambda=0.7, ent_coef=0.3, vf_coef=0.6, beta=1.3, weight_limit=2.5)


# ------------------------------------------------------------------------------------------------------------------------ loss


def drawn(discrete: bool, seed: int) -> tuple[Any, Sequences, Any]:
    """Return parameters, rows with every kind of end, and the rollout that they are of."""
    params, rollout = rollout_case(discrete, seed)
    action = rollout.action if discrete else np.clip(rollout.action, -1, 1)
    rollout = rollout._replace(action=action)
    ends = (rollout.terminated, rollout.truncated, rollout.valid)
    weight = np.random.default_rng(seed).uniform(0.5, 1.5, B).astype(np.float32)
    given = action if discrete else 2 * action  # in the environment's units
    return params, Sequences(rollout.inputs, given, rollout.reward, *ends, (), weight), rollout


def setup_of(discrete: bool, config: AWRConfig, axis_name: str | None = None) -> Any:
    kind: Any = spaces.Discrete(4) if discrete else spaces.Box(-2, 2, (2,), np.float32)
    return SimpleNamespace(model=linear_model(discrete), config=config, action_space=kind, axis_name=axis_name)


def advantages(rollout: Any, value: np.ndarray) -> np.ndarray:
    """Compute A = R − V(s), with R_t = r_t + γ·((1 − λ)·V(s_{t+1}) + λ·R_{t+1}) up to the end of the episode or the rows."""
    found = np.zeros((T, B))
    for b in range(B):
        for t in reversed(range(T)):
            if not rollout.valid[t, b]:
                continue
            last = t == T - 1 or not rollout.valid[t + 1, b] or rollout.terminated[t, b] or rollout.truncated[t, b]
            beyond = value[t + 1, b] if last else 0.3 * value[t + 1, b] + 0.7 * (found[t + 1, b] + value[t + 1, b])
            found[t, b] = rollout.reward[t, b] + (0 if rollout.terminated[t, b] else 0.8 * beyond) - value[t, b]
    return found


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize(("normalize", "kind"), [(False, Exponential()), (True, Exponential()), (True, Binary())])
def test_loss_and_gradient_are_the_papers(discrete: bool, normalize: bool, kind: Any) -> None:
    setup = setup_of(discrete, AWRConfig(normalize_advantages=normalize, weight=kind))
    params, batch, rollout = drawn(discrete, 1)
    loss = jit(jax.value_and_grad(lambda params, batch: awr_loss(setup, HP, params, batch), has_aux=True))
    (total, logged), gradient = loss(params, batch)
    valid, value = rollout.valid, values(params, rollout)
    advantage = advantages(rollout, value)
    target = advantage + value[:-1]
    scaled = standardized(advantage, valid) if kind == Exponential() and normalize else advantage
    weight = np.minimum(np.exp(1.3 * scaled), 2.5) if kind == Exponential() else (scaled > 0) * 1.0
    assert kind == Binary() or 0 < (weight[valid] == 2.5).mean() < 1

    def by_hand(p: Any) -> float:
        log_prob, entropy = log_probs(discrete, p, rollout)
        rows = -weight * log_prob + 0.3 * (target - values(p, rollout)[:-1]) ** 2 - 0.3 * entropy
        return (batch.weight * rows)[valid].mean()

    assert float(total) == pytest.approx(by_hand(params), rel=1e-4)
    assert float(logged["losses/weight"]) == pytest.approx(weight[valid].mean(), rel=1e-4)
    assert_close(gradient, jax.tree.map(np.float32, slope(by_hand, params)), atol=5e-4)
    other = lambda x: np.where(valid.reshape(*valid.shape, *[1] * (x.ndim - 2)), x, x.dtype.type(1))  # noqa: E731
    changed = batch._replace(action=other(batch.action), reward=other(batch.reward))
    assert_close(loss(params, changed), ((total, logged), gradient), atol=1e-6)


@pytest.mark.slow
def test_updates_are_those_of_a_loop() -> None:
    """Two steps of plain gradient descent, each on sequences that are drawn anew."""
    agent = small_awr(probes.memory(), optimizer=sgd, learning_rate=0.05)
    setup, state = agent.algorithm.learn.args[0], jit(agent.init)(KEY())  # type: ignore[union-attr]
    assert setup.config.updates_per_iteration == 2
    start = state.learner
    after, _ = jit(agent.algorithm.learn)(start)  # type: ignore[arg-type]
    draw, params = setup.draw(start), start.params
    for i in range(2):
        part = jax.tree.map(lambda x, i=i: x[8 * i : 8 * i + 8], draw)
        rows = sequences(setup.replay, start.replay, part, 4)
        assert rows.valid.shape == (4, 8) and discounts(rows, 0.9)[0].shape == (4, 8)
        gradient = jax.grad(lambda p, rows=rows: awr_loss(setup, start.hyperparams, p, rows)[0])(params)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)
    assert_close(after.params, params, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------- probes

SIZES = {"buffer_size": 1600, "batch_size": 32, "replay_ratio": 8.0, "learning_starts": 128}


@cache
def learnt() -> dict[str, Learnt]:
    return learn_probes("awr", 200, **SIZES)


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    PROBES[probe][1](learnt()[probe])


@pytest.mark.slow
def test_probe_target_action() -> None:
    run = learner_of("awr", probes.target_action(), 400, weight=Exponential(beta=3.0), **SIZES)
    assert float(jit(run)(KEY(), ()).action[1, 0]) == pytest.approx(3.0, abs=0.4)


def test_it_learns_from_a_dataset() -> None:
    """A step is so many updates, each of ``batch_size`` sequences of the data."""
    data = random_dataset("CartPole-v1")
    agent = make_awr("CartPole-v1", data=data, updates=3, batch_size=8, n_step=4, model={"hidden_sizes": (8,)})
    setup = agent.algorithm.learn.args[0]  # type: ignore[union-attr]
    assert setup.config.updates_per_iteration == 3
    rebuilt = jaxrl.build(agent.spec, n_step=2)
    assert rebuilt.algorithm.learn.args[0].config.updates_per_iteration == 3  # type: ignore[union-attr]
    state = agent.init(KEY())
    after, metrics = jit(agent.step)(state, data)
    assert int(after.learner.version) == 1 and np.isfinite(float(metrics["losses/policy_loss"].sum))
    moved = jax.tree.map(lambda x, y: bool(jnp.any(x != y)), after.learner.params, state.learner.params)
    assert any(jax.tree.leaves(moved))


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 0}, "n_step=0 must be an integer >= 1"),
        ({"replay_ratio": 1.0}, r"replay_ratio=1 gives 0\.5 updates per iteration .*\(batch_size \* n_step\)"),
        ({"weight": {"name": "exponential", "beta": -1.0}}, "beta=-1 is not allowed"),
        ({"weight": "binary", "schedules": {"beta": lambda i: 1.0}}, r"schedules\['beta'\] has no effect with weight='binary'"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_awr(probes.truncation(), **settings)


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match="AWR learns from single rows, so its model must be memoryless"):
        small_awr(probes.truncation(), model=RECURRENT)
    with pytest.raises(ValueError, match=r"replay=.* needs priorities, and AWR has no errors to compute them from"):
        small_awr(probes.truncation(), replay=prioritised_replay())
    with pytest.raises(TypeError, match="must give an ActorCriticOutput"):
        small_awr(probes.truncation(), model=partial(actor_critic, num_values=3))
