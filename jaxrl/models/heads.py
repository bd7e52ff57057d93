"""Output heads: policy, value, action masking."""

from __future__ import annotations

import math
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.distributions import MASKED, Categorical, MultiCategorical, Normal, TanhNormal
from jaxrl.models.encoders import split_mask
from jaxrl.models.initialisers import dense
from jaxrl.settings.loadable import component
from jaxrl.spaces.action_masks import MASK_KEY, flat_mask, some_allowed
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Array, PyTree


@component("value")
class ActorCriticOutput(NamedTuple):
    """Output of an actor-critic, as PPO and similar algorithms need it."""

    policy: Categorical | MultiCategorical | Normal | TanhNormal
    """Distribution of actions in model units: a bounded Box is [−1, 1], and the algorithm scales to the environment's bounds."""
    value: Array
    """f32[...]"""


@component("value")
class PolicyHead(nn.Module):
    """Policy head: logits for a Discrete or MultiDiscrete space; mean and a state-independent log_std for a Box."""

    action_space: spaces.Space
    squash: bool = False
    """Use a ``TanhNormal`` for a Box, whose samples are within the bounds, instead of a ``Normal``."""
    initial_std: float = 1.0

    @nn.compact
    def __call__(self, x: Array, obs: PyTree) -> Categorical | MultiCategorical | Normal | TanhNormal:
        if isinstance(self.action_space, spaces.Discrete):
            return Categorical(masked(dense(int(self.action_space.n), 0.01, "logits")(x), obs))
        if isinstance(self.action_space, spaces.MultiDiscrete):
            nvec = self.action_space.nvec.ravel().tolist()
            return MultiCategorical.from_flat(masked(dense(sum(nvec), 0.01, "logits")(x), obs), nvec)
        size = math.prod(self.action_space.shape or ())
        mean = dense(size, 0.01, "mean")(x)
        start = nn.initializers.constant(math.log(self.initial_std))
        log_std = jnp.broadcast_to(self.param("log_std", start, (size,)), mean.shape)
        return TanhNormal(mean, log_std) if self.squash else Normal(mean, log_std)


class ActionHead(nn.Module):
    """Action head: logits for a Discrete or MultiDiscrete space, an action in model units for a Box."""

    action_space: spaces.Space
    squash: bool

    @nn.compact
    def __call__(self, x: Array, obs: PyTree) -> Categorical | MultiCategorical | Array:
        if isinstance(self.action_space, spaces.Discrete):
            return Categorical(masked(dense(int(self.action_space.n), 0.01, "logits")(x), obs))
        if isinstance(self.action_space, spaces.MultiDiscrete):
            nvec = self.action_space.nvec.ravel().tolist()
            return MultiCategorical.from_flat(masked(dense(sum(nvec), 0.01, "logits")(x), obs), nvec)
        action = dense(math.prod(self.action_space.shape or ()), 0.01, "action")(x)
        return jnp.tanh(action) if self.squash else action


def check_initial_std(initial_std: float, action_space: spaces.Space) -> None:
    """Raise ValueError if the keyword is given for actions that have no standard deviation."""
    if initial_std != 1 and not isinstance(action_space, spaces.Box):
        raise ValueError(f"initial_std={initial_std:g} has no effect on actions of {action_space}: it is for a Box; leave it out")


def masked(logits: Array, obs: PyTree) -> Array:
    """Set ``logits`` (or Q-values), f32[..., n], to ``MASKED`` where the observation's ``action_mask`` is false.

    A mask that is false for all actions is ignored.

    Raises:
      ValueError: the mask has another shape.
    """
    mask = split_mask(obs)[1]
    if mask is None:
        return logits
    allowed = flat_mask(mask)
    if allowed.shape != logits.shape:
        raise ValueError(
            f"{MASK_KEY} is {show_shapes(mask)}, but the actions are {show_shapes(logits)}: the mask must have one entry per "
            "action (for a MultiDiscrete space, the masks of its dimensions concatenated, or a Tuple of one mask per dimension)"
        )
    return jnp.where(some_allowed(allowed.astype(bool)), logits, MASKED)
