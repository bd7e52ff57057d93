"""Wrappers of environments with several agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.wrappers.base import wrapper
from jaxrl.envs.wrappers.observations import flat_box
from jaxrl.spaces.privileged import PRIVILEGED_KEY, has_privileged_state
from jaxrl.spaces.trees import AGENT_KEY
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

OBSERVATION = "observation"


@wrapper
def agent_id(env: Env) -> Env:
    """Add ``agent_id``, Discrete(A), the number of each agent, so that shared parameters can act differently.

    An observation that is not a Dict becomes its entry ``observation``. Networks encode the number one-hot, and
    ``jaxrl.models.per_agent`` chooses parameters by it.
    """
    number = _agents_of(env)
    if AGENT_KEY in (entries := _entries(env.observation_space)):
        raise ValueError(f"its observations have an {AGENT_KEY!r} already")
    ids = jnp.arange(number, dtype=jnp.int32)
    return _with_entry(env, spaces.Dict({**entries, AGENT_KEY: spaces.Discrete(number)}), AGENT_KEY, lambda obs: ids)


@wrapper
def central_state(env: Env) -> Env:
    """Add ``privileged_state`` for critics: the observations of all agents, flattened and concatenated, f32[A · n].

    It is the same for all agents. An observation that is not a Dict becomes its entry ``observation``. Networks ignore the state
    unless their critic is asked to see it (``critic="privileged"``).
    """
    from jaxrl.models.encoders import encode_space  # brings flax

    space, number = env.observation_space, _agents_of(env)
    if has_privileged_state(space):
        raise ValueError(f"its observations have a {PRIVILEGED_KEY!r} already")
    view = flat_box(space)
    state = spaces.Box(np.tile(view.low, number), np.tile(view.high, number), dtype=np.float32)

    def of_all(obs: PyTree) -> Array:
        together: Array = encode_space(space, obs).reshape(-1)
        return jnp.broadcast_to(together, (number, *together.shape))

    return _with_entry(env, spaces.Dict({**_entries(space), PRIVILEGED_KEY: state}), PRIVILEGED_KEY, of_all)


def _agents_of(env: Env) -> int:
    """Return the number of agents. Raise ValueError if there is one."""
    if not env.num_agents:
        raise ValueError("it is for environments of several agents, and this one has one")
    return env.num_agents


def _entries(space: spaces.Space) -> dict[str, spaces.Space]:
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {OBSERVATION: space}


def _with_entry(env: Env, space: spaces.Dict, name: str, entry: Callable[[PyTree], Array]) -> Env:
    """Add an entry, a function of the observations of all agents, to these."""

    def seen(obs: PyTree) -> dict[str, Any]:
        own = obs if isinstance(obs, dict) else {OBSERVATION: obs}
        return {**own, name: entry(obs)}

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        env_state, obs = env.reset(key, params)
        return env_state, seen(obs)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        env_state, reached = env.step(key, env_state, action, params)
        return env_state, reached._replace(obs=seen(reached.obs))

    return env._replace(reset=reset, step=step, observation_space=space)
