"""Probabilistic dynamics of an environment: the change of the observation, the reward and the termination of a step."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.config import NetworkConfig
from jaxrl.models.configured import configured_by
from jaxrl.models.initialisers import dense
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.settings.loadable import component
from jaxrl.types import Array, Model, StepInput

LOG_VARIANCE_RANGE = (-10.0, 0.5)
"""Initial bounds of the log variance of normalised predictions (code of Chua et al. 2018)."""


class StepPrediction(NamedTuple):
    """Prediction of a step: a Gaussian over n + 1 numbers, normalised changes of the observation and the normalised reward."""

    mean: Array
    """f32[..., n + 1]"""
    log_variance: Array
    """f32[..., n + 1]"""
    width: Array
    """f32[..., n + 1]: distance of the learnt bounds of the log variance, a penalty in the loss; zeros without such bounds."""
    terminated: Array
    """f32[...]: logit of the probability that the step ends the episode by a termination."""


class Dynamics(nn.Module):
    """Torso and the parameters of a ``StepPrediction``."""

    network: Network
    action_space: spaces.Box
    size: int
    """Number of predicted numbers, n + 1."""

    @nn.compact
    def __call__(self, inputs: StepInput) -> StepPrediction:
        x = dense(2 * self.size + 1, 1.0, "prediction")(Torso(self.network, self.action_space, name="torso")(inputs))
        mean, log_variance, terminated = x[..., : self.size], x[..., self.size : -1], x[..., -1]
        least, most = (
            self.param(name, nn.initializers.constant(value), (self.size,))
            for name, value in zip(("least_log_variance", "most_log_variance"), LOG_VARIANCE_RANGE, strict=True)
        )
        log_variance = most - jax.nn.softplus(most - log_variance)
        log_variance = least + jax.nn.softplus(log_variance - least)
        return StepPrediction(mean, log_variance, jnp.broadcast_to(most - least, mean.shape), terminated)


@component("model", home="jaxrl.models")
@configured_by(NetworkConfig)
def dynamics_network(observation_space: spaces.Space, action_space: spaces.Space, config: NetworkConfig) -> Model:
    """Build a probabilistic network that predicts a step of the environment (Chua et al. 2018, appendix A.1).

    Its input ``obs`` is the pair (observation f32[..., n], action f32[..., d] in [−1, 1]). Outputs are ``StepPrediction``.

    Args:
      observation_space: Tuple of two Boxes with one axis, of observations and actions.
      action_space: Box.
      hidden_sizes: default: (64, 64).
      activation: "tanh", "relu", "elu" or "silu". Default: "silu".
    """
    parts = observation_space.spaces if isinstance(observation_space, spaces.Tuple) else ()
    if len(parts) != 2 or not all(isinstance(part, spaces.Box) and len(part.shape) == 1 for part in parts):
        raise TypeError(f"observation_space is {observation_space}: dynamics_network needs a Tuple of two Boxes with one axis")
    network = make_network(observation_space, config, activation="silu")
    return from_linen(Dynamics(network, action_space, 1 + parts[0].shape[0]))  # type: ignore[index, arg-type]
