"""Networks for off-policy actor-critics: a policy, and a value of observation and action."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.models.batch_renorm import COLLECTION
from jaxrl.models.config import ActionValueConfig, CoreConfig, PolicyNetworkConfig
from jaxrl.models.configured import configured_by
from jaxrl.models.cores import CORES, recurrent
from jaxrl.models.encoders import hidden_layers
from jaxrl.models.heads import check_initial_std, masked
from jaxrl.models.initialisers import dense
from jaxrl.models.networks import RecurrentCore, of_values
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.settings.loadable import component
from jaxrl.spaces.entries import check_privileged
from jaxrl.types import Array, Model, PyTree, StepInput

LOG_STD_RANGE = (-20.0, 2.0)
"""Limits of the policy's log standard deviation (code of Haarnoja et al. 2018)."""
HIDDEN_SIZES = (256, 256)
"""Hidden layers of Haarnoja et al. 2018 and Fujimoto et al. 2018, for observations without an image."""


class PolicyNetwork(nn.Module):
    """Torso and policy head: logits, or mean and log standard deviation, or a deterministic action."""

    network: Network
    action_space: spaces.Box | spaces.Discrete
    deterministic: bool
    initial_std: float = 1.0

    @nn.compact
    def __call__(
        self, inputs: StepInput, valid: Array | None = None, axis_name: str | None = None
    ) -> Categorical | TanhNormal | Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs, valid, axis_name)
        return _policy(self, x, inputs.obs)


class RecurrentPolicyNetwork(RecurrentCore):
    """Torso → core → policy head."""

    deterministic: bool
    initial_std: float = 1.0

    @nn.compact
    def heads(self, hidden: Array, obs: PyTree) -> Categorical | TanhNormal | Array:
        return _policy(self, hidden, obs)


def _policy(module: PolicyNetwork | RecurrentPolicyNetwork, x: Array, obs: PyTree) -> Categorical | TanhNormal | Array:
    """Return the output of the policy head, whose layers belong to the module that calls this function."""
    space = module.action_space
    if isinstance(space, spaces.Discrete):
        return Categorical(masked(dense(int(space.n), 0.01, "logits")(x), obs))
    size = math.prod(space.shape or ())
    if module.deterministic:
        return jnp.tanh(dense(size, 0.01, "action")(x))
    log_std = jnp.clip(dense(size, 0.01, "log_std")(x) + math.log(module.initial_std), *LOG_STD_RANGE)
    return TanhNormal(dense(size, 0.01, "mean")(x), log_std)


class ActionValue(nn.Module):
    """Torso and value head: one or several numbers for (observation, action) in a Box, one value per action if Discrete."""

    network: Network
    action_space: spaces.Box | spaces.Discrete
    num_outputs: int | None

    @nn.compact
    def __call__(self, inputs: StepInput, valid: Array | None = None, axis_name: str | None = None) -> Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs, valid, axis_name)
        return _values(self.action_space, self.num_outputs, x, inputs.obs)


class RecurrentActionValue(RecurrentCore):
    """Torso → core → value head. The core sees observations; the action of a Box enters after it, with a hidden layer."""

    num_outputs: int | None

    @nn.compact
    def heads(self, hidden: Array, obs: PyTree) -> Array:
        if isinstance(self.action_space, spaces.Box):
            network, x = self.network, jnp.concatenate([hidden, obs[1]], axis=-1)
            size = network.hidden_sizes[-1:] or (network.core_size,)
            hidden = hidden_layers(x, size, network.activation, network.layer_norm, network.dtype)
        return _values(self.action_space, self.num_outputs, hidden, obs)


def _values(space: spaces.Space, num_outputs: int | None, x: Array, obs: PyTree) -> Array:
    """Return the output of the value head that belongs to the module which calls this function."""
    if isinstance(space, spaces.Discrete):
        return masked(dense(int(space.n), 1.0, "value")(x), obs)
    return of_values(dense(num_outputs or 1, 1.0, "value")(x), num_outputs)


@component("model", home="jaxrl.models")
@configured_by(PolicyNetworkConfig)
def policy_network(observation_space: spaces.Space, action_space: spaces.Space, config: PolicyNetworkConfig) -> Model:
    """Build a policy without a value, with an MLP, CNN or recurrent network.

    For a Box, outputs are a ``TanhNormal`` in [−1, 1] with a standard deviation that depends on the observation; the algorithm
    scales actions to the bounds. For a Discrete space, outputs are a ``Categorical``.

    Args:
      action_space: Box or Discrete.
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
    """
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: policy_network needs a Box or Discrete space")
    check_initial_std(config.initial_std, action_space)
    return _policy_model(observation_space, action_space, config, False)


@component("model", home="jaxrl.models")
@configured_by(CoreConfig)
def deterministic_policy(observation_space: spaces.Space, action_space: spaces.Space, config: CoreConfig) -> Model:
    """Build a deterministic policy. For a Box, outputs are f32[..., d] in (−1, 1); the algorithm scales them to the bounds. For a
    Discrete space, outputs are a ``Categorical``; the algorithm draws relaxed samples from it.

    Args:
      action_space: Box or Discrete.
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
    """
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: deterministic_policy needs a Box or Discrete space")
    return _policy_model(observation_space, action_space, config, True)


def _policy_model(observation_space: spaces.Space, action_space: Any, config: CoreConfig, deterministic: bool) -> Model:
    network = make_network(observation_space, config, hidden_sizes=HIDDEN_SIZES)
    head = action_space, deterministic, getattr(config, "initial_std", 1.0)
    if core := CORES.get(config.core or ""):
        return recurrent(RecurrentPolicyNetwork(network, *head), partial(core.initial_carry, network), parallel=core.parallel)
    return from_linen(PolicyNetwork(network, *head), statistics=_statistics(config))


@component("model", home="jaxrl.models")
@configured_by(ActionValueConfig)
def action_value(observation_space: spaces.Space, action_space: spaces.Space, config: ActionValueConfig) -> Model:
    """Build an action-value network.

    For a Box, its input ``obs`` is the pair (observation, action), with the action f32[..., d], in [−1, 1] if the space is
    bounded. Outputs are f32[...], or f32[..., num_outputs]. For a Discrete space, its input is the observation, and outputs are
    the values of all actions, f32[..., n].

    With a core, the action enters after the core: the carry depends on the actions that were taken, by ``use_previous``, and not
    on those whose value is asked for.

    Args:
      action_space: Box or Discrete.
      hidden_sizes: default: (256, 256), or the layers of the encoder's paper.
    """
    if config.privileged:
        check_privileged(observation_space, "privileged=True")
    if isinstance(action_space, spaces.Box):
        unit = spaces.Box(-1.0, 1.0, (math.prod(action_space.shape),), np.float32)
        observation_space = spaces.Tuple((observation_space, *([unit] if config.core is None else [])))
    elif config.num_outputs is not None or not isinstance(action_space, spaces.Discrete):
        kinds = "a Box or Discrete space" if config.num_outputs is None else "a Box for num_outputs"
        raise TypeError(f"action_space is {action_space}: action_value needs {kinds}")
    network = make_network(observation_space, config, hidden_sizes=HIDDEN_SIZES, privileged=config.privileged)
    if core := CORES.get(config.core or ""):
        values = RecurrentActionValue(network, action_space, config.num_outputs)
        return recurrent(values, partial(core.initial_carry, network), parallel=core.parallel)
    return from_linen(ActionValue(network, action_space, config.num_outputs), statistics=_statistics(config))


def _statistics(config: CoreConfig) -> tuple[str, ...]:
    return (COLLECTION,) if getattr(config, "batch_renorm", False) else ()
