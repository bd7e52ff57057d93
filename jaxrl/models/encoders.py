"""Encoding of observations as vectors, and hidden layers."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.initialisers import ACTIVATIONS, compute_type, dense
from jaxrl.settings.loadable import component
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import PRIVILEGED_KEY, RESERVED, byte_scale, entries_seen
from jaxrl.types import Array, PyTree


@component("value", home="jaxrl.models")
def split_mask(obs: PyTree) -> tuple[PyTree, Array | None]:
    """Split a Dict observation into the rest and its ``action_mask`` (None if it has no mask)."""
    if isinstance(obs, dict) and MASK_KEY in obs:
        return {name: leaf for name, leaf in obs.items() if name != MASK_KEY}, obs[MASK_KEY]
    return obs, None


@component("value", home="jaxrl.models")
def encode_space(space: spaces.Space, x: PyTree) -> Array:
    """Flatten a value of ``space`` to f32[..., features]: Discrete one-hot, uint8 scaled to [0, 1], Dict entries concatenated.

    ``action_mask``, ``privileged_state`` and ``player`` are left out.
    """
    if isinstance(space, spaces.Discrete):
        return jax.nn.one_hot(x - int(space.start), int(space.n), dtype=jnp.float32)
    if isinstance(space, spaces.Box):
        return _flat(space, x.astype(jnp.float32) / byte_scale(space, x.dtype))
    if isinstance(space, spaces.MultiBinary):
        return _flat(space, x.astype(jnp.float32))
    if isinstance(space, spaces.MultiDiscrete):
        x = _flat(space, x - jnp.asarray(space.start, x.dtype))
        parts = [jax.nn.one_hot(x[..., i], int(n), dtype=jnp.float32) for i, n in enumerate(space.nvec.ravel())]
        return jnp.concatenate(parts, axis=-1)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [encode_space(part, x[name]) for name, part in entries_seen(space, {*RESERVED})]
        if not parts:
            raise nothing_to_see(space)
        return jnp.concatenate(parts, axis=-1)
    raise cannot_encode(space)


def nothing_to_see(space: spaces.Space) -> ValueError:
    return ValueError(
        f"observation_space {space} has nothing for a network to see: {MASK_KEY} is applied to the outputs, not encoded, and "
        f"{PRIVILEGED_KEY} is for critics. Add "
        "another entry (a constant Box(0, 1, (1,)) will do), or pass a custom model"
    )


def cannot_encode(space: spaces.Space) -> TypeError:
    return TypeError(f"observation_space {space} cannot be encoded by the built-in networks: pass a custom model (jaxrl.Model)")


def _flat(space: spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete, x: Array) -> Array:
    return x.reshape((*x.shape[: x.ndim - len(space.shape)], math.prod(space.shape)))


@component("value")
class MLP(nn.Module):
    """Dense layers, each followed by optional layer normalisation (Ba et al. 2016) and the activation."""

    hidden_sizes: tuple[int, ...]
    activation: str
    layer_norm: bool = False
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return hidden_layers(x, self.hidden_sizes, self.activation, self.layer_norm, self.dtype)


def hidden_layers(
    x: Array,
    hidden_sizes: tuple[int, ...],
    activation: str,
    layer_norm: bool,
    dtype: str,
    dropout: float = 0.0,
    renorm: Callable[[Array, str], Array] | None = None,
) -> Array:
    """Apply the layers of an ``MLP`` within the calling module.

    Args:
      dropout: fraction of units to drop; if positive, it needs an rng stream "dropout".
      renorm: (features, name) -> features, normalises the input of each layer and of the next module.
    """
    x = x if renorm is None else renorm(x, "renorm_in")
    for i, features in enumerate(hidden_sizes):
        x = dense(features, name=f"hidden_{i}", dtype=dtype)(x)
        if dropout:  # before the normalisation, as in Hiraoka et al. 2022
            x = nn.Dropout(dropout, deterministic=False)(x)
        if layer_norm:
            x = nn.LayerNorm(dtype=compute_type(dtype), name=f"norm_{i}")(x)
        x = ACTIVATIONS[activation](x)
        x = x if renorm is None else renorm(x, f"renorm_{i}")
    return x


def residual_layers(x: Array, hidden_sizes: tuple[int, ...], activation: str, dtype: str) -> Array:
    """Apply SimBa's layers within the calling module (Lee et al. 2025, section 4.2): a linear layer, a residual block per hidden
    size, and layer normalisation. A block adds W₂·activation(W₁·norm(x)) to its input x, where W₁x has four times as many units.
    """
    if not hidden_sizes:
        return x
    normed = lambda name, x: nn.LayerNorm(dtype=compute_type(dtype), name=name)(x)  # noqa: E731
    x = dense(hidden_sizes[0], 1.0, "embedding", dtype=dtype)(x)
    for i, features in enumerate(hidden_sizes):
        wide = dense(4 * features, name=f"wide_{i}", dtype=dtype)(normed(f"norm_{i}", x))
        x = x + dense(features, 1.0, f"hidden_{i}", dtype=dtype)(ACTIVATIONS[activation](wide))
    return normed("norm", x)
