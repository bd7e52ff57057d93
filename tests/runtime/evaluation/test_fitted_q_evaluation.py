"""Fitted Q evaluation: exact values of tabular problems, ends of episodes, kinds of policies, one copy of the data, bad input."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl import fitted_q_evaluation
from jaxrl.algorithms.off_policy_evaluation import fitted_q
from jaxrl.builder.stand_in import stand_in
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.replay.transitions import ReplayRow
from jaxrl.rollout.running_statistics import Statistics
from jaxrl.runtime.datasets.layouts import Spaces
from jaxrl.runtime.evaluation import fitted_q_evaluation as module
from jaxrl.runtime.evaluation import policy_actions
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.runtime.evaluation.policy_actions import actions_of, fixed_policy
from jaxrl.settings.validation import merge_hyperparams
from jaxrl.types import Model, StepInput
from tests.helpers.agents import cartpole, small
from tests.helpers.datasets import random_dataset

SMALL: dict[str, Any] = {"critic": {"hidden_sizes": (16,)}, "updates": 300, "batch_size": 64, "seeds": 2, "gamma": 0.9}


def table(observation_space: spaces.Space, action_space: spaces.Space) -> Model:
    """Return a table of values for one-hot observations, [states, actions]."""

    def init(key: Any, inputs: StepInput) -> Any:
        return jnp.zeros((inputs.obs.shape[-1], action_space.n))  # type: ignore[attr-defined]

    def apply(params: Any, carry: Any, inputs: StepInput) -> Any:
        return carry, inputs.obs @ params

    return Model(init, apply, apply, lambda batch_size: ())


TABLE: dict[str, Any] = {
    "critic": table,
    "normalize_observations": False,
    "learning_rate": 0.02,
    "tau": 0.1,
    "batch_size": 256,
    "seeds": 2,
}


def one_hot(size: int, actions: int) -> Spaces:
    return Spaces(spaces.Box(0.0, 1.0, (size,), np.float32), spaces.Discrete(actions), "table")


def by_state(actions: list[int]) -> Any:
    """Return the policy that takes this action in each state."""
    return lambda obs: np.array(actions)[obs.argmax(-1)]


# ----------------------------------------------------------------------------------------------------------------- known answers

STATES, ACTIONS = 5, 3


def random_mdp(stochastic: bool) -> tuple[Dataset, Any]:
    """Return rows of a random problem, in which an action in the last state may terminate, and the same rows as arrays."""
    rng = np.random.default_rng(3)
    likely = rng.dirichlet(np.full(STATES, 0.5), (STATES, ACTIONS))
    if not stochastic:
        likely = np.eye(STATES)[rng.integers(STATES, size=(STATES, ACTIONS))]
    rewards = rng.normal(size=(STATES, ACTIONS))
    steps, rows = [], []
    for _ in range(60):
        state = rng.integers(STATES)
        for _ in range(10):
            action = rng.integers(ACTIONS)
            after = rng.choice(STATES, p=likely[state, action])
            ends = bool(state == STATES - 1 and (rng.random() < 0.3 if stochastic else action == 0))
            steps.append((state, action, rewards[state, action], ends, after))
            rows.append((state, action, rewards[state, action], ends, True))
            state = after
            if ends:
                break
        rows.append((state, 0, 0.0, False, False))
    state, action, reward, terminated, valid = map(np.array, zip(*rows, strict=True))
    one = np.eye(STATES, dtype=np.float32)[state]
    stored = ReplayRow(one, action.astype(np.int32), reward.astype(np.float32), terminated, valid)  # type: ignore[arg-type]
    return make_dataset(stored, one_hot(STATES, ACTIONS)), [np.array(x) for x in zip(*steps, strict=True)]  # type: ignore[arg-type]


def exact(steps: Any, policy: list[int], gamma: float) -> np.ndarray:
    """Solve Q(s, a) = mean of r + γ·(1 − terminated)·Q(s′, π(s′)) over the rows of the data, [states, actions]."""
    state, action, reward, ends, after = steps
    size = STATES * ACTIONS
    row, column = state * ACTIONS + action, after * ACTIONS + np.array(policy)[after]
    matrix, right, count = np.zeros((size, size)), np.zeros(size), np.zeros(size)
    np.add.at(matrix, (row, column), gamma * ~ends)
    np.add.at(right, row, reward)
    np.add.at(count, row, 1)
    assert (count > 0).all()
    return np.linalg.solve(np.eye(size) - matrix / count[:, None], right / count).reshape(STATES, ACTIONS)


@pytest.mark.slow
@pytest.mark.parametrize(("stochastic", "tolerance"), [(False, 2e-3), (True, 0.03)])
def test_values_solve_the_bellman_equations(stochastic: bool, tolerance: float) -> None:
    """For two policies, in each first state: exactly, or up to the noise of batches if the same action has several outcomes."""
    data, steps = random_mdp(stochastic)
    first = np.asarray(data.rows().obs)[np.asarray(data.starts)].argmax(-1)
    found = []
    for policy in ([0, 1, 2, 0, 1], [2, 2, 0, 1, 0]):
        q = exact(steps, policy, 0.8)
        expected = q[first, np.array(policy)[first]]
        result = fitted_q_evaluation(by_state(policy), data, gamma=0.8, updates=3000, **TABLE)
        np.testing.assert_allclose(result.initial_values, np.broadcast_to(expected, (2, len(first))), atol=tolerance)
        assert result.value == pytest.approx(expected.mean(), abs=tolerance / 2)
        assert result.value == pytest.approx(result.values.mean()) and result.updates == 3000
        assert result.standard_error == pytest.approx(abs(result.values[0] - result.values[1]) / 2, rel=1e-6)
        assert result.history.shape == (6, 2) and (result.history[-1] == result.values).all()
        found.append(result.value)
    assert abs(found[0] - found[1]) > 0.1


def two_states(terminated: bool, reward: tuple[float, float] = (1.0, 3.0)) -> Dataset:
    """Return episodes of two rows, 0 → 1 → 0, that terminate or are truncated. Both actions do the same."""
    episode = ([0, 1, 0], [0, 1, 0], [*reward, 0.0], [False, terminated, False], [True, True, False])
    state, action, rewards, ends, valid = (np.tile(np.array(x), 8) for x in episode)
    action = np.where(np.arange(len(action)) < 12, action, 1 - action)
    obs = np.eye(2, dtype=np.float32)[state]
    rows = ReplayRow(obs, action.astype(np.int32), rewards.astype(np.float32), ends, valid)  # type: ignore[arg-type]
    return make_dataset(rows, one_hot(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_truncated_episodes_bootstrap_and_terminated_ones_do_not(n_step: int) -> None:
    """V(0) = 1 + 3γ, or (1 + 3γ) / (1 − γ²), also with n-step returns, as all actions do the same."""
    run = partial(fitted_q_evaluation, by_state([0, 1]), gamma=0.5, updates=1500, n_step=n_step, **TABLE)
    assert run(two_states(terminated=True)).value == pytest.approx(2.5, abs=5e-3)
    assert run(two_states(terminated=False)).value == pytest.approx(2.5 / 0.75, abs=5e-3)


BOX = Spaces(spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(0.0, 4.0, (1,), np.float32), "box")


def bandit(rows: int = 600, length: int = 10) -> Dataset:
    """Return rows with random observations and actions in [0, 4], reward (a − 3)², in episodes that are truncated."""
    rng = np.random.default_rng(1)
    action = rng.uniform(0, 4, (rows, 1)).astype(np.float32)
    obs, valid = rng.uniform(-1, 1, (rows, 2)).astype(np.float32), np.arange(rows) % length != length - 1
    stored = ReplayRow(obs, action, (action[:, 0] - 3) ** 2, np.zeros(rows, bool), valid)  # type: ignore[arg-type]
    return make_dataset(stored, BOX)  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [0.5, 3.0])
def test_the_value_of_a_constant_action_is_its_reward_for_ever(action: float) -> None:
    """(a − 3)² / (1 − γ), which is neither the value of the data's policy nor that of another action."""
    policy = lambda obs: np.full((len(obs), 1), action, np.float32)  # noqa: E731
    settings = {"gamma": 0.8, "updates": 2000, "batch_size": 64, "learning_rate": 3e-3, "seeds": 2}
    result = fitted_q_evaluation(policy, bandit(), critic={"hidden_sizes": (32, 32)}, **settings)
    assert result.value == pytest.approx((action - 3) ** 2 / 0.2, abs=1.0)  # values are between 0 and 45


def test_without_future_the_value_is_the_next_reward() -> None:
    data = two_states(terminated=False)
    assert fitted_q_evaluation(by_state([0, 0]), data, gamma=0.0, updates=600, **TABLE).value == pytest.approx(1.0, abs=1e-3)


def test_exploring_policies_have_the_value_of_their_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """ε-greedy with ε = 1 chooses each action with the same probability: V = ½·(1 + 3) / (1 − γ). The greedy one and the one that
    collected the data do not."""
    action = (np.arange(60) % 4 > 0).astype(np.int32)
    obs, valid = np.ones((60, 1), np.float32), np.arange(60) % 12 != 11
    rows = ReplayRow(obs, action, (1.0 + 2 * action).astype(np.float32), np.zeros(60, bool), valid)  # type: ignore[arg-type]
    env = stand_in("bandit", spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(2))
    data = make_dataset(rows, env)
    agent = jaxrl.make_dqn(env, data=data, model={"hidden_sizes": (4,)})
    policy = new_policy(agent)
    draws: list[np.ndarray] = []

    def recorded(*args: Any) -> Any:
        draws.append(np.asarray(actions_of(*args)))
        return draws[-1]

    monkeypatch.setattr(module, "CHUNK", 100)
    monkeypatch.setattr(module, "actions_of", recorded)
    explored = fitted_q_evaluation((agent, policy), data, gamma=0.5, explore=True, updates=1500, **TABLE)
    assert len({draw.tobytes() for draw in draws}) == 15  # anew for each chunk
    greedy = fitted_q_evaluation((agent, policy), data, gamma=0.5, updates=1500, **TABLE)
    assert len(draws) == 16
    # The first action of a value is drawn too: its mean over 5 episodes has a standard deviation of ½.
    assert explored.history.mean() == pytest.approx(4.0, abs=0.5)
    assert min(abs(greedy.value - 2.0), abs(greedy.value - 6.0)) < 0.01


# ---------------------------------------------------------------------------------------------------------------------- policies


def played(policy: Any, data: Dataset, **keywords: Any) -> np.ndarray:
    """Return the actions at all rows."""
    fixed = fixed_policy(policy, data.info, keywords.pop("explore", None))
    return np.asarray(actions_of(fixed, data, jax.random.key(keywords.pop("seed", 0))))


def test_a_state_a_policy_and_a_loaded_policy_act_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedily, with the policy's normalisation, in the environment's units, and in parts, the last of which is not whole."""
    data = random_dataset("Pendulum-v1")
    agent = small("ppo", "Pendulum-v1", normalize_observations=True)
    state = agent.init(jax.random.key(1))
    raw = agent.algorithm.policy(state.learner)
    statistics = Statistics(data.info.running_moments(), ())
    policy = raw._replace(statistics=statistics)
    loaded = LoadedPolicy(agent, policy, seed=0, step=0)
    expected = loaded(np.asarray(data.rows().obs))
    monkeypatch.setattr(policy_actions, "ROWS_AT_ONCE", 64)
    state = state._replace(learner=state.learner._replace(statistics=statistics))
    for same in (loaded, (agent, state), (agent, policy), loaded.__call__):
        np.testing.assert_allclose(played(same, data), expected, rtol=1e-5, atol=1e-6)
    assert expected.shape == (200, 1) and np.abs(expected).max() <= 2
    assert np.abs(played((agent, raw), data) - expected).max() > 1e-3


def new_policy(agent: Any) -> Any:
    """Return a policy of new parameters, from its learner alone, without environments."""
    hyperparams = merge_hyperparams(agent.hyperparams, None)
    return jax.jit(lambda key: agent.algorithm.policy(agent.algorithm.init(key, hyperparams)))(jax.random.key(1))


def test_exploring_actions_are_drawn() -> None:
    data = random_dataset("Pendulum-v1")
    agent = small("sac", "Pendulum-v1")
    policy = new_policy(agent)._replace(exploration=jnp.array(False))
    exploring = LoadedPolicy(agent, policy, seed=0, step=0, explore=True)
    drawn, same, other = (played(exploring, data, seed=seed) for seed in (0, 0, 1))
    assert (drawn == same).all() and (drawn != other).mean() > 0.9
    assert (played((agent, policy), data, explore=True) == drawn).all()
    assert (played(exploring, data, explore=False) == played((agent, policy), data)).all()


def test_a_row_has_the_action_before_it_and_none_at_the_start() -> None:
    """A memoryless policy may read the previous action and reward."""
    data = random_dataset("CartPole-v1", rows=40)
    agent = cartpole("ppo")

    def act(policy: Any, carry: Any, inputs: StepInput, env_id: Any, key: Any, *, explore: bool) -> Any:
        return carry, inputs.prev_action + 10 * inputs.is_first + 100 * (inputs.prev_reward != 0), {}

    found = played((agent._replace(algorithm=agent.algorithm._replace(act=act)), new_policy(agent)), data)
    rows = jax.device_get(data.rows())
    before = np.concatenate([[False], rows.valid[:-1]])
    expected = np.where(before, np.roll(rows.action, 1) + 100, 10)
    np.testing.assert_array_equal(found, expected)


def test_greedy_actions_with_noise_in_the_carry_are_memoryless() -> None:
    data = random_dataset("Pendulum-v1")
    for agent in (
        small("ddpg", "Pendulum-v1", noise=jaxrl.options.OU()),
        jaxrl.make_sac("Pendulum-v1", hold_noise=4, model={"hidden_sizes": (8,)}),
    ):
        assert jax.tree.leaves(agent.algorithm.initial_carry(1))
        policy = new_policy(agent)
        assert played((agent, policy), data).shape == (200, 1)
        with pytest.raises(TypeError, match="the exploring actions of this policy depend on a carry"):
            fitted_q_evaluation((agent, policy), data, explore=True, **SMALL)


# ------------------------------------------------------------------------------------------------------------------- one program


def zero(obs: Any) -> np.ndarray:
    return np.zeros((len(obs), 1), np.float32)


SIZES: dict[str, Any] = {"updates": 4, "batch_size": 16, "n_step": 1}


def prepared(data: Dataset, seeds: int) -> tuple[Any, Any, Any]:
    """Return the programs for a few small seeds, and the shapes of their learners and of what they share."""
    programs = module._programs(data.info, module._hashable({"hidden_sizes": (8,)}), seeds, **SIZES)
    hyperparams = module._hyperparams(gamma=0.9, learning_rate=1e-3, tau=0.1)
    learners = jax.eval_shape(programs.init, np.arange(seeds, dtype=np.uint32), hyperparams)
    shared = (data, zero(data.returns_to_go), data.info.running_moments(), hyperparams.gamma)
    return programs, learners, jax.eval_shape(programs.problem, *shared)


def test_seeds_share_the_data() -> None:
    """The vmapped program has the data once, unbatched, and holds no constant of more than 1 kB."""
    data = random_dataset("Pendulum-v1")
    _, learners, problem = prepared(data, 3)
    both = data.info.observation_space, data.info.action_space
    critic = jaxrl.models.action_value(*both, hidden_sizes=(8,), layer_norm=True)
    setup = fitted_q.make_setup(data.info, critic, **SIZES)
    learn = jax.vmap(lambda learner, shared: fitted_q.learn(setup, shared, learner), in_axes=(0, None))
    program = jax.make_jaxpr(learn)(learners, problem)
    assert max((np.asarray(x).nbytes for x in program.consts), default=0) <= 1024
    shape = data.records.words.shape
    assert [v.aval.shape for v in program.jaxpr.invars].count(shape) == 1


def test_memory_of_seeds_is_that_of_their_parameters() -> None:
    data = random_dataset("Pendulum-v1", rows=20_000, length=200)

    def needed(seeds: int) -> tuple[int, int]:
        programs, learners, problem = prepared(data, seeds)
        found = programs.learn.lower(learners, problem).compile().memory_analysis()
        return found.temp_size_in_bytes, sum(x.size * 4 for x in jax.tree.leaves(learners.params))

    rows = sum(x.nbytes for x in jax.tree.leaves(data.records))
    (one, _), (eight, parameters) = needed(1), needed(8)
    assert eight < one + 60 * parameters and eight < rows  # no copy of the data


def test_a_seed_alone_is_the_seed_in_a_batch_and_policies_share_programs() -> None:
    data = random_dataset("Pendulum-v1")
    module._programs.cache_clear()
    several = fitted_q_evaluation(zero, data, **{**SMALL, "seeds": [4, 2, 7], "updates": 20})
    alone = fitted_q_evaluation(zero, data, **{**SMALL, "seeds": [2], "updates": 20})
    np.testing.assert_allclose(alone.initial_values[0], several.initial_values[1], rtol=1e-4, atol=1e-4)
    assert np.isnan(alone.standard_error) and len(set(several.values)) == 3
    fitted_q_evaluation(lambda obs: zero(obs) + 1, data, **{**SMALL, "seeds": [2], "updates": 20})
    found = module._programs.cache_info()
    assert (found.misses, found.hits) == (2, 1)


def test_the_policy_and_the_data_may_be_on_any_device() -> None:
    data = random_dataset("CartPole-v1", rows=40)
    agent = cartpole("ppo")
    policy, elsewhere = new_policy(agent), jax.devices()[-1]
    settings = {**SMALL, "updates": 2}
    here = fitted_q_evaluation((agent, policy), data, **settings)
    there = fitted_q_evaluation((agent, jax.device_put(policy, elsewhere)), jax.device_put(data, jax.devices()[0]), **settings)
    np.testing.assert_allclose(here.values, there.values, rtol=1e-5)
    assert fitted_q_evaluation((agent, policy), jax.device_put(data, elsewhere), **settings).updates == 2


def test_progress_is_reported_and_can_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 10)
    data, seen = random_dataset("Pendulum-v1"), []
    settings = {**SMALL, "updates": 25}
    result = fitted_q_evaluation(zero, data, progress=lambda updates, values: seen.append((updates, values)), **settings)
    assert [updates for updates, _ in seen] == [9, 18, 27] and result.updates == 27
    np.testing.assert_array_equal([values for _, values in seen], result.history)

    def stop(updates: int, values: Any) -> None:
        if updates > 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted_q_evaluation(zero, data, progress=stop, **settings)


def test_critics_that_diverged_are_left_out() -> None:
    history = np.array([[1.0, 2.0, 4.0], [1.0, np.nan, 3.0]])
    with pytest.warns(UserWarning, match="1 of 3 critics diverged and are left out"):
        result = module._result(np.zeros((3, 2)), np.zeros(3), history, 10)
    assert result.value == 2.0 and result.standard_error == 1.0
    np.testing.assert_array_equal(result.values, [1.0, np.nan, 3.0])
    with pytest.warns(UserWarning, match="2 of 2"):
        assert np.isnan(module._result(np.zeros((2, 2)), np.zeros(2), np.full((1, 2), np.inf), 10).value)


def test_values_stay_within_what_rewards_allow() -> None:
    """Rewards from −1 to 3, for ever: from −1 / (1 − γ) to 3 / (1 − γ). Where episodes terminate, a value may be a single reward,
    so rewards of one sign have a limit nearer to 0."""

    def limits(terminated: bool, reward: tuple[float, float]) -> list[float]:
        units = fitted_q.units_of(two_states(terminated, reward), jnp.float32(0.5))
        return [float(units.least), float(units.most)]

    assert limits(False, (-1.0, 3.0)) == limits(True, (-1.0, 3.0)) == [-2.0, 6.0]
    assert limits(False, (1.0, 3.0)) == [2.0, 6.0] and limits(True, (1.0, 3.0)) == [1.0, 6.0]
    assert limits(False, (-3.0, -1.0)) == [-6.0, -2.0] and limits(True, (-3.0, -1.0)) == [-6.0, -1.0]


def test_units_are_those_of_returns() -> None:
    """Of 1 + 3γ and 3 if episodes terminate; those that are cut off continue with the mean reward, 2 / (1 − γ) in all."""
    ended, cut = (fitted_q.units_of(two_states(terminated), jnp.float32(0.5)) for terminated in (True, False))
    assert float(ended.mean) == pytest.approx(2.75) and float(ended.scale) == pytest.approx(0.25)
    returns = np.array([1 + 0.5 * 3 + 0.25 * 4, 3 + 0.5 * 4])
    assert float(cut.mean) == pytest.approx(returns.mean()) and float(cut.scale) == pytest.approx(returns.std())
    equal = fitted_q.units_of(two_states(False, (1.0, 1.0)), jnp.float32(0.9))
    assert float(equal.mean) == pytest.approx(10.0) and float(equal.scale) == 1.0


def test_observations_are_normalised_except_those_that_are_not_real_numbers() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 255, (2,), np.uint8), "speed": spaces.Box(-9, 9, (1,), np.float32)})
    rng = np.random.default_rng(0)
    obs = {"image": rng.integers(0, 256, (30, 2)).astype(np.uint8), "speed": rng.uniform(3, 9, (30, 1)).astype(np.float32)}
    valid = np.arange(30) % 10 != 9
    rows = ReplayRow(obs, np.zeros(30, np.int32), np.ones(30, np.float32), np.zeros(30, bool), valid)  # type: ignore[arg-type]
    data = make_dataset(rows, Spaces(space, spaces.Discrete(2), "both"))  # type: ignore[arg-type]
    units = fitted_q.units_of(data, jnp.float32(0.5))
    problem = fitted_q.Problem(data, jnp.zeros((30, 1), jnp.int32), data.info.running_moments(), units)
    seen = fitted_q.normalized(problem, StepInput((), (), (), ()), data.rows().obs).obs  # type: ignore[arg-type]
    np.testing.assert_array_equal(seen["image"], obs["image"])
    speed = obs["speed"][valid]
    np.testing.assert_allclose(np.asarray(seen["speed"])[valid], (speed - speed.mean()) / speed.std(), atol=1e-4)
    images = fitted_q_evaluation(lambda obs: np.zeros(len(obs["speed"]), int), data, **{**SMALL, "updates": 2})
    assert images.value == pytest.approx(10.0, abs=1e-3)


# --------------------------------------------------------------------------------------------------------------------- bad input


def test_what_is_not_allowed_is_refused() -> None:
    data, discrete = random_dataset("Pendulum-v1"), random_dataset("CartPole-v1")

    def refused(kind: type[Exception], match: str, policy: Any = zero, data: Any = data, **settings: Any) -> None:
        with pytest.raises(kind, match=match):
            fitted_q_evaluation(policy, data, **{**SMALL, **settings})

    for gamma in (1, 1.5, -0.1, float("nan")):
        refused(ValueError, rf"gamma={gamma:g} is not allowed: it must be a number in \[0, 1", gamma=gamma)
    refused(ValueError, r"tau=0 is not allowed", tau=0)
    refused(ValueError, r"learning_rate=-1 is not allowed", learning_rate=-1)
    for name in ("updates", "batch_size", "n_step"):
        refused(ValueError, rf"{name}=0 must be an integer >= 1", **{name: 0})
    refused(ValueError, "seeds=0 must be at least 1", seeds=0)
    refused(TypeError, r"anneal=3 must be True or False", anneal=3)
    refused(TypeError, r"explore='yes' must be True or False", explore="yes")
    refused(TypeError, r"progress=True must be a function of \(updates, values", progress=True)
    refused(TypeError, r"data='mixed.npz' must be a Dataset, as jaxrl.load_dataset\(file\) returns", data="mixed.npz")
    refused(TypeError, r"data=None must be a Dataset", data=None)
    refused(TypeError, r"unknown keyword 'discount'.*gamma", discount=0.9)
    refused(TypeError, r"takes no 'hidden'", critic={"hidden": 3})
    refused(TypeError, r"critic=.* must be memoryless", critic=partial(jaxrl.models.q_network, core="gru"), data=discrete)
    refused(TypeError, r"batch|statistics to learn", critic={"batch_renorm": jaxrl.models.BatchRenorm()})

    refused(TypeError, r"policy=3 must be what jaxrl.load_policy returns, a pair \(agent, state\), or a function", policy=3)
    refused(ValueError, r"explore=True has no effect on a function", explore=True)
    refused(
        TypeError, r"policy must return actions float32\[200, 1\] for 200 observations", policy=lambda obs: np.zeros(len(obs))
    )
    refused(TypeError, r"policy must return actions int32\[200\]", policy=lambda obs: np.zeros(200), data=discrete)
    refused(ValueError, r"policy returns the action 3.0, outside of Box", policy=lambda obs: zero(obs) + 3)
    refused(ValueError, r"policy returns the action nan, outside of Box", policy=lambda obs: zero(obs) * np.nan)
    refused(ValueError, r"returns the action 2, outside of Discrete\(2\)", policy=lambda obs: np.full(200, 2), data=discrete)

    agent = cartpole("ppo")
    policy = new_policy(agent)
    loaded = LoadedPolicy(agent, policy, seed=0, step=0)
    refused(ValueError, r"the dataset has observations Box\(3\) float32.*CartPole-v1 has Box\(4\)", policy=(agent, policy))
    refused(ValueError, r"the dataset has observations Box\(3\) float32.*, and the policy has Box\(4\)", policy=loaded)
    refused(TypeError, "policy must be an AgentState or a Policy", policy=(agent, None), data=discrete)
    policies = jax.tree.map(lambda x: jnp.stack([x, x]), policy)
    refused(ValueError, "policy holds 2 seeds", policy=(agent, policies), data=discrete)
    recurrent = small("ppo", "CartPole-v1", model={"core": "gru", "core_size": 4, "hidden_sizes": (4,)})
    refused(TypeError, "the actions of this policy depend on a carry", policy=(recurrent, new_policy(recurrent)), data=discrete)


@pytest.mark.parametrize(
    ("space", "kind", "match"),
    [
        (spaces.MultiDiscrete([2, 3]), TypeError, "needs Box or Discrete actions, and the dataset has MultiDiscrete"),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), ValueError, "needs a Box of real numbers with bounds on all sides"),
    ],
)
def test_other_actions_are_refused(space: spaces.Space, kind: type[Exception], match: str) -> None:
    action = np.stack([np.zeros(space.shape, np.int32 if space.dtype.kind == "i" else np.float32)] * 2)  # type: ignore
    flags = np.array([True, False])
    rows = ReplayRow(np.zeros((2, 1), np.float32), action, np.zeros(2, np.float32), ~flags & False, flags)  # type: ignore[arg-type]
    data = make_dataset(rows, Spaces(spaces.Box(-1, 1, (1,), np.float32), space, "other"))  # type: ignore[arg-type]
    with pytest.raises(kind, match=match):
        fitted_q_evaluation(zero, data, **SMALL)
