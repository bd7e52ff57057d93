"""What a network says: a policy with its value, and actions that a mask forbids."""

from __future__ import annotations

import math
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.distributions import MASKED, Categorical, Normal
from jaxrl.models.encoders import split_mask
from jaxrl.models.initialisers import dense
from jaxrl.types import Array, PyTree


class ActorCriticOutput(NamedTuple):
    """What a PPO-like rule needs of a model."""

    policy: Categorical | Normal
    """Over actions in model units: a bounded Box is [−1, 1] here, the rule scales to the environment's bounds."""
    value: Array
    """f32[...]"""


class PolicyHead(nn.Module):
    """Logits for a Discrete space; mean and a state-independent log_std (from 0) for a Box."""

    action_space: spaces.Space

    @nn.compact
    def __call__(self, x: Array, obs: PyTree) -> Categorical | Normal:
        if isinstance(self.action_space, spaces.Discrete):
            return Categorical(masked(dense(int(self.action_space.n), 0.01, "logits")(x), obs))
        size = math.prod(self.action_space.shape or ())
        mean = dense(size, 0.01, "mean")(x)
        log_std = self.param("log_std", nn.initializers.zeros, (size,))
        return Normal(mean, jnp.broadcast_to(log_std, mean.shape))


def masked(logits: Array, obs: PyTree) -> Array:
    mask = split_mask(obs)[1]
    return logits if mask is None else jnp.where(mask.astype(bool), logits, MASKED)
