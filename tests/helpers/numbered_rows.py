"""Numbered rows for tests of replay."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

KEY = partial(jax.random.key, 0)
ENVS = 3
ALL = np.arange(ENVS)


class Numbered(NamedTuple):
    """Distinct rows: ``number`` counts rows, ``name`` holds row and environment."""

    number: Any
    name: Any
    flag: Any
    valid: Any


EXAMPLE = Numbered(jnp.int32(0), jnp.zeros(2), jnp.uint8(0), jnp.array(False))


def numbered_rows(start: int, length: int, num_envs: int = ENVS, share_valid: float = 0.7) -> Numbered:
    number = np.broadcast_to(np.arange(start, start + length)[:, None], (length, num_envs))
    env = np.broadcast_to(np.arange(num_envs), (length, num_envs))
    valid = np.random.default_rng((start, num_envs)).random((length, num_envs)) < share_valid
    return Numbered(
        number.astype(np.int32), np.stack([number, env], -1).astype(np.float32), (number % 251).astype(np.uint8), valid
    )
