"""Helpers for tests of algorithms with a policy and an ensemble of critics: small networks, probes, and a case for the losses.

The case has linear networks, which are easy to compute in NumPy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup, action_values
from jaxrl.algorithms.common.critics.network_state import network_variables
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import action_value
from jaxrl.replay.transitions import Transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.autoreset import first_input
from jaxrl.training import run_iterations
from jaxrl.types import Agent, Model, StepInput
from tests.helpers.probe_set import PROBES, SEEN, probe_set

SMALL_CRITIC = partial(action_value, hidden_sizes=(8,))
SETTINGS = {
    "num_envs": 4,
    "rollout_length": 2,
    "batch_size": 32,
    "replay_ratio": 8,
    "buffer_size": 240,
    "learning_starts": 64,
    "tau": 0.1,
    "anneal": False,
    "critic": SMALL_CRITIC,
}
"""Settings of a small agent with two updates per iteration."""


def values_of(agent: Agent, learner: Any, inputs: StepInput, action: Any = None) -> Any:
    """Return the first critic's value of an action in [−1, 1] (default: 0), or of all Discrete actions."""
    setup = agent.algorithm.learn.args[-1]  # type: ignore[union-attr]
    if isinstance(agent.env.action_space, spaces.Box):
        action = jnp.zeros((len(inputs.is_first), *agent.env.action_space.shape)) + (0.0 if action is None else action)
    return action_values(setup, network_variables(learner).critic, inputs, action)[0]


def learn_q_probes(make: Any, iterations: int = 300, value: Any = values_of) -> dict[str, Any]:
    """Train an agent on each of ``PROBES``. Return values [3, 2] and greedy actions at the observations −1, 0 and 1.

    The values are of the actions ∓½ of a Box, or of both Discrete actions.

    Args:
      make: Environment with Discrete actions -> agent. On a Box, the two actions are its halves.
      value: as ``values_of``.
    """
    agent = make(probe_set(*(make() for make, _ in PROBES.values())))
    inputs = first_input(jnp.asarray(SEEN), agent.env.action_space, 3)

    def run(which: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(jax.random.key(0), None, which), iterations)
        policy = agent.algorithm.policy(state.learner)
        arguments = (policy, agent.algorithm.initial_carry(3), inputs, jnp.arange(3), jax.random.key(0))
        greedy = agent.algorithm.act(*arguments, explore=False)[1]
        if isinstance(agent.env.action_space, spaces.Discrete):
            return value(agent, state.learner, inputs), greedy
        values = jnp.stack([value(agent, state.learner, inputs, a) for a in (-0.5, 0.5)], -1)
        return values, greedy[..., 0] > (agent.env.action_space.low + agent.env.action_space.high) / 2  # type: ignore[attr-defined]

    found = jax.jit(jax.vmap(run), compiler_options=COMPILE_FAST)(jnp.arange(len(PROBES)))
    return {name: tuple(np.asarray(x[i]) for x in found) for i, name in enumerate(PROBES)}


def check_q_probe(name: str, values: np.ndarray, greedy: np.ndarray) -> None:
    """Check the learnt values. In a Box, values are smooth in the action, so only the order of differing values is checked."""
    if name == "constant reward":
        np.testing.assert_allclose(values[1], [1.0, 1.0], atol=0.1)
    elif name == "discounting":
        np.testing.assert_allclose(values[1:], [[0.9, 0.9], [1.0, 1.0]], atol=0.1)
    elif name == "observed value":
        np.testing.assert_allclose(values[[0, 2]], [[-1.0, -1.0], [1.0, 1.0]], atol=0.2)
    elif name == "action choice":
        assert greedy[1] == 1 and values[1, 1] > 0.5 and values[1, 0] < -0.5
    else:
        assert greedy[[0, 2]].tolist() == [0, 1]
        assert values[0, 0] > 0.3 > -0.3 > values[0, 1] and values[2, 1] > 0.3 > -0.3 > values[2, 0]


N, FEATURES, D, ACTIONS, CRITICS = 10, 3, 2, 4, 3
OBSERVATIONS = spaces.Box(-9, 9, (FEATURES,), np.float32)
BOX = spaces.Box(-1, 1, (D,), np.float32)
REPLAY = uniform_replay(8, 1, 1, before=1, after=1)


def model(apply: Any) -> Model:
    function = lambda params, carry, inputs, key=None: (carry, apply(params, inputs.obs))  # noqa: E731
    return Model(None, function, function, lambda batch: ())  # type: ignore[arg-type]


def actor_critic_setup(config: Any, policy: str) -> ActorCriticSetup[Any]:
    """Return the setup of a policy that is "squashed", "categorical" or "deterministic"."""
    actors = {
        "squashed": lambda p, obs: TanhNormal(obs @ p["mean"], obs @ p["log_std"]),
        "categorical": lambda p, obs: Categorical(obs @ p["logits"]),
        "deterministic": lambda p, obs: jnp.tanh(obs @ p["mean"]),
    }
    discrete = policy == "categorical"
    critic = model((lambda p, obs: obs @ p["x"]) if discrete else (lambda p, obs: q_value(p, *obs)))
    action_space = spaces.Discrete(ACTIONS) if discrete else BOX
    parts: dict[str, Any] = {"replay": REPLAY, "critic": critic, "critic_actions": action_space}
    return ActorCriticSetup(OBSERVATIONS, action_space, model(actors[policy]), config, **parts)


def q_value(p: Any, x: Any, a: Any) -> Any:
    return x @ p["x"] + a @ p["a"] + (a**2) @ p["a2"]


def case(policy: str, seed: int) -> tuple[Any, Any, Any, CriticBatch]:
    """Return parameters of the policy, the critics and the target critics, and the random batch of an update."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    discrete = policy == "categorical"
    actor = {"logits": normal(FEATURES, ACTIONS)} if discrete else {"mean": 0.5 * normal(FEATURES, D)}
    if policy == "squashed":
        actor["log_std"] = 0.3 * normal(FEATURES, D)

    def critics() -> Any:
        if discrete:
            return {"x": normal(CRITICS, FEATURES, ACTIONS)}
        return {"x": normal(CRITICS, FEATURES), "a": normal(CRITICS, D), "a2": normal(CRITICS, D)}

    action = rng.integers(ACTIONS, size=N).astype(np.int32) if discrete else np.tanh(normal(N, D))
    inputs, after = (first_input(normal(N, FEATURES), actor_critic_setup(None, policy).action_space, N) for _ in range(2))
    terminated, valid = rng.random((2, N)) < np.array([[0.3], [0.7]])
    discount = np.where(terminated, 0, rng.uniform(0.5, 1, N)).astype(np.float32)
    batch = Transitions(inputs, after, action, normal(N), discount, rng.uniform(0.2, 1, N).astype(np.float32), valid)
    noise = normal(2, N, 0 if discrete else D)
    chosen = np.array([True, False, True])
    return actor, critics(), critics(), CriticBatch(batch, noise, chosen, jax.random.key(seed))  # type: ignore[arg-type]


def double(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def squashed_by_hand(actor: Any, x: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute ``(action [D], log-probability)`` by the change of variables (Haarnoja et al. 2018, eq. 21)."""
    mean, log_std = x @ actor["mean"], x @ actor["log_std"]
    before = mean + np.exp(log_std) * noise
    density = np.exp(-0.5 * noise**2) / (np.exp(log_std) * np.sqrt(2 * np.pi)) / (1 - np.tanh(before) ** 2)
    return np.tanh(before), np.log(density).sum()


def q_by_hand(critics: Any, x: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Compute the critics' values of one row: [CRITICS]."""
    return np.array([q_value({name: double(w[i]) for name, w in critics.items()}, x, action) for i in range(CRITICS)])
