"""Action masks: which actions an observation allows. For NumPy's arrays and JAX's alike; imports no jax, as
``jaxrl.rollout.autoreset``."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import tree
from gymnasium import spaces

from jaxrl.types import Array, PyTree

MASK_KEY = "action_mask"
"""The entry of a Dict observation that says which actions are allowed: applied to logits and Q-values, never encoded.

[n] for ``Discrete(n)``. For a MultiDiscrete space one mask per dimension: a Tuple of them, or one array [Σ nvec] with those of
one dimension after those of another.
"""


def flat_mask(mask: PyTree) -> Array:
    """An ``action_mask`` as one array, [..., Σ nvec]."""
    parts = tree.flatten(mask)
    return parts[0] if len(parts) == 1 else parts[0].__array_namespace__().concatenate(parts, -1)


def some_allowed(mask: Array) -> Array:
    """A mask, bool[..., n], or all True where it forbids every action, as it may at the last observation of an episode: the value
    of one that a limit cut is then that of the best of all actions."""
    return mask | ~mask.any(-1, keepdims=True)


def choices(obs: PyTree, action_space: spaces.Space) -> list[Array]:
    """The masks of an observation, bool[..., n] for each dimension of the action space; none where there is no mask, or one that
    does not fit the space."""
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
    """bool[...]: where the mask forbids every action, if only of one dimension; None where there is no mask."""
    parts = choices(obs, action_space)
    return ~functools.reduce(operator.and_, [part.any(-1) for part in parts]) if parts else None


def allowed(action: Any, obs: PyTree, action_space: spaces.Space) -> Any:
    """Random actions as random ones among those that the mask allows, [..., *shape]: the (a mod k)-th of k."""
    parts = choices(obs, action_space)
    if not parts:
        return action
    xp, flat = action.__array_namespace__(), action.reshape((*parts[0].shape[:-1], len(parts)))
    columns = []
    for i, part in enumerate(parts):
        first = xp.argsort(~part, axis=-1, stable=True)  # those allowed, in their order, then the others
        place = flat[..., i] % xp.maximum(part.sum(-1), 1)
        columns.append(xp.take_along_axis(first, place[..., None], -1))
    return xp.concatenate(columns, -1).reshape(action.shape).astype(action.dtype)
