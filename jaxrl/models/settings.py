"""Network settings for an observation space: encoders, and defaults filled in."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from jaxrl.models.config import NetworkConfig
from jaxrl.models.encoders import cannot_encode
from jaxrl.models.images import DENSE, IMAGE_NETWORKS, SMALLEST, image_shape, is_image
from jaxrl.models.torso import InputEntry, Network, leaves

MOST_ONE_HOT = 1024
"""A choice among more values is embedded, because one-hot rows would be mostly zeros to store and multiply."""
EMBEDDING_SIZE = 64


def make_network(
    observation_space: spaces.Space,
    config: NetworkConfig,
    *,
    activation: str = "relu",
    hidden_sizes: tuple[int, ...] = (64, 64),
    privileged: bool = False,
) -> Network:
    """Fill in the defaults of a config for these observations.

    Args:
      activation: default for observations without an image, as is ``hidden_sizes``.
      privileged: the network is that of a critic that sees the ``privileged_state``.

    Raises:
      ValueError: a setting has no effect on these observations, or an image is too small for its network.
      TypeError: a space cannot be encoded.
    """
    seen = leaves(observation_space, privileged=privileged)
    entries = tuple(InputEntry(path, space, encoder_of(space, config)) for path, space in seen)
    kinds = {entry.encoder for entry in entries}
    images = kinds & {*IMAGE_NETWORKS}
    effects = [
        (["encoder", "image_layout", "channel_multiplier"], images, "images, Boxes of shape (height, width, channels)"),
        (["convolution"], "minatar" in images, "boards, which encoder='minatar' encodes"),
        (["embedding_size"], "embedding" in kinds, "Discrete and MultiDiscrete observations"),
    ]
    for name, meant_for in ((name, meant_for) for names, has_effect, meant_for in effects if not has_effect for name in names):
        if (value := getattr(config, name)) not in (getattr(NetworkConfig, name), "flat"):
            raise ValueError(f"{name}={value!r} has no effect on {observation_space}: it is for {meant_for}")
    defaults = {
        "hidden_sizes": max((DENSE[name] for name in images), default=hidden_sizes),
        "activation": "relu" if images else activation,
        "embedding_size": EMBEDDING_SIZE,
        "use_previous": getattr(config, "core", None) is not None,
    }
    given = {name: value for name, value in vars(config).items() if name in Network._fields and value is not None}
    return Network(entries, **{**defaults, **given})


def encoder_of(space: spaces.Space, config: NetworkConfig) -> str:
    """Return the encoder for one part of an observation: the config's where it applies, else the default for the space."""
    encoder, layout = config.encoder, config.image_layout
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        raise cannot_encode(space)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        most = int(space.n) if isinstance(space, spaces.Discrete) else int(np.max(space.nvec))
        return "embedding" if config.embedding_size or most > MOST_ONE_HOT else "flat"
    if encoder == "flat" or not is_image(space):
        return "flat"
    height, width, _ = image_shape(space, layout)
    if encoder == "auto":
        return next((name for name in ("nature", "minatar") if min(height, width) >= SMALLEST[name]), "flat")
    least = SMALLEST[encoder]
    if min(height, width) < least:
        others = [f"encoder={name!r}" for name, size in SMALLEST.items() if size <= min(height, width)]
        raise ValueError(
            f"encoder={encoder!r} needs images of at least {least}×{least}, but {space} is {height}×{width} with "
            f"image_layout={layout!r}: use {' or '.join([*others, 'encoder=' + repr('flat')])}"
        )
    return encoder
