"""Seeds on a CPU: groups of them that are updated in one operation, and their size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax

from jaxrl.xla.seed_axis import Axes, in_groups

GROUPS = ((8_192, 1), (4_096, 4), (1_024, 8))
"""(Numbers in a seed's largest kernel, seeds of a group.) With smaller kernels, all seeds are one group.

A group's operations read and write its parameters, moments and activations, which leave the caches if the group is large. Groups
that are too small pay for the start of many operations. One core of a Xeon, time of an iteration as a share of that of one group:

=======================  =======  =====  =======================================
Networks                 Kernel   Seeds  Share
=======================  =======  =====  =======================================
PPO, MinAtar Breakout    131,072      8  0.60 alone, 0.77 in twos, 0.95 in fours
TD3, 2×256               131,072      4  0.75 alone
PPO, GRU                  12,288     16  0.92 alone, 0.82 in fours
SAC, 2×64                  8,192     16  0.67 alone, 0.74 in twos, 0.78 in fours
PPO, 2×64                  4,096     32  0.77 alone, 0.71 in fours, 0.75 in eights
DQN, 2×64                  4,096     32  0.93 alone, 0.84 in fours, 0.89 in eights
SAC, 2×32                  2,048     32  1.16 alone, 0.75 in eights
PPO, 2×32                  1,024     64  0.82 in eights, 0.92 in sixteens
PPO, 2×16                    256     64  1.5 alone, 1.0 in eights
=======================  =======  =====  =======================================
"""
GROUP_BYTES = 2**28
"""Bytes of a group's states up to which a loop over groups is worth its copies of them."""


def by_group(function: Callable[..., Any], in_axes: Axes = 0) -> Callable[..., Any]:
    """Map a function of one seed's state over the seeds of a device, as ``in_groups`` does, with the size for these states."""

    def mapped(states: Any, *args: Any) -> Any:
        size = group_size(states, len(jax.tree.leaves(states)[0]))
        return in_groups(size)(function, in_axes=in_axes)(states, *args)

    return mapped


def group_size(states: Any, num_seeds: int) -> int:
    """Return the number of seeds of a group, a divisor of ``num_seeds``.

    Args:
      states: AgentState, or its shapes, with a leading axis of seeds.
      num_seeds: seeds of a device.
    """
    kernel = max((_numbers(x) for x in jax.tree.leaves(states.learner.params) if x.ndim > 2), default=0)
    most = next((size for smallest, size in GROUPS if kernel >= smallest), num_seeds)
    size = max(n for n in range(1, num_seeds + 1) if num_seeds % n == 0 and n <= most)
    bytes_each = sum(_numbers(x) * x.dtype.itemsize for x in jax.tree.leaves(states))
    return size if size * bytes_each <= GROUP_BYTES else num_seeds


def _numbers(x: Any) -> int:
    """Return how many numbers of an array are a seed's."""
    return math.prod(x.shape[1:])
