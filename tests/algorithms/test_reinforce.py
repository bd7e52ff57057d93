"""REINFORCE: loss and gradient against NumPy, rows used for learning, time limits, probes, invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import make_reinforce
from jaxrl.algorithms.reinforce import REINFORCEConfig, REINFORCEHyperparams, reinforce_loss
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import q_network
from jaxrl.types import Rollout
from tests.helpers import probes
from tests.helpers.agents import SMALL_ACTOR_CRITIC, Tiny, assert_bit_equal, assert_close, outputs_of, small
from tests.helpers.loss_cases import linear_model
from tests.helpers.oracles.policy_gradient import B, T, episodes, losses, rollout_case, slope, standardized, values
from tests.helpers.probe_set import PROBES, SEEN, Learnt, learn_probes, learner_of

TINY = Tiny(
    settings={"num_envs": 4, "rollout_length": 16, "anneal": False, "model": SMALL_ACTOR_CRITIC},
    value=lambda *given: outputs_of(*given).value,
    one_gradient=("CartPole-v1", {"rollout_length": 64}),  # episodes must end
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
"""Each program here runs for milliseconds, so compiling it is the cost."""
small_reinforce = partial(small, "reinforce")
HP = REINFORCEHyperparams(gamma=0.8, ent_coef=0.3, vf_coef=0.6)


# ------------------------------------------------------------------------------------------------------------------------ loss


def returns(rollout: Rollout, value: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute ``(returns, whether they are known)``, episode by episode."""
    found, known = np.zeros((T, B)), np.zeros((T, B), bool)
    for b, start, stop in episodes(rollout):
        last = stop - 1
        if not (rollout.terminated | rollout.truncated)[last, b]:
            continue
        for t in range(start, stop):
            rewards = rollout.reward[t:stop, b]
            found[t, b] = rewards @ gamma ** np.arange(len(rewards))
            if not rollout.terminated[last, b]:
                found[t, b] += gamma ** len(rewards) * value[stop, b]
            known[t, b] = True
    return found, known


@cache
def loss_and_gradient(discrete: bool, **config: bool) -> Any:
    loss = partial(reinforce_loss, linear_model(discrete), REINFORCEConfig(**config), HP, axis_name=None)
    return jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize("normalize", [False, True])
def test_loss_and_gradient_are_the_papers(discrete: bool, baseline: bool, normalize: bool) -> None:
    params, rollout = rollout_case(discrete)
    function = loss_and_gradient(discrete, baseline=baseline, normalize_advantages=normalize)
    (total, metrics), gradient = function(params, rollout)

    def shown(params: Any) -> Any:
        return params if baseline else {**params, "v": 0.0 * params["v"]}  # without values

    value = values(shown(params), rollout)
    target, known = returns(rollout, value, HP.gamma)
    weight = target - value[:-1]
    weight = standardized(weight, known) if normalize else weight
    rest = (rollout, weight, target, known, HP)
    expected = losses(discrete, shown(params), *rest) | {"charts/finished_rows": known.sum() / rollout.valid.sum()}
    if not baseline:
        del expected["losses/value_loss"], expected["losses/explained_variance"]
    found = {"total": float(total), **{name: float(x) for name, x in metrics.items()}}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    expected_gradient = slope(lambda p: losses(discrete, shown(p), *rest)["total"], params)
    assert_close(gradient, jax.tree.map(np.float32, expected_gradient), atol=2e-4)


def test_rows_of_unfinished_episodes_have_no_influence() -> None:
    """The first environment has no end, and the second none after its reset."""
    params, rollout = rollout_case(True)
    _, known = returns(rollout, values(params, rollout), 1.0)
    assert known.sum(0).tolist() == [0, 2, 3, 3]
    other = rollout._replace(
        action=np.where(known, rollout.action, 3 - rollout.action),
        reward=np.where(known, rollout.reward, np.float32(50)),
    )
    function = loss_and_gradient(True, baseline=True, normalize_advantages=False)
    assert_bit_equal(function(params, rollout), function(params, other))


def test_where_no_episode_ends_nothing_is_learnt() -> None:
    params, rollout = rollout_case(True)
    never = np.zeros((T, B), bool)
    for config in ({"normalize_advantages": True}, {"baseline": False}):
        endless = rollout._replace(terminated=never, truncated=never, valid=~never)
        (total, metrics), gradient = loss_and_gradient(True, **config)(params, endless)
        assert float(total) == 0 and not any(np.any(x) for x in jax.tree.leaves(gradient))
        assert float(metrics["charts/finished_rows"]) == 0


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, Learnt]:
    return learn_probes("reinforce", 250)


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    PROBES[probe][1](learnt()[probe])


def test_probe_target_action() -> None:
    """A Box."""
    run = learner_of("reinforce", probes.target_action(), 250)
    assert float(jit(run)(KEY(), ()).action[1, 0]) == pytest.approx(3.0, abs=0.3)


def test_probe_two_choices_without_a_baseline() -> None:
    """A MultiDiscrete space with a mask, which is always respected."""
    seen = {"sign": SEEN[[0, 2]], "action_mask": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], np.int8)}
    run = learner_of("reinforce", probes.two_choices(), 250, seen, baseline=False, ent_coef=0.01)
    action, probability, _, least = jit(run)(KEY(), ())
    assert action.tolist() == [[1, 1], [1, 2]] and action.dtype == jnp.int32
    assert (probability > 0.8).all() and float(least) >= 0


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_length": 0}, "rollout_length=0 must be an integer >= 1"),
        ({"gamma": 1.5}, r"gamma=1.5 is not allowed: it must be a number in \[0, 1\]"),
        ({"baseline": False, "vf_coef": 0.1}, "vf_coef=0.1 has no effect with baseline=False: leave it out"),
        (
            {"baseline": False, "schedules": {"vf_coef": lambda i: 1.0}},
            r"schedules\['vf_coef'\] has no effect with baseline=False",
        ),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_reinforce(probes.truncation(), **settings)


def test_an_agent_without_a_baseline_is_rebuilt_from_its_spec() -> None:
    """A spec and the command line give all settings, also those that have no effect at their defaults."""
    agent = small_reinforce("tests.helpers.probes:truncation", baseline=False)
    assert jaxrl.build(agent.spec).spec == agent.spec


def test_things_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match="baseline='yes' must be True or False"):
        small_reinforce(probes.truncation(), baseline="yes")
    with pytest.raises(TypeError, match=r"make_reinforce\(\) got an unknown keyword 'gae_lambda'"):
        small_reinforce(probes.truncation(), gae_lambda=0.9)
    with pytest.raises(TypeError, match=r"^model="):
        make_reinforce(probes.truncation(), model=q_network)
