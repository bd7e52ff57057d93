"""Networks for images, as in their papers: DQN's of 2013 and 2015, IMPALA's ResNet, and MinAtar's for small boards.

Each maps f32[..., height, width, channels] to flat features. Initial kernels are orthogonal.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeGuard

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.models.convolution import Conv, convolution
from jaxrl.models.initialisers import ACTIVATIONS, compute_type, orthogonal
from jaxrl.settings.loadable import component
from jaxrl.spaces.entries import byte_scale
from jaxrl.types import Array

LAYOUTS = ("auto", "HWC", "CHW")


def is_image(space: spaces.Space) -> TypeGuard[spaces.Box]:
    """Return True for a Box of three axes, or of two axes of bytes large enough for ``NatureCNN``: a greyscale image."""
    if not isinstance(space, spaces.Box):
        return False
    grey = len(space.shape) == 2 and space.dtype == np.uint8 and min(space.shape) >= SMALLEST["nature"]
    return grey or (len(space.shape) == 3 and math.prod(space.shape) > 0)


def layout_of(space: spaces.Box, layout: str = "auto") -> str:
    """Return "HWC" or "CHW", the layout of an image. "auto" chooses "CHW" if the first axis is shorter than the last.

    envpool's Atari returns uint8[stack, height, width]; gymnax, MiniGrid and most others have channels last.
    """
    return layout if layout != "auto" else "CHW" if space.shape[0] < space.shape[-1] else "HWC"


def image_shape(space: spaces.Box, layout: str = "auto") -> tuple[int, int, int]:
    """Return (height, width, channels) of a Box with three axes, or with two for an image of one channel."""
    if len(space.shape) == 2:
        return (*space.shape, 1)
    a, b, c = space.shape
    return (b, c, a) if layout_of(space, layout) == "CHW" else (a, b, c)


def as_image(space: spaces.Box, x: Array, layout: str = "auto") -> Array:
    """Convert values of ``space`` to f32[..., height, width, channels]; uint8 is scaled to [0, 1]."""
    x = x.astype(jnp.float32) / byte_scale(space, x.dtype)
    if len(space.shape) == 2:
        return x[..., None]
    return jnp.moveaxis(x, -3, -1) if layout_of(space, layout) == "CHW" else x


@component("value")
class NatureCNN(nn.Module):
    """Three convolutions (Mnih et al. 2015): 32 of 8×8, stride 4; 64 of 4×4, stride 2; 64 of 3×3.

    An 84×84 image gives 3,136 features.
    """

    channel_multiplier: int = 1
    activation: str = "relu"
    dtype: str = "float32"
    layers: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    """(channels, size, stride) of each layer."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        lead, x = x.shape[:-3], x.reshape((-1, *x.shape[-3:]))
        for i, (channels, size, stride) in enumerate(self.layers):
            layer = Conv(channels * self.channel_multiplier, size, stride, dtype=self.dtype, name=f"conv_{i}")
            x = ACTIVATIONS[self.activation](layer(x))
        return x.reshape((*lead, -1))


@component("value")
class ImpalaCNN(nn.Module):
    """The deep residual network of IMPALA (Espeholt et al. 2018, figure 3, right): 3 blocks of 16, 32 and 32 channels.

    Each block is a 3×3 convolution, 3×3 max-pooling by 2, and twice x + conv(relu(conv(relu(x)))).
    """

    channel_multiplier: int = 1
    activation: str = "relu"
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        lead, x = x.shape[:-3], x.reshape((-1, *x.shape[-3:]))
        act = ACTIVATIONS[self.activation]
        for i, channels in enumerate([16, 32, 32]):
            channels *= self.channel_multiplier
            x = Conv(channels, 3, padding="SAME", dtype=self.dtype, name=f"conv_{i}")(x)
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for j in range(2):
                y = x
                for k in range(2):
                    y = Conv(channels, 3, padding="SAME", dtype=self.dtype, name=f"residual_{i}_{j}_{k}")(act(y))
                x = x + y
        return act(x).reshape((*lead, -1))


@component("value")
class MinAtarCNN(nn.Module):
    """One layer of 16 3×3 convolutions (Young & Tian 2019). A 10×10 board gives 1,024 features."""

    channel_multiplier: int = 1
    activation: str = "relu"
    dtype: str = "float32"
    convolution: str = "auto"
    """``method`` of ``board_convolution``."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        channels = 16 * self.channel_multiplier
        kernel: Any = self.param("kernel", orthogonal(), (3, 3, x.shape[-1], channels))
        bias: Any = self.param("bias", nn.initializers.zeros, (channels,))
        dtype = compute_type(self.dtype)
        x = board_convolution(x.astype(dtype), kernel.astype(dtype), self.convolution) + bias.astype(dtype)
        return ACTIVATIONS[self.activation](x).reshape((*x.shape[:-3], -1))


MNIH_2013 = ((16, 8, 4), (32, 4, 2))
"""Layers of the first network for Atari, with a third of the work of ``NatureCNN``."""
IMAGE_NETWORKS: dict[str, Any] = {
    "nature": NatureCNN,
    "mnih2013": partial(NatureCNN, layers=MNIH_2013),
    "impala": ImpalaCNN,
    "minatar": MinAtarCNN,
}
SMALLEST = {"nature": 36, "mnih2013": 20, "impala": 8, "minatar": 3}
"""Least number of pixels on each side, for which one feature is left."""
DENSE = {"nature": (512,), "mnih2013": (256,), "impala": (256,), "minatar": (128,)}
"""Hidden layers after the convolutions, as in the papers."""


@component("value", home="jaxrl.models")
def board_convolution(x: Array, kernel: Array, method: str = "auto") -> Array:
    """Convolve x[..., H, W, C] with kernel[h, w, C, F], stride 1, no padding: [..., H − h + 1, W − w + 1, F].

    Args:
      method: as in ``convolution``, except that "auto" always uses slices on a CPU: on small boards they are also faster in the
        forward pass.
    """
    if method != "auto":
        return convolution(x, kernel, method=method)
    slices, default = (partial(convolution, method=name) for name in ("slices", "convolution"))
    return jax.lax.platform_dependent(x, kernel, cpu=slices, default=default)
