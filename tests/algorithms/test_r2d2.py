"""R2D2: rescaling, loss, priorities and gradient against NumPy, the stored carry, updates by hand, probes, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import brentq

from jaxrl import make_r2d2
from jaxrl.algorithms.common.value_rescaling import rescaled, unscaled
from jaxrl.algorithms.r2d2 import R2D2Config, q_values, r2d2_loss
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import actor_critic, q_network
from jaxrl.replay.options import Sequence
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.sequence import Sequences, sequence_replay, sequences
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.autoreset import next_input
from jaxrl.rollout.collect import collect
from jaxrl.training import run_iterations
from jaxrl.types import Agent, Env, Model, StepInput
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, Tiny, assert_bit_equal, assert_close, run_steps, small
from tests.helpers.oracles.policy_gradient import slope
from tests.helpers.probe_set import PROBES, probe_set

SMALL = partial(q_network, hidden_sizes=(8,), core="gru", core_size=8)


def first_values(agent: Agent, learner: Any, inputs: StepInput) -> Any:
    """Return Q of inputs that begin episodes."""
    model = SMALL(agent.env.observation_space, agent.env.action_space)
    return unscaled(model.apply(learner.params, model.initial_carry(inputs.is_first.shape[0]), inputs)[1], 1e-3)


TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 2,
        "batch_size": 8,
        "sequence_length": 3,
        "n_step": 2,
        "replay_ratio": 6,
        "buffer_size": 240,
        "learning_starts": 64,
        "target_update_interval": 3,
        "anneal": False,
        "model": SMALL,
    },
    value=first_values,
    # All sequences are the same and have equal weights, so draws have no influence.
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 16, "replay": {"exponent": 0.0}}),
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
small_r2d2 = partial(small, "r2d2")


# ------------------------------------------------------------------------------------------------------------------- rescaling


def h(x: float, eps: float) -> float:
    """Compute the rescaling of section 2.3 of the paper, in double precision."""
    return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + eps * x)


def h_inverse(y: float, eps: float) -> float:
    return float(brentq(lambda x: h(x, eps) - y, -1e7, 1e7, xtol=1e-13, rtol=1e-14))


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 1.0])
def test_rescaling_and_its_inverse_are_the_papers(eps: float) -> None:
    x = np.array([0.0, 1e-6, -1e-4, 0.01, -0.3, 1.0, -2.5, 37.0, -500.0, 1e4, -1e5], np.float32)
    scaled = np.array([h(float(value), eps) for value in x])
    np.testing.assert_allclose(rescaled(x, eps), scaled, rtol=1e-6)
    np.testing.assert_allclose(unscaled(scaled.astype(np.float32), eps), x, rtol=2e-6)
    np.testing.assert_allclose(unscaled(x[:-2], eps), [h_inverse(float(value), eps) for value in x[:-2]], rtol=2e-6, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------------------ loss

FEATURES, ACTIONS, N = 3, 4, 6
CASES = {
    "plain": R2D2Config(sequence_length=5, n_step=3, rescale=None),
    "rescaled": R2D2Config(sequence_length=5, n_step=3),
    "burnt in": R2D2Config(sequence_length=4, burn_in=3, n_step=2),
}


def linear_model() -> Model:
    """Model with carry ← ½·carry + x·W, which is 0 at the start of an episode, and Q = carry·V: easy to compute in NumPy."""

    def apply(params: Any, carry: Any, inputs: StepInput, key: Any = None) -> Any:
        carry = 0.5 * jnp.where(inputs.is_first[:, None], 0.0, carry) + inputs.obs @ params["w"]
        return carry, carry @ params["v"]

    unroll = lambda params, carry, inputs, key=None: jax.lax.scan(lambda c, row: apply(params, c, row), carry, inputs)  # noqa: E731
    return Model(None, apply, unroll, lambda batch: jnp.zeros((batch, 2)))  # type: ignore[arg-type]


def loss_case(seed: int, config: R2D2Config) -> tuple[Any, Any, Sequences]:
    """Return two networks' parameters, and sequences with both kinds of ends, each followed by a reset row."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    rows = config.rows_behind
    valid, ends = np.ones((rows + 2, N), bool), rng.random((rows + 2, N)) < 0.25
    for t in range(1, rows + 2):
        ends[t] &= ~ends[t - 1]
        valid[t] = ~ends[t - 1]
    terminated = (ends & (rng.random(ends.shape) < 0.5))[:-1]
    # Row −1 is the one before the sequence.
    action, reward = rng.integers(ACTIONS, size=(rows + 1, N)).astype(np.int32), np.where(valid[:-1], 3 * normal(rows + 1, N), 0)
    inputs = next_input(normal(rows + 1, N, FEATURES), action, reward, valid[:-1])
    batch = Sequences(
        inputs=inputs,
        action=action[1:],
        reward=reward[1:],
        terminated=terminated[1:],
        truncated=(valid[:-1] & ~valid[1:] & ~terminated)[1:],
        valid=valid[1:-1],
        carry=normal(N, 2),
        weight=rng.uniform(0.2, 1, N).astype(np.float32),
    )
    params, target = ({"w": normal(FEATURES, 2), "v": 2 * normal(2, ACTIONS)} for _ in range(2))
    return params, target, batch


def all_q(params: Any, carry: np.ndarray, batch: Sequences, n: int, rows: range) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Return Q-values of rows of one sequence, by row number, and the carry after them."""
    found = {}
    for t in rows:
        carry = 0.5 * (0 if batch.inputs.is_first[t, n] else carry) + np.float64(batch.inputs.obs[t, n]) @ params["w"]
        found[t] = carry @ params["v"]
    return found, carry


def target_of(config: R2D2Config, batch: Sequences, n: int, t: int, online: Any, target: Any, gamma: float) -> float:
    """Compute y of row t of sequence n, reward by reward."""
    eps, total, discount = config.rescale.eps if config.rescale else 0.0, 0.0, 1.0
    for k in range(t, t + config.n_step):
        total, discount = total + discount * float(batch.reward[k, n]), discount * gamma
        if batch.terminated[k, n]:
            return h(total, eps) if config.rescale else total
        if batch.truncated[k, n]:
            break
    beyond = target[k + 1][np.argmax(online[k + 1])]
    return h(total + discount * h_inverse(beyond, eps), eps) if config.rescale else total + discount * beyond


def by_hand(config: R2D2Config, fixed: Any, other: Any, batch: Sequences, gamma: float, params: Any) -> tuple[float, Any]:
    """Compute the loss, with the parameters that get a gradient separate from those that do not, and the errors (NaN where
    invalid)."""
    first, last = config.burn_in, config.burn_in + config.sequence_length
    errors = np.full((config.sequence_length, N), np.nan)
    for n in range(N):
        burnt = [all_q(p, batch.carry[n], batch, n, range(first))[1] for p in (fixed, other)]
        behind = range(first, len(batch.reward) + 1)
        online, target = (all_q(p, c, batch, n, behind)[0] for p, c in zip((fixed, other), burnt, strict=True))
        q_values = all_q(params, burnt[0], batch, n, behind)[0]
        for t in range(first, last):
            if batch.valid[t, n]:
                y = target_of(config, batch, n, t, online, target, gamma)
                errors[t - first, n] = q_values[t][batch.action[t, n]] - y
    return float(np.nanmean(0.5 * np.asarray(batch.weight, np.float64) * errors**2)), errors


@cache
def loss_and_gradient(name: str) -> Any:
    loss = lambda p, target, batch: r2d2_loss(linear_model(), CASES[name], 0.8, 0.9, p, target, batch, None)  # noqa: E731
    return jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize("name", CASES)
def test_loss_priorities_and_gradient_are_the_papers(name: str) -> None:
    config = CASES[name]
    terminated = truncated = 0
    for seed in range(4):
        params, target, batch = loss_case(seed, config)
        terminated, truncated = terminated + batch.terminated.sum(), truncated + batch.truncated.sum()
        (loss, metrics), gradient = loss_and_gradient(name)(params, target, batch)
        expected, errors = by_hand(config, params, target, batch, 0.8, params)
        assert float(loss) == float(metrics["losses/td_loss"]) == pytest.approx(expected, rel=1e-4)
        size = np.abs(errors)
        np.testing.assert_allclose(metrics["priorities"], 0.9 * np.nanmax(size, 0) + 0.1 * np.nanmean(size, 0), rtol=1e-4)
        if seed == 0:
            numeric = slope(lambda p: by_hand(config, params, target, batch, 0.8, p)[0], params)  # noqa: B023
            assert_close(gradient, jax.tree.map(np.float32, numeric), atol=2e-3)
    assert terminated > 4 and truncated > 4


def test_what_is_not_finite_after_an_end_counts_for_nothing() -> None:
    """Observations after a termination, also in burn-in, and all rows of an invalid sequence have no influence."""
    params, target, batch = loss_case(0, CASES["burnt in"])
    batch.valid[:, 2] = batch.terminated[:, 2] = batch.truncated[:, 2] = False
    obs = np.array(batch.inputs.obs)
    t, n = np.nonzero(batch.terminated)
    obs[t + 1, n], obs[:, 2] = np.nan, np.inf
    assert t.min() < 3 <= t.max()
    plain = batch._replace(inputs=batch.inputs._replace(obs=np.where(np.isfinite(obs), obs, 0)))
    broken = batch._replace(inputs=batch.inputs._replace(obs=obs))
    both = [loss_and_gradient("burnt in")(params, target, given) for given in (plain, broken)]
    assert_bit_equal(*both)
    assert np.isfinite(both[1][0][0]) and both[1][0][1]["priorities"][2] == 0


# ------------------------------------------------------------------------------------------------------------------ stored data


def test_sequences_begin_with_the_carry_of_acting() -> None:
    """Unrolled from the stored carry, the network that acted gives the same outputs, across rollouts and ends."""
    agent = small_r2d2(
        probes.memory(), learning_starts=0, rollout_length=4, sequence_length=10, n_step=1, burn_in=0, replay_ratio=5
    )
    model = SMALL(agent.env.observation_space, agent.env.action_space)
    made = sequence_replay(uniform_replay)(60, 4, 4, before=1, after=10)

    def run(key: Any) -> Any:
        state = agent.init(key)
        policy = agent.algorithm.policy(state.learner)

        def one(carry: Any, key: Any) -> Any:
            actor, learner = carry
            actor, rollout, _ = collect(agent.algorithm, agent.env, policy, actor, (), jnp.arange(4), key, 4)
            return (actor, agent.algorithm.observe(learner, rollout)), rollout

        (_, learner), rollouts = jax.lax.scan(one, (state.actor, state.learner), jax.random.split(key, 8))
        whole = jax.tree.map(lambda x: x[:, :-1].reshape((-1, *x.shape[2:])), rollouts.inputs)
        acted = model.unroll(policy.params, model.initial_carry(4), whole)[1]
        rows = learner.replay.rows
        draw = made.draw(learner.replay._replace(starts=learner.replay.starts.ring), key, 40)
        batch = sequences(made, learner.replay, draw, 10)
        again = q_values(model, R2D2Config(sequence_length=10, n_step=1), policy.params, batch)
        # Nothing has wrapped around yet: a row's place is its time.
        return again, acted[draw.row + jnp.arange(11)[:, None], draw.env], draw, rows.size

    again, acted, draw, size = jit(run)(KEY())
    assert int(size) == 32 and draw.valid.all() and len(np.unique(draw.row)) >= 4 and not (draw.row % 4).any()
    np.testing.assert_allclose(again, acted, atol=1e-5)


# -------------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.slow
def test_updates_draw_learn_and_weigh_one_after_the_other() -> None:
    """As in a loop. The exponent of the weights rises to 1 at total_steps, and the target changes by the number of updates."""
    sizes = {"num_envs": 4, "rollout_length": 2, "replay_ratio": 6, "batch_size": 8, "sequence_length": 3}  # 2 updates
    replay = Sequence(exponent=0.7, importance_exponent=0.5)
    settings = {"learning_rate": 0.05, "replay": replay, "anneal": True, "total_steps": 320}
    agent = small_r2d2(
        probes.action_by_observation(), optimizer=lambda hp: optax.sgd(hp.learning_rate), eta=0.6, burn_in=1, **sizes, **settings
    )
    config = R2D2Config(burn_in=1, n_step=2, **sizes)
    made = sequence_replay(prioritised_replay(priority_exponent=0.7))(60, 4, 2, before=1, after=5)
    model = SMALL(agent.env.observation_space, agent.env.action_space)

    @jit
    def one(params: Any, target: Any, replay: Any, key: Any, beta: Any, rate: Any) -> Any:
        drawn = made.draw(replay, key, 8)
        batch = sequences(made, replay, drawn, 5)
        batch = batch._replace(weight=batch.weight**beta)
        loss = lambda p: r2d2_loss(model, config, 0.99, 0.6, p, target, batch, None)  # noqa: E731
        gradient, aux = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), made.update(replay, drawn, aux["priorities"])

    learner, learn = jit(agent.init)(KEY()).learner, jit(agent.algorithm.learn)
    for version in range(3):
        left = 1 - 8 * (8 + version) / 320
        params, target, replay = learner.params, learner.target_params, learner.replay
        for i in range(2):
            key = jax.random.fold_in(jax.random.fold_in(learner.key, version), i)
            params, replay = one(params, target, replay, key, 1 - 0.5 * left, 0.05 * left)
            target = params if (2 * version + i + 1) % 3 == 0 else target
        learner, metrics = learn(learner)
        assert_close(learner.params, params, atol=1e-4)
        assert_close(learner.target_params, target, atol=1e-4)
        assert_close(learner.replay.starts.levels, replay.starts.levels, atol=1e-3)
        assert "priorities" not in metrics
    assert len(np.unique(learner.replay.starts.levels[0])) > 5  # many sequences have new priorities


def with_a_zero(env: Env) -> Env:
    """Append a second number to the observations, as the memory probe has."""
    wide = lambda obs: jnp.append(obs, 0.0)  # noqa: E731

    def reset(key: Any, params: Any) -> Any:
        state, obs = env.reset(key, params)
        return state, wide(obs)

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        state, reached = env.step(key, state, action, params)
        return state, reached._replace(obs=wide(reached.obs))

    return env._replace(reset=reset, step=step, observation_space=probes.memory().observation_space)


@cache
def learnt() -> dict[str, np.ndarray]:
    """Return Q-values [4, 3, 2] of three episodes, after training on each probe.

    The first observation is −1, 0 or 1, two zeros follow, and the fourth is the question of the memory probe.
    """
    env = probe_set(*(with_a_zero(make()) for make, _ in PROBES.values()), probes.memory())
    sizes = {"num_envs": 16, "rollout_length": 4, "batch_size": 16, "sequence_length": 8, "replay_ratio": 4, "buffer_size": 6400}
    rates = {"gamma": 0.9, "learning_rate": 0.01, "epsilon_end": 0.5, "exploration_steps": 1, "adam_eps": 1e-5}
    agent, model = small_r2d2(env, **sizes, **rates), SMALL(env.observation_space, env.action_space)
    obs = np.zeros((4, 3, 2), np.float32)
    obs[0, :, 0], obs[3, :, 1] = (-1, 0, 1), 1
    nothing, is_first = np.zeros((4, 3), np.float32), np.arange(4)[:, None] == np.zeros((1, 3))
    seen = StepInput(obs, nothing.astype(np.int32), nothing, is_first)

    def run(which: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(KEY(), None, which), 250)
        return unscaled(model.unroll(state.learner.params, model.initial_carry(3), seen)[1], 1e-3)

    values = jit(jax.vmap(run))(jnp.arange(len(PROBES) + 1))
    return dict(zip([*PROBES, "memory"], np.asarray(values), strict=True))


@pytest.mark.parametrize(
    ("probe", "where", "expected", "near"),
    [
        ("constant reward", (0, [1]), [[1.0, 1.0]], 0.05),
        ("discounting", (0, [1]), [[0.9, 0.9]], 0.05),
        ("observed value", (0, [0, 2]), [[-1.0, -1.0], [1.0, 1.0]], 0.1),
        ("action choice", (0, [1]), [[-1.0, 1.0]], 0.1),
        ("action by observation", (0, [0, 2]), [[1.0, -1.0], [-1.0, 1.0]], 0.1),
        ("memory", (3, [0, 2]), [[1.0, -1.0], [-1.0, 1.0]], 0.3),
    ],
)
def test_probe(probe: str, where: Any, expected: list[list[float]], near: float) -> None:
    np.testing.assert_allclose(learnt()[probe][where], expected, atol=near)


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"buffer_size": 28, "learning_starts": 0},
            r"buffer_size=28 is too small: a sequence of burn_in \+ sequence_length \+ n_step = 5 rows and the row before it "
            r"take 8 rows of each environment in rollouts of 2; use at least 32",
        ),
        (
            {"replay_ratio": 4},
            r"replay_ratio=4 gives 1\.33333 updates .* / \(batch_size \* sequence_length\)\), .* multiple of 3\.0",
        ),
        ({"learning_starts": 248}, "learning_starts=248 must be at most buffer_size=240"),
        ({"burn_in": -1}, "burn_in=-1 must be an integer >= 0"),
        ({"sequence_length": 0}, "sequence_length=0 must be an integer >= 1"),
        ({"eta": 1.1}, r"eta=1\.1 is not allowed: it must be a number in \[0, 1\]"),
        (
            {"replay.exponent": 0.5, "replay": sequence_replay(uniform_replay)},
            r"replay\.exponent=0\.5 has no effect with replay=.*, which has its own",
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_r2d2(probes.truncation(), **settings)


@pytest.mark.parametrize("model", [{"core": None}, lambda o, a: q_network(o, a)])
def test_a_model_without_a_memory_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match=r'has no memory, but R2D2 learns .* model=\{"core": "gru"\}, or use make_dqn$'):
        make_r2d2(probes.truncation(), model=model)


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"R2D2 needs a Discrete .*:target_action has Box"):
        small_r2d2(probes.target_action())
    with pytest.raises(TypeError, match="must give Q-values"):
        small_r2d2(probes.truncation(), model=RECURRENT)
    with pytest.raises(TypeError, match=r"^model="):
        make_r2d2(probes.truncation(), model=actor_critic)
    must = r"^replay=.*, which must store sequences that begin with each rollout, as .*sequence_replay\(\) does, fails with "
    with pytest.raises(TypeError, match=must + r"TypeError: its draws have no carry"):
        small_r2d2(probes.truncation(), replay=uniform_replay, rollout_length=1, replay_ratio=12)
    for replay in (uniform_replay, sequence_replay(period=1)):
        with pytest.raises(TypeError, match=must + r"ValueError: .*carry is float32\[1, 4, 8\].* takes float32\[2, 4, 8\]"):
            small_r2d2(probes.truncation(), replay=replay)
    with pytest.raises(TypeError, match="unknown keyword 'hindsight'"):
        small_r2d2(probes.truncation(), hindsight="future")


@pytest.mark.slow
def test_the_replay_that_is_its_own_may_be_given() -> None:
    """Importance weights use the option's exponent once, for any way to build the replay."""

    def learnt(**settings: Any) -> Any:
        agent = small_r2d2(probes.truncation(), **settings)
        return run_steps(agent, jit(agent.init)(KEY()), 3)[0].learner

    assert_bit_equal(learnt(replay=sequence_replay()), learnt())
    uncorrected = learnt(replay=Sequence(importance_exponent=0.0))
    assert_bit_equal(learnt(**{"replay": sequence_replay(), "replay.importance_exponent": 0.0}), uncorrected)
    params = [jax.tree.leaves(learner.params) for learner in (uncorrected, learnt())]
    assert any((x != y).any() for x, y in zip(*params, strict=True))


@pytest.mark.slow
def test_any_replay_of_sequences_will_do() -> None:
    """A replay that draws uniformly, and therefore for all updates at once."""
    agent = small_r2d2(probes.truncation(), replay=sequence_replay(uniform_replay))
    state = jit(agent.init)(KEY())
    after, metrics = jit(agent.step)(state)
    assert float(metrics["losses/td_loss"].sum) > 0
    before, after = (jax.tree.leaves(x.learner.params) for x in (state, after))
    assert any((x != y).any() for x, y in zip(before, after, strict=True))
