"""Action masks, for NumPy and JAX arrays alike. Like ``jaxrl.rollout.autoreset``, this module does not import jax."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import tree
from gymnasium import spaces

from jaxrl.types import Array, PyTree

MASK_KEY = "action_mask"
"""Entry of a Dict observation with the allowed actions. It is applied to logits and Q-values, and never encoded.

[n] for ``Discrete(n)``. A MultiDiscrete space has one mask per dimension: a Tuple of masks, or their concatenation, one array
[Σ nvec].
"""


def flat_mask(mask: PyTree) -> Array:
    """Return an ``action_mask`` as one array, [..., Σ nvec]."""
    parts = tree.flatten(mask)
    return parts[0] if len(parts) == 1 else parts[0].__array_namespace__().concatenate(parts, -1)


def some_allowed(mask: Array) -> Array:
    """Replace a mask, bool[..., n], by all True where it forbids every action.

    The last observation of an episode may have such a mask. If the episode was truncated, its value is then that of the best
    action.
    """
    return mask | ~mask.any(-1, keepdims=True)


def choices(obs: PyTree, action_space: spaces.Space) -> list[Array]:
    """Return the masks of an observation, bool[..., n] for each dimension of the action space.

    The list is empty if the observation has no mask, or one that does not fit the space.
    """
    if not isinstance(obs, dict) or MASK_KEY not in obs:
        return []
    sizes = [int(action_space.n)] if isinstance(action_space, spaces.Discrete) else []
    if isinstance(action_space, spaces.MultiDiscrete):
        sizes = action_space.nvec.ravel().tolist()
    parts = tree.flatten(obs[MASK_KEY])
    if sizes and len(parts) == 1 and parts[0].shape[-1:] == (sum(sizes),):
        parts = parts[0].__array_namespace__().split(parts[0], np.cumsum(sizes)[:-1].tolist(), -1)
    return [part.astype(bool) for part in parts] if [part.shape[-1:] for part in parts] == [(n,) for n in sizes] else []


def nothing_allowed(obs: PyTree, action_space: spaces.Space) -> Array | None:
    """Return True where the mask forbids every action of at least one dimension, bool[...]; None if there is no mask."""
    parts = choices(obs, action_space)
    return ~functools.reduce(operator.and_, [part.any(-1) for part in parts]) if parts else None


def allowed(action: Any, obs: PyTree, action_space: spaces.Space) -> Any:
    """Map random actions to allowed ones, [..., *shape]: action a becomes the (a mod k)-th of the k allowed actions."""
    parts = choices(obs, action_space)
    if not parts:
        return action
    xp, flat = action.__array_namespace__(), action.reshape((*parts[0].shape[:-1], len(parts)))
    columns = []
    for i, part in enumerate(parts):
        first = xp.argsort(~part, axis=-1, stable=True)  # allowed actions first, each part in ascending order
        place = flat[..., i] % xp.maximum(part.sum(-1), 1)
        columns.append(xp.take_along_axis(first, place[..., None], -1))
    return xp.concatenate(columns, -1).reshape(action.shape).astype(action.dtype)


def is_allowed(action: Any, obs: PyTree, action_space: spaces.Space) -> Any:
    """Return whether the mask allows actions [..., *shape], as bool[...]; None if there is no mask."""
    parts = choices(obs, action_space)
    if not parts:
        return None
    xp, flat = action.__array_namespace__(), action.reshape((*parts[0].shape[:-1], len(parts)))
    of_each = [
        xp.take_along_axis(part, xp.clip(flat[..., i, None], 0, part.shape[-1] - 1), -1)[..., 0] for i, part in enumerate(parts)
    ]
    return functools.reduce(operator.and_, of_each)
