"""Torso: encoders for the entries of an observation, then hidden layers over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.batch_renorm import BatchRenorm
from jaxrl.models.encoders import encode_space, hidden_layers, nothing_to_see, residual_layers
from jaxrl.models.images import IMAGE_NETWORKS, MinAtarCNN, as_image
from jaxrl.models.initialisers import compute_type
from jaxrl.spaces.entries import PRIVILEGED_KEY, RESERVED, entries_seen
from jaxrl.types import Array, PyTree, StepInput


class InputEntry(NamedTuple):
    """Part of an observation, and its encoder."""

    path: tuple[str | int, ...]
    """Keys and indices of the part within the observation; () for the whole observation."""
    space: spaces.Space
    encoder: str
    """One of ``IMAGE_NETWORKS``, "embedding", or "flat"."""

    def named(self, prefix: str) -> str:
        return "_".join([prefix, *map(str, self.path)])


class Network(NamedTuple):
    """Settings of a network for some observations, without open defaults; ``NetworkConfig`` documents them."""

    entries: tuple[InputEntry, ...]
    hidden_sizes: tuple[int, ...]
    activation: str
    layer_norm: bool
    use_previous: bool
    image_layout: str
    channel_multiplier: int
    convolution: str
    embedding_size: int
    dtype: str
    core: str | None = None
    core_size: int = 0
    context: int = 0
    attention_layers: int = 0
    attention_heads: int = 0
    gated: bool = False
    s5_layers: int = 0
    state_size: int = 0
    dropout: float = 0.0
    """Fraction of units that hidden layers drop when a key is given."""
    batch_renorm: bool = False
    residual: bool = False

    @property
    def has_image(self) -> bool:
        return any(entry.encoder in IMAGE_NETWORKS for entry in self.entries)


def leaves(
    space: spaces.Space, path: tuple[str | int, ...] = (), *, privileged: bool = False
) -> Iterator[tuple[tuple[str | int, ...], spaces.Space]]:
    """Yield (path, space) of the leaves of nested Dicts and Tuples in the order of ``encode_space``, without ``action_mask``,
    ``player`` and, unless asked for, ``privileged_state``."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, space
        return
    entries = entries_seen(space, {*RESERVED} - ({PRIVILEGED_KEY} if privileged else set()))
    found = [leaf for name, part in entries for leaf in leaves(part, (*path, name), privileged=privileged)]
    if not found:
        raise nothing_to_see(space)
    yield from found


class Torso(nn.Module):
    """Features f32[..., n] of a ``StepInput``: the observation and, with ``use_previous``, the previous action and reward.

    Learning passes the arguments of ``BatchRenorm`` too.
    """

    network: Network
    action_space: spaces.Space

    @nn.compact
    def __call__(self, inputs: StepInput, valid: Array | None = None, axis_name: str | None = None) -> Array:
        network = self.network
        parts = [self.encode(entry, inputs.obs) for entry in network.entries]
        if network.use_previous:
            parts += [
                encode_space(self.action_space, inputs.prev_action) * ~inputs.is_first[..., None],
                inputs.prev_reward[..., None],
            ]
        x = jnp.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        if network.residual:
            return residual_layers(x, network.hidden_sizes, network.activation, network.dtype)
        dropout = network.dropout if self.has_rng("dropout") else 0.0
        renorm = (lambda x, name: BatchRenorm(name=name)(x, valid, axis_name)) if network.batch_renorm else None
        return hidden_layers(x, network.hidden_sizes, network.activation, network.layer_norm, network.dtype, dropout, renorm)

    def encode(self, entry: InputEntry, obs: PyTree) -> Array:
        network, x = self.network, obs
        for name in entry.path:
            x = x[name]
        if entry.encoder == "flat":
            return encode_space(entry.space, x)
        if entry.encoder == "embedding":
            return self.embed(entry, x)
        make, settings = IMAGE_NETWORKS[entry.encoder], {}
        if make is MinAtarCNN:
            settings["convolution"] = network.convolution
        convolutions = make(
            network.channel_multiplier, network.activation, network.dtype, name=entry.named(entry.encoder), **settings
        )
        assert isinstance(entry.space, spaces.Box)
        return convolutions(as_image(entry.space, x, network.image_layout))

    def embed(self, entry: InputEntry, x: Array) -> Array:
        """Embed each integer as a learnt vector, and concatenate the vectors."""
        assert isinstance(entry.space, spaces.Discrete | spaces.MultiDiscrete)
        if isinstance(entry.space, spaces.Discrete):
            counts, x = [int(entry.space.n)], (x - int(entry.space.start))[..., None]
        else:
            counts = [int(n) for n in entry.space.nvec.ravel()]
            x = (x - jnp.asarray(entry.space.start, x.dtype)).reshape((*x.shape[: x.ndim - entry.space.nvec.ndim], -1))
        size, dtype, name = self.network.embedding_size, compute_type(self.network.dtype), entry.named("embedding")
        tables = [nn.Embed(n, size, dtype=dtype, name=f"{name}_{i}") for i, n in enumerate(counts)]
        return jnp.concatenate([table(x[..., i]) for i, table in enumerate(tables)], axis=-1)
