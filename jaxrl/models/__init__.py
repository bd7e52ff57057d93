"""Networks: functions of (observation_space, action_space) that return a ``Model``.

The defaults fit the observations: two hidden layers of 64 for vectors, tanh for actor-critics and ReLU for Q-networks; Nature's
convolutions for images, MinAtar's for boards. Kernels begin orthogonal. A Dict observation's ``action_mask``
(``jaxrl.spaces.action_masks.MASK_KEY``) is applied to logits and Q-values and never encoded.
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

for _public in (
    action_value,
    board_convolution,
    dense,
    deterministic_policy,
    drawn_at_once,
    encode_space,
    from_linen,
    from_nnx,
    orthogonal,
    polar,
    policy_network,
    split_mask,
    value_network,
):
    _public.__module__ = __name__  # the name in specs, which outlives the files of this room


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
    """A policy and a value: outputs are ``ActorCriticOutput``.

    Args:
      observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them, each entry encoded by its kind.
      action_space: Discrete, MultiDiscrete or Box.
      encoder: the network for images (Boxes of three axes, or grey ones of two): "nature" (Mnih et al. 2015), "mnih2013" (the
        same authors' first), "impala" (Espeholt et al. 2018), "minatar" (Young & Tian 2019), or "flat" for none. "auto": "nature"
        from 36×36 pixels on, "minatar" below.
      hidden_sizes: units of each layer behind the encodings; before the core, if there is one. Default: (64, 64), or what the
        paper of the encoder has: (512,), (256,), (256,) and (128,).
      activation: "tanh", "relu", "elu" or "silu", of convolutions too; default "relu" where there is an image, "tanh" elsewhere.
      layer_norm: normalise the hidden layers before their activation (Ba et al. 2016).
      shared: policy and value have one torso, and one core. Default: where there is an image or a core.
      core: None, "gru" (Cho et al. 2014) or "lstm" (Gers et al. 2000), which restarts where ``is_first`` is true.
      core_size: units of the core.
      use_previous: the network also sees the previous action and reward. Default: with a core.
      squash: for a bounded Box, squash the Gaussian between the bounds (``TanhNormal``) instead of clipping what it draws.
      image_layout: "HWC", "CHW", or "auto": channels are the first axis where it is shorter than the last, as in envpool's Atari.
      channel_multiplier: as many times the channels of the paper.
      convolution: of "minatar", "slices", "convolution" or "auto" (by platform): see ``board_convolution``.
      embedding_size: Discrete and MultiDiscrete observations become learnt vectors of this size. Default: one-hot, and vectors of
        64 for choices among more than 1,024.
      dtype: "float32" or "bfloat16", what layers compute in. Parameters, the core's carry and the outputs are f32 with both.

    Raises:
      ValueError: a setting is none of these, or has no effect on these observations; or an image is too small for its encoder.
      TypeError: a space is of another kind.
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
        raise TypeError(f"action_space is {action_space}: actor_critic has heads for Discrete, MultiDiscrete and Box spaces")
    if shared is None:
        shared = core is not None or network.has_image
    check_switches(shared=shared, squash=squash)
    if squash and not (isinstance(action_space, spaces.Box) and action_space.is_bounded()):
        raise ValueError(f"squash=True needs a Box with bounds on all sides, and action_space is {action_space}: leave it out")
    if core is None:
        return from_linen(ActorCritic(network, action_space, squash, shared))
    carry = partial(CORES[core].initial_carry, core_size)
    if shared:
        return recurrent(RecurrentActorCritic(network, action_space, squash), carry)
    return recurrent(
        SeparateActorCritic(network, action_space, squash), lambda batch_size: (carry(batch_size), carry(batch_size))
    )


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
    """Q-values of a Discrete action space: outputs are f32[..., n].

    Args:
      activation: default "relu".

    The others, and what is refused, are as in ``actor_critic``.
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
        raise TypeError(f"action_space is {action_space}: a Q-network needs a Discrete one")
    if core is None:
        return from_linen(QNetwork(network, action_space))
    return recurrent(RecurrentQNetwork(network, action_space), partial(CORES[core].initial_carry, core_size))
