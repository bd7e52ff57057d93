"""HL-Gauss in place of the squared error of PPO's and V-MPO's value: loss and gradient against NumPy, values of rollouts,
normalised values, probes, memory, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from jaxrl import make_ppo
from jaxrl.algorithms.ppo import PPOConfig, PPOHyperparams, ppo_loss, targets
from jaxrl.distributions import Categorical
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.metrics import to_floats
from jaxrl.models import ActorCriticOutput, actor_critic
from jaxrl.options import Clip, Drift, HLGauss, KLPenalty, Lagrangian
from jaxrl.types import Model
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_ACTOR_CRITIC, assert_close, small, small_ppo
from tests.helpers.loss_cases import FEATURES, loss_case
from tests.helpers.oracles.policy_gradient import slope
from tests.helpers.ppo_cases import one_rollout
from tests.helpers.probe_set import GAMMA

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
HEAD = HLGauss(num_bins=7, v_min=-2.0, v_max=3.0, sigma=0.8)
EDGES = np.linspace(-2.0, 3.0, 8)


def logits_model() -> Model:
    """Model whose policy and value have logits that are products with matrices."""

    def apply(params: Any, carry: Any, inputs: Any) -> Any:
        return carry, ActorCriticOutput(Categorical(inputs.obs @ params["w"]), inputs.obs @ params["v"])

    return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]


@pytest.mark.parametrize("surrogate", [Clip(), Drift()])
def test_the_loss_of_the_value_is_a_cross_entropy(surrogate: Any) -> None:
    """Times ``vf_coef``, over valid rows. Targets beyond the edges are clipped to them."""
    params, batch = loss_case(True)
    params = {"w": params["w"], "v": np.random.default_rng(1).normal(size=(FEATURES, 7)).astype(np.float32)}
    batch = batch._replace(target=3 * batch.target)
    config, hp = PPOConfig(value_head=HEAD, surrogate=surrogate), PPOHyperparams(ent_coef=0.0, vf_coef=0.7)
    loss = lambda params: ppo_loss(logits_model(), config, hp, params, batch, None)  # noqa: E731
    (total, logged), gradient = jit(jax.value_and_grad(loss, has_aux=True))(params)

    def by_hand(p: Any) -> float:
        log_p = scipy.special.log_softmax(np.asarray(batch.inputs.obs, np.float64) @ p["v"], -1)
        cdf = scipy.stats.norm(np.clip(batch.target, -2.0, 3.0)[:, None], 0.8 * 5 / 7).cdf(EDGES)
        mass = np.diff(cdf) / (cdf[:, -1:] - cdf[:, :1])
        return -(mass * log_p).sum(-1)[batch.valid].mean()

    assert (np.abs(batch.target - 0.5)[batch.valid] > 2.5).any()
    assert float(logged["losses/value_loss"]) == pytest.approx(by_hand(params), rel=1e-4)
    assert float(total) == pytest.approx(float(logged["losses/policy_loss"]) + 0.7 * by_hand(params), rel=1e-4)
    expected = slope(lambda p: 0.7 * by_hand({**params, **p}), {"v": params["v"]})
    assert_close(gradient["v"], np.float32(expected["v"]), atol=1e-3)


@pytest.mark.parametrize("model", [SMALL_ACTOR_CRITIC, pytest.param(RECURRENT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("normalize", [False, True])
def test_values_are_means_of_histograms(model: Any, normalize: bool) -> None:
    """With normalised values the edges are in their units."""
    agent = small_ppo(probes.memory(), model=model, value_head=HEAD, normalize_values=normalize)
    setup, state = agent.algorithm.update.args[0], jit(agent.init)(KEY())  # type: ignore[attr-defined]
    if normalize:
        moments = state.learner.statistics.values._replace(mean=jnp.float32(5.0), variance=jnp.float32(4.0))
        state = state._replace(learner=state.learner._replace(statistics=state.learner.statistics._replace(values=moments)))
    rollout = one_rollout(agent)(state)
    batch = jit(lambda learner: targets(setup.model, setup.config, learner, rollout, learner.hyperparams))(state.learner)
    logits = np.asarray(jit(setup.model.unroll)(state.learner.params, rollout.carry, rollout.inputs)[1].value, np.float64)
    assert logits.shape == (9, 4, 7)
    mean = (scipy.special.softmax(logits, -1) @ ((EDGES[1:] + EDGES[:-1]) / 2))[:-1]
    value = np.asarray(batch.value).T if jax.tree.leaves(rollout.carry) else np.asarray(batch.value).reshape(8, 4)
    np.testing.assert_allclose(value, 5 + 2 * mean if normalize else mean, rtol=1e-4, atol=1e-5)
    after, metrics = jit(agent.step)(state)
    assert np.isfinite(to_floats(metrics)["losses/value_loss"])
    assert int(after.learner.version) == 1


@cache
def learnt(algorithm: str) -> Any:
    """Return values of the observation before an action, where it is worth γ, and before the last, where it is worth 1."""
    settings: dict[str, Any] = {"num_envs": 16, "rollout_length": 4, "num_epochs": 4, "learning_rate": 0.02, "gamma": GAMMA}
    head = HLGauss(num_bins=21, v_min=-2.0, v_max=2.0)
    agent = small(algorithm, probes.discounting(), value_head=head, max_grad_norm=10.0, **settings)
    model = partial(actor_critic, hidden_sizes=(8,), num_values=21)(agent.env.observation_space, agent.env.action_space)

    def run(key: Any) -> Any:
        state, _ = jax.lax.scan(lambda state, _: agent.step(state), agent.init(key), None, 100)
        inputs = one_input(agent, state)
        return head.mean(model.apply(state.learner.params, (), inputs)[1].value)

    return jit(run)(KEY())


def one_input(agent: Any, state: Any) -> Any:
    seen = jax.tree.map(lambda x: x[:2], state.actor.input)
    return seen._replace(obs=jnp.float32([[0.0], [1.0]]))


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("vmpo", marks=pytest.mark.slow)])
def test_probe_of_discounting(algorithm: str) -> None:
    np.testing.assert_allclose(learnt(algorithm), [GAMMA, 1.0], atol=0.05)


# ----------------------------------------------------------------------------------------------------------- invalid arguments


def test_the_head_is_in_a_spec_only_if_it_is_asked_for() -> None:
    assert "value_head" not in small_ppo(probes.memory()).spec["settings"]
    stored = small_ppo(probes.memory(), value_head="hl_gauss", **{"value_head.v_max": 50}).spec["settings"]["value_head"]
    assert stored == {"name": "hl_gauss", "num_bins": 51, "v_min": -10.0, "v_max": 50.0, "sigma": 0.75}


def test_a_clipped_error_and_a_head_exclude_each_other() -> None:
    message = r"Clip\(value_loss=True\) clips a squared error, and value_head='hl_gauss' has none: leave one out"
    with pytest.raises(ValueError, match=message):
        small_ppo(probes.memory(), value_head=HEAD, surrogate=Clip(value_loss=True))
    with pytest.raises(ValueError, match=r"value_head='hl_gauss' has no value of costs, as constraint=… needs: leave one out"):
        small_ppo("jaxrl:Hazards", value_head=HEAD, constraint=Lagrangian())
    small_ppo(probes.memory(), value_head=HEAD, surrogate=KLPenalty())
    with pytest.raises(ValueError, match="v_min=3 must be below v_max=1"):
        small_ppo(probes.memory(), value_head={"name": "hl_gauss", "v_min": 3, "v_max": 1})


def test_a_network_must_have_the_outputs_of_the_head() -> None:
    def one_value(observation_space: Any, action_space: Any) -> Model:
        return actor_critic(observation_space, action_space, hidden_sizes=(8,))

    with pytest.raises(TypeError, match=r"must give an ActorCriticOutput\(policy, value f32\[batch, 7\]\); for a batch of one"):
        make_ppo(probes.memory(), model=one_value, value_head=HEAD)
    with pytest.raises(TypeError, match=r"must give an ActorCriticOutput\(policy, value f32\[batch\]\); for a batch of one"):
        make_ppo(probes.memory(), model={"num_values": 7})
