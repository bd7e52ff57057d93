"""Models of MuZero that are matrices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from jaxrl.algorithms.common.planning.latent_model import LatentModel, LatentParams, Support
from jaxrl.models.dynamics.latent import DynamicsOutput, PredictionOutput
from jaxrl.types import Model

BINS = 5
SUPPORT = Support(4.0, BINS, None)
"""Values of these models."""


def linear_model(actions: int = 2, size: int = 3, turns: int = 2) -> LatentModel:
    """Return networks that are matrices, with parameters under the names of their outputs."""

    def model(forward: Any) -> Model:
        apply = lambda params, carry, inputs, key=None: (carry, forward(params, inputs.obs))  # noqa: E731
        return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]

    def dynamics(params: Any, pair: Any) -> DynamicsOutput:
        x = jnp.concatenate([pair[0], jax.nn.one_hot(pair[1], actions)], -1)
        return DynamicsOutput(x @ params["state"], x @ params["reward"], x @ params["turn"])

    predict = lambda params, x: PredictionOutput(x @ params["logits"], x @ params["value"])  # noqa: E731
    space: Any = jaxrl.make_env("CartPole-v1").action_space
    return LatentModel(model(lambda params, obs: obs @ params["state"]), model(dynamics), model(predict), SUPPORT, space)


def linear_params(rng: np.random.Generator, features: int = 4, actions: int = 2, size: int = 3) -> Any:
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    dynamics = {"state": draw(size + actions, size), "reward": draw(size + actions, BINS), "turn": draw(size + actions, 2)}
    return LatentParams({"state": draw(features, size)}, dynamics, {"logits": draw(size, actions), "value": draw(size, BINS)})
