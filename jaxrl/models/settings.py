"""Settings of the built-in networks, checked against the observation space."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.models.convolution import CONVOLUTIONS
from jaxrl.models.cores import CORES
from jaxrl.models.encoders import cannot_encode
from jaxrl.models.images import DENSE, IMAGE_NETWORKS, LAYOUTS, SMALLEST, image_shape
from jaxrl.models.initialisers import ACTIVATIONS, DTYPES
from jaxrl.models.torso import InputEntry, Network, leaves
from jaxrl.settings.validation import check_count, check_switches

ENCODERS = ("auto", *IMAGE_NETWORKS, "flat")
MOST_ONE_HOT = 1024
"""A choice among more values is embedded, because one-hot rows would be mostly zeros to store and multiply."""
EMBEDDING_SIZE = 64


def make_network(
    observation_space: spaces.Space,
    default_activation: str,
    *,
    encoder: str = "auto",
    hidden_sizes: Sequence[int] | None = None,
    activation: str | None = None,
    image_layout: str = "auto",
    channel_multiplier: int = 1,
    convolution: str = "auto",
    embedding_size: int | None = None,
    core: str | None = None,
    core_size: int = 64,
    use_previous: bool | None = None,
    layer_norm: bool = False,
    dtype: str = "float32",
) -> Network:
    """Check the settings of ``actor_critic`` and ``q_network``, and fill in the defaults for these observations.

    Raises:
      ValueError: a setting is unknown or has no effect on these observations, or an image is too small for its network.
      TypeError: a space cannot be encoded.
    """
    check_values({"encoder": encoder, "image_layout": image_layout, "convolution": convolution, "core": core, "dtype": dtype})
    check_values({"activation": activation, "layer_norm": layer_norm, "use_previous": use_previous, "core_size": core_size})
    check_values({"channel_multiplier": channel_multiplier, "embedding_size": embedding_size, "hidden_sizes": hidden_sizes})
    use_previous = core is not None if use_previous is None else use_previous
    channel_multiplier = check_count("channel_multiplier", channel_multiplier)
    if embedding_size is not None:
        embedding_size = check_count("embedding_size", embedding_size)

    entries = tuple(
        InputEntry(path, space, encoder_of(space, encoder, image_layout, embedded=embedding_size is not None))
        for path, space in leaves(observation_space)
    )
    kinds = [entry.encoder for entry in entries]
    images = [kind for kind in kinds if kind in IMAGE_NETWORKS]
    useless = {
        ("encoder", encoder): encoder not in ("auto", "flat") and not images,
        ("image_layout", image_layout): image_layout != "auto" and not images,
        ("channel_multiplier", channel_multiplier): channel_multiplier != 1 and not images,
        ("convolution", convolution): convolution != "auto" and "minatar" not in images,
        ("embedding_size", embedding_size): embedding_size is not None and "embedding" not in kinds,
    }
    for name, value in (setting for setting, has_no_effect in useless.items() if has_no_effect):
        raise ValueError(f"{name}={value!r} has no effect on {observation_space}: it is for {_MEANT_FOR[name]}")
    return Network(
        entries,
        _sizes(hidden_sizes, images),
        activation or ("relu" if images else default_activation),
        image_layout=image_layout,
        channel_multiplier=channel_multiplier,
        convolution=convolution,
        embedding_size=embedding_size or EMBEDDING_SIZE,
        core=core,
        core_size=check_count("core_size", core_size),
        use_previous=use_previous,
        layer_norm=layer_norm,
        dtype=dtype,
    )


def check_values(arguments: Mapping[str, Any]) -> None:
    """Check arguments of ``actor_critic`` and ``q_network`` as far as possible without an observation space.

    Raises:
      ValueError, TypeError: a value is invalid for every observation space.
    """
    for name, allowed in _CHOICES.items():
        if name in arguments:
            _choose(name, arguments[name], allowed)
    if (activation := arguments.get("activation")) is not None and activation not in ACTIVATIONS:
        close = _nearest(activation, ACTIVATIONS)
        raise ValueError(f"activation={activation!r} is unknown: choose one of {sorted(ACTIVATIONS)}{close}")
    for name, value in arguments.items():
        if value is None and name in _MAY_BE_NONE:
            continue
        if name in ("layer_norm", "use_previous", "shared", "squash"):
            check_switches(**{name: value})
        elif name in ("channel_multiplier", "core_size", "embedding_size"):
            check_count(name, value)
        elif name == "hidden_sizes":
            _sizes(value, ())


_CHOICES: dict[str, tuple[Any, ...]] = {
    "encoder": ENCODERS,
    "image_layout": LAYOUTS,
    "convolution": CONVOLUTIONS,
    "core": (None, *CORES),
    "dtype": tuple(DTYPES),
}
_MAY_BE_NONE = ("hidden_sizes", "use_previous", "shared", "embedding_size")

_MEANT_FOR = {
    **dict.fromkeys(["encoder", "image_layout", "channel_multiplier"], "images, Boxes of shape (height, width, channels)"),
    "convolution": "boards, which encoder='minatar' encodes",
    "embedding_size": "Discrete and MultiDiscrete observations",
}


def encoder_of(space: spaces.Space, encoder: str, layout: str, *, embedded: bool) -> str:
    """Return the encoder for one part of an observation: ``encoder`` where it applies, else the default for the space."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        raise cannot_encode(space)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        most = int(space.n) if isinstance(space, spaces.Discrete) else int(np.max(space.nvec))
        return "embedding" if embedded or most > MOST_ONE_HOT else "flat"
    if encoder == "flat" or not isinstance(space, spaces.Box) or not _is_image(space):
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


def _is_image(space: spaces.Box) -> bool:
    """Return True for three axes, or for two axes of bytes large enough for ``NatureCNN``: a greyscale image."""
    grey = len(space.shape) == 2 and space.dtype == np.uint8 and min(space.shape) >= SMALLEST["nature"]
    return grey or (len(space.shape) == 3 and math.prod(space.shape) > 0)


def _sizes(hidden_sizes: Sequence[int] | None, images: Collection[str]) -> tuple[int, ...]:
    if hidden_sizes is None:
        return max((DENSE[name] for name in images), default=(64, 64))
    sizes = tuple(hidden_sizes) if isinstance(hidden_sizes, Sequence) else (None,)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ValueError(f"hidden_sizes={hidden_sizes!r} must be positive integers, as in (64, 64), or (64,) for one layer")
    return sizes


def _choose(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown: choose one of {allowed}{_nearest(value, allowed)}")


def _nearest(value: Any, allowed: Collection[Any]) -> str:
    written = {name.lower(): name for name in allowed if name}
    close = difflib.get_close_matches(str(value).lower(), written, n=1, cutoff=0.5)
    return f". Did you mean {written[close[0]]!r}?" if close else ""
