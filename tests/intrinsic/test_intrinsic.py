"""Random network distillation against NumPy, and properties of every intrinsic reward."""

from __future__ import annotations

import dataclasses
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

import jaxrl
from examples.intrinsic_reward import main
from jaxrl.algorithms.a2c import A2CConfig, A2CHyperparams, a2c_loss
from jaxrl.algorithms.common.ppo_objectives import PenaltyState
from jaxrl.algorithms.ppo import PPOConfig, PPOHyperparams, targets
from jaxrl.algorithms.reinforce import REINFORCEConfig, REINFORCEHyperparams, reinforce_loss
from jaxrl.builder.setup import Learner
from jaxrl.intrinsic import Intrinsic, rnd
from jaxrl.intrinsic.distillation import RNDState
from jaxrl.intrinsic.part import ADVANTAGE, ExploringLearner, exploring
from jaxrl.metrics import to_floats
from jaxrl.parallel import env_axes
from jaxrl.rollout.running_statistics import Statistics
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.types import Agent, Algorithm, Rollout, StepInput
from tests.helpers.agents import assert_bit_equal, assert_close, run_steps, small, small_ppo, to_numpy
from tests.helpers.loss_cases import linear_model, loss_case

KEY = partial(jax.random.key, 0)
T, B, FEATURES, UNITS, SIZE = 6, 4, 3, 8, 5
GAMMA, LAMBDA, COEF = 0.9, 0.7, 0.25
SPACES = (spaces.Box(-np.inf, np.inf, (FEATURES,), np.float32), spaces.Discrete(2))
SMALL: dict[str, Any] = {"hidden_sizes": (UNITS,), "embedding_size": SIZE, "num_epochs": 1, "num_minibatches": 1}
SMALL_RND = partial(rnd, gamma=GAMMA, gae_lambda=LAMBDA, coef=COEF, max_grad_norm=1e9, **SMALL)


# ------------------------------------------------------------------------------------------------------------- against NumPy


def rollout_of(seed: int, garbage: float = 7.0) -> Rollout:
    """Return rows of every kind. An end is followed by a reset row. Invalid rows, and rows after all, hold garbage."""
    rng = np.random.default_rng(seed)
    obs = rng.normal([5.0, 0.0, -1.0], [2.0, 0.1, 1.0], (T + 1, B, FEATURES)).astype(np.float32)
    ended, valid = rng.random((T, B)) < 0.3, np.ones((T, B), bool)
    for t in range(1, T):
        valid[t] = ~(valid[t - 1] & ended[t - 1])
    reached = np.concatenate([np.zeros((1, B), bool), valid])
    reward = rng.normal(size=(T, B)).astype(np.float32)
    reward[~valid] = garbage
    obs[~(reached | np.concatenate([valid, ~valid[:1]]))] = garbage
    zero, no = np.zeros((T + 1, B)), np.zeros((T, B), bool)
    inputs = StepInput(obs, zero.astype(np.int32), zero.astype(np.float32), zero.astype(bool))
    env_id = np.array([6, 4, 7, 5], np.int32)  # of a second device, in some order
    return Rollout(inputs, zero[1:].astype(np.int32), reward, ended & valid, no, {}, valid, (), env_id, np.zeros(B, np.int32))


def layer(params: Any, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


def network(params: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the network's output and its last hidden layer."""
    params = params["params"]
    x = np.maximum(layer(params["torso"]["hidden_0"], x), 0)
    for name in sorted(set(params) - {"torso", "out"}):
        x = np.maximum(layer(params[name], x), 0)
    return layer(params["out"], x), x


class Oracle:
    """Compute the statistics and rewards in double precision, rollout by rollout."""

    def __init__(self) -> None:
        self.obs: list[np.ndarray] = []
        self.returns: list[float] = []
        self.running = dict.fromkeys(range(4, 8), 0.0)

    def seen(self, obs: np.ndarray) -> np.ndarray:
        """Normalise by mean and deviation of all rows and the prior's 1e-4 rows with mean 0 and variance 1."""
        rows = np.concatenate(self.obs).astype(np.float64)
        count = len(rows) + 1e-4
        mean = rows.sum(0) / count
        variance = (((rows - mean) ** 2).sum(0) + 1e-4 * (1 + mean**2)) / count
        return np.clip((obs - mean) / np.sqrt(variance), -5, 5)

    def novelty(self, state: RNDState, rollout: Rollout) -> np.ndarray:
        x = self.seen(rollout.inputs.obs[1:])
        return ((network(state.params["predictor"], x)[0] - network(state.target, x)[0]) ** 2).mean(-1)

    def take_obs(self, rollout: Rollout) -> None:
        self.obs.append(rollout.inputs.obs[:-1][rollout.valid])

    def take_rewards(self, rollout: Rollout, bonus: np.ndarray) -> None:
        for t, b in zip(*np.nonzero(rollout.valid), strict=True):
            i = int(rollout.env_id[b])
            self.running[i] = bonus[t, b] + GAMMA * self.running[i]
            self.returns.append(self.running[i])


@cache
def part() -> Intrinsic:
    made = SMALL_RND(*SPACES)
    return Intrinsic(made.init, *[jax.jit(f, static_argnums=n) for f, n in ((made.observe, 2), (made.learn, 3))])


@cache
def started() -> RNDState:
    return part().init(KEY(), B)


@pytest.mark.slow
def test_bonus_statistics_and_advantages_are_numpys() -> None:
    """Over a warm-up and two rollouts: rewards use the statistics from before, and sums continue over resets and rollouts."""
    oracle, state = Oracle(), started()
    warm = rollout_of(0)
    oracle.take_obs(warm)
    oracle.take_rewards(warm, oracle.novelty(state, warm))
    state = part().observe(state, warm, None)
    for seed in (1, 2):
        rollout = rollout_of(seed)
        bonus = oracle.novelty(state, rollout)
        reward = bonus / np.std(oracle.returns)
        values = network(state.params["value"], oracle.seen(rollout.inputs.obs))[0][..., 0]
        advantage, after, logged = part().learn(state, rollout, KEY(), None)
        for b in range(B):
            there, following = np.flatnonzero(rollout.valid[:, b]), 0.0
            assert not np.any(np.delete(np.asarray(advantage)[:, b], there))
            for i, t in reversed(list(enumerate(there))):
                beyond = values[there[i + 1] if i + 1 < len(there) else T, b]
                following = reward[t, b] + GAMMA * beyond - values[t, b] + GAMMA * LAMBDA * following
                assert float(advantage[t, b]) == pytest.approx(COEF * following, rel=1e-3, abs=1e-4)
        assert float(logged["charts/intrinsic_reward"]) == pytest.approx(reward[rollout.valid].mean(), rel=1e-3)
        assert float(logged["losses/rnd_loss"][0]) == pytest.approx(bonus[rollout.valid].mean(), rel=1e-3)
        oracle.take_obs(rollout)
        oracle.take_rewards(rollout, bonus)
        state = after
    assert float(state.rewards.moments.variance) == pytest.approx(np.var(oracle.returns), rel=1e-3)
    np.testing.assert_allclose(state.rewards.returns, [oracle.running[i] for i in range(4, 8)], rtol=1e-3)
    np.testing.assert_allclose(state.observations.mean, np.concatenate(oracle.obs).mean(0), rtol=1e-3, atol=1e-4)


def test_the_predictor_descends_its_error_and_the_target_stays() -> None:
    """Adam's first step is the learning rate times minus the gradient's sign, known in closed form for the last layer."""
    rollout = rollout_of(0)
    state = part().observe(started(), rollout, None)
    _, after, _ = part().learn(state, rollout, KEY(), None)
    assert_bit_equal(after.target, state.target)

    oracle = Oracle()
    oracle.take_obs(rollout)
    x = oracle.seen(rollout.inputs.obs[1:])[rollout.valid]
    predicted, hidden = network(state.params["predictor"], x)
    error = predicted - network(state.target, x)[0]
    gradient = 2 * hidden.T @ error / error.size
    step = np.asarray(after.params["predictor"]["params"]["out"]["kernel"] - state.params["predictor"]["params"]["out"]["kernel"])
    steep = np.abs(gradient) > 1e-2  # where Adam's epsilon is negligible
    np.testing.assert_allclose(step[steep], -3e-4 * np.sign(gradient[steep]), rtol=2e-3)
    assert steep.sum() > 10


def test_what_was_seen_is_no_longer_new() -> None:
    seen, never = rollout_of(0), rollout_of(1)
    never.inputs.obs[..., 1] += 0.4
    learn = jax.jit(rnd(*SPACES, learning_rate=1e-2, **{**SMALL, "num_epochs": 200}).learn, static_argnums=3)
    first = part().observe(started(), seen, None)
    state = first
    for _ in range(2):
        _, state, logged = learn(state, seen, KEY(), None)
    fixed = {"observations": first.observations, "rewards": first.rewards}

    def novelty(params: Any, rollout: Rollout) -> float:
        return float(part().learn(first._replace(params=params, **fixed), rollout, KEY(), None)[2]["losses/rnd_loss"][0])

    assert novelty(state.params, seen) < 0.1 * novelty(first.params, seen)
    assert novelty(state.params, never) > 3 * novelty(state.params, seen)
    assert float(logged["losses/intrinsic_value_loss"][-1]) < float(logged["losses/intrinsic_value_loss"][0])


@pytest.mark.parametrize("garbage", [-3.0, np.nan])
def test_rows_that_are_not_valid_have_no_influence(garbage: float) -> None:
    """The observation that an episode's last row reached does count, and is in the invalid row."""
    state = part().observe(started(), rollout_of(0), None)
    expected, other = (part().learn(state, rollout_of(1, value), KEY(), None) for value in (7.0, garbage))
    assert_bit_equal(other, expected)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(to_numpy(other)))


def test_an_end_that_is_no_number_spoils_nothing() -> None:
    """A simulation that broke reached NaN in a valid row, and its episode ends."""
    state, rollout = part().observe(started(), rollout_of(0), None), rollout_of(1)
    t, b = np.argwhere(rollout.terminated[:-1])[0]
    rollout.inputs.obs[t + 1, b] = np.nan
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(to_numpy(part().learn(state, rollout, KEY(), None))))


def test_a_share_of_the_rows_trains_the_predictor() -> None:
    """With almost no rows the predictor does not change, and the value still learns. Rewards are those of all rows."""
    rare = jax.jit(SMALL_RND(*SPACES, proportion=1e-6).learn, static_argnums=3)
    state = part().observe(started(), rollout_of(0), None)
    (advantage, all_rows, _), (same, none, _) = (f(state, rollout_of(1), KEY(), None) for f in (part().learn, rare))
    assert_close(same, advantage)
    assert_bit_equal(none.params["predictor"], state.params["predictor"])
    assert_close(none.params["value"], all_rows.params["value"])


def test_pictures_and_dictionaries_are_encoded_by_their_kind() -> None:
    picture = spaces.Box(0, 255, (10, 10, 3), np.uint8)
    space = spaces.Dict({"board": picture, "place": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)})
    made = rnd(space, spaces.Discrete(2), **SMALL)
    state = jax.eval_shape(lambda: made.init(KEY(), 2))
    assert state.observations.mean["board"].shape == (10, 10, 3)
    assert state.observations.mean["place"] is state.observations.mean["action_mask"] is None
    assert state.target["params"]["torso"]["minatar_board"]


# -------------------------------------------------------------------------------------------------------------- in an algorithm


@cache
def agent() -> Agent:
    return small_ppo("CartPole-v1", num_epochs=1, intrinsic=partial(rnd, **SMALL))


@cache
def after_steps() -> Any:
    return run_steps(agent(), agent().init(KEY()), 3)


def test_without_one_nothing_is_there() -> None:
    plain = small_ppo("CartPole-v1")
    state = jax.eval_shape(plain.init, jax.eval_shape(KEY))
    assert type(state.learner) is Learner and plain.algorithm.warmup_iterations == 0
    assert "intrinsic" not in plain.spec["parts"]  # as in older specs
    assert not any("intrinsic" in name or "rnd" in name for name in jax.eval_shape(plain.step, state)[1])


@pytest.mark.slow
def test_it_is_part_of_the_state_and_logged() -> None:
    state, metrics = after_steps()
    assert isinstance(state.learner, ExploringLearner) and agent().algorithm.warmup_iterations == 1
    logged = to_floats(metrics)
    for name in ("losses/rnd_loss", "losses/intrinsic_value_loss", "charts/intrinsic_reward"):
        assert logged[name] is not None and logged[name] > 0
    assert float(state.learner.intrinsic.observations.count) > 4 * 8 * 3


def test_its_advantages_are_added_and_what_the_value_learns_stays() -> None:
    params, _ = loss_case(discrete=True)
    rollout, bonus = rollout_of(1)._replace(extras={"log_prob": np.zeros((T, B))}), np.random.default_rng(0).normal(size=(T, B))
    learner, hp = Learner(params, (), (), Statistics((), ()), KEY(), jnp.int32(0)), PPOHyperparams()
    given = rollout._replace(extras={**rollout.extras, ADVANTAGE: np.float32(bonus)})
    before, after = (targets(linear_model(True), PPOConfig(), learner, each, hp) for each in (rollout, given))
    np.testing.assert_allclose(after.advantage - before.advantage, bonus.reshape(-1), rtol=1e-4, atol=1e-5)
    assert_bit_equal(after._replace(advantage=before.advantage), before)


def test_an_algorithm_sees_raw_rewards_and_the_advantages_of_before_learning() -> None:
    """With an intrinsic reward whose advantage is its state, the number of rollouts learnt from.

    Those of the warm-up do not count.
    """

    def learn(state: Any, rollout: Rollout, key: Any, axis_name: Any) -> Any:
        return jnp.full_like(rollout.reward, state), state + 1, {"charts/state": state}

    seen: list[Rollout] = []
    one = Intrinsic(lambda key, num_envs: jnp.float32(num_envs), lambda state, rollout, axis_name: state, learn)
    nothing: Any = None
    inner = Algorithm(
        init=lambda key, hyperparams: Learner((), (), hyperparams, (), key, jnp.int32(0)),
        policy=nothing,
        act=nothing,
        update=lambda learner, rollout: (seen.append(rollout), (learner, {}))[1],
        initial_carry=nothing,
        gradients=lambda policy, rollout: ((), {}),
        apply=lambda learner, gradient: learner,
    )
    algorithm = exploring(inner, one, B, None)
    learner = algorithm.observe(algorithm.init(KEY(), PPOHyperparams()), rollout_of(0))
    for _ in range(2):
        learner, metrics = algorithm.update(learner, rollout_of(1))
    assert [float(rollout.extras[ADVANTAGE].mean()) for rollout in seen] == [B, B + 1] and learner.intrinsic == B + 2
    assert_bit_equal(seen[1]._replace(extras={}), rollout_of(1))
    assert to_floats(metrics) == {"charts/state": B + 1} and algorithm.gradients is algorithm.apply is None


def test_what_an_algorithm_keeps_of_its_own_stays_its_own() -> None:
    """The coefficient of PPO's penalty, which changes with the policy, and noise that is held for some rows."""
    box = {"hold_noise": 2, "surrogate": "kl", "num_epochs": 1, "intrinsic": partial(rnd, **SMALL)}
    one = small_ppo("Pendulum-v1", **box)
    state = jax.eval_shape(one.init, jax.eval_shape(KEY))
    after, metrics = jax.eval_shape(one.step, state)
    assert after == state and "losses/kl_coef" in metrics and "losses/rnd_loss" in metrics
    assert isinstance(after.learner.inner, PenaltyState) and len(jax.tree.leaves(after.learner.rest)) == 1


@pytest.mark.slow
def test_seeds_side_by_side_are_those_alone() -> None:
    alone = [agent().init(key) for key in jax.random.split(KEY(), 2)]
    states = jax.tree.map(lambda *x: jnp.stack(x), *alone)
    kernels = [x for x in jax.tree.leaves(states.learner.intrinsic.target) if x.ndim > 2]
    assert kernels and all((x[0] != x[1]).any() for x in kernels)
    both, _ = jax.jit(jax.vmap(agent().step))(states)
    assert_close(jax.tree.map(lambda x: x[1], both), run_steps(agent(), alone[1], 1)[0])


@pytest.mark.slow
def test_two_devices_learn_what_one_does() -> None:
    state, rollout = part().observe(started(), rollout_of(0), None), rollout_of(1)
    rollout = rollout._replace(env_id=np.arange(B))
    half = lambda x, axis: jnp.stack(jnp.split(jnp.asarray(x), 2, axis))  # noqa: E731
    rows = jax.tree.map(lambda x: half(x, 0 if x.ndim == 1 else 1), rollout)
    split = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    split = split._replace(rewards=split.rewards._replace(returns=half(state.rewards.returns, 0)))
    shuffling = rnd(*SPACES, proportion=0.5, **{**SMALL, "num_epochs": 2, "num_minibatches": 3})
    learn = jax.vmap(lambda state, rollout: shuffling.learn(state, rollout, KEY(), "d"), axis_name="d")
    expected, each = jax.jit(shuffling.learn, static_argnums=3)(state, rollout, KEY(), None), jax.jit(learn)(split, rows)
    assert_close(jnp.concatenate(list(each[0]), 1), expected[0])
    assert_close(each[1].rewards.returns.reshape(-1), expected[1].rewards.returns)
    for i in range(2):
        same = jax.tree.map(lambda x, i=i: x[i], each[1])
        assert_close(same._replace(rewards=same.rewards.moments), expected[1]._replace(rewards=expected[1].rewards.moments))


def test_its_returns_belong_to_environments() -> None:
    state = jax.eval_shape(agent().init, jax.eval_shape(KEY))
    axes = env_axes(agent(), state).learner.intrinsic
    assert axes.rewards.returns == 0
    assert set(jax.tree.leaves(axes._replace(rewards=axes.rewards.moments))) == {-1}


@pytest.mark.slow
def test_a_saved_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    state, _ = after_steps()
    save(tmp_path, state, 3, spec=agent().spec)
    restored, _ = restore(tmp_path, jax.eval_shape(agent().init, KEY()))
    assert_bit_equal(run_steps(agent(), restored, 1), run_steps(agent(), state, 1))


def test_it_is_built_again_from_the_spec() -> None:
    spec = json.loads(json.dumps(agent().spec))
    assert spec["parts"]["intrinsic"]["partial"] == {"import": "jaxrl.intrinsic:rnd"}
    again = jaxrl.build(spec)
    assert again.spec == agent().spec
    shapes = [jax.eval_shape(each.init, jax.eval_shape(KEY)) for each in (agent(), again)]
    assert jax.tree.structure(shapes[0]) == jax.tree.structure(shapes[1])
    spec["parts"]["intrinsic"] = {"import": "jaxrl.models:actor_critic"}
    with pytest.raises(ValueError, match="does not return Intrinsic"):
        jaxrl.build(spec)


@pytest.mark.learning
def test_a_reward_that_is_never_found_by_chance_is_found() -> None:
    """DeepSea of depth 16, one sequence of actions in 65,536, as in docs/howto/exploration.md."""
    found = main()
    assert found["PPO"] <= 1 and found["PPO with RND"] >= 6


# ------------------------------------------------------------------------------------------------------------ invalid arguments


def wrong(**functions: Any) -> Any:
    def make(observation_space: Any, action_space: Any) -> Intrinsic:
        given: dict[str, Any] = {
            "init": lambda key, num_envs: jnp.zeros(num_envs),
            "observe": lambda state, rollout, axis_name: state,
            "learn": lambda state, rollout, key, axis_name: (jnp.zeros_like(rollout.reward), state, {}),
        }
        return Intrinsic(**{**given, **functions})

    return make


def test_one_of_your_own_is_taken() -> None:
    assert small_ppo("CartPole-v1", intrinsic=wrong()).algorithm.warmup_iterations == 1
    assert small_ppo("CartPole-v1", intrinsic=wrong()(None, None)).algorithm.warmup_iterations == 1


@pytest.mark.parametrize(
    "given, error, words",
    [
        ("rnd", TypeError, "intrinsic='rnd' must be a function of (observation_space, action_space) that returns"),
        (True, TypeError, "intrinsic=True must be a function of (observation_space, action_space)"),
        (lambda env: rnd, TypeError, "takes (env), and must be a function of"),
        (lambda *spaces: rnd, TypeError, "gives rnd for the spaces of gymnax:CartPole-v1, and must be a function of"),
        (partial(rnd, coeff=1.0), TypeError, "rnd() got an unknown keyword 'coeff'. Did you mean 'coef'?"),
        (partial(rnd, gamma=1.5), ValueError, "gamma=1.5 is not allowed: it must be a number in [0, 1]"),
        (partial(rnd, proportion=0), ValueError, "proportion=0 is not allowed: it must be a number in (0, 1]"),
        (partial(rnd, encoder="impala"), ValueError, "encoder='impala' has no effect on"),
        (partial(rnd, hidden_sizes=(0,)), ValueError, "hidden_sizes=(0,) must be positive integers"),
        (partial(rnd, num_minibatches=5), ValueError, "rnd(num_minibatches=5) fails on a rollout of float32[8, 4] with"),
        (wrong(learn=lambda *given: None), TypeError, "learn returned nothing; it must return (advantage, state, {key"),
        (
            wrong(learn=lambda state, rollout, *rest: (rollout.reward[0], state, {})),
            TypeError,
            "learn returned the advantage float32[4], which must be float32[8, 4]: one number for each row [T, B]",
        ),
        (
            wrong(observe=lambda state, *rest: state[0]),
            TypeError,
            "observe returned the state float32[], and init gives float32[4]: they must agree",
        ),
        (
            wrong(learn=lambda state, rollout, *rest: (rollout.reward, state, {"charts/x": "high"})),
            TypeError,
            "learn returned str as 'charts/x', which must be numbers to log",
        ),
        (wrong(observe=lambda state: state), TypeError, "fails on a rollout of float32[8, 4] with TypeError"),
    ],
)
def test_a_wrong_one_is_refused_when_the_agent_is_built(given: Any, error: type, words: str) -> None:
    with pytest.raises(error) as caught:
        small_ppo("CartPole-v1", intrinsic=given)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["a2c", "reinforce"])
def test_every_on_policy_algorithm_takes_it_and_extra_losses(algorithm: str) -> None:
    """The advantages of the bonus and the extra loss change one gradient step."""

    def decay(params: Any, rollout: Rollout) -> Any:
        return 0.5 * sum((x**2).sum() for x in jax.tree.leaves(params)), {"rows": rollout.valid.sum()}

    def fixed(*spaces: Any) -> Intrinsic:
        learn = lambda state, rollout, *rest: (jnp.full_like(rollout.reward, 3.0), state, {"charts/bonus": jnp.float32(3)})  # noqa: E731
        return Intrinsic(lambda key, num_envs: jnp.zeros(()), lambda state, *rest: state, learn)

    make = partial(small, algorithm, "CartPole-v1", optimizer=optax.sgd(1.0), rollout_length=4, normalize_advantages=False)
    plain, decayed, drawn = make(), make(extra_losses=decay), make(intrinsic=fixed)
    state = plain.init(KEY())
    (before, _), (after, metrics) = (run_steps(each, state, 1) for each in (plain, decayed))
    expected = jax.tree.map(lambda x, y: y - x, state.learner.params, before.learner.params)
    assert_close(after.learner.params, expected)
    assert to_floats(metrics)["losses/rows"] == 16
    assert drawn.algorithm.gradients is None and drawn.algorithm.warmup_iterations == 1
    assert "charts/bonus" in jax.eval_shape(drawn.step, jax.eval_shape(drawn.init, jax.eval_shape(KEY)))[1]
    with pytest.raises(TypeError, match=r"extra_losses\[0\].*fails with AttributeError"):
        make(extra_losses=lambda params, rollout: (rollout.advantage.mean(), {}))


@pytest.mark.parametrize("loss", [a2c_loss, reinforce_loss])
def test_their_losses_weigh_by_the_sum_of_both_advantages(loss: Any) -> None:
    """The policy's part is −mean of (A + bonus)·log π over the valid rows."""
    params, _ = loss_case(discrete=True)
    rows = rollout_of(1)._replace(extras={}, valid=np.ones((T, B), bool))
    rows = rows._replace(terminated=np.arange(T)[:, None] == np.full(B, T - 1))  # so that all rows count
    bonus = np.random.default_rng(0).normal(size=(T, B)).astype(np.float32)
    given = rows._replace(extras={ADVANTAGE: bonus})
    config, hp = (A2CConfig(), A2CHyperparams()) if loss is a2c_loss else (REINFORCEConfig(), REINFORCEHyperparams())
    config = dataclasses.replace(config, normalize_advantages=False)
    before, after = (loss(linear_model(True), config, hp, params, each, None)[1]["losses/policy_loss"] for each in (rows, given))
    inputs = jax.tree.map(lambda x: x[:-1], rows.inputs)
    log_prob = linear_model(True).apply(params, (), inputs)[1].policy.log_prob(rows.action)
    assert float(after - before) == pytest.approx(-float((bonus * np.asarray(log_prob)).mean()), rel=1e-3)
