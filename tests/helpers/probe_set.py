"""Several probe environments as one, so that one compiled program can learn all of them under vmap.

Also the checks of actor-critic algorithms on each probe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.rollout.autoreset import first_input
from jaxrl.training import run_iterations
from jaxrl.types import Env
from tests.helpers import probes
from tests.helpers.agents import SMALL_ACTOR_CRITIC, small, to_numpy


def probe_set(*probes: Env) -> Env:
    """Return an environment that steps all ``probes`` together. ``params`` is the number of the probe that is observed."""

    def seen(which: Any, *trees: Any) -> Any:
        return jax.tree.map(lambda *x: jnp.stack(x)[which], *trees)

    def reset(key: Any, which: Any) -> Any:
        states, observations = zip(*(probe.reset(key, probe.params) for probe in probes), strict=True)
        return states, seen(which, *observations)

    def step(key: Any, states: Any, action: Any, which: Any) -> Any:
        results = [probe.step(key, state, action, probe.params) for probe, state in zip(probes, states, strict=True)]
        states, reached = zip(*results, strict=True)
        return states, seen(which, *reached)

    return probes[0]._replace(reset=reset, step=step, params=np.int32(0), name="probes")


SEEN = np.array([[-1.0], [0.0], [1.0]], np.float32)
GAMMA = 0.9


class Learnt(NamedTuple):
    """Outputs of a trained agent at each observation of ``SEEN``, or at given observations."""

    action: Any
    """The greedy action."""
    probability: Any
    """Probability of the greedy action."""
    value: Any
    least: Any
    """Smallest return of an episode in training."""


def learner_of(
    algorithm: str, env: Env, iterations: int, seen: Any = SEEN, train: Any = run_iterations, **settings: Any
) -> Callable[..., Learnt]:
    """Return (key, env_params) -> ``Learnt``, by an agent with 16 environments after ``iterations`` that ``train`` runs."""
    sizes = {"num_envs": 16, "rollout_length": 4, "gamma": GAMMA, "learning_rate": 0.02, "max_grad_norm": 10.0}
    agent = small(algorithm, env, **{**sizes, **settings})
    model = SMALL_ACTOR_CRITIC(env.observation_space, env.action_space)

    def run(key: Any, env_params: Any) -> Learnt:
        state, metrics = train(agent, agent.init(key, None, env_params), iterations)
        size = len(jax.tree.leaves(seen)[0])
        inputs = first_input(seen, env.action_space, size)
        policy = agent.algorithm.policy(state.learner)
        _, action, extras = agent.algorithm.act(policy, (), inputs, jnp.arange(size), key, explore=False)
        value = model.apply(state.learner.params, (), inputs)[1].value
        return Learnt(action, jnp.exp(extras["log_prob"]), value, metrics["charts/episodic_return_min"].value)

    return run


def _constant_reward(learnt: Learnt) -> None:
    assert learnt.value[1] == pytest.approx(1.0, abs=0.05)


def _discounting(learnt: Learnt) -> None:
    np.testing.assert_allclose(learnt.value[1:], [GAMMA, 1.0], atol=0.05)


def _observed_value(learnt: Learnt) -> None:
    np.testing.assert_allclose(learnt.value[[0, 2]], [-1.0, 1.0], atol=0.05)


def _action_choice(learnt: Learnt) -> None:
    assert learnt.action[1] == 1 and learnt.probability[1] > 0.9 and learnt.value[1] > 0.8


def _action_by_observation(learnt: Learnt) -> None:
    action, probability, value = (x[[0, 2]] for x in learnt[:3])
    assert action.tolist() == [0, 1] and (probability > 0.9).all() and (value > 0.8).all()


PROBES: dict[str, tuple[Callable[[], Env], Callable[[Learnt], None]]] = {
    "constant reward": (probes.constant_reward, _constant_reward),
    "discounting": (probes.discounting, _discounting),
    "observed value": (probes.observed_value, _observed_value),
    "action choice": (probes.action_choice, _action_choice),
    "action by observation": (probes.action_by_observation, _action_by_observation),
}
"""Name -> probe, and a check of the learnt values."""


def learn_probes(algorithm: str, iterations: int, **settings: Any) -> dict[str, Learnt]:
    """Learn all ``PROBES``, each by a separate agent, in one program."""
    run = learner_of(algorithm, probe_set(*(make() for make, _ in PROBES.values())), iterations, **settings)
    batch = jax.jit(jax.vmap(run, in_axes=(None, 0)), compiler_options=COMPILE_FAST)
    results = to_numpy(batch(jax.random.key(0), jnp.arange(len(PROBES))))
    return {name: Learnt(*(x[i] for x in results)) for i, name in enumerate(PROBES)}
