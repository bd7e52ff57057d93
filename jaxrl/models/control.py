"""Networks of rules that learn a policy from an action-value: a policy without a value, and a value of observation and action."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.config import Range, check_count, check_number, check_switches
from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.models.heads import masked
from jaxrl.models.initialisers import dense
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.types import Array, Model, StepInput

LOG_STD_RANGE = (-20.0, 2.0)
"""Where the policy's log-deviation is clipped (Haarnoja et al. 2018, in their code)."""
HIDDEN_SIZES = (256, 256)
"""Of Haarnoja et al. 2018 and Fujimoto et al. 2018, for observations without an image."""
SETTINGS: dict[str, Any] = {
    "encoder": "auto",
    "hidden_sizes": None,
    "activation": None,
    "layer_norm": False,
    "use_previous": False,
    "image_layout": "auto",
    "channel_multiplier": 1,
    "convolution": "auto",
    "embedding_size": None,
    "dtype": "float32",
}
"""What ``actor_critic`` takes besides, but for cores."""


class PolicyNetwork(nn.Module):
    """A torso to a policy: logits; mean and log-deviation, each by a layer; or, deterministic, an action."""

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
    """A torso to values: of observation and action for a Box, one or several numbers; of each action for a Discrete space."""

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


def policy_network(
    observation_space: spaces.Space, action_space: spaces.Space, *, deterministic: bool = False, **settings: Any
) -> Model:
    """A policy: outputs are a ``TanhNormal`` for a bounded Box, its deviation a function of the observation; a ``Categorical``
    for a Discrete space; or, deterministic, the action itself, f32[..., d] in (−1, 1), which a Box's bounds are for the rule.

    Args:
      deterministic: for a Box only.
      settings: ``encoder``, ``hidden_sizes`` (default: (256, 256), or what the paper of the encoder has), ``activation`` (default
        "relu"), ``layer_norm``, ``use_previous``, ``image_layout``, ``channel_multiplier``, ``convolution``, ``embedding_size``
        and ``dtype``, as ``actor_critic`` takes them.

    Raises:
      ValueError: a setting is none of these, or has no effect on these observations.
      TypeError: a space is of another kind, or a setting is unknown.
    """
    check_switches(deterministic=deterministic)
    if not isinstance(action_space, spaces.Box | spaces.Discrete) or (
        deterministic and isinstance(action_space, spaces.Discrete)
    ):
        kinds = "a Box one" if deterministic else "a Box or a Discrete one"
        raise TypeError(f"action_space is {action_space}: this policy needs {kinds}")
    return from_linen(PolicyNetwork(_network(observation_space, settings), action_space, deterministic))


def action_value(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    dropout: float = 0.0,
    num_outputs: int | None = None,
    **settings: Any,
) -> Model:
    """An action-value. For a Box the ``obs`` that it is given is the pair (observation, action), the action f32[..., d] in
    [−1, 1] where the space is bounded, and outputs are f32[...], or f32[..., num_outputs]. For a Discrete space it sees the
    observation, and outputs are the values of all actions, f32[..., n].

    Args:
      dropout: the share of units that each hidden layer drops where a key is given (Hiraoka et al. 2022, with ``layer_norm``).
      num_outputs: numbers instead of a value, such as its quantiles; for a Box only.
      settings: as ``policy_network`` takes them.

    Raises:
      ValueError: a setting is none of these, or has no effect on these observations.
      TypeError: a space is of another kind, or a setting is unknown.
    """
    check_number("dropout", dropout, Range(0, 0.99))
    num_outputs = None if num_outputs is None else check_count("num_outputs", num_outputs)
    if isinstance(action_space, spaces.Box):
        unit = spaces.Box(-1.0, 1.0, (math.prod(action_space.shape),), np.float32)
        observation_space = spaces.Tuple((observation_space, unit))
    elif num_outputs is not None or not isinstance(action_space, spaces.Discrete):
        kinds = "a Box or a Discrete one" if num_outputs is None else "a Box one for num_outputs"
        raise TypeError(f"action_space is {action_space}: an action_value needs {kinds}")
    network = _network(observation_space, settings)._replace(dropout=float(dropout))
    return from_linen(ActionValue(network, action_space, num_outputs))


def _network(observation_space: spaces.Space, settings: dict[str, Any]) -> Network:
    if unknown := settings.keys() - SETTINGS.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: unknown; there are {', '.join(SETTINGS)}")
    network = make_network(observation_space, "relu", core=None, core_size=1, **{**SETTINGS, **settings})
    own = settings.get("hidden_sizes") is None and not network.has_image
    return network._replace(hidden_sizes=HIDDEN_SIZES) if own else network
