"""Optimizers that a user might pass."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax


def halved(iteration: Any) -> Any:
    return 0.5 * jnp.ones_like(iteration)


def plain_sgd(hyperparams: Any, momentum: float = 0.0) -> optax.GradientTransformation:
    return optax.sgd(hyperparams.learning_rate, momentum)
