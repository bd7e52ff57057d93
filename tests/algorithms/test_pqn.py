"""PQN: λ-returns, loss and gradient against NumPy, an iteration by hand, probes, exploration, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from jaxrl import make_pqn
from jaxrl.algorithms.pqn import PQNHyperparams, PQNRows, pqn_loss, targets
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import actor_critic, q_network
from jaxrl.options import VDN
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.collect import collect
from jaxrl.training import run_iterations
from jaxrl.types import Model, Rollout, StepInput
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, Tiny, assert_bit_equal, assert_close, outputs_of, run_steps, small
from tests.helpers.oracles.policy_gradient import FEATURES, B, T, peng_returns, rollout_case, slope
from tests.helpers.probe_set import PROBES, probe_set

SMALL = partial(q_network, hidden_sizes=(8,), layer_norm=True)
TINY = Tiny(
    settings={"num_envs": 4, "rollout_length": 8, "num_epochs": 2, "num_minibatches": 2, "anneal": False, "model": SMALL},
    value=outputs_of,
    one_gradient=("CartPole-v1", {"num_epochs": 1, "num_minibatches": 1}),
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
small_pqn = partial(small, "pqn")
HP = PQNHyperparams(gamma=0.8, q_lambda=0.7)


# ------------------------------------------------------------------------------------------------------------------------ loss


def linear_model() -> Model:
    apply = lambda params, carry, inputs, key=None: (carry, inputs.obs @ params["w"])  # noqa: E731
    return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]


def pqn_case(seed: int = 0) -> tuple[dict[str, np.ndarray], Rollout]:
    """Return ``rollout_case`` with all parts of the inputs in shape [T + 1, B]."""
    params, rollout = rollout_case(True, seed)
    spread = lambda x: x if x.ndim == 3 else np.broadcast_to(x, (T + 1, B))  # noqa: E731
    return params, rollout._replace(inputs=jax.tree.map(lambda x: spread(np.asarray(x)), rollout.inputs))


@cache
def target_fn() -> Any:
    return jit(lambda params, rollout, hp: targets(linear_model(), params, rollout, hp))


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_targets_are_lambda_returns_of_the_best_action(lam: float) -> None:
    for seed in range(3):
        params, rollout = pqn_case(seed)
        batch, error = target_fn()(params, rollout, HP._replace(q_lambda=lam))
        q = np.asarray(rollout.inputs.obs, np.float64) @ params["w"]
        expected = peng_returns(rollout, q, HP.gamma, lam)
        np.testing.assert_allclose(np.asarray(batch.target).reshape(T, B), expected, rtol=1e-4, atol=1e-4)
        chosen = np.take_along_axis(q[:-1], rollout.action[..., None], -1)[..., 0]
        where = rollout.valid
        np.testing.assert_allclose(np.asarray(error).reshape(T, B)[where], (expected - chosen)[where], rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(np.asarray(batch.inputs.obs)[where.ravel()], rollout.inputs.obs[:-1][where])


def test_what_is_not_finite_after_an_end_counts_for_nothing() -> None:
    """The observation after a termination, and the reset row's action and reward, have no influence; a truncation's observation
    has."""
    params, rollout = pqn_case()
    obs = np.array(rollout.inputs.obs)
    obs[2, 1] = np.nan
    broken = rollout._replace(inputs=rollout.inputs._replace(obs=obs))
    assert rollout.terminated[1, 1] and not rollout.valid[2, 1]
    batches = [target_fn()(params, given, HP)[0] for given in (rollout, broken)]
    assert_bit_equal(*(batch._replace(inputs=()) for batch in batches))
    assert np.isfinite(batches[1].inputs.obs).all()


def test_loss_and_gradient_are_the_papers() -> None:
    rng = np.random.default_rng(0)
    x, w, target = (rng.normal(size=shape).astype(np.float32) for shape in ((12, FEATURES), (FEATURES, 4), 12))
    action, valid = rng.integers(4, size=12).astype(np.int32), rng.random(12) < 0.7
    batch = PQNRows(first_input(x, spaces.Discrete(4), 12), action, target, valid)
    loss = jit(jax.value_and_grad(lambda p: pqn_loss(linear_model(), p, batch, None), has_aux=True))
    (total, metrics), gradient = loss({"w": w})

    def by_hand(params: Any) -> float:
        q = (x.astype(np.float64) @ params["w"])[np.arange(12), action]
        return float(0.5 * ((q - target) ** 2)[valid].mean())

    assert float(total) == float(metrics["losses/td_loss"]) == pytest.approx(by_hand({"w": w}), rel=1e-4)
    assert_close(gradient, jax.tree.map(np.float32, slope(by_hand, {"w": w})), atol=1e-3)
    assert float(metrics["losses/q_values"]) == pytest.approx((x @ w)[np.arange(12), action][valid].mean(), rel=1e-4)


def test_an_iteration_is_a_step_along_each_minibatch() -> None:
    """One epoch of one minibatch of plain gradient descent, by hand."""
    agent = small_pqn("CartPole-v1", num_epochs=1, num_minibatches=1, optimizer=lambda hp: optax.sgd(hp.learning_rate))
    algorithm, env, model = agent.algorithm, agent.env, SMALL(agent.env.observation_space, agent.env.action_space)

    def both(key: Any) -> Any:
        state = agent.init(key)
        rollout = collect(algorithm, env, algorithm.policy(state.learner), state.actor, env.params, jnp.arange(4), key, 8)[1]
        batch = targets(model, state.learner.params, rollout, state.learner.hyperparams)[0]
        gradient = jax.grad(lambda p: pqn_loss(model, p, batch, None)[0])(state.learner.params)
        by_hand = jax.tree.map(lambda p, g: p - 5e-4 * g, state.learner.params, gradient)
        return algorithm.update(state.learner, rollout)[0].params, by_hand

    assert_close(*jit(both)(KEY()), atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, np.ndarray]:
    """Return Q-values [3, 2] at the observations −1, 0 and 1, after training on each of the probes."""
    env = probe_set(*(make() for make, _ in PROBES.values()))
    agent = small_pqn(env, num_envs=16, rollout_length=4, gamma=0.9, learning_rate=0.01, epsilon_end=0.5, exploration_steps=1)

    def run(which: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(KEY(), None, which), 250)
        inputs = first_input(jnp.array([[-1.0], [0.0], [1.0]]), env.action_space, 3)
        return outputs_of(agent, state.learner, inputs)

    return dict(zip(PROBES, np.asarray(jit(jax.vmap(run))(jnp.arange(len(PROBES)))), strict=True))


@pytest.mark.parametrize(
    ("probe", "rows", "expected"),
    [
        ("constant reward", [1], [[1.0, 1.0]]),
        ("discounting", [1, 2], [[0.9, 0.9], [1.0, 1.0]]),
        ("observed value", [0, 2], [[-1.0, -1.0], [1.0, 1.0]]),
        ("action choice", [1], [[-1.0, 1.0]]),
        ("action by observation", [0, 2], [[1.0, -1.0], [-1.0, 1.0]]),
    ],
)
def test_probe(probe: str, rows: list[int], expected: list[list[float]]) -> None:
    np.testing.assert_allclose(learnt()[probe][rows], expected, atol=0.1)


# --------------------------------------------------------------------------------------------- exploration, invalid arguments


def test_epsilon_falls_from_the_first_row() -> None:
    agent = small_pqn("CartPole-v1", epsilon_start=0.9, epsilon_end=0.1, exploration_steps=64)
    learner = agent.algorithm.init(KEY(), jax.tree.map(jnp.float32, agent.hyperparams))
    for version, expected in ((0, 0.9), (1, 0.5), (2, 0.1), (100, 0.1)):
        policy = agent.algorithm.policy(learner._replace(version=jnp.int32(version)))
        assert float(policy.exploration) == pytest.approx(expected, abs=1e-6)


def test_the_network_is_normalised_unless_it_is_told_otherwise() -> None:
    env = probes.truncation()
    for settings, normed in (({}, True), ({"model": {"layer_norm": False}}, False)):
        params = jax.eval_shape(make_pqn(env, **settings).init, KEY()).learner.params
        assert ("norm_0" in params["params"]["torso"]) is normed


# ---------------------------------------------------------------------------------------------------------------------- memory

GRU = {"core": "gru", "hidden_sizes": (8,), "core_size": 8}


def test_with_memory_rows_are_sequences_of_the_same_returns() -> None:
    """Targets are the λ-returns of the unrolled values, and the loss is that of whole sequences from the carry of acting."""
    params, rollout = pqn_case()
    decay = 0.5

    def apply(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        carry = decay * jnp.where(inputs.is_first[:, None], 0.0, carry) + inputs.obs @ params["w"]
        return carry, carry

    unroll = lambda params, carry, inputs, key=None: jax.lax.scan(lambda c, x: apply(params, c, x), carry, inputs)  # noqa: E731
    actions = params["w"].shape[1]
    model = Model(None, apply, unroll, lambda batch: jnp.zeros((batch, actions)))  # type: ignore[arg-type]
    carry = np.random.default_rng(0).normal(size=(B, actions)).astype(np.float32)
    rollout = rollout._replace(carry=carry)
    (rows, error), q = targets(model, params, rollout, HP), np.zeros((T + 1, B, actions))
    for t in range(T + 1):
        carry = decay * np.where(rollout.inputs.is_first[t, :, None], 0, carry) + rollout.inputs.obs[t] @ params["w"]
        q[t] = carry
    valid = np.asarray(rollout.valid)
    expected = np.where(valid, peng_returns(rollout, q, HP.gamma, HP.q_lambda), 0)
    np.testing.assert_allclose(np.where(valid.T, rows.target, 0), expected.T, rtol=1e-4, atol=1e-4)
    chosen = np.take_along_axis(q[:-1], np.asarray(rollout.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(np.where(valid.T, error, 0), np.where(valid, expected - chosen, 0).T, rtol=1e-4, atol=1e-4)
    loss, _ = pqn_loss(model, params, rows, None)
    assert float(loss) == pytest.approx(0.5 * ((chosen - expected) ** 2)[valid].mean(), rel=1e-4)


def test_memory_is_learnt() -> None:
    """A cue that was seen three rows before decides the action."""
    sizes = {"num_envs": 16, "rollout_length": 16, "num_epochs": 2, "num_minibatches": 2, "model": GRU}
    rates = {"gamma": 0.9, "learning_rate": 0.01, "epsilon_end": 0.3, "exploration_steps": 2_000}
    agent = small_pqn(probes.memory(), **sizes, **rates)
    obs = np.zeros((4, 2, 2), np.float32)
    obs[0, :, 0], obs[3, :, 1] = (-1, 1), 1
    nothing, is_first = np.zeros((4, 2), np.float32), np.arange(4)[:, None] == np.zeros((1, 2))
    model = q_network(agent.env.observation_space, agent.env.action_space, layer_norm=True, **GRU)

    def run(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 150)
        seen = StepInput(obs, nothing.astype(np.int32), nothing, is_first)
        return model.unroll(state.learner.params, model.initial_carry(2), seen)[1][3]

    np.testing.assert_allclose(jit(run)(KEY()), [[1, -1], [-1, 1]], atol=0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_minibatches": 3}, r"num_minibatches=3 must divide num_envs \* rollout_length=32"),
        ({"num_minibatches": 8, "model": GRU}, r"num_minibatches=8 must divide num_envs=4 \(a recurrent model learns from whole"),
        ({"q_lambda": 1.5}, r"q_lambda=1.5 is not allowed: it must be a number in \[0, 1\]"),
        ({"schedules": {"clip_eps": lambda i: 1.0}}, r"schedules\['clip_eps'\] does not name a hyperparameter"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_pqn(probes.truncation(), **settings)


def test_minibatches_of_teams_with_memory_are_environments() -> None:
    sizes: dict[str, Any] = {"num_envs": 4, "rollout_length": 8, "decomposition": VDN(), "model": GRU}
    with pytest.raises(ValueError, match="num_minibatches=3 must divide num_envs=4"):
        make_pqn("tests.helpers.teams:mortal", **sizes, num_minibatches=3)
    agent = make_pqn("tests.helpers.teams:mortal", **sizes, num_minibatches=4)
    assert np.isfinite(float(jit(agent.step)(jit(agent.init)(KEY()))[1]["losses/td_loss"].sum))


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match="a Q-network needs a Discrete space"):
        small_pqn(probes.target_action())
    for model in (actor_critic, RECURRENT):
        with pytest.raises(TypeError, match=r"^model=.* must give Q-values"):
            small_pqn(probes.truncation(), model=model)
    with pytest.raises(TypeError, match=r"make_pqn\(\) got an unknown keyword 'buffer_size'"):
        small_pqn(probes.truncation(), buffer_size=100)


def test_one_trace_serves_all_hyperparameters() -> None:
    agent = small_pqn(probes.truncation())
    given = (None, {"gamma": 0.5, "q_lambda": 0})
    learnt = [run_steps(agent, agent.init(KEY(), hyperparams), 2)[0].learner.params for hyperparams in given]
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, learnt), strict=True))
