"""Batches and linear models for tests of losses."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.ppo_objectives import Batch
from jaxrl.distributions import Categorical, Normal
from jaxrl.models import ActorCriticOutput
from jaxrl.rollout.autoreset import first_input
from jaxrl.types import Model

N, FEATURES = 14, 3


def linear_model(discrete: bool) -> Model:
    """Model with outputs that are easy to compute in NumPy: logits or means x·W, and values x·v."""

    def apply(params: Any, carry: Any, inputs: Any) -> Any:
        out = inputs.obs @ params["w"]
        policy = Categorical(out) if discrete else Normal(out, jnp.broadcast_to(params["log_std"], out.shape))
        return carry, ActorCriticOutput(policy, inputs.obs @ params["v"])

    return Model(None, apply, apply, lambda batch: ())  # type: ignore[arg-type]


def loss_case(discrete: bool, seed: int = 0) -> tuple[dict[str, np.ndarray], Batch]:
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    params = {"w": normal(FEATURES, 4 if discrete else 2), "v": normal(FEATURES), "log_std": 0.3 * normal(2)}
    action = rng.integers(4, size=N).astype(np.int32) if discrete else normal(N, 2)
    inputs = first_input(normal(N, FEATURES), spaces.Discrete(4), N)
    log_prob = policy_of(discrete, params, inputs.obs).log_prob(action) + 0.3 * normal(N)
    rest = {"log_prob": np.asarray(log_prob), "advantage": 2 + 3 * normal(N), "target": normal(N), "value": normal(N)}
    return params, Batch(inputs, (), action, **rest, valid=rng.random(N) < 0.7)


def policy_of(discrete: bool, params: Any, obs: Any) -> Any:
    return linear_model(discrete).apply(params, (), first_input(obs, spaces.Discrete(4), N))[1].policy
