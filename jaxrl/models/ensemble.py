"""Several networks of one model, with the same inputs."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.types import Key, Model, PyTree, StepInput
from jaxrl.xla.copies import repeated


def apply_ensemble(model: Model, params: PyTree, inputs: StepInput, key: Key | None = None) -> Any:
    """Return the outputs of a memoryless model's networks, [size, N, ...].

    Args:
      params: of all networks, stacked, [size, ...].
      inputs: [N, ...].
      key: random key, split between the networks.
    """
    size = len(jax.tree.leaves(params)[0])
    keys = None if key is None else jax.random.split(key, size)
    axes = jax.tree.map(lambda x: 0 if x.ndim <= 2 else None, inputs)  # vectors, but not images
    inputs = jax.tree.map(lambda x, axis: x if axis is None else repeated(x, size), inputs, axes)
    apply_one = lambda params, key, inputs: model.apply(params, (), inputs, key=key)[1]  # noqa: E731
    return jax.vmap(apply_one, in_axes=(0, 0, axes))(params, keys, inputs)
