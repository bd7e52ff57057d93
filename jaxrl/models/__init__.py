"""Networks: functions of (observation_space, action_space) that return a ``Model``.

The defaults depend on the observations. Vectors get two hidden layers of 64 units, with tanh in actor-critics and ReLU in
Q-networks. Images get the convolutions of the Nature paper, boards those of MinAtar. Initial kernels are orthogonal. A Dict
observation's ``action_mask`` (``jaxrl.spaces.action_masks.MASK_KEY``) is applied to logits and Q-values and is never encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gymnasium import spaces

from jaxrl.models.control import action_value, deterministic_policy, policy_network
from jaxrl.models.cores import CORES, recurrent
from jaxrl.models.encoders import MLP, encode_space, split_mask
from jaxrl.models.heads import ActorCriticOutput, PolicyHead
from jaxrl.models.images import ImpalaCNN, MinAtarCNN, NatureCNN, board_convolution
from jaxrl.models.initialisers import ACTIVATIONS, OrthogonalKernel, dense, drawn_at_once, orthogonal, polar
from jaxrl.models.networks import ActorCritic, QNetwork, RecurrentActorCritic, RecurrentQNetwork, SeparateActorCritic
from jaxrl.models.settings import make_network
from jaxrl.models.values import QuantileOutput, value_network
from jaxrl.models.wrap import from_linen, from_nnx
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import check_switches
from jaxrl.types import Model

__all__ = [
    "ACTIVATIONS",
    "CORES",
    "MLP",
    "ActorCriticOutput",
    "ImpalaCNN",
    "MinAtarCNN",
    "NatureCNN",
    "OrthogonalKernel",
    "PolicyHead",
    "QuantileOutput",
    "action_value",
    "actor_critic",
    "board_convolution",
    "dense",
    "deterministic_policy",
    "drawn_at_once",
    "encode_space",
    "from_linen",
    "from_nnx",
    "orthogonal",
    "polar",
    "policy_network",
    "q_network",
    "split_mask",
    "value_network",
]


@component("model")
def actor_critic(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    encoder: str = "auto",
    hidden_sizes: Sequence[int] | None = None,
    activation: str | None = None,
    layer_norm: bool = False,
    shared: bool | None = None,
    core: str | None = None,
    core_size: int = 64,
    use_previous: bool | None = None,
    squash: bool = False,
    image_layout: str = "auto",
    channel_multiplier: int = 1,
    convolution: str = "auto",
    embedding_size: int | None = None,
    dtype: str = "float32",
) -> Model:
    """Build a policy and a value. Outputs are ``ActorCriticOutput``.

    Args:
      observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them. Each entry is encoded by its kind.
      action_space: Discrete, MultiDiscrete or Box.
      encoder: the network for images (Boxes with three axes, or greyscale ones with two): "nature" (Mnih et al. 2015), "mnih2013"
        (Mnih et al. 2013), "impala" (Espeholt et al. 2018), "minatar" (Young & Tian 2019), or "flat" to flatten images. "auto":
        "nature" from 36×36 pixels, "minatar" below.
      hidden_sizes: units of each hidden layer, after the encoders and before the core. Default: (64, 64), or the layers of the
        encoder's paper: (512,) for "nature", (256,) for "mnih2013" and "impala", (128,) for "minatar".
      activation: "tanh", "relu", "elu" or "silu", also in convolutions. Default: "relu" with an image, else "tanh".
      layer_norm: normalise hidden layers before the activation (Ba et al. 2016).
      shared: policy and value share one torso and core. Default: True with an image or a core.
      core: None, "gru" (Cho et al. 2014) or "lstm" (Gers et al. 2000). Its carry is reset where ``is_first`` is true.
      core_size: units of the core.
      use_previous: also feed the previous action and reward to the network. Default: True with a core.
      squash: for a bounded Box, squash the Gaussian into the bounds (``TanhNormal``) instead of clipping its samples.
      image_layout: "HWC", "CHW", or "auto": channels first if the first axis is shorter than the last, as in envpool's Atari.
      channel_multiplier: factor on the number of channels in the paper.
      convolution: for "minatar", "slices", "convolution" or "auto" (by platform); see ``board_convolution``.
      embedding_size: embed Discrete and MultiDiscrete observations as learnt vectors of this size. Default: one-hot, or vectors
        of 64 for choices among more than 1,024.
      dtype: "float32" or "bfloat16", the type that layers compute in. Parameters, the core's carry and outputs are always f32.

    Raises:
      ValueError: a setting is unknown, or has no effect on these observations, or an image is too small for its encoder.
      TypeError: a space is not supported.
    """
    network = make_network(
        observation_space,
        "tanh",
        encoder=encoder,
        hidden_sizes=hidden_sizes,
        activation=activation,
        layer_norm=layer_norm,
        core=core,
        core_size=core_size,
        use_previous=use_previous,
        image_layout=image_layout,
        channel_multiplier=channel_multiplier,
        convolution=convolution,
        embedding_size=embedding_size,
        dtype=dtype,
    )
    if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.Box):
        raise TypeError(f"action_space is {action_space}: actor_critic needs a Discrete, MultiDiscrete or Box space")
    if shared is None:
        shared = core is not None or network.has_image
    check_switches(shared=shared, squash=squash)
    if squash and not (isinstance(action_space, spaces.Box) and action_space.is_bounded()):
        raise ValueError(f"squash=True needs a Box with bounds on all sides, but action_space is {action_space}: leave it out")
    if core is None:
        return from_linen(ActorCritic(network, action_space, squash, shared))
    carry = partial(CORES[core].initial_carry, core_size)
    if shared:
        return recurrent(RecurrentActorCritic(network, action_space, squash), carry)
    return recurrent(
        SeparateActorCritic(network, action_space, squash), lambda batch_size: (carry(batch_size), carry(batch_size))
    )


@component("model")
def q_network(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    encoder: str = "auto",
    hidden_sizes: Sequence[int] | None = None,
    activation: str | None = None,
    layer_norm: bool = False,
    core: str | None = None,
    core_size: int = 64,
    use_previous: bool | None = None,
    image_layout: str = "auto",
    channel_multiplier: int = 1,
    convolution: str = "auto",
    embedding_size: int | None = None,
    dtype: str = "float32",
) -> Model:
    """Build a Q-network for a Discrete action space. Outputs are f32[..., n].

    Args:
      activation: default "relu".

    The other arguments and the errors are those of ``actor_critic``.
    """
    network = make_network(
        observation_space,
        "relu",
        encoder=encoder,
        hidden_sizes=hidden_sizes,
        activation=activation,
        layer_norm=layer_norm,
        core=core,
        core_size=core_size,
        use_previous=use_previous,
        image_layout=image_layout,
        channel_multiplier=channel_multiplier,
        convolution=convolution,
        embedding_size=embedding_size,
        dtype=dtype,
    )
    if not isinstance(action_space, spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: a Q-network needs a Discrete space")
    if core is None:
        return from_linen(QNetwork(network, action_space))
    return recurrent(RecurrentQNetwork(network, action_space), partial(CORES[core].initial_carry, core_size))
