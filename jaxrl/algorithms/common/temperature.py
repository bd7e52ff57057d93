"""The temperature of a soft policy, which weighs its entropy (Haarnoja et al. 2018, 2019)."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.settings import hyperparams as shared
from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import NonNegative, Positive, Unit
from jaxrl.types import Array


@option("learned")
class LearnedTemperature(Option):
    """Adapt the temperature so that the policy's entropy approaches a target (Haarnoja et al. 2019)."""

    initial: Positive = hyperparameter("temperature", 1.0)
    """α, the weight of the entropy in nats relative to rewards, at the start."""
    learning_rate: shared.LearningRate = hyperparameter("temperature_learning_rate", 1e-3)
    """Adam's step size for the logarithm of α."""
    box_entropy: NonNegative = hyperparameter("box_entropy", 1.0)
    """Box actions: the target entropy is −box_entropy nats per dimension, for actions in [−1, 1]."""
    discrete_entropy: Unit = hyperparameter("discrete_entropy", 0.3)
    """Discrete actions: the target entropy is this fraction of log n, for n actions."""


@option("fixed")
class FixedTemperature(Option):
    """Keep the temperature constant (Haarnoja et al. 2018)."""

    value: Positive = hyperparameter("temperature", 1.0)
    """α, the weight of the entropy in nats relative to rewards."""


def temperature_gradient(log_temperature: Array, entropy: Array, target_entropy: Array | float) -> Array:
    """Gradient of E[−α·log π(a | s) − α·H̄] with respect to log α (Haarnoja et al. 2019, eq. 18)."""
    return jnp.exp(log_temperature) * (entropy - target_entropy)


def target_entropy(action_space: spaces.Space, hyperparams: Any) -> Array | float:
    """Return the target entropy H̄ in nats."""
    if isinstance(action_space, spaces.Discrete):
        return hyperparams.discrete_entropy * math.log(int(action_space.n))
    assert isinstance(action_space, spaces.Box)
    return -hyperparams.box_entropy * math.prod(action_space.shape)
