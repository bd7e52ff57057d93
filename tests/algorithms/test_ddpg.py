"""DDPG: its target against NumPy, probes. test_td3.py tests what it shares with TD3."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import make_ddpg
from jaxrl.algorithms import ddpg
from jaxrl.algorithms.common.critic_ensemble import ActorCriticPair
from jaxrl.algorithms.ddpg import DDPGConfig, DDPGHyperparams
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import deterministic_policy
from tests.helpers import probes
from tests.helpers.agents import Tiny, small
from tests.helpers.oracles.actor_critic import (
    SETTINGS,
    actor_critic_setup,
    case,
    check_q_probe,
    double,
    learn_q_probes,
    q_by_hand,
    values_of,
)
from tests.helpers.probe_set import PROBES

TINY = Tiny(
    settings={**SETTINGS, "model": partial(deterministic_policy, hidden_sizes=(8,))},
    value=values_of,
    one_gradient=("tests.helpers.probes:constant_reward?num_actions=1", {"batch_size": 64}),
    boxed=True,
)
small_ddpg = partial(small, "ddpg")


def test_targets_are_those_of_the_target_networks() -> None:
    """Without noise, and with one critic: the case's second."""
    own = actor_critic_setup(DDPGConfig(), "deterministic")
    run = jax.jit(
        lambda *given: ddpg.target(own, DDPGHyperparams(), ActorCriticPair(*given[:2]), given[2]), compiler_options=COMPILE_FAST
    )
    for seed in range(3):
        actor, _, critics, now = case("deterministic", seed)
        second = jax.tree.map(lambda x: x[1:2], critics)
        y = run(actor, second, now._replace(chosen=jnp.ones(1, bool)))
        for i in np.flatnonzero(now.batch.valid):
            x = double(now.batch.next_inputs.obs[i])
            value = q_by_hand(critics, x, np.tanh(x @ double(actor["mean"])))[1]
            assert float(y[i]) == pytest.approx(now.batch.reward[i] + now.batch.discount[i] * value, rel=1e-4, abs=1e-4)


@cache
def learnt() -> dict[str, Any]:
    rates = {"gamma": 0.9, "learning_rate": 0.02, "actor_learning_rate": 0.01, "learning_starts": 120}
    return learn_q_probes(partial(small_ddpg, exploration_noise=0.5, **rates))


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    check_q_probe(probe, *learnt()[probe])


def test_parts_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"DDPG needs a Box action space; .* has Discrete"):
        make_ddpg(probes.truncation())
    with pytest.raises(TypeError, match=r"make_ddpg\(\) got an unknown keyword 'target_noise'"):
        small_ddpg(probes.target_action(), target_noise=0.1)
