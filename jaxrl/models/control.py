"""Networks for off-policy actor-critics: a policy, and a value of observation and action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.models.heads import masked
from jaxrl.models.initialisers import dense
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import Range, check_count, check_number
from jaxrl.types import Array, Model, StepInput

LOG_STD_RANGE = (-20.0, 2.0)
"""Limits of the policy's log standard deviation (code of Haarnoja et al. 2018)."""
HIDDEN_SIZES = (256, 256)
"""Hidden layers of Haarnoja et al. 2018 and Fujimoto et al. 2018, for observations without an image."""


class PolicyNetwork(nn.Module):
    """Torso and policy head: logits, or mean and log standard deviation, or a deterministic action."""

    network: Network
    action_space: spaces.Box | spaces.Discrete
    deterministic: bool

    @nn.compact
    def __call__(self, inputs: StepInput) -> Categorical | TanhNormal | Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs)
        if isinstance(self.action_space, spaces.Discrete):
            return Categorical(masked(dense(int(self.action_space.n), 0.01, "logits")(x), inputs.obs))
        size = math.prod(self.action_space.shape)
        if self.deterministic:
            return jnp.tanh(dense(size, 0.01, "action")(x))
        log_std = jnp.clip(dense(size, 0.01, "log_std")(x), *LOG_STD_RANGE)
        return TanhNormal(dense(size, 0.01, "mean")(x), log_std)


class ActionValue(nn.Module):
    """Torso and value head: one or several numbers for (observation, action) in a Box, one value per action if Discrete."""

    network: Network
    action_space: spaces.Box | spaces.Discrete
    num_outputs: int | None

    @nn.compact
    def __call__(self, inputs: StepInput) -> Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs)
        if isinstance(self.action_space, spaces.Discrete):
            return masked(dense(int(self.action_space.n), 1.0, "value")(x), inputs.obs)
        values = dense(self.num_outputs or 1, 1.0, "value")(x)
        return values if self.num_outputs else values[..., 0]


@component("model", home="jaxrl.models")
def policy_network(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    encoder: str = "auto",
    hidden_sizes: Sequence[int] | None = None,
    activation: str | None = None,
    layer_norm: bool = False,
    use_previous: bool = False,
    image_layout: str = "auto",
    channel_multiplier: int = 1,
    convolution: str = "auto",
    embedding_size: int | None = None,
    dtype: str = "float32",
) -> Model:
    """Build a policy without a value.

    For a Box, outputs are a ``TanhNormal`` in [−1, 1] with a standard deviation that depends on the observation; the algorithm
    scales actions to the bounds. For a Discrete space, outputs are a ``Categorical``.

    Args:
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
      activation: default "relu".

    The other arguments and the errors are those of ``actor_critic``.
    """
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: policy_network needs a Box or Discrete space")
    network = _network(
        observation_space,
        encoder=encoder,
        hidden_sizes=hidden_sizes,
        activation=activation,
        layer_norm=layer_norm,
        use_previous=use_previous,
        image_layout=image_layout,
        channel_multiplier=channel_multiplier,
        convolution=convolution,
        embedding_size=embedding_size,
        dtype=dtype,
    )
    return from_linen(PolicyNetwork(network, action_space, False))


@component("model", home="jaxrl.models")
def deterministic_policy(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    encoder: str = "auto",
    hidden_sizes: Sequence[int] | None = None,
    activation: str | None = None,
    layer_norm: bool = False,
    use_previous: bool = False,
    image_layout: str = "auto",
    channel_multiplier: int = 1,
    convolution: str = "auto",
    embedding_size: int | None = None,
    dtype: str = "float32",
) -> Model:
    """Build a deterministic policy for a Box. Outputs are f32[..., d] in (−1, 1); the algorithm scales them to the bounds.

    Args:
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
      activation: default "relu".

    The other arguments and the errors are those of ``actor_critic``.
    """
    if not isinstance(action_space, spaces.Box):
        raise TypeError(f"action_space is {action_space}: deterministic_policy needs a Box")
    network = _network(
        observation_space,
        encoder=encoder,
        hidden_sizes=hidden_sizes,
        activation=activation,
        layer_norm=layer_norm,
        use_previous=use_previous,
        image_layout=image_layout,
        channel_multiplier=channel_multiplier,
        convolution=convolution,
        embedding_size=embedding_size,
        dtype=dtype,
    )
    return from_linen(PolicyNetwork(network, action_space, True))


@component("model", home="jaxrl.models")
def action_value(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    dropout: float = 0.0,
    num_outputs: int | None = None,
    encoder: str = "auto",
    hidden_sizes: Sequence[int] | None = None,
    activation: str | None = None,
    layer_norm: bool = False,
    use_previous: bool = False,
    image_layout: str = "auto",
    channel_multiplier: int = 1,
    convolution: str = "auto",
    embedding_size: int | None = None,
    dtype: str = "float32",
) -> Model:
    """Build an action-value network.

    For a Box, its input ``obs`` is the pair (observation, action), with the action f32[..., d], in [−1, 1] if the space is
    bounded. Outputs are f32[...], or f32[..., num_outputs]. For a Discrete space, its input is the observation, and outputs are
    the values of all actions, f32[..., n].

    Args:
      dropout: fraction of units to drop in each hidden layer when a key is given (Hiraoka et al. 2022, with ``layer_norm``).
      num_outputs: number of outputs in place of one value, such as quantiles; for a Box only.
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
      activation: default "relu".

    The other arguments and the errors are those of ``actor_critic``.
    """
    check_number("dropout", dropout, Range(0, 0.99))
    num_outputs = None if num_outputs is None else check_count("num_outputs", num_outputs)
    if isinstance(action_space, spaces.Box):
        unit = spaces.Box(-1.0, 1.0, (math.prod(action_space.shape),), np.float32)
        observation_space = spaces.Tuple((observation_space, unit))
    elif num_outputs is not None or not isinstance(action_space, spaces.Discrete):
        kinds = "a Box or Discrete space" if num_outputs is None else "a Box for num_outputs"
        raise TypeError(f"action_space is {action_space}: action_value needs {kinds}")
    network = _network(
        observation_space,
        encoder=encoder,
        hidden_sizes=hidden_sizes,
        activation=activation,
        layer_norm=layer_norm,
        use_previous=use_previous,
        image_layout=image_layout,
        channel_multiplier=channel_multiplier,
        convolution=convolution,
        embedding_size=embedding_size,
        dtype=dtype,
    )
    return from_linen(ActionValue(network._replace(dropout=float(dropout)), action_space, num_outputs))


def _network(observation_space: spaces.Space, *, hidden_sizes: Sequence[int] | None, **settings: Any) -> Network:
    network = make_network(observation_space, "relu", hidden_sizes=hidden_sizes, core=None, core_size=1, **settings)
    return network._replace(hidden_sizes=HIDDEN_SIZES) if hidden_sizes is None and not network.has_image else network
