"""A2C: loss and gradient against NumPy, an update as applied gradient, probes, memory, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import make_a2c
from jaxrl.algorithms.a2c import A2CConfig, A2CHyperparams, a2c_loss
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import q_network
from jaxrl.optimize import clipped_rmsprop
from jaxrl.runtime.evaluation.evaluate import evaluate
from jaxrl.training import run_iterations
from jaxrl.types import Rollout
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_ACTOR_CRITIC, Tiny, assert_close, outputs_of, small
from tests.helpers.loss_cases import linear_model
from tests.helpers.oracles.policy_gradient import B, T, losses, rollout_case, slope, standardized, values
from tests.helpers.probe_set import PROBES, SEEN, Learnt, learn_probes, learner_of

TINY = Tiny(
    settings={"num_envs": 4, "rollout_length": 8, "anneal": False, "model": SMALL_ACTOR_CRITIC},
    value=lambda *given: outputs_of(*given).value,
    one_gradient=("CartPole-v1", {}),
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
small_a2c = partial(small, "a2c")
HP = A2CHyperparams(gamma=0.8, gae_lambda=0.7, ent_coef=0.3, vf_coef=0.6)


# ------------------------------------------------------------------------------------------------------------------------ loss


def advantages(rollout: Rollout, value: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Compute advantages (Schulman et al. 2016, eq. 16), row by row."""
    found = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            weight = 1.0
            for k in range(t, T):
                if not rollout.valid[k, b]:
                    break
                beyond = 0.0 if rollout.terminated[k, b] else gamma * value[k + 1, b]
                found[t, b] += weight * (rollout.reward[k, b] + beyond - value[k, b])
                if (rollout.terminated | rollout.truncated)[k, b]:
                    break
                weight *= gamma * lam
    return found


@cache
def loss_and_gradient(discrete: bool, normalize: bool) -> Any:
    loss = partial(a2c_loss, linear_model(discrete), A2CConfig(normalize_advantages=normalize), axis_name=None)
    return jit(jax.value_and_grad(lambda params, hp, rollout: loss(hp, params, rollout), has_aux=True))


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("lam, normalize", [(0.7, False), (1.0, True)])
def test_loss_and_gradient_are_the_papers(discrete: bool, lam: float, normalize: bool) -> None:
    hp = HP._replace(gae_lambda=lam)
    for seed in range(2):
        params, rollout = rollout_case(discrete, seed)
        (total, metrics), gradient = loss_and_gradient(discrete, normalize)(params, hp, rollout)
        value = values(params, rollout)
        advantage = advantages(rollout, value, hp.gamma, lam)
        weight = standardized(advantage, rollout.valid) if normalize else advantage
        # Advantages and targets are constants of the gradient.
        rest = (rollout, weight, advantage + value[:-1], rollout.valid, hp)
        found = {"total": float(total), **{name: float(x) for name, x in metrics.items()}}
        assert found == pytest.approx(losses(discrete, params, *rest), rel=1e-4, abs=1e-5)
        expected = slope(lambda p, rest=rest: losses(discrete, p, *rest)["total"], params)
        assert_close(gradient, jax.tree.map(np.float32, expected), atol=2e-4)


def test_with_lambda_1_a_target_is_all_rewards_to_the_rollouts_end() -> None:
    """The paper's n-step return, computed by hand in the environment whose episode does not end; n shrinks towards the end."""
    params, rollout = rollout_case(True)
    value = values(params, rollout)
    g = (advantages(rollout, value, 0.8, 1.0) + value[:-1])[:, 0]
    r, last = rollout.reward[:, 0], value[-1, 0]
    np.testing.assert_allclose(g[2], r[2] + 0.8 * r[3] + 0.64 * last, rtol=1e-6)
    np.testing.assert_allclose(g[0], r @ 0.8 ** np.arange(4) + 0.8**4 * last, rtol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, Learnt]:
    return learn_probes("a2c", 250)


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    PROBES[probe][1](learnt()[probe])


def test_probe_target_action() -> None:
    """A Box, with RMSProp."""
    run = learner_of("a2c", probes.target_action(), 250, ent_coef=0.0, gae_lambda=0.95, optimizer=clipped_rmsprop)
    assert float(jit(run)(KEY(), ()).action[1, 0]) == pytest.approx(3.0, abs=0.3)


@pytest.mark.slow
def test_probe_two_choices() -> None:
    """A MultiDiscrete space with a mask, which is always respected. At an end no action is allowed."""
    seen = {"sign": SEEN[[0, 2]], "action_mask": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], np.int8)}
    action, probability, value, least = jit(learner_of("a2c", probes.two_choices(), 250, seen))(KEY(), ())
    assert action.tolist() == [[1, 1], [1, 2]] and action.dtype == jnp.int32
    assert (probability > 0.8).all() and (value > 0.8).all() and float(least) >= 0


@pytest.mark.slow
def test_a_gru_remembers_a_cue() -> None:
    """A policy without memory has a mean return of 0."""
    agent = small_a2c(probes.memory(), model=RECURRENT, num_envs=32, rollout_length=20, learning_rate=1e-2, gamma=0.9)

    def run(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 400)
        return evaluate(agent, state, key, 256).episodic_return.mean()

    assert float(jit(run)(KEY())) > 0.95


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_length": 0}, "rollout_length=0 must be an integer >= 1"),
        ({"gae_lambda": 1.5}, r"gae_lambda=1.5 is not allowed: it must be a number in \[0, 1\]"),
        ({"vf_coef": -1}, "vf_coef=-1 is not allowed"),
        ({"schedules": {"clip_eps": lambda i: 1.0}}, r"schedules\['clip_eps'\] does not name a hyperparameter"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_a2c(probes.truncation(), **settings)


@pytest.mark.parametrize("name", ["num_minibatches", "clip_eps"])
def test_settings_of_ppo_alone_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"make_a2c\(\) got an unknown keyword '{name}'"):
        small_a2c(probes.truncation(), **{name: 1})


def test_models_that_are_none() -> None:
    for model in (5, q_network):
        with pytest.raises(TypeError, match=r"^model="):
            make_a2c(probes.truncation(), model=model)
    broken = RECURRENT(probes.memory().observation_space, probes.memory().action_space)._replace(unroll=lambda p, c, i: None)
    with pytest.raises(TypeError, match="unroll must return"):
        make_a2c(probes.memory(), model=broken)
