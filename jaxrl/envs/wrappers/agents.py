"""Wrappers of environments with several agents."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.wrappers.base import map_observations, wrapper
from jaxrl.envs.wrappers.observations import flat_box
from jaxrl.spaces.entries import AGENT_KEY, PRIVILEGED_KEY, as_entries, entries_of, has_privileged_state
from jaxrl.types import Array, Env, PyTree


@wrapper
def agent_id(env: Env) -> Env:
    """Add ``agent_id``, Discrete(A), the number of each agent, so that shared parameters can act differently.

    An observation that is not a Dict becomes its entry ``observation``. Networks encode the number one-hot, and
    ``jaxrl.models.per_agent`` chooses parameters by it.
    """
    number = _agents_of(env)
    if AGENT_KEY in (entries := entries_of(env.observation_space)):
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

    return _with_entry(env, spaces.Dict({**entries_of(space), PRIVILEGED_KEY: state}), PRIVILEGED_KEY, of_all)


def _agents_of(env: Env) -> int:
    """Return the number of agents. Raise ValueError if there is one."""
    if not env.num_agents:
        raise ValueError("it is for environments of several agents, and this one has one")
    return env.num_agents


def _with_entry(env: Env, space: spaces.Dict, name: str, entry: Callable[[PyTree], Array]) -> Env:
    """Add an entry, a function of the observations of all agents, to these."""
    return map_observations(env, space, lambda obs: {**as_entries(obs), name: entry(obs)})
