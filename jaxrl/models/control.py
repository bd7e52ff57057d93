"""Networks for off-policy actor-critics: a policy, and a value of observation and action."""

from __future__ import annotations

import math

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.models.batch_renorm import COLLECTION
from jaxrl.models.config import ActionValueConfig, NetworkConfig, PolicyNetworkConfig, configured_by
from jaxrl.models.heads import masked
from jaxrl.models.initialisers import dense
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.settings.loadable import component
from jaxrl.spaces.entries import check_privileged
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
    def __call__(
        self, inputs: StepInput, valid: Array | None = None, axis_name: str | None = None
    ) -> Categorical | TanhNormal | Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs, valid, axis_name)
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
    def __call__(self, inputs: StepInput, valid: Array | None = None, axis_name: str | None = None) -> Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs, valid, axis_name)
        if isinstance(self.action_space, spaces.Discrete):
            return masked(dense(int(self.action_space.n), 1.0, "value")(x), inputs.obs)
        values = dense(self.num_outputs or 1, 1.0, "value")(x)
        return values if self.num_outputs else values[..., 0]


@component("model", home="jaxrl.models")
@configured_by(PolicyNetworkConfig)
def policy_network(observation_space: spaces.Space, action_space: spaces.Space, config: PolicyNetworkConfig) -> Model:
    """Build a policy without a value.

    For a Box, outputs are a ``TanhNormal`` in [−1, 1] with a standard deviation that depends on the observation; the algorithm
    scales actions to the bounds. For a Discrete space, outputs are a ``Categorical``.

    Args:
      action_space: Box or Discrete.
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
    """
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: policy_network needs a Box or Discrete space")
    network = make_network(observation_space, config, hidden_sizes=HIDDEN_SIZES)
    return from_linen(PolicyNetwork(network, action_space, False), statistics=_statistics(config))


@component("model", home="jaxrl.models")
@configured_by(NetworkConfig)
def deterministic_policy(observation_space: spaces.Space, action_space: spaces.Space, config: NetworkConfig) -> Model:
    """Build a deterministic policy. For a Box, outputs are f32[..., d] in (−1, 1); the algorithm scales them to the bounds. For a
    Discrete space, outputs are a ``Categorical``; the algorithm draws relaxed samples from it.

    Args:
      action_space: Box or Discrete.
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
    """
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: deterministic_policy needs a Box or Discrete space")
    return from_linen(PolicyNetwork(make_network(observation_space, config, hidden_sizes=HIDDEN_SIZES), action_space, True))


@component("model", home="jaxrl.models")
@configured_by(ActionValueConfig)
def action_value(observation_space: spaces.Space, action_space: spaces.Space, config: ActionValueConfig) -> Model:
    """Build an action-value network.

    For a Box, its input ``obs`` is the pair (observation, action), with the action f32[..., d], in [−1, 1] if the space is
    bounded. Outputs are f32[...], or f32[..., num_outputs]. For a Discrete space, its input is the observation, and outputs are
    the values of all actions, f32[..., n].

    Args:
      action_space: Box or Discrete.
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
    """
    if config.privileged:
        check_privileged(observation_space, "privileged=True")
    if isinstance(action_space, spaces.Box):
        unit = spaces.Box(-1.0, 1.0, (math.prod(action_space.shape),), np.float32)
        observation_space = spaces.Tuple((observation_space, unit))
    elif config.num_outputs is not None or not isinstance(action_space, spaces.Discrete):
        kinds = "a Box or Discrete space" if config.num_outputs is None else "a Box for num_outputs"
        raise TypeError(f"action_space is {action_space}: action_value needs {kinds}")
    network = make_network(observation_space, config, hidden_sizes=HIDDEN_SIZES, privileged=config.privileged)
    return from_linen(ActionValue(network, action_space, config.num_outputs), statistics=_statistics(config))


def _statistics(config: PolicyNetworkConfig) -> tuple[str, ...]:
    return (COLLECTION,) if config.batch_renorm else ()
