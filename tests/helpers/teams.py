"""Environments of several agents for tests."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import jaxrl
from jaxrl.types import Env, HostEnv, TimeStep
from tests.helpers.hosted import hosted

PURE, HOSTED = "tests.helpers.teams:mortal", "tests.helpers.teams:hosted_mortal"
CENTRAL, HOSTED_CENTRAL = f"{PURE}|central_state", "tests.helpers.teams:hosted_central"
"""Environments whose agents end one after another; with a state that all see."""


def copies(env: Env, number: int) -> Env:
    """Return an environment with this number of agents, each in a copy of ``env`` of its own. All copies draw the same."""

    def reset(key: Any, params: Any) -> Any:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), env.reset(key, params))

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        return jax.vmap(env.step, in_axes=(None, 0, 0, None))(key, state, action, params)

    return env._replace(reset=reset, step=step, num_agents=number, name=f"{number} copies of {env.name}")


def without_chance(env: Env, steps: int) -> Env:
    """Return an environment that always begins in the same state, and has episodes of at most this number of rows."""

    def reset(key: Any, params: Any) -> Any:
        return env.reset(jax.random.key(7), params)

    return env._replace(reset=reset, max_episode_steps=steps)


LIVES = (1, 3, 2)
"""Rows after which the agents of ``mortal`` end."""


def mortal(lives: tuple[int, ...] = LIVES, *, truncates: tuple[bool, ...] = (), beyond: float = 0.0) -> Env:
    """Return an environment whose agents end one after another. Agent i gets a reward of 10·i + t in row t ≥ 1, also after its
    end. Observations are (t, i, number of the episode).

    Args:
      truncates: whether an agent's end is a truncation; default: none.
      beyond: added to the observations and rewards of an agent after its end.
    """
    lives_, cut = jnp.array(lives), jnp.array(truncates or (False,) * len(lives))
    agents = jnp.arange(len(lives))

    def observed(t: Any, episode: Any) -> Any:
        return jnp.stack([jnp.full(len(lives), t), agents, jnp.full(len(lives), episode)], -1).astype(jnp.float32)

    def reset(key: Any, params: Any) -> Any:
        episode = jax.random.randint(key, (), 0, 1000)
        return (jnp.zeros((), jnp.int32), episode), observed(0, episode)

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        (t, episode), over = (state[0] + 1, state[1]), state[0] + 1 >= lives_
        more = jnp.where(t > lives_, beyond, 0.0)
        obs, reward = observed(t, episode) + more[:, None], (10 * agents + t).astype(jnp.float32) + more
        return (t, episode), TimeStep(obs, reward, over & ~cut, over & cut, {"time": jnp.full(len(lives), t)})

    like = jaxrl.make_env("CartPole-v1")
    assert isinstance(like, Env)
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    return Env(reset, step, space, spaces.Discrete(2), name="mortal", num_agents=len(lives))


def hosted_mortal() -> HostEnv:
    return hosted(mortal())


def hosted_central() -> HostEnv:
    return hosted(jaxrl.make_env(CENTRAL))


def wanderers(steps: int = 5) -> Env:
    """Return three Pendulums with episodes of equal length that begin at random, with a Box of actions."""
    env = jaxrl.make_env("Pendulum-v1")
    assert isinstance(env, Env)
    return copies(env._replace(max_episode_steps=steps), 3)


SIZES: dict[str, Any] = {"num_envs": 4, "rollout_length": 4, "anneal": False, "model": {"hidden_sizes": (8,)}}
DRAWS: dict[str, Any] = {**SIZES, "batch_size": 6, "replay_ratio": 6, "learning_starts": 48, "buffer_size": 1_200}
RECURRENT: dict[str, Any] = {"model": {"core_size": 8, "hidden_sizes": (8,)}, "sequence_length": 4}
JOINT: dict[str, dict[str, Any]] = {
    "qmix": {**DRAWS, **RECURRENT, "target_update_interval": 3},
    "maddpg": {**DRAWS, "critic": {"hidden_sizes": (8,)}},
    "coma": SIZES,
}


def joint(name: str, env: Any = CENTRAL, **settings: Any) -> Any:
    """Return a small agent of an algorithm that sees all agents of an environment together: a key of ``JOINT``."""
    return getattr(jaxrl, f"make_{name}")(env, **{**JOINT[name], **settings})
