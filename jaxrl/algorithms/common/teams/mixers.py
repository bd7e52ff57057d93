"""Mixers: networks that compute the value of a team from those of its agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.encoders import encode_space
from jaxrl.models.initialisers import dense, drawn_at_once
from jaxrl.types import Array, Key, PyTree


class Mixer(NamedTuple):
    """A function of the values of all agents that does not fall if one of them rises, so each agent can choose its best action
    alone."""

    init: Callable[[Key, PyTree], PyTree]
    """(key, state, unbatched) -> parameters; () without any."""
    apply: Callable[[PyTree, Array, PyTree], Array]
    """(parameters, values f32[..., A], state [..., ...]) -> f32[...]"""
    sees_state: bool = False
    """Without, the state is ()."""


SUM = Mixer(lambda key, state: (), lambda params, values, state: values.sum(-1))


class MonotonicMixer(nn.Module):
    """Network of one hidden layer whose weights are functions of the state, and not negative (Rashid et al. 2018, section 4)."""

    state_space: spaces.Space
    num_agents: int
    embedding_size: int
    hypernetwork_size: int

    @nn.compact
    def __call__(self, values: Array, state: PyTree) -> Array:
        seen, size = encode_space(self.state_space, state), self.embedding_size
        first = jnp.split(self.weights(seen, self.num_agents * size, "first"), self.num_agents, -1)
        # A loop over agents, because XLA's reduction of so short an axis takes several times as long on a CPU.
        mixed = sum(values[..., i, None] * weights for i, weights in enumerate(first))
        hidden = nn.elu(mixed + dense(size, 1.0, "first_bias")(seen))
        value = dense(1, 1.0, "value")(nn.relu(dense(size, name="value_hidden")(seen)))[..., 0]
        return (hidden * self.weights(seen, size, "last")).sum(-1) + value

    def weights(self, seen: Array, number: int, name: str) -> Array:
        """Return weights f32[..., number] for a state."""
        if self.hypernetwork_size:
            seen = nn.relu(dense(self.hypernetwork_size, name=f"{name}_hidden")(seen))
        return jnp.abs(dense(number, 1.0, name)(seen))


def monotonic_mixer(state_space: spaces.Space, num_agents: int, embedding_size: int, hypernetwork_size: int) -> Mixer:
    module = MonotonicMixer(state_space, num_agents, embedding_size, hypernetwork_size)
    init = lambda key, state: drawn_at_once(key, module.init(key, jnp.zeros(num_agents), state))  # noqa: E731
    apply: Any = module.apply
    return Mixer(init, apply, sees_state=True)
