"""Uniform replay that emphasises recent experience (ERE, Wang & Ross 2019)."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp

from jaxrl.replay import Draw, Replay, ReplayFn, bind, uniform
from jaxrl.replay.uniform import ReplayState, Ring, make_ring
from jaxrl.types import Key

EXPONENT = 1000.0
"""Exponent of η at the last draw (Wang & Ross 2019, eq. 1)."""


def recent_replay(eta: float, least: int) -> ReplayFn:
    """Return a function that makes a uniform replay whose later draws are of newer rows.

    Of the n rows drawn together, for all updates of an iteration, the i-th is one of the newest N·η^(1000·i / n) of N rows, or of
    the newest ``least``, with equal probability (Wang & Ross 2019, eq. 1).
    """

    def make(capacity: int, num_envs: int, rows_per_add: int, /, *, before: int, after: int) -> Replay:
        ring = make_ring(capacity, num_envs, rows_per_add, before=before, after=after)
        replay = bind(ring, (uniform.init, uniform.add, uniform.draw, uniform.take, uniform.update, uniform.mark_discontinuity))
        return replay._replace(draw=partial(draw, ring, eta, least))

    return make


def draw(ring: Ring, eta: float, least: int, state: ReplayState, key: Key, batch_size: int) -> Draw:
    rows = state.size.astype(jnp.float32) * ring.num_envs  # of all devices, as ``least`` is
    share = jnp.maximum(eta ** (EXPONENT * jnp.arange(batch_size) / batch_size), least / jnp.maximum(rows, 1.0))
    return uniform.draw(ring, state, key, batch_size, jnp.minimum(share, 1.0))
