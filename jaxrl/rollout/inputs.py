"""Inputs of a policy: example inputs, and clean-up of invalid rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.rollout.autoreset import expand_mask, first_input
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, PyTree, StepInput


def example_input(observation_space: spaces.Space, action_space: spaces.Space) -> StepInput:
    """Return a batch of one all-zero row, for initialising models."""
    return first_input(zeros(observation_space, (1,)), action_space, 1)


def without_history(obs: PyTree, like: Array) -> StepInput:
    """Return the inputs of a model that sees observations alone, in the shape of the array ``like``."""
    return StepInput(obs, jnp.zeros(like.shape, jnp.int32), jnp.zeros(like.shape), jnp.zeros(like.shape, bool))


def zero_invalid(tree: PyTree, valid: Array) -> PyTree:
    """Replace non-finite values in invalid rows by 0, since 0 times them would be NaN in a gradient. Valid rows are unchanged."""

    def clean(x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.where(expand_mask(valid, x) | jnp.isfinite(x), x, 0)

    return jax.tree.map(clean, tree)
