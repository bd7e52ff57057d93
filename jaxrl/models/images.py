"""Networks over images, as their papers have them: Nature CNN, IMPALA's ResNet, and MinAtar's for small boards.

Each takes f32[..., height, width, channels] and gives its features flat. All layers begin orthogonal.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.initialisers import ACTIVATIONS, compute_type, orthogonal
from jaxrl.types import Array

LAYOUTS = ("auto", "HWC", "CHW")
CONVOLUTIONS = ("auto", "slices", "convolution")


def layout_of(space: spaces.Box, layout: str = "auto") -> str:
    """ "HWC" or "CHW": where an image has its channels. "auto" takes the first axis if it is shorter than the last.

    envpool's Atari gives uint8[stack, height, width]; gymnax, MiniGrid and most others have channels last.
    """
    return layout if layout != "auto" else "CHW" if space.shape[0] < space.shape[-1] else "HWC"


def image_shape(space: spaces.Box, layout: str = "auto") -> tuple[int, int, int]:
    """(height, width, channels) of a Box of three axes, or of two: an image of one channel."""
    if len(space.shape) == 2:
        return (*space.shape, 1)
    a, b, c = space.shape
    return (b, c, a) if layout_of(space, layout) == "CHW" else (a, b, c)


def as_image(space: spaces.Box, x: Array, layout: str = "auto") -> Array:
    """Values of ``space`` as f32[..., height, width, channels]; uint8 is scaled to [0, 1]."""
    x = x.astype(jnp.float32) / (255.0 if x.dtype == jnp.uint8 else 1.0)
    if len(space.shape) == 2:
        return x[..., None]
    return jnp.moveaxis(x, -3, -1) if layout_of(space, layout) == "CHW" else x


class NatureCNN(nn.Module):
    """Three convolutions (Mnih et al. 2015): 32 of 8×8 by 4, 64 of 4×4 by 2, 64 of 3×3; 3,136 features of 84×84."""

    channel_multiplier: int = 1
    activation: str = "relu"
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        lead, x = x.shape[:-3], x.reshape((-1, *x.shape[-3:]))
        for i, (channels, size, stride) in enumerate([(32, 8, 4), (64, 4, 2), (64, 3, 1)]):
            layer = _conv(channels * self.channel_multiplier, size, stride, "VALID", self.dtype, f"conv_{i}")
            x = ACTIVATIONS[self.activation](layer(x))
        return x.reshape((*lead, -1))


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
            x = _conv(channels, 3, 1, "SAME", self.dtype, f"conv_{i}")(x)
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for j in range(2):
                y = x
                for k in range(2):
                    y = _conv(channels, 3, 1, "SAME", self.dtype, f"residual_{i}_{j}_{k}")(act(y))
                x = x + y
        return act(x).reshape((*lead, -1))


class MinAtarCNN(nn.Module):
    """One layer of 16 3×3 convolutions (Young & Tian 2019): 1,024 features of a 10×10 board."""

    channel_multiplier: int = 1
    activation: str = "relu"
    dtype: str = "float32"
    convolution: str = "auto"
    """As ``board_convolution`` takes it."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        channels = 16 * self.channel_multiplier
        kernel: Any = self.param("kernel", orthogonal(), (3, 3, x.shape[-1], channels))
        bias: Any = self.param("bias", nn.initializers.zeros, (channels,))
        dtype = compute_type(self.dtype)
        x = board_convolution(x.astype(dtype), kernel.astype(dtype), self.convolution) + bias.astype(dtype)
        return ACTIVATIONS[self.activation](x).reshape((*x.shape[:-3], -1))


IMAGE_NETWORKS: dict[str, Any] = {"nature": NatureCNN, "impala": ImpalaCNN, "minatar": MinAtarCNN}
SMALLEST = {"nature": 36, "impala": 8, "minatar": 3}
"""Pixels on each side that leave one feature at least."""
DENSE = {"nature": (512,), "impala": (256,), "minatar": (128,)}
"""The hidden layers that the papers have behind them."""


def board_convolution(x: Array, kernel: Array, method: str = "auto") -> Array:
    """x[..., H, W, C] with kernel[h, w, C, F], stride 1, no padding: [..., H − h + 1, W − w + 1, F].

    Args:
      method: "slices" makes it h·w shifted slices and one matmul, ten times as fast as "convolution" on a CPU, where the gradient
        of XLA's convolution runs on one core and collapses under vmap. "auto": slices in programs for a CPU, else a convolution.
    """
    if method == "slices":
        return _by_slices(x, kernel)
    if method == "convolution":
        return _by_convolution(x, kernel)
    return jax.lax.platform_dependent(x, kernel, cpu=_by_slices, default=_by_convolution)


def _by_slices(x: Array, kernel: Array) -> Array:
    rows, columns = kernel.shape[:2]
    height, width = x.shape[-3] - rows + 1, x.shape[-2] - columns + 1
    patches = [x[..., i : i + height, j : j + width, :] for i in range(rows) for j in range(columns)]
    return jnp.concatenate(patches, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


def _by_convolution(x: Array, kernel: Array) -> Array:
    flat = x.reshape((-1, *x.shape[-3:]))
    out = jax.lax.conv_general_dilated(flat, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return out.reshape((*x.shape[:-3], *out.shape[1:]))


def _conv(channels: int, size: int, stride: int, padding: str, dtype: str, name: str) -> nn.Conv:
    return nn.Conv(
        channels, (size, size), (stride, stride), padding, dtype=compute_type(dtype), kernel_init=orthogonal(), name=name
    )
