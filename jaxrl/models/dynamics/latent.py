"""Networks of MuZero: representation, dynamics and prediction, on latent states (Schrittwieser et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import numpy as np
from gymnasium import spaces

from jaxrl.models.config import NetworkConfig
from jaxrl.models.configured import configured_by
from jaxrl.models.initialisers import dense
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import Count
from jaxrl.types import Array, Model, StepInput


class DynamicsOutput(NamedTuple):
    """Next state, reward and continuation after an action in a latent state."""

    state: Array
    """f32[..., d]: the next latent state, not scaled."""
    reward: Array
    """f32[..., K]: logits of the reward's distribution."""
    turn: Array
    """f32[..., 2 or 3]: logits of what follows: the episode ends, the same player moves, the other player moves."""


class PredictionOutput(NamedTuple):
    """Prior and value of a latent state."""

    logits: Array
    """f32[..., n]: prior of the actions."""
    value: Array
    """f32[..., K]: logits of the return's distribution."""


class Representation(nn.Module):
    """Torso → latent state."""

    network: Network
    action_space: spaces.Discrete
    latent_size: int

    @nn.compact
    def __call__(self, inputs: StepInput) -> Array:
        return dense(self.latent_size, 1.0, "state")(Torso(self.network, self.action_space, name="torso")(inputs))


class Dynamics(nn.Module):
    """Torso of (latent state, action) → change of the state, reward, what follows."""

    network: Network
    action_space: spaces.Discrete
    num_outputs: int
    num_turns: int

    @nn.compact
    def __call__(self, inputs: StepInput) -> DynamicsOutput:
        x, state = Torso(self.network, self.action_space, name="torso")(inputs), inputs.obs[0]
        state = state + dense(state.shape[-1], 1.0, "state")(x)
        return DynamicsOutput(state, dense(self.num_outputs, 0.01, "reward")(x), dense(self.num_turns, 0.01, "turn")(x))


class Prediction(nn.Module):
    """Torso of a latent state → prior and value."""

    network: Network
    action_space: spaces.Discrete
    num_outputs: int

    @nn.compact
    def __call__(self, inputs: StepInput) -> PredictionOutput:
        x = Torso(self.network, self.action_space, name="torso")(inputs)
        return PredictionOutput(dense(int(self.action_space.n), 0.01, "logits")(x), dense(self.num_outputs, 0.01, "value")(x))


# -------------------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class RepresentationConfig(NetworkConfig):
    """Keywords of ``representation``.

    Args:
      latent_size: numbers of a latent state.
    """

    latent_size: Count = 64


@dataclass(frozen=True, kw_only=True)
class PredictionConfig(NetworkConfig):
    """Keywords of ``latent_prediction``.

    Args:
      num_outputs: logits of the distributions of rewards and of returns.
    """

    num_outputs: Count = 51


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig(PredictionConfig):
    """Keywords of ``latent_dynamics``.

    Args:
      num_turns: 3 in games of two players, whose turns may alternate, otherwise 2.
    """

    num_turns: Count = 2


def latent_space(size: int) -> spaces.Box:
    """Return the space of latent states of this size: each number is scaled to [0, 1]."""
    return spaces.Box(0.0, 1.0, (size,), np.float32)


# ------------------------------------------------------------------------------------------------------------------- functions


@component("model", home="jaxrl.models")
@configured_by(RepresentationConfig)
def representation(observation_space: spaces.Space, action_space: spaces.Space, config: RepresentationConfig) -> Model:
    """Build MuZero's representation function h. Outputs are latent states f32[..., latent_size], which the algorithm scales.

    Args:
      action_space: Discrete.
    """
    return from_linen(Representation(make_network(observation_space, config), _discrete(action_space), config.latent_size))


@component("model", home="jaxrl.models")
@configured_by(DynamicsConfig)
def latent_dynamics(observation_space: spaces.Space, action_space: spaces.Space, config: DynamicsConfig) -> Model:
    """Build MuZero's dynamics function g. Its input ``obs`` is the pair (latent state, action). Outputs are ``DynamicsOutput``.

    Args:
      observation_space: the space of latent states, a Box.
      action_space: Discrete.
    """
    actions = _discrete(action_space)
    network = make_network(spaces.Tuple((observation_space, actions)), config)
    return from_linen(Dynamics(network, actions, config.num_outputs, config.num_turns))


@component("model", home="jaxrl.models")
@configured_by(PredictionConfig)
def latent_prediction(observation_space: spaces.Space, action_space: spaces.Space, config: PredictionConfig) -> Model:
    """Build MuZero's prediction function f. Its input ``obs`` is a latent state. Outputs are ``PredictionOutput``.

    Args:
      observation_space: the space of latent states, a Box.
      action_space: Discrete.
    """
    return from_linen(Prediction(make_network(observation_space, config), _discrete(action_space), config.num_outputs))


def _discrete(action_space: spaces.Space) -> spaces.Discrete:
    if not isinstance(action_space, spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: MuZero's networks need a Discrete space")
    return action_space
