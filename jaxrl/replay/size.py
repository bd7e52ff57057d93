"""How much memory replay takes, from shapes alone."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.types import Agent, Algorithm


def replay_bytes(agent: Agent) -> int:
    """Bytes of one seed's replay, 0 for rules without one. Nothing is allocated, and no backend starts.

    Of n seeds, vmapped or on several devices, it is n times as much in all. Acting and learning come on top.
    """
    return stored_bytes(agent.algorithm, jax.eval_shape(lambda: agent.init(jax.random.key(0))).learner)


def stored_bytes(algorithm: Algorithm, learner: Any) -> int:
    """Bytes of the fields of a learner, or of its shapes, that store rows; of all seeds where it holds several."""
    stored = [getattr(learner, name) for name in algorithm.buffers]
    return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(stored))
