"""Value heads: losses and bootstrapping against NumPy, agents with each option, models of other shapes."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from gymnasium import spaces

import jaxrl
from jaxrl.algorithms.common.bootstrapping import Double, Greedy, Munchausen
from jaxrl.algorithms.common.q_heads import C51, IQN, QR, HLGauss, Scalar, normal_histogram, projected
from jaxrl.algorithms.dqn import DQNConfig, dqn_loss
from jaxrl.algorithms.rainbow import SETTINGS
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.exploration.options import Noisy, Spread
from jaxrl.metrics import to_floats
from jaxrl.models import QuantileOutput, q_network
from jaxrl.replay.transitions import Transitions
from jaxrl.rollout.autoreset import first_input
from jaxrl.settings.options import as_data, option_fields
from jaxrl.training import run_iterations
from jaxrl.types import Agent, Model
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, assert_bit_equal, assert_close, run_steps, small_dqn, tiny, to_numpy
from tests.helpers.oracles.policy_gradient import slope
from tests.helpers.oracles.q_learning import ACTIONS, FEATURES, N, loss_case
from tests.helpers.probe_set import probe_set

K = 5
"""Number of atoms or quantiles."""
KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
HEADS = {
    "scalar": Scalar(),
    "c51": C51(K, v_min=-2.0, v_max=2.5),
    "hl_gauss": HLGauss(K, v_min=-2.0, v_max=2.5),
    "qr": QR(K, huber_threshold=0.3),
    "iqn": IQN(K),
}
FRACTIONS = np.random.default_rng(9).uniform(size=(N, K)).astype(np.float32)


def linear_model(head: str) -> Model:
    """Model with outputs x·W, easy to compute in NumPy. For IQN the outputs are at ``FRACTIONS`` and do not depend on them."""

    def apply(params: Any, carry: Any, inputs: Any, key: Any = None) -> Any:
        x = inputs.obs @ params
        if head != "scalar":
            x = x.reshape(len(x), ACTIONS, K)
        return carry, QuantileOutput(x, jnp.asarray(FRACTIONS)) if head == "iqn" else x

    return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]


def case(head: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Transitions]:
    return loss_case(seed, ACTIONS if head == "scalar" else ACTIONS * K)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


SUPPORT = np.linspace(-2.0, 2.5, K)
EDGES = np.linspace(-2.0, 2.5, K + 1)


def outputs(head: str, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    y = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    return y if head == "scalar" else y.reshape(len(y), ACTIONS, K)


def q_values(head: str, y: np.ndarray) -> np.ndarray:
    means = {
        "scalar": lambda: y,
        "c51": lambda: softmax(y) @ SUPPORT,
        "hl_gauss": lambda: softmax(y) @ ((EDGES[1:] + EDGES[:-1]) / 2),
    }
    return means.get(head, lambda: y.mean(-1))()


def returns_of_actions(head: str, y: np.ndarray) -> np.ndarray:
    """Return what may be averaged over actions."""
    return softmax(y) if head == "c51" else q_values(head, y) if head == "hl_gauss" else y


def shared_by_hand(probabilities: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """Project a distribution onto the atoms, one by one (Bellemare et al. 2017, algorithm 1)."""
    m, delta = np.zeros(K), SUPPORT[1] - SUPPORT[0]
    for p, z in zip(probabilities, returns, strict=True):
        b = (np.clip(z, SUPPORT[0], SUPPORT[-1]) - SUPPORT[0]) / delta
        low = min(int(np.floor(b)), K - 2)
        m[low] += p * (low + 1 - b)
        m[low + 1] += p * (b - low)
    return m


def row_loss(
    head: str, y: np.ndarray, beyond: np.ndarray, reward: float, discount: float, fractions: np.ndarray, threshold: float
) -> float:
    """Compute the loss of a row from the network's output for the action and the target network's output for the next row."""
    if head == "scalar":
        return float(0.5 * (y - reward - discount * beyond) ** 2)
    if head == "c51":
        return float(-shared_by_hand(beyond, reward + discount * SUPPORT) @ np.log(softmax(y)))
    if head == "hl_gauss":
        target = scipy.stats.norm(np.clip(reward + discount * beyond, -2.0, 2.5), 0.75 * 0.9)
        mass = target.cdf(EDGES)
        return float(-(np.diff(mass) / (mass[-1] - mass[0])) @ np.log(softmax(y)))
    total = 0.0
    for theta, tau in zip(y, fractions, strict=True):
        for z in reward + discount * beyond:
            u = z - theta
            huber = 0.5 * u**2 if abs(u) < threshold else threshold * (abs(u) - 0.5 * threshold)
            total += abs(tau - (u < 0)) * huber / K
    return total


def by_hand(head: str, config: DQNConfig, params: dict[str, Any], w: Any, target: Any, batch: Transitions) -> float:
    """Compute the loss of ``params`` with targets from ``w`` and the target network."""
    after = np.asarray(batch.next_inputs.obs)
    mine, theirs, chooser = (
        outputs(head, p, x)
        for p, x in ((params["w"], batch.inputs.obs), (target, after), (w if config.bootstrap == Double() else target, after))
    )
    per_action_return = returns_of_actions(head, theirs)
    soft, total = config.bootstrap if isinstance(config.bootstrap, Munchausen) else None, 0.0
    for i in np.flatnonzero(batch.valid):
        reward, discount = float(batch.reward[i]), float(batch.discount[i])
        if soft:
            tau = soft.temperature
            policy = softmax(q_values(head, theirs)[i] / tau)
            beyond = np.tensordot(policy, per_action_return[i], 1)
            now = softmax(q_values(head, outputs(head, target, batch.inputs.obs))[i] / tau)
            reward += soft.weight * max(tau * np.log(now[batch.action[i]]), -soft.clip)
            reward += discount * tau * -(policy * np.log(policy)).sum()
        else:
            beyond = per_action_return[i, np.argmax(q_values(head, chooser)[i])]
        fractions = FRACTIONS[i] if head == "iqn" else (np.arange(K) + 0.5) / K
        threshold = getattr(config.head, "huber_threshold", 1.0)
        total += float(batch.weight[i]) * row_loss(head, mine[i, batch.action[i]], beyond, reward, discount, fractions, threshold)
    return total / batch.valid.sum()


@cache
def loss_and_gradient(head: str, config: DQNConfig) -> Any:
    return jit(jax.value_and_grad(partial(dqn_loss, linear_model(head), config, axis_name=None), has_aux=True))


SOFT = Munchausen(weight=0.8, temperature=0.5, clip=0.7)
LOOKS = {"greedy": Greedy(), "double": Double(), "soft": SOFT}
CASES = [("scalar", "soft"), *((head, look) for head in HEADS if head != "scalar" for look in LOOKS)]
"""Cases of heads and bootstrapping. The other cases of the scalar head are in tests/algorithms/test_dqn_loss.py."""


@pytest.mark.parametrize(("head", "look"), CASES)
def test_loss_and_gradient_are_the_papers(head: str, look: str) -> None:
    config = DQNConfig(head=HEADS[head], bootstrap=LOOKS[look])
    w, target, batch = case(head)
    (loss, metrics), gradient = loss_and_gradient(head, config)(w, target, batch=batch)
    expected = lambda p: by_hand(head, config, p, w, target, batch)  # noqa: E731
    assert float(loss) == pytest.approx(expected({"w": w}), rel=1e-4)
    assert_close(gradient, np.float32(slope(expected, {"w": w})["w"]), atol=2e-3)
    q = q_values(head, outputs(head, w, batch.inputs.obs))[np.arange(N), batch.action]
    assert float(metrics["losses/q_values"]) == pytest.approx(q[batch.valid].mean(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_what_is_not_finite_after_an_end_counts_for_nothing(head: str) -> None:
    w, target, batch = case(head)
    broken = np.where(batch.discount[:, None] == 0, np.nan, batch.next_inputs.obs).astype(np.float32)
    assert np.isnan(broken).any()
    for look in (Double(), SOFT):
        run = partial(loss_and_gradient(head, DQNConfig(head=HEADS[head], bootstrap=look)), w, target)
        assert_bit_equal(run(batch=batch), run(batch=batch._replace(next_inputs=batch.next_inputs._replace(obs=broken))))


def test_a_projection_shares_out_what_is_between_atoms() -> None:
    rng = np.random.default_rng(0)
    probabilities, returns = softmax(rng.normal(size=(6, K))), rng.uniform(-4, 4, (6, K))
    returns[0], returns[1] = SUPPORT, SUPPORT[-1] + 1  # on the atoms, and beyond the last one
    mine = np.asarray(projected(*(jnp.asarray(x, jnp.float32) for x in (probabilities, returns, SUPPORT))))
    expected = [shared_by_hand(p, z) for p, z in zip(probabilities, returns, strict=True)]
    np.testing.assert_allclose(mine, expected, atol=1e-6)
    np.testing.assert_allclose(mine[1], np.eye(K)[-1], atol=1e-6)
    np.testing.assert_allclose(mine.sum(-1), 1, atol=1e-6)


def test_the_mean_of_a_histogram_is_its_value() -> None:
    """Within the edges up to a thousandth, with a deviation of 0.75 bins; beyond them, targets are clipped."""
    head = HLGauss(num_bins=51, v_min=-10.0, v_max=10.0)
    edges = np.linspace(-10, 10, 52)
    y = np.array([-8.0, -3.3, 0.0, 0.1, 7.77], np.float32)
    mass = np.asarray(normal_histogram(jnp.asarray(y), edges.astype(np.float32), 0.75 * (edges[1] - edges[0])))
    np.testing.assert_allclose(mass.sum(-1), 1, rtol=1e-5)
    values = head.functions.values(jnp.log(jnp.asarray(mass) + 1e-12), jnp.zeros(5))
    np.testing.assert_allclose(values, y, atol=1e-3)
    beyond = normal_histogram(jnp.array([10.0, 99.0]), edges.astype(np.float32), 0.3)
    several = normal_histogram(jnp.asarray(y)[:4].reshape(2, 2), edges.astype(np.float32), 0.75 * (edges[1] - edges[0]))
    np.testing.assert_array_equal(several.reshape(4, -1), mass[:4])
    assert_bit_equal(beyond[0], beyond[1])
    assert float(beyond[1, -1]) > 0.7


@pytest.mark.parametrize("head", [name for name in HEADS if name != "hl_gauss"])
def test_how_much_there_was_to_learn(head: str) -> None:
    """The error is |δ|; for C51 a divergence, which is 0 at the optimum; for quantiles the mean over all pairs."""
    loss, (w, _, batch) = HEADS[head].functions.loss, case(head)
    mine = linear_model(head).apply(w, (), batch.inputs)[1]
    said = outputs(head, w, batch.inputs.obs)[np.arange(N), batch.action]
    now = batch._replace(reward=np.zeros(N, np.float32), discount=np.ones(N, np.float32))
    rng = np.random.default_rng(1)
    same, other = (softmax(said), softmax(rng.normal(size=said.shape))) if head == "c51" else (said, rng.normal(size=said.shape))
    _, nothing = loss(mine, now, jnp.asarray(same, jnp.float32))
    _, errors = loss(mine, now, jnp.asarray(other, jnp.float32))
    if head == "c51":
        np.testing.assert_allclose(nothing, 0, atol=1e-5)
        np.testing.assert_allclose(errors, (other * np.log(other / same)).sum(-1), rtol=1e-3, atol=1e-5)
    else:
        pairs = said.reshape(N, -1, 1) - other.reshape(N, 1, -1)
        np.testing.assert_allclose(errors, np.abs(pairs).mean((1, 2)), rtol=1e-4)
        assert head != "scalar" or not np.abs(nothing).max() > 1e-5


def test_how_far_a_histogram_was_from_its_target() -> None:
    w, _, batch = case("hl_gauss")
    mine = linear_model("hl_gauss").apply(w, (), batch.inputs)[1]
    values = q_values("hl_gauss", outputs("hl_gauss", w, batch.inputs.obs))[np.arange(N), batch.action]
    now = batch._replace(reward=np.zeros(N, np.float32), discount=np.ones(N, np.float32))
    _, errors = HEADS["hl_gauss"].functions.loss(mine, now, jnp.full(N, 0.3))
    np.testing.assert_allclose(errors, np.abs(values - 0.3), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------- agents


AGENTS: dict[str, dict[str, Any]] = {
    "c51": {"head": C51(num_atoms=11, v_min=-3, v_max=3), "model": {"hidden_sizes": (8,), "dueling": True}},
    "hl_gauss": {"head": HLGauss(num_bins=21, v_min=-3, v_max=3)},
    "qr": {"head": QR(num_quantiles=4), "noise": Noisy(), "epsilon_start": 0.5},
    "iqn": {"head": IQN(num_quantiles=4), "bootstrap": Munchausen(weight=0.9)},
}
"""Settings that cover all options with one program per head."""
VALUES = {"c51": -1.0, "hl_gauss": -1.0, "qr": -1.0, "iqn": -1.9}
"""Value of the wrong action: the log-policy of an action that is never taken counts −1, times 0.9."""


def agent_of(head: str, env: Any, **settings: Any) -> Agent:
    return small_dqn(env, epsilon_end=0.5, exploration=Spread(exponent=1.0), **AGENTS[head], **settings)


@pytest.mark.slow
@pytest.mark.parametrize("head", AGENTS)
def test_an_agent_learns_values_and_actions(head: str) -> None:
    env = probe_set(probes.discounting(), probes.action_by_observation())
    agent = agent_of(head, env, gamma=0.9, learning_rate=0.02, target_update_interval=10, learning_starts=120, adam_eps=1e-3)

    def run(which: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(KEY(), None, which), 400)
        inputs = first_input(jnp.array([[-1.0], [0.0], [1.0]]), env.action_space, 3)
        policy, setup = agent.algorithm.policy(state.learner), agent.algorithm.learn.args[0]  # type: ignore[union-attr]
        _, action, _ = agent.algorithm.act(policy, (), inputs, jnp.arange(3), KEY(), explore=False)
        outputs = setup.model.apply(state.learner.params, (), inputs)[1]
        return setup.config.head.functions.values(outputs, inputs.obs), action

    values, action = to_numpy(jit(jax.vmap(run))(jnp.arange(2)))
    np.testing.assert_allclose(values[0].max(-1)[1:], [0.9, 1.0], atol=0.1)
    low = VALUES[head]
    np.testing.assert_allclose(values[1][[0, 2]], [[1.0, low], [low, 1.0]], atol=0.2)
    assert action[1][[0, 2]].tolist() == [0, 1]


@pytest.mark.slow
def test_noise_is_of_each_environment_and_there_is_none_in_evaluation() -> None:
    agent = small_dqn("CartPole-v1", noise=Noisy(sigma=5.0), epsilon_start=0, epsilon_end=0)
    algorithm = agent.algorithm
    learner = agent.algorithm.init(KEY(), jax.tree.map(jnp.float32, agent.hyperparams))
    inputs = first_input(jnp.ones((40, 4)), agent.env.action_space, 40)
    act = jit(partial(algorithm.act, algorithm.policy(learner), ()), static_argnames="explore")
    one, same = (np.asarray(act(inputs, jnp.arange(40), KEY(), explore=True)[1]) for _ in range(2))
    other = np.asarray(act(inputs, jnp.arange(40), jax.random.key(1), explore=True)[1])
    assert len({*one.tolist()}) == 2 and (one == same).all() and (one != other).any()
    part = jax.tree.map(lambda x: x[10:20], inputs)
    np.testing.assert_array_equal(act(part, jnp.arange(10, 20), KEY(), explore=True)[1], one[10:20])
    greedy = [np.asarray(act(inputs, jnp.arange(40), key, explore=False)[1]) for key in (KEY(), jax.random.key(1))]
    assert len({*greedy[0].tolist()}) == 1 and (greedy[0] == greedy[1]).all()


def test_epsilon_of_each_environment_is_ape_xs() -> None:
    """Horgan et al. 2018: ε^(1 + 7·i / (N − 1)), measured by counting actions that a Q-network of zeros would not choose."""
    agent = small_dqn("CartPole-v1", epsilon_start=0.4, epsilon_end=0.4, exploration=Spread(exponent=7.0))
    learner = agent.algorithm.init(KEY(), jax.tree.map(jnp.float32, agent.hyperparams))
    policy = agent.algorithm.policy(learner._replace(params=jax.tree.map(jnp.zeros_like, learner.params)))
    inputs = first_input(jnp.ones((4, 4)), agent.env.action_space, 4)
    act = lambda key: agent.algorithm.act(policy, (), inputs, jnp.arange(4), key, explore=True)[1]  # noqa: E731
    share = np.asarray(jit(jax.vmap(act))(jax.random.split(KEY(), 20_000))).mean(0)
    np.testing.assert_allclose(share, 0.5 * 0.4 ** (1 + 7 * np.arange(4) / 3), atol=0.01)


@pytest.mark.slow
def test_rainbow_is_dqn_with_all_of_it_but_what_is_given() -> None:
    mine = {"model": {"hidden_sizes": (8,)}, "head": C51(num_atoms=5), "learning_rate": 0.5}
    settings = {name: value for name, value in tiny("dqn").settings.items() if name != "n_step"}
    agent = jaxrl.make_rainbow(probes.truncation(), **{**settings, **mine})
    given, network = agent.spec["settings"], {"hidden_sizes": (8,), "dueling": True}
    assert agent.spec == small_dqn(probes.truncation(), **{**SETTINGS, **mine, "model": network}).spec
    assert (given["head"]["num_atoms"], given["n_step"], given["learning_rate"]) == (5, 3, 0.5)
    assert given["noise"] == as_data(Noisy()) and given["replay"]["exponent"] == 0.5 and "bootstrap" not in given  # double
    before = agent.init(KEY())
    after, metrics = run_steps(agent, before, 2)
    assert all(value is None or np.isfinite(value) for value in to_floats(metrics).values())
    sigma = lambda state: np.asarray(state.learner.params["params"]["q"]["kernel_sigma"])  # noqa: E731
    assert (sigma(after) != sigma(before)).any() and to_floats(metrics)["charts/epsilon"] == 0
    learnt = [np.asarray(x).ravel() for x in (before.learner.replay.levels[-1], after.learner.replay.levels[-1])]
    assert not np.array_equal(*learnt)  # by the divergences of the drawn rows


def test_agents_of_before_have_the_same_spec() -> None:
    options = {"head", "bootstrap", "exploration", "noise", "replay", "hindsight"}
    assert options <= {*option_fields(DQNConfig)} and not options & {*small_dqn("CartPole-v1").spec["settings"]}


def test_a_soft_agent_keeps_to_the_mask_beyond() -> None:
    """Forbidden actions have no weight: if only one action is allowed, the entropy is 0."""
    space = spaces.Dict({"x": spaces.Box(-1, 1, (FEATURES,), np.float32), "action_mask": spaces.MultiBinary(ACTIONS)})
    config, rng = DQNConfig(head=QR(K, huber_threshold=0.3), bootstrap=Munchausen(0.5)), np.random.default_rng(0)
    model = config.network(q_network)(space, spaces.Discrete(ACTIONS), hidden_sizes=(8,))  # type: ignore[call-arg]
    x, allowed = rng.normal(size=(N, FEATURES)).astype(np.float32), rng.integers(ACTIONS, size=N)
    obs = {"x": jnp.asarray(x), "action_mask": jax.nn.one_hot(allowed, ACTIONS, dtype=jnp.int8)}
    inputs = first_input(obs, spaces.Discrete(ACTIONS), N)
    params = jit(model.init)(KEY(), inputs)
    ones = jnp.ones(N)
    batch = Transitions(inputs, inputs, jnp.asarray(allowed), ones, 0.9 * ones, ones, ones > 0)
    theta = np.asarray(model.apply(params, (), inputs)[1])[np.arange(N), allowed]
    loss, _ = jit(lambda p, b: dqn_loss(model, config, p, p, b, None))(params, batch)
    fractions = (np.arange(K) + 0.5) / K
    expected = np.mean([row_loss("qr", z, z, 1.0, 0.9, fractions, 0.3) for z in theta])
    assert float(loss) == pytest.approx(expected, rel=1e-4)


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("head", "wanted"),
    [("c51", r"numbers f32\[batch, 2, 51\]"), ("iqn", r"a QuantileOutput\(f32\[batch, 2, 32\], f32\[batch, 32\]\)")],
)
def test_models_of_the_users_that_give_something_else(head: str, wanted: str) -> None:
    with pytest.raises(TypeError, match=rf"^model=.* must give {wanted} for head='{head}'; for a batch of one it gives"):
        small_dqn("CartPole-v1", head=head, model=lambda o, a: q_network(o, a))
    with pytest.raises(TypeError, match="must be memoryless"):
        small_dqn(probes.truncation(), head="scalar", model=RECURRENT)


@pytest.mark.slow
def test_arguments_of_the_network_go_with_all_heads() -> None:
    network = {"hidden_sizes": (8,), "layer_norm": True, "dueling": True}
    agent = small_dqn("CartPole-v1", head=QR(num_quantiles=3), model=network)
    state, _ = run_steps(agent, agent.init(KEY()), 1)
    assert state.learner.params["params"]["value"]["bias"].shape == (3,)
    plain = jax.eval_shape(small_dqn("CartPole-v1", model=network).init, KEY()).learner.params
    assert plain["params"]["value"]["bias"].shape == (1,)
    with pytest.raises(ValueError, match="core='gru': value_network has no core"):
        small_dqn("CartPole-v1", head=QR(), model={"core": "gru"})
    with pytest.raises(ValueError, match="core='gru' and dueling=True are mutually exclusive: leave one out"):
        small_dqn("CartPole-v1", model={"dueling": True, "core": "gru"})


def test_noise_of_a_custom_model_is_its_own() -> None:
    """The model gets keys; its noise has no σ₀ of jaxrl."""
    assert (
        small_dqn("CartPole-v1", noise=Noisy(), model=lambda o, a: q_network(o, a)).spec["settings"]["noise"]["name"] == "noisy"
    )
    with pytest.raises(ValueError, match=r"sigma=0\.1 has no effect with a custom model, which defines its layers itself"):
        small_dqn("CartPole-v1", noise=Noisy(sigma=0.1), model=lambda o, a: q_network(o, a))
