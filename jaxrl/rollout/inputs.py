"""Inputs of a policy: examples of them, and rows that are not valid set to zero."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.rollout.autoreset import expand_mask, first_input
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, PyTree, StepInput


def example_input(observation_space: spaces.Space, action_space: spaces.Space) -> StepInput:
    """A batch of one all-zero row, for initialising models."""
    return first_input(zeros(observation_space, (1,)), action_space, 1)


def zero_invalid(tree: PyTree, valid: Array) -> PyTree:
    """``tree`` with 0 for what is not finite in invalid rows: 0 times that would be no 0 in a gradient. Valid rows stay."""

    def clean(x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.where(expand_mask(valid, x) | jnp.isfinite(x), x, 0)

    return jax.tree.map(clean, tree)
