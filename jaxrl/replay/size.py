"""Memory needed by replay, computed from shapes alone."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.types import Agent, Algorithm


def replay_bytes(agent: Agent) -> int:
    """Return the bytes of one seed's replay, 0 for algorithms without replay. Nothing is allocated, and no backend starts.

    n seeds, vectorised or on several devices, take n times as much in total. Acting and learning need additional memory.
    """
    return stored_bytes(agent.algorithm, jax.eval_shape(lambda: agent.init(jax.random.key(0))).learner)


def stored_bytes(algorithm: Algorithm, learner: Any) -> int:
    """Return the bytes of a learner's fields that store rows, over all of its seeds. ``learner`` may consist of shapes."""
    stored = [getattr(learner, name) for name in algorithm.buffers]
    return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(stored))
